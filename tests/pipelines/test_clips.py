"""Do videos, animations and folders of frames become clips whose frames are those that were drawn?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify.dataset import verify
from halofeed.loader import FlipDepth, FlipLeftRight, Loader, RandomCrop, Rotate90
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.errors import UsageError
from tests.support.clip_writer import (
    HEIGHT,
    WIDTH,
    moving_square,
    write_class_folders,
    write_folder,
    write_gif,
    write_video,
)
from tests.support.conversions import read_split, run_convert

WHOLE = {"layout": "folders", "frames": 8, "height": HEIGHT, "width": WIDTH}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_class_folders(tmp_path_factory.mktemp("source"), each=3)


def drawn_frames(source: Path, name: str) -> np.ndarray:
    """What `write_class_folders` drew for a source, whatever it was written as."""
    generator = np.random.default_rng(0)
    for direction in ("left", "right"):
        for number in range(3):
            frames = moving_square(direction, 20, generator)
            if name.startswith(f"{direction}/") and str(number) in name.partition("/")[2]:
                return np.array(frames)
    raise AssertionError(name)


def pixels_of(record: dict) -> np.ndarray:
    shape = [int(record[f"image/{name}"][0]) for name in ("frames", "height", "width")]
    return np.frombuffer(bytes(record["image/encoded"][0]), np.uint8).reshape(*shape, 3)


def test_every_kind_of_source_gives_its_own_frames_with_their_times(source, tmp_path):
    done = run_convert(source, tmp_path, folder_frame_rate=10.0, shards=2, **WHOLE)
    assert done.manifest.kind.name == "clip" and done.manifest.task == "classification"
    assert json.loads((Path(done.folder) / "manifest.json").read_text())["kind"] == "clip"
    image = done.manifest.field("image")
    assert image.axes == ("frame", "height", "width", "channel") and image.shape == (8, HEIGHT, WIDTH, 3)
    records = list(read_split(Path(done.folder), "train"))
    assert len(records) == 12, "20 frames hold two windows of 8"
    for record in records:
        name, tile = bytes(record["image/filename"][0]).decode(), int(record["image/tile"][0])
        expected = drawn_frames(source, name)[8 * tile : 8 * tile + 8]
        tolerance = 25 if name.endswith("mp4") else 0
        difference = np.abs(pixels_of(record).astype(int) - expected)
        # Lossy video smears the edges of the square; shifted by a frame two columns of it would be off by 180.
        assert np.percentile(difference, 99.5) <= tolerance, (name, tile)
        np.testing.assert_allclose(record["image/times_s"], (8 * tile + np.arange(8)) / 10, atol=1e-3)
        assert bytes(record["image/class/text"][0]).decode() == name.partition("/")[0]
    report = verify(done.folder)
    assert report.ok, str(report)
    page = write_report(done.folder, tmp_path / "page.html", sources=str(source)).read_text()
    assert "A classification data set: 12 clips of 2 classes" in page
    captions = [f"<figcaption>{frames} × 48 × 64</figcaption>" for frames in ("stored 8", "source 20")]
    assert [page.count(caption) for caption in captions] == [12, 12]


def test_a_table_names_videos_and_folders_of_frames(tmp_path):
    generator = np.random.default_rng(1)
    write_folder(tmp_path / "in/walks/a", moving_square("left", 10, generator))
    write_video(tmp_path / "in/b.avi", moving_square("right", 10, generator))
    rows = "filename,class,split\nwalks/a,left,train\nb.avi,right,validation\nlost.mp4,left,train\n"
    (tmp_path / "in/labels.csv").write_text(rows)
    done = run_convert(tmp_path / "in", tmp_path / "out", **WHOLE | {"layout": "csv"})
    by_split = {name: split.records for name, split in done.manifest.splits.items()}
    assert by_split == {"train": 1, "validation": 1}
    assert list(done.manifest.rejected) == ["annotation: image file not found"]
    (record,) = read_split(Path(done.folder), "train")
    assert (record["image/times_s"] == -1).all(), "nobody said the rate of the folder of frames"


def test_short_and_broken_clips_are_rejected_with_true_reasons(tmp_path):
    generator = np.random.default_rng(2)
    folder = tmp_path / "in/left"
    folder.mkdir(parents=True)
    write_gif(folder / "whole.gif", moving_square("left", 8, generator))
    write_gif(folder / "short.gif", moving_square("left", 5, generator))
    (folder / "text.mp4").write_text("no video")
    (folder / "notes.bin").write_bytes(b"\0")
    done = run_convert(tmp_path / "in", tmp_path / "out", **WHOLE)
    assert done.manifest.rejected == {
        "decode: not a clip format that is read": 1,
        "selection: clip is shorter than a window": 1,
        "selection: not an image file name": 1,
    }
    repeated = run_convert(tmp_path / "in", tmp_path / "repeated", short_clips="repeat", **WHOLE)
    records = read_split(Path(repeated.folder), "train")
    by_name = {bytes(record["image/filename"][0]): pixels_of(record) for record in records}
    short = by_name[b"left/short.gif"]
    assert (short[4:] == short[4]).all() and not (short[3] == short[4]).all()


def test_pictures_that_move_are_told_by_their_heads_and_pictures_beside_clips_are_left_out(tmp_path):
    generator = np.random.default_rng(4)
    moving = [Image.fromarray(frame) for frame in moving_square("left", 8, generator)]
    (tmp_path / "in/left").mkdir(parents=True)
    moving[0].save(tmp_path / "in/left/moves.png", save_all=True, append_images=moving[1:], duration=100)
    moving[0].save(tmp_path / "in/left/cover.jpg")
    write_folder(tmp_path / "in/right/still", moving_square("right", 8, generator))
    done = run_convert(tmp_path / "in", tmp_path / "out", **WHOLE)
    sources = sorted(bytes(r["image/filename"][0]) for r in read_split(Path(done.folder), "train"))
    assert sources == [b"left/moves.png", b"right/still"]
    assert done.manifest.rejected == {"selection: not an image file name": 1}


@pytest.mark.parametrize("extension", ["png", "webp"])
@pytest.mark.parametrize(("stills", "animations"), [("a", "bc"), ("bc", "a"), ("ab", "c"), ("abdefghi", "c")])
def test_still_pictures_and_animations_in_one_folder_are_told_apart_or_refused(
    tmp_path, extension, stills, animations
):
    moving = [Image.fromarray(frame) for frame in moving_square("left", 8, np.random.default_rng(5))]
    (tmp_path / "in/left/walk").mkdir(parents=True)
    for name in stills:
        moving[0].save(tmp_path / f"in/left/walk/{name}.{extension}")
    how = {"save_all": True, "append_images": moving[1:], "duration": 100}
    for name in animations:
        moving[0].save(tmp_path / f"in/left/walk/{name}.{extension}", **how)
    write_gif(tmp_path / "in/left/other.gif", moving_square("left", 8, np.random.default_rng(6)))
    done = run_convert(tmp_path / "in", tmp_path / "out", **WHOLE)
    found = {bytes(r["image/filename"][0]).decode() for r in read_split(Path(done.folder), "train")}
    if len(stills) == 8:  # which nothing but reading them all would tell from frames
        assert found == {"left/other.gif"}
        assert done.manifest.rejected == {"selection: an animation lies among frames": 1}
    else:
        assert found == {"left/other.gif", *(f"left/walk/{name}.{extension}" for name in animations)}
        assert done.manifest.rejected == {"selection: clip is shorter than a window": len(stills)}


def test_options_that_do_not_go_together_are_refused():
    for options, message in (
        ({"frames": 0}, "--frames 0: expected 1 or more"),
        ({"depth": 8}, "--frames is for clips and --depth for volumes"),
        ({"task": "detection"}, "--frames goes with --task classification"),
        ({"layout": "voc"}, "--frames is for clips and layout voc holds none"),
        ({"encoding": "png"}, "clips are stored raw"),
        ({"resize": "keep-aspect"}, "add --pad"),
        ({"frame_stride": 2, "frame_rate": 5.0}, "only one of them"),
        ({"clips_per_source": "0"}, "--clips-per-source 0: expected all, or how many"),
        ({"channels": 4}, "--channels 4: clips have 3"),
        ({"frames": None, "frame_stride": 2}, "--frame-stride has no effect without --frames"),
    ):
        with pytest.raises(UsageError, match=message):
            Recipe(**{"layout": "folders", "frames": 8, **options}).check_used()


def test_flips_crops_and_windows_in_time_are_alike_in_all_frames(source, tmp_path):
    done = run_convert(source, tmp_path, folder_frame_rate=10.0, **WHOLE)

    def batch(*augment: object) -> dict[str, np.ndarray]:
        return Loader(done.folder, batch_size=6, augment=augment, include=["times_s", "transform"]).batch(0)

    plain, flipped = batch(), batch(FlipLeftRight(1.0))
    assert plain["image"].shape == (6, 8, HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(flipped["image"], plain["image"][:, :, :, ::-1])
    cropped = batch(RandomCrop(4, 24, 32))
    for row in range(6):
        first = int(np.argmin(np.abs(plain["times_s"][row] - cropped["times_s"][row, 0])))
        np.testing.assert_allclose(cropped["times_s"][row], plain["times_s"][row, first : first + 4])
        left, top = (round(float(cropped["transform"][row, axis, 2])) for axis in (1, 0))
        window = plain["image"][row, first : first + 4, top : top + 24, left : left + 32]
        np.testing.assert_array_equal(cropped["image"][row], window)
    for augmentation, message in (
        (FlipDepth(), "clips have no depth"),
        (RandomCrop(24, 32), "8 frames long"),
        (Rotate90(), "as high as wide"),
    ):
        with pytest.raises(UsageError, match=message):
            batch(augmentation)
