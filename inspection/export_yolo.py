"""Exporter of YOLO: boxes, corners, segments of objects with masks, or poses of objects with keypoints.

    data.yaml                 classes, splits, and kpt_shape with kpt_names of poses
    images/SPLIT/NAME.png
    labels/SPLIT/NAME.txt     one row per object:
        class x y width height                          boxes
        class x1 y1 x2 y2 x3 y3 x4 y4                   corners, as `yolo obb` reads them
        class x1 y1 x2 y2 ...                           segments
        class x y width height x1 y1 visibility1 ...    poses

All numbers are shares of the picture (docs.ultralytics.com/datasets).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.export_pictures import TURNED, BoxedObjects, BoxExporter
from halofeed.inspection.export_records import ExportedData, ExportRecord, yaml_text
from halofeed.schemas import keys
from halofeed.storage.paths import open_path, save_text
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_YOLO_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Key of data.yaml by split."""


_KEYPOINT_NAMES = f"{keys.OBJECT_KEYPOINT}/text"
_COMPARED = 1000
_NO_PIXEL = "objects without a pixel in their mask"


class YoloExporter(BoxExporter):
    """Exporter of YOLO; class ids begin at 0, in the order of the data set's.

    A segment is one outline: parts and holes are joined by lines of no area. Its extent replaces the object's box, and
    a note says by how much they differ. Of keypoints, masks and corners, the first that objects have are written.
    Corners outside of the picture move to its rim, since Ultralytics ignores a picture with a number below 0 or above
    1; a note counts them.
    """

    DISPLAYED = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        splits = [split for split, content in data.manifest.splits.items() if content.records]
        found = [_YOLO_SPLITS.get(split) for split in splits]
        # data.yaml has one key for each of three splits, so two splits of ours cannot share one.
        if None in found or len(set(found)) < len(found):
            raise UsageError(
                f"{data.files}: expected the splits train, val and test, which YOLO's data.yaml has, got "
                f"{', '.join(splits)}; use --to voc"
            )
        self.notes += [
            f"YOLO's name of the split {split} is {_YOLO_SPLITS[split]}, by which it is read again"
            for split in splits
            if _YOLO_SPLITS[split] != split
        ]
        self._names = self._spelled()
        self._places = {label: place for place, label in enumerate(self._names)}
        self._largest_shift = 0.0
        self._moved_objects = 0
        keypoints = self._keypoint_names(data)
        kept, self._write_object = self._content(data, keypoints)
        self._keeps = frozenset(kept)
        lines = [*self._split_and_class_lines(splits), *self._keypoint_lines(keypoints)]
        save_text(folder / "data.yaml", "\n".join(lines) + "\n", encoding="utf-8")
        for split in splits:
            (folder / "labels" / split).mkdir(parents=True)

    def _content(
        self, data: ExportedData, keypoints: tuple[str, ...]
    ) -> tuple[tuple[str, ...], Callable[[BoxedObjects, int], list[float]]]:
        """Return what the rows hold beside the class and the box, and the method that makes a row."""
        # A label file is of one task of Ultralytics, and a row has no place for a segment and a pose.
        if keypoints:
            return ("keypoints",), self._pose
        if any(field.name == "masks" for field in data.manifest.fields):
            return ("masks",), self._segment
        if any(field.name == "corners" for field in data.manifest.fields):
            return (TURNED,), self._corners
        return (), self._box

    def _split_and_class_lines(self, splits: list[str]) -> list[str]:
        paths = [f"{_YOLO_SPLITS[split]}: images/{split}" for split in splits]
        names = [f"  {at}: {yaml_text(name)}" for at, name in enumerate(self._names.values())]
        return [*paths, "names:", *names]

    def _keypoint_lines(self, keypoints: tuple[str, ...]) -> list[str]:
        if not keypoints:
            return []
        # Three numbers for each keypoint: x, y and visibility. Every class has the same ones.
        named = f"[{', '.join(map(yaml_text, keypoints))}]"
        names = [f"  {at}: {named}" for at in range(len(self._names))]
        return [f"kpt_shape: [{len(keypoints)}, 3]", "kpt_names:", *names]

    def _keypoint_names(self, data: ExportedData) -> tuple[str, ...]:
        """Return the names of every object's keypoints; () if none has any."""
        found: Counter[tuple[str, ...]] = Counter()
        for features in data.small_features((_KEYPOINT_NAMES, keys.OBJECT_CLASS_LABEL)):
            names: Any = features.get(_KEYPOINT_NAMES, ())
            objects = len(features.get(keys.OBJECT_CLASS_LABEL, ()))
            size = len(names) // objects if objects else 0
            found.update(
                tuple(str(name, "utf-8", "replace") for name in names[start : start + size])
                for start in range(0, size * objects, size or 1)
            )
        # kpt_shape is one for all classes (docs.ultralytics.com/datasets/pose).
        if len(found) > 1:
            raise UsageError(
                f"{data.files}: expected the same keypoints for every object, which YOLO's kpt_shape states, got "
                f"{len(found)} lists of names; coco holds them"
            )
        return next(iter(found), ())

    def add(self, record: ExportRecord) -> None:
        """Write the picture and its label file, which is empty without objects."""
        objects = self._objects(record)
        self._write_picture(record, objects.grid, f"images/{record.split}")
        rows = [self._write_object(objects, box) for box in range(len(objects.labels))]
        with open_path(self._folder / "labels" / record.split / f"{record.name}.txt", "x") as file:
            for label, row in zip(objects.labels, rows, strict=True):
                # An object without an outline has no row.
                if row:
                    file.write(f"{self._places[label]} {' '.join(map(repr, row))}\n")

    def _box(self, objects: BoxedObjects, box: int) -> list[float]:
        """Return the center and the size of a box."""
        (ymin, xmin, ymax, xmax), (height, width) = objects.corners[box].tolist(), objects.grid.size
        center = (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height
        return [*center, (xmax - xmin) / width, (ymax - ymin) / height]

    def _corners(self, objects: BoxedObjects, box: int) -> list[float]:
        """Return x and y of the four corners of an object, moved into the picture as Ultralytics needs them."""
        outline, (height, width) = objects.outlines[box], objects.grid.size
        # `verify_image_label` in ultralytics/data/utils.py refuses the file of a number that is no share.
        inside = np.clip(outline, 0, [width, height])
        self._moved_objects += int((inside != outline).any())
        return list((inside / [width, height]).reshape(-1).tolist())

    def _pose(self, objects: BoxedObjects, box: int) -> list[float]:
        """Return the box, and x, y and visibility of each keypoint; Ultralytics refuses points outside the picture."""
        height, width = objects.grid.size
        points = np.array(objects.keypoints(box)[1]).reshape(-1, 3) / [width, height, 1]
        outside = (points[:, 2] > 0) & ((points[:, :2] < 0) | (points[:, :2] > 1)).any(axis=1)
        self.left_out["keypoints outside the picture"] += int(np.count_nonzero(outside))
        points[outside | (points[:, 2] == 0)] = 0
        return [
            *self._box(objects, box),
            *(value for x, y, seen in points.tolist() for value in (x, y, int(seen))),
        ]

    def _segment(self, objects: BoxedObjects, box: int) -> list[float]:
        """Return the outline of an object's mask, or [] without one."""
        mask = objects.mask(box)
        points = np.zeros((0, 2)) if mask is None else outline(mask)
        if not len(points):
            self.left_out[_NO_PIXEL] += 1
            return []
        (ymin, xmin, ymax, xmax) = objects.corners[box].tolist()
        ends = np.concatenate([points.min(axis=0), points.max(axis=0)])
        self._largest_shift = max(self._largest_shift, float(np.abs(ends - [xmin, ymin, xmax, ymax]).max()))
        height, width = objects.grid.size
        return list((points / [width, height]).reshape(-1).tolist())

    def finish(self) -> None:
        """Note how far the boxes of the segments are from those of the data set."""
        super().finish()
        if self._moved_objects:
            self.notes.append(
                f"{plural(self._moved_objects, 'object')} with corners outside of the picture: they are moved to its "
                "rim, since Ultralytics ignores pictures with others; --to dota keeps them"
            )
        if self._largest_shift:
            self.notes.append(
                "labels are segments, whose extents are the boxes: up to "
                f"{self._largest_shift:.3g} pixels from the data set's boxes"
            )


def outline(mask: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return a polygon whose inside, by the even-odd rule, is exactly a mask.

    Parts and holes are joined to it by horizontal and vertical lines that the polygon follows there and back.

    Args:
        mask: uint8 [height, width], 0 is outside.

    Returns:
        float64 [point, 2], x and y of pixel corners; no points for an empty mask.

    >>> outline(np.array([[0, 1, 1], [0, 1, 1]], np.uint8)).tolist()
    [[1.0, 0.0], [1.0, 2.0], [3.0, 2.0], [3.0, 0.0]]
    """
    # OpenCV follows the centers of border pixels. If each pixel is enlarged to 2 x 2, each center is next to one corner
    # of a pixel.
    doubled = np.repeat(np.repeat((mask > 0).astype(np.uint8), 2, axis=0), 2, axis=1)
    found, _ = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    parts = [_without_repeats((part.reshape(-1, 2).astype(np.int64) + 1) // 2) for part in found]
    if not parts:
        return np.zeros((0, 2))
    there, back, start = [], [], 0
    for part, following in itertools.pairwise([*parts, None]):
        assert part is not None
        ring, end = np.roll(part, -start, axis=0), 0
        if following is not None:
            end, start = _nearest_points(ring, following)
            turn = [following[start, 0], ring[end, 1]]
            there += [ring[: end + 1], [turn]]
            back += [ring[:1], ring[end:], [turn]]
        else:
            there += [ring, ring[:1]] if back else [ring]
    return np.concatenate([*there, *reversed(back)]).astype(np.float64)


def _nearest_points(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[int, int]:
    """Return the indices of the nearest points of two lists, of `_COMPARED` points of each at most."""
    steps = [len(points) // _COMPARED + 1 for points in (one, other)]
    distances = np.abs(one[:: steps[0], None] - other[None, :: steps[1]]).sum(axis=2)
    first, second = divmod(int(distances.argmin()), distances.shape[1])
    return first * steps[0], second * steps[1]


def _without_repeats(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the points that differ from the one before."""
    differs: NDArray[np.bool_] = (points != np.roll(points, 1, axis=0)).any(axis=1)
    return points[differs]
