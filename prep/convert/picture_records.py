"""Converter of pictures: one record for each picture and its annotations, and the memory that it needs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.drawn_boxes import with_drawn_boxes
from halofeed.prep.convert.label_image import read_picture_labels
from halofeed.prep.convert.loss_measures import add_levels, add_picture
from halofeed.prep.convert.picture_tasks import ADDERS, AnnotatedPicture, add_samples, annotated_orientation
from halofeed.prep.convert.record_measures import picture_measures
from halofeed.prep.convert.tallies import (
    PictureFacts,
    PictureTally,
    count_differences,
    loaded_colors,
    sum_pixels,
)
from halofeed.prep.formats.picture import FIRST_OF_SEVERAL, DecodedImage, Footprint, ReadOptions, read_image
from halofeed.prep.formats.picture.image import (
    BURNED_IN_TEXT,
    FEWER_BITS,
    GRAY_BANDS,
    IGNORED_WINDOWS,
    MORE_BANDS,
    NARROW_VALUES,
    OVERLAYS_LEFT_OUT,
    SEVERAL_VIEWS,
    PictureFile,
)
from halofeed.prep.formats.picture.jpeg import without_metadata
from halofeed.prep.geometry.resize import ResizePlan, displayed_size, resizer, stored_to_file
from halofeed.prep.options.option import copy_options
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.recipe_options import DEFAULT_JPEG_QUALITY
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.prep.voxels.kernels import resize_bytes, resize_image
from halofeed.prep.voxels.masks import mask_bytes
from halofeed.prep.voxels.signatures import sign_picture
from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.kinds import SPACING, STATED_FIELDS
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.tfexample import Value
from halofeed.system.memory import ReserveMemory

BOX_BYTES = 2048
"""Bytes of an object with its features."""
DICOM_WARNINGS = (BURNED_IN_TEXT, OVERLAYS_LEFT_OUT, SEVERAL_VIEWS, IGNORED_WINDOWS, NARROW_VALUES)
_WARNINGS = (FEWER_BITS, GRAY_BANDS, MORE_BANDS, *DICOM_WARNINGS)
"""Notes of decoders about guesses, which are printed as warnings."""
_ENCODED = {"raw": 0.0, "packed": 1.0, "yuv420": 1.5, "jpeg": 2.0, "png": 2.7}
_ENCODED_LABEL = {"raw": 0, "packed": 1, "yuv420": 1, "jpeg": 3, "png": 3}
"""Maximum memory for encoding as a multiple of the pixels, and of the pixels of a label: JPEG and PNG need a copy with
swapped channels, and a file may be as large; that of an incompressible PNG is held twice."""


def picture_bytes(
    recipe: Recipe,
    reference: SourceExample,
    file_bytes: int,
    label_bytes: int,
    footprint: Footprint,
    plan: ResizePlan,
) -> int:
    """Return the maximum number of bytes held while one picture becomes a record.

    Args:
        file_bytes: bytes of the picture's file.
        label_bytes: bytes of its class indices; 0 without a label image.
        footprint: memory for reading the picture.
        plan: plan of the displayed picture.
    """
    sample_bytes = np.dtype(recipe.dtype).itemsize
    channels = recipe.channels
    resized, output = plan.resized_size, plan.output_size
    moved = resized != footprint.size or output != resized
    output_pixels = output[0] * output[1]
    output_bytes = output_pixels * channels * sample_bytes
    held = file_bytes + label_bytes
    working = (
        resize_bytes((*footprint.size, channels), resized, recipe.interpolation, sample_bytes) if moved else 0
    )
    stages = [
        footprint.peak_bytes,
        footprint.pixel_bytes + working + output_bytes * moved,
        output_bytes + round(output_bytes * _ENCODED[recipe.encoding]),
    ]
    # The label image is resized while the encoded picture is held.
    if label_bytes:
        encoded = _ENCODED_LABEL[recipe.encoding]
        label = label_bytes // max(1, plan.source_size[0] * plan.source_size[1])
        picked = resized[0] * plan.source_size[1] * label
        stages.append(output_bytes * 2 + picked + output_pixels * max(1, label) * (2 + encoded))
    boxes = reference.boxes or ()
    if recipe.masks and boxes:
        drawn = max(mask_bytes(box.mask, plan) for box in boxes)
        stages.append(2 * output_bytes + drawn)
    return held + max(stages) + BOX_BYTES * len(boxes)


SEVERAL_PICTURES = (
    "the file holds several pictures or frames, of which the first was taken; for all of them write each to a file of "
    "its own, or take animations as clips with --frames"
)
SCALED_DECODE_KERNEL = "antialias"
"""Kernel before which a JPEG may be decoded at a smaller scale, to 8 bits; TensorFlow's kernels need every pixel."""


def with_frame(
    recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory
) -> SourceFiles:
    """Return the files of a picture, which has one more file if it is a frame of a video."""
    if reference.video_frame is None:
        return files
    from halofeed.prep.formats.clip.frame_pictures import FrameFiles
    from halofeed.prep.formats.clip.opened_clip import FrameOptions

    stored = {"channels": 3, "dtype": "uint8", "may_be_uint16": False}
    picture = copy_options(ReadOptions, recipe, background=recipe.backdrop(), **stored)
    # A video with missing frames still has those that are asked for.
    return FrameFiles(files, reference, FrameOptions(picture=picture, incomplete="keep", reserve=reserve))


def frame_in_file(reference: SourceExample, files: SourceFiles) -> PictureFile | None:
    """Return the frame of a DICOM file that is a picture of its own; None where the complete file has to be read."""
    if reference.frame is None:
        return None
    from halofeed.prep.formats.picture.dicom_picture import frame_of_file  # takes 0.2 s

    return frame_of_file(files, reference.source, reference.frame)


@dataclass(frozen=True, kw_only=True)
class PictureConverter:
    """Converter of references and bytes into records, for one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap

    @cached_property
    def _read_options(self) -> ReadOptions:
        return copy_options(ReadOptions, self.recipe, background=self.recipe.backdrop(), may_be_uint16=True)

    def new_tally(self) -> PictureTally:
        """Return a tally for the facts of records."""
        return PictureTally(max_boxes=self.recipe.max_boxes)

    def records(
        self, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory | None = None
    ) -> tuple[Record, ...]:
        """Return the record of one source; raise SourceError where it cannot be converted."""
        reserve = reserve or self.recipe.reserve_alone()
        files = with_frame(self.recipe, reference, files, reserve)
        reference = with_drawn_boxes(reference, files, self.recipe, reserve)
        label, notes, classes = read_picture_labels(self.recipe, self.labels, reference, files, reserve)
        reference = dataclasses.replace(reference, notes=(*reference.notes, *notes))
        picture = frame_in_file(reference, files) or files.read(reference.source)
        return (self.convert(reference, picture, label, reserve, classes),)

    def needed_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the minimum size for decoding a picture of this displayed size: twice the size after resizing.

        At this size, decoding to scale differs from scaling the full picture by 0.2 to 0.4 of 255 levels on average,
        and by up to 12 at sharp edges (docs/decisions.md).
        """
        resized_height, resized_width = plan_of(self.recipe, (height, width)).resized_size
        return 2 * resized_height, 2 * resized_width

    def convert(
        self,
        reference: SourceExample,
        data: bytes | PictureFile,
        label: NDArray[Any] | None = None,
        reserve: ReserveMemory | None = None,
        classes: Collection[int] = (),
    ) -> Record:
        """Return the record of one source.

        Args:
            data: bytes of its file, or the frame that is read from it.
            label: class indices from its label images, if there are any.
            reserve: called with the number of bytes before pixels are decoded; default: the recipe's limit.
            classes: class ids that occur in its label images.

        Raises:
            SourceError: this source cannot be converted.
        """
        recipe = self.recipe
        reserve_bytes = reserve or recipe.reserve_alone()
        scaled = recipe.interpolation == SCALED_DECODE_KERNEL and recipe.dtype == "uint8"
        needed = self.needed_size if scaled else None
        label_bytes = 0 if label is None else label.nbytes
        file_bytes = len(data) if isinstance(data, bytes) else data.byte_count

        def reserve_decoding(footprint: Footprint) -> None:
            plan = plan_of(recipe, footprint.displayed_size)
            reserve_bytes(picture_bytes(recipe, reference, file_bytes, label_bytes, footprint, plan))

        ledger = LedgerCounter()

        grid = reference.grid if recipe.annotation_grid == "auto" else recipe.annotation_grid

        def inspect(samples: DecodedImage) -> None:
            add_samples(ledger, samples, reference, label, grid, self._read_options)

        image = read_image(data, self._read_options, needed, reserve_decoding, inspect, reference.frame or 0)
        plan = plan_of(recipe, displayed_size(image.orientation, image.stored_size))
        orientation, warning = annotated_orientation(reference.declared_size, image, grid)
        keeps_file = _keeps_file(recipe, image, plan)
        pixels = resize_image(image.pixels, plan, recipe.interpolation, recipe.padding(), image.extent)
        ledger.count("sources")
        if image.levels is not None:
            add_levels(ledger, image.levels, reference.source)
        shown = pixels[: plan.resized_size[0], : plan.resized_size[1]]
        add_picture(ledger, shown, image.pixels, image.levels, reference.source)
        signature = sign_picture(shown, reference.origin, reference.group)
        image = dataclasses.replace(image, pixels=image.pixels[:0].copy())  # frees the pixels
        # Encoding a JPEG again would lose a little of it.
        kept = data if keeps_file and isinstance(data, bytes) else None
        encoded = _encode(recipe, pixels) if kept is None else without_metadata(kept)
        features: dict[str, Value] = {
            keys.ENCODED: encoded,
            keys.FORMAT: recipe.encoding.encode(),
            **size_features(plan, orientation),
            **stated_features(image, plan),
        }
        if ENCODINGS[recipe.encoding].is_file:
            features[keys.KEY_SHA256] = hashlib.sha256(encoded).hexdigest().encode()
        loaded = loaded_colors(recipe.encoding, pixels, encoded)
        loaded = None if loaded is None else loaded[: shown.shape[0], : shown.shape[1]]
        compared = shown if loaded is None else loaded
        facts = PictureFacts(
            pixel_sums=sum_pixels(compared),
            color_errors=None if loaded is None else count_differences(loaded, shown),
            stored_size=plan.output_size,
            picture_size=plan.resized_size,
            source_size=plan.source_size,
            labels=[],
            boxes=None,
            notes=tuple(note for note in image.notes if note not in _WARNINGS),
            warnings=(*reference.notes, *_picture_warnings(image, warning if reference.boxes else None)),
            ledger=ledger,
            stated=stated_fields_of(features),
        )
        # Here the rows that `sum_pixels` read are still in the cache.
        source_size = displayed_size(orientation, plan.source_size)
        measures = picture_measures(compared, facts.pixel_sums, source_size)
        picture = AnnotatedPicture(
            recipe=recipe,
            labels=self.labels,
            reference=reference,
            label=label,
            classes=classes,
            image=image,
            plan=plan,
            grid=grid,
            orientation=orientation,
        )
        bad_objects = ADDERS[self.task](picture, features, facts)
        return Record.of(
            reference,
            features,
            facts,
            bad_objects,
            encoding=recipe.encoding,
            signature=signature,
            measures=measures,
        )


def _picture_warnings(image: DecodedImage, about_boxes: str | None) -> Iterator[str]:
    """Yield the warnings about the grid of the boxes, and about guesses of the decoder."""
    # The grid of the annotations matters for boxes; label images have a size that shows theirs.
    if about_boxes:
        yield about_boxes
    if FIRST_OF_SEVERAL in image.notes:
        yield SEVERAL_PICTURES
    yield from (note for note in _WARNINGS if note in image.notes)


def _encode(recipe: Recipe, pixels: NDArray[Any]) -> bytes | memoryview:
    return ENCODERS[recipe.encoding](pixels, recipe.jpeg_quality)


def _keeps_file(recipe: Recipe, image: DecodedImage, plan: ResizePlan) -> bool:
    """Return whether a JPEG's compressed data can be stored unchanged: upright, right size, default quality."""
    return (
        recipe.encoding == "jpeg"
        and recipe.jpeg_quality == DEFAULT_JPEG_QUALITY
        and image.plain_jpeg_channels == recipe.channels
        and plan.output_size == plan.resized_size == plan.source_size == image.pixels.shape[:2]
    )


@lru_cache(maxsize=4096)
def plan_of(recipe: Recipe, source_size: tuple[int, int]) -> ResizePlan:
    """Return the resize plan of a picture whose displayed (height, width) is `source_size`."""
    options = {
        "fixed-shape": (recipe.height, recipe.width),
        "keep-aspect": (recipe.min_dimension, recipe.max_dimension, recipe.pad),
    }
    return resizer(recipe.resize)(source_size, *options.get(recipe.resize, ()))


def size_features(plan: ResizePlan, orientation: int = 1) -> dict[str, Value]:
    """Return the features of a resized picture's sizes and of its transform.

    Args:
        orientation: EXIF orientation, 1 to 8, from the source's grid to the displayed picture.
    """
    source_height, source_width = displayed_size(orientation, plan.source_size)
    return {
        keys.HEIGHT: np.array([plan.output_size[0]]),
        keys.WIDTH: np.array([plan.output_size[1]]),
        keys.UNPADDED_HEIGHT: np.array([plan.resized_size[0]]),
        keys.UNPADDED_WIDTH: np.array([plan.resized_size[1]]),
        keys.SOURCE_HEIGHT: np.array([source_height]),
        keys.SOURCE_WIDTH: np.array([source_width]),
        keys.TRANSFORM: stored_to_file(plan, orientation),
    }


def stated_fields_of(features: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the names of the fields of `STATED_FIELDS` that a record has."""
    return tuple(name for name, field in STATED_FIELDS.items() if field.keys[0] in features)


def stated_features(image: DecodedImage, plan: ResizePlan) -> dict[str, Value]:
    """Return the features of what a file states about its picture; none for what it does not state.

    The spacing is that of the stored pixels along their rows and columns: padding does not change it, and a side that
    is scaled to half as many pixels doubles it.
    """
    features: dict[str, Value] = {
        STATED_FIELDS[name].keys[0]: word.encode() for name, word in image.stated.words
    }
    if image.stated.spacing_mm is not None:
        displayed_mm = np.array(image.stated.spacing_mm)
        # EXIF 2.3, Orientation: 5 to 8 exchange rows and columns.
        displayed_mm = displayed_mm[::-1] if image.orientation >= 5 else displayed_mm
        features[STATED_FIELDS[SPACING].keys[0]] = (displayed_mm / plan.scale).astype(np.float32)
    return features
