"""Converter of scans: records of one scan and its labels, and the memory that they need.

    scan ──> canonical ──> orthogonal ──> spacing ──> foreground ──> static shape ──> window, dtype
    mask ──> canonical ──────── the same steps, planned once on the scan's grid ────> class indices

All steps are planned on grids before a voxel is moved, and one plan samples the image and its label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.channel_grids import (
    bring_channel,
    plan_channel,
    reference_channel,
    resampled_bytes,
)
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.label_volume import LabelReader, ScanLabels
from halofeed.prep.convert.loss_measures import (
    FEW_VOXELS,
    add_classes,
    add_instances,
    add_saturation,
    add_scan_values,
    add_structure_sizes,
    add_units,
    flat_channels,
    source_name,
)
from halofeed.prep.convert.record_measures import scan_measures
from halofeed.prep.convert.tallies import (
    Coverage,
    ObjectFacts,
    VolumeFacts,
    VolumeTally,
    count_labels,
    count_values,
    measure_coverage,
    shown_by,
)
from halofeed.prep.convert.volume_objects import BadObjects, ScanObjectReader, ScanObjects, ShownObjects
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume_formats import open_scan
from halofeed.prep.geometry.orientation import plan_canonical, plan_orthogonal
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, Scan, ScanIdentity, VolumeShape
from halofeed.prep.geometry.volume_plan import (
    AxisView,
    VolumePlan,
    VolumeTile,
    join_plans,
    plan_crop_or_pad,
    plan_resample,
    plan_stretch,
    plan_tiles,
)
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.volumes import SCAN
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.counts import (
    ValueCounts,
    count_intensities,
    measure_standardization,
    merge_counts,
    percentile_window,
)
from halofeed.prep.voxels.encode import ENCODERS, LABEL_ENCODERS
from halofeed.prep.voxels.intensity import (
    LARGEST_ROUNDING_LOSS,
    IntensityPlan,
    as_numbers,
    check_declared,
    check_values_are_hu,
    in_memory_order,
    to_hounsfield_units,
)
from halofeed.prep.voxels.label_volumes import (
    CT_FOREGROUND_HU,
    VoxelBox,
    foreground_box,
    label_box,
    mean_intensity,
    plan_foreground_crop,
    transform_box,
)
from halofeed.prep.voxels.levels import Levels
from halofeed.prep.voxels.resample import apply_image, apply_mask, apply_sets
from halofeed.prep.voxels.signatures import sign_stack
from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.fields import count_set_members
from halofeed.schemas.findings import FindingName
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.tasks import task_named
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

MOVED_PLANE, COMPUTED_PLANE, SAMPLED_PLANE, OBLIQUE_PLANE = 2, 32, 40, 240
"""Bytes for each voxel of a slice during slice-wise work: moved, windowed in floats, sampled along the axes, and
sampled along oblique axes."""
BESIDES = 24 << 20
"""Bytes of counts and tables of fixed sizes."""
_STORED_BYTES = {"uint8": 1, "int16": 2, "bfloat16": 2, "float32": 4}


def held_bytes(scans: Sequence[Scan]) -> int:
    """Return the bytes of files that are held until the scans are read."""
    return sum(scan.held_bytes for scan in scans)


def label_bytes(
    scans: Sequence[Scan], grid: Grid, mask: MaskScan, merged_bytes: int, *, several: bool
) -> int:
    """Return the maximum number of bytes held while one mask of a scan is read and merged with those before it.

    Args:
        scans: opened scans, not yet read.
        merged_bytes: bytes of the merged masks before it.
        several: whether the scan has several masks.
    """
    own, scans_own = math.prod(mask.grid.shape), math.prod(grid.shape)
    moved = 4 * scans_own if mask.grid.shape != grid.shape else 0
    merging = 5 * scans_own if several else 0
    working = max(mask.read_bytes, mask.value_bytes * own * 2 + moved, mask.value_bytes * own + merging)
    planes = SAMPLED_PLANE if moved else MOVED_PLANE
    planes *= max(_plane(mask.grid.shape), _plane(grid.shape))
    return held_bytes(scans) + merged_bytes + mask.held_bytes + working + planes + BESIDES


def conversion_bytes(
    recipe: Recipe, canonical: VolumePlan, scans: Sequence[Scan], label_item_bytes: int
) -> int:
    """Return the maximum number of bytes held while scans of one grid, and their labels, become records.

    Args:
        canonical: plan to the canonical order of axes.
        scans: opened scans, each with some of the channels.
        label_item_bytes: bytes of a voxel of the labels; 0 without labels.
    """
    grid = canonical.target
    voxels, channels = math.prod(grid.shape), sum(scan.channels for scan in scans)
    item = np.result_type(*(np.dtype(scan.dtype) for scan in scans)).itemsize
    stored = _STORED_BYTES[recipe.dtype]
    image, labels = voxels * channels * item, voxels * label_item_bytes
    sampled, chain, count = _targets(recipe, grid)
    target = chain[-1]
    record = target * (channels * stored + label_item_bytes)
    # All tiles are held until the last one, and the scan is held for all of them.
    before = (count - 1) * record
    kept = image + labels if count > 1 else 0
    moved = 0 if _keeps_voxels(recipe, canonical, scans, sampled) else _largest_pair(chain)
    # Sampling an oblique grid first copies the source into the order of its axes.
    ordered = voxels if sampled == OBLIQUE_PLANE else 0
    stored_beside = stored if _keeps_values(recipe, scans) else item + stored
    stages = [
        _reading_bytes(scans, image, item) + labels,
        image + labels + before + (moved + ordered) * item + target * (channels - 1) * item,
        kept + labels + before + target * channels * stored_beside,
        kept + labels + before + target * channels * stored + (moved + ordered) * label_item_bytes,
        # The packed record is made beside the arrays.
        kept + before + record * (1 if ENCODINGS[recipe.encoding].is_fixed_size else 2),
    ]
    # `VolumeConverter._stores_first`: the scan is stored before it is moved.
    if recipe.fixed_window() is not None and stored <= 2 and item <= 2:
        stages.append(image + labels + voxels * channels * stored)
    in_floats = 4 in (item, stored) or recipe.dtype == "bfloat16"
    plane_bytes = max(sampled, COMPUTED_PLANE if in_floats else MOVED_PLANE)
    largest_plane = max(_plane(grid.shape), _plane((recipe.depth or 1, recipe.height, recipe.width)))
    return max(stages) + plane_bytes * largest_plane + BESIDES


def _reading_bytes(scans: Sequence[Scan], image: int, item: int) -> int:
    """Return the bytes held while the scans are read into an image of some bytes, with `item` bytes for a voxel."""
    # Channels of several files are concatenated; values that fit into fewer bytes are narrowed.
    again = image if len(scans) > 1 else image // 2 if item == 4 else 0
    return held_bytes(scans) + sum(scan.read_bytes for scan in scans) + again


def _largest_pair(chain: Sequence[int]) -> int:
    """Return the most voxels of an array and the one that is made of it; the first one is made of the scan itself."""
    return max(first + second for first, second in pairwise([0, *chain]))


def _keeps_values(recipe: Recipe, scans: Sequence[Scan]) -> bool:
    """Return whether the record's values are those of the scan, so that storing them makes no copy."""
    return recipe.dtype == "int16" == scans[0].dtype and len(scans) == 1 and recipe.fixed_window() is None


def _keeps_voxels(recipe: Recipe, canonical: VolumePlan, scans: Sequence[Scan], sampled: int) -> bool:
    """Return whether the record's voxels are the scan's, reordered in their own memory at most."""
    return (
        not sampled
        and canonical.target.shape == (recipe.depth, recipe.height, recipe.width)
        and all(isinstance(step, AxisView) and step.order == (0, 1, 2) for step in canonical.steps)
        and sum(scan.channels for scan in scans) == 1
        and scans[0].read_bytes > 0
    )


def _plane(shape: Sequence[int]) -> int:
    """Return the number of voxels of the largest slice along any axis."""
    return math.prod(shape) // min(shape)


def _targets(recipe: Recipe, grid: Grid) -> tuple[int, list[int], int]:
    """Return the sampling in bytes for each voxel of a slice, the voxels of each array in the chain, and a count.

    The chain ends with the record. The count is the maximum number of records: a crop to the foreground, which depends
    on voxels, only lowers it.
    """
    shape = (recipe.depth or 1, recipe.height, recipe.width)
    plan = plan_orthogonal(grid)
    sampled, chain = 0, []
    if plan.resamples:
        sampled = OBLIQUE_PLANE
        chain.append(math.prod(plan.target.shape))
    if spacing := recipe.spacing():
        plan = plan_resample(plan.target, spacing, slice_wise=recipe.slice_wise)  # type: ignore[arg-type]
        if plan.resamples:
            sampled = max(sampled, SAMPLED_PLANE)
            chain.append(math.prod(plan.target.shape))
    if recipe.fit == "stretch":
        return max(sampled, SAMPLED_PLANE), [*chain, math.prod(shape)], 1
    # The last array is written through the window of the record, and never exists completely.
    chain = [*chain[:-1], math.prod(shape)]
    if recipe.fit != "tiles":
        return sampled, chain, 1
    counts = (
        -(-max(0, size - side) // (side - shared)) + 1
        for size, side, shared in zip(plan.target.shape, shape, recipe.overlap(), strict=True)
    )
    return sampled, chain, math.prod(counts)


Voxels = NDArray[Any]
_NARROW_RANGE = 16
"""Range of fractional values below which rounding to integers would flatten a channel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _OpenedScans:
    """The scans of one source, opened and not yet read.

    Args:
        scans: the first channel, or several of one file, and the further channels.
        canonical: plan to the canonical order of axes of the reference.
        plans: plan of each scan, see `plan_channel`; None for the reference.
        reference: the scan whose grid the records have: the first one, or the one that --channel-grid names.
    """

    scans: Sequence[Scan]
    canonical: VolumePlan
    plans: Sequence[VolumePlan | None]
    reference: Scan

    @property
    def may_be_ct(self) -> bool:
        """True unless a file states another modality."""
        return all(one.modality in (None, "", "CT") for one in self.scans)

    @property
    def origin(self) -> ScanIdentity | None:
        """Identity of all scans together; None unless all are DICOM series."""
        origins = [scan.origin for scan in self.scans if scan.origin is not None]
        return reduce(or_, origins) if len(origins) == len(self.scans) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _ScanFacts:
    """Facts that all records of one scan share.

    Args:
        reference: the source example.
        source: the scan, without its voxels.
        values: plan of the values of each channel.
        least: value of the background of each channel: its smallest value.
        findings: findings about the scan and its labels.
        sized: shape of the scan before the static shape.
        coverage: what the records leave out.
        ledger: losses of the conversion.
        objects: the objects of the scan; None for segmentation.
        shown_objects: what each record shows of them.
        measures: figures of the scan for the index of its first record.
    """

    reference: SourceExample
    source: Scan
    values: Sequence[IntensityPlan]
    least: tuple[float, ...]
    findings: tuple[Finding, ...]
    sized: VolumeShape
    coverage: Coverage
    ledger: LedgerCounter
    objects: ScanObjects | None = None
    shown_objects: ShownObjects | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VolumeConverter:
    """Converter of scans into records, for one recipe and one label map."""

    recipe: Recipe
    labels: LabelMap
    task: str = "segmentation"

    @property
    def _has_boxes(self) -> bool:
        return task_named(self.task).has_boxes

    def new_tally(self) -> VolumeTally:
        """Return a tally for the facts of records."""
        return VolumeTally(self.recipe.max_boxes if self._has_boxes else None)

    def records(
        self, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory | None = None
    ) -> tuple[Record, ...]:
        """Return the record of one scan, or one for each tile.

        Args:
            reserve: called with the number of bytes before voxels are read; default: the recipe's limit.

        Raises:
            SourceError: this scan cannot be converted.
        """
        reserve = reserve or self.recipe.reserve_alone()
        options = self.recipe.scan_options(reserve)
        opened = self._open(reference, files, options)
        in_hu = self.recipe.windows_hounsfield_units()
        if in_hu:
            check_declared(opened.scans)
        self._reserve(opened, reference, reserve)
        objects = self._read_objects(opened, reference, files, options) if self._has_boxes else None
        labels = None if self._has_boxes else self._read_labels(opened, reference, files, options)
        image, moved = self._read_image(opened.scans, opened.plans)
        assumed = check_values_are_hu(opened.scans, image, self.recipe.fixed_window()) if in_hu else ()
        names, canonical = _channel_names(opened.scans), opened.canonical.target
        needs_unit = opened.may_be_ct and not in_hu
        # This drops the functions that read, and with them the bytes of the files.
        scan = replace(opened.reference, read=_is_read)
        del opened
        least = self._least(image)
        values = self._plan_values(image, least)
        rounded = _check_rounding(image, values, names)
        known = self._known(None if labels is None else labels.values)
        around = None if objects is None else objects.on_canonical(canonical)
        sized, parts = self._plan(canonical, image, known, around)
        part_plans = [part.plan for part in parts]
        shown = None if objects is None else objects.show(part_plans)
        coverage = measure_coverage(canonical, part_plans, known, self._channels, image=image[..., 0])
        ledger = LedgerCounter()
        levels = self._count_source(ledger, image, values, reference, needs_unit=needs_unit)
        if known is not None:
            self._count_instances(ledger, known, coverage, reference)
        measures = scan_measures(image, canonical.spacing_mm, known, coverage.exact_mm3(), self._channels)
        del known
        noted = (*(labels.findings if labels else ()), *assumed, *rounded, *coverage.findings())
        noted += () if shown is None else shown.findings()
        shared = _ScanFacts(
            reference=reference,
            source=scan,
            values=values,
            least=least,
            findings=(*scan.findings, *moved, *noted),
            sized=sized,
            coverage=coverage,
            ledger=ledger,
            objects=objects,
            shown_objects=shown,
            measures=measures,
        )
        # `_move_parts` empties these lists, so that it can reuse or free the arrays.
        images, masks = [image], [] if labels is None else [labels.values]
        del image, labels
        return self._convert_parts(parts, images, masks, shared, levels)

    def _open(self, reference: SourceExample, files: SourceFiles, options: ScanOptions) -> _OpenedScans:
        """Open the scans of a source, and plan the way of the channels to the grid of one of them."""
        scan = open_scan(
            files, reference.source, reference.slices or reference.members, options, reference.volume
        )
        members = dict(reference.mask_members)
        channels = [open_scan(files, path, members.get(path, ()), options) for path in reference.channels]
        scans, rule = [scan, *channels], self.recipe.channel_grid
        at = reference.grid_channel
        chosen = scans[reference_channel((reference.source, *reference.channels), rule) if at is None else at]
        canonical = plan_canonical(chosen.grid)
        plans = [
            None
            if one is chosen
            else plan_channel(canonical.target, one, rule, self.recipe.mask_grid_tolerance)
            for one in scans
        ]
        return _OpenedScans(scans=scans, canonical=canonical, plans=plans, reference=chosen)

    def _reserve(self, opened: _OpenedScans, reference: SourceExample, reserve: ReserveMemory) -> None:
        """Reserve the memory of the conversion."""
        has_labels = bool(reference.masks or reference.class_masks)
        label_dtype = np.dtype(self.labels.stored_dtype(sets=bool(self._channels)))
        scans = opened.scans
        needed = conversion_bytes(self.recipe, opened.canonical, scans, label_dtype.itemsize * has_labels)
        reserve(needed + resampled_bytes(opened.plans, scans))

    def _read_labels(
        self, opened: _OpenedScans, reference: SourceExample, files: SourceFiles, options: ScanOptions
    ) -> ScanLabels | None:
        """Return the labels of the scans; None without any."""
        scan, several = opened.reference, len(reference.masks) + len(reference.class_masks) > 1
        return LabelReader(
            recipe=self.recipe,
            label_map=self.labels,
            reference=reference,
            files=files,
            grid=scan.grid,
            canonical=opened.canonical.target,
            reserve_mask=lambda mask, merged: options.reserve(
                label_bytes(opened.scans, scan.grid, mask, merged, several=several)
            ),
            options=replace(
                options,
                origin=opened.origin,
                ignored_values=self.labels.ignored_values,
                negative_values=self.labels.negative_values,
            ),
            slices=scan.slices,
        ).read()

    def _read_objects(
        self, opened: _OpenedScans, reference: SourceExample, files: SourceFiles, options: ScanOptions
    ) -> ScanObjects:
        """Return the objects of the scans in voxels of the first one."""
        grid = opened.scans[0].grid
        return ScanObjectReader(
            recipe=self.recipe,
            labels=self.labels,
            reference=reference,
            files=files,
            grid=grid,
            options=replace(options, origin=opened.origin),
            reserve_mask=lambda mask: options.reserve(
                label_bytes(opened.scans, grid, mask, 0, several=False)
            ),
        ).read()

    def _count_source(
        self,
        ledger: LedgerCounter,
        image: Voxels,
        values: Sequence[IntensityPlan],
        reference: SourceExample,
        *,
        needs_unit: bool,
    ) -> tuple[Levels, ...]:
        """Count what the conversion does to the values of a scan; return the levels of each channel.

        Args:
            needs_unit: whether nothing has shown yet if the values are Hounsfield units.
        """
        ledger.count("sources")
        levels = add_scan_values(ledger, image, values, reference.source)
        # A scan that is scaled by its own values may have any unit.
        if needs_unit and not self.recipe.scales_each_scan():
            add_units(ledger, image, reference.source)
        return levels

    def _count_instances(
        self, ledger: LedgerCounter, known: Voxels, coverage: Coverage, reference: SourceExample
    ) -> None:
        """Count whether the values of a label may number objects; names of classes, or sets, show that they do not."""
        if self.labels.is_open and not self._channels:
            add_instances(ledger, known, coverage.class_mm3, reference.source)

    def _convert_parts(
        self,
        parts: Sequence[VolumeTile],
        images: list[Voxels],
        masks: list[Voxels],
        shared: _ScanFacts,
        levels: Sequence[Levels],
    ) -> tuple[Record, ...]:
        """Return the record of each part, and count what the parts together lost.

        Args:
            parts: plan of each record.
            images: the scan, [depth, height, width, channel]. The list is emptied.
            masks: its labels; [] without any. The list is emptied.
            shared: what all records share.
            levels: levels of each channel.
        """
        source, ledger, coverage = shared.reference.source, shared.ledger, shared.coverage
        flat = {at for at, one in enumerate(levels) if one.is_flat}
        shown: set[int] = set()
        records: list[Record] = []
        labeled: list[ValueCounts] = []
        for part, stored, classes in self._move_parts(parts, images, masks, shared):
            records.append(self._record(part=part, image=stored, labels=classes, shared=shared))
            facts = records[-1].facts
            labeled.append(self._count_labeled(facts, stored, classes))
            shown.update(facts.label_voxels)
            add_structure_sizes(
                ledger, "after", (count for value, count in facts.label_voxels.items() if value)
            )
            flat &= flat_channels(stored, flat)
            is_flat = facts.levels <= 2 and bool(flat_channels(stored, {0}))
            ledger.count("one_value_records", is_flat, source_name(source))
        body = merge_counts(record.facts.body for record in records)
        add_saturation(ledger, shared.values[0], body, merge_counts(labeled), levels[0], source)
        if flat:
            ledger.count("flattened_records", 1, f"{source_name(source)}: {levels[min(flat)].text()}")
        add_structure_sizes(ledger, "before", coverage.class_voxels.values())
        add_classes(ledger, coverage.class_mm3, shown, source)
        return tuple(records)

    def _move_parts(
        self, parts: Sequence[VolumeTile], images: list[Voxels], masks: list[Voxels], shared: _ScanFacts
    ) -> Iterator[tuple[VolumeTile, Voxels, Voxels | None]]:
        """Yield each part with its stored voxels and its class ids; None without labels. This empties both lists."""
        values = shared.values
        fill = shared.least
        if self.recipe.pad_value:
            fill = tuple(map(float, self.recipe.padding()))
        stored_first = self._stores_first(parts, images[0], values)
        if stored_first:
            # Voxels that are only moved can be stored first: one pass for all tiles, and fewer bytes to move.
            images.append(_store(images.pop(), values))
            fill = (values[0].stored(fill[0]),)
        for part in parts:
            last = part is parts[-1]
            stored = apply_image(part.plan, images.pop() if last else images[0], fill, spare=last)
            if not stored_first:
                stored = _store(stored, values)
            classes = None
            if masks:
                classes = self._moved(part.plan, masks.pop() if last else masks[0], spare=last)
            yield part, stored, classes

    def _count_labeled(self, facts: VolumeFacts, stored: Voxels, classes: Voxels | None) -> ValueCounts:
        """Return the counts of the values of labeled voxels."""
        # Every eighth row hardly meets a small structure.
        if facts.foreground.total < FEW_VOXELS <= facts.foreground_voxels:
            return count_intensities(as_numbers(stored[..., 0], self.recipe.dtype), mask=self._known(classes))
        return facts.foreground

    @property
    def _channels(self) -> tuple[int, ...]:
        """Return the class id of each bit where labels are sets of classes; else ()."""
        return self.labels.channels if self.recipe.holds_class_sets() else ()

    def _moved(self, plan: VolumePlan, label: Voxels, *, spare: bool) -> Voxels:
        if self._channels:
            return apply_sets(plan, label, len(self._channels), spare=spare)
        ignored = self.labels.stored_ignore
        if ignored is None:
            return apply_mask(plan, label, spare=spare)
        return apply_mask(plan, label.astype(self.labels.dtype, copy=False), spare=spare, fill=ignored)

    def _known(self, label: Voxels | None) -> Voxels | None:
        """Return class indices with the background in place of the ignore label."""
        ignored = self.labels.stored_ignore
        return label if label is None or ignored is None else np.where(label == ignored, 0, label)

    def _read_image(
        self, scans: Sequence[Scan], plans: Sequence[VolumePlan | None]
    ) -> tuple[Voxels, tuple[Finding, ...]]:
        """Return [depth, height, width, channel] on the canonical grid, of a dtype that can store the padding.

        Args:
            scans: the first channel and the further ones.
            plans: of each scan, see `plan_channel`.
        """
        found = sum(scan.channels for scan in scans)
        if found != self.recipe.channels:
            detail = f"found {found}, expected {self.recipe.channels}"
            fix = f"use --channels {found} if all scans have as many"
            raise SourceError("read", "number of channels", f"{detail}; {fix}")
        if self.recipe.offset_hu:
            self._check_offset(scans)
        brought = [
            bring_channel(plan, scan, _narrowed(self._read_scan(scan)))
            for plan, scan in zip(plans, scans, strict=True)
        ]
        parts = [part for part, _ in brought]
        findings = tuple(dict.fromkeys(finding for _, of_part in brought for finding in of_part))
        image = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=3)
        if image.dtype.kind == "f" or not self.recipe.pad_value:
            return image, findings
        stored = np.result_type(image.dtype, *map(np.min_scalar_type, self.recipe.pad_value))
        return image.astype(stored, copy=False), findings

    def _read_scan(self, scan: Scan) -> Voxels:
        voxels = scan.read()
        return to_hounsfield_units(voxels, self.recipe.offset_hu) if self.recipe.offset_hu else voxels

    def _check_offset(self, scans: Sequence[Scan]) -> None:
        """Refuse --offset-hu for scans that state their unit or modality, and for several channels."""
        stated = next((one.unit or one.modality for one in scans if one.unit or one.modality), "")
        # A second offset would shift values that the header's rescale has made Hounsfield units.
        if stated:
            detail = f"the file says {stated}; leave --offset-hu out"
            raise SourceError("intensity", "values state their unit already", detail)
        if self.recipe.channels > 1:
            detail = "one offset may not suit each of them; leave --offset-hu out"
            raise SourceError("intensity", "offset of several channels", detail)

    def _plan(
        self, grid: Grid, image: Voxels, labels: Voxels | None, around: VoxelBox | None
    ) -> tuple[VolumeShape, list[VolumeTile]]:
        """Return a scan's shape before the static shape, and the plan of each tile from its canonical grid.

        Args:
            around: the box around the objects of the scan; None without any.
        """
        recipe = self.recipe
        kernels: dict[str, Any] = {
            "image_kernel": recipe.interpolation,
            "mask_kernel": recipe.mask_interpolation,
        }
        plan = plan_orthogonal(grid)
        if spacing := recipe.spacing():
            step = plan_resample(plan.target, spacing, slice_wise=recipe.slice_wise, **kernels)  # type: ignore[arg-type]
            plan = join_plans([plan, step])
        box = None
        if recipe.crop_foreground or recipe.center == "foreground":
            box = transform_box(plan, foreground_box(image, _threshold(image)))
        if recipe.crop_foreground:
            # What is left has the foreground in its center already.
            crop = plan_foreground_crop(plan.target, box)
            plan, box = join_plans([plan, crop]), None
        if recipe.center == "label":
            box = transform_box(plan, around if labels is None else label_box(labels))
        tiles = self._fit(plan.target, None if box is None else box.center, kernels)
        return plan.target.shape, [replace(tile, plan=join_plans([plan, tile.plan])) for tile in tiles]

    def _fit(
        self, grid: Grid, center: tuple[float, ...] | None, kernels: Mapping[str, Any]
    ) -> Sequence[VolumeTile]:
        """Return the plan of each record from a grid, by --fit."""
        recipe = self.recipe
        shape = (recipe.depth or 1, recipe.height, recipe.width)
        if recipe.fit == "tiles":
            return plan_tiles(grid, shape, recipe.overlap())
        if recipe.fit == "stretch":
            plan = plan_stretch(grid, shape, **kernels)
        else:
            plan = plan_crop_or_pad(grid, shape, center)
        return [VolumeTile(number=0, origin=(0, 0, 0), plan=plan)]

    def _least(self, image: Voxels) -> tuple[float, ...]:
        """Return the background of each channel of [depth, height, width, channel], see `_ScanFacts.least`."""
        # Air of a CT, -1024, is no value of the PET beside it, whose background is 0.
        return tuple(
            float(in_memory_order(image[..., at : at + 1])[0].min()) for at in range(int(image.shape[3]))
        )

    def _plan_values(self, image: Voxels, least: Sequence[float]) -> list[IntensityPlan]:
        """Return the plan of the values of each channel."""
        recipe, channels = self.recipe, [image[..., at] for at in range(image.shape[3])]
        if recipe.window_percentiles:
            low, high = recipe.window_percentiles
            windows = [
                percentile_window(channel, low, high, above=background)
                for channel, background in zip(channels, least, strict=True)
            ]
            return [IntensityPlan(store=recipe.dtype, window=window) for window in windows]
        if recipe.normalize == SCAN:
            return [
                IntensityPlan(store=recipe.dtype, standard=measure_standardization(channel))
                for channel in channels
            ]
        plan = IntensityPlan(
            store=recipe.dtype, window=recipe.fixed_window(), standard=recipe.fixed_standard()
        )
        return [plan] * len(channels)

    def _stores_first(
        self, parts: Sequence[VolumeTile], image: Voxels, values: Sequence[IntensityPlan]
    ) -> bool:
        """Return whether voxels may be stored before they are moved: none is resampled, and none can be refused."""
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
        self, *, part: VolumeTile, image: Voxels, labels: Voxels | None, shared: _ScanFacts
    ) -> Record:
        grid, upright, source = part.plan.target, part.plan.source, shared.source
        extent = tuple(zip(*shown_by(part.plan), strict=True))
        label_dtype = self.labels.stored_dtype(sets=bool(self._channels))
        stored_labels = (
            _background(grid.shape, label_dtype) if labels is None else labels.astype(label_dtype, copy=False)
        )
        (depth, height, width), encoding = grid.shape, self.recipe.encoding
        described, objects, lost = self._described(part, shared)
        if not self._has_boxes:
            described = {
                keys.LABEL: LABEL_ENCODERS[encoding](stored_labels[..., None], 0),
                keys.LABELLED: np.array([int(labels is not None)]),
            }
        features: dict[str, Value] = {
            keys.ENCODED: ENCODERS[encoding](image, 0),
            keys.FORMAT: encoding.encode(),
            **described,
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
            slopes, intercepts = zip(*(plan.scale for plan in shared.values), strict=True)
            features[keys.INTENSITY_SCALE] = np.array(slopes, np.float32)
            features[keys.INTENSITY_OFFSET] = np.array(intercepts, np.float32)
        known = self._known(None if labels is None else stored_labels)
        least = shared.values[0].stored(shared.least[0])
        body, foreground = count_values(image, self.recipe.dtype, known, least)
        counted = {} if labels is None else count_labels(stored_labels)
        counted = {value: count for value, count in counted.items() if value != self.labels.stored_ignore}
        facts = VolumeFacts(
            shape=grid.shape,
            inside_voxels=int(np.prod([high - low for low, high in zip(*extent, strict=True)])),
            labelled=labels is not None,
            label_voxels=count_set_members(counted, self._channels) if self._channels else counted,
            foreground_voxels=sum(counted.values()) - counted.get(0, 0),
            body=body,
            foreground=foreground,
            first_of_scan=part.number == 0,
            source=upright,
            modality=source.modality,
            findings=shared.findings,
            sized=shared.sized,
            coverage=shared.coverage,
            ledger=shared.ledger,
            objects=objects,
        )
        inside = tuple(slice(low, high) for low, high in zip(*extent, strict=True))
        reference = shared.reference
        signature = sign_stack(image[inside][..., 0], reference.origin, reference.group, self.recipe.dtype)
        return Record.of(
            reference,
            features,
            facts,
            lost,
            part.number,
            encoding=encoding,
            signature=signature,
            measures=None if part.number else shared.measures,
        )

    def _described(
        self, part: VolumeTile, shared: _ScanFacts
    ) -> tuple[dict[str, Value], ObjectFacts | None, BadObjects]:
        """Return the features and facts of the objects that a record shows, and the lost ones with the first record."""
        if shared.objects is None or shared.shown_objects is None:
            return {}, None, ()
        objects, all_shown, is_first = shared.objects, shared.shown_objects, part.number == 0
        shown = all_shown.of_records[part.number]
        facts = objects.facts(shown, all_shown, is_first=is_first)
        return objects.features(shown), facts, objects.lost(all_shown) if is_first else ()


@lru_cache(maxsize=1)
def _background(shape: VolumeShape, dtype: str) -> Voxels:
    """Return the labels of a record without labels: zeros, which cannot be written.

    All records of a recipe have this shape, so the zeros are made once: 1 ms and 26 MB for each CT of 512 x 512 x 100.
    """
    zeros = np.zeros(shape, dtype)
    zeros.flags.writeable = False
    return zeros


def _store(image: Voxels, values: Sequence[IntensityPlan]) -> Voxels:
    if len(values) == 1:
        return values[0].apply(image)
    return np.stack([plan.apply(image[..., at]) for at, plan in enumerate(values)], axis=3)


def _narrowed(image: Voxels) -> Voxels:
    """Return 32-bit integers in 16 bits where they fit, so that resampling does not depend on a file's dtype."""
    if image.dtype != np.int32 or image.min() < -32768 or image.max() > 32767:
        return image
    return image.astype(np.int16)


def _threshold(image: Voxels) -> float:
    """Return the value that separates the patient from the background; see the option `center`."""
    return (
        CT_FOREGROUND_HU if float(image[..., 0].min()) <= CT_FOREGROUND_HU else mean_intensity(image[..., 0])
    )


def _channel_names(scans: Sequence[Scan]) -> list[str]:
    """Return the name of each channel in messages: its number, and its file where each channel has one."""
    names = [f" of channel {number} ({scan.files[0]})" for number, scan in enumerate(scans)]
    channels = sum(scan.channels for scan in scans)
    if channels == 1:
        return [""]
    return names if channels == len(scans) else [f" of channel {number}" for number in range(channels)]


def _check_rounding(
    image: Voxels, values: Sequence[IntensityPlan], names: Sequence[str]
) -> tuple[Finding, ...]:
    """Return a finding where rounding to integers changes fractions.

    Raises:
        SourceError: the values of a channel are so close that rounding flattens them. With uint8 this is checked for
            several channels in one window, which may not suit each of them.
    """
    store, window = values[0].store, values[0].window
    shares_window = store == "uint8" and len(set(values)) == 1 < len(names)
    if image.dtype.kind != "f" or not (store == "int16" or shares_window):
        return ()
    found: tuple[Finding, ...] = ()
    for at, name in enumerate(names):
        channel = image[..., at]
        if all(np.array_equal(plane, np.rint(plane)) for plane in in_memory_order(channel)[0]):
            continue
        least, most = float(channel.min()), float(channel.max())
        detail = f"values{name} run from {least:g} to {most:g}"
        # Normalized images have values of -3 to 3, or 0 to 1, of which rounding leaves a few.
        is_narrow = store == "int16" and most - least < _NARROW_RANGE
        if is_narrow or values[at % len(values)].rounding_loss(channel) > LARGEST_ROUNDING_LOSS:
            raise _flattened(values[0], detail)
        if window is None:
            found = (Finding.corrected(FindingName.FRACTIONS_ROUNDED, detail),)
    return found


def _flattened(plan: IntensityPlan, detail: str) -> SourceError:
    """Return the error for values that rounding would flatten, with the option that keeps them."""
    if plan.window is None:
        fix = "take --dtype float32, or --window-percentiles 0.5,99.5 without --dtype"
    elif plan.store == "uint8":
        fix = "take --window-percentiles 0.5,99.5 in place of the window, or --dtype float32 without it"
    else:
        fix = "take --dtype float32"
    return SourceError("intensity", "whole numbers would flatten the values", f"{detail}; {fix}")


def _is_read() -> Voxels:
    raise AssertionError("a scan is read once")
