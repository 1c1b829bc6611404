"""How one scan and its labels become records: read, turned, resampled, cropped or padded, windowed, stored.

    scan ──> canonical ──> orthogonal ──> spacing ──> foreground ──> static shape ──> window, dtype
    mask ──> canonical ──────── the same steps, planned once on the scan's grid ────> class indices

Everything is planned on grids before a voxel is moved, and the image and its label are sampled by one plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.label_volume import LabelReader
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.volume_memory import conversion_bytes, label_bytes
from halofeed.prep.formats.volumes import open_scan
from halofeed.prep.geometry.orientation import offset_between, plan_canonical, plan_orthogonal, tolerance_for
from halofeed.prep.geometry.scan import Finding, Grid, Scan, Shape
from halofeed.prep.geometry.tiles import Tile, plan_tiles
from halofeed.prep.geometry.volume import (
    Plan,
    compose,
    describe,
    plan_crop_or_pad,
    plan_resample,
    plan_stretch,
)
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.volumes import SCAN
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.counts import percentile_window, standard_of
from halofeed.prep.statistics.coverage import Coverage, measure_coverage, shown_by
from halofeed.prep.statistics.pictures import count_labels
from halofeed.prep.statistics.volumes import VolumeFacts, VolumeTally, count_values
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.apply import apply_image, apply_mask, apply_sets, view_of
from halofeed.prep.voxels.encode import encode_raw
from halofeed.prep.voxels.foreground import (
    CT_FOREGROUND_HU,
    carry_box,
    foreground_box,
    label_box,
    mean_of,
    plan_foreground_crop,
)
from halofeed.prep.voxels.hounsfield import check_declared, check_values
from halofeed.prep.voxels.intensity import LARGEST_ROUNDING_LOSS, IntensityPlan
from halofeed.prep.voxels.memory_order import in_memory_order
from halofeed.schemas import keys
from halofeed.schemas.class_sets import count_members
from halofeed.schemas.errors import SourceError
from halofeed.schemas.tfexample import Value

Voxels = NDArray[Any]
_NARROW_RANGE = 16
"""Whole numbers would flatten a channel of fractional values that lie closer together than this."""


@dataclass(frozen=True, kw_only=True)
class VolumeConverter:
    """Turns scans into records, after one recipe and one label map."""

    recipe: Recipe
    labels: LabelMap

    def new_tally(self) -> VolumeTally:
        """What `facts` of records are added to."""
        return VolumeTally()

    def records(
        self, reference: Reference, files: SourceFiles, need: Need | None = None
    ) -> tuple[Record, ...]:
        """The record of one scan, or one of each tile.

        Args:
            need: told how many bytes this takes, before voxels are read; default: it may take what the recipe allows.

        Raises:
            SourceError: this scan cannot be converted; says why.
        """
        need = need or self.recipe.lone_need()
        options = self.recipe.scan_options(need)
        scan = open_scan(
            files, reference.source, reference.slices or reference.members, options, reference.volume
        )
        members = dict(reference.mask_members)
        channels = (open_scan(files, path, members.get(path, ()), options) for path in reference.channels)
        scans = [scan, *channels]
        canonical = plan_canonical(scan.grid)
        _check_channels(canonical.target, scans[1:], self.recipe.mask_grid_tolerance)
        in_hu = self.recipe.windows_hounsfield_units()
        if in_hu:
            check_declared(scans)
        has_labels = bool(reference.masks or reference.class_masks)
        label_dtype = np.dtype(self.labels.stored_dtype(sets=bool(self._channels)))
        need(conversion_bytes(self.recipe, canonical, scans, label_dtype.itemsize * has_labels))
        origins = [scan.origin for scan in scans if scan.origin is not None]
        origin = reduce(or_, origins) if len(origins) == len(scans) else None
        several = len(reference.masks) + len(reference.class_masks) > 1
        labels = LabelReader(
            recipe=self.recipe,
            labels=self.labels,
            reference=reference,
            files=files,
            grid=scan.grid,
            canonical=canonical.target,
            admit=lambda mask, merged: need(label_bytes(scans, scan.grid, mask, merged, several=several)),
            options=replace(options, origin=origin),
        ).read()
        image = self._read_image(scans)
        supposed = check_values(scans, image) if in_hu else ()
        names = _channel_names(scans)
        # With the functions that read go the bytes of the files.
        scan, scans = replace(scan, read=_is_read), []
        least = float(in_memory_order(image)[0].min())
        values = self._plan_values(image, least)
        rounded = _check_rounding(image, values, names)
        known = self._known(None if labels is None else labels.values)
        sized, parts = self._plan(canonical.target, image, known)
        plans = [part.plan for part in parts]
        coverage = measure_coverage(canonical.target, plans, known, self._channels, image=image[..., 0])
        del known
        noted = (*(labels.findings if labels else ()), *supposed, *rounded, *coverage.findings())
        findings = (*scan.findings, *noted)
        fill = float(self.recipe.pad_value[0]) if self.recipe.pad_value else least
        stored_first = self._stores_first(parts, image, values)
        if stored_first:
            # What is only moved can be stored first: one pass for all tiles, and fewer bytes to move.
            image = _store(image, values)
            fill = values[0].stored(fill)
        # The last part takes both off these lists: they become the record, or end when they have been moved.
        images, masks = [image], [] if labels is None else [labels.values]
        del image, labels
        records = []
        for part in parts:
            last = part is parts[-1]
            stored = apply_image(part.plan, images.pop() if last else images[0], fill, spare=last)
            if not stored_first:
                stored = _store(stored, values)
            classes = None
            if masks:
                classes = self._moved(part.plan, masks.pop() if last else masks[0], spare=last)
            records.append(
                self._record(
                    reference=reference,
                    part=part,
                    image=stored,
                    labels=classes,
                    least=values[0].stored(least),
                    values=values,
                    source=scan,
                    findings=findings,
                    sized=sized,
                    coverage=coverage,
                )
            )
        return tuple(records)

    @property
    def _channels(self) -> tuple[int, ...]:
        """The ids of the classes by their bits where labels are sets of classes; else ()."""
        return self.labels.channels if self.recipe.holds_class_sets() else ()

    def _moved(self, plan: Plan, label: Voxels, *, spare: bool) -> Voxels:
        if self._channels:
            return apply_sets(plan, label, len(self._channels), spare=spare)
        ignored = self.labels.stored_ignore
        if ignored is None:
            return apply_mask(plan, label, spare=spare)
        return apply_mask(plan, label.astype(self.labels.dtype, copy=False), spare=spare, fill=ignored)

    def _known(self, label: Voxels | None) -> Voxels | None:
        """Class indices with the background where nothing is known."""
        ignored = self.labels.stored_ignore
        return label if label is None or ignored is None else np.where(label == ignored, 0, label)

    # What is read ---------------------------------------------------------------------------------------

    def _read_image(self, scans: Sequence[Scan]) -> Voxels:
        """[depth, height, width, channel] on the canonical grid, of a type that holds what padding does."""
        found = sum(scan.channels for scan in scans)
        if found != self.recipe.channels:
            detail = f"found {found}, expected {self.recipe.channels}"
            cure = f"say --channels {found} if all scans have as many"
            raise SourceError("read", "number of channels", f"{detail}; {cure}")
        parts = [view_of(plan_canonical(scan.grid), _narrowed(scan.read())) for scan in scans]
        image = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=3)
        if image.dtype.kind == "f" or not self.recipe.pad_value:
            return image
        padding = np.min_scalar_type(self.recipe.pad_value[0])
        return image.astype(np.promote_types(image.dtype, padding), copy=False)

    # What is planned ------------------------------------------------------------------------------------

    def _plan(self, grid: Grid, image: Voxels, labels: Voxels | None) -> tuple[Shape, list[Tile]]:
        """What becomes of a scan on its canonical grid: its size before the static shape, and its one or more tiles."""
        recipe = self.recipe
        shape = (recipe.depth or 1, recipe.height, recipe.width)
        kernels: dict[str, Any] = {
            "image_kernel": recipe.interpolation,
            "mask_kernel": recipe.mask_interpolation,
        }
        plan = plan_orthogonal(grid)
        if spacing := recipe.spacing():
            step = plan_resample(plan.target, spacing, slice_wise=recipe.slice_wise, **kernels)  # type: ignore[arg-type]
            plan = compose([plan, step])
        box = None
        if recipe.crop_foreground or recipe.center == "foreground":
            box = carry_box(plan, foreground_box(image, _threshold(image)))
        if recipe.crop_foreground:
            crop = plan_foreground_crop(plan.target, box)
            plan, box = compose([plan, crop]), None
        if recipe.center == "label" and labels is not None:
            box = carry_box(plan, label_box(labels))
        if recipe.fit == "tiles":
            tiles = plan_tiles(plan.target, shape, recipe.overlap())
            return plan.target.shape, [replace(tile, plan=compose([plan, tile.plan])) for tile in tiles]
        if recipe.fit == "stretch":
            last = plan_stretch(plan.target, shape, **kernels)
        else:
            last = plan_crop_or_pad(plan.target, shape, None if box is None else box.center)
        return plan.target.shape, [Tile(number=0, origin=(0, 0, 0), plan=compose([plan, last]))]

    def _plan_values(self, image: Voxels, least: float) -> list[IntensityPlan]:
        """What becomes of the values of each channel."""
        recipe, channels = self.recipe, [image[..., at] for at in range(image.shape[3])]
        if recipe.window_percentiles:
            low, high = recipe.window_percentiles
            windows = [percentile_window(channel, low, high, above=least) for channel in channels]
            return [IntensityPlan(store=recipe.dtype, window=window) for window in windows]
        if recipe.normalize == SCAN:
            return [IntensityPlan(store=recipe.dtype, standard=standard_of(channel)) for channel in channels]
        plan = IntensityPlan(
            store=recipe.dtype, window=recipe.fixed_window(), standard=recipe.fixed_standard()
        )
        return [plan] * len(channels)

    # What is stored -------------------------------------------------------------------------------------

    def _stores_first(self, parts: Sequence[Tile], image: Voxels, values: Sequence[IntensityPlan]) -> bool:
        """Whether voxels may be stored before they are moved: none is resampled, none can be refused."""
        return (
            2 * sum(math.prod(part.plan.target.shape) for part in parts) >= image.size
            and len(values) == 1
            and values[0].window is not None
            and self.recipe.dtype in ("uint8", "int16")
            and image.dtype.kind in "iu"
            and image.dtype.itemsize <= 2
            and not any(part.plan.resamples for part in parts)
        )

    def _record(
        self,
        *,
        reference: Reference,
        part: Tile,
        image: Voxels,
        labels: Voxels | None,
        least: float,
        values: Sequence[IntensityPlan],
        source: Scan,
        findings: tuple[Finding, ...],
        sized: Shape,
        coverage: Coverage,
    ) -> Record:
        grid, upright = part.plan.target, part.plan.source
        extent = tuple(zip(*shown_by(part.plan), strict=True))
        label_dtype = self.labels.stored_dtype(sets=bool(self._channels))
        stored_labels = (
            np.zeros(grid.shape, label_dtype) if labels is None else labels.astype(label_dtype, copy=False)
        )
        depth, height, width = grid.shape
        features: dict[str, Value] = {
            keys.ENCODED: encode_raw(image, 0),
            keys.FORMAT: b"raw",
            keys.LABEL: encode_raw(stored_labels, 0),
            keys.LABELLED: np.array([int(labels is not None)]),
            keys.DEPTH: np.array([depth]),
            keys.HEIGHT: np.array([height]),
            keys.WIDTH: np.array([width]),
            keys.SPACING_MM: np.array(grid.spacing_mm, np.float32),
            keys.AFFINE: grid.affine.astype(np.float32).reshape(16),
            keys.SOURCE_AFFINE: source.grid.affine.astype(np.float32).reshape(16),
            keys.SOURCE_SHAPE: np.array(source.grid.shape),
            keys.EXTENT: np.array(extent).reshape(-1),
            keys.TILE: np.array([part.number]),
            keys.TILE_ORIGIN: np.array(part.origin),
        }
        if self.recipe.scales_each_scan():
            slopes, intercepts = zip(*(plan.scale for plan in values), strict=True)
            features[keys.INTENSITY_SCALE] = np.array(slopes, np.float32)
            features[keys.INTENSITY_OFFSET] = np.array(intercepts, np.float32)
        body, foreground = count_values(
            image, self.recipe.dtype, self._known(None if labels is None else stored_labels), least
        )
        counted = {} if labels is None else count_labels(stored_labels)
        counted = {value: count for value, count in counted.items() if value != self.labels.stored_ignore}
        facts = VolumeFacts(
            shape=grid.shape,
            inside_voxels=int(np.prod([high - low for low, high in zip(*extent, strict=True)])),
            labelled=labels is not None,
            label_voxels=count_members(counted, self._channels) if self._channels else counted,
            foreground_voxels=sum(counted.values()) - counted.get(0, 0),
            body=body,
            foreground=foreground,
            first_of_scan=part.number == 0,
            source=upright,
            modality=source.modality,
            findings=findings,
            sized=sized,
            coverage=coverage,
        )
        return Record.of(reference, features, facts, number=part.number)


def _store(image: Voxels, values: Sequence[IntensityPlan]) -> Voxels:
    if len(values) == 1:
        return values[0].apply(image)
    return np.stack([plan.apply(image[..., at]) for at, plan in enumerate(values)], axis=3)


def _narrowed(image: Voxels) -> Voxels:
    """32-bit integers in 16 bits where they fit: a scan is resampled alike whichever type its file declares."""
    if image.dtype != np.int32 or image.min() < -32768 or image.max() > 32767:
        return image
    return image.astype(np.int16)


def _check_channels(canonical: Grid, others: Sequence[Scan], tolerance_voxels: float) -> None:
    """Refuse channels whose voxels are not those of the first, in whatever order each is stored."""
    for scan in others:
        grid = plan_canonical(scan.grid).target
        offset, apart = offset_between(canonical, grid)
        if offset > tolerance_voxels:
            detail = f"{describe(canonical)}, {describe(grid)}{apart}"
            raise SourceError("geometry", "channels lie on different grids", detail + tolerance_for(offset))


def _threshold(image: Voxels) -> float:
    """What parts the patient from what is around: see the option `center`."""
    return CT_FOREGROUND_HU if float(image[..., 0].min()) <= CT_FOREGROUND_HU else mean_of(image[..., 0])


def _channel_names(scans: Sequence[Scan]) -> list[str]:
    """What messages call each channel: its number, and its file where each channel has one."""
    names = [f" of channel {number} ({scan.files[0]})" for number, scan in enumerate(scans)]
    channels = sum(scan.channels for scan in scans)
    if channels == 1:
        return [""]
    return names if channels == len(scans) else [f" of channel {number}" for number in range(channels)]


def _check_rounding(
    image: Voxels, values: Sequence[IntensityPlan], names: Sequence[str]
) -> tuple[Finding, ...]:
    """What rounding to stored integers does to the fractions of each channel.

    Raises:
        SourceError: the values of a channel lie so close together that rounding flattens them. Of uint8, that is asked
            of several channels in one window, which may not be the window of each.
    """
    store, window = values[0].store, values[0].window
    if image.dtype.kind != "f" or not (
        store == "int16" or (store == "uint8" and len(set(values)) == 1 < len(names))
    ):
        return ()
    found: tuple[Finding, ...] = ()
    for at, name in enumerate(names):
        channel = image[..., at]
        if all(np.array_equal(plane, np.rint(plane)) for plane in in_memory_order(channel)[0]):
            continue
        least, most = float(channel.min()), float(channel.max())
        detail = f"values{name} run from {least:g} to {most:g}"
        is_narrow = store == "int16" and most - least < _NARROW_RANGE
        if is_narrow or values[at % len(values)].rounding_loss(channel) > LARGEST_ROUNDING_LOSS:
            cure = "take --dtype float32"
            if window is None:
                cure += ", or --window-percentiles 0.5,99.5 without --dtype"
            elif store == "uint8":
                cure = (
                    "take --window-percentiles 0.5,99.5 in place of the window, or --dtype float32 without it"
                )
            raise SourceError("intensity", "whole numbers would flatten the values", f"{detail}; {cure}")
        if window is None:
            found = (Finding.corrected("fractions rounded to whole numbers", detail),)
    return found


def _is_read() -> Voxels:
    raise AssertionError("a scan is read once")
