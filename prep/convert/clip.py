"""How one clip becomes records: windows of its frames and their masks, each resized as a picture is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.picture import plan_of, size_features
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.tasks.classification import class_features
from halofeed.prep.convert.tasks.clip_labels import open_clip_labels
from halofeed.prep.formats.clip.choose import choose_frames
from halofeed.prep.formats.clip.clip import ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.options.option import derived
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need, with_margin
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import Facts, PictureTally, count_labels, sum_pixels
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.encode import encode_raw
from halofeed.prep.voxels.kernels import resize_image, resize_mask
from halofeed.schemas import keys
from halofeed.schemas.tasks import task_named
from halofeed.schemas.tfexample import Value

Frames = NDArray[np.uint8]
"""[frame, height, width, channel]"""


@dataclass(frozen=True, kw_only=True)
class ClipConverter:
    """Turns references to clips into records, after one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap

    def new_tally(self) -> PictureTally:
        """What `facts` of records are added to."""
        return PictureTally(max_boxes=self.recipe.max_boxes)

    def records(
        self, reference: Reference, files: SourceFiles, need: Need | None = None
    ) -> tuple[Record, ...]:
        """A record of each window of one source; SourceError where it cannot be converted."""
        recipe, need = self.recipe, need or self.recipe.lone_need()
        picture = derived(ReadOptions, recipe, background=recipe.backdrop(), channels=3, dtype="uint8")
        options = ClipOptions(
            picture=picture,
            frame_rate=recipe.folder_frame_rate,
            incomplete=recipe.incomplete_clips,
            refuse_turned=reference.is_labelled and recipe.annotation_grid != "displayed",
            need=need,
        )
        clip = open_clip(files, reference.source, reference.members, options)
        masks = open_clip_labels(recipe, self.labels, reference, files, clip, options)
        chosen = choose_frames(clip.frames, clip.times_s, recipe.frame_choice())
        plan = plan_of(recipe, (clip.height, clip.width))
        shape = (*plan.output_size, recipe.channels)
        has_label = task_named(self.task).has_label_image
        label_bytes = np.dtype(self.labels.dtype).itemsize if has_label else 0
        stored_bytes = int(np.prod(plan.output_size)) * (recipe.channels + label_bytes)
        stored_bytes *= recipe.frame_choice().frames * len(chosen.windows)
        need(with_margin(clip.held_bytes + masks.held_bytes + 2 * clip.frame_bytes + stored_bytes))
        padding = recipe.padding()
        read = [np.empty((len(window), *shape), np.uint8) for window in chosen.windows]
        _fill(
            read,
            chosen.windows,
            clip.read,
            lambda pixels: resize_image(pixels, plan, recipe.interpolation, padding),
        )
        labels: list[NDArray[Any] | None] = [None] * len(read)
        if has_label:
            filled = [np.zeros(frames.shape[:-1], self.labels.dtype) for frames in read]
            if reference.is_labelled:
                ignored, dtype = self.labels.stored_ignore or 0, self.labels.dtype
                _fill(
                    filled,
                    chosen.windows,
                    masks.read,
                    lambda values: resize_mask(values.astype(dtype), plan, ignored),
                )
            labels = [*filled]
        repeated = ("shorter than a window: its last frame is repeated",) * bool(chosen.repeated)
        findings = (*clip.findings, *repeated, *masks.findings())
        reference = replace(reference, notes=(*reference.notes, *findings))
        shown = recipe.frame_choice().frames - chosen.repeated // len(read)
        times_s = np.full(clip.frames, -1.0) if clip.times_s is None else clip.times_s
        return tuple(
            self._record(reference, plan, number, times_s[window], shown, frames, label)
            for number, (window, frames, label) in enumerate(zip(chosen.windows, read, labels, strict=True))
        )

    def _record(
        self,
        reference: Reference,
        plan: ResizePlan,
        number: int,
        times_s: NDArray[np.float64],
        shown: int,
        frames: Frames,
        label: NDArray[Any] | None,
    ) -> Record:
        features: dict[str, Value] = {
            keys.ENCODED: encode_raw(frames, 0),
            keys.FORMAT: b"raw",
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
                keys.LABEL: encode_raw(label[..., None], 0),
                keys.LABELLED: np.array([int(reference.is_labelled)]),
            }
        rows = frames[:, : plan.resized_size[0], : plan.resized_size[1]]
        facts = Facts(
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
        )
        return Record.of(reference, features, facts, number=number)


def _fill(
    filled: Sequence[NDArray[Any]],
    windows: Sequence[NDArray[np.int64]],
    read: Callable[[Sequence[int]], Iterator[NDArray[Any]]],
    resized: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Put the resized frames, or masks, of each window into an array [frame, ...] of it; each is decoded once."""
    places: dict[int, list[NDArray[Any]]] = {}
    for window, of_window in zip(windows, filled, strict=True):
        for index, place in zip(window.tolist(), of_window, strict=True):
            places.setdefault(index, []).append(place)
    for index, pixels in zip(sorted(places), read(list(places)), strict=True):
        one = resized(pixels)
        for place in places[index]:
            place[...] = one
