"""Exporters of pictures with classes or boxes.

    folders    SPLIT/CLASS/NAME.png, croissant.json
    coco       annotations/instances_SPLIT.json, images/SPLIT/NAME.png
               SPLIT/_annotations.coco.json, SPLIT/NAME.png if a split has an unusual name
    voc        Annotations/NAME.xml, JPEGImages/NAME.png, ImageSets/Main/SPLIT.txt
               labelmap.txt, the class names as CVAT and datumaro need them

Boxes are written with all digits, in pixels of the picture without padding, or of the source's file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import IO, Any, ClassVar
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.export_grid import PICTURE_GRID_KEYS, PictureGrid, picture_grid, points_on
from halofeed.inspection.export_records import (
    NO_TEXT,
    ExportedData,
    Exporter,
    ExportRecord,
    class_folder_names,
)
from halofeed.inspection.stated_facts import stated_facts, stated_fields
from halofeed.inspection.stored_values import decode_stored
from halofeed.prep.annotations.contract import is_split_name, split_in_file_name
from halofeed.prep.annotations.written_boxes import polygon_area
from halofeed.prep.geometry.resize import apply_to_boxes, area_factor
from halofeed.prep.voxels.masks import encode_run_lengths
from halofeed.schemas import keys
from halofeed.schemas.croissant import (
    class_records,
    croissant_text,
    field_source,
    file_set,
    record_field,
    record_set,
)
from halofeed.schemas.file_layout import CROISSANT
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Decoded
from halofeed.storage.paths import open_path, save_text, temporary_stream
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural

_AREA_TOLERANCE = 1e-3
_UPRIGHT_PIXELS = 1e-3
"""Distance up to which a corner is on a side of the upright box, as corners are stored with 24 bits."""
TURNED = "corners of turned objects"
REGIONS = "ignored regions"
_FLAGS = {**keys.OBJECT_FLAGS, **{name: OPTIONAL_ATTRIBUTES[name] for name in ("occluded", "group_of")}}


class FoldersExporter(Exporter):
    """Exporter of class folders, SPLIT/CLASS/NAME; a folder has a class's name, without characters of paths."""

    TASK = "classification"
    HOLDS_SOURCE_GRID = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        if any(field.name == "labels" for field in data.manifest.fields):
            raise UsageError(
                f"{data.files}: a picture may have several classes, and a file lies in one folder; read the data set "
                "with halofeed.loader"
            )
        self._names = self._spelled(class_folder_names)
        self._filled: set[tuple[str, int]] = set()
        self._extensions: set[str] = set()
        if not all(map(is_split_name, data.manifest.splits)):
            self.notes.append(
                "the first folders are splits with unusual names: convert them with --split-folders yes"
            )

    def add(self, record: ExportRecord) -> None:
        """Write the picture into its class's folder."""
        labels: Any = record.features[keys.CLASS_LABEL]
        self._filled.add((record.split, int(labels[0])))
        folder = f"{record.split}/{self._names[int(labels[0])]}"
        name = self._write_picture(record, self._grid(record), folder)
        self._extensions.add(Path(name).suffix)

    def finish(self) -> None:
        """Write croissant.json, whose records are the pictures with the names of their folders.

        A note names the splits in which a class has no folder.
        """
        splits = [split for split, content in self._manifest.splits.items() if content.records]
        lacking = {split for split in splits for label in self._names if (split, label) not in self._filled}
        # keras.utils.image_dataset_from_directory and ImageFolder number the folders that they find.
        if lacking:
            self.notes.append(
                f"{', '.join(sorted(lacking))}: a class without pictures has no folder there; programs that number the "
                "classes of each split by its folders give other numbers"
            )
        extensions = [".jpg", ".png", *sorted(self._extensions - {".jpg", ".png"})]
        patterns = [
            f"{split}/*/*{extension}"
            for split in sorted({split for split, _ in self._filled})
            for extension in extensions
        ]
        formats = [f"image/{one.removeprefix('.').replace('jpg', 'jpeg')}" for one in extensions]
        pictures = file_set("pictures", formats, patterns, "pictures in a folder for each split and class")
        fields = [
            record_field(
                "default/image",
                "sc:ImageObject",
                "picture",
                source=field_source("pictures", fileProperty="content"),
            ),
            *(
                record_field(
                    f"default/{name}",
                    "sc:Text",
                    f"folder of the {name}",
                    source=field_source("pictures", regex=regex, fileProperty="fullpath"),
                )
                for name, regex in (("split", "([^/]*)/"), ("label", "[^/]*/([^/]*)/"))
            ),
        ]
        records = [*class_records(self._manifest.labels), record_set("default", fields)]
        text = croissant_text(self._manifest, distribution=[pictures], record_sets=records)
        save_text(self._folder / CROISSANT, text, encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class BoxedObjects:
    """Objects of one picture, with boxes.

    Args:
        features: features of its record.
        grid: grid to which the picture is exported.
    """

    features: Decoded
    grid: PictureGrid

    @cached_property
    def corners(self) -> NDArray[np.float64]:
        """float64 [box, 4], ymin, xmin, ymax, xmax in pixels.

        Whole numbers that were rounded to float32 shares are whole again, which gives the same shares.
        """
        return corners_of(self.features, self.grid)

    @cached_property
    def regions(self) -> NDArray[np.float64]:
        """float64 [region, 4], ignored regions likewise."""
        return corners_of(self.features, self.grid, keys.IGNORED_CORNERS)

    @property
    def areas(self) -> NDArray[np.float64]:
        """float64 [box], areas in pixels."""
        return self.numbers(keys.OBJECT_AREA).astype(np.float64) * area_factor(self.grid.from_stored)

    @cached_property
    def outlines(self) -> NDArray[np.float64]:
        """float64 [box, 4, 2], x and y in pixels of the corners of each object, not clipped; of its box without any."""
        if not self.has_corners:
            top, left, bottom, right = self.corners.T
            return np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        columns = [self.numbers(key).astype(np.float64) for key in keys.CORNER_POINTS]
        shares = np.stack(columns, axis=1).reshape(-1, 2)
        return snapped(points_on(self.grid, shares), self.grid).reshape(-1, 4, 2)[..., ::-1]

    @property
    def has_corners(self) -> bool:
        """Return whether the record has the corners of its objects."""
        return bool(len(self.labels)) and all(
            len(self.numbers(key)) == len(self.labels) for key in keys.CORNER_POINTS
        )

    @cached_property
    def labels(self) -> list[int]:
        """Class id of each box."""
        return [int(label) for label in self.numbers(keys.OBJECT_CLASS_LABEL)]

    def numbers(self, key: str) -> NDArray[Any]:
        """Return the numbers of a key; empty if it is missing or an empty list."""
        return np.asarray(self.features.get(key, ()))

    def flags(self, box: int, names: Sequence[str]) -> list[str]:
        """Return the names of the flags that a box has."""
        return [name for name in names if _FLAGS[name] in self.features and self.numbers(_FLAGS[name])[box]]

    def mask(self, box: int) -> NDArray[np.uint8] | None:
        """Return the mask of a box, uint8 [height, width] of the grid; None without masks."""
        stored: Any = self.features.get(keys.OBJECT_MASK)
        if stored is None:
            return None
        pixels = decode_stored(stored[box], "png", self.grid.stored_size)
        if pixels is None or pixels.shape[:2] != self.grid.stored_size:
            raise CorruptFileError(f"{keys.OBJECT_MASK}: mask {box} is no PNG of the picture's size")
        return self.grid.sample(pixels[..., 0])

    def view(self, box: int) -> str:
        """Return the view of a box, or ""."""
        views: Any = self.features.get(keys.OBJECT_VIEW)
        return str(views[box], "utf-8", "replace") if views else ""

    def keypoints(self, box: int) -> tuple[tuple[str, ...], list[float]]:
        """Return the names of the keypoints of a box, and x, y in pixels and visibility of each; empty without any."""
        count = len(self.features.get(f"{keys.OBJECT_KEYPOINT}/text", ()))
        if not count:
            return (), []
        each = slice(box * count // len(self.labels), (box + 1) * count // len(self.labels))
        names: Any = self.features[f"{keys.OBJECT_KEYPOINT}/text"]
        x, y, seen = (
            self.numbers(f"{keys.OBJECT_KEYPOINT}/{part}")[each].astype(np.float64)
            for part in ("x", "y", "visibility")
        )
        at = points_on(self.grid, np.stack([y, x], axis=1))
        at[(seen == 0) & (x == 0) & (y == 0)] = 0  # no position
        points = np.column_stack([at[:, ::-1], seen])
        return tuple(str(name, "utf-8", "replace") for name in names[each]), points.reshape(-1).tolist()

    @property
    def _are_turned(self) -> NDArray[np.bool_]:
        """Return whether corners are elsewhere than those of the box around them, bool [box]."""
        sides = np.stack([self.outlines.min(axis=1), self.outlines.max(axis=1)], axis=1)
        off = np.abs(self.outlines[:, :, None] - sides[:, None]).min(axis=2)
        return np.asarray((off > _UPRIGHT_PIXELS).any(axis=(1, 2)))

    def counts(self) -> dict[str, int]:
        """Return the number of values of each kind beside boxes and classes."""
        labeled = self.numbers(f"{keys.OBJECT_KEYPOINT}/num")
        heights, widths = (self.corners[:, 2:] - self.corners[:, :2]).T
        area = self.areas
        same = np.isclose(area, heights * widths, rtol=_AREA_TOLERANCE) if len(area) else np.ones(0, bool)
        # Targets with corners have areas of polygons.
        if self.has_corners:
            enclosed = [polygon_area(outline.reshape(-1).tolist()) for outline in self.outlines]
            same |= np.isclose(area, enclosed, rtol=_AREA_TOLERANCE)
        return {
            **{f"{name} flags": int(np.count_nonzero(self.numbers(key))) for name, key in _FLAGS.items()},
            "masks": len(self.features.get(keys.OBJECT_MASK, ())),
            "keypoints": int(labeled.sum()) if len(labeled) else 0,
            "views": sum(bool(self.view(box)) for box in range(len(self.labels))),
            "areas": int(np.count_nonzero(~same)),
            **({REGIONS: len(self.regions)} if len(self.regions) else {}),
            "category ids": len(self.numbers(keys.OBJECT_CLASS_SOURCE_LABEL)),
            **({TURNED: int(np.count_nonzero(self._are_turned))} if self.has_corners else {}),
        }


def corners_of(
    features: Decoded, grid: PictureGrid, sides: Sequence[str] = keys.BOX_CORNERS
) -> NDArray[np.float64]:
    """Return the boxes of a record in pixels of a grid, see `BoxedObjects.corners`; `sides` are the keys of boxes.

    >>> sides = {key: np.array([side]) for key, side in zip(keys.SIDES, (10, 8))}
    >>> grid = picture_grid(sides, "stored", displayed=False)
    >>> features = {key: np.float32([share]) for key, share in zip(keys.BOX_CORNERS, (0.1, 0.25, 0.7, 1.0))}
    >>> corners_of(features, grid).tolist()
    [[1.0, 2.0, 7.0, 8.0]]
    """
    shares = np.stack([np.asarray(features.get(key, ()), np.float64) for key in sides], axis=1)
    exact = apply_to_boxes(grid.from_stored, shares * [*grid.stored_size, *grid.stored_size])
    return np.clip(snapped(exact, grid), None if grid.is_stored else 0, [*grid.size, *grid.size])


def snapped(exact: NDArray[np.float64], grid: PictureGrid) -> NDArray[np.float64]:
    """Return positions y, x, ... in pixels of a grid [..., n], with those whole that are whole but for rounding."""
    whole = np.rint(exact)
    padded_size = np.abs(grid.from_stored.reshape(2, 3)[:, :2]) @ grid.stored_size
    # float32 has 24 bits, so a rounded share is off by at most 2**-24 of the padded side.
    is_whole = np.abs(exact - whole) <= np.tile(padded_size, exact.shape[-1] // 2) * 2.0**-24
    return np.asarray(np.where(is_whole, whole, exact))


class BoxExporter(Exporter):
    """Base class of exporters of boxes; KEEPS are the keys of `BoxedObjects.counts` that the target holds."""

    TASK = "detection"
    HOLDS_SOURCE_GRID = True
    KEEPS: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._keeps = self.KEEPS

    def _objects(self, record: ExportRecord) -> BoxedObjects:
        objects = BoxedObjects(features=record.features, grid=self._grid(record))
        self.left_out.update({name: n for name, n in objects.counts().items() if name not in self._keeps})
        return objects

    def finish(self) -> None:
        """Note the grid of annotations of pictures with an EXIF orientation."""
        for grid, count in self.turned.items():
            self.notes.append(
                f"{count:,} pictures have an EXIF orientation, and their boxes are in the pixels as {grid}: convert "
                f"them with --annotation-grid {grid}"
            )


class _Instances:
    """Instances file of one split, whose annotations wait in a temporary file until all images are written."""

    def __init__(self, stream: IO[str], annotations: IO[str], description: str) -> None:
        self._stream, self._annotations = stream, annotations
        self._images = self._objects = 0
        stream.write(f'{{"info": {{"description": {json.dumps(description)}}},\n"images": [')

    def add_image(self, entry: Mapping[str, Any]) -> None:
        self._stream.write(f"{',' if self._images else ''}\n{json.dumps(entry)}")
        self._images += 1

    def add_object(self, entry: Mapping[str, Any]) -> None:
        self._objects += 1
        self._annotations.write(
            f"{',' if self._objects > 1 else ''}\n{json.dumps({'id': self._objects, **entry})}"
        )

    def finish(self, categories: Sequence[Mapping[str, Any]]) -> None:
        self._stream.write('\n],\n"annotations": [')
        self._annotations.seek(0)
        shutil.copyfileobj(self._annotations, self._stream)
        self._stream.write(f'\n],\n"categories": {json.dumps(categories)}}}\n')


_COCO_FILE = "annotations/instances_{}.json"


class CocoExporter(BoxExporter):
    """Exporter of COCO instances: image ids are the records', masks are run lengths, keypoints have fractions.

    Difficult, truncated, occluded and grouped objects have a key of that name with the value 1. If a split has an
    unusual name, all files are in a folder of that name, as in Roboflow's exports, so readers know the name.

    Corners are the polygons of their objects, unless these have masks.
    """

    KEEPS = frozenset((*(f"{name} flags" for name in _FLAGS), "masks", "keypoints", "areas", REGIONS))
    NAMES_SOURCES = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        splits = data.manifest.splits
        usual = all(split_in_file_name(_COCO_FILE.format(split)) == split for split in splits)
        self._files, self._pictures = (
            (_COCO_FILE, "images/{}") if usual else ("{}/_annotations.coco.json", "{}")
        )
        self._splits = {split: self._open(split) for split in splits}
        self._keypoints: dict[int, tuple[str, ...]] = {}
        # An object has one segmentation.
        self._has_masks = any(field.name == "masks" for field in data.manifest.fields)
        if not self._has_masks:
            self._keeps = self.KEEPS | {TURNED}
        self._regions = 0

    def _open(self, split: str) -> _Instances:
        path = self._folder / self._files.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = self.enter_context(open_path(path, "x", encoding="ascii"))
        annotations = temporary_stream("w+", encoding="ascii", dir=self._folder)
        self.enter_context(annotations)
        return _Instances(stream, annotations, f"{self._manifest.name} {self._manifest.version}, {split}")

    def add(self, record: ExportRecord) -> None:
        """Write the picture and its objects."""
        instances, objects = self._splits[record.split], self._objects(record)
        file = self._write_picture(record, objects.grid, self._pictures.format(record.split))
        height, width = objects.grid.size
        stated = stated_facts(record.features, stated_fields(self._manifest), objects.grid)
        known = {name: value for name, value in stated.items() if value is not None}
        instances.add_image({"id": record.id, "file_name": file, "height": height, "width": width, **known})
        areas = objects.areas.tolist()
        for box, (ymin, xmin, ymax, xmax) in enumerate(objects.corners.tolist()):
            flags = objects.flags(box, tuple(_FLAGS))
            entry = {
                "image_id": record.id,
                "category_id": objects.labels[box],
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                "area": areas[box],
                "iscrowd": int("is_crowd" in flags),
                **{name: 1 for name in flags if name != "is_crowd"},
            }
            if (mask := objects.mask(box)) is not None:
                entry["segmentation"] = encode_run_lengths(mask)
            elif objects.has_corners:
                entry["segmentation"] = [objects.outlines[box].reshape(-1).tolist()]
            names, points = objects.keypoints(box)
            # COCO lists keypoints only of objects with a labeled one.
            if any(points[2::3]):
                self._keypoints.setdefault(objects.labels[box], names)
                entry |= {"keypoints": points, "num_keypoints": int(np.count_nonzero(points[2::3]))}
            instances.add_object(entry)
        for sides, label in product(objects.regions.tolist(), sorted(self._manifest.labels)):
            crowd = {"image_id": record.id, "category_id": label, "iscrowd": 1, "ignore": 1}
            instances.add_object({**crowd, **self._place_of_region(objects, sides)})
        self._regions += len(objects.regions)

    def _place_of_region(self, objects: BoxedObjects, sides: Sequence[float]) -> dict[str, Any]:
        """Return the box of a region, and its run lengths where objects have masks: readers of masks need them."""
        ymin, xmin, ymax, xmax = sides
        width, height = xmax - xmin, ymax - ymin
        place: dict[str, Any] = {"bbox": [xmin, ymin, width, height], "area": width * height}
        if self._has_masks:
            mask = np.zeros(objects.grid.size, np.uint8)
            mask[round(ymin) : round(ymax), round(xmin) : round(xmax)] = 1
            place["segmentation"] = encode_run_lengths(mask)
        return place

    def finish(self) -> None:
        """Write the annotations and categories of every split."""
        super().finish()
        if self._regions:
            # pycocotools overwrites `ignore` by iscrowd, so that a region without a class is a crowd of each.
            self.notes.append(
                f"{plural(self._regions, 'ignored region')} became a crowd of each class, which COCO's evaluation "
                "ignores"
            )
        categories: list[dict[str, Any]] = [
            {"id": label, "name": name} for label, name in sorted(self._manifest.labels.items())
        ]
        for category in categories:
            if names := self._keypoints.get(category["id"]):
                category["keypoints"] = names
        for instances in self._splits.values():
            instances.finish(categories)


_VOC_FLAGS = ("truncated", "difficult", "occluded")
_FRACTION = 1e-7


class VocExporter(BoxExporter):
    """Exporter of Pascal VOC.

    If all boxes are whole pixels, of at least two on each side, they count from 1 as VOC's do. Otherwise all boxes
    count from 0 and have fractions, by which readers know that: `_FRACTION` is added to whole ones.
    """

    KEEPS = frozenset((*(f"{name} flags" for name in _VOC_FLAGS), "views"))
    NAMES_SOURCES = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._names = self._spelled()
        wanted = (*keys.BOX_CORNERS, *PICTURE_GRID_KEYS)
        if any(":" in name for name in self._names.values()):  # which the lines of labelmap.txt cannot hold
            self.notes.append(
                "no labelmap.txt, since a class has a colon in its name: classes without an object are lost when the "
                "export is read, and the ids of others may change"
            )
        else:
            lines = [
                f"{name}:{','.join(map(str, _voc_color(number)))}::\n"
                for number, name in enumerate(("background", *self._names.values()))
            ]
            text = "".join(["# label:color_rgb:parts:actions\n", *lines])
            save_text(folder / "labelmap.txt", text, encoding="utf-8")
        self._origin = int(all(_is_voc(features, data.grid) for features in data.small_features(wanted)))
        for name in ("Annotations", "ImageSets/Main"):
            (folder / name).mkdir(parents=True)
        self._lists = {
            split: self.enter_context(open_path(folder / f"ImageSets/Main/{split}.txt", "x"))
            for split in data.manifest.splits
        }

    def add(self, record: ExportRecord) -> None:
        """Write the picture, its XML file and the line of its list."""
        objects = self._objects(record)
        file = NO_TEXT.sub("?", self._write_picture(record, objects.grid, "JPEGImages"))
        height, width = objects.grid.size
        root = ElementTree.Element("annotation")
        _add_texts(root, folder="JPEGImages", filename=file)
        channels = self._manifest.field("image").shape[-1]
        _add_texts(ElementTree.SubElement(root, "size"), width=width, height=height, depth=channels)
        for box, (label, sides) in enumerate(zip(objects.labels, objects.corners.tolist(), strict=True)):
            element = ElementTree.SubElement(root, "object")
            flags = objects.flags(box, _VOC_FLAGS)
            _add_texts(element, name=self._names[label], pose=objects.view(box) or "Unspecified")
            _add_texts(element, **{flag: int(flag in flags) for flag in _VOC_FLAGS})
            if not self._origin and all(map(float.is_integer, sides)):
                sides = [side + _FRACTION for side in sides]
            ymin, xmin, ymax, xmax = (int(side) if side.is_integer() else side for side in sides)
            corners = {"xmin": xmin + self._origin, "ymin": ymin + self._origin, "xmax": xmax, "ymax": ymax}
            _add_texts(ElementTree.SubElement(element, "bndbox"), **corners)
        ElementTree.indent(root)
        path = self._folder / "Annotations" / f"{record.name}.xml"
        with open_path(path, "xb") as stream:
            stream.write(ElementTree.tostring(root, "utf-8") + b"\n")
        self._lists[record.split].write(f"{record.name}\n")


def _voc_color(number: int) -> tuple[int, int, int]:
    """Return the color of a class in Pascal VOC's label images (VOClabelcolormap.m of its development kit).

    >>> _voc_color(0), _voc_color(1), _voc_color(2), _voc_color(11)
    ((0, 0, 0), (128, 0, 0), (0, 128, 0), (192, 128, 0))
    """
    red, green, blue = (
        sum((number >> 3 * bit + channel & 1) << 7 - bit for bit in range(8)) for channel in range(3)
    )
    return red, green, blue


def _is_voc(features: Decoded, grid: str) -> bool:
    """Return whether all boxes of a record can be written as VOC's pixel numbers, which begin at 1."""
    corners = corners_of(features, picture_grid(features, grid, displayed=False))
    return bool((corners == np.rint(corners)).all() and (corners[:, 2:] - corners[:, :2] >= 2).all())


def _add_texts(element: ElementTree.Element, **texts: object) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(element, tag).text = str(text)
