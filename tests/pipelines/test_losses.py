"""A conversion says what it lost, refuses records that became useless, and names an option that works."""

import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.verify import verify
from halofeed.prep.convert import loss_measures as losses
from halofeed.prep.convert.loss_findings import LOSS_RULES, Converted, loss_findings
from halofeed.schemas.manifest import Manifest, read_manifest
from tests.support.conversions import halofeed_here

GENERATOR = np.random.default_rng(0)
VOLUME = ("--depth", 12, "--height", 24, "--width", 24)
PICTURES = ("--height", 64, "--width", 64)
SEGMENTED = (
    *("--layout", "pairs", "--task", "segmentation", "--image-pattern", "images/{id}.png"),
    *("--label-pattern", "labels/{id}.png"),
)


def save(path: Path, pixels: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels)


def pictures(root: Path, pixels: Callable[[int], NDArray[Any]], ending: str = "png") -> tuple[object, ...]:
    """Class folders of two classes."""
    for number in range(4):
        save(root / "ab"[number % 2] / f"{number}.{ending}", pixels(number))
    return ("--source", root, "--layout", "folders")


def steps(number: int, base: int = 20_000, step: int = 100) -> NDArray[Any]:
    """Three tissues in 16 bits."""
    found = np.full((64, 64), base + number, np.uint16)
    found[8:40] += step
    found[40:50] += 2 * step
    return found


def noise(number: int) -> NDArray[Any]:
    return np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)


def scans(
    root: Path, change: Callable[[NDArray[Any]], NDArray[Any]], label: Any = None, dtype: str = "i2"
) -> tuple[object, ...]:
    """Drawn CT scans of air, tissue and bone, changed by a function; and labels."""
    for number in range(3):
        generator = np.random.default_rng(number)
        values = generator.normal(-1000, 10, (24, 24, 12))
        values[5:19, 5:19, 2:10] = generator.normal(40, 20, (14, 14, 8))
        values[10:12, 10:12, 4:7] = generator.normal(500, 20, (2, 2, 3))
        marked = np.zeros(values.shape, np.uint8)
        marked[label or (slice(8, 14), slice(8, 14), slice(4, 7))] = 1
        for folder, array in (("images", change(values).astype(dtype)), ("labels", marked)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), root / folder / f"{number}.nii.gz")
    return ("--source", root)


def coco(root: Path, objects: Sequence[dict[str, Any]], side: int = 64) -> tuple[object, ...]:
    images = [{"id": n + 1, "file_name": f"{n}.png", "height": side, "width": side} for n in range(4)]
    for number in range(4):
        save(root / f"{number}.png", np.resize(noise(number), (side, side, 3)))
    annotations = [
        {"id": n, "image_id": n % 4 + 1, "category_id": 1, "iscrowd": 0, "area": 9, **one}
        for n, one in enumerate(objects, start=1)
    ]
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "car"}]}
    (root / "instances.json").write_text(json.dumps(document))
    return ("--source", root, "--layout", "coco")


def labels(root: Path, label: Callable[[int], NDArray[Any]]) -> tuple[object, ...]:
    for number in range(4):
        marked = label(number)
        save(root / f"labels/{number}.png", marked)
        save(root / f"images/{number}.png", np.resize(noise(number), (*marked.shape, 3)))
    return ("--source", root, *SEGMENTED)


def numbered(number: int, shift: int = 0, values: Sequence[int] = (1, 2, 3)) -> NDArray[Any]:
    """Squares that count up, one more in each picture."""
    found = np.zeros((64, 64), np.uint8)
    for at, value in enumerate(values[: number % 3 + 1]):
        found[5 + shift : 25 + shift, 2 + 20 * at : 16 + 20 * at] = value
    return found


def speck(number: int) -> NDArray[Any]:
    found = np.zeros((300, 300), np.uint8)
    found[98:100, 98:100] = 1  # between the pixels that the nearest neighbor takes
    return found


def two(number: int) -> NDArray[Any]:
    """A structure that stays, and a speck that does not."""
    found = speck(number) * 2
    found[200:280, 200:280] = 1
    return found


def boxes(width: int, height: int, **more: Any) -> list[dict[str, Any]]:
    return [{"bbox": [10 + 20 * n, 10, width, height], **more} for n in range(8)]


def point(x: int, y: int) -> list[int]:
    return [x, y, 2]


KEYPOINTS = {"keypoints": [*point(100, 100), *point(104, 104)], "num_keypoints": 2}


def with_keypoints(root: Path) -> tuple[object, ...]:
    given = coco(root, [{"bbox": [10 + n, 10, 600, 600], **KEYPOINTS} for n in range(4)], 900)
    document = json.loads((root / "instances.json").read_text())
    document["categories"][0]["keypoints"] = ["a", "b"]
    (root / "instances.json").write_text(json.dumps(document))
    return (*given, "--keep", "keypoints")


SQUARE = {"segmentation": [[10, 10, 11, 10, 11, 11, 10, 11]]}
Case = tuple[str, Callable[[Path], tuple[object, ...]], tuple[object, ...], tuple[object, ...]]
LOST: list[Case] = [
    # name of the finding, the sources, the options, and the options of the fix
    (
        "contrast is lost",
        lambda root: pictures(root, steps),
        PICTURES,
        (*PICTURES, "--dtype", "uint16"),
    ),
    (
        "contrast is lost",
        lambda root: pictures(root, lambda n: np.dstack([steps(n), steps(n), steps(n, 30_000)]), "tif"),
        (*PICTURES, "--encoding", "jpeg"),
        (*PICTURES, "--dtype", "uint16", "--encoding", "png"),
    ),
    (
        "contrast is lost",
        lambda root: scans(root, lambda values: np.maximum(values, 0) / 100, dtype="f4"),
        (*VOLUME, "--window", "abdomen", "--window-unit", "any"),
        (*VOLUME, "--window-percentiles", "0.5,99.5"),
    ),
    (
        "records became one value",
        lambda root: pictures(root, lambda n: steps(n, 32_900, 5)),
        PICTURES,
        (*PICTURES, "--dtype", "uint16"),
    ),
    (
        "records became one value",
        lambda root: scans(root, lambda values: np.minimum(values, 300)),
        (*VOLUME, "--window-hu", "700,1500"),
        (*VOLUME, "--window-hu", "-1036,300"),
    ),
    (
        "values outside of the window",
        lambda root: scans(root, lambda values: np.where(values < -500, 0, values + 600)),
        (*VOLUME, "--window", "abdomen", "--window-unit", "any"),
        (*VOLUME, "--window-percentiles", "0.5,99.5"),
    ),
    (
        "labeled voxels became one value",
        lambda root: scans(root, lambda values: values, (slice(10, 12), slice(10, 12), slice(4, 7))),
        (*VOLUME, "--window", "brain"),
        (*VOLUME, "--window-hu", "-1036,600"),
    ),
    (
        "values that no scanner measures",
        lambda root: scans(root, lambda values: values - 1024),
        VOLUME,
        (*VOLUME, "--window-percentiles", "0.5,99.5"),
    ),
    (
        "objects below 2 pixels",
        lambda root: coco(root, boxes(10, 12), 900),
        ("--height", 90, "--width", 90),
        ("--height", 720, "--width", 720),
    ),
    (
        "objects below 4 pixels",
        lambda root: coco(root, boxes(20, 30), 900),
        ("--height", 90, "--width", 90),
        ("--height", 360, "--width", 360),
    ),
    (
        "objects flagged as crowds",
        lambda root: coco(root, boxes(20, 30, iscrowd=1, segmentation={"size": [64, 64], "counts": [4096]})),
        PICTURES,
        (*PICTURES, "--boxes-crowd", "objects"),
    ),
    (
        "object masks became empty",
        lambda root: coco(root, [{"bbox": [10, 10, 1, 1], **SQUARE} for _ in range(4)], 900),
        ("--height", 90, "--width", 90, "--masks", "--on-loss", "warn"),
        ("--height", 900, "--width", 900, "--masks"),
    ),
    (
        "keypoints fall onto one pixel",
        with_keypoints,
        ("--height", 90, "--width", 90),
        ("--height", 900, "--width", 900),
    ),
    (
        "labels became empty",
        lambda root: labels(root, speck),
        PICTURES,
        ("--height", 300, "--width", 300),
    ),
    ("structures vanished", lambda root: labels(root, two), PICTURES, ("--height", 300, "--width", 300)),
    (
        "values may number objects",
        lambda root: labels(root, numbered),
        PICTURES,
        (*PICTURES, "--map-classes", "1..3=object"),
    ),
]


def converted(source: Sequence[object], out: Path, *options: object) -> tuple[Manifest | None, str]:
    """Return the manifest, None where the conversion was refused, and what was printed."""
    done = halofeed_here("convert", "--out", out, "--name", "set", *source, *options)
    folder = out / "set/1.0.0"
    return (read_manifest(folder) if done.returncode == 0 else None), done.stdout + done.stderr


def found(manifest: Manifest) -> list[str]:
    return [finding.name for finding in loss_findings(Converted.of(manifest)) if not finding.is_said]


@pytest.mark.parametrize(("name", "draw", "options", "fixed"), LOST, ids=[case[0] for case in LOST])
def test_each_loss_is_found_with_its_numbers_and_the_fix_ends_it(tmp_path, name, draw, options, fixed):
    source = draw(tmp_path / "source")
    manifest, text = converted(source, tmp_path / "out", *options)
    rule = next(rule for rule in LOSS_RULES if rule.name == name)
    if manifest is None:
        assert rule.is_useless and "Nothing was committed. --on-loss warn" in text
        assert not (tmp_path / "out/set/1.0.0/manifest.json").exists()
        manifest, warned = converted(source, tmp_path / "out", *options, "--on-loss", "warn")
        assert manifest is not None and "warning: " in warned
    assert name in found(manifest)
    (finding,) = (one for one in loss_findings(Converted.of(manifest)) if one.name == name)
    assert "more: `halofeed inspect" in text or (finding.text in text and finding.fix in text)
    assert f"{finding.count:,} of {finding.of:,}" in finding.text
    folder = tmp_path / "out/set/1.0.0"
    report = verify(folder)
    assert report.ok and str(finding) in str(report) and "no problems" not in str(report)
    assert str(finding) in describe_dataset(folder)
    last, said = converted(source, tmp_path / "fixed", *fixed)
    assert last is not None, said
    assert name not in found(last), said


def test_a_data_set_without_any_object_is_said(tmp_path):
    manifest, text = converted(coco(tmp_path / "source", []), tmp_path / "out", *PICTURES)
    assert manifest is not None and "no record with an object" in found(manifest)
    assert re.search(r"warning: none of \d+ pictures has an object; check that", text)
    prediction = dataclasses.replace(manifest, recipe={**manifest.recipe, "missing_masks": "prediction"})
    assert "no record with an object" not in found(prediction)


def dark(number: int) -> NDArray[Any]:
    """A photograph of 16 bits that uses its whole range."""
    values = np.cumsum(np.random.default_rng(number).normal(0, 1, (64, 64)).cumsum(0), 1)
    return ((values - values.min()) / np.ptp(values) * 65535).astype(np.uint16)


def tumor(number: int) -> NDArray[Any]:
    """An organ with a tumor in some pictures."""
    marked = np.zeros((64, 64), np.uint8)
    marked[5:60, 5:60] = 1
    marked[20:26, 20:26] += number % 2
    return marked


def organs(number: int) -> NDArray[Any]:
    """Three organs, of which one picture lacks the last."""
    return numbered(1 if number == 3 else 2)


def parts(number: int) -> NDArray[Any]:
    """A class of two regions."""
    marked = numbered(number)
    marked[40:50, 40:50] = 1
    return marked


SOUND: list[tuple[str, Callable[[Path], tuple[object, ...]], tuple[object, ...]]] = [
    ("a 16-bit photograph", lambda root: pictures(root, dark), PICTURES),
    ("two levels that stay apart", lambda root: pictures(root, lambda n: steps(n, 0, 32_000)), PICTURES),
    ("narrow values in all their bits", lambda root: pictures(root, steps), (*PICTURES, "--dtype", "uint16")),
    (
        "pictures of one value",
        lambda root: pictures(root, lambda n: np.full((64, 64), 7, np.uint8)),
        PICTURES,
    ),
    (
        "a CT in a window",
        lambda root: scans(root, lambda values: values),
        (*VOLUME, "--window", "abdomen"),
    ),
    ("a CT in bone's window", lambda root: scans(root, lambda values: values), (*VOLUME, "--window", "bone")),
    ("a CT with padding", lambda root: scans(root, padded), (*VOLUME, "--window", "abdomen")),
    ("padding after resampling", lambda root: scans(root, blended), (*VOLUME, "--window", "abdomen")),
    ("small objects", lambda root: coco(root, boxes(3, 3)[:2]), PICTURES),
    ("one crowd", lambda root: coco(root, [*boxes(20, 20)[:2], *boxes(20, 20, iscrowd=1)[:1]]), PICTURES),
    ("an organ and its tumor", lambda root: labels(root, tumor), PICTURES),
    ("organs", lambda root: labels(root, organs), PICTURES),
    ("a class of two regions", lambda root: labels(root, parts), PICTURES),
    ("values with gaps", lambda root: labels(root, lambda n: numbered(n, 0, (1, 3, 4))), PICTURES),
    ("as many classes in each", lambda root: labels(root, lambda n: numbered(2)), PICTURES),
]


def padded(values: NDArray[Any]) -> NDArray[Any]:
    values = values.copy()
    values[:, :, :1] = -32768
    return values


@pytest.mark.parametrize(("draw", "options"), [case[1:] for case in SOUND], ids=[case[0] for case in SOUND])
def test_what_lost_nothing_gives_no_finding(tmp_path, draw, options):
    manifest, text = converted(draw(tmp_path / "source"), tmp_path / "out", *options)
    assert manifest is not None, text
    assert not found(manifest)
    assert "no problems" in str(verify(tmp_path / "out/set/1.0.0"))


def double_offset(values: NDArray[Any]) -> NDArray[Any]:
    return values - 1024


def tenths(values: NDArray[Any]) -> NDArray[Any]:
    return values * 10


def tenths_of_flat_air(values: NDArray[Any]) -> NDArray[Any]:
    """Tenths of HU whose air is one value, as padding is, beside fat that looks like air."""
    fat = np.where((values < 100) & (values % 2 < 1), -95 + values % 3, values)
    return np.where(values < -500, -1000, fat) * 10


@pytest.mark.parametrize("change", [tenths, tenths_of_flat_air])
@pytest.mark.parametrize("options", [(), ("--window", "abdomen", "--window-unit", "any")])
def test_tenths_of_hounsfield_units_are_found_without_a_unit_in_the_file(tmp_path, change, options):
    source = scans(tmp_path / "source", change)
    manifest, text = converted(source, tmp_path / "out", *VOLUME, *options, "--on-loss", "warn")
    assert manifest is not None and "may be tenths of HU" in text


def blended(values: NDArray[Any]) -> NDArray[Any]:
    """Padding that resampling blended with its surroundings."""
    values = padded(values)
    values[:, :, 1] = (values[:, :, 0] + values[:, :, 2]) / 2
    return values


def lesion(number: int) -> NDArray[Any]:
    """A 16-bit ramp with a box at rows 20 to 40, columns 60 to 100, whose values 8 bits do not tell apart."""
    ramp = np.add.outer(np.arange(96), np.arange(128)) * 290
    ramp[20:40, 60:100] = 30_000 + np.random.default_rng(number).integers(0, 60, (20, 40))
    return ramp.astype(np.uint16)


def yolo(root: Path, box: tuple[int, int, int, int]) -> tuple[object, ...]:
    xmin, ymin, xmax, ymax = box
    for number in range(4):
        save(root / f"images/{number}.png", lesion(number))
        center = (xmin + xmax) / 256, (ymin + ymax) / 192
        (root / "labels").mkdir(exist_ok=True)
        text = f"0 {center[0]} {center[1]} {(xmax - xmin) / 128} {(ymax - ymin) / 96}\n"
        (root / f"labels/{number}.txt").write_text(text)
    (root / "classes.txt").write_text("lesion\n")
    return ("--source", root, "--layout", "yolo")


@pytest.mark.parametrize(("box", "is_flat"), [((60, 20, 100, 40), True), ((10, 50, 50, 90), False)])
def test_levels_within_normalized_boxes_are_measured_where_the_boxes_are(tmp_path, box, is_flat):
    manifest, text = converted(yolo(tmp_path / "source", box), tmp_path / "out", *PICTURES)
    assert manifest is not None, text
    assert ("objects became one value" in found(manifest)) == is_flat


def test_declared_sizes_refuse_tiny_boxes_before_pictures_are_read(tmp_path):
    source = coco(tmp_path / "source", boxes(10, 12), 900)
    manifest, text = converted(source, tmp_path / "out", "--height", 90, "--width", 90)
    assert manifest is None and "8 of 8 objects" in text and "The sizes in the annotations show it" in text
    assert not list((tmp_path / "out").rglob("*.index"))


@pytest.mark.parametrize(
    ("shape", "others"),
    [
        (("--height", 30, "--width", 30), ("--fit", "tiles", "--height", 30, "--width", 30)),
        (
            ("--resize", "keep-aspect", "--min-dimension", 30, "--max-dimension", 30, "--pad"),
            ("--fit", "tiles", "--height", 640, "--width", 640),
        ),
    ],
)
def test_tiles_are_proposed_for_tiny_boxes_and_keep_them(tmp_path, shape, others):
    source = coco(tmp_path / "source", boxes(16, 16), side=640)
    _, text = converted(source, tmp_path / "a", *shape)
    assert ("--fit tiles" in text and "in place of --resize" in text) or "add --fit tiles" in text, text
    manifest, text = converted(source, tmp_path / "b", *others)
    assert manifest is not None and "stored pixels on a side" not in text, text


def test_objects_without_an_area_do_not_ask_for_larger_records(tmp_path):
    drawn = coco(tmp_path / "source", [*boxes(20, 30), *boxes(20, 0)], 300)
    size = ("--height", 300, "--width", 300)
    manifest, text = converted(drawn, tmp_path / "out", *size, "--boxes-zero-area", "keep")
    assert manifest is not None and "stored pixels on a side" not in text and not found(manifest), text


def test_numbers_of_many_objects_are_refused_and_a_range_makes_them_one_class(tmp_path):
    def cells(number: int) -> NDArray[Any]:
        values = 1 + np.arange(18 * 18).reshape(18, 18)
        return np.kron(np.where(values <= 300 + number, values, 0), np.ones((6, 6))).astype(np.uint16)

    source = labels(tmp_path / "source", cells)
    manifest, text = converted(source, tmp_path / "out", *PICTURES)
    assert manifest is None and "count up as numbers of objects do" in text
    fix = re.search(r"--map-classes \S+=object", text)
    assert fix is not None
    manifest, text = converted(source, tmp_path / "fixed", *PICTURES, *fix[0].split())
    assert manifest is not None and manifest.labels == {0: "background", 1: "object"}, text


def test_a_set_without_objects_or_classes_is_found(tmp_path):
    crowds = coco(tmp_path / "boxes", boxes(20, 30, iscrowd=1))
    manifest, _ = converted(crowds, tmp_path / "out", *PICTURES, "--boxes-crowd", "drop")
    assert manifest is not None and found(manifest) == ["flagged objects dropped"]
    empty = labels(tmp_path / "labels", lambda number: np.zeros((64, 64), np.uint8))
    manifest, _ = converted(empty, tmp_path / "empty", *PICTURES)
    assert manifest is not None and found(manifest) == ["labels without a class"]


@pytest.mark.parametrize(
    ("change", "words"), [(double_offset, "subtracted twice"), (tenths, "may be tenths of HU")]
)
def test_a_window_in_hu_is_refused_for_values_that_no_ct_has(tmp_path, change, words):
    source = scans(tmp_path / "source", change)
    manifest, text = converted(source, tmp_path / "out", *VOLUME, "--window", "abdomen")
    assert manifest is None and words in text
    manifest, text = converted(source, tmp_path / "out", *VOLUME, "--window-percentiles", "0.5,99.5")
    assert manifest is not None, text


def test_a_loss_of_few_records_is_a_warning_and_of_most_a_refusal(tmp_path):
    for lost, outcome in ((1, True), (2, True), (3, False)):
        root = tmp_path / str(lost)
        source = pictures(root / "source", lambda n, lost=lost: steps(n) if n < lost else dark(n))
        manifest, text = converted(source, root / "out", *PICTURES)
        assert (manifest is not None) == outcome
        assert f"contrast is lost in {lost} of 4 sources, such as a/0.png: 3 levels" in text


def test_finished_shards_are_kept_for_a_run_that_only_warns(tmp_path):
    source = pictures(tmp_path / "source", steps)
    assert converted(source, tmp_path / "out", *PICTURES)[0] is None
    (shard,) = (tmp_path / "out/set/1.0.0").glob("*.tfrecord-00000-of-00001")
    before = shard.stat().st_ino, shard.stat().st_mtime_ns
    manifest, text = converted(source, tmp_path / "out", *PICTURES, "--on-loss", "warn")
    assert manifest is not None and "warning: contrast is lost" in text
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == before
    assert "on_loss" not in manifest.recipe


def test_a_dry_run_warns_of_what_its_sample_loses(tmp_path):
    source = pictures(tmp_path / "source", steps)
    done = halofeed_here(
        "convert", "--out", tmp_path / "out", "--name", "set", *source, *PICTURES, "--dry-run"
    )
    assert done.returncode == 0 and "warning: contrast is lost in 4 of 4 sources" in done.stdout


def test_ignored_losses_are_not_printed_and_stay_in_the_manifest(tmp_path):
    source = pictures(tmp_path / "source", steps)
    manifest, text = converted(source, tmp_path / "out", *PICTURES, "--on-loss", "ignore")
    assert manifest is not None and "contrast" not in text
    assert found(manifest) == ["contrast is lost"]


def test_a_conversion_ends_early_where_every_record_so_far_is_useless(tmp_path, monkeypatch):
    from halofeed.pipelines import shard_writer

    monkeypatch.setattr(shard_writer, "_FIRST_RECORDS", 2)
    manifest, text = converted(pictures(tmp_path / "source", steps), tmp_path / "out", *PICTURES)
    assert manifest is None and "2 of 2 sources" in text and "so far" in text
    assert not list((tmp_path / "out/set/1.0.0").glob("*.index"))


def test_levels_are_measured_only_where_values_lose_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "add_object_levels", None)
    monkeypatch.setattr("halofeed.prep.formats.picture.image.picture_levels", None)
    source = coco(tmp_path / "source", boxes(20, 20))
    assert converted(source, tmp_path / "out", *PICTURES)[0] is not None


def test_differing_flags_of_crowds_and_difficult_objects_end_where_they_are_taken_as_objects(tmp_path):
    table = "filename,class,xmin,ymin,xmax,ymax,is_crowd,difficult\n"
    rows = "".join(f"{n}.png,car,5,5,40,40,1,1\n" for n in range(4))
    for number in range(4):
        save(tmp_path / f"source/{number}.png", noise(number))
    (tmp_path / "source/boxes.csv").write_text(table + rows)
    source = ("--source", tmp_path / "source/boxes.csv", "--layout", "csv", *PICTURES)
    manifest, text = converted(source, tmp_path / "out")
    assert manifest is not None
    assert found(manifest) == ["objects flagged as crowds", "objects flagged as difficult"]
    fixes = re.findall(r"(--boxes-\w+ objects)", text)
    assert fixes == ["--boxes-crowd objects", "--boxes-difficult objects"]
    manifest, text = converted(source, tmp_path / "fixed", *shlex.split(" ".join(fixes)))
    assert manifest is not None and not found(manifest)


def test_the_page_of_findings_explains_each_rule_in_order():
    page = (Path(__file__).parents[2] / "docs/conversion-findings.md").read_text()
    assert page.startswith("# What a conversion tells you\n")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    named = {rule.name: rule.meaning for rule in LOSS_RULES}
    explained = {name.strip(): meaning.strip() for name, meaning in rows if name.strip() in named}
    assert explained == named and list(explained) == list(named)


def test_pictures_of_one_value_are_known_by_all_pixels():
    flat = np.full((40, 40, 3), 7, np.uint8)
    assert losses.is_flat(flat) and losses.is_flat(flat[:, ::2])
    flat[39, 20, 1] += 1
    assert not losses.is_flat(flat)
