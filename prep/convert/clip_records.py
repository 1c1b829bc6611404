"""Converter of clips: windows of frames and their masks, each resized as a picture is.

A mask of a clip is a folder of PNG files or an animation, and gives a class for every pixel of every frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from posixpath import basename, splitext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.label_image import (
    OVERLAPPED,
    DecodeColors,
    check_mode,
    class_indices,
    classes_of_gray,
    decoder_of,
    merged_labels,
    read_label_image,
)
from halofeed.prep.convert.loss_measures import add_classes, add_instances, add_levels, is_flat, source_name
from halofeed.prep.convert.picture_records import plan_of, size_features
from halofeed.prep.convert.picture_tasks import class_features
from halofeed.prep.convert.record_measures import picture_measures
from halofeed.prep.convert.tallies import PictureFacts, PictureTally, count_labels, sum_pixels
from halofeed.prep.formats.clip.animation import READERS, animation_format, has_alpha, open_animation
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.frame_choice import choose_frames
from halofeed.prep.formats.clip.frame_folder import natural_order, read_still
from halofeed.prep.formats.clip.opened_clip import Clip, FrameOptions
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.formats.picture.gif_webp_bmp import riff_chunks
from halofeed.prep.formats.picture.gray_forms import png_form
from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.picture.png import read_png_header
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.options.option import copy_options
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encode import ENCODERS, LABEL_ENCODERS
from halofeed.prep.voxels.kernels import resize_image, resize_mask
from halofeed.prep.voxels.levels import Levels
from halofeed.prep.voxels.signatures import sign_stack
from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.tasks import task_named
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory
from halofeed.system.wording import plural

LABEL_BYTES = 8
"""Bytes for each pixel of a mask, beside those of its reader: its values, its ids, and the merged ids."""
STEP_S = 0.01
"""Tolerance in seconds: GIF rounds durations to hundredths of a second, other formats to thousandths."""
_CURE = "save masks as a folder of PNG files, one for each frame"

ClipLabel = NDArray[Any]
"""Class indices [height, width]."""


@dataclass(frozen=True, kw_only=True)
class _Mask:
    """An opened mask, whose `decode` yields values [height, width] for ascending indices of frames."""

    decode: Callable[[Sequence[int]], Iterator[ClipLabel]]
    held_bytes: int


@dataclass(kw_only=True)
class ClipLabels:
    """The opened masks of a clip, one for each frame.

    Args:
        held_bytes: maximum number of bytes held during reading.
        overlapped: number of pixels of several classes read so far.
        classes: class ids in the masks read so far.
    """

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    clip: Clip
    masks: dict[str, _Mask]
    held_bytes: int
    overlapped: int = 0
    classes: frozenset[int] = frozenset()

    def read(self, indices: Sequence[int]) -> Iterator[ClipLabel]:
        """Yield the class indices of these frames, each once, by ascending index.

        Raises:
            SourceError: a mask is damaged, has another size than its frame, or has an unknown class.
        """
        ordered = sorted(set(indices))
        decoded = {path: mask.decode(ordered) for path, mask in self.masks.items()}
        for index in ordered:
            values = {path: next(found) for path, found in decoded.items()}
            for path, one in values.items():
                if one.shape != (self.clip.height, self.clip.width):
                    sizes = f"{one.shape[0]} x {one.shape[1]} pixels (height x width), its frame "
                    detail = f"{path}, frame {index}: {sizes}{self.clip.height} x {self.clip.width}"
                    raise SourceError("annotation", "mask is of another size than its frame", detail)
            label, overlapped, classes = merged_labels(self.recipe, self.labels, self.reference, values.pop)
            assert label is not None
            self.overlapped += overlapped
            self.classes |= classes
            yield label

    def findings(self) -> tuple[str, ...]:
        """Return findings about the masks read so far."""
        return (OVERLAPPED.format(self.recipe.class_overlap),) if self.overlapped else ()


def open_clip_labels(
    recipe: Recipe,
    labels: LabelMap,
    reference: SourceExample,
    files: SourceFiles,
    clip: Clip,
    options: FrameOptions,
) -> ClipLabels:
    """Open the masks of a clip: folders of PNG files, or animated PNG, GIF or WebP files, with one mask for each frame.

    Raises:
        SourceError: numbers, names or times of masks and frames differ, or a mask's format is lossy or unsupported.
    """
    folders = dict(reference.mask_members)
    masks: dict[str, _Mask] = {}
    for path in reference.mask_paths:
        # A mask is a folder of files, one for each frame, or one animation.
        if frames := folders.get(path):
            _check_names(natural_order(frames), natural_order(reference.members))
            _check_count(path, len(frames), clip)
            colors = decoder_of(recipe.label_coding())
            masks[path] = _open_folder(files, natural_order(frames), options, labels, colors)
        else:
            masks[path] = _open_animation(files, path, clip, options, labels)
    pixels = clip.height * clip.width
    held_bytes = sum(mask.held_bytes for mask in masks.values()) + (1 + len(masks)) * LABEL_BYTES * pixels
    return ClipLabels(
        recipe=recipe, labels=labels, reference=reference, clip=clip, masks=masks, held_bytes=held_bytes
    )


def _check_count(path: str, masks: int, clip: Clip) -> None:
    # One mask too many or too few shifts all that follow it.
    if masks != clip.frames:
        detail = (
            f"{path}: {plural(masks, 'mask')}, {plural(clip.frames, 'frame')}; each frame takes one mask "
            f"(writers of animations leave out frames that repeat: {_CURE})"
        )
        raise SourceError("annotation", "masks are not as many as frames", detail)


def _check_names(masks: Sequence[str], frames: Sequence[str]) -> None:
    """Refuse mask files whose names do not match those of the clip's frame files.

    A mask has its frame's name with an optional suffix (`0001_L`), or all masks have the numbers of their frames.
    """
    if not frames:
        return
    named = [(_stem(frame), _stem(mask)) for frame, mask in zip(frames, masks, strict=False)]
    if len(masks) == len(frames) and (all(map(_extends_name, named)) or all(map(_has_numbers, named))):
        return
    in_numbers = f"{plural(len(masks), 'mask')}, {plural(len(frames), 'frame')}"
    if len(masks) < len(frames) and (lone := _find_lone_frame(masks, frames)):
        detail = f"{in_numbers}, and none for {lone!r}; leave out frames without one"
        raise SourceError("annotation", "masks are not as many as frames", detail)
    first = next(iter(named), ("", ""))
    frame, mask = next((pair for pair in named if _numbers(pair[0]) != _numbers(pair[1])), first)
    detail = f"{in_numbers}; beside frame {frame!r} stands mask {mask!r}; give each mask its frame's name"
    raise SourceError("annotation", "names of masks are not those of frames", detail)


def _extends_name(pair: tuple[str, str]) -> bool:
    """Return whether a mask has the name of its frame and a suffix that is no further digit: 1_L, and not 10, of 1."""
    frame, mask = pair
    return mask.startswith(frame) and not mask[len(frame) :][:1].isdigit()


def _has_numbers(pair: tuple[str, str]) -> bool:
    """Return whether a mask has the numbers of its frame, of which there is at least one."""
    numbers = _numbers(pair[0])
    return bool(numbers) and numbers == _numbers(pair[1])


def _find_lone_frame(masks: Sequence[str], frames: Sequence[str]) -> str | None:
    """Return the first frame whose numbers no mask has."""
    of_masks = {_numbers(_stem(mask)) for mask in masks}
    return next((one for one in frames if _numbers(_stem(one)) not in of_masks), None)


def _stem(path: str) -> str:
    return splitext(basename(path))[0]


def _numbers(stem: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", stem)))


def _open_folder(
    files: SourceFiles,
    paths: Sequence[str],
    options: FrameOptions,
    labels: LabelMap,
    decode_colors: DecodeColors | None,
) -> _Mask:
    def decode(indices: Sequence[int]) -> Iterator[ClipLabel]:
        for index in indices:
            try:
                yield read_label_image(
                    read_still(files, paths[index]),
                    options.picture.max_pixels,
                    options.reserve,
                    decode_colors,
                    labels,
                )
            except SourceError as error:
                raise error.at(f"mask {paths[index]!r}") from error

    return _Mask(decode=decode, held_bytes=max(files.size(path) or 0 for path in paths))


def _open_animation(
    files: SourceFiles, path: str, clip: Clip, options: FrameOptions, labels: LabelMap
) -> _Mask:
    options.reserve(files.size(path) or 0)
    data = files.read(path)
    name = animation_format(data)
    if name is None:
        begins = f"{path} begins with {data[:8].hex(' ') or 'nothing'}"
        raise decode_error(
            "mask of a clip is no animation without loss",
            f"{begins}; read are animated PNG, GIF and lossless WebP; {_CURE}",
        )
    if name == "webp" and _is_lossy_webp(data):
        raise decode_error("mask is stored with loss", f"{path} is a lossy WebP file; {_CURE}")
    take = _numbers_of_png(data, labels) if name == "png" else _gray_values
    opened = open_animation(data, name, options, take)
    _check_count(path, opened.frames, clip)
    # Programs that write masks leave the durations at 0, which states no times.
    if any(READERS[name][0](data).durations_ms):
        _check_times(path, opened, clip)
    return _Mask(decode=opened.decode, held_bytes=opened.held_bytes)


def _is_lossy_webp(data: bytes) -> bool:
    """Return whether a picture of a WebP file is lossy.

    The chunk "VP8 " is lossy, and "VP8L" lossless. A frame's chunk begins behind the 16 bytes of the frame's header
    (RFC 9649, sections 2.5, 2.6 and 2.7.1.1).
    """
    return any(
        kind == b"VP8 " or (kind == b"ANMF" and bytes(payload[16:20]) != b"VP8L")
        for kind, payload in riff_chunks(data)
    )


def _check_times(path: str, mask: Clip, clip: Clip) -> None:
    """Refuse an animation whose masks have other durations than the clip's frames."""
    # Folders of frames state no times.
    if mask.times_s is None or clip.times_s is None:
        return
    expected, found = np.diff(clip.times_s), np.diff(mask.times_s)
    differ = np.abs(found - expected) > np.minimum(STEP_S, expected / 2) + 0.001
    if differ.any():
        frame = int(np.argmax(differ))
        raise SourceError(
            "annotation",
            "times of masks are not those of frames",
            f"{path}: mask {frame} is shown for {found[frame]:g} s and its frame for {expected[frame]:g} s; {_CURE}",
        )


def _numbers_of_png(data: bytes, labels: LabelMap) -> Callable[[Image.Image, ReadOptions], ClipLabel]:
    header = read_png_header(data)

    def take(image: Image.Image, options: ReadOptions) -> ClipLabel:
        check_mode(image.mode)
        stored = class_indices(np.array(image, np.uint8 if image.mode == "1" else None), header)
        return classes_of_gray(stored, png_form(data, header), labels)

    return take


def _gray_values(image: Image.Image, options: ReadOptions) -> ClipLabel:
    """Return the gray values of a composed frame of a GIF or WebP file, whose palette may change between frames."""
    colors = np.asarray(image.convert("RGBA" if has_alpha(image) else "RGB"))
    # A transparent pixel shows what an earlier frame or the viewer has there.
    if (colors[..., 3:] < 255).any():
        raise decode_error("mask has transparent pixels", f"which are of no class; {_CURE}")
    gray = colors[..., 0]
    # GIF and WebP store colors, and the index of a color is the encoder's choice.
    if (colors[..., 1:3] != gray[..., None]).any():
        raise decode_error(
            "mask is in color",
            "the palette of an animation may change from frame to frame; expected the gray value 1 for class 1, and "
            f"so on, or {_CURE}",
        )
    return gray


Frames = NDArray[np.uint8]
"""[frame, height, width, channel]"""


@dataclass(frozen=True, kw_only=True)
class ClipConverter:
    """Converter of references to clips into records, for one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap

    def new_tally(self) -> PictureTally:
        """Return a tally for the facts of records."""
        return PictureTally(max_boxes=self.recipe.max_boxes)

    def records(
        self, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory | None = None
    ) -> tuple[Record, ...]:
        """Return a record for each window of one source; raise SourceError where it cannot be converted."""
        recipe, reserve = self.recipe, reserve or self.recipe.reserve_alone()
        levels: list[Levels] = []
        options = self._frame_options(reference, reserve, levels)
        clip = open_clip(files, reference.source, reference.members, options)
        masks = open_clip_labels(recipe, self.labels, reference, files, clip, options)
        chosen = choose_frames(clip.frames, clip.times_s, recipe.frame_choice())
        plan = plan_of(recipe, (clip.height, clip.width))
        stored_bytes = self._stored_bytes(plan, len(chosen.windows))
        reserve(clip.held_bytes + masks.held_bytes + 2 * clip.frame_bytes + stored_bytes)
        padding = recipe.padding()
        shape = (*plan.output_size, recipe.channels)
        read = [np.empty((len(window), *shape), np.uint8) for window in chosen.windows]
        _fill(
            read,
            chosen.windows,
            clip.read,
            lambda pixels: resize_image(pixels, plan, recipe.interpolation, padding),
        )
        labels = self._read_labels(reference, masks, chosen.windows, plan)
        repeated = ("shorter than a window: its last frame is repeated",) * bool(chosen.repeated)
        findings = (*clip.findings, *repeated, *masks.findings())
        reference = replace(reference, notes=(*reference.notes, *findings))
        shown = recipe.frame_choice().frames - chosen.repeated // len(read)
        times_s = np.full(clip.frames, -1.0) if clip.times_s is None else clip.times_s
        ledger = self._count_source(reference, read, labels, plan, levels, masks)
        return tuple(
            self._record(
                reference,
                plan,
                number,
                times_s[window],
                shown,
                frames,
                label,
                ledger if number == 0 else None,
            )
            for number, (window, frames, label) in enumerate(zip(chosen.windows, read, labels, strict=True))
        )

    @property
    def _has_label(self) -> bool:
        """True if records have a class for each pixel."""
        return task_named(self.task).has_label_image

    def _frame_options(
        self, reference: SourceExample, reserve: ReserveMemory, levels: list[Levels]
    ) -> FrameOptions:
        """Return the options for reading the frames; the levels of each 16-bit frame are added to `levels`."""
        recipe = self.recipe
        stored = {"channels": 3, "dtype": "uint8", "may_be_uint16": False}
        picture = copy_options(ReadOptions, recipe, background=recipe.backdrop(), **stored)
        return FrameOptions(
            picture=picture,
            frame_rate=recipe.folder_frame_rate,
            incomplete=recipe.incomplete_clips,
            # Masks of a turned clip may be drawn as stored or as displayed, which no size of a square proves.
            refuse_turned=reference.is_labelled and recipe.annotation_grid != "displayed",
            reserve=reserve,
            note_levels=levels.append,
        )

    def _stored_bytes(self, plan: ResizePlan, windows: int) -> int:
        """Return the bytes of the frames and masks of all windows."""
        label_bytes = np.dtype(self.labels.dtype).itemsize if self._has_label else 0
        frame_bytes = int(np.prod(plan.output_size)) * (self.recipe.channels + label_bytes)
        # Packed records of all windows are made beside the arrays.
        held = 1 if ENCODINGS[self.recipe.encoding].is_fixed_size else 2
        return held * frame_bytes * self.recipe.frame_choice().frames * windows

    def _read_labels(
        self,
        reference: SourceExample,
        masks: ClipLabels,
        windows: Sequence[NDArray[np.int64]],
        plan: ResizePlan,
    ) -> Sequence[NDArray[Any] | None]:
        """Return the masks [frame, height, width] of each window: zeros without masks, None for other tasks."""
        # Records of classification have no masks.
        if not self._has_label:
            return [None] * len(windows)
        ignored, dtype = self.labels.stored_ignore or 0, self.labels.dtype
        filled = [np.zeros((len(window), *plan.output_size), dtype) for window in windows]
        if reference.is_labelled:
            _fill(
                filled, windows, masks.read, lambda values: resize_mask(values.astype(dtype), plan, ignored)
            )
        return filled

    def _count_source(
        self,
        reference: SourceExample,
        windows: Sequence[Frames],
        labels: Sequence[NDArray[Any] | None],
        plan: ResizePlan,
        levels: Sequence[Levels],
        masks: ClipLabels,
    ) -> LedgerCounter:
        """Return what the conversion did to the information of a clip, for the first of its records."""
        known = masks.classes - {self.labels.stored_ignore}
        rows, columns = plan.resized_size
        ledger = _clip_ledger(
            reference, [frames[:, :rows, :columns] for frames in windows], labels, levels, known
        )
        if reference.is_labelled and self.labels.is_open:
            for label in labels:
                if label is not None:
                    found = count_labels(label).items()
                    counts = {value: count for value, count in found if value in known}
                    add_instances(ledger, label, counts, reference.source)
        return ledger

    def _record(
        self,
        reference: SourceExample,
        plan: ResizePlan,
        number: int,
        times_s: NDArray[np.float64],
        shown: int,
        frames: Frames,
        label: NDArray[Any] | None,
        ledger: LedgerCounter | None,
    ) -> Record:
        encoding = self.recipe.encoding
        features: dict[str, Value] = {
            keys.ENCODED: ENCODERS[encoding](frames, 0),
            keys.FORMAT: encoding.encode(),
            keys.FRAMES: np.array([len(frames)]),
            **size_features(plan),
            keys.TIMES_S: times_s.astype(np.float32),
            keys.EXTENT: np.array([0, 0, 0, shown, *plan.resized_size]),
            keys.TILE: np.array([number]),
        }
        counts: dict[int, int] = {}
        if label is None:
            added, ids = class_features(reference, self.labels)
            features |= added
        else:
            counts = count_labels(label) if reference.is_labelled else {}
            counts = {value: count for value, count in counts.items() if value != self.labels.stored_ignore}
            ids = [*counts]
            features |= {
                keys.LABEL: LABEL_ENCODERS[encoding](label[..., None], 0),
                keys.LABELLED: np.array([int(reference.is_labelled)]),
            }
        rows = frames[:, : plan.resized_size[0], : plan.resized_size[1]]
        facts = PictureFacts(
            pixel_sums=sum_pixels(rows.reshape(-1, *rows.shape[2:])),
            stored_size=plan.output_size,
            picture_size=plan.resized_size,
            source_size=plan.source_size,
            labels=ids,
            boxes=None,
            labelled=None if label is None else reference.is_labelled,
            label_voxels=counts,
            is_tile=number > 0,
            warnings=reference.notes,
            ledger=ledger or LedgerCounter(),
        )
        signature = sign_stack(rows[:shown], reference.origin, reference.group)
        # The frames are much alike; padding has no values of the clip.
        measures = picture_measures(rows[shown // 2], facts.pixel_sums, plan.source_size)
        return Record.of(
            reference,
            features,
            facts,
            number=number,
            encoding=encoding,
            signature=signature,
            measures=measures,
        )


def _clip_ledger(
    reference: SourceExample,
    windows: Sequence[Frames],
    labels: Sequence[NDArray[Any] | None],
    levels: Sequence[Levels],
    classes: frozenset[int],
) -> LedgerCounter:
    """Return what the conversion did to the information of a clip, for the first of its records.

    Args:
        windows: frames of each record.
        labels: masks of each record; None without them.
        levels: levels of each 16-bit frame that was scaled to 8 bits; the frame that lost the most counts.
        classes: class ids in the masks of the source.
    """
    ledger, source = LedgerCounter(), reference.source
    ledger.count("sources")
    worst = max(levels, key=lambda one: (one.is_flat, one.loss), default=None)
    if worst is not None:
        add_levels(ledger, worst, source)
    flat = [is_flat(frames) for frames in windows]
    ledger.count("one_value_records", sum(flat), source_name(source))
    # Frames of one value that have one in the source too lost nothing.
    if all(flat) and worst is not None and worst.before > 1:
        ledger.count("flattened_records", 1, f"{source_name(source)}: {worst.text()}")
    if reference.is_labelled:
        shown = [np.flatnonzero(np.bincount(label.ravel())) for label in labels if label is not None]
        add_classes(ledger, classes, {int(value) for values in shown for value in values}, source)
    return ledger


def _fill(
    arrays: Sequence[NDArray[Any]],
    windows: Sequence[NDArray[np.int64]],
    read: Callable[[Sequence[int]], Iterator[NDArray[Any]]],
    resize: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Write the resized frames or masks of each window into its array [frame, ...]; decode each frame once."""
    targets: dict[int, list[NDArray[Any]]] = {}
    for window, array in zip(windows, arrays, strict=True):
        for index, target in zip(window.tolist(), array, strict=True):
            targets.setdefault(index, []).append(target)
    for index, pixels in zip(sorted(targets), read(list(targets)), strict=True):
        resized = resize(pixels)
        for target in targets[index]:
            target[...] = resized
