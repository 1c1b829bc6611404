"""Are videos that are mirrored, interlaced, transparent or late converted right, or refused with a true reason?"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from halofeed.prep.formats.clip.clip import ClipOptions
from halofeed.prep.formats.clip.interlaced import is_interlaced
from halofeed.prep.formats.picture import ReadOptions
from tests.support.clip_samples import (
    INTERLACED,
    MIRRORED,
    OUT_OF_ORDER,
    SOUND_MP4,
    SOUND_WEBM,
    TRANSPARENT_PRORES,
    TRANSPARENT_VP9,
    WIDE_PIXELS,
)
from tests.support.numbered_clips import (
    avi_of_sound,
    draw,
    mp4_of_sound,
    number_in,
    numbers_in,
    opened,
    rejected,
    with_matrix,
    write_frames,
    write_sound,
    write_video,
)

TURNS = {
    1: lambda frame: frame,
    2: lambda frame: frame[:, ::-1],
    3: lambda frame: np.rot90(frame, 2),
    4: lambda frame: frame[::-1],
    5: lambda frame: frame.swapaxes(0, 1),
    6: lambda frame: np.rot90(frame, -1),
    7: lambda frame: np.rot90(frame, 2).swapaxes(0, 1),
    8: lambda frame: np.rot90(frame, 1),
}
"""What the orientations of EXIF do."""


def pose(yaw: float, pitch: float, roll: float) -> bytes:
    """`MIRRORED` with another pose."""
    data = bytearray(MIRRORED)
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
    clip = opened(tmp_path, pose(yaw, 0, roll))
    expected = TURNS[orientation](draw(1))
    (frame,) = clip.read([1])
    assert frame.shape == expected.shape == (clip.height, clip.width, 3)
    assert np.abs(frame.astype(int) - expected).mean() < 8
    assert clip.findings == (() if orientation == 1 else ("orientation applied",))


@pytest.mark.parametrize("angles", [(0, 0, 45), (90, 0, 0), (30, 1, 0), (0, 0, float("nan"))])
def test_a_pose_that_is_no_quarter_turn_is_refused(tmp_path, angles):
    assert rejected(tmp_path, pose(*angles)).reason == "display matrix is not supported"


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        *(((1, 0, 0, 1), 1), ((-1, 0, 0, 1), 2), ((-1, 0, 0, -1), 3), ((1, 0, 0, -1), 4)),
        *(((0, 1, 1, 0), 5), ((0, 1, -1, 0), 6), ((0, -1, -1, 0), 7), ((0, -1, 1, 0), 8)),
    ],
)
def test_mp4_is_turned_and_mirrored_as_its_matrix_says(tmp_path, matrix, orientation):
    data = write_video(tmp_path / "w.mp4", "mp4v")
    stored, clip = opened(tmp_path, data), opened(tmp_path, with_matrix(data, *matrix))
    for before, after in zip(stored.read([0, 9]), clip.read([0, 9]), strict=True):
        assert np.array_equal(TURNS[orientation](before), after) and after.shape == (
            clip.height,
            clip.width,
            3,
        )
    assert clip.findings == (() if orientation == 1 else ("orientation applied",))


def test_a_turn_by_an_odd_angle_is_refused(tmp_path):
    data = with_matrix(write_video(tmp_path / "w.mp4", "mp4v"), 1, 1, -1, 1)
    error = rejected(tmp_path, data)
    assert error.reason == "display matrix is not supported" and "upright" in error.detail


@pytest.mark.parametrize(
    ("codec", "header", "expected"),
    [
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
    ],
)
def test_codecs_say_whether_their_frames_are_interlaced(codec, header, expected):
    assert is_interlaced(codec, bytes.fromhex(header)) is expected


def test_interlaced_videos_are_refused(tmp_path):
    for data in (INTERLACED, MIRRORED.replace(b"\x9a\x81\x02", b"\x9a\x81\x01")):
        error = rejected(tmp_path, data)
        assert error.reason == "interlaced video is not read" and "bwdif" in error.detail


def test_frames_that_avi_stores_out_of_order_have_the_times_of_its_chunks(tmp_path):
    clip = opened(tmp_path, OUT_OF_ORDER)
    assert numbers_in(clip) == list(range(9))
    assert clip.times_s.tolist() == pytest.approx([number / 25 for number in range(9)])
    assert clip.findings == ()


def test_chunks_of_avi_without_a_frame_take_their_time(tmp_path):
    data = bytearray(write_video(tmp_path / "w.avi", "MJPG", 6))
    third = data.index(b"00dc", data.index(b"00dc", data.index(b"movi")) + 4)
    third = data.index(b"00dc", third + 4)
    length = struct.unpack_from("<I", data, third + 4)[0]
    struct.pack_into("<4sI", data, third + 8, b"JUNK", length - 8)
    struct.pack_into("<I", data, third + 4, 0)
    clip = opened(tmp_path, bytes(data))
    assert numbers_in(clip) == [0, 1, 3, 4, 5]
    assert clip.times_s.tolist() == pytest.approx([0, 0.04, 0.12, 0.16, 0.2])


@pytest.mark.parametrize("data", [TRANSPARENT_VP9, TRANSPARENT_PRORES])
def test_transparency_of_videos_is_left_out_and_not_blended(tmp_path, data):
    assert number_in(next(opened(tmp_path, data).read([0]))) == 0
    blend = ClipOptions(picture=ReadOptions(alpha="blend", background=(0, 0, 200)))
    assert rejected(tmp_path, data, blend).reason == "transparency of videos is not read"
    assert opened(tmp_path, write_video(tmp_path / "w.mp4", "mp4v"), blend).frames == 20


def test_sound_alone_is_refused(tmp_path):
    made = avi_of_sound(), mp4_of_sound(write_video(tmp_path / "w.mp4", "mp4v"))
    for data in (*made, SOUND_WEBM, SOUND_MP4, SOUND_MP4.replace(b"ftypisom", b"ftypqt  ")):
        error = rejected(tmp_path, data)
        assert error.reason == "file has no video" and "audio only: 1 track" in error.detail
    assert "sound" in rejected(tmp_path, write_sound(tmp_path / "w.wav")).detail


def test_pixels_that_are_not_square_are_taken_as_they_are_stored_and_said(tmp_path):
    clip = opened(tmp_path, WIDE_PIXELS)
    assert (clip.height, clip.width) == (48, 96) and number_in(next(clip.read([0]))) == 0
    (finding,) = clip.findings
    assert "not square" in finding and "as they are stored" in finding


def test_times_begin_with_the_first_frame(tmp_path):
    data = bytearray(MIRRORED)
    cluster = data.index(b"\x1f\x43\xb6\x75")
    at = data.index(b"\xe7\x81\x00", cluster)
    data[at + 2] = 200
    assert opened(tmp_path, bytes(data)).times_s.tolist() == pytest.approx([0, 0.04, 0.08], abs=1e-3)


@pytest.mark.parametrize(("extension", "codec"), [("avi", "MJPG"), ("mkv", "FFV1"), ("webm", "VP80")])
@pytest.mark.parametrize(("height", "width"), [(47, 95), (2, 640), (33, 16)])
def test_odd_sizes_keep_their_rows_and_columns(tmp_path, extension, codec, height, width):
    drawn = np.zeros((height, width, 3), np.uint8)
    drawn[-1:] = drawn[:, -1:] = 255
    clip = opened(tmp_path, write_frames(tmp_path / f"w.{extension}", codec, [drawn] * 3))
    (frame,) = clip.read([2])
    assert frame.shape == (clip.height, clip.width, 3) and abs(height - clip.height) <= 1 >= abs(
        width - clip.width
    )
    if codec == "FFV1":
        assert np.array_equal(frame, drawn[: clip.height, : clip.width])
