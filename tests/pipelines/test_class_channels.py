"""Do classes that overlap come as one channel each, whatever the source, the recipe and the augmentation?"""

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.errors import AnnotationsError, JobError, ManifestError
from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop, Rotate90
from halofeed.schemas import fields
from halofeed.schemas.file_layout import index_file
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.partition import Partition
from halofeed.schemas.tfrecord import HEADER_BYTES
from halofeed.system.checksum import crc32c, mask_crc
from halofeed.trainer.mesh import make_mesh
from tests.pipelines.test_volume_labels import (
    BODY,
    LEFT,
    PARTS,
    RIGHT,
    box,
    rtstruct_of,
    seg_of,
    series_with,
    table_of,
)  # fmt: skip
from tests.support.conversions import run_convert
from tests.support.parser_check import check_parser
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image, nnunet_document, write_json
from tests.support.volume_support import findings, rejected, save_nifti

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

AUGMENT = [FlipDepth(), FlipLeftRight(), FlipUpDown(), RandomCrop(4, 6, 6), Rotate90()]
SCANS = 3
Masks = dict[str, dict[str, NDArray[np.uint8]]]


def random_masks(classes: int, seed: int) -> dict[str, NDArray[np.uint8]]:
    """Masks that overlap in many ways; the second class is empty in every other scan."""
    generator = np.random.default_rng(seed)
    drawn = [(generator.random(SHAPE) < 0.4).astype(np.uint8) for _ in range(classes)]
    masks = {f"c{number:02d}": mask for number, mask in enumerate(drawn, start=1)}
    if seed % 2 and classes > 1:
        masks["c02"][...] = 0
    return masks


def class_masks(root: Path, classes: int) -> Masks:
    """Scans with a mask file for each class; the masks by scan and class."""
    drawn = {f"s{number}": random_masks(classes, number) for number in range(SCANS)}
    for scan, masks in drawn.items():
        save_nifti(root / scan / "ct.nii", image(int(scan[1:])), AFFINE)
        for name, mask in masks.items():
            save_nifti(root / scan / "segmentations" / f"{name}.nii", mask, AFFINE)
    return drawn


def convert(source: Path, out: Path, **options: Any) -> Any:
    given = {"layout": "class-masks", "class_overlap": "channels", **SIZE, **options}
    return run_convert(source, out, **given)


def channels_by_source(folder: str, split: str = "train") -> dict[str, NDArray[np.uint8]]:
    """The label of each record as the loader gives it."""
    loader = Loader(folder, split=split, batch_size=2, training=False, include=["source"])
    return {
        batch["source"][row]: batch["label"][row]
        for batch in loader.batches()
        for row in np.flatnonzero(batch["valid"])
    }


def of_masks(folder: Path, classes: int, **options: Any) -> tuple[Masks, Any]:
    """The masks of `class_masks`, and their conversion."""
    return class_masks(folder / "s", classes), convert(folder / "s", folder / "o", **options)


def check(done: Any, *channels: Any) -> None:
    """The only record has these channels."""
    (label,) = channels_by_source(done.folder).values()
    assert np.array_equal(label, np.stack(channels, axis=-1))


@pytest.mark.parametrize("classes", [1, 3, 8, 9, 16])
def test_each_channel_is_the_mask_of_its_class(tmp_path: Path, classes: int) -> None:
    drawn, done = of_masks(tmp_path, classes)
    field = done.manifest.field("label")
    assert field.encoding == "sets"
    assert (field.axes[-1], field.shape, field.dtype) == ("class", (*SHAPE, classes), "uint8")
    assert field.stored_dtype == ("uint8" if classes <= 8 else "uint16")
    found = channels_by_source(done.folder)
    for scan, masks in drawn.items():
        label = found[f"{scan}/ct.nii"]
        assert label.dtype == np.uint8 and np.array_equal(label, np.stack([*masks.values()], axis=-1))
    assert list(done.manifest.labels.values()) == ["background", *drawn["s0"]]
    check_parser(done.folder)
    assert verify(done.folder).ok, str(verify(done.folder))


GRIDS = [{}, {"spacing_mm": (2.0, 1.5, 1.1), "depth": 7, "height": 12, "width": 13}]
GRIDS += [{"spacing_mm": (4.0, 2.5, 2.5), "mask_interpolation": "nearest", "center": "foreground"}]
GRIDS += [{"fit": "stretch", "depth": 9, "height": 6, "width": 7}]
GRIDS += [{"encoding": "packed"}]
GRIDS += [{"fit": "tiles", "depth": 3, "height": 6, "width": 6, "tile_overlap": (1, 2, 2)}]


@pytest.mark.parametrize("options", GRIDS, ids=["plain", "finer", "coarser", "stretch", "packed", "tiles"])
def test_each_channel_is_what_a_conversion_of_its_class_alone_gives_after_flips_turns_and_crops(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    drawn, together = of_masks(tmp_path, 3, **options)
    assert verify(together.folder).ok, str(verify(together.folder))
    crop = RandomCrop(2, 5, 5)
    for channel, name in enumerate(drawn["s0"]):
        alone = convert(tmp_path / "s", tmp_path / name, class_overlap="refuse", classes=(name,), **options)
        for augment in ([], [*AUGMENT[:3], crop, AUGMENT[4]]):
            more = {"batch_size": 3, "seed": 5, "augment": augment}
            loaders = [Loader(done.folder, **more) for done in (together, alone)]
            for step in range(4):
                batch, expected = (loader.batch(step) for loader in loaders)
                assert np.array_equal(batch["id"], expected["id"])
                assert np.array_equal(batch["image"], expected["image"])
                assert np.array_equal(batch["label"][..., channel], expected["label"])
        statistics = [done.manifest.splits["train"].statistics for done in (together, alone)]
        for key in ("labels", "label_voxels", "label_mm3", "label_cut_mm3"):
            found = getattr(statistics[0], key).get(str(channel + 1))
            expected = getattr(statistics[1], key).get("1")
            # Of sums of shares in another order each scan's is rounded to a whole mm³.
            assert found == expected or (key == "label_cut_mm3" and abs(found - expected) <= SCANS), key


def test_the_statistics_count_classes_and_each_labeled_voxel_once(tmp_path: Path) -> None:
    drawn, done = of_masks(tmp_path, 3)
    statistics = done.manifest.splits["train"].statistics
    stacked = np.stack([list(masks.values()) for masks in drawn.values()])
    voxels = {str(number + 1): int(count) for number, count in enumerate(stacked.sum(axis=(0, 2, 3, 4)))}
    anywhere = stacked.any(axis=1)
    assert statistics.label_voxels == {"0": int((~anywhere).sum()), **voxels}
    assert statistics.foreground_voxels == int(anywhere.sum())
    assert statistics.labels == {"0": 3, "1": 3, "2": 2, "3": 3}
    assert statistics.label_mm3["1"] == pytest.approx(voxels["1"] * 9, abs=2)
    assert sum(statistics.intensities.foreground.values()) == int(anywhere[:, :, ::8].sum())
    assert findings(done) == {"voxels of several classes (noted)": 3}


@pytest.mark.parametrize("encoding", ["raw", "packed"])
def test_crops_that_hold_foreground_hold_a_voxel_of_any_class(tmp_path: Path, encoding: str) -> None:
    masks = {"a": np.zeros(SHAPE, np.uint8), "b": np.zeros(SHAPE, np.uint8)}
    masks["b"][4, 7, 8] = 1
    save_nifti(tmp_path / "s/x/ct.nii", image(), AFFINE)
    for name, mask in masks.items():
        save_nifti(tmp_path / f"s/x/segmentations/{name}.nii", mask, AFFINE)
    done = convert(tmp_path / "s", tmp_path / "o", encoding=encoding)
    loader = Loader(done.folder, batch_size=1, augment=[RandomCrop(2, 3, 3, foreground=1)])
    for step in range(5):
        assert loader.batch(step)["label"].sum(axis=(0, 1, 2, 3)).tolist() == [0, 1]


@pytest.mark.parametrize("encoding", ["raw", "packed"])
def test_tensorflow_and_a_mesh_get_the_same_channels(tmp_path: Path, encoding: str) -> None:
    _, done = of_masks(tmp_path, 3, height=8, width=10, encoding=encoding)
    loader = Loader(done.folder, batch_size=2, augment=AUGMENT[:3])
    batch = loader.batch(0)
    assert loader.spec["label"].shape == (2, 5, 8, 10, 3)
    element = next(iter(loader.dataset()))
    assert element["label"].shape == (2, 5, 8, 10, 3)
    assert np.array_equal(element["label"].numpy(), batch["label"])
    partition = Partition(cores_per_replica=2, dims={"image": [1, 1, 2, 1, 1], "label": [1, 1, 2, 1, 1]})
    placed = next(loader.on_mesh(make_mesh(2, devices=jax.devices()[:2]), partition))
    assert np.array_equal(np.asarray(placed["label"]), batch["label"])
    assert {shard.data.shape for shard in placed["label"].addressable_shards} == {(2, 5, 4, 10, 3)}


# Sources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_a_body_and_its_organs_are_a_channel_each(tmp_path: Path, made: Any) -> None:
    source = series_with(tmp_path / "s", labels=made(PARTS))
    done = convert(source, tmp_path / "a", layout="dicom", classes=("right kidney", "BODY", "left kidney"))
    check(done, RIGHT, BODY, LEFT)
    assert findings(done) == {"voxels of several classes (noted)": 1}
    merged = ("left kidney=kidney", "right kidney=kidney")
    (tmp_path / "map.json").write_text('{"background": 0, "kidney": 300, "BODY": 7}')
    options = {"layout": "dicom", "label_map": str(tmp_path / "map.json")}
    done = convert(source, tmp_path / "b", map_classes=merged, **options)
    check(done, BODY, LEFT | RIGHT)
    assert done.manifest.labels == {0: "background", 7: "BODY", 300: "kidney"}
    (tmp_path / "map.json").write_text('{"background": 0, "BODY": 7}')
    with pytest.raises(JobError, match=r"unknown labels.*'left kidney', 'right kidney'"):
        convert(source, tmp_path / "c", **options)


def test_structures_that_touch_along_voxel_centers_share_them(tmp_path: Path) -> None:
    parts = {"a": box((1, 4), (2, 6), (1, 5)), "b": box((1, 4), (2, 6), (4, 8))}
    source = series_with(tmp_path / "s", labels=rtstruct_of(parts))
    options = {"layout": "dicom", "classes": ("a", "b")}
    done = convert(source, tmp_path / "a", **options)
    check(done, *parts.values())
    assert findings(done) == {"voxels of several classes (noted)": 1}
    assert findings(convert(source, tmp_path / "b", class_overlap="refuse", **options)) == {}


def test_labels_that_cannot_overlap_give_their_one_hot_form(tmp_path: Path) -> None:
    values = (500 * LEFT.astype(np.uint16)) + 600 * RIGHT.astype(np.uint16) + 7 * (BODY & ~LEFT & ~RIGHT & 1)
    table = table_of(tmp_path / "s", a=(values, AFFINE))
    options = {"layout": "csv", "task": "segmentation"}
    done = convert(table, tmp_path / "a", classes=("600", "7", "500"), **options)
    check(done, values == 600, values == 7, values == 500)
    assert findings(done) == {}


REGIONS = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4}


def nnunet(root: Path, values: NDArray[Any], labels: dict[str, Any] | None = None) -> Path:
    save_nifti(root / "imagesTr/a_0000.nii.gz", image(), AFFINE)
    save_nifti(root / "labelsTr/a.nii.gz", values, AFFINE)
    write_json(root, nnunet_document() | {"labels": labels or REGIONS})
    return root


def test_each_region_of_nnunet_is_a_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 5, SHAPE).astype(np.uint8)
    source = nnunet(tmp_path / "s", values)
    with pytest.raises(AnnotationsError, match=r"'ignore' marks .*--map-classes 'ignore=background'"):
        convert(source, tmp_path / "r", layout="nnunet")
    done = convert(source, tmp_path / "a", layout="nnunet", map_classes=("ignore=ignore",))
    (label,) = channels_by_source(done.folder).values()
    expected = [np.isin(values, found) for found in ([1, 2, 3], [2, 3], [3], [4])]
    assert np.array_equal(label, np.stack(expected, axis=-1))
    assert done.manifest.labels == {0: "background", 1: "whole", 2: "core", 3: "enhancing", 4: "ignore"}
    done = convert(
        source, tmp_path / "b", layout="nnunet", classes=("core", "whole"), map_classes=("ignore=background",)
    )
    check(done, expected[1], expected[0])
    choice = ("ignore=whole", "enhancing=background")
    done = convert(source, tmp_path / "c", layout="nnunet", map_classes=choice)
    check(done, expected[0] | expected[3], expected[1])
    (tmp_path / "map.txt").write_text("background\nenhancing\nwhole\ncore\nignore\n")
    done = convert(
        source,
        tmp_path / "d",
        layout="nnunet",
        label_map=str(tmp_path / "map.txt"),
        map_classes=("ignore=ignore",),
    )
    check(done, expected[2], expected[0], expected[1], expected[3])
    unknown = nnunet(tmp_path / "u", np.where(values == 4, 9, values))
    with pytest.raises(JobError, match=r"unknown labels.*9; known"):
        convert(unknown, tmp_path / "e", layout="nnunet", map_classes=("ignore=ignore",))
    for whole, words in (
        ([], "at least one class"),
        ([0, 1], r"whole: expected values above 0"),
        ([1, "x"], "expected a whole number"),
    ):
        odd = nnunet(tmp_path / words, values, {**REGIONS, "whole": whole})
        with pytest.raises(AnnotationsError, match=words):
            convert(odd, tmp_path / "f", layout="nnunet")
    choice = ("3=background", "ignore=background")
    with pytest.raises(AnnotationsError, match=r"3: no such class in the regions.*found whole, core"):
        convert(source, tmp_path / "g", layout="nnunet", map_classes=choice)


# What is refused, and what looks ------------------------------------------------------------------------


def test_a_reader_that_knows_no_sets_refuses_the_manifest(tmp_path, monkeypatch):
    _, done = of_masks(tmp_path, 2)
    assert read_manifest(done.folder) == done.manifest
    fewer = dataclasses.replace(done.manifest, labels={0: "background", 1: "c01"})
    with pytest.raises(ManifestError, match=r"fields\.label\.shape: expected \(.*, 1\) of segmentation"):
        Manifest.from_json(fewer.to_json())
    monkeypatch.delitem(fields.ENCODINGS, "sets")
    with pytest.raises(ManifestError, match=r"encoding: expected one of .*, got 'sets'"):
        Manifest.from_json((Path(done.folder) / "manifest.json").read_bytes())


def test_a_scan_without_label_is_zero_in_every_channel(tmp_path: Path) -> None:
    class_masks(tmp_path / "s", 2)
    save_nifti(tmp_path / "s/alone/ct.nii", image(), AFFINE)
    done = convert(tmp_path / "s", tmp_path / "o", missing_masks="prediction")
    assert rejected(done) == {}
    assert done.manifest.splits["unlabeled"].records == 1
    assert not channels_by_source(done.folder, "unlabeled")["alone/ct.nii"].any()
    assert verify(done.folder).ok and "1 without, for prediction" in describe_dataset(done.folder)


def test_verify_finds_a_bit_that_is_flipped_and_one_of_no_class(tmp_path: Path) -> None:
    _, done = of_masks(tmp_path, 3)
    assert verify(done.folder).ok, str(verify(done.folder))
    (path,) = Path(done.folder).glob("*.tfrecord-00000-of-00001")
    index = ShardIndex.from_bytes(path.with_name(index_file(path.name)).read_bytes(), "")
    data = path.read_bytes()
    unknown = "image/label: 1 in bit 5 of its sets, which is not in the m"
    for bit, words in ((1, "the records give"), (5, unknown)):
        changed = bytearray(data)
        at = int(index.raw_starts["image/label"][1]) + 37
        changed[at] ^= 1 << bit
        path.write_bytes(_sealed(changed, index, 1))
        assert re.search(words, str(verify(done.folder))), str(verify(done.folder))
        path.write_bytes(bytes(bytearray(data[:at]) + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]))
        problems = [problem for problem in verify(done.folder).problems if problem.record is not None]
        assert [problem.record for problem in problems] == [1]


def _sealed(data: bytearray, index: ShardIndex, record: int) -> bytes:
    """A shard with the checksum of one record made to fit, as a writer with a fault would leave it."""
    start = int(index.offsets[record]) + HEADER_BYTES
    stop = start + int(index.lengths[record])
    data[stop : stop + 4] = mask_crc(crc32c(bytes(data[start:stop]))).to_bytes(4, "little")
    return bytes(data)


def test_inspect_and_the_report_speak_of_classes(tmp_path: Path) -> None:
    source = series_with(tmp_path / "s", labels=seg_of(PARTS))
    done = convert(source, tmp_path / "o", layout="dicom", classes=("BODY", "left kidney", "right kidney"))
    counts = {name: int(part.sum()) for name, part in PARTS.items()}
    everything, body = BODY.size, counts["BODY"]
    text = describe_dataset(done.folder)
    for number, (name, count) in enumerate(counts.items(), start=1):
        share = rf"{100 * count / body:.1f}".removesuffix(".0")
        assert re.search(rf"{number}  {name} +1 +{count:,} +{share}", text), text
    assert f"{100 * body / everything:.1f} % of the voxels of labeled records" in text
    assert "classes overlap: a voxel counts for each" in text
    assert "channels of the label, in order: BODY, left kidney, right kidney" in text
    record = describe_record(done.folder, "train:0")
    assert f"{100 * body / everything:.1f} % of the voxels are foreground" in record
    for number, (name, count) in enumerate(counts.items(), start=1):
        assert re.search(rf"{number} +{name} +{count:,} ", record), record
    page = Path(write_report(done.folder, tmp_path / "report.html")).read_text()
    assert "Classes overlap: the class with the highest id is drawn" in page
    assert "Classes overlap: a voxel counts for each of its classes" in page
    for name, count in counts.items():
        assert name in page and f"{count:,}" in page
    assert '"label": [1, 5, 8, 9, 3], "labelled"' in html.unescape(page)
    assert "Two or more classes share voxels" in page
