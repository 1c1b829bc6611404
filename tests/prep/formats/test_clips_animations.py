"""Animations and folders of frames give the drawn frames at their times, or a true reason why not."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.sources.files import LocalFiles
from tests.support.memory_cases import png_chunk
from tests.support.numbered_clips import HEIGHT, WIDTH, draw, numbers_in, opened, rejected, write_animation

KINDS = ("gif", "webp", "png")


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_is_what_was_drawn_at_its_time(tmp_path, kind):
    data = write_animation(tmp_path / f"w.{kind}", range(12), [40, 100, 60, 200, 50, *[40] * 7], loop=3)
    clip = opened(tmp_path, data)
    assert (clip.frames, clip.height, clip.width) == (12, HEIGHT, WIDTH)
    assert clip.times_s[:6].tolist() == pytest.approx([0, 0.04, 0.14, 0.2, 0.4, 0.45])
    assert clip.findings == ("variable frame rate",)
    whole = list(clip.read(range(12)))
    assert all(np.array_equal(frame, draw(number)) for number, frame in enumerate(whole))
    assert all(np.array_equal(whole[i], f) for i, f in zip([2, 7, 11], clip.read([11, 2, 7]), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_frames_without_a_duration_are_shown_as_long_as_in_browsers(tmp_path, kind):
    clip = opened(tmp_path, write_animation(tmp_path / f"w.{kind}", range(4), 0))
    assert clip.times_s.tolist() == pytest.approx([0, 0.1, 0.2, 0.3])
    assert clip.findings == ("frames without a duration are shown for 100 ms",)
    clip = opened(tmp_path, write_animation(tmp_path / f"one.{kind}", [5]))
    assert (clip.frames, clip.times_s.tolist(), clip.findings, numbers_in(clip)) == (1, [0.0], (), [5])


@pytest.mark.parametrize("kind", KINDS)
def test_a_transparent_animation_is_blended_or_its_alpha_dropped(tmp_path, kind):
    expected = np.zeros((3, 30, 40, 4), np.uint8)
    for number in range(3):
        expected[number, 5:25, 10 * number : 10 * number + 10] = (250, 10, 10, 255)
        expected[number, [0, 29], [0, 39]] = (10, 250, 10, 255)
    first, *others = (Image.fromarray(frame) for frame in expected)
    path = tmp_path / f"w.{kind}"
    how = {"gif": {"disposal": 2}, "png": {"disposal": 1}, "webp": {"lossless": True}}[kind]
    first.save(path, save_all=True, append_images=others, duration=40, **how)
    under = np.array((0, 0, 200), np.uint8)
    options = FrameOptions(picture=ReadOptions(alpha="blend", background=(0, 0, 200)))
    clip = opened(tmp_path, path.read_bytes(), options)
    for wanted, frame in zip(expected, clip.read(range(3)), strict=True):
        assert np.array_equal(frame, np.where(wanted[..., 3:] > 0, wanted[..., :3], under))
    dropped = opened(tmp_path, path.read_bytes())
    for wanted, frame in zip(expected, dropped.read(range(3)), strict=True):
        assert np.array_equal(frame[wanted[..., 3] > 0], wanted[wanted[..., 3] > 0][:, :3])


def test_parts_of_the_canvas_are_laid_over_what_was_and_the_default_image_of_a_png_is_no_frame(tmp_path):
    numbers = [0, 1, 3, 7, 15, 31]  # one more block each
    for kind, how in (
        ("gif", {"optimize": True, "disposal": 1}),
        ("png", {"disposal": 0, "blend": 0}),
        ("webp", {}),
    ):
        clip = opened(tmp_path, write_animation(tmp_path / f"w.{kind}", numbers, 40, **how))
        assert numbers_in(clip) == numbers, kind
    data = write_animation(tmp_path / "w.png", [9, 0, 1, 2], 40, default_image=True)
    assert numbers_in(opened(tmp_path, data)) == [0, 1, 2]


def test_gifs_cut_off_without_frames_or_with_one_beyond_the_canvas_are_refused_or_keep_whole_frames(tmp_path):
    data = write_animation(tmp_path / "w.gif", range(30))
    counts = []
    for part in range(1, 51):
        cut = data[: len(data) * part // 51]
        assert rejected(tmp_path, cut).reason == "file is truncated"
        try:
            clip = opened(tmp_path, cut, FrameOptions(incomplete="keep"))
        except SourceError as error:
            reason = error.reason
            counts.append(0)
        else:
            reason = "file is truncated"
            assert clip.findings == (
                f"file is truncated: {clip.frames} frame{'s' * (clip.frames > 1)}, its end is missing",
            )
            assert numbers_in(clip) == list(range(clip.frames))
            counts.append(clip.frames)
        assert reason == "file is truncated"
    assert counts == sorted(counts) and counts[-1] >= 28 and len(set(counts)) > 15
    data = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b";"
    assert rejected(tmp_path, data).reason == "clip has no frames"
    data = bytearray(write_animation(tmp_path / "w.gif", range(3)))
    second = data.index(b"\x2c", data.index(b"\x21\xf9", data.index(b"\x2c") + 20))
    struct.pack_into("<HHHH", data, second + 1, 0, 0, 65535, 65535)
    assert "65535" in str(rejected(tmp_path, bytes(data)))


@pytest.mark.parametrize("kind", ["webp", "png"])
def test_a_webp_or_png_that_was_cut_off_is_refused(tmp_path, kind):
    data = write_animation(tmp_path / f"w.{kind}", range(30))
    for part in range(1, 51):
        assert rejected(tmp_path, data[: len(data) * part // 51]).reason == "file is truncated", part


@pytest.mark.parametrize("count", [2, 3, 5, 1_000_000])
def test_a_png_whose_count_of_frames_lies_is_refused_or_read_by_its_frames(tmp_path, count):
    data = write_animation(tmp_path / "w.png", range(4))
    at = data.index(b"acTL") - 4
    lying = data[:at] + png_chunk(b"acTL", struct.pack(">II", count, 0)) + data[at + 20 :]
    if count < 4:
        assert rejected(tmp_path, lying).detail == f"it says it has {count} frames and has 4"
        return
    assert rejected(tmp_path, lying).detail.startswith(f"4 of {count} ")
    assert numbers_in(opened(tmp_path, lying, FrameOptions(incomplete="keep"))) == [0, 1, 2, 3]


def opened_folder(folder: Path, names: list[str], options: FrameOptions | None = None) -> Clip:
    return open_clip(LocalFiles(folder), "walk", [f"walk/{name}" for name in names], options)


def write_frames(folder: Path, names: list[str]) -> list[str]:
    (folder / "walk").mkdir(exist_ok=True)
    for number, name in enumerate(names):
        Image.fromarray(draw(number)).save(folder / "walk" / name)
    return names


def test_frames_are_ordered_by_their_numbers_their_rate_makes_times_and_they_are_turned_as_pictures(tmp_path):
    names = write_frames(tmp_path, [f"frame{number}.png" for number in range(1, 13)])
    clip = opened_folder(tmp_path, sorted(names))
    assert (clip.frames, clip.height, clip.width, clip.times_s, clip.findings) == (12, 48, 96, None, ())
    frames = list(clip.read(range(12)))
    assert all(np.array_equal(frame, draw(number)) for number, frame in enumerate(frames))
    assert np.array_equal(next(clip.read([7])), draw(7))
    names = write_frames(tmp_path, ["1.png", "2.png", "3.bmp"])
    assert opened_folder(tmp_path, names, FrameOptions(frame_rate=12.5)).times_s.tolist() == [0, 0.08, 0.16]
    write_frames(tmp_path, ["1.jpg"])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(draw(3)[..., 0]).save(tmp_path / "walk" / "1.jpg", exif=exif, quality=95)
    clip = opened_folder(tmp_path, ["1.jpg"])
    (frame,) = clip.read([0])
    assert (clip.height, clip.width, frame.shape) == (96, 48, (96, 48, 3))
    assert np.array_equal(frame[..., 0], frame[..., 2])


@pytest.mark.parametrize(
    ("names", "gap"),
    [
        (["a_08.png"], ""),
        (["a_08.png", "a_10.png", "a_12.png"], ""),
        (["0.png", "33.png", "67.png", "100.png"], ""),
        (
            ["a_08.png", "a_09.png", "a_10.png", "a_12.png"],
            "'a_10.png' is followed by 'a_12.png', a step of 2",
        ),
        (["left1.png", "left2.png", "right1.png", "right2.png"], "of several clips"),
        (["1.20.png", "1.90.png", "2.10.png"], ""),
        (["a.png", "b.png", "c.png"], ""),
    ],
)
def test_numbers_that_are_left_out_are_refused_or_said(tmp_path, names, gap):
    write_frames(tmp_path, names)
    if gap:
        with pytest.raises(SourceError, match="frame numbers have gaps") as caught:
            opened_folder(tmp_path, names)
        assert gap in caught.value.detail and "--incomplete-clips keep" in caught.value.detail
    clip = opened_folder(tmp_path, names, FrameOptions(incomplete="keep"))
    assert clip.frames == len(names) and any(gap in finding for finding in clip.findings) == bool(gap)


def test_frames_that_differ_in_size_or_are_damaged_or_gone_are_named(tmp_path):
    names = write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    Image.new("RGB", (10, 20)).save(tmp_path / "walk" / "2.png")
    clip = opened_folder(tmp_path, names)
    with pytest.raises(SourceError) as caught:
        list(clip.read(range(3)))
    assert caught.value.reason == "frames differ in size"
    for said in ("walk/2.png", "20 x 10", "48 x 96", "one size"):
        assert said in caught.value.detail
    names = write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    clip = opened_folder(tmp_path, names)
    (tmp_path / "walk" / "2.png").write_bytes((tmp_path / "walk" / "2.png").read_bytes()[:60])
    with pytest.raises(SourceError, match=r"walk/2\.png"):
        list(clip.read(range(3)))
    (tmp_path / "walk" / "3.png").unlink()
    with pytest.raises(SourceError, match=r"read: .*walk/3\.png"):
        list(clip.read([2]))
