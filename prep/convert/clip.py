"""How one clip becomes records: windows of its frames and their masks, each resized as a picture is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.picture import plan_of
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.tasks.classification import class_features
from halofeed.prep.convert.tasks.clip_labels import open_clip_labels
from halofeed.prep.formats.clip.choose import choose_frames
from halofeed.prep.formats.clip.clip import Clip, ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.geometry.resize import ResizePlan, stored_to_file
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need, with_margin
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import Facts, PictureTally, count_labels, sum_pixels
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.encode import encode_raw
from halofeed.prep.voxels.kernels import resize_image, resize_mask
from halofeed.schemas import keys
from halofeed.schemas.identity import example_id
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
        picture = ReadOptions(alpha=recipe.alpha, background=recipe.backdrop(), max_pixels=recipe.max_pixels)
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
        label_bytes = np.dtype(self.labels.dtype).itemsize if self._has_label else 0
        stored_bytes = int(np.prod(plan.output_size)) * (recipe.channels + label_bytes)
        stored_bytes *= recipe.frame_choice().frames * len(chosen.windows)
        need(with_margin(clip.held_bytes + masks.held_bytes + 2 * clip.frame_bytes + stored_bytes))
        findings = clip.findings
        if chosen.repeated:
            findings += ("shorter than a window: its last frame is repeated",)
        padding = recipe.padding()
        read = [np.empty((len(window), *shape), np.uint8) for window in chosen.windows]
        _fill(
            read,
            chosen.windows,
            clip.read,
            lambda pixels: resize_image(pixels, plan, recipe.interpolation, padding),
        )
        labels: list[NDArray[Any] | None] = [None] * len(read)
        if self._has_label:
            filled = [np.zeros(frames.shape[:-1], self.labels.dtype) for frames in read]
            if reference.is_labelled:
                _fill(filled, chosen.windows, masks.read, lambda values: resize_mask(values, plan))
            labels = [*filled]
        findings += masks.findings()
        shown = recipe.frame_choice().frames - chosen.repeated // len(read)
        return tuple(
            self._record(reference, clip, plan, number, window, shown, frames, label, findings)
            for number, (window, frames, label) in enumerate(zip(chosen.windows, read, labels, strict=True))
        )

    @property
    def _has_label(self) -> bool:
        return task_named(self.task).has_label_image

    def _record(
        self,
        reference: Reference,
        clip: Clip,
        plan: ResizePlan,
        number: int,
        window: NDArray[np.int64],
        shown: int,
        frames: Frames,
        label: NDArray[Any] | None,
        findings: tuple[str, ...],
    ) -> Record:
        identity = example_id(reference.key if number == 0 else f"{reference.key}#{number}")
        times_s = np.full(len(window), -1.0) if clip.times_s is None else clip.times_s[window]
        features: dict[str, Value] = {
            keys.ENCODED: encode_raw(frames, 0),
            keys.FORMAT: b"raw",
            keys.FRAMES: np.array([len(window)]),
            keys.HEIGHT: np.array([plan.output_size[0]]),
            keys.WIDTH: np.array([plan.output_size[1]]),
            keys.UNPADDED_HEIGHT: np.array([plan.resized_size[0]]),
            keys.UNPADDED_WIDTH: np.array([plan.resized_size[1]]),
            keys.SOURCE_HEIGHT: np.array([clip.height]),
            keys.SOURCE_WIDTH: np.array([clip.width]),
            keys.TIMES_S: times_s.astype(np.float32),
            keys.EXTENT: np.array([0, 0, 0, shown, *plan.resized_size]),
            keys.TILE: np.array([number]),
            keys.TRANSFORM: stored_to_file(plan),
        }
        counts: dict[int, int] = {}
        if label is None:
            added, ids = class_features(reference, self.labels)
            features |= added
        else:
            counts = count_labels(label) if reference.is_labelled else {}
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
            warnings=(*reference.notes, *findings),
        )
        return Record.of(reference, identity, features, facts)


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
