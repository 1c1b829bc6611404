"""Which options of a conversion would change nothing, and are they told rather than passed over?"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from halofeed.prep.options.option import flag
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.errors import UsageError

KEEP = {"resize": "keep-aspect", "encoding": "jpeg"}
BOXES = {"max_boxes": 5, "boxes_outside": "drop", "boxes_zero_area": "keep", "boxes_crowd": "drop"}

IDLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"height": 5, "width": 6}, KEEP, "--resize fixed-shape"),
    ({"height": 5}, {"resize": "none", "encoding": "png"}, "--resize fixed-shape"),
    ({"min_dimension": 5, "max_dimension": 50}, {"resize": "fixed-shape"}, "--resize keep-aspect"),
    ({"interpolation": "tf2-area"}, {"resize": "none", "encoding": "png"}, "fixed-shape or keep-aspect"),
    ({"pad_value": (1, 2, 3)}, KEEP, "--pad"),
    ({"jpeg_quality": 80}, {"encoding": "raw"}, "--encoding jpeg"),
    ({"jpeg_quality": 80}, {"encoding": "png"}, "--encoding jpeg"),
    ({"image_sets": ("test",), "box_origin": 0}, {"layout": "coco"}, "--layout voc"),
    ({"split_folders": "yes"}, {"layout": "csv"}, "--layout folders"),
    ({"split_seed": 3}, {}, "--split-shares"),
    ({"background": (9, 9, 9)}, {"alpha": "drop"}, "--alpha blend"),
    ({"alpha": "blend"}, {"channels": 4}, "--channels 1 or 3"),
    (BOXES | {"boxes_difficult": "drop"}, {"layout": "csv", "task": "classification"}, "--task detection"),
    (BOXES, {"layout": "folders"}, "boxes"),
]
IN_USE: list[dict[str, Any]] = [
    {"height": 5, "width": 6, "interpolation": "tf2-area", "layout": "csv"} | BOXES,
    KEEP | {"min_dimension": 5, "max_dimension": 50, "jpeg_quality": 80, "layout": "coco"} | BOXES,
    {"resize": "keep-aspect", "pad": True, "pad_value": (1, 2, 3), "layout": "voc", "box_origin": 0},
    {"image_sets": ("test",), "layout": "voc", "task": "detection", "boxes_difficult": "drop"},
    {"split_folders": "yes", "layout": "folders", "split_shares": ("a=1",), "split_seed": 3},
    {"alpha": "blend", "background": (9, 9, 9)},
    {"resize": "none", "encoding": "png"},
]


@pytest.mark.parametrize(("idle", "others", "needs"), IDLE)
def test_an_option_without_effect_is_told_with_what_it_needs(idle, others, needs):
    with pytest.raises(UsageError) as caught:
        Recipe(**idle, **others).check_used()
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == [flag(name) for name in _in_order(idle)]
    assert all(needs in line and "leave it out" in line for line in lines), lines


def _in_order(names: dict[str, Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(Recipe) if field.name in names]


@pytest.mark.parametrize("given", IN_USE)
def test_options_that_are_used_are_no_trouble(given):
    Recipe(**given).check_used()


def test_every_idle_option_is_told_at_once_and_defaults_are_not():
    with pytest.raises(UsageError) as caught:
        Recipe(layout="coco", split_seed=1, jpeg_quality=3, split_folders="no").check_used()
    assert len(str(caught.value).splitlines()) == 3
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    Recipe(**defaults | KEEP | {"layout": "folders"}).check_used()
