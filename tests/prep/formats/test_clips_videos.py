"""Do video files give the frames that were drawn, upright and at their times, or a true reason why not?"""

import struct
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions
from halofeed.prep.formats.clip.video import is_interlaced
from halofeed.prep.formats.picture import ReadOptions
from tests.support import clip_samples as samples
from tests.support import numbered_clips as clips

KEEP = FrameOptions(incomplete="keep")


def kept_or_reason(folder: Path, data: bytes) -> tuple[Clip | None, str]:
    """What is left of a clip, or why there is nothing; without being asked to keep it it is always refused."""
    error = clips.rejected(folder, data)
    try:
        clip = clips.opened(folder, data, KEEP)
    except SourceError as refused:
        return None, refused.reason
    assert error.reason == "file is truncated" and "--incomplete-clips keep" in error.detail
    assert clip.findings[0].startswith(f"file is truncated: whole frames: {clip.frames}"), clip.findings
    return clip, ""


@pytest.mark.parametrize(("extension", "codec"), clips.VIDEOS)
def test_every_frame_is_what_was_drawn_at_its_time(tmp_path, extension, codec):
    clip = clips.opened(tmp_path, clips.write_video(tmp_path / f"w.{extension}", codec, 20, 25))
    assert (clip.frames, clip.height, clip.width, clip.findings) == (20, clips.HEIGHT, clips.WIDTH, ())
    assert clip.times_s.tolist() == pytest.approx([number / 25 for number in range(20)], abs=0.0006)
    whole = list(clip.read(range(20)))
    assert [clips.number_in(frame) for frame in whole] == list(range(20))
    assert all(frame.flags.c_contiguous and frame.dtype == np.uint8 for frame in whole)
    assert clips.corners_of(whole[7]) == list(clips.CORNERS)
    for wanted in (range(20), [0, 3, 4, 11, 19]):  # a part is the same bytes as in the whole
        assert all(np.array_equal(whole[i], one) for i, one in zip(wanted, clip.read(wanted), strict=True))
    clip = clips.opened(tmp_path, clips.write_video(tmp_path / f"one.{extension}", codec, 1))
    assert (clip.frames, clip.times_s.tolist(), clips.numbers_in(clip)) == (1, [0.0], [0])


def test_the_content_says_what_a_file_is_and_not_its_name(tmp_path):
    clip = clips.opened(tmp_path, clips.write_video(tmp_path / "w.webm", "VP80"), name="clip.mp4")
    assert clips.numbers_in(clip) == list(range(20))
    clip = clips.opened(tmp_path, clips.write_video(tmp_path / "w.mp4", "mp4v"))
    assert [clips.number_in(frame) for frame in clip.read([9, 2, 9, 5])] == [2, 5, 9]
    assert list(clip.read([])) == []
    with pytest.raises(IndexError):
        next(clip.read([20]))


def test_a_variable_frame_rate_keeps_its_time_stamps(tmp_path):
    data = clips.write_video(tmp_path / "w.mp4", "mp4v", 6, 25)
    scale = struct.unpack_from(">I", data, clips.box(data, b"mdhd")[0] + 20)[0]
    shown_s = [0.04, 0.2, 0.04, 1.0, 0.08, 0.04]
    clip = clips.opened(tmp_path, clips.with_durations(data, [round(scale * seconds) for seconds in shown_s]))
    assert clip.times_s.tolist() == pytest.approx([0, 0.04, 0.24, 0.28, 1.28, 1.36], abs=1e-6)
    assert clip.findings == ("variable frame rate",) and clips.numbers_in(clip) == list(range(6))
    clip = clips.opened(tmp_path, samples.H264_VARIABLE)
    assert clips.numbers_in(clip) == list(range(20)) and clip.findings == ("variable frame rate",)
    assert (1000 * clip.times_s).tolist() == pytest.approx(samples.VARIABLE_MS)


@pytest.mark.parametrize("kind", ["mp4", "avi", "webm", "mkv"])
def test_a_file_that_was_cut_off_anywhere_is_refused_or_by_choice_keeps_its_whole_frames(tmp_path, kind):
    codec = {"mp4": "mp4v", "avi": "MJPG", "webm": "VP80", "mkv": "FFV1"}[kind]
    data = clips.write_video(tmp_path / f"w.{kind}", codec, 50)
    if kind == "mp4":
        data = clips.with_index_first(data)
    reference = list(clips.opened(tmp_path, data).read(range(50)))
    counts = []
    for part in range(1, 50):
        end = len(data) * part // 51
        clip, reason = kept_or_reason(tmp_path, data[:end])
        if clip is None:
            assert reason in ("file is truncated", "clip has no frames"), end
            counts.append(0)
            continue
        frames = list(clip.read(range(clip.frames)))
        assert all(np.array_equal(a, b) for a, b in zip(frames, reference, strict=False)), end
        counts.append(clip.frames)
    assert counts == sorted(counts) and counts[-1] >= 45 and len(set(counts)) > 15
    error = clips.rejected(tmp_path, data[: len(data) * 9 // 10])
    assert kind in ("webm", "mkv") or " of 50;" in error.detail


@pytest.mark.parametrize("fragments", [False, True])
def test_frames_out_of_order_that_were_cut_off_keep_their_times(tmp_path, fragments):
    data = samples.H264_FRAGMENTS if fragments else samples.H264_VARIABLE
    times = np.arange(20) * 40 if fragments else np.array(samples.VARIABLE_MS)
    counts = set()
    for end in range(50, len(data), 50):
        clip, reason = kept_or_reason(tmp_path, data[:end])
        if clip is None:
            assert reason in ("file is truncated", "clip has no frames"), end
            continue
        assert (1000 * clip.times_s).tolist() == pytest.approx(times[clips.numbers_in(clip)].tolist())
        counts.add(clip.frames)
    assert len(counts) > 3


def test_a_codec_that_opencv_lacks_and_a_missing_index_are_named(tmp_path):
    error = clips.rejected(tmp_path, samples.AV1)
    assert error.reason == "video cannot be decoded" and "'V_AV1'" in error.detail and "H.264" in error.detail
    data = clips.write_video(tmp_path / "w.mp4", "mp4v")
    for end in (40, len(data) // 3, clips.box(data, b"moov")[0], clips.box(data, b"moov")[1] - 1):
        error = clips.rejected(tmp_path, data[:end])
        assert (error.reason, "index" in error.detail) == ("file is truncated", True)
    data = clips.write_video(tmp_path / "w.avi", "MJPG")
    assert clips.numbers_in(clips.opened(tmp_path, data[: data.rindex(b"idx1") + 40])) == list(range(20))


def test_videos_of_no_frames_or_of_few_and_what_is_no_video_are_refused_by_what_they_are(tmp_path):
    data = bytearray(clips.write_video(tmp_path / "w.mp4", "mp4v"))
    struct.pack_into(">I", data, clips.box(data, b"stsz")[0] + 16, 0)
    assert clips.rejected(tmp_path, bytes(data)).reason == "clip has no frames"
    avi = clips.write_video(tmp_path / "w.avi", "MJPG")
    start = avi.index(b"movi")
    empty = bytearray(avi[: start + 4])
    struct.pack_into("<I", empty, 4, len(empty) - 8)
    struct.pack_into("<I", empty, start - 4, 4)
    assert clips.rejected(tmp_path, bytes(empty)).reason == "clip has no frames"
    data = bytearray(clips.write_video(tmp_path / "w.mp4", "mp4v"))
    start = clips.box(data, b"stsz")[0] + 20
    for number in range(5, 20):
        struct.pack_into(">I", data, start + 4 * number, 0)
    assert "5 of 20 " in clips.rejected(tmp_path, bytes(data)).detail
    for data, said in NO_VIDEOS:
        assert said in str(clips.rejected(tmp_path, data)), data


PLAYLISTS = [
    b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
    *(b"ffconcat version 1.0\nfile other.mp4\n", b"v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n"),
]
NO_VIDEOS = [
    *((b"", "empty"), (b"These are no frames.\n" * 50, "54 68 65 73"), (b"\x1f\x8b" + bytes(60), "gzip")),
    *((data, "playlist") for data in PLAYLISTS),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    *((b"\xff\xd8\xff\xe0" + bytes(60), "jpeg picture"), (b"\0\0\0\x18ftypheic" + bytes(60), "heic picture")),
    *((b"FLV\x01" + bytes(60), "Flash"), (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "index")),
    *((b"RIFF\x04\0\0\0AVI ", "no track"), (b"\x1a\x45\xdf\xa3\x80", "document type")),
]


def test_a_frame_that_nothing_finds_or_that_ends_the_decoding_refuses_a_clip_that_goes_on(tmp_path):
    data = clips.write_video(tmp_path / "w.avi", "MJPG")
    at = data.index(b"movi")
    for _ in range(8):
        at = data.index(b"00dc", at + 1)
    junk = data[:at] + b"JUNK" + data[at + 4 :]
    error = clips.rejected(tmp_path, junk)
    assert error.reason == "frames are missing" and error.detail.startswith("19 of 20 ")
    clip = clips.opened(tmp_path, junk, KEEP)
    assert clips.numbers_in(clip) == [*range(7), *range(8, 20)]
    assert clip.findings[0] == "frames are missing: 19 of 20 that it says it has can be read"
    data = bytearray(clips.write_video(tmp_path / "w.webm", "VP80"))
    blocks = [at for at in range(len(data)) if data[at] == 0xA3 and data[at + 2] == 0x81]
    data[blocks[8] + 6 : blocks[8] + 30] = bytes(24)
    error = clips.rejected(tmp_path, bytes(data))
    assert error.reason == "file is damaged" and "frame 8 cannot be decoded" in error.detail


@pytest.mark.parametrize("lie", [5, 19, 21, 4000])
@pytest.mark.parametrize("kind", ["avi", "mp4 sizes", "mp4 times"])
def test_a_false_count_of_frames_in_the_header_loses_none_unseen(tmp_path, kind, lie):
    name, codec = ("w.avi", "MJPG") if kind == "avi" else ("w.mp4", "mp4v")
    data = bytearray(clips.write_video(tmp_path / name, codec))
    if kind == "avi":
        struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, lie)
    elif kind == "mp4 sizes":
        struct.pack_into(">I", data, clips.box(data, b"stsz")[0] + 16, lie)
    else:
        struct.pack_into(">II", data, clips.box(data, b"stts")[0] + 12, 1, lie)
    if kind != "mp4 sizes" and lie < 20:  # all frames are found elsewhere
        assert clips.numbers_in(clips.opened(tmp_path, bytes(data))) == list(range(20))
    else:
        assert clips.rejected(tmp_path, bytes(data)).reason in ("frames are missing", "file is damaged")


@pytest.mark.parametrize("shown_s", [0.24, 0.76])
def test_frames_that_an_edit_list_hides_are_left_out(tmp_path, shown_s):
    data = bytearray(clips.write_video(tmp_path / "w.mp4", "mp4v"))
    scale = struct.unpack_from(">I", data, clips.box(data, b"mvhd")[0] + 20)[0]
    edit = data.index(b"elst") + 12
    struct.pack_into(">I", data, edit, round(shown_s * scale))
    clip = clips.opened(tmp_path, bytes(data))
    assert clips.numbers_in(clip) == list(range(clip.frames)) and 0 <= clip.frames - 25 * shown_s < 4
    hidden = 20 - clip.frames
    assert clip.findings == ((f"its edit list hides {hidden} of 20 frames",) if hidden else ())


@pytest.mark.parametrize(("extension", "codec"), [("avi", "MJPG"), ("webm", "VP80")])
def test_a_length_that_is_damaged_is_no_file_that_was_cut_off(tmp_path, extension, codec):
    data = bytearray(clips.write_video(tmp_path / f"w.{extension}", codec))
    if extension == "avi":
        at = data.index(b"00dc", len(data) // 2)
        data[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    else:
        at = next(at for at in range(len(data) // 2, len(data)) if data[at] == 0xA3 and data[at + 2] == 0x81)
        data[at + 1] = 0x10
    assert "longer than the file" in str(clips.rejected(tmp_path, bytes(data)))


TURNS = [lambda frame: frame, lambda frame: frame[:, ::-1], lambda frame: np.rot90(frame, 2)]
TURNS += [lambda frame: frame[::-1], lambda frame: frame.swapaxes(0, 1), lambda frame: np.rot90(frame, -1)]
TURNS += [lambda frame: np.rot90(frame, 2).swapaxes(0, 1), lambda frame: np.rot90(frame, 1)]
"""What the orientations of EXIF do, from 1."""


def pose(yaw: float, pitch: float, roll: float) -> bytes:
    """`MIRRORED` with another pose."""
    data = bytearray(samples.MIRRORED)
    for identifier, angle in ((b"\x76\x73", yaw), (b"\x76\x75", roll)):
        struct.pack_into(">d", data, data.index(identifier + b"\x88") + 3, angle)
    if pitch:
        at = data.index(b"\x76\x73\x88")
        data[at : at + 2] = b"\x76\x74"
    return bytes(data)


@pytest.mark.parametrize(
    ("yaw", "roll", "orientation"),
    [
        *((0, 0, 1), (0, 90, 8), (0, 180, 3), (0, -90, 6)),
        *((180, 0, 2), (180, -90, 7), (-180, 180, 4), (180, 90, 5)),
    ],
)
def test_matroska_is_turned_and_mirrored_as_ffmpeg_writes_it(tmp_path, yaw, roll, orientation):
    clip = clips.opened(tmp_path, pose(yaw, 0, roll))
    expected = TURNS[orientation - 1](clips.draw(1))
    (frame,) = clip.read([1])
    assert frame.shape == expected.shape == (clip.height, clip.width, 3)
    assert np.abs(frame.astype(int) - expected).mean() < 8
    assert clip.findings == (() if orientation == 1 else ("orientation applied",))


def test_a_turn_by_an_odd_angle_is_refused(tmp_path):
    poses = [pose(*angles) for angles in ((0, 0, 45), (90, 0, 0), (30, 1, 0), (0, 0, float("nan")))]
    for data in (*poses, clips.with_matrix(clips.write_video(tmp_path / "w.mp4", "mp4v"), 1, 1, -1, 1)):
        assert clips.rejected(tmp_path, data).reason == "display matrix is not supported"
    assert "upright" in clips.rejected(tmp_path, data).detail


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        *(((1, 0, 0, 1), 1), ((-1, 0, 0, 1), 2), ((-1, 0, 0, -1), 3), ((1, 0, 0, -1), 4)),
        *(((0, 1, 1, 0), 5), ((0, 1, -1, 0), 6), ((0, -1, -1, 0), 7), ((0, -1, 1, 0), 8)),
    ],
)
def test_mp4_is_turned_and_mirrored_as_its_matrix_says(tmp_path, matrix, orientation):
    data = clips.write_video(tmp_path / "w.mp4", "mp4v")
    stored, clip = clips.opened(tmp_path, data), clips.opened(tmp_path, clips.with_matrix(data, *matrix))
    for before, after in zip(stored.read([0, 9]), clip.read([0, 9]), strict=True):
        assert np.array_equal(TURNS[orientation - 1](before), after)
        assert after.shape == (clip.height, clip.width, 3)
    assert clip.findings == (() if orientation == 1 else ("orientation applied",))


def test_codecs_say_whether_their_frames_are_interlaced():
    for codec, header, expected in (
        (b"h264", "00000167640015acd9464fcb0800000300100000030190f8a14cb000", True),
        (b"h264", "00000167640015acd9429b6022000003000200000300643e28532c00", True),
        (b"h264", "0000016764000aacd9467a1000000300100000030320f122596000", False),
        (b"h264", "000001676e000aa6cd9467a1000003000100000300320f12259600", False),
        (b"h264", "00000167f4000a919b28cfd542000003000200000300641e244b2c00", False),
        (b"h264", "0000016764", False),
        (b"hevc", "00000142010101600000030040000003000003001ea014206165959a4932bc05a1a0", True),
        (b"hevc", "00000142010101600000030090000003000003001ea03083165959ae4cae68080000", False),
        (b"mpg2", "000001b5148200010000", True),
        (b"mpg2", "000001b5148a00010000", False),
        (b"FMP4", "0000012000c48d8800cd05040c1c43", True),
        (b"FMP4", "0000012000c48d8800cd0304061443", False),
        (b"apch", "0000293969637066009400004c61766300a00060840002020202", True),
        (b"apch", "0000015069637066009400014c61766300600030c00002020202", False),
        (b"dvsd", "1f0700bff8787878", True),
        (b"MJPG", "0000012000c48d8800cd05040c1c43", False),
        (b"h264", "", False),
    ):
        assert is_interlaced(codec, bytes.fromhex(header)) is expected


def test_interlaced_videos_and_sound_alone_are_refused(tmp_path):
    for data in (samples.INTERLACED, samples.MIRRORED.replace(b"\x9a\x81\x02", b"\x9a\x81\x01")):
        error = clips.rejected(tmp_path, data)
        assert error.reason == "interlaced video is not read" and "bwdif" in error.detail
    made = clips.avi_of_sound(), clips.mp4_of_sound(clips.write_video(tmp_path / "w.mp4", "mp4v"))
    for data in (
        *made,
        samples.SOUND_WEBM,
        samples.SOUND_MP4,
        samples.SOUND_MP4.replace(b"ftypisom", b"ftypqt  "),
    ):
        error = clips.rejected(tmp_path, data)
        assert error.reason == "file has no video" and "audio only: 1 track" in error.detail
    assert "sound" in clips.rejected(tmp_path, clips.write_sound(tmp_path / "w.wav")).detail


def test_frames_of_avi_have_the_times_of_its_chunks_also_out_of_order_or_after_one_without_a_frame(tmp_path):
    clip = clips.opened(tmp_path, samples.OUT_OF_ORDER)
    assert clips.numbers_in(clip) == list(range(9))
    assert clip.times_s.tolist() == pytest.approx([number / 25 for number in range(9)])
    assert clip.findings == ()
    data = bytearray(clips.write_video(tmp_path / "w.avi", "MJPG", 6))
    third = data.index(b"00dc", data.index(b"00dc", data.index(b"movi")) + 4)
    third = data.index(b"00dc", third + 4)
    length = struct.unpack_from("<I", data, third + 4)[0]
    struct.pack_into("<4sI", data, third + 8, b"JUNK", length - 8)
    struct.pack_into("<I", data, third + 4, 0)
    clip = clips.opened(tmp_path, bytes(data))
    assert clips.numbers_in(clip) == [0, 1, 3, 4, 5]
    assert clip.times_s.tolist() == pytest.approx([0, 0.04, 0.12, 0.16, 0.2])


@pytest.mark.parametrize("data", [samples.TRANSPARENT_VP9, samples.TRANSPARENT_PRORES])
def test_transparency_of_videos_is_left_out_and_not_blended(tmp_path, data):
    assert clips.number_in(next(clips.opened(tmp_path, data).read([0]))) == 0
    blend = FrameOptions(picture=ReadOptions(alpha="blend", background=(0, 0, 200)))
    assert clips.rejected(tmp_path, data, blend).reason == "transparency of videos is not read"
    assert clips.opened(tmp_path, clips.write_video(tmp_path / "w.mp4", "mp4v"), blend).frames == 20


def test_pixels_that_are_not_square_are_said_and_times_begin_with_the_first_frame(tmp_path):
    clip = clips.opened(tmp_path, samples.WIDE_PIXELS)
    assert (clip.height, clip.width) == (48, 96) and clips.number_in(next(clip.read([0]))) == 0
    (finding,) = clip.findings
    assert "not square" in finding and "as they are stored" in finding
    data = bytearray(samples.MIRRORED)
    cluster = data.index(b"\x1f\x43\xb6\x75")
    at = data.index(b"\xe7\x81\x00", cluster)
    data[at + 2] = 200
    assert clips.opened(tmp_path, bytes(data)).times_s.tolist() == pytest.approx([0, 0.04, 0.08], abs=1e-3)


@pytest.mark.parametrize(("extension", "codec"), [("avi", "MJPG"), ("mkv", "FFV1"), ("webm", "VP80")])
@pytest.mark.parametrize(("height", "width"), [(47, 95), (2, 640), (33, 16)])
def test_odd_sizes_keep_their_rows_and_columns(tmp_path, extension, codec, height, width):
    drawn = np.zeros((height, width, 3), np.uint8)
    drawn[-1:] = drawn[:, -1:] = 255
    clip = clips.opened(tmp_path, clips.write_frames(tmp_path / f"w.{extension}", codec, [drawn] * 3))
    (frame,) = clip.read([2])
    assert frame.shape == (clip.height, clip.width, 3)
    assert max(abs(height - clip.height), abs(width - clip.width)) <= 1
    if codec == "FFV1":
        assert np.array_equal(frame, drawn[: clip.height, : clip.width])
