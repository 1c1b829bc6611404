"""Class tables, ignored values and forms of label images in whole conversions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from halofeed.errors import AnnotationsError, JobError
from halofeed.loader import Loader
from tests.pipelines.test_ignore_label import convert, counted, draw_pictures
from tests.support.conversions import halofeed_here, run_convert
from tests.support.small_scans import AFFINE, SIZE, image, mask
from tests.support.volume_support import save_nifti

COLORS = {"cat": (128, 0, 0), "dog": (0, 128, 0)}


def square(*values: int) -> NDArray[np.uint8]:
    """One block for each value on a background of 0."""
    label = np.zeros((24, 32), np.uint8)
    for place, value in enumerate(values):
        label[3:12, 2 + 9 * place : 9 + 9 * place] = value
    return label


def draw_colors(root: Path, border: tuple[int, int, int] = (0, 0, 0)) -> Path:
    draw_pictures(root, square(1, 2))
    drawn = np.zeros((24, 32, 3), np.uint8)
    drawn[2:13, 1:20] = border
    for value, color in enumerate(COLORS.values(), 1):
        drawn[square(1, 2) == value] = color
    for path in (root / "masks").iterdir():
        Image.fromarray(drawn).save(path)
    return root


def draw_scans(root: Path, labels: NDArray[Any]) -> Path:
    for number in range(2):
        save_nifti(root / f"images/c{number}.nii.gz", image(number), AFFINE)
        save_nifti(root / f"labels/c{number}.nii.gz", labels, AFFINE)
    return root


def of_scans(source: Path, out: Path, **options: Any) -> Any:
    return run_convert(source, out, layout="pairs", task="segmentation", **SIZE, **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "labelmap.txt",
            "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:128,0,0::\ndog:0,128,0::\n",
        ),
        ("class_dict.csv", "name,r,g,b\ncat,128,0,0\ndog,0,128,0\n"),
        (
            "meta.json",
            '{"classes": [{"title": "cat", "color": "#800000"}, {"title": "dog", "color": "#008000"}]}',
        ),
    ],
)
def test_the_colors_of_a_table_beside_label_images_are_read(tmp_path, capsys, name, text) -> None:
    source = draw_colors(tmp_path / "s")
    (source / name).write_text(text)
    done = convert(source, tmp_path / "o")
    assert f"{name} names their colors" in capsys.readouterr().err
    assert done.manifest.labels == {0: "background", 1: "cat", 2: "dog"}
    assert counted(done).label_voxels == {"0": 2 * (768 - 126), "1": 126, "2": 126}
    given = convert(source, tmp_path / "p", label_map=str(source / name))
    assert given.manifest.labels == done.manifest.labels
    assert counted(given).label_voxels == counted(done).label_voxels


def test_a_table_that_lacks_a_color_is_named_with_an_option_that_works(tmp_path: Path) -> None:
    source = draw_colors(tmp_path / "s")
    (source / "class_dict.csv").write_text("name,r,g,b\ncat,128,0,0\n")
    with pytest.raises(AnnotationsError, match=r"class_dict\.csv names colors .*and not 008000") as caught:
        convert(source, tmp_path / "o")
    typed = str(caught.value).split("--label-colors '")[1].split("'")[0]
    assert convert(source, tmp_path / "p", label_colors=tuple(typed.split(","))).manifest.labels == {
        0: "background",
        1: "cat",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"label_colors": ("800000=cat", "008000=dog", "e0e0c0=255"), "ignore_label": ("255",)},
        {"label_colors": ("800000=cat", "008000=dog"), "ignore_label": ("e0e0c0",)},
        {"label_colors": ("800000=cat", "008000=dog", "e0e0c0=void"), "ignore_label": ("void",)},
    ],
)
def test_a_color_is_ignored_by_value_name_or_color(tmp_path: Path, options: dict[str, Any]) -> None:
    done = convert(draw_colors(tmp_path / "s", (224, 224, 192)), tmp_path / "o", **options)
    assert done.manifest.ignore_label == 255 and done.manifest.labels == {0: "background", 1: "cat", 2: "dog"}
    assert counted(done).label_voxels == {"0": 2 * (768 - 11 * 19), "1": 126, "2": 126}


def test_a_color_or_name_that_is_nowhere_cannot_be_ignored(tmp_path: Path) -> None:
    source = draw_pictures(tmp_path / "s", square(1, 2))
    for written, words in (("e0e0c0", "a color, and label images have values"), ("void", "no such class")):
        with pytest.raises(AnnotationsError, match=words):
            convert(source, tmp_path / "o", ignore_label=(written,))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32])
def test_negative_values_are_refused_with_two_fixes_that_work(tmp_path: Path, dtype: Any) -> None:
    labels = mask().astype(dtype)
    labels[:2] = -1
    source = draw_scans(tmp_path / "s", labels)
    with pytest.raises(JobError, match="negative values") as caught:
        of_scans(source, tmp_path / "a")
    words = str(caught.value).replace(",", " ").split()
    fixes = [
        next(word for word in words if word.startswith(start))
        for start in ("--ignore-label=", "--map-classes=")
    ]
    assert fixes == ["--ignore-label=-1", "--map-classes=-1=background"]
    expected = {str(value): 2 * int((labels == value).sum()) for value in range(3)}
    sides = [word for name, side in SIZE.items() for word in (f"--{name}", side)]
    for number, (fix, ignored) in enumerate(zip(fixes, (255, None), strict=True)):
        for typed in ([fix], fix.split("=", 1)):
            out = tmp_path / f"{number}{len(typed)}"
            done = halofeed_here("convert", "--source", source, "--out", out, "--name", "t", *sides, *typed)
            assert done.returncode == 0, done.stderr
            document = json.loads((out / "t/1.0.0/manifest.json").read_text())
            assert document.get("ignore_label") == ignored
            found = document["splits"]["train"]["statistics"]["label_voxels"]
            background = expected["0"] + (2 * int((labels == -1).sum()) if ignored is None else 0)
            assert found == expected | {"0": background}


def test_several_values_are_ignored_and_stored_as_one(tmp_path: Path) -> None:
    labels = mask(classes=3).astype(np.int16)
    labels[0], labels[1] = -1, 255
    done = of_scans(draw_scans(tmp_path / "s", labels), tmp_path / "o", ignore_label=("-1", "255"))
    assert done.manifest.ignore_label == 255 and set(done.manifest.labels) == {0, 1, 2}
    assert sum(counted(done).label_voxels.values()) == 2 * labels[2:].size


def test_objects_of_nndetection_become_their_classes(tmp_path: Path) -> None:
    labels = mask(classes=4)
    source = draw_scans(tmp_path / "s", labels)
    for number in range(2):
        classes = {"1": 0, "2": 1, "3": number}
        (source / f"labels/c{number}.json").write_text(json.dumps({"instances": classes}))
    done = of_scans(source, tmp_path / "o")
    ones, twos, threes = (int((labels == value).sum()) for value in (1, 2, 3))
    assert counted(done).label_voxels == {
        "0": 2 * int((labels == 0).sum()),
        "1": 2 * ones + threes,
        "2": 2 * twos + threes,
    }
    names = tmp_path / "dataset.json"
    names.write_text('{"labels": {"0": "cyst", "1": "clot"}, "dim": 3}')
    named = of_scans(source, tmp_path / "n", label_map=str(names)).manifest
    assert named.labels == {0: "background", 1: "cyst", 2: "clot"}
    (source / "labels/c0.json").write_text('{"instances": {"1": 0}}')
    with pytest.raises(JobError, match=r"has no class .*2, 3; labels/c0\.json gives the classes of 1"):
        of_scans(source, tmp_path / "p", max_rejected=0)


def test_a_list_without_background_is_refused_where_0_is_the_background(tmp_path: Path) -> None:
    source = draw_pictures(tmp_path / "s", square(1))
    names = tmp_path / "classes.txt"
    names.write_text("cat\ndog\n")
    with pytest.raises(AnnotationsError, match="value 0 would be 'cat'"):
        convert(source, tmp_path / "o", label_map=str(names))
    with pytest.raises(AnnotationsError, match="value 0 would be 'cat'"):
        of_scans(draw_scans(tmp_path / "v", mask(classes=2)), tmp_path / "o", label_map=str(names))
    names.write_text("background\ncat\ndog\n")
    assert convert(source, tmp_path / "p", label_map=str(names)).manifest.labels[1] == "cat"
    insisted = tmp_path / "classes.json"
    insisted.write_text('{"cat": 0, "dog": 1}')
    assert convert(source, tmp_path / "q", label_map=str(insisted)).manifest.labels[0] == "cat"
    full = draw_pictures(tmp_path / "f", np.where(square(1) > 0, 0, 1).astype(np.uint8))
    names.write_text("road\nsky\n")
    assert convert(full, tmp_path / "r", label_map=str(names)).manifest.labels == {0: "road", 1: "sky"}


def test_the_first_name_of_a_list_can_be_said_to_be_the_background(tmp_path: Path) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("BG\ncat\ndog\n")
    fix = {"label_map": str(names), "map_classes": ("BG=background",)}
    source = draw_pictures(tmp_path / "s", square(1, 2))
    with pytest.raises(AnnotationsError, match="--map-classes 'BG=background'"):
        convert(source, tmp_path / "o", label_map=str(names))
    assert convert(source, tmp_path / "p", **fix).manifest.labels == {0: "background", 1: "cat", 2: "dog"}
    scans = draw_scans(tmp_path / "v", mask(classes=3))
    assert of_scans(scans, tmp_path / "q", **fix).manifest.labels == {0: "background", 1: "cat", 2: "dog"}


def test_shrunk_masks_of_clips_are_read_by_their_gray_values(tmp_path: Path) -> None:
    expected = {"0": 0, "2": 0, "17": 0}
    for frame in range(4):
        label = square(17) if frame == 2 else square(2, 17)
        for clip in "ab":
            for folder in ("images", "labels"):
                (tmp_path / "s" / folder / clip).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((24, 32, 3), 9 * frame, np.uint8)).save(
                tmp_path / f"s/images/{clip}/{frame}.png"
            )
            path = tmp_path / f"s/labels/{clip}/{frame}.png"
            if frame == 2:
                write_palette(path, label)
            else:
                Image.fromarray(label).save(path)
            for value in expected:
                expected[value] += int((label == int(value)).sum())
    done = convert(tmp_path / "s", tmp_path / "o", frames=2, resize="fixed-shape")
    assert counted(done).label_voxels == expected


def write_bits(path: Path, label: NDArray[np.uint8]) -> None:
    """Write a mask with 1 bit: numbers above 0 are shown as 255."""
    Image.fromarray(label > 0).save(path)


def write_palette(path: Path, label: NDArray[np.uint8]) -> None:
    """Write the fewest numbers with a palette of their grays, as a lossless optimizer does."""
    values, numbers = np.unique(label, return_inverse=True)
    drawn = Image.fromarray(numbers.reshape(label.shape).astype(np.uint8), "P")
    drawn.putpalette([gray for value in values.tolist() for gray in (value,) * 3])
    drawn.save(path)


def test_gray_values_are_taken_where_the_set_proves_that_files_were_shrunk(tmp_path, capsys) -> None:
    source = draw_pictures(tmp_path / "s", square(1, 2, 17), count=3)
    write_palette(source / "masks/1.png", square(17))
    write_palette(source / "masks/2.png", square(2, 17))
    done = convert(source, tmp_path / "o")
    assert "their gray values are the classes" in capsys.readouterr().err
    assert counted(done).label_voxels == {"0": 3 * 768 - 63 * 6, "1": 63, "2": 126, "17": 189}
    one_form = draw_pictures(tmp_path / "p", square(1, 2), palette=[0, 0, 0, 50, 50, 50, 90, 90, 90])
    assert set(convert(one_form, tmp_path / "q").manifest.labels) == {0, 1, 2}


@pytest.mark.parametrize(("value", "proves"), [(255, True), (1, False)])
def test_masks_of_1_bit_beside_masks_of_8(tmp_path: Path, value: int, proves: bool) -> None:
    source = draw_pictures(tmp_path / "s", square(value), count=3)
    write_bits(source / "masks/0.png", square(value))
    if proves:
        assert counted(convert(source, tmp_path / "o")).label_voxels == {"0": 3 * 705, "1": 189}
        return
    with pytest.raises(AnnotationsError, match=r"masks/0\.png and masks/1\.png: .*--label-values stored"):
        convert(source, tmp_path / "o")
    done = convert(source, tmp_path / "p", label_values="stored")
    assert counted(done).label_voxels == {"0": 3 * 705, "1": 189}


def test_a_file_of_another_form_than_planning_saw_is_rejected(tmp_path: Path) -> None:
    source = draw_pictures(tmp_path / "s", square(1, 2), count=70)
    write_palette(source / "masks/99.png", square(2))
    (source / "masks/99.png").replace(source / "masks/9.png")
    with pytest.raises(JobError, match=r"another form than those before it .*--label-values shown"):
        convert(source, tmp_path / "o", max_rejected=0)
    done = convert(source, tmp_path / "p", label_values="shown")
    assert counted(done).label_voxels["2"] == 70 * 63


def test_nnunets_ignore_is_ignored_also_with_regions(tmp_path: Path) -> None:
    source = tmp_path / "s"
    labels = mask(classes=4)
    save_nifti(source / "imagesTr/a_0000.nii.gz", image(), AFFINE)
    save_nifti(source / "labelsTr/a.nii.gz", labels, AFFINE)
    for name, classes, options in (
        ("a", {"background": 0, "liver": 1, "tumor": 2, "ignore": 3}, {}),
        ("b", {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}, {"regions": "combine"}),
    ):
        document = {
            "channel_names": {"0": "CT"},
            "labels": classes,
            "numTraining": 1,
            "file_ending": ".nii.gz",
        }
        (source / "dataset.json").write_text(json.dumps(document))
        done = run_convert(source, tmp_path / name, layout="nnunet", **SIZE, **options)
        assert done.manifest.ignore_label == 3 and set(done.manifest.labels) == {0, 1, 2}
        kept = run_convert(
            source, tmp_path / f"{name}2", layout="nnunet", map_classes=("ignore=ignore",), **SIZE, **options
        )
        assert kept.manifest.ignore_label is None and kept.manifest.labels[3] == "ignore"


def draw_palettes(root: Path, *orders: tuple[int, int, int]) -> Path:
    """Label images of a red and a green object, whose palettes have black, red and green in the given places."""
    draw_pictures(root, square(1, 2))
    for path, order in zip(sorted((root / "masks").iterdir()), orders, strict=True):
        colored = Image.fromarray(np.array(order, np.uint8)[square(1, 2)], "P")
        palette = [0] * 9
        for place, color in zip(order, ((0, 0, 0), (255, 0, 0), (0, 255, 0)), strict=True):
            palette[3 * place : 3 * place + 3] = color
        colored.putpalette(palette)
        colored.save(path)
    return root


def test_palettes_in_another_order_are_refused_with_options_that_take_colors_or_numbers(tmp_path):
    source = draw_palettes(tmp_path / "source", (0, 1, 2), (0, 2, 1))
    with pytest.raises(
        AnnotationsError, match="color 00ff00 of the palette has number 2 in the first"
    ) as caught:
        convert(source, tmp_path / "refused")
    assert "--label-colors 00ff00=class1,ff0000=class2" in str(caught.value)
    named = convert(source, tmp_path / "colors", label_colors=("00ff00=class1", "ff0000=class2"))
    loader = Loader(named.folder, split="train", batch_size=1, training=False)
    assert all(np.array_equal(record["label"], square(2, 1)) for record in loader.records)
    assert convert(source, tmp_path / "numbers", label_values="stored").manifest.labels
    alike = draw_palettes(tmp_path / "alike", (0, 2, 1), (0, 2, 1))
    assert convert(alike, tmp_path / "one palette").manifest.labels
