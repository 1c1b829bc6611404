"""COCO panoptic files: segments of label images as objects, and as classes of pixels.

An annotation names a PNG and lists its segments; a pixel belongs to the segment R + 256 G + 65536 B, 0 to none.

Source: https://cocodataset.org/#format-data, and the checks of cocodataset/panopticapi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.images import ImageQuery

Lists: TypeAlias = "dict[str, list[dict[str, Any]]]"
UNLABELED = 0
"""Value of pixels without a segment; classes have the values from 1."""
_LARGEST_SEGMENT = (1 << 24) - 1


def is_panoptic(lists: Lists) -> bool:
    """Return whether the annotations of a file are segments of label images."""
    return any("segments_info" in one for one in lists["annotations"])


def segments_as_objects(name: str, lists: Lists, *, things_only: bool) -> Lists:
    """Return the lists of a file with one annotation per segment, as in an instances file.

    Args:
        name: name of the file.
        lists: images, annotations and categories of the file.
        things_only: whether to leave out stuff, such as sky, which is not an object.

    Raises:
        AnnotationsError: an annotation has no list of segments, or a category does not say whether it is a thing.

    >>> categories = [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    >>> one = {"image_id": 7, "segments_info": [{"id": 3, "category_id": 1}, {"id": 4, "category_id": 2}]}
    >>> lists = {"images": [], "annotations": [one], "categories": categories}
    >>> segments_as_objects("a.json", lists, things_only=True)["annotations"]
    [{'id': 3, 'category_id': 1, 'image_id': 7}]
    >>> segments_as_objects("a.json", {**lists, "categories": [{"id": 1, "name": "cat"}]}, things_only=True)
    Traceback (most recent call last):
    halofeed.errors.AnnotationsError: a.json: category 'cat': expected isthing 0 or 1, got None; ...
    """
    categories = lists["categories"]
    if unclear := [one for one in categories if things_only and one.get("isthing") not in (0, 1)]:
        raise AnnotationsError(
            f"{name}: category {unclear[0].get('name')!r}: expected isthing 0 or 1, got {unclear[0].get('isthing')!r}; "
            "add it: things have boxes"
        )
    stuff = {repr(one.get("id")) for one in categories if things_only and not one["isthing"]}
    objects = []
    for entry in lists["annotations"]:
        segments = entry.get("segments_info")
        if not isinstance(segments, list) or not all(isinstance(one, dict) for one in segments):
            raise AnnotationsError(
                f"{name}: annotation of image {entry.get('image_id')!r}: expected a list segments_info, got "
                f"{segments!r:.60}"
            )
        objects += [
            {**one, "image_id": entry.get("image_id")}
            for one in segments
            if repr(one.get("category_id")) not in stuff
        ]
    kept = [one for one in categories if repr(one.get("id")) not in stuff]
    return {**lists, "annotations": objects, "categories": kept}


def label_image_query(name: str, written: str) -> ImageQuery:
    """Return the possible locations of a label image: the folder with the name of the file, or that file's folder."""
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".json")
    beside = f"{folder}/{stem}" if folder else stem
    return ImageQuery(name=written, places=((beside, stem), (folder,)), beside=(beside, stem))


def segment_values(
    segments: Sequence[Mapping[str, Any]], value_of_category: Mapping[Any, int]
) -> tuple[tuple[int, int], ...]:
    """Return (id, value of its class) of each segment of one label image.

    Raises:
        SourceError: an id is invalid or comes twice, or a category is not defined.

    >>> segment_values([{"id": 70000, "category_id": 9}, {"id": 5, "category_id": 4}], {4: 1, 9: 2})
    ((70000, 2), (5, 1))
    >>> segment_values([{"id": 1 << 24, "category_id": 9}], {9: 1})
    Traceback (most recent call last):
    halofeed.errors.SourceError: ...
    """
    found: dict[int, int] = {}
    for one in segments:
        identity, category = one.get("id"), one.get("category_id")
        if not isinstance(identity, int) or not 0 < identity <= _LARGEST_SEGMENT or identity in found:
            detail = f"{identity!r}; expected different whole numbers from 1 to {_LARGEST_SEGMENT}"
            raise SourceError("annotation", "segment id is invalid or comes twice", detail)
        if category not in value_of_category:
            detail = f"segment {identity}: category_id {category!r} is no category of the file"
            raise SourceError("annotation", "object has no class", detail)
        found[identity] = value_of_category[category]
    return tuple(found.items())
