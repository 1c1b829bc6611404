"""Reader of COCO keypoints: their names, which are stored in the categories, and their points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.written_boxes import parse_number
from halofeed.prep.sources.example import Keypoint
from halofeed.system.wording import plural

WITH_FRACTIONS = (
    "keypoints have fractions: taken as places from the picture's corner, not as COCO's numbers of pixels"
)
_UNLABELED_WITH_PLACE = (
    "keypoints of visibility 0 (not labeled, says COCO) that have coordinates: kept as they are"
)
_OTHER_COUNT = (
    "num_keypoints of annotations is not how many of their keypoints are labeled; the keypoints are taken"
)
_MIDDLE = 0.5


@dataclass(frozen=True, kw_only=True)
class Skeletons:
    """Keypoint names of one conversion.

    Args:
        names: distinct names of all categories, in the order of the category ids.
        by_category: names of each category that has keypoints, in its own order.
    """

    names: tuple[str, ...]
    by_category: Mapping[int, tuple[str, ...]]


def _named_keypoints(file: str, categories: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, ...]]:
    """Return the keypoint names by category id, for the categories that have keypoints."""
    found: dict[int, tuple[str, ...]] = {}
    for category in categories:
        names, identity = category.get("keypoints") or [], category.get("id")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise AnnotationsError(
                f"{file}: keypoints of category {category.get('name')!r}: expected a list of names, got {names!r:.80}"
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AnnotationsError(
                f"{file}: keypoints of category {category.get('name')!r}: {twice!r} comes twice; give each its own name"
            )
        if names and isinstance(identity, int):
            found[identity] = tuple(names)
    return found


def skeletons_of(
    files: Iterable[tuple[str, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]],
) -> Skeletons:
    """Return the keypoint names of all files, given as (file, annotations, categories).

    Raises:
        AnnotationsError: no annotation has keypoints, a category with keypoints has no valid names, or two files
            differ.
    """
    by_category: dict[int, tuple[str, ...]] = {}
    last = ""
    has_keypoints = False
    for file, objects, categories in files:
        last = last or file
        named = _named_keypoints(file, categories)
        nameless = {category.get("id") for category in categories} - set(named)
        for identity, names in named.items():
            if by_category.setdefault(identity, names) != names:
                raise AnnotationsError(
                    f"{file}: keypoints of category {identity} have other names than in a file before; convert the "
                    "files one by one, or make their categories agree"
                )
        for annotation in objects:
            if not annotation.get("keypoints"):
                continue
            has_keypoints = True
            if annotation["category_id"] in nameless and _is_any_set(annotation["keypoints"]):
                raise AnnotationsError(
                    f"{file}: --keep keypoints: annotation {annotation.get('id')} has keypoints, and its category "
                    f'{annotation["category_id"]} no list of their names; add it to the category as "keypoints", or '
                    "leave --keep keypoints out"
                )
    if not has_keypoints:
        raise AnnotationsError(f"{last}: --keep keypoints: no annotation says it; leave it out")
    each = dict.fromkeys(name for identity in sorted(by_category) for name in by_category[identity])
    return Skeletons(names=tuple(each), by_category=by_category)


def are_pixel_numbers_in(annotations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all keypoints of a file are whole numbers, so that they count pixels as COCO's own do.

    >>> are_pixel_numbers_in([{"keypoints": [3, 4.0, 2]}]), are_pixel_numbers_in([{"keypoints": [3, 4.5, 2]}])
    (True, False)
    """
    return all(
        float(value).is_integer()
        for annotation in annotations
        for x, y, _ in _triples(annotation.get("keypoints"))
        for value in (x, y)
        if isinstance(value, int | float)
    )


def keypoints_of(
    annotation: Mapping[str, Any], skeletons: Skeletons, are_pixel_numbers: bool, what: str
) -> tuple[Keypoint, ...]:
    """Return a point for each of `skeletons.names`; missing points are unlabeled, at (0, 0).

    Raises:
        SourceError: there are not three numbers for each name of the category, or a visibility is not 0, 1 or 2.
    """
    own = skeletons.by_category.get(annotation["category_id"], ())
    written = annotation.get("keypoints") or []
    if not isinstance(written, list) or (written and own and len(written) != 3 * len(own)):
        got = f"{len(written)} numbers" if isinstance(written, list) else repr(written)[:60]
        detail = f"{what}: {got} for {plural(len(own), 'name')}"
        raise SourceError("annotation", "keypoints are not three numbers for each name", detail)
    points = {}
    shift = _MIDDLE if are_pixel_numbers else 0.0
    for name, (x, y, visibility) in zip(own, _triples(written), strict=False):
        if visibility not in (0, 1, 2):
            detail = f"{what} {name}: {visibility!r}"
            raise SourceError("annotation", "visibility of a keypoint is not 0, 1 or 2", detail)
        x, y = parse_number(x, f"{what} {name}"), parse_number(y, f"{what} {name}")
        if visibility or x or y:
            points[name] = Keypoint(name=name, y=y + shift, x=x + shift, visibility=int(visibility))
    return tuple(points.get(name, Keypoint(name=name)) for name in skeletons.names)


def notes_of(annotations: Sequence[Mapping[str, Any]], skeletons: Skeletons) -> tuple[str, ...]:
    """Return notes for the user about the keypoints of one image."""
    placed = other = False
    for annotation in annotations:
        if annotation["category_id"] not in skeletons.by_category:
            continue
        triples = _triples(annotation.get("keypoints"))
        placed |= any(visibility == 0 and (x or y) for x, y, visibility in triples)
        labeled = sum(visibility in (1, 2) for *_, visibility in triples)
        other |= annotation.get("num_keypoints", labeled) != labeled
    return (*([_UNLABELED_WITH_PLACE] if placed else []), *([_OTHER_COUNT] if other else []))


def _triples(written: Any) -> list[tuple[Any, Any, Any]]:
    if not isinstance(written, list):
        return []
    return list(zip(written[::3], written[1::3], written[2::3], strict=False))


def _is_any_set(written: Any) -> bool:
    return not isinstance(written, list) or any(value != 0 for value in written)
