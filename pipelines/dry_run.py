"""Description of a conversion before it runs: inputs, classes, sizes, a converted sample, and a shape for volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from halofeed.pipelines.convert import Conversion, convert
from halofeed.pipelines.disk_space import free_bytes, size_of_record
from halofeed.pipelines.duplicates import describe_copies
from halofeed.pipelines.earlier_version import open_earlier
from halofeed.pipelines.job import JobOptions, reference_from_json
from halofeed.pipelines.opened_sources import Sources, open_sources
from halofeed.pipelines.plan import ConversionPlan, make_plan
from halofeed.pipelines.references import SampledReferences
from halofeed.pipelines.reject_limit import inputs_in, share_warning
from halofeed.pipelines.summary import empty_shards, loss_lines, outcome_lines, rejected_lines
from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.prep.convert.normalize_like import foreground_scheme, holds_hounsfield_units
from halofeed.prep.formats.volume_formats import open_scan
from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import round_up_side
from halofeed.prep.options.option import flag
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.file_layout import OBJECT
from halofeed.system.addresses import is_remote
from halofeed.system.console import QUIET, human_bytes, status_level
from halofeed.system.errors import HalofeedError, JobError, SourceError, UsageError
from halofeed.system.wording import plural

_SAMPLE = 10
_SCANS_CONVERTED = 3
"""Scans of the sample that are converted; one takes seconds."""
_ANISOTROPIC = 3
"""Ratio of spacings and of sizes above which nnU-Net resamples the coarse axis to its 10th percentile."""


class _Sample:
    """Writer that keeps the references in memory, a `ReferenceWriter`."""

    count = 0

    def __init__(self) -> None:
        self.references: list[SourceExample] = []

    def add(self, split: str, identity: int, line: bytes) -> None:
        self.references.append(reference_from_json(line.decode("utf-8", "surrogateescape")))

    def finish(self, splits: Sequence[str]) -> None:
        """Do nothing; every reference is kept."""

    def close(self) -> None:
        """Do nothing; there is no file."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Description of a conversion that was not made.

    Args:
        text: the description, a few lines.
        sample: the converted sample; None if nothing could be converted.
    """

    text: str
    sample: Conversion | None


def dry_run(options: JobOptions, recipe_with: Callable[..., Recipe], folder: str) -> DryRun:
    """Plan a conversion and convert a sample of its inputs into a temporary folder; write nothing elsewhere.

    Args:
        recipe_with: returns the user's recipe with further options, because defaults depend on the kind of images.
        folder: the temporary folder.

    Raises:
        As `halofeed.pipelines.convert.convert`, where that fails before it reads the first image.
    """
    sources, sample = open_sources(options), _Sample()
    recipe, proposed, is_proposed = recipe_with(), "", False
    earlier = open_earlier(options, recipe)
    try:
        plan = make_plan(options, recipe, sources, SampledReferences(sample, _SAMPLE), earlier=earlier)
    except UsageError as error:
        if recipe.depth is not None:
            raise
        # Volumes without a shape look like pictures, and are refused. Any shape shows whether they are volumes.
        sample.references.clear()
        try:
            recipe = recipe_with(depth=1, height=1, width=1)
            plan = make_plan(options, recipe, sources, SampledReferences(sample, _SAMPLE), earlier=earlier)
        except HalofeedError:
            raise error from None
        if not plan.totals.first_volume:
            raise
        is_proposed = True
    if plan.totals.first_volume:
        proposal = _propose(sample.references, sources, recipe)
        if proposal is not None:
            shape, proposed = proposal
            recipe = recipe_with(**shape) if is_proposed else recipe
    converted, outcome = _convert_sample(options, recipe, plan, folder, checks_shape=not is_proposed)
    records, is_counted = _expected_records(plan, recipe, converted)
    lines = [
        _head(options, plan, recipe),
        *_inputs(plan, options.max_rejected, recipe.limit),
        _classes(plan, converted),
        *([f"  copies       {describe_copies(plan.copies)}"] if plan.copies else []),
    ]
    lines += _records(options, plan, recipe, records, is_counted=is_counted)
    if converted is not None and not ENCODINGS[recipe.encoding].is_fixed_size:
        size = _average_bytes(converted)
        whole = human_bytes(size * records)
        lines.append(f"  records of the sample have {human_bytes(size)}; all: about {whole}")
    lines += [*outcome, *filter(None, [proposed, _propose_window(converted)])]
    return DryRun(text="\n".join(lines), sample=converted)


def _head(options: JobOptions, plan: ConversionPlan, recipe: Recipe) -> str:
    count = inputs_in(plan.inputs, None, plan.totals.problems)
    inputs = f"{plural(count, 'input')} of layout {recipe.layout}"
    return f"{options.name} {options.version}: {plan.task}, {inputs}; dry run, nothing is written to {options.folder}"


def _inputs(plan: ConversionPlan, max_rejected: str | None, limit: int | None) -> list[str]:
    totals = plan.totals
    lines = [f"  {name:<12} {plural(count, 'input')}" for name, count in sorted(totals.splits.items())]
    objects = {f"{OBJECT}: {reason}": count for reason, count in totals.bad_objects.items()}
    firsts = {
        f"{OBJECT}: {reason}": source + (f": {detail}" if detail else "")
        for reason, (source, detail) in totals.first_bad_objects.items()
    }
    lines += rejected_lines({**totals.problems, **objects}, totals.first_problems | firsts)
    inputs = inputs_in(plan.inputs, limit, totals.problems)
    if max_rejected is None and (warning := share_warning(totals.problems, inputs, "correct them")):
        lines.append(f"  warning: {warning}")
    return lines


def _classes(plan: ConversionPlan, converted: Conversion | None) -> str:
    """Return a line with the classes and how often annotations name them; label images show them in the sample."""
    named: Mapping[int, str] = plan.labels.names
    where = ""
    # Nothing names the values of these label images, so only converted records show them.
    if plan.labels.is_open and converted is not None:
        named, where = converted.manifest.labels, " in the sample"
    names = [name for name in named.values() if name != BACKGROUND]
    shown = f": {plan.describe_classes(names)}" if names else ""
    return f"  {plural(len(names), 'class', 'classes')}{where}{shown}"


def _inputs_to_convert(plan: ConversionPlan, recipe: Recipe) -> int:
    return min(plan.totals.convertible, recipe.limit or plan.totals.convertible)


def _expected_records(plan: ConversionPlan, recipe: Recipe, converted: Conversion | None) -> tuple[int, bool]:
    """Return the expected number of records, and whether it is exact; tiles are extrapolated from the sample."""
    inputs = _inputs_to_convert(plan, recipe)
    if recipe.fit != "tiles" or converted is None:
        return inputs, recipe.fit != "tiles"
    sampled = min(_sample_size(plan, recipe), inputs)
    written = sum(split.records for split in converted.manifest.splits.values())
    return math.ceil(written * inputs / max(1, sampled)), sampled == inputs


def _records(
    options: JobOptions, plan: ConversionPlan, recipe: Recipe, records: int, *, is_counted: bool
) -> list[str]:
    label_dtype = plan.labels.stored_dtype(sets=recipe.holds_class_sets())
    size, shape = size_of_record(recipe, plan.task, label_dtype), recipe.static_shape()
    free = "" if is_remote(options.folder) else f"; {human_bytes(free_bytes(options.folder))} free"
    sized = "x".join(map(str, shape)) if shape else "no fixed size"
    # A sample of the pictures shows how many tiles others have; without one, tiles are not counted.
    about = "" if is_counted else "about "
    total = f"; {about}{size.describe(records)}" if size else ""
    lines = [f"  records      {sized}, {recipe.channels} x {recipe.dtype}{total}{free}"]
    shards = recipe.shards * len(plan.splits)
    # One shard is never too many; more than inputs leave some without a record. All tiles of an input are in one.
    inputs = _inputs_to_convert(plan, recipe)
    if recipe.shards > 1 and shards > inputs:
        lines.append(f"  warning: {empty_shards(shards - inputs, shards, 'at least ')}")
    return lines


def _sample_size(plan: ConversionPlan, recipe: Recipe) -> int:
    most = _SCANS_CONVERTED if plan.totals.first_volume else _SAMPLE
    return min(most, recipe.limit or most, inputs_in(plan.inputs, None, plan.totals.problems))


def _convert_sample(
    options: JobOptions, recipe: Recipe, plan: ConversionPlan, folder: str, *, checks_shape: bool
) -> tuple[Conversion | None, list[str]]:
    """Convert a sample into a folder; return the conversion, if it wrote any record, and lines on its outcome."""
    limit = _sample_size(plan, recipe)
    # A sample is too small for --max-rejected and for the refusal of lossy records, which speak of all inputs.
    alone = replace(options, from_="", keep_splits=False)
    there = replace(
        alone, out=folder, overwrite=False, max_rejected=None, workers=1, threads=None, on_loss="warn"
    )
    try:
        with status_level(QUIET):  # the plan has printed its status already
            # The plan has shown the copies; a sample may have some.
            done = convert(
                there, replace(recipe, limit=limit, shards=1, duplicates="report"), show_progress=False
            )
    except JobError as error:
        return None, [f"  sample       {line}" for line in str(error).replace(f"{folder}/", "").splitlines()]
    written = sum(split.records for split in done.manifest.splits.values())
    head = f"  sample       {plural(written, 'record')} of {plural(limit, 'input')}"
    lines = [head, *outcome_lines(done, options.warn_cut, checks_shape=checks_shape)]
    if checks_shape and options.on_loss != "ignore":
        lines += loss_lines(done.manifest, "the conversion itself")
    return done, lines


def _average_bytes(done: Conversion) -> int:
    splits = done.manifest.splits.values()
    return math.ceil(
        sum(shard.bytes for split in splits for shard in split.shards)
        / max(1, sum(split.records for split in splits))
    )


def _grids_of(references: Sequence[SourceExample], sources: Sources, recipe: Recipe) -> list[Grid]:
    """Return the grids of the scans with a readable header, in canonical order."""
    grids = []
    for one in references:
        if one.problem is not None:
            continue
        try:
            members = one.slices or one.members
            scan = open_scan(sources.images, one.source, members, recipe.scan_options(), one.volume)
            grids.append(plan_canonical(scan.grid).target)
        except (SourceError, OSError):  # the conversion rejects the scan with its reason
            continue
    return grids


def propose_spacing(grids: Sequence[Grid]) -> tuple[float, float, float]:
    """Return the spacing in mm along depth, height and width that nnU-Net would resample to.

    It is the median of each axis. If one axis is more than 3 times as coarse as the others and has 3 times fewer
    voxels, its 10th percentile is used (Isensee et al., Nature Methods 2021, `determine_fullres_target_spacing`).

    >>> scan = Grid(shape=(20, 512, 512), affine=np.diag([5.0, 0.8, 0.8, 1.0]))
    >>> thin = Grid(shape=(90, 512, 512), affine=np.diag([1.0, 0.8, 0.8, 1.0]))
    >>> propose_spacing([scan, scan, thin])
    (1.8, 0.8, 0.8)
    """
    spacings = np.array([grid.spacing_mm for grid in grids])
    spacing, shape = np.median(spacings, axis=0), np.median([grid.shape for grid in grids], axis=0)
    worst = int(np.argmax(spacing))
    others = [axis for axis in range(3) if axis != worst]
    # The coarse axis of anisotropic scans, such as thick CT slices, would lose detail at its median.
    if spacing[worst] > _ANISOTROPIC * max(spacing[others]) and _ANISOTROPIC * shape[worst] < min(
        shape[others]
    ):
        spacing[worst] = max(np.percentile(spacings[:, worst], 10), max(spacing[others]))
    depth, height, width = (float(f"{side:.3g}") for side in spacing)
    return depth, height, width


def _propose(
    references: Sequence[SourceExample], sources: Sources, recipe: Recipe
) -> tuple[dict[str, Any], str] | None:
    """Return options for the static shape and spacing, and lines about them; None if no scan can be read."""
    grids = _grids_of(references, sources, recipe)
    if not grids:
        return None
    spacing = recipe.spacing() or propose_spacing(grids)
    sizes = np.array([np.array(grid.shape) * grid.spacing_mm / spacing for grid in grids])
    sides = [round_up_side(side) for side in sizes.max(0)]
    options = {**dict(zip(("depth", "height", "width"), sides, strict=True)), "spacing_mm": spacing}
    typed = " ".join(f"{flag(name)} {value}" for name, value in zip(options, sides, strict=False))
    found = [_describe(grid) for grid in grids]
    smallest, largest = (found[int(pick(sizes.prod(1)))] for pick in (np.argmin, np.argmax))
    median, most = (
        "x".join(f"{side:.0f}" for side in one) for one in (np.median(sizes, axis=0), sizes.max(0))
    )
    spaced = ",".join(f"{side:g}" for side in spacing)
    return options, (
        f"  scans        {smallest} to {largest}; at {spaced} mm the median is {median}, and the "
        f"largest sides are {most}\n"
        f"  proposed     {typed} --spacing-mm {spaced} (nnU-Net's spacing; nothing of the sample is cut)"
    )


def _describe(grid: Grid) -> str:
    return f"{'x'.join(map(str, grid.shape))} at {','.join(f'{side:.3g}' for side in grid.spacing_mm)} mm"


def _propose_window(converted: Conversion | None) -> str:
    """Return a line with the window of the labeled voxels of the sample; "" if the recipe has one, or none is known."""
    # Where the recipe has a window or a normalization, the user has decided how values are stored.
    if converted is None or not holds_hounsfield_units(manifest := converted.manifest):
        return ""
    for split in manifest.splits:
        try:
            window, _ = foreground_scheme(manifest, split)
        except HalofeedError:  # no voxel of the sample's split has a label
            continue
        ends = f"--window-hu {window.low:g},{window.high:g}"
        return f"  proposed     {ends} (percentiles 0.5 and 99.5 of labeled voxels of the sample, as nnU-Net)"
    return ""
