"""All faults of a field are found, and tasks make fields without faults."""

import dataclasses
from typing import Any

import pytest

from halofeed.schemas.errors import UsageError
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.tasks import TASKS, ImageFormat, task_named

AXES = ("height", "width", "channel")
GOOD = Field(name="image", keys=("image/encoded",), dtype="uint8", axes=AXES, shape=(4, 5, 3), encoding="raw")


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        ({"name": ""}, "name"),
        ({"keys": ()}, "keys"),
        ({"keys": ("",)}, "keys"),
        ({"dtype": "complex64"}, "dtype"),
        ({"dtype": "str"}, "dtype"),
        ({"encoding": "webp"}, "encoding"),
        ({"axes": ("height", "width", "color")}, "axes"),
        ({"axes": ("height",)}, "shape"),
        ({"shape": (4, 0, 3)}, "shape"),
        ({"encoding": "list", "shape": (), "axes": ()}, "shape"),
        ({"encoding": "sets", "shape": (), "axes": ()}, "axes"),
        ({"fill": ()}, "fill"),
        ({"fill": (float("nan"),)}, "fill"),
    ],
)
def test_each_fault_is_found_under_its_attribute(change: dict[str, Any], attribute: str) -> None:
    assert not list(GOOD.problems())
    assert [place for place, _ in dataclasses.replace(GOOD, **change).problems()] == [attribute]


def test_faults_are_found_together() -> None:
    field = dataclasses.replace(GOOD, name="", keys=(), dtype="x", encoding="y", fill=())
    assert [place for place, _ in field.problems()] == ["name", "keys", "dtype", "encoding", "fill"]


def test_equal_fields_have_equal_json() -> None:
    whole, fraction = dataclasses.replace(GOOD, fill=(1,)), dataclasses.replace(GOOD, fill=(1.0,))
    assert whole == fraction
    assert repr(whole.to_json()) == repr(fraction.to_json())
    assert dataclasses.replace(GOOD, fill=(0.5,)).to_json()["fill"] == [0.5]


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("masks", [False, True])
def test_every_tasks_fields_are_without_faults_and_named_once(name: str, masks: bool) -> None:
    how = {"dtype": "uint8", "encoding": "raw", "pad_value": (1, 2, 3)}
    image = ImageFormat(kind=KINDS["picture"], shape=(4, 6), channels=3, **how)
    fields = task_named(name).fields(image, max_boxes=7, masks=masks)
    assert not [problem for field in fields for problem in field.problems()]
    assert len({field.name for field in fields}) == len(fields)
    assert fields[0].name == "image" and fields[0].fill == (1, 2, 3)


def test_an_unknown_task_is_wrong_usage_that_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown task 'depth'; known: classification, detection"):
        task_named("depth")
