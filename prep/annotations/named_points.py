"""Keypoints of formats whose points are named by class: one list of names for all objects of a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from halofeed.prep.annotations.written_boxes import parse_number
from halofeed.prep.sources.example import Keypoint
from halofeed.system.errors import SourceError

_VISIBILITIES = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class PointNames:
    """Names of the keypoints of each class.

    Args:
        by_class: names of the points of a class, in the order in which they are written.
        most: number of points of the longest list of a class that has no names.
    """

    by_class: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    most: int = 0

    @property
    def numbered(self) -> tuple[str, ...]:
        """Names of points that only have numbers, as those of YOLO."""
        return tuple(f"keypoint_{number}" for number in range(1, self.most + 1))

    @property
    def all(self) -> tuple[str, ...]:
        """Distinct names of all classes, in their order."""
        named = dict.fromkeys(name for names in self.by_class.values() for name in names)
        return (*named, *(name for name in self.numbered if name not in named))

    def of_class(self, label: str) -> tuple[str, ...]:
        """Return the names of the points of a class, which may have numbers only."""
        return self.by_class.get(label) or self.numbered


def named_points(
    label: str, points: Sequence[tuple[Any, Any, Any]], names: PointNames, what: str
) -> tuple[Keypoint, ...]:
    """Return a keypoint for each of `names.all`; those that the object does not have are unlabeled, at (0, 0).

    Args:
        label: class of the object.
        points: x, y and COCO's visibility of each point.
        names: names of the points of all classes.
        what: description of the object, for messages.

    Raises:
        SourceError: there are more points than names, or a visibility is not 0, 1 or 2.

    >>> names = PointNames(by_class={"cat": ("nose", "tail")})
    >>> [(one.name, one.visibility) for one in named_points("cat", [(3, 4, 2)], names, "object 1")]
    [('nose', 2), ('tail', 0)]
    """
    own = names.of_class(label)
    if len(points) > len(own):
        detail = f"{what}: {len(points)} points for {len(own)} names"
        raise SourceError("annotation", "object has more keypoints than names", detail)
    found = {name: _point(name, *point, what) for name, point in zip(own, points, strict=False)}
    return tuple(found.get(name, Keypoint(name=name)) for name in names.all)


def _point(name: str, x: Any, y: Any, visibility: Any, what: str) -> Keypoint:
    if visibility not in _VISIBILITIES:
        detail = f"{what} {name}: {visibility!r:.20}"
        raise SourceError("annotation", "visibility of a keypoint is not 0, 1 or 2", detail)
    # A point that nobody labeled has no position, whatever number stands in its place.
    if not visibility:
        return Keypoint(name=name)
    x, y = parse_number(x, f"{what} {name}"), parse_number(y, f"{what} {name}")
    return Keypoint(name=name, x=x, y=y, visibility=int(visibility))


def sides_of_points(points: Iterable[Keypoint]) -> tuple[float, float, float, float] | None:
    """Return xmin, ymin, xmax, ymax of the labeled points; None without any."""
    labeled = [(one.x, one.y) for one in points if one.visibility]
    if not labeled:
        return None
    x, y = zip(*labeled, strict=True)
    return min(x), min(y), max(x), max(y)
