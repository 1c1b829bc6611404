"""Do folders of frames give the pictures in the order of their numbers, or a true reason why not?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.prep.formats.clip.clip import Clip, ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError
from tests.support.numbered_clips import draw


def opened(folder: Path, names: list[str], options: ClipOptions | None = None) -> Clip:
    return open_clip(LocalFiles(folder), "walk", [f"walk/{name}" for name in names], options)


def write_frames(folder: Path, names: list[str]) -> list[str]:
    (folder / "walk").mkdir(exist_ok=True)
    for number, name in enumerate(names):
        Image.fromarray(draw(number)).save(folder / "walk" / name)
    return names


def test_frames_are_ordered_by_their_numbers_however_they_are_given(tmp_path):
    names = write_frames(tmp_path, [f"frame{number}.png" for number in range(1, 13)])
    clip = opened(tmp_path, sorted(names))
    assert (clip.frames, clip.height, clip.width, clip.times_s, clip.findings) == (12, 48, 96, None, ())
    frames = list(clip.read(range(12)))
    assert all(np.array_equal(frame, draw(number)) for number, frame in enumerate(frames))
    assert np.array_equal(next(clip.read([7])), draw(7))


def test_the_frame_rate_makes_time_stamps(tmp_path):
    names = write_frames(tmp_path, ["1.png", "2.png", "3.bmp"])
    assert opened(tmp_path, names, ClipOptions(frame_rate=12.5)).times_s.tolist() == [0, 0.08, 0.16]


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
            opened(tmp_path, names)
        assert gap in caught.value.detail and "--incomplete-clips keep" in caught.value.detail
    clip = opened(tmp_path, names, ClipOptions(incomplete="keep"))
    assert clip.frames == len(names) and any(gap in finding for finding in clip.findings) == bool(gap)


def test_frames_of_several_sizes_are_refused_with_both_names_and_sizes(tmp_path):
    names = write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    Image.new("RGB", (10, 20)).save(tmp_path / "walk" / "2.png")
    clip = opened(tmp_path, names)
    with pytest.raises(SourceError) as caught:
        list(clip.read(range(3)))
    assert caught.value.reason == "frames differ in size"
    for said in ("walk/2.png", "20 x 10", "48 x 96", "one size"):
        assert said in caught.value.detail


def test_a_frame_that_is_damaged_or_gone_is_named(tmp_path):
    names = write_frames(tmp_path, ["1.png", "2.png", "3.png"])
    clip = opened(tmp_path, names)
    (tmp_path / "walk" / "2.png").write_bytes((tmp_path / "walk" / "2.png").read_bytes()[:60])
    with pytest.raises(SourceError, match=r"walk/2\.png"):
        list(clip.read(range(3)))
    (tmp_path / "walk" / "3.png").unlink()
    with pytest.raises(SourceError, match=r"read: .*walk/3\.png"):
        list(clip.read([2]))


def test_orientation_and_gray_are_those_of_pictures(tmp_path):
    write_frames(tmp_path, ["1.jpg"])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(draw(3)[..., 0]).save(tmp_path / "walk" / "1.jpg", exif=exif, quality=95)
    clip = opened(tmp_path, ["1.jpg"])
    (frame,) = clip.read([0])
    assert (clip.height, clip.width, frame.shape) == (96, 48, (96, 48, 3))
    assert np.array_equal(frame[..., 0], frame[..., 2])
