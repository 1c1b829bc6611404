"""Do video files give the frames that were drawn, upright and at their times, or a true reason why not?"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from halofeed.prep.formats.clip.clip import Clip, ClipOptions
from halofeed.schemas.errors import SourceError
from tests.support.clip_samples import AV1, H264_FRAGMENTS, H264_VARIABLE, VARIABLE_MS
from tests.support.numbered_clips import (
    CORNERS,
    HEIGHT,
    VIDEOS,
    WIDTH,
    box,
    corners_of,
    number_in,
    numbers_in,
    opened,
    rejected,
    with_durations,
    with_index_first,
    write_video,
)

KEEP = ClipOptions(incomplete="keep")


def kept_or_reason(folder: Path, data: bytes) -> tuple[Clip | None, str]:
    """What is left of a clip, or why there is nothing; without being asked to keep it it is always refused."""
    error = rejected(folder, data)
    try:
        clip = opened(folder, data, KEEP)
    except SourceError as refused:
        return None, refused.reason
    assert error.reason == "file is truncated" and "--incomplete-clips keep" in error.detail
    assert clip.findings[0].startswith(f"file is truncated: whole frames: {clip.frames}"), clip.findings
    return clip, ""


@pytest.mark.parametrize(("extension", "codec"), VIDEOS)
def test_every_frame_is_what_was_drawn_at_its_time(tmp_path, extension, codec):
    clip = opened(tmp_path, write_video(tmp_path / f"w.{extension}", codec, 20, 25))
    assert (clip.frames, clip.height, clip.width, clip.findings) == (20, HEIGHT, WIDTH, ())
    assert clip.times_s.tolist() == pytest.approx([number / 25 for number in range(20)], abs=0.0006)
    frames = list(clip.read(range(20)))
    assert [number_in(frame) for frame in frames] == list(range(20))
    assert all(frame.flags.c_contiguous and frame.dtype == np.uint8 for frame in frames)
    assert corners_of(frames[7]) == list(CORNERS)


@pytest.mark.parametrize(("extension", "codec"), VIDEOS)
def test_a_part_of_the_frames_is_the_same_bytes_as_in_the_whole(tmp_path, extension, codec):
    clip = opened(tmp_path, write_video(tmp_path / f"w.{extension}", codec))
    whole = list(clip.read(range(20)))
    assert all(np.array_equal(a, b) for a, b in zip(whole, clip.read(range(20)), strict=True))
    wanted = [0, 3, 4, 11, 19]
    assert all(np.array_equal(whole[i], frame) for i, frame in zip(wanted, clip.read(wanted), strict=True))


def test_frames_come_once_and_in_order_however_they_are_asked_for(tmp_path):
    clip = opened(tmp_path, write_video(tmp_path / "w.mp4", "mp4v"))
    assert [number_in(frame) for frame in clip.read([9, 2, 9, 5])] == [2, 5, 9]
    assert list(clip.read([])) == []
    with pytest.raises(IndexError):
        next(clip.read([20]))


def test_the_content_says_what_a_file_is_and_not_its_name(tmp_path):
    clip = opened(tmp_path, write_video(tmp_path / "w.webm", "VP80"), name="clip.mp4")
    assert numbers_in(clip) == list(range(20))


def test_a_variable_frame_rate_keeps_its_time_stamps(tmp_path):
    data = write_video(tmp_path / "w.mp4", "mp4v", 6, 25)
    scale = struct.unpack_from(">I", data, box(data, b"mdhd")[0] + 20)[0]
    shown_s = [0.04, 0.2, 0.04, 1.0, 0.08, 0.04]
    clip = opened(tmp_path, with_durations(data, [round(scale * seconds) for seconds in shown_s]))
    assert clip.times_s.tolist() == pytest.approx([0, 0.04, 0.24, 0.28, 1.28, 1.36], abs=1e-6)
    assert clip.findings == ("variable frame rate",) and numbers_in(clip) == list(range(6))


@pytest.mark.parametrize("kind", ["mp4", "avi", "webm", "mkv"])
def test_a_file_that_was_cut_off_anywhere_is_refused_or_by_choice_keeps_its_whole_frames(tmp_path, kind):
    codec = {"mp4": "mp4v", "avi": "MJPG", "webm": "VP80", "mkv": "FFV1"}[kind]
    data = write_video(tmp_path / f"w.{kind}", codec, 50)
    if kind == "mp4":
        data = with_index_first(data)
    reference = list(opened(tmp_path, data).read(range(50)))
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
    error = rejected(tmp_path, data[: len(data) * 9 // 10])
    assert kind in ("webm", "mkv") or " of 50;" in error.detail


def test_a_file_whose_index_alone_was_cut_off_has_lost_no_frame(tmp_path):
    data = write_video(tmp_path / "w.avi", "MJPG")
    assert numbers_in(opened(tmp_path, data[: data.rindex(b"idx1") + 40])) == list(range(20))


def test_frames_out_of_order_come_in_order_at_their_variable_times(tmp_path):
    clip = opened(tmp_path, H264_VARIABLE)
    assert numbers_in(clip) == list(range(20)) and clip.findings == ("variable frame rate",)
    assert (1000 * clip.times_s).tolist() == pytest.approx(VARIABLE_MS)


@pytest.mark.parametrize("fragments", [False, True])
def test_frames_out_of_order_that_were_cut_off_keep_their_times(tmp_path, fragments):
    data = H264_FRAGMENTS if fragments else H264_VARIABLE
    times = np.arange(20) * 40 if fragments else np.array(VARIABLE_MS)
    counts = set()
    for end in range(50, len(data), 50):
        clip, reason = kept_or_reason(tmp_path, data[:end])
        if clip is None:
            assert reason in ("file is truncated", "clip has no frames"), end
            continue
        assert (1000 * clip.times_s).tolist() == pytest.approx(times[numbers_in(clip)].tolist())
        counts.add(clip.frames)
    assert len(counts) > 3


def test_a_codec_that_opencv_lacks_is_named(tmp_path):
    error = rejected(tmp_path, AV1)
    assert error.reason == "video cannot be decoded" and "'V_AV1'" in error.detail and "H.264" in error.detail


def test_an_mp4_whose_index_is_missing_says_so(tmp_path):
    data = write_video(tmp_path / "w.mp4", "mp4v")
    for end in (40, len(data) // 3, box(data, b"moov")[0], box(data, b"moov")[1] - 1):
        error = rejected(tmp_path, data[:end])
        assert (error.reason, "index" in error.detail) == ("file is truncated", True)


@pytest.mark.parametrize(("extension", "codec"), VIDEOS)
def test_one_frame_is_a_clip(tmp_path, extension, codec):
    clip = opened(tmp_path, write_video(tmp_path / f"w.{extension}", codec, 1))
    assert (clip.frames, clip.times_s.tolist(), numbers_in(clip)) == (1, [0.0], [0])


def test_a_video_without_frames_is_refused(tmp_path):
    data = bytearray(write_video(tmp_path / "w.mp4", "mp4v"))
    struct.pack_into(">I", data, box(data, b"stsz")[0] + 16, 0)
    assert rejected(tmp_path, bytes(data)).reason == "clip has no frames"
    avi = write_video(tmp_path / "w.avi", "MJPG")
    start = avi.index(b"movi")
    empty = bytearray(avi[: start + 4])
    struct.pack_into("<I", empty, 4, len(empty) - 8)
    struct.pack_into("<I", empty, start - 4, 4)
    assert rejected(tmp_path, bytes(empty)).reason == "clip has no frames"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"These are no frames.\n" * 50, "54 68 65 73"),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n", "playlist"),
        (b"ffconcat version 1.0\nfile other.mp4\n", "playlist"),
        (b"v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n", "playlist"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\xff\xd8\xff\xe0" + bytes(60), "jpeg picture"),
        (b"\0\0\0\x18ftypheic" + bytes(60), "HEIC"),
        (b"\x1f\x8b" + bytes(60), "gzip"),
        (b"FLV\x01" + bytes(60), "Flash"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "index"),
        (b"RIFF\x04\0\0\0AVI ", "no track"),
        (b"\x1a\x45\xdf\xa3\x80", "document type"),
    ],
)
def test_what_is_no_video_is_refused_by_what_it_is(tmp_path, data, said):
    error = rejected(tmp_path, data)
    assert said in str(error), str(error)


def test_a_frame_that_nothing_finds_any_more_is_missed_by_the_count_of_the_header(tmp_path):
    data = write_video(tmp_path / "w.avi", "MJPG")
    at = data.index(b"movi")
    for _ in range(8):
        at = data.index(b"00dc", at + 1)
    junk = data[:at] + b"JUNK" + data[at + 4 :]
    error = rejected(tmp_path, junk)
    assert error.reason == "frames are missing" and error.detail.startswith("19 of 20 ")
    clip = opened(tmp_path, junk, KEEP)
    assert numbers_in(clip) == [*range(7), *range(8, 20)]
    assert clip.findings[0] == "frames are missing: 19 of 20 that it says it has can be read"


@pytest.mark.parametrize("lie", [5, 19, 21, 4000])
@pytest.mark.parametrize("kind", ["avi", "mp4 sizes", "mp4 times"])
def test_a_false_count_of_frames_in_the_header_loses_none_unseen(tmp_path, kind, lie):
    name, codec = ("w.avi", "MJPG") if kind == "avi" else ("w.mp4", "mp4v")
    data = bytearray(write_video(tmp_path / name, codec))
    if kind == "avi":
        struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, lie)
    elif kind == "mp4 sizes":
        struct.pack_into(">I", data, box(data, b"stsz")[0] + 16, lie)
    else:
        struct.pack_into(">II", data, box(data, b"stts")[0] + 12, 1, lie)
    if kind != "mp4 sizes" and lie < 20:  # all frames are found elsewhere
        assert numbers_in(opened(tmp_path, bytes(data))) == list(range(20))
    else:
        assert rejected(tmp_path, bytes(data)).reason in ("frames are missing", "file is damaged")


def test_a_file_of_which_most_frames_cannot_be_decoded_is_refused(tmp_path):
    data = bytearray(write_video(tmp_path / "w.mp4", "mp4v"))
    start = box(data, b"stsz")[0] + 20
    for number in range(5, 20):
        struct.pack_into(">I", data, start + 4 * number, 0)
    assert "5 of 20 " in rejected(tmp_path, bytes(data)).detail


@pytest.mark.parametrize("shown_s", [0.24, 0.76])
def test_frames_that_an_edit_list_hides_are_left_out(tmp_path, shown_s):
    data = bytearray(write_video(tmp_path / "w.mp4", "mp4v"))
    scale = struct.unpack_from(">I", data, box(data, b"mvhd")[0] + 20)[0]
    edit = data.index(b"elst") + 12
    struct.pack_into(">I", data, edit, round(shown_s * scale))
    clip = opened(tmp_path, bytes(data))
    assert numbers_in(clip) == list(range(clip.frames)) and 0 <= clip.frames - 25 * shown_s < 4
    hidden = 20 - clip.frames
    assert clip.findings == ((f"its edit list hides {hidden} of 20 frames",) if hidden else ())


def test_a_frame_that_ends_the_decoding_refuses_a_clip_that_goes_on(tmp_path):
    data = bytearray(write_video(tmp_path / "w.webm", "VP80"))
    blocks = [at for at in range(len(data)) if data[at] == 0xA3 and data[at + 2] == 0x81]
    data[blocks[8] + 6 : blocks[8] + 30] = bytes(24)
    error = rejected(tmp_path, bytes(data))
    assert error.reason == "file is damaged" and "frame 8 cannot be decoded" in error.detail


@pytest.mark.parametrize(("extension", "codec"), [("avi", "MJPG"), ("webm", "VP80")])
def test_a_length_that_is_damaged_is_no_file_that_was_cut_off(tmp_path, extension, codec):
    data = bytearray(write_video(tmp_path / f"w.{extension}", codec))
    if extension == "avi":
        at = data.index(b"00dc", len(data) // 2)
        data[at + 4 : at + 8] = b"\xff\xff\xff\x7f"
    else:
        at = next(at for at in range(len(data) // 2, len(data)) if data[at] == 0xA3 and data[at + 2] == 0x81)
        data[at + 1] = 0x10
    assert "longer than the file" in str(rejected(tmp_path, bytes(data)))
