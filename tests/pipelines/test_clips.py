"""Videos, animations and folders of frames become clips whose frames, and labels, are those that were drawn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import UsageError
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.loader import FlipDepth, FlipLeftRight, Loader, RandomCrop, Rotate90
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converters import converter_of
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support.clip_mask_writer import (
    COLORS,
    FORMS,
    FRAMES,
    draw_masked,
    with_palette,
    write_masked_clips,
    write_masks,
)
from tests.support.clip_writer import (
    BACKGROUND,
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


MASKED = {"frames": 5, "height": HEIGHT, "width": WIDTH, "layout": "pairs"}


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> tuple[Path, dict]:
    root = tmp_path_factory.mktemp("source")
    return root, write_masked_clips(root)


def arrays_of(record: dict) -> tuple[np.ndarray, np.ndarray]:
    image = pixels_of(record)
    return image, np.frombuffer(bytes(record["image/label"][0]), np.uint8).reshape(image.shape[:3])


def check_labels(done: Any, masks: list) -> None:
    """Every window of five has the masks of its frames."""
    for record in read_split(Path(done.folder), "train"):
        start = 5 * int(record["image/tile"][0])
        np.testing.assert_array_equal(arrays_of(record)[1], np.array(masks)[start : start + 5])


def name_of(record: dict) -> str:
    return bytes(record["image/filename"][0]).decode().removeprefix("images/").partition(".")[0]


def nearest(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """The class of the source pixel in which the center of each pixel lies, one after the other."""
    rows = [int((row + 0.5) * mask.shape[0] / height) for row in range(height)]
    columns = [int((column + 0.5) * mask.shape[1] / width) for column in range(width)]
    return np.array([[mask[row, column] for column in columns] for row in rows], np.uint8)


def test_masks_of_every_form_are_those_of_the_frames_of_each_window(masked, tmp_path):
    root, drawn = masked
    done = run_convert(root, tmp_path, folder_frame_rate=10.0, shards=2, **MASKED)
    manifest = done.manifest
    assert (manifest.kind.name, manifest.task, manifest.rejected) == ("clip", "segmentation", {})
    label = manifest.field("label")
    assert (label.axes, label.shape) == (("frame", "height", "width"), (5, HEIGHT, WIDTH))
    records = list(read_split(Path(done.folder), "train"))
    assert len(records) == 2 * len(drawn) == 24, "12 frames hold two windows of 5"
    counts = np.zeros(3, int)
    for record in records:
        frames, masks = drawn[name_of(record)]
        image, label = arrays_of(record)
        start = 5 * int(record["image/tile"][0])
        np.testing.assert_array_equal(label, masks[start : start + 5], name_of(record))
        if not name_of(record).startswith("mp4"):  # which is stored with loss
            np.testing.assert_array_equal(image, frames[start : start + 5])
        counts += np.bincount(label.ravel(), minlength=3)
    statistics = manifest.splits["train"].statistics
    assert statistics.label_voxels == {str(value): int(count) for value, count in enumerate(counts)}
    assert (statistics.labelled, statistics.foreground_voxels) == (24, counts[1:].sum())
    assert not verify(str(done.folder)).problems


@pytest.mark.parametrize(
    "options",
    [
        {"height": 30, "width": 50},
        {"resize": "keep-aspect", "min_dimension": 30, "max_dimension": 40, "pad": True, "pad_value": (9,)},
    ],
)
def test_frames_and_masks_are_resized_alike_and_padded_each_with_its_own(masked, tmp_path, options):
    root, drawn = masked
    given = {**MASKED, "frame_stride": 2, "interpolation": "tf2-nearest", **options}
    done = run_convert(root, tmp_path, **given)
    height, width = (30, 50) if "height" in options else (30, 40)
    for record in read_split(Path(done.folder), "train"):
        if name_of(record).startswith("mp4"):
            continue
        frames, masks = drawn[name_of(record)]
        image, label = arrays_of(record)
        for place, index in enumerate(range(0, 10, 2)):
            resized = label[place]
            np.testing.assert_array_equal(resized[:height, :width], nearest(masks[index], height, width))
            assert not resized[height:].any() and not resized[:, width:].any()
            shown = np.stack([nearest(frames[index][..., c], height, width) for c in range(3)], -1)
            np.testing.assert_array_equal(image[place][:height, :width], shown)
            assert (image[place][height:] == 9).all()


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"frames": 5, "frame_rate": 5.0}, [[0, 2, 4, 6, 8]]),
        ({"frames": 10, "clips_per_source": "2"}, [[*range(10)], [*range(1, 11)]]),
        ({"frames": 14, "short_clips": "repeat"}, [[*range(12), 11, 11]]),
        ({"frames": 3, "frame_stride": 2}, [[0, 2, 4], [6, 8, 10]]),
    ],
)
def test_windows_of_masks_are_those_of_the_frames_however_they_are_chosen(tmp_path, options, windows):
    frames, masks = draw_masked(np.random.default_rng(6))
    (tmp_path / "in/images").mkdir(parents=True)
    write_gif(tmp_path / "in/images/a.gif", frames)
    write_masks(tmp_path / "in/labels/a", masks, "folder")
    done = run_convert(tmp_path / "in", tmp_path / "out", **{**MASKED, **options})
    records = read_split(Path(done.folder), "train")
    found = {int(record["image/tile"][0]): arrays_of(record) for record in records}
    assert len(found) == len(windows)
    for number, window in enumerate(windows):
        np.testing.assert_array_equal(found[number][0], np.array(frames)[window])
        np.testing.assert_array_equal(found[number][1], np.array(masks)[window])


def write_pair(root: Path, frames: list, masks: list, form: str = "folder", **more: Any) -> None:
    write_folder(root / "images/a", frames)
    write_masks(root / "labels/a", masks, form, **more)


def save_animation(path: Path, pictures: list[Image.Image], **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=100, **more)


def spoil(root: Path, frames: list, masks: list, how: str) -> None:
    """Write a clip and its masks, of which one thing is wrong."""
    match how:
        case "lacks a mask":
            write_pair(root, frames, masks)
            (root / "labels/a/4.png").unlink()
        case "has fewer in an animation":
            write_video(root / "images/a.mp4", frames)
            write_masks(root / "labels/a", masks[:-1], "png")
        case "has other names":
            write_pair(root, frames, masks)
            (root / "labels/a/0.png").rename(root / "labels/a/12.png")
        case "is of another size":
            write_gif(root / "images/a.gif", frames)
            write_masks(root / "labels/a", [mask[:, :-2] for mask in masks], "folder")
        case "is jpeg":
            write_folder(root / "images/a", frames)
            (root / "labels/a").mkdir(parents=True)
            for number, mask in enumerate(masks):
                Image.fromarray(mask).save(root / f"labels/a/{number}.jpg")
        case "is a video":
            (root / "labels").mkdir(parents=True)
            write_video(root / "images/a.mp4", frames)
            write_video(root / "labels/a.mp4", [np.repeat(mask[..., None], 3, 2) for mask in masks])
        case "is lossy webp":
            write_folder(root / "images/a", frames)
            pictures = [Image.fromarray(100 * mask) for mask in masks]
            save_animation(root / "labels/a.webp", pictures, lossless=False, quality=70)
        case "is in color":
            write_folder(root / "images/a", frames)
            save_animation(root / "labels/a.gif", [with_palette(mask).convert("RGB") for mask in masks])
        case "has an unknown class":
            write_pair(root, frames, [np.where(mask == 2, 7, mask).astype(np.uint8) for mask in masks])
        case "is shown for another time":
            write_gif(root / "images/a.gif", frames)
            write_masks(root / "labels/a", masks, "png", duration_ms=200)
        case "is damaged":
            write_pair(root, frames, masks)
            damaged = bytearray((root / "labels/a/3.png").read_bytes())
            damaged[-20] ^= 1
            (root / "labels/a/3.png").write_bytes(damaged)
        case "is an animation of its own":
            write_pair(root, frames, masks)
            write_masks(root / "labels/a/3", masks, "png")
        case "is turned":
            write_masks(root / "labels/a", masks, "folder")
            (root / "images/a").mkdir(parents=True)
            for number, frame in enumerate(frames):
                exif = Image.Exif()
                exif[0x0112] = 3
                Image.fromarray(frame).save(root / f"images/a/{number}.jpg", exif=exif)
        case "has no clip":
            write_masks(root / "labels/b", masks, "folder")
        case "has no mask":
            write_folder(root / "images/b", frames)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("lacks a mask", "annotation: masks are not as many as frames"),
        ("has fewer in an animation", "annotation: masks are not as many as frames"),
        ("has other names", "annotation: names of masks are not those of frames"),
        ("is of another size", "annotation: mask is of another size than its frame"),
        ("is jpeg", "decode: label image is not a PNG"),
        ("is a video", "decode: mask of a clip is no animation without loss"),
        ("is lossy webp", "decode: mask is stored with loss"),
        ("is in color", "decode: mask is in color"),
        ("has an unknown class", "annotation: mask has unknown labels"),
        ("is shown for another time", "annotation: times of masks are not those of frames"),
        ("is damaged", "decode: file is damaged"),
        ("is an animation of its own", "selection: an animation lies among frames"),
        ("is turned", "annotation: frame has an EXIF orientation"),
        ("has no clip", "annotation: label has no image"),
        ("has no mask", "selection: image has no label"),
    ],
)
def test_what_cannot_be_a_mask_of_its_clip_is_rejected_with_its_reason(tmp_path, how, reason):
    root = tmp_path / "in"
    frames, masks = draw_masked(np.random.default_rng(1))
    (root / "images").mkdir(parents=True)
    spoil(root, frames, masks, how)
    write_folder(root / "images/sound", frames)
    write_masks(root / "labels/sound", masks, "folder")
    done = run_convert(root, tmp_path / "out", classes=("1", "2"), **MASKED)
    is_unknown = reason == "annotation: mask has unknown labels"
    assert done.manifest.rejected == ({} if is_unknown else {reason: 1})
    if is_unknown:
        (tmp_path / "labels.txt").write_text("background\nsquare\nbar\n")
        named = run_convert(root, tmp_path / "named", label_map=str(tmp_path / "labels.txt"), **MASKED)
        assert named.manifest.rejected == {reason: 1}
        assert named.manifest.labels == {0: "background", 1: "square", 2: "bar"}


def test_clips_without_masks_are_kept_for_prediction_where_that_is_asked_for(tmp_path):
    frames, masks = draw_masked(np.random.default_rng(1))
    write_pair(tmp_path / "in", frames, masks)
    spoil(tmp_path / "in", frames, masks, "has no mask")
    done = run_convert(tmp_path / "in", tmp_path / "out", missing_masks="prediction", **MASKED)
    assert done.manifest.splits["train"].statistics.labelled == 2
    (apart,) = {name_of(one): one for one in read_split(Path(done.folder), "unlabeled")}.items()
    assert apart[0] == "b" and int(apart[1]["image/labelled"][0]) == 0
    assert not arrays_of(apart[1])[1].any()
    assert all(int(one["image/labelled"][0]) for one in read_split(Path(done.folder), "train"))


def test_a_table_patterns_and_names_of_frames_with_more_behind_them_give_the_same_clips(masked, tmp_path):
    frames, masks = draw_masked(np.random.default_rng(4))
    root = tmp_path / "in"
    write_folder(root / "JPEGImages/480p/bear", frames)
    (root / "Annotations/480p/bear").mkdir(parents=True)
    for number, mask in enumerate(masks):
        with_palette(mask).save(root / f"Annotations/480p/bear/{number}_L.png")
    (root / "clips.csv").write_text("image,label\nJPEGImages/480p/bear,Annotations/480p/bear\n")
    patterns = {"image_pattern": "JPEGImages/480p/{id}", "label_pattern": "Annotations/480p/{id}"}
    by_pattern = run_convert(root, tmp_path / "pattern", **{**MASKED, **patterns})
    table = {**MASKED, "layout": "csv", "task": "segmentation"}
    by_table = run_convert(root / "clips.csv", tmp_path / "table", **table)
    assert by_pattern.manifest.rejected == by_table.manifest.rejected == {}
    for done in (by_pattern, by_table):
        records = list(read_split(Path(done.folder), "train"))
        records.sort(key=lambda record: int(record["image/tile"][0]))
        image, label = map(np.concatenate, zip(*map(arrays_of, records), strict=True))
        np.testing.assert_array_equal(label, np.array(masks)[:10])
        np.testing.assert_array_equal(image, np.array(frames)[:10])


def test_a_mask_for_each_class_is_one_class_of_the_clip(tmp_path):
    frames, masks = draw_masked(np.random.default_rng(4))
    for place in ("in/one", "in/two"):
        write_folder(tmp_path / place / "frames", frames)
        for value, name, form in ((1, "square", "folder"), (2, "bar", "gif")):
            parts = [(mask == value).astype(np.uint8) for mask in masks]
            write_masks(tmp_path / place / "masks" / name, parts, form)
    done = run_convert(tmp_path / "in", tmp_path / "out", **{**MASKED, "layout": "class-masks"})
    assert done.manifest.labels == {0: "background", 1: "bar", 2: "square"}
    assert done.manifest.rejected == {}
    check_labels(done, np.array([0, 2, 1], np.uint8)[np.array(masks)])


@pytest.mark.parametrize("form", FORMS)
def test_flips_crops_and_windows_in_time_are_alike_in_all_frames_and_labels(tmp_path, form):
    frames, masks = draw_masked(np.random.default_rng(8))
    write_pair(tmp_path / "in", frames, masks, form)
    options = {**MASKED, "frames": FRAMES, "folder_frame_rate": 10.0}
    done = run_convert(tmp_path / "in", tmp_path / "out", **options)
    shown = np.array([(BACKGROUND,) * 3, COLORS[1], COLORS[2]], np.uint8)

    def batch(*augment: object, step: int = 0) -> dict[str, np.ndarray]:
        loader = Loader(done.folder, batch_size=1, augment=augment, include=["times_s", "transform"])
        return loader.batch(step)

    seen = set()
    crops = RandomCrop(4, 24, 32), RandomCrop(3, 16, 16, foreground=1.0)
    for augment in ([FlipLeftRight()], [FlipLeftRight(), crops[0]], [crops[1]]):
        for step in range(6):
            found = batch(*augment, step=step)
            np.testing.assert_array_equal(found["image"], shown[found["label"]])
            seen.add(found["label"].tobytes())
    assert len(seen) > 8, "windows differ"
    flipped, cropped = batch(FlipLeftRight(1.0)), batch(crops[0])
    np.testing.assert_array_equal(flipped["image"][0], np.array(frames)[:, :, ::-1])
    np.testing.assert_array_equal(flipped["label"][0], np.array(masks)[:, :, ::-1])
    first = round(10 * float(cropped["times_s"][0, 0]))
    np.testing.assert_allclose(cropped["times_s"][0], np.arange(first, first + 4) / 10, atol=1e-6)
    top, left = (round(float(cropped["transform"][0, axis, 2])) for axis in (0, 1))
    window = np.array(frames)[first : first + 4, top : top + 24, left : left + 32]
    np.testing.assert_array_equal(cropped["image"][0], window)
    for augmentation, message in (
        (FlipDepth(), "clips have no depth"),
        (RandomCrop(24, 32), f"{FRAMES} frames long"),
        (Rotate90(), "as high as wide"),
    ):
        with pytest.raises(UsageError, match=message):
            batch(augmentation)


def test_options_that_do_not_go_with_masks_of_clips_are_refused(tmp_path):
    (tmp_path / "in").mkdir()
    for options, message in (
        ({"layout": "folders", "task": "segmentation"}, "serves classification"),
        ({"layout": "pairs", "task": "classification"}, "serves segmentation"),
        ({"layout": "msd"}, "msd holds none; leave it out, or take one of folders, csv, jsonl, pairs"),
    ):
        with pytest.raises(UsageError, match=message):
            run_convert(tmp_path / "in", tmp_path / "out", frames=5, **options)
    assert Recipe(layout="csv", frames=5).settled_task() == "classification"
    for options, message in (
        ({"frames": 0}, "--frames 0: expected 1 or more"),
        ({"resize": "keep-aspect"}, "all clips have one size; take --resize keep-aspect --pad"),
        ({"frame_stride": 2, "frame_rate": 5.0}, "only one of them"),
        ({"clips_per_source": "0"}, "--clips-per-source 0: expected all, or how many"),
    ):
        with pytest.raises(UsageError, match=message):
            Recipe(**{"layout": "folders", "frames": 8, **options}).check_used()


@pytest.mark.parametrize(
    ("clip", "mask"), [("videos/a", "labels/a"), ("clips/a", "masks/a"), ("a", "a_mask")]
)
def test_a_video_and_its_masks_find_each_other_by_folders_and_suffixes(tmp_path, clip, mask):
    frames, masks = draw_masked(np.random.default_rng(2))
    (tmp_path / "in" / clip).parent.mkdir(parents=True)
    write_video((tmp_path / "in" / clip).with_suffix(".mp4"), frames)
    write_masks(tmp_path / "in" / mask, masks, "folder")
    Image.fromarray(frames[0]).save((tmp_path / "in" / clip).parent / "cover.jpg")
    done = run_convert(tmp_path / "in", tmp_path / "out", **MASKED)
    assert done.manifest.splits["train"].statistics.labelled == 2
    assert done.manifest.rejected == {"selection: file is neither image nor label by its name": 1}


def test_masks_drawn_on_frames_as_displayed_are_taken_where_that_is_said(tmp_path):
    frames, masks = draw_masked(np.random.default_rng(3))
    spoil(tmp_path / "in", frames, masks, "is turned")
    done = run_convert(tmp_path / "in", tmp_path / "out", annotation_grid="displayed", **MASKED)
    check_labels(done, masks)
    for record in read_split(Path(done.folder), "train"):
        start = 5 * int(record["image/tile"][0])
        image, _ = arrays_of(record)
        upright = np.array(frames)[start : start + 5, ::-1, ::-1]
        assert np.abs(image.astype(int) - upright).mean() < 4, "turned by half"


def test_the_gray_values_of_an_animated_png_and_a_merged_second_mask_are_classes(tmp_path):
    frames, masks = draw_masked(np.random.default_rng(3))
    write_folder(tmp_path / "in/a", frames)
    squares = [Image.fromarray((mask == 1).astype(np.uint8)) for mask in masks]
    save_animation(tmp_path / "in/a_mask.png", squares)
    bars = [np.where(mask == 2, 2, 0).astype(np.uint8) for mask in masks]
    write_masks(tmp_path / "in/a_mask_bars", bars, "folder")
    done = run_convert(tmp_path / "in", tmp_path / "out", several_masks="merge", **MASKED)
    assert done.manifest.rejected == {}
    check_labels(done, masks)


def test_what_a_clip_needs_is_told_with_its_masks(tmp_path):
    frames, masks = draw_masked(np.random.default_rng(3))
    write_folder(tmp_path / "a", frames)
    write_masks(tmp_path / "a_mask", masks, "folder")
    recipe = Recipe(layout="pairs", frames=FRAMES, height=600, width=800)
    listing = recipe.rules.select_files(recipe, LocalFiles(str(tmp_path)))
    reference = listing.complete(SourceExample(source="a", key="a", mask="a_mask"))
    assert reference.paths == tuple(f"{name}/{n}.png" for name in ("a", "a_mask") for n in range(12))
    labels = LabelMap(entries=((0, "background"), (1, "square"), (2, "bar")), first_id=0, where="")
    needed: list[int] = []
    (record,) = converter_of(recipe, "segmentation", labels).records(reference, listing.files, needed.append)
    stored = {key: len(value.data) for key, value in record.arrays.items()}
    assert stored == {"image/encoded": 12 * 600 * 800 * 3, "image/label": 12 * 600 * 800}
    without: list[int] = []
    plain = listing.complete(SourceExample(source="a", key="a", label="square"))
    converter_of(recipe, "classification", labels).records(plain, listing.files, without.append)
    assert max(needed) - max(without) >= stored["image/label"]
