"""How one picture and its annotations become one record."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.units import in_pixels
from halofeed.prep.convert.label_image import label_on_grid
from halofeed.prep.convert.picture_labels import read_picture_labels
from halofeed.prep.convert.picture_memory import picture_bytes
from halofeed.prep.convert.record import RawValue, Record
from halofeed.prep.formats.picture import DecodedImage, Footprint, ReadOptions, read_image
from halofeed.prep.geometry.boxes import BoxPolicy, PlacedBoxes, place_boxes
from halofeed.prep.geometry.keypoints import OUTSIDE, keypoint_features
from halofeed.prep.geometry.resize import ResizePlan, displayed_size, resizer, stored_to_file
from halofeed.prep.options.recipe import DEFAULT_JPEG_QUALITY, Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need
from halofeed.prep.sources.reference import Box, Reference
from halofeed.prep.statistics.pictures import Facts, Statistics, count_labels, sum_pixels
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.prep.voxels.kernels import resize_image
from halofeed.prep.voxels.masks import encode_mask_png, stored_mask
from halofeed.schemas.errors import SourceError
from halofeed.schemas.identity import example_id
from halofeed.schemas.tasks import KEPT
from halofeed.schemas.tfexample import Value, encode_example

SCALED_DECODE_KERNEL = "antialias"
"""The kernel before which a JPEG may be decoded at a smaller scale, to 8 bits; TensorFlow's see every pixel."""


_UNPROVEN = (
    "has an EXIF orientation, and nothing shows whether it was annotated as stored or as displayed: taken as stored; "
    "say --annotation-grid stored or displayed"
)
_CONTRADICTED = "declared size shows another grid than --annotation-grid says"


@dataclass(frozen=True, kw_only=True)
class PictureConverter:
    """Turns references and bytes into records, after one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap
    _read_options: ReadOptions = field(init=False)
    _policy: BoxPolicy = field(init=False)

    def __post_init__(self) -> None:
        recipe = self.recipe
        options = ReadOptions(
            channels=recipe.channels,
            dtype=recipe.store,
            alpha=recipe.alpha,
            background=recipe.backdrop(),
            max_pixels=recipe.max_pixels,
        )
        policy = BoxPolicy(
            outside=recipe.boxes_outside,
            zero_area=recipe.boxes_zero_area,
            crowd=recipe.boxes_crowd,
            difficult=recipe.boxes_difficult,
        )
        object.__setattr__(self, "_read_options", options)
        object.__setattr__(self, "_policy", policy)

    def new_statistics(self) -> Statistics:
        """What `facts` of records are added to."""
        return Statistics(max_boxes=self.recipe.max_boxes)

    def records(
        self, reference: Reference, files: SourceFiles, need: Need | None = None
    ) -> tuple[Record, ...]:
        """The one record of one source; SourceError where it cannot be converted."""
        need = need or self.recipe.lone_need()
        label, notes = read_picture_labels(self.recipe, self.labels, reference, files, need)
        reference = dataclasses.replace(reference, notes=(*reference.notes, *notes))
        return (self.convert(reference, files.read(reference.source), label, need),)

    def plan(self, source_size: tuple[int, int]) -> ResizePlan:
        """The sizes of a picture whose displayed (height, width) is `source_size`."""
        return plan_of(self.recipe, source_size)

    def needed_size(self, height: int, width: int) -> tuple[int, int]:
        """The least size at which a picture of this displayed size may be decoded: twice the resized one.

        Then the decoder's own scaling differs from that of the whole picture by 0.2 to 0.4 of 255 levels on
        average, at sharp edges by up to 12 (docs/decisions.md).
        """
        resized_height, resized_width = self.plan((height, width)).resized_size
        return 2 * resized_height, 2 * resized_width

    def convert(
        self,
        reference: Reference,
        data: bytes,
        label: NDArray[Any] | None = None,
        need: Need | None = None,
    ) -> Record:
        """Make the record of one source.

        Args:
            reference: the source and its annotations.
            data: the bytes of its file.
            label: the classes of its label images, where it has some.
            need: told how many bytes this takes, before the pixels are decoded; default: as the recipe allows.

        Raises:
            SourceError: this source cannot be converted; says why.
        """
        recipe = self.recipe
        needs = need or recipe.lone_need()
        scaled = recipe.kernel == SCALED_DECODE_KERNEL and recipe.store == "uint8"
        needed = self.needed_size if scaled else None
        label_bytes = 0 if label is None else label.nbytes

        def admit(footprint: Footprint) -> None:
            plan = self.plan(displayed_size(footprint.orientation, footprint.stored_size))
            needs(picture_bytes(recipe, reference, len(data), label_bytes, footprint, plan))

        image = read_image(data, self._read_options, needed, admit)
        plan = self.plan(displayed_size(image.orientation, image.stored_size))
        orientation, warning = _annotated_orientation(reference.declared_size, image, self._grid(reference))
        warnings = (*reference.notes, *([warning] if warning and reference.boxes else []))
        kept_whole = _is_kept_whole(recipe, image, plan)
        pixels = resize_image(image.pixels, plan, recipe.kernel, recipe.padding(), image.extent)
        image = image.without_pixels()
        encoded = data if kept_whole else ENCODERS[recipe.encoding](pixels, recipe.jpeg_quality)
        identity = example_id(reference.key)
        frame_size = displayed_size(orientation, plan.source_size)
        features: dict[str, Value] = {
            "image/encoded": encoded,
            "image/format": recipe.encoding.encode(),
            "image/height": np.array([plan.output_size[0]]),
            "image/width": np.array([plan.output_size[1]]),
            "image/unpadded/height": np.array([plan.resized_size[0]]),
            "image/unpadded/width": np.array([plan.resized_size[1]]),
            "image/source/height": np.array([frame_size[0]]),
            "image/source/width": np.array([frame_size[1]]),
            "image/filename": reference.source.encode("utf-8", "surrogateescape"),
            "image/key/source": str(reference.key).encode("utf-8", "surrogateescape"),
            "image/source_id": str(identity).encode(),
            "image/transform": stored_to_file(plan, orientation),
        }
        if recipe.encoding != "raw":
            features["image/key/sha256"] = hashlib.sha256(encoded).hexdigest().encode()
        facts = Facts(
            pixel_sums=sum_pixels(pixels[: plan.resized_size[0], : plan.resized_size[1]]),
            stored_size=plan.output_size,
            picture_size=plan.resized_size,
            source_size=plan.source_size,
            labels=[],
            boxes=None,
            notes=image.notes,
            warnings=warnings,
        )
        add = {
            "classification": lambda: self._add_classes(reference, features, facts),
            "segmentation": lambda: self._add_label_image(reference, label, image, plan, features, facts),
            "detection": lambda: self._add_boxes(reference, plan, orientation, features, facts),
        }
        bad_objects = add[self.task]()
        raw = {key: value for key, value in features.items() if isinstance(value, memoryview)}
        return Record(
            id=identity,
            example=encode_example(features),
            raw={key: RawValue.of(value) for key, value in raw.items()},
            facts=facts,
            bad_objects=bad_objects,
        )

    def _grid(self, reference: Reference) -> str | None:
        """The grid of a reference's annotations, where the user or the other pictures say it."""
        return reference.grid if self.recipe.annotation_grid == "auto" else self.recipe.annotation_grid

    def _add_classes(
        self, reference: Reference, features: dict[str, Value], facts: Facts
    ) -> tuple[tuple[str, str], ...]:
        added, facts.labels = class_features(reference, self.labels)
        features |= added
        return ()

    def _add_label_image(
        self,
        reference: Reference,
        label: NDArray[Any] | None,
        image: DecodedImage,
        plan: ResizePlan,
        features: dict[str, Value],
        facts: Facts,
    ) -> tuple[tuple[str, str], ...]:
        if label is None:
            indices = np.zeros(plan.output_size, self.labels.dtype)
        else:
            size = (label.shape[0], label.shape[1])
            orientation, warning = _label_orientation(size, image, self._grid(reference))
            facts.warnings += (warning,) if warning else ()
            indices = label_on_grid(label, orientation, image, plan).astype(self.labels.dtype)
            facts.label_voxels = count_labels(indices)
            facts.labels.extend(facts.label_voxels)
        facts.labelled = label is not None
        stored = ENCODERS["raw" if self.recipe.encoding == "raw" else "png"](indices[..., None], 0)
        features["image/label"] = stored
        features["image/labelled"] = np.array([int(label is not None)])
        return ()

    def _add_boxes(
        self,
        reference: Reference,
        plan: ResizePlan,
        orientation: int,
        features: dict[str, Value],
        facts: Facts,
    ) -> tuple[tuple[str, str], ...]:
        """Add the features of the boxes; (reason, detail) of each object that was dropped because it is faulty."""
        frame_size = displayed_size(orientation, plan.source_size)
        boxes = reference.boxes or ()
        if reference.normalized:
            boxes = tuple(in_pixels(box, frame_size) for box in boxes)
        placed = place_boxes(
            np.array([(box.ymin, box.xmin, box.ymax, box.xmax) for box in boxes], np.float64).reshape(-1, 4),
            np.array([np.nan if box.area is None else box.area for box in boxes], np.float64),
            np.array([box.is_crowd for box in boxes], bool),
            np.array([box.difficult for box in boxes], bool),
            plan,
            orientation,
            self._policy,
        )
        bad_objects = list(reference.bad_objects)
        masks: list[bytes] = []
        if self.recipe.masks:
            placed, masks, undrawn = self._draw_masks(boxes, placed, plan, orientation)
            bad_objects += undrawn
            features["image/object/mask"] = masks
        kept = [boxes[index] for index in placed.kept]
        ids = [self.labels.id_of(box.label) for box in kept]
        features.update(_box_features(placed))
        features["image/object/class/label"] = np.array(ids, np.int64)
        features["image/object/class/text"] = [self.labels.names[identity].encode() for identity in ids]
        for name in ("is_crowd", "difficult", "truncated"):
            features[f"image/object/{name}"] = np.array([getattr(box, name) for box in kept], np.int64)
        features.update(_kept_features(kept, self.recipe.keep))
        if "keypoints" in self.recipe.keep:
            points, leave = keypoint_features([box.keypoints for box in kept], plan, orientation)
            features.update(points)
            facts.warnings += (OUTSIDE,) if leave else ()
        facts.labels.extend(ids)
        facts.boxes = len(kept)
        reasons = Counter(f"dropped as {reason}" for reason, _ in bad_objects)
        facts.box_counts = {**placed.counts, **reasons}
        return tuple(bad_objects)

    def _draw_masks(
        self, boxes: Sequence[Box], placed: PlacedBoxes, plan: ResizePlan, orientation: int
    ) -> tuple[PlacedBoxes, list[bytes], list[tuple[str, str]]]:
        """The boxes whose masks can be drawn, these masks, and (reason, detail) of the other objects."""
        drawn: list[bytes] = []
        sound: list[int] = []
        bad: list[tuple[str, str]] = []
        for row, index in enumerate(placed.kept):
            try:
                drawn.append(encode_mask_png(stored_mask(boxes[index].mask, plan, orientation)))
                sound.append(row)
            except SourceError as error:
                if self.recipe.on_bad_object == "reject":
                    raise
                bad.append((error.reason, f"box {index + 1}: {error.detail}"))
        rows = dataclasses.replace(
            placed, boxes=placed.boxes[sound], area=placed.area[sound], kept=placed.kept[sound]
        )
        return rows, drawn, bad


def class_features(reference: Reference, labels: LabelMap) -> tuple[dict[str, Value], list[int]]:
    """The features of an image's classes, and their ids; SourceError where there is none."""
    if reference.label is None and reference.labels is None:
        raise SourceError("annotation", "no class", "a classification example needs one")
    ids = sorted({labels.id_of(label) for label in reference.classes})
    names = [labels.names[label].encode() for label in ids]
    return {"image/class/label": np.array(ids, np.int64), "image/class/text": names}, ids


def _is_kept_whole(recipe: Recipe, image: DecodedImage, plan: ResizePlan) -> bool:
    """Whether a JPEG may stay as it is, metadata included: upright, of the right size, no other quality asked for."""
    return (
        recipe.encoding == "jpeg"
        and recipe.jpeg_quality == DEFAULT_JPEG_QUALITY
        and image.plain_jpeg_channels == recipe.channels
        and plan.output_size == plan.resized_size == plan.source_size == image.pixels.shape[:2]
    )


@lru_cache(maxsize=4096)
def plan_of(recipe: Recipe, source_size: tuple[int, int]) -> ResizePlan:
    """The sizes of a picture whose displayed (height, width) is `source_size`."""
    options = {
        "fixed-shape": {"height": recipe.height, "width": recipe.width},
        "keep-aspect": {
            "min_dimension": recipe.min_dimension,
            "max_dimension": recipe.max_dimension,
            "pad": recipe.pad,
        },
    }
    return resizer(recipe.resize)(source_size, **options.get(recipe.resize, {}))


def _kept_features(boxes: Sequence[Box], keep: Collection[str]) -> dict[str, Value]:
    """What the recipe keeps of each object beside what every record has, but for its keypoints."""
    features: dict[str, Value] = {}
    for name in keep:
        if name == "keypoints":
            continue
        values = [getattr(box, name) for box in boxes]
        if name == "view":
            features[KEPT[name]] = [(value or "").encode() for value in values]
        else:
            features[KEPT[name]] = np.array(values, np.int64)
    return features


def _box_features(placed: PlacedBoxes) -> dict[str, NDArray[Any]]:
    corners = ("ymin", "xmin", "ymax", "xmax")
    features = {
        f"image/object/bbox/{corner}": placed.boxes[:, column] for column, corner in enumerate(corners)
    }
    return {**features, "image/object/area": placed.area}


def _annotated_orientation(
    declared: tuple[int, int] | None, image: DecodedImage, grid: str | None
) -> tuple[int, str | None]:
    """The orientation that lies between the annotations and the displayed picture, and a warning where it is a guess.

    Annotations mostly refer to the pixels as the file stores them, and then follow its EXIF orientation. Some tools
    annotate the picture as displayed; the size that they declare gives them away.

    Args:
        declared: the (height, width) that the annotations claim; None where they claim none.
        grid: "stored" or "displayed" where the user, or the other pictures, say it.
    """
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    if declared is not None and declared not in (stored, displayed):
        raise SourceError(
            "annotation",
            "declared size is not the picture's",
            f"annotations say {declared[1]}x{declared[0]}, the picture is {stored[1]}x{stored[0]}",
        )
    if image.orientation == 1:
        return 1, None
    proven = None
    if declared is not None and stored != displayed:
        proven = "stored" if declared == stored else "displayed"
    turns = {"stored": image.orientation, "displayed": 1}
    if grid is not None:
        return turns[grid], _CONTRADICTED if proven not in (None, grid) else None
    return turns[proven or "stored"], None if proven else _UNPROVEN


def _label_orientation(
    size: tuple[int, int], image: DecodedImage, grid: str | None
) -> tuple[int, str | None]:
    """The same for a label image of this (height, width), whose size is a fact that no option overrules."""
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    if size == displayed != stored:
        return 1, None
    if size == stored != displayed or size not in (stored, displayed):
        return image.orientation, None
    return _annotated_orientation(size, image, grid)
