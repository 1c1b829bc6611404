"""Keypoints of FiftyOne: fields of points beside the field of objects, and which object each of them belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from halofeed.prep.annotations.documents import as_list, as_mapping
from halofeed.prep.annotations.named_points import PointNames
from halofeed.prep.layouts.fiftyone_masks import FiftyOneExport
from halofeed.system.errors import SourceError

_KEYPOINTS, _KEYPOINT = "Keypoints", "Keypoint"
BY_ORDER = "keypoints of FiftyOne belong to the objects in their order"
_VISIBLE = 2

_Sample = Mapping[str, Any]
Point = tuple[Any, Any, int]


@dataclass(frozen=True, kw_only=True)
class PointField:
    """Field of keypoints of the samples of one file.

    Args:
        name: its name; "" if the samples have no keypoints.
        others: names of further such fields.
        names: names of the points.
        is_ordered: whether the objects of each sample and its keypoints are equal in number and in their classes.
    """

    name: str = ""
    others: tuple[str, ...] = ()
    names: PointNames = field(default_factory=PointNames)
    is_ordered: bool = False

    @classmethod
    def of(
        cls, samples: Sequence[_Sample], objects: Mapping[int, Sequence[_Sample]], export: FiftyOneExport
    ) -> PointField:
        """Return the field of keypoints of samples.

        Args:
            samples: samples of a file.
            objects: objects of each sample by its place; {} where no field has objects.
            export: files of the export.
        """
        found = {
            name: None
            for sample in samples
            for name, value in sample.items()
            if as_mapping(value).get("_cls") in (_KEYPOINTS, _KEYPOINT)
        }
        if not found:
            return cls()
        name, *others = found
        every = [keypoints_of_sample(sample, name) for sample in samples]
        labels = {str(one.get("label")) for listed in every for one in listed}
        most = max((len(as_list(one.get("points"))) for listed in every for one in listed), default=0)
        stated = as_mapping(export.stated("skeletons", "default_skeleton", name))
        skeleton = tuple(map(str, as_list(stated.get("labels"))))
        is_named = len(set(skeleton)) == len(skeleton) >= most > 0
        is_ordered = bool(objects) and all(
            [one.get("label") for one in listed] == [one.get("label") for one in objects.get(place, ())]
            for place, listed in enumerate(every)
            if listed
        )
        names = (
            PointNames(by_class=dict.fromkeys(sorted(labels), skeleton))
            if is_named
            else PointNames(most=most)
        )
        return cls(name=name, others=tuple(others), names=names, is_ordered=is_ordered)

    def of_objects(self, sample: _Sample, objects: Sequence[_Sample]) -> list[list[Point] | None]:
        """Return the points of each object of a sample; None for one without.

        Raises:
            SourceError: nothing says which object the keypoints of the sample belong to.
        """
        listed = keypoints_of_sample(sample, self.name) if self.name else []
        by_instance = {key: one for one in listed if (key := _instance(one)) is not None}
        own = [by_instance.pop(key, None) if (key := _instance(one)) is not None else None for one in objects]
        alone = [one for one in listed if _instance(one) is None or _instance(one) in by_instance]
        if alone and self.is_ordered and not any(own):
            own, alone = list(listed), []
        if alone:
            detail = (
                f"{len(alone)} of {self.name}; give a detection and its keypoints one fiftyone.Instance, or leave "
                "--keep keypoints out"
            )
            raise SourceError("annotation", "keypoints belong to no object", detail)
        return [None if one is None else points_of_label(one) for one in own]


def keypoints_of_sample(sample: _Sample, name: str) -> list[_Sample]:
    """Return the keypoints of a field of a sample, each of one object."""
    value = as_mapping(sample.get(name))
    if value.get("_cls") == _KEYPOINT:
        return [value]
    return [as_mapping(one) for one in as_list(value.get("keypoints"))]


def _instance(one: _Sample) -> str | None:
    """Return the id that a detection and its keypoints share (`fiftyone.Instance`); None without one."""
    identity = as_mapping(one.get("instance")).get("_id")
    identity = as_mapping(identity).get("$oid", identity)
    return identity if isinstance(identity, str) else None


def points_of_label(one: _Sample) -> list[Point]:
    """Return x, y and COCO's visibility of each point; FiftyOne writes NaN for a point that nobody labeled.

    >>> points_of_label({"points": [[0.5, 0.25], [float("nan"), float("nan")], [{"$numberDouble": "NaN"}, None]]})
    [(0.5, 0.25, 2), (0.0, 0.0, 0), (0.0, 0.0, 0)]
    """
    found: list[Point] = []
    for point in as_list(one.get("points")):
        sides = as_list(point)
        # A text or another number of sides is a fault, which `named_points` names.
        if len(sides) != 2:
            found.append((point, None, _VISIBLE))
        elif any(_is_missing(side) for side in sides):
            found.append((0.0, 0.0, 0))
        else:
            found.append((sides[0], sides[1], _VISIBLE))
    return found


def _is_missing(side: Any) -> bool:
    value = as_mapping(side).get("$numberDouble", side)
    return value is None or value == "NaN" or (isinstance(value, float) and math.isnan(value))
