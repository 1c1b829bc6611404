"""Options of a conversion that are wrong, or would change nothing, are refused with what to do."""

import dataclasses

import pytest

from halofeed.cli import main
from halofeed.errors import UsageError
from halofeed.prep.options.option import flag
from halofeed.prep.options.recipe import Recipe

KEEP = {"resize": "keep-aspect", "encoding": "jpeg"}
BOXES = {"max_boxes": 5, "boxes_outside": "drop", "boxes_zero_area": "keep", "boxes_crowd": "drop"}

IDLE = [
    ({"height": 5, "width": 6}, KEEP, "--resize fixed-shape"),
    ({"pad_value": (1, 2, 3)}, KEEP, "--pad"),
    ({"jpeg_quality": 80}, {"encoding": "raw"}, "--encoding jpeg"),
    ({"image_sets": ("test",), "box_origin": 0}, {"layout": "coco"}, "--layout voc"),
    ({"split_folders": "yes"}, {"layout": "csv"}, "--layout folders"),
    ({"split_seed": 3}, {}, "--split-shares"),
    (BOXES | {"boxes_difficult": "drop"}, {"layout": "csv", "task": "classification"}, "--task detection"),
    (BOXES, {"layout": "folders"}, "boxes"),
]
IN_USE = [
    {"height": 5, "width": 6, "interpolation": "tf2-area", "layout": "csv"} | BOXES,
    KEEP | {"min_dimension": 5, "max_dimension": 50, "jpeg_quality": 80, "layout": "coco"} | BOXES,
    {"resize": "keep-aspect", "pad": True, "pad_value": (1, 2, 3), "layout": "voc", "box_origin": 0},
    {"image_sets": ("test",), "layout": "voc", "task": "detection", "boxes_difficult": "drop"},
    {"split_folders": "yes", "layout": "folders", "split_shares": ("a=1",), "split_seed": 3},
    {"alpha": "blend", "background": (9, 9, 9)},
    {"resize": "none", "encoding": "png"},
]


LABELED = {"layout": "csv", "task": "segmentation"}
IDLE += [
    *((given, LABELED, "--depth") for given in ({"spacing_mm": (1.0, 1.0, 1.0)}, {"window_hu": (0.0, 1.0)})),
    *((given, LABELED, "--depth") for given in ({"fit": "stretch"}, {"crop_foreground": True})),
    ({"center": "label"}, {**LABELED, "depth": 4, "fit": "tiles"}, "--fit crop-or-pad"),
    ({"annotation_grid": "displayed"}, {"layout": "csv", "depth": 4}, "with --depth; leave one of them out"),
    ({"missing_classes": "empty"}, {"layout": "msd", "depth": 4}, "--layout class-masks, bids"),
    (
        {"several_masks": "merge"},
        {"layout": "msd", "depth": 4},
        "--layout pairs, class-masks, dicom, csv or jsonl",
    ),
    (
        {"image_pattern": "{id}.nii"},
        {**LABELED, "depth": 4},
        "--layout pairs, class-masks, object-masks, bids or dicom",
    ),
]


@pytest.mark.parametrize(("idle", "others", "needs"), IDLE, ids=[str(idle) for idle, *_ in IDLE])
def test_an_option_without_effect_is_told_with_what_it_needs(idle, others, needs):
    with pytest.raises(UsageError, match="has no effect with") as caught:
        Recipe(**idle, **others).check_used()
    lines = str(caught.value).splitlines()
    in_order = [field.name for field in dataclasses.fields(Recipe) if field.name in idle]
    assert [line.split()[0] for line in lines] == [flag(name) for name in in_order]
    assert all(needs in line and " out" in line for line in lines), lines


@pytest.mark.parametrize("given", IN_USE)
def test_options_that_are_used_are_no_trouble(given):
    Recipe(**given).check_used()


def test_every_wrong_or_idle_option_is_told_at_once_and_overlaps_need_labels():
    with pytest.raises(UsageError) as caught:
        Recipe(layout="coco", split_seed=1, jpeg_quality=3, split_folders="no").check_used()
    assert len(str(caught.value).splitlines()) == 3
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    Recipe(**defaults | KEEP | {"layout": "folders"}).check_used()
    with pytest.raises(UsageError) as caught:
        Recipe(**TABLE | {"spacing_mm": (1.0,), "encoding": "jpeg", "channels": -2, "window": "belly"})
    assert len(str(caught.value).splitlines()) == 4
    with pytest.raises(UsageError, match="has no effect without labels of voxels or pixels"):
        Recipe(layout="folders", class_overlap="last").check_used()
    for given in ({"classes": ("a",)}, {"map_classes": ("a=b",)}, {"class_overlap": "last"}):
        Recipe(layout="class-masks", depth=4, **given).check_used()


SIZE = {"depth": 4, "height": 6, "width": 8}
TABLE = {"layout": "csv", "task": "segmentation"} | SIZE

WRONG = [
    ({"depth": 0}, "--depth 0: expected 1 or more"),
    ({"spacing_mm": (2.0, 1.0)}, "--spacing-mm 2,1: expected three lengths: depth,height,width"),
    ({"spacing_mm": (2.0, 0.0, 1.0)}, "--spacing-mm 2,0,1: expected three lengths"),
    ({"fit": "tiles", "tile_overlap": (4, 0, 0)}, "--tile-overlap (4, 0, 0): expected less than (4, 6, 8)"),
    ({"fit": "tiles", "tile_overlap": (-1, 0, 0)}, "--tile-overlap -1,0,0: expected three counts"),
    ({"fit": "squeeze"}, "--fit 'squeeze': expected one of crop-or-pad, stretch, tiles"),
    ({"window_hu": (240.0, -160.0)}, "--window-hu 240,-160: expected a low and a higher end"),
    ({"window_hu": (240.0,)}, "--window-hu 240: expected a low and a higher end"),
    ({"window_percentiles": (-1.0, 99.0)}, "--window-percentiles -1,99: expected 0 to 100"),
    ({"window_percentiles": (1.0, 101.0)}, "--window-percentiles 1,101: expected 0 to 100"),
    ({"window": "belly"}, "--window: window 'belly' is not known; choose from abdomen (-160 to 240 HU)"),
    ({"window": "40/-400"}, "--window: window: expected a low below a high, got 240.0 and -160.0"),
    ({"window": "40/wide"}, "--window: expected a name or center/width, got '40/wide'"),
    ({"dtype": "uint16"}, "--dtype uint16: expected one of int16, uint8, float32, bfloat16 for volumes"),
    ({"channels": -1}, "--channels -1: expected 1 or more"),
    ({"pad_value": (1, 2)}, "--pad-value: expected 1 or 1 value, got 2"),
    ({"map_classes": ("a",)}, "expected FROM=TO"),
    ({"map_classes": ("a=",)}, "expected FROM=TO"),
    ({"map_classes": ("a=b", "a=c")}, "a comes twice"),
    ({"classes": ("a", "b", "a")}, "--classes: expected different names, got a,b,a"),
    ({"refuse_flaws": ("tilt", "salt")}, "--refuse-flaws 'salt': expected some of tilt, unequal-gaps"),
    ({"spacing_mm": (float("nan"), 1.0, 1.0)}, "--spacing-mm nan,1,1: expected three lengths"),
    ({"fit": "tiles", "tile_overlap": (1, 1)}, "--tile-overlap 1,1: expected three counts"),
    ({"window_hu": (float("nan"), 1.0)}, "--window-hu nan,1: expected a low and a higher end"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_a_wrong_option_is_refused_with_what_was_expected(options, message):
    with pytest.raises(UsageError) as caught:
        Recipe(**{**TABLE, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize("layout", ["pairs", "class-masks", "dicom", "csv", "jsonl"])
def test_every_layout_takes_the_options_that_its_messages_name(layout):
    Recipe(layout=layout, task="segmentation", depth=4, missing_classes="empty").check_used()
    if layout not in ("csv", "jsonl"):
        patterns = {"image_pattern": "{id}/ct", "label_pattern": "{class}/{id}.nii"}
        Recipe(layout=layout, depth=4, **patterns).check_used()


def test_defaults_follow_depth_and_window_also_of_a_recipe_of_an_earlier_version():
    plain, windowed = Recipe(**TABLE), Recipe(**TABLE, window="abdomen")
    assert (plain.dtype, plain.channels, plain.pad_value, plain.interpolation) == ("int16", 1, (), "linear")
    assert windowed.dtype == "uint8" and windowed.fixed_window() is not None
    assert Recipe.from_json(windowed.to_json()) == windowed
    picture = Recipe(layout="csv", task="segmentation")
    assert (picture.dtype, picture.channels, picture.pad_value) == ("uint8", 3, (0,))
    assert picture.interpolation == "antialias"
    options = {"depth": None, "store": "uint8", "kernel": "tf2-area", "interpolation": "linear"}
    assert Recipe.from_json(options) == Recipe(interpolation="tf2-area")
    volumes = {"depth": 4, "store": "int16", "kernel": "antialias", "interpolation": "cubic"}
    assert Recipe.from_json(volumes) == Recipe(depth=4, interpolation="cubic")
    with pytest.raises(UsageError, match="--interpolation linear: expected one of antialias, tf1-"):
        Recipe(frames=4, interpolation="linear")


COMMANDS = [
    ("--depth 4 --store uint8", "--dtype uint8 needs a window"),
    ("--depth 4 --spacing-mm 1,x,2", "argument --spacing-mm"),
    ("--depth four", "argument --depth: expected a whole number, got 'four'"),
    ("--depth 4 --interpolation spline", "argument --interpolation: invalid choice: 'spline'"),
    ("--depth 4 --interpolation tf2-area", "tf2-area: expected one of linear, cubic for volumes"),
    ("--kernel cubic", "--interpolation cubic: expected one of antialias, tf1-bilinear"),
    ("--depth 4 --kernel cubic", "--depth: volumes have no default size; give --height and --width too"),
    ("--kernel tf2-area", "--source /nowhere: no such folder or file"),
    ("--depth 4 --height 8 --width 8 --window-hu -160,240", "--source /nowhere: no such folder or file"),
    ("--depth 4 --height 8 --width 8 --pad-value -1024", "--source /nowhere: no such folder or file"),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS)
def test_the_command_line_ends_with_2_and_says_what_is_wrong(words, message, capsys, tmp_path):
    given = ["convert", "--layout", "csv", "--task", "segmentation", "--source", "/nowhere"]
    assert main([*given, "--out", str(tmp_path), "--name", "set", *words.split()]) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told
    assert not [*tmp_path.iterdir()]
