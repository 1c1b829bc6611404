"""Text summary of a finished conversion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from halofeed.pipelines.commit import cure_of
from halofeed.pipelines.convert import Conversion
from halofeed.pipelines.duplicates import COPIES, describe_copies
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.reject_limit import inputs_of, share_warning, stage_of
from halofeed.pipelines.run_counts import ConversionSummary
from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.prep.convert.loss_findings import Converted, cure_of_cuts, loss_findings, tiles_of_pictures
from halofeed.prep.geometry.volume_plan import round_up_side
from halofeed.prep.options.option import flag
from halofeed.schemas.file_layout import OBJECT, REJECTED, SELECTION
from halofeed.schemas.findings import FindingName, explain_finding, finding_key, split_finding
from halofeed.schemas.lineage import lineage_of
from halofeed.schemas.manifest import Manifest, Split
from halofeed.schemas.statistics import Padding, Statistics
from halofeed.schemas.tasks import task_named
from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

_MAX_LISTED = 8
_WORST = 3
_MAX_LINES = 1_000_000
"""Lines of the list of rejected inputs that are read."""
_READ_BYTES = 1 << 20
_WARN_PADDING = 0.5
_SHAPE = ("depth", "height", "width")


def summary(
    done: Conversion, warn_cut: float = 0.01, on_loss: str = "refuse", max_rejected: str | None = None
) -> str:
    """Return a few lines: splits, what the run did, rejected inputs with reasons, warnings, and the next command.

    Args:
        warn_cut: share of a class that the static shape may cut off without a warning.
        on_loss: "ignore" leaves out what the conversion lost.
        max_rejected: as in `rejected_warning`.
    """
    manifest = done.manifest
    head = "already converted" if done.was_there else "converted"
    lines = [f"{manifest.name} {manifest.version}: {head}, {manifest.task}, {_classes(manifest)}"]
    lines += [f"  {name:<12} {_describe(manifest, name)}" for name in manifest.splits]
    lines += [f"  {tiles}" for tiles in [tiles_of_pictures(manifest)] if tiles]
    lineage = lineage_of(manifest.inputs)
    lines += run_lines(done.summary, was_there=done.was_there, earlier=lineage.version if lineage else "")
    lines += [f"  {describe_copies(manifest.inputs[COPIES])}"] if COPIES in manifest.inputs else []
    lines += outcome_lines(done, warn_cut, f", see {OutputFolder(done.folder).path(REJECTED)}")
    lines += [f"  warning: {warning}" for warning in [rejected_warning(done, max_rejected)] if warning]
    lines += _unused(manifest)
    lines += loss_lines(manifest, f"`halofeed inspect {done.folder}`") if on_loss != "ignore" else []
    lines.append(f"{done.folder}: look at it with `halofeed report {done.folder}`")
    return "\n".join(lines)


def run_lines(run: ConversionSummary, *, was_there: bool = False, earlier: str = "") -> list[str]:
    """Return lines on time, bytes and kept shards of a run.

    Args:
        was_there: whether the run found a committed data set, and wrote nothing.
        earlier: number of the version from which the data set started; "" without one.

    >>> run = ConversionSummary(
    ...     elapsed_seconds=8.0, records=400, shards=4, shards_kept=1, bytes_read=9_000_000, bytes_written=60_000_000
    ... )
    >>> print("\\n".join(run_lines(run)))
      8.0 s, 50.0 records/s, 9.00 MB read, 60.0 MB written
      resumed, 1 of 4 shards kept
    """
    if was_there:
        return [f"  {run.elapsed_seconds:,.1f} s, {human_bytes(run.bytes_read)} read to compare the sources"]
    lines = [
        f"  {run.elapsed_seconds:,.1f} s, {run.records_per_second:,.1f} records/s, {human_bytes(run.bytes_read)} read, "
        f"{human_bytes(run.bytes_written)} written"
    ]
    if run.shards_kept:
        how = f"from {earlier}" if earlier else "resumed"
        lines.append(f"  {how}, {run.shards_kept:,} of {plural(run.shards, 'shard')} kept")
    return lines


def rejected_warning(
    done: Conversion, max_rejected: str | None, again: str = "convert again with --overwrite"
) -> str:
    """Return the warning about a large share of rejected inputs; "" for a small one.

    Args:
        done: the conversion.
        max_rejected: value of --max-rejected, with which there is no warning.
        again: how the corrected inputs are converted.
    """
    if max_rejected is not None:
        return ""
    fix = f"correct those that {OutputFolder(done.folder).path(REJECTED)} lists and {again}"
    return share_warning(done.manifest.rejected, inputs_of(done.manifest), fix)


def outcome_lines(
    done: Conversion, warn_cut: float, see: str = "", *, checks_shape: bool = True
) -> list[str]:
    """Return lines on rejected inputs, dropped objects and warnings.

    Args:
        warn_cut: as in `summary`.
        see: text after the number of rejected inputs.
        checks_shape: whether to warn of what the static shape cuts off or pads.
    """
    manifest = done.manifest
    lines = rejected_lines(done.manifest.rejected, _firsts(done, set(done.manifest.rejected)), see)
    for name, split in manifest.splits.items():
        lines += _box_lines(name, split)
        if checks_shape:
            lines += [f"  warning: {name}: {words}" for words in _volume_warnings(manifest, split, warn_cut)]
            lines += _cut_of_scans(manifest, name, warn_cut)
    total = Statistics.total(split.statistics for split in manifest.splits.values())
    lines += [
        f"  warning: {plural(count, 'input')}: {text}" for text, count in (total.warnings or {}).items()
    ]
    return lines


_OUTCOMES = {
    "": ("input", "rejected"),
    SELECTION: ("other file", "left out (not asked for)"),
    OBJECT: ("object", "dropped (the rest of the picture is kept)"),
}
"""What happens to an input, file or object, by the stage of its reason; "" is any other stage. The words have no tense,
because --dry-run says them before the conversion and the summary after it."""


def rejected_lines(reasons: Mapping[str, int], firsts: Mapping[str, str], see: str = "") -> list[str]:
    """Return lines on inputs that are rejected, files that are not asked for, and objects that are dropped.

    Args:
        reasons: counts by stage and reason, as in the manifest.
        firsts: source and detail of the first one of each reason.
        see: text after each count.

    >>> print("\\n".join(rejected_lines({"decode: file is empty": 2}, {"decode: file is empty": "hat/1.jpg"})))
      2 inputs rejected
              2 x decode: file is empty
                  such as hat/1.jpg; copy or download it again
    """
    by_outcome: dict[str, dict[str, int]] = {}
    for reason, count in reasons.items():
        stage = stage_of(reason)
        by_outcome.setdefault(stage if stage in _OUTCOMES else "", {})[reason] = count
    lines: list[str] = []
    for stage, (noun, what) in _OUTCOMES.items():
        if counts := by_outcome.get(stage):
            lines += _reason_lines(counts, f"{plural(sum(counts.values()), noun)} {what}{see}", firsts)
    return lines


def _box_lines(name: str, split: Split) -> Iterator[str]:
    """Yield lines on the boxes of a split, and on those that its records hold beyond --max-boxes."""
    if boxes := split.statistics.boxes:
        listed = ", ".join(f"{count:,} {what}" for what, count in boxes.items())
        yield f"  boxes of {name}: {listed}"
    if (cut := split.statistics.cut) and cut.boxes:
        yield (
            f"  {name}: {plural(cut.images, 'image has', 'images have')} more than --max-boxes; the "
            f"loader will cut {plural(cut.boxes, 'box', 'boxes')} "
            "of them"
        )


def loss_lines(manifest: Manifest, see: str) -> list[str]:
    """Return warnings of the worst losses, of those that no other line of the summary says.

    Args:
        see: command that lists all.
    """
    found = [finding for finding in loss_findings(Converted.of(manifest)) if not finding.is_said]
    lines = [f"  warning: {finding}" for finding in found[:_WORST]]
    if len(found) > _WORST:
        lines.append(f"  and {plural(len(found) - _WORST, 'finding')} more: {see} lists them")
    return lines


def _unused(manifest: Manifest) -> Iterator[str]:
    """Yield warnings about classes without any object and about empty shards."""
    yield from _unused_classes(manifest)
    for name, split in manifest.splits.items():
        empty, count = sum(not shard.records for shard in split.shards), len(split.shards)
        if empty == count:
            yield f"  warning: {name}: no record"
        elif empty:
            yield f"  warning: {name}: {empty_shards(empty, count)}"


def empty_shards(empty: int, shards: int, least: str = "") -> str:
    """Return the warning about empty shards.

    Args:
        least: text before the number where there may be more.

    >>> empty_shards(1, 8), empty_shards(4, 8, "at least ")
    ('1 of 8 shards is empty; lower --shards', 'at least 4 of 8 shards are empty; lower --shards')
    """
    return f"{least}{empty:,} of {shards:,} shards {'is' if empty == 1 else 'are'} empty; lower --shards"


def _unused_classes(manifest: Manifest) -> Iterator[str]:
    shown = Statistics.total(split.statistics for split in manifest.splits.values()).labels or {}
    unused = [name for key, name in manifest.labels.items() if str(key) not in shown and name != BACKGROUND]
    if unused and shown:  # in a set without any label, such as one for prediction, each class would be unused
        more = f" and {len(unused) - _MAX_LISTED} more" if len(unused) > _MAX_LISTED else ""
        listed = ", ".join(unused[:_MAX_LISTED])
        yield f"  warning: {plural(len(unused), 'class', 'classes')} in no record: {listed}{more}"


_SAID = frozenset(
    finding_key(name, "corrected") for name in (FindingName.MASK_QUANTIZED, FindingName.REAL_WORLD_VALUES)
)
"""Findings about other values than those stored, which the summary says too."""


def _volume_warnings(manifest: Manifest, split: Split, warn_cut: float) -> Iterator[str]:
    """Yield warnings about values that were changed, about what the static shape cuts off, and about padding."""
    statistics = split.statistics
    for key, count in (statistics.findings or {}).items():
        if key in _SAID:
            yield f"{plural(count, 'scan')}: {key}: {explain_finding(split_finding(key)[0])}"
    if any(statistics.largest_scan or ()):  # pictures and clips have no scans
        yield from _cut_classes(manifest, split, warn_cut)
        yield from _wasted_voxels(manifest, split)


def _cut_classes(manifest: Manifest, split: Split, warn_cut: float) -> Iterator[str]:
    """Yield a warning about the classes that lose more than a share of their voxels to the static shape."""
    total, lost = split.statistics.label_mm3 or {}, split.statistics.label_cut_mm3 or {}
    shares = {value: lost.get(value, 0) / mm3 for value, mm3 in total.items()}
    cut = sorted((-share, value) for value, share in shares.items() if share > warn_cut)
    if not cut:
        return
    listed = [
        f"{-share:.1%} of {manifest.labels.get(int(value), value)!r} "
        f"({lost[value] / 1000:,.1f} of {total[value] / 1000:,.1f} ml)"
        for share, value in cut[:_MAX_LISTED]
    ]
    left = len(cut) - _MAX_LISTED
    more = f" and of {plural(left, 'class more', 'classes more')}" if left > 0 else ""
    shape, largest = _sizes(manifest, split)
    yield (
        f"{', '.join(listed)}{more} lies outside of {shape} and is in no record; the largest scan has "
        f"{largest}: {cure_of_cuts(manifest.recipe, has_labels=True)}"
    )


def _wasted_voxels(manifest: Manifest, split: Split) -> Iterator[str]:
    """Yield a warning where most voxels are padding and a smaller shape would hold every scan of all splits."""
    wasted = (split.statistics.padding or Padding()).share
    if wasted <= _WARN_PADDING:
        return
    scans = [one.statistics.largest_scan for one in manifest.splits.values()]
    sides = [max(ends) for ends in zip(*filter(None, scans), strict=True)]
    smaller = [
        f"{flag(name)} {round_up_side(side)}"
        for name, side in zip(_SHAPE, sides, strict=True)
        if round_up_side(side) < manifest.recipe[name]
    ]
    # Scans of different sizes have padding in every shape that cuts none of them.
    if not smaller:
        return
    shape, _ = _sizes(manifest, split)
    at_spacing, finer = (
        (" at the recipe's spacing", ", or a finer --spacing-mm")
        if manifest.recipe["spacing_mm"]
        else ("", "")
    )
    yield (
        f"{wasted:.1%} of the voxels are padding: records have {shape}, and no scan of the data set is larger than "
        f"{'x'.join(map(str, sides))}{at_spacing}; take {' '.join(smaller)}{finer}"
    )


def _cut_of_scans(manifest: Manifest, name: str, warn_cut: float) -> list[str]:
    """Return how much of the scans' field of view and body is in no record; a warning where there are no labels."""
    split = manifest.splits[name]
    statistics = split.statistics
    of_view, of_body = map(_by_percent, (statistics.scan_cut_percents, statistics.body_cut_percents))
    if not _scans_above(of_view, warn_cut):
        return []
    shape, largest = _sizes(manifest, split)
    share = (statistics.scan_cut_mm3 or 0) / (statistics.scan_mm3 or 1)
    body, fix = "nearly all of each body is in records", ""
    without_body = _scans_above(of_body, warn_cut)
    if without_body:
        body = (
            f"more than {warn_cut:.0%} of the body, up to {max(of_body)}%, is lost of {without_body:,} of "
            f"{plural(sum(of_body.values()), 'scan')}"
        )
        fix = f"; the largest scan has {largest}: {cure_of_cuts(manifest.recipe, has_labels=False)}"
    # Labels show what matters in a scan, and another warning covers their loss. Air around a body may be cut off.
    is_warning = bool(without_body) and not statistics.labelled
    return [
        f"  {'warning: ' * is_warning}{name}: {share:.1%} of the field of view (up to {max(of_view)}% of a scan) lies "
        f"outside of {shape} and is in no record; {body}{fix}"
    ]


def _by_percent(counts: Mapping[str, int] | None) -> dict[int, int]:
    return {int(percent): count for percent, count in (counts or {}).items()}


def _scans_above(counts: Mapping[int, int], share: float) -> int:
    return sum(count for percent, count in counts.items() if percent > 100 * share)


def _sizes(manifest: Manifest, split: Split) -> tuple[str, str]:
    """Return the static shape and the shape of the largest scan as text."""
    recipe = manifest.recipe
    shape = "x".join(str(recipe[side]) for side in _SHAPE)
    at_spacing = " at the recipe's spacing" if recipe["spacing_mm"] else ""
    return shape, "x".join(map(str, split.statistics.largest_scan or ())) + at_spacing


def _firsts(done: Conversion, reasons: set[str]) -> dict[str, str]:
    """Return the source and the detail of the first rejected input of each reason."""
    found: dict[str, str] = {}
    output = OutputFolder(done.folder)
    if not reasons or not output.exists(REJECTED):
        return found
    with output.open(REJECTED) as stream:
        for line in islice(_lines(stream), _MAX_LINES):
            entry = json.loads(line.decode("utf-8", "surrogateescape"))
            detail = f": {entry['detail']}" if entry["detail"] else ""
            found.setdefault(f"{entry['stage']}: {entry['reason']}", f"{entry['source']}{detail}")
            if len(found) == len(reasons):
                break
    return found


def _lines(stream: Any) -> Iterator[bytes]:
    rest = b""
    while some := stream.read(_READ_BYTES):
        *lines, rest = (rest + some).split(b"\n")
        yield from lines


def _reason_lines(counts: Mapping[str, int], head: str, firsts: Mapping[str, str]) -> list[str]:
    """Return a line, and the most common reasons with their first example."""
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    more = [f"    and {len(ranked) - _MAX_LISTED} reasons more"] if len(ranked) > _MAX_LISTED else []
    return [
        f"  {head}",
        *(
            line
            for reason, count in ranked[:_MAX_LISTED]
            for line in (
                f"    {count:>7,} x {reason}",
                *([f"              such as {firsts[reason]}{cure_of(reason)}"] if reason in firsts else []),
            )
        ),
        *more,
    ]


def _describe(manifest: Manifest, name: str) -> str:
    split, others = manifest.splits[name], manifest.splits.keys() - {name}
    size = sum(shard.bytes for shard in split.shards)
    records = f"{split.records:>9,} {'record ' if split.records == 1 else 'records'}"
    is_apart = manifest.is_for_prediction(name) and not all(map(manifest.is_for_prediction, others))
    without = "  no labels: for prediction" if is_apart else ""
    return f"{records}  {plural(len(split.shards), 'shard')}  {size / 1e6:,.1f} MB{without}"


def _classes(manifest: Manifest) -> str:
    has_labels = not task_named(manifest.task).has_label_image or any(
        split.statistics.labelled for split in manifest.splits.values()
    )
    return plural(len(manifest.labels), "class", "classes") if has_labels else "no labels"
