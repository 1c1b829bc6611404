"""COCO's evaluation of pictures with thousands of objects: only pairs that intersect are matched.

pycocotools compares each detection with each object in a Python loop, ten times for each of four sizes. For 5,000
objects and 20,000 detections that is 4 billion steps. The results here are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.detection.box_pairs import intersecting_pairs

_Entries = list[dict[str, Any]]
_Overlap = tuple[int, int, float]
"""Row of a detection, row of an object, and their overlap."""
_TABLE_VALUES = 1 << 22
"""Most overlaps of masks at once."""
_Candidates = list[list[tuple[int, float]]]
"""For each detection by decreasing score, the objects that it overlaps and the overlaps."""


class SparseMatching:
    """Methods for a subclass of `pycocotools.cocoeval.COCOeval` by category, boxes or masks, with the same results.

    Attributes:
        mask_iou: `pycocotools.mask.iou`, which a subclass for masks has.
    """

    mask_iou: Callable[..., Any]
    params: Any
    ious: Any
    _gts: Any
    _dts: Any

    def computeIoU(self, imgId: int, catId: int) -> _Candidates:  # noqa: N802, N803
        """Return the objects that each detection overlaps by the lowest threshold or more."""
        objects, found = self._gts[imgId, catId], self._by_score(imgId, catId, self.params.maxDets[-1])
        crowds = np.array([bool(each["iscrowd"]) for each in objects], np.bool_)
        candidates: _Candidates = [[] for _ in found]
        lowest = min(float(np.min(self.params.iouThrs)), 1 - 1e-10)
        is_masks = self.params.iouType == "segm"
        overlaps = partial(_mask_overlaps, self.mask_iou) if is_masks else _box_overlaps
        for row, other, overlap in overlaps(found, objects, crowds):
            if overlap >= lowest:
                candidates[row].append((other, overlap))
        return candidates

    def _by_score(self, image: int, category: int, most: int) -> list[dict[str, Any]]:
        found = self._dts[image, category]
        order = np.argsort([-each["score"] for each in found], kind="mergesort")
        return [found[row] for row in order[:most]]

    def evaluateImg(  # noqa: N802
        self,
        imgId: int,  # noqa: N803
        catId: int,  # noqa: N803
        aRng: list[float],  # noqa: N803
        maxDet: int,  # noqa: N803
    ) -> dict[str, Any] | None:
        """Match the detections of one picture and category with its objects, as the method of pycocotools."""
        objects, found = self._gts[imgId, catId], self._by_score(imgId, catId, maxDet)
        if not objects and not found:
            return None
        low, high = aRng
        ignored = np.array(
            [bool(each["ignore"]) or each["area"] < low or each["area"] > high for each in objects], bool
        )
        order = np.argsort(ignored, kind="mergesort")
        ids = [each["id"] for each in objects]
        crowds = [bool(each["iscrowd"]) for each in objects]
        places = np.argsort(order).tolist()
        # Objects that count come first, as in pycocotools, which stops at the first ignored one after a match.
        candidates = [
            sorted((ignored[row], places[row], row, overlap) for row, overlap in rows)
            for rows in self.ious[imgId, catId]
        ]
        thresholds = [min(float(threshold), 1 - 1e-10) for threshold in self.params.iouThrs]
        found_matches = np.zeros((len(thresholds), len(found)))
        object_matches = np.zeros((len(thresholds), len(objects)))
        found_ignored = np.zeros((len(thresholds), len(found)), bool)
        for number, threshold in enumerate(thresholds):
            for row, match in _matches(candidates, threshold, crowds):
                found_ignored[number, row] = ignored[match]
                found_matches[number, row] = ids[match]
                object_matches[number, places[match]] = found[row]["id"]
        outside = np.array([each["area"] < low or each["area"] > high for each in found], bool)
        found_ignored |= (found_matches == 0) & outside
        return {
            "image_id": imgId,
            "category_id": catId,
            "aRng": aRng,
            "maxDet": maxDet,
            "dtIds": [each["id"] for each in found],
            "gtIds": [ids[row] for row in order],
            "dtMatches": found_matches,
            "gtMatches": object_matches,
            "dtScores": [each["score"] for each in found],
            "gtIgnore": ignored[order].astype(int),
            "dtIgnore": found_ignored,
        }


def _matches(
    candidates: list[list[tuple[bool, int, int, float]]], threshold: float, crowds: list[bool]
) -> Iterator[tuple[int, int]]:
    """Yield the row of each matched detection, by decreasing score, and the row of its object."""
    taken: set[int] = set()
    for row, rows in enumerate(candidates):
        match = _best_match(rows, threshold, taken, crowds)
        if match is not None:
            taken.add(match)
            yield row, match


def _best_match(
    rows: list[tuple[bool, int, int, float]], threshold: float, taken: set[int], crowds: list[bool]
) -> int | None:
    """Return the free object with the largest overlap, the last of equal ones; those that count before ignored ones."""
    best, best_is_ignored, least = None, False, threshold
    for is_ignored, _, row, overlap in rows:
        if row in taken and not crowds[row]:
            continue
        if best is not None and is_ignored and not best_is_ignored:
            break
        if overlap >= least:
            best, best_is_ignored, least = row, is_ignored, overlap
    return best


def _box_overlaps(found: _Entries, objects: _Entries, crowds: NDArray[np.bool_]) -> Iterator[_Overlap]:
    """Yield each pair of boxes that intersect."""
    one, two = _xywh(found), _xywh(objects)
    first, second = intersecting_pairs(_corners(one), _corners(two))
    overlaps = _iou(one[first], two[second], crowds[second])
    yield from zip(first.tolist(), second.tolist(), overlaps.tolist(), strict=True)


def _mask_overlaps(
    mask_iou: Callable[..., Any], found: _Entries, objects: _Entries, crowds: NDArray[np.bool_]
) -> Iterator[_Overlap]:
    """Yield each pair of masks that intersect, a few rows of pycocotools' dense table at a time."""
    if not objects:
        return
    true = [each["segmentation"] for each in objects]
    rows = max(1, _TABLE_VALUES // len(true))
    for start in range(0, len(found), rows):
        part = [each["segmentation"] for each in found[start : start + rows]]
        table = np.asarray(mask_iou(part, true, crowds.astype(np.uint8)))
        for row, other in np.argwhere(table > 0).tolist():
            yield start + row, other, float(table[row, other])


def _xywh(entries: list[dict[str, Any]]) -> NDArray[np.float64]:
    return np.array([each["bbox"] for each in entries], np.float64).reshape(-1, 4)


def _corners(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([boxes[:, 1::-1], boxes[:, 1::-1] + boxes[:, :1:-1]], axis=1)


def _iou(
    found: NDArray[np.float64], objects: NDArray[np.float64], is_crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return overlaps by the operations of pycocotools' bbIou, so that they have the same bits."""
    ends = np.minimum(found[:, :2] + found[:, 2:], objects[:, :2] + objects[:, 2:])
    sides = np.maximum(ends - np.maximum(found[:, :2], objects[:, :2]), 0)
    common, own, other = sides[:, 0] * sides[:, 1], found[:, 2] * found[:, 3], objects[:, 2] * objects[:, 3]
    return np.asarray(common / np.where(is_crowd, own, own + other - common))
