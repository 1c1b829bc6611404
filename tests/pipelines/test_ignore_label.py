"""The ignore label stays apart from classes, from the file to the metrics."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from halofeed.errors import JobError, ManifestError, SourceError
from halofeed.inspection.verify import verify
from halofeed.loader import Loader, RandomCrop, RandomRotation
from halofeed.pipelines.summary import summary
from halofeed.prep.convert.label_image import read_label_image
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Statistics
from tests.support.conversions import edited, run_convert
from tests.support.small_scans import AFFINE, SIZE, image, mask
from tests.support.volume_support import by_name, save_nifti, write_table

VOID = 255


def voc_colors() -> list[int]:
    """VOC's own palette: three bits of an index at a time are the highest bits of a color."""
    colors = []
    for index in range(256):
        bits = [(index >> bit) & 1 for bit in range(9)]
        colors += [sum(bits[color + 3 * place] << (7 - place) for place in range(3)) for color in range(3)]
    return colors


def draw_pictures(root: Path, label: NDArray[np.uint8], palette: Any = None, count: int = 2) -> Path:
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (*label.shape, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"images/{number}.png")
        drawn = Image.fromarray(label)
        if palette is not None:
            drawn = Image.fromarray(label, "P")
            drawn.putpalette(palette)
        drawn.save(root / f"masks/{number}.png")
    return root


def ring() -> NDArray[np.uint8]:
    label = np.zeros((24, 32), np.uint8)
    label[4:20, 4:28] = VOID
    label[6:18, 6:26] = 2
    return label


def convert(source: Path, out: Path, **options: Any) -> Any:
    given = {"layout": "pairs", "task": "segmentation", "height": 24, "width": 32, **options}
    return run_convert(source, out, **given)


def counted(done: Any) -> Statistics:
    return Statistics.total(split.statistics for split in done.manifest.splits.values())


def test_the_void_of_voc_is_ignored_by_default_and_with_a_word(tmp_path, capsys):
    done = convert(draw_pictures(tmp_path / "s", ring(), voc_colors()), tmp_path / "o")
    assert "masks/0.png is a label image of PASCAL VOC" in capsys.readouterr().err
    loader = Loader(done.folder, split="train", batch_size=1, training=False)
    assert loader.ignore_label == VOID and loader.manifest.labels == {0: "background", 2: "2"}
    assert np.array_equal(loader.records[0]["label"], ring())
    assert counted(done).label_voxels == {"0": 2 * (24 * 32 - 16 * 24), "2": 2 * 12 * 20}
    assert not verify(done.folder).problems
    as_class = convert(tmp_path / "s", tmp_path / "p", map_classes=("255=255",))
    assert as_class.manifest.ignore_label is None and VOID in as_class.manifest.labels


@pytest.mark.parametrize(("value", "stored"), [(255, 255), (2, 2), (0, 255)])
def test_every_value_can_be_ignored_and_no_class_becomes_it(tmp_path: Path, value: int, stored: int) -> None:
    options = {"map_classes": ("2=two", "255=border")} if not value else {}
    done = convert(draw_pictures(tmp_path / "s", ring()), tmp_path / "o", ignore_label=value, **options)
    label = Loader(done.folder, split="train", batch_size=1, training=False).records[0]["label"]
    assert done.manifest.ignore_label == stored and stored not in done.manifest.labels
    assert np.array_equal(label == stored, ring() == value)


def test_the_manifest_says_nothing_where_nothing_is_ignored_and_holds_no_nonsense(tmp_path: Path) -> None:
    plain = convert(draw_pictures(tmp_path / "s", ring()), tmp_path / "o", map_classes=("255=7",))
    assert "ignore_label" not in plain.manifest.to_json()
    done = convert(tmp_path / "s", tmp_path / "p", ignore_label=VOID)
    assert Manifest.from_json(done.manifest.to_json()).ignore_label == VOID
    with edited(Path(done.folder) / "manifest.json") as document:
        document["ignore_label"] = 2
    with pytest.raises(ManifestError, match="ignore_label: expected the id of no class"):
        Loader(done.folder, split="train", batch_size=1)


def test_padding_and_what_rotation_brings_in_are_ignored(tmp_path: Path) -> None:
    source = draw_pictures(tmp_path / "s", ring())
    sizing = {"resize": "keep-aspect", "min_dimension": 24, "max_dimension": 32, "pad": True}
    done = convert(source, tmp_path / "o", ignore_label=VOID, **sizing)
    label = Loader(done.folder, split="train", batch_size=1, training=False).records[0]["label"]
    assert (label[24:] == VOID).all() and np.array_equal(label[:24], ring())
    turn = RandomRotation(degrees=45, probability=1)
    turned = Loader(done.folder, split="train", batch_size=2, augment=[turn])
    for step in range(4):
        assert set(np.unique(turned.batch(step)["label"])) <= {0, 2, VOID}
    corner = [turned.batch(step)["label"][:, 0, 0] for step in range(4)]
    assert (np.stack(corner) == VOID).mean() > 0.5


def test_crops_about_the_foreground_and_draws_by_class_pass_over_what_is_ignored(tmp_path: Path) -> None:
    label = np.zeros((24, 32), np.uint8)
    label[:, :20] = VOID
    label[20:, 28:] = 1
    done = convert(draw_pictures(tmp_path / "s", label), tmp_path / "o", ignore_label=VOID)
    crop = RandomCrop(4, 4, foreground=1.0)
    loader = Loader(done.folder, split="train", batch_size=2, augment=[crop], draw_by="class")
    assert all((loader.batch(step)["label"] == 1).any(axis=(1, 2)).all() for step in range(6))


def test_volumes_leave_it_out_of_coverage_values_and_padding(tmp_path: Path) -> None:
    label = mask()
    label[0] = VOID
    save_nifti(tmp_path / "s/a.nii", image(), AFFINE)
    save_nifti(tmp_path / "s/a_mask.nii", label, AFFINE)
    source = write_table(tmp_path / "s", [("x", "a.nii", "a_mask.nii")])
    options = {**SIZE, "depth": 7, "layout": "csv", "task": "segmentation", "ignore_label": VOID}
    done = run_convert(source, tmp_path / "o", **options)
    stored = by_name(done)["a.nii"].label
    assert np.array_equal(stored[1:6], label) and (stored[[0, 6]] == VOID).all()
    found = counted(done)
    assert set(found.label_voxels or {}) == {"0", "1", "2"} == {"0", *(found.label_mm3 or {})}
    assert found.foreground_voxels == np.isin(label, (1, 2)).sum() and not verify(done.folder).problems
    moved = run_convert(source, tmp_path / "p", **options, spacing_mm=(2, 1.5, 1.7))
    assert set(np.unique(by_name(moved)["a.nii"].label)) == {0, 1, 2, VOID}


def test_masks_of_0_and_255_are_one_class_and_255_beside_classes_has_to_be_told(tmp_path, capsys):
    done = convert(draw_pictures(tmp_path / "s", np.uint8(VOID) * (ring() == 2)), tmp_path / "o")
    assert done.manifest.labels == {0: "background", 1: "foreground"}
    assert "255 is class 1, foreground; --map-classes 255=NAME" in capsys.readouterr().err
    assert counted(done).label_voxels == {"0": 2 * (24 * 32 - 240), "1": 480}
    done = convert(tmp_path / "s", tmp_path / "p", map_classes=("255=car",))
    assert done.manifest.labels == {0: "background", 1: "car"}
    both = draw_pictures(tmp_path / "t", ring())
    assert convert(both, tmp_path / "r", map_classes=("255=255",)).manifest.labels.keys() == {0, 2, VOID}
    draw_pictures(tmp_path / "u", (ring() == 2).astype(np.uint8), count=9)
    for folder in ("images", "masks"):  # a picture beyond those that are looked at first
        (tmp_path / f"u/{folder}/0.png").rename(tmp_path / f"u/{folder}/9.png")
    Image.fromarray(ring()).save(tmp_path / "u/masks/9.png")
    with pytest.raises(JobError, match="--ignore-label 255 ignores it"):
        convert(tmp_path / "u", tmp_path / "v")


def test_values_that_nobody_drew_are_refused_with_a_choice_that_works(tmp_path: Path) -> None:
    drawn = Image.fromarray(np.uint8(100) * (ring() == 2))
    smooth = Image.Resampling.BILINEAR
    blended = np.asarray(drawn.resize((96, 72), smooth).rotate(20, smooth))
    done = convert(
        draw_pictures(tmp_path / "s", blended), tmp_path / "p", height=72, width=96, classes=("100",)
    )
    assert counted(done).label_voxels == {"0": 2 * (blended != 100).sum(), "1": 2 * (blended == 100).sum()}
    save_nifti(tmp_path / "v/a.nii", np.zeros((3, 72, 96), np.int16), AFFINE)
    save_nifti(tmp_path / "v/a_mask.nii", np.stack([blended] * 3), AFFINE)
    write_table(tmp_path / "v", [("x", "a.nii", "a_mask.nii")])
    options = {"depth": 3, "height": 72, "width": 96, "layout": "csv", "task": "segmentation"}
    with pytest.raises(JobError, match=r"(?s)values that nobody drew.*a_mask.nii.*--classes 100\)"):
        run_convert(tmp_path / "v", tmp_path / "w", **options)
    done = run_convert(tmp_path / "v", tmp_path / "x", classes=("100",), **options)
    assert counted(done).label_voxels == {"0": 3 * (blended != 100).sum(), "1": 3 * (blended == 100).sum()}


def test_label_images_without_loss_are_read_in_every_format_and_others_are_refused(tmp_path: Path) -> None:
    expected = np.where(ring() == VOID, 1, ring()).astype(np.uint8)
    gray = Image.fromarray(expected)
    forms: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "lzw.tif": (gray, {"compression": "tiff_lzw"}),
        "wide.tiff": (Image.fromarray(expected.astype(np.uint16)), {}),
        "color.tif": (gray.convert("RGB"), {"compression": "tiff_adobe_deflate"}),
        "gray.bmp": (gray, {}),
        "color.bmp": (gray.convert("RGB"), {}),
        "gray.gif": (gray, {}),
        "color.png": (gray.convert("RGB"), {}),
        "alpha.png": (gray.convert("RGBA"), {}),
        "both.png": (gray.convert("LA"), {}),
    }
    for name, (drawn, options) in forms.items():
        drawn.save(tmp_path / name, **options)
        assert np.array_equal(read_label_image((tmp_path / name).read_bytes(), 10**6), expected), name
    colors = Image.fromarray(expected, "P")
    colors.putpalette(voc_colors())
    bad: dict[str, tuple[Image.Image, dict[str, Any], str]] = {
        "a.jpg": (gray, {}, "it is a JPEG, which is stored with loss"),
        "b.tif": (gray.convert("RGB"), {"compression": "jpeg"}, "stored with loss"),
        "c.tif": (gray, {"save_all": True, "append_images": [gray]}, "holds several pictures"),
        "d.gif": (gray, {"save_all": True, "append_images": [gray.rotate(90)]}, "holds several pictures"),
        "e.gif": (colors, {}, "palette of colors"),
        "g.png": (Image.merge("LA", (gray, gray)), {}, "transparent in places"),
        "h.webp": (gray, {"lossless": True}, "begins with"),
        "i.tif": (gray, {"tiffinfo": {274: 6}}, "turned"),
    }
    for name, (drawn, options, words) in bad.items():
        drawn.save(tmp_path / name, **options)
        with pytest.raises(SourceError, match=words) as caught:
            read_label_image((tmp_path / name).read_bytes(), 10**6)
        assert "save it as an 8-bit PNG" in str(caught.value), name


def test_the_classes_of_roboflow_and_masks_named_by_their_picture_are_read(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "s", ring())
    (tmp_path / "t/train").mkdir(parents=True)
    for number in range(2):
        (tmp_path / f"s/masks/{number}.png").rename(tmp_path / f"t/train/{number}_mask.png")
        Image.open(tmp_path / f"s/images/{number}.png").save(tmp_path / f"t/train/{number}.jpg")
    classes = tmp_path / "t/train/_classes.csv"
    classes.write_text("Pixel Value, Class\n0, background\n2, car\n255, edge\n")
    expected = {0: "background", 2: "car", VOID: "edge"}
    assert convert(tmp_path / "t", tmp_path / "o").manifest.labels == expected
    assert convert(tmp_path / "t", tmp_path / "p", label_map=str(classes)).manifest.labels == expected
    ignoring = convert(tmp_path / "t", tmp_path / "q", ignore_label=VOID).manifest
    assert (ignoring.labels, ignoring.ignore_label) == ({0: "background", 2: "car"}, VOID)


def test_lists_of_splits_that_are_not_used_are_said_with_the_option_that_uses_them(tmp_path, capsys):
    draw_pictures(tmp_path / "s", ring())
    for number, split in enumerate(("train", "val")):
        (tmp_path / "s/ImageSets").mkdir(exist_ok=True)
        (tmp_path / f"s/ImageSets/{split}.txt").write_text(f"{number}\n")
    convert(tmp_path / "s", tmp_path / "o", ignore_label=VOID)
    found = re.search("with --split-lists (.*)", capsys.readouterr().err)
    assert found is not None
    done = convert(tmp_path / "s", tmp_path / "p", split_lists=tuple(found[1].split(",")), ignore_label=VOID)
    assert {name: split.records for name, split in done.manifest.splits.items()} == {"train": 1, "val": 1}
    assert "ImageSets" not in capsys.readouterr().err
    (tmp_path / "s/t.csv").write_text("filename,class,split\nimages/valid/0.png,hat,val\n")
    (tmp_path / "s/images/valid").mkdir()
    (tmp_path / "s/images/0.png").rename(tmp_path / "s/images/valid/0.png")
    run_convert(tmp_path / "s/t.csv", tmp_path / "q", layout="csv")
    assert "images in the folder valid are in the split val" in capsys.readouterr().err


def test_images_without_any_label_are_said_at_once(tmp_path: Path, capsys: Any) -> None:
    save_nifti(tmp_path / "s/a.nii", image(), AFFINE)
    write_table(tmp_path / "s", [("x", "a.nii", "")])
    done = run_convert(tmp_path / "s", tmp_path / "o", task="segmentation", layout="csv", **SIZE)
    assert "no label for 1 image," in capsys.readouterr().err
    assert "segmentation, no labels" in summary(done)
    expected = {"task": "segmentation", "layout": "csv", "missing_masks": "prediction"}
    run_convert(tmp_path / "s", tmp_path / "expected", **expected, **SIZE)
    assert "no label" not in capsys.readouterr().err
