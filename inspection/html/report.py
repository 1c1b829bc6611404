"""HTML report of a data set: `write_report`, and the values for the template of each section."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from halofeed.inspection.dataset_facts import (
    CORES,
    VALUE_PARTS,
    ClassVoxels,
    DatasetFacts,
    box_size_bins,
    color_errors,
    counts_of,
    padding_choices,
    pixel_figures,
    source_shapes,
    source_sizes,
    source_spacings,
    split_reason,
    value_figures,
    volume_sizings,
)
from halofeed.inspection.dataset_files import DatasetFiles, open_files, open_manifest
from halofeed.inspection.html import charts
from halofeed.inspection.html.contents import (
    PAGE_BYTES,
    card_data,
    content_values,
    findings_by_record,
    suspect_values,
)
from halofeed.inspection.html.page import (
    check_output,
    rendered,
    setting_text,
    swatched,
    write_page,
)
from halofeed.inspection.plan_report import plan_section_values
from halofeed.inspection.planes import Display
from halofeed.inspection.record_cards import CardDrawer
from halofeed.inspection.review.kept_predictions import KeptPredictions
from halofeed.inspection.review.label_faults import PredictedBatches
from halofeed.inspection.review.review import Review, review_dataset
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.samples import (
    Candidate,
    Picture,
    Sample,
    choose_samples,
    find_candidates,
    load_sample,
    load_scan,
    open_source_files,
    reject_thumbnail,
)
from halofeed.inspection.stored_records import class_channels
from halofeed.inspection.thumbnails import PlacedBox, lay_out_boxes, lay_out_regions, thumbnail_side
from halofeed.inspection.words import percent, times
from halofeed.pipelines.source_registry import recall
from halofeed.prep.convert.loss_findings import Converted, loss_findings
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.prep.options.option import flag
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.counts import ValueCounts, percentile
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.file_layout import OBJECT, REJECTED, SELECTION, read_plan
from halofeed.schemas.findings import TREATMENTS
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import nearest_multiples, splits_that_divide
from halofeed.system.addresses import Address, address_of
from halofeed.system.console import human_bytes
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural

_LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL = 360, 160
_MAX_LABELS, _LAST_LABELS, _FEW_LABELS = 90, 20, 14
_MAX_VOXEL_ROWS = 130
_MAX_SPLITS = 8
_MAX_PICTURE_CHIPS, _MAX_SCAN_CHIPS = 14, 12
_MAX_NAMES = 12
_CHANNELS = {1: ("gray",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
EXAMPLES_PER_REASON = 4
_LONGEST_TEXT = 2000
_MAX_LINE_VALUES = 1000
_MAX_REJECT_PICTURES, _REJECT_SIDE = 40, 140


@dataclass(frozen=True, kw_only=True)
class Report:
    """Input of each section of a data set's report.

    Args:
        facts: facts from the manifest.
        files: files of the data set.
        sources: folder of the source pictures, if the user names one.
        samples: number of records to show.
        predicted: predictions of its records, which the search for label faults keeps; None without a run.
        runs: folders of the runs that predicted, with commas; "" without one.
    """

    facts: DatasetFacts
    files: DatasetFiles
    sources: str | None
    samples: int
    predicted: KeptPredictions | None = None
    runs: str = ""

    @cached_property
    def chosen(self) -> list[tuple[Candidate, str | None]]:
        """Return the records to show, each with the reason why it is unusual, or None."""
        if not self.samples:
            return []
        found = find_candidates(self.files, self.facts.manifest)
        return choose_samples(found, self.samples, detection=self.facts.task.has_boxes)

    @property
    def side(self) -> int:
        """Return the longer side of a sample's picture, in pixels."""
        return thumbnail_side(len(self.chosen), _LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL)

    @cached_property
    def core_splits(self) -> dict[int, list[tuple[int, ...]]]:
        """Return the even splits of an image over each number of cores."""
        return splits_that_divide(
            (1, *self.facts.image.shape), CORES, axes=range(1, len(self.facts.size) + 1)
        )

    @cached_property
    def display(self) -> Display:
        """Return the display of its volumes."""
        return self.drawer.display

    @cached_property
    def opened_sources(self) -> tuple[SourceFiles | None, str]:
        """Return the folder of the source pictures, or the reason why they are not shown."""
        return open_source_files(self.facts.origin, self.sources)

    @cached_property
    def review(self) -> Review:
        """Return what a search of the data set found."""
        return review_dataset(self.files, self.predicted)

    @cached_property
    def drawer(self) -> CardDrawer:
        """Return the drawing of its records."""
        plain = CardDrawer(reviewed=ReviewedSet(self.files), facts=self.facts, predictions=self.predicted)
        return replace(plain, findings=findings_by_record(plain, self.review))


def write_report(
    path: str | os.PathLike[str],
    output: str | Path | None = None,
    sources: str | None = None,
    samples: int = 12,
    predicted: PredictedBatches | None = None,
    runs: str = "",
) -> Path:
    """Write one self-contained HTML file about a data set; equal data sets give equal bytes.

    Args:
        path: folder or address of the data set's version.
        output: file to write; default: <version>-report.html beside that folder, or in the working directory for an
            address.
        sources: folder of the source pictures, to which the names in records are relative; default: the recorded
            folder, if this user converted the data set on this machine; else no sources are shown. Volumes are always
            shown without their sources.
        samples: number of records to show.
        predicted: predictions of its records by trained runs; likely label faults are then the first suspects.
        runs: folders of these runs, with commas, for the commands on the page.

    Returns:
        the path of the file.

    Raises:
        UsageError: there is no finished data set, the file cannot be written, or it is inside the version's folder,
            which must hold the data set only.
        ManifestError, CorruptFileError: the data set is not what was written.
    """
    if samples < 0:
        raise UsageError(f"--samples {samples}: expected 0 or more")
    path = address_of(path) or path
    data_files = open_files(path)
    manifest = open_manifest(data_files)
    file = _usual_file(path) if output is None else Path(output)
    check_output(file, "report.html")
    if not isinstance(path, Address) and Path(path).resolve() in file.resolve().parents:
        raise UsageError(
            f"--output {file}: is in the version's folder, where `halofeed verify` allows the data set's files only; "
            "name a file elsewhere"
        )
    rejects, origin = _read_rejects(data_files, manifest), recall(str(data_files), manifest)
    facts = DatasetFacts(path=str(path), manifest=manifest, rejects=rejects, origin=origin)
    with contextlib.ExitStack() as stack:
        kept = None
        if predicted is not None:
            kept = stack.enter_context(contextlib.closing(KeptPredictions(predicted)))
        report = Report(
            facts=facts, files=data_files, sources=sources, samples=samples, predicted=kept, runs=runs
        )
        parts = _sections(report)
    sections = [parts[name] for name in facts.kind.sections if name in parts]
    named = len(set(manifest.labels) - {0} if facts.task.has_background else manifest.labels)
    values = {"manifest": manifest, "facts": facts, "named": named, "sections": sections, "path": facts.path}
    return write_page(file, "report.html", "report.css", "records.css", script="records.js", **values)


def _sections(report: Report) -> dict[str, Markup]:
    """Render each section that has something to show, by its name."""
    facts = report.facts
    colors = [(f"s{at}", name) for at, name in enumerate(facts.splits)]
    parts: dict[str, Markup] = {}
    # The first sections get the room that the others leave.
    for name in sorted(facts.kind.sections, key=lambda name: name in RECORD_SECTIONS):
        used = sum(map(len, parts.values()))
        found = RECORD_SECTIONS[name](report, used) if name in RECORD_SECTIONS else VALUES[name](report)
        if found is not None:
            parts[name] = rendered(f"sections/{name}.html", facts=facts, split_colors=colors, **found)
    return parts


def _usual_file(path: str | os.PathLike[str] | Address) -> Path:
    """Return the file of a report whose name the user does not give: beside the version's folder."""
    if isinstance(path, Address):
        return Path(f"{str(path).rstrip('/').rpartition('/')[2]}-report.html")
    # The absolute path has a name also where the path is "." or "..".
    absolute = Path(os.path.abspath(path))
    file = absolute.parent / f"{absolute.name}-report.html"
    return file if Path(path).is_absolute() else Path(os.path.relpath(file))


def _read_rejects(files: DatasetFiles, manifest: Manifest) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Read the first entries of rejected.jsonl for each stage and reason of the manifest."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {split_reason(key): [] for key in manifest.rejected}
    missing = sum(min(EXAMPLES_PER_REASON, count) for count in manifest.rejected.values())
    file = files.path(REJECTED)
    try:
        for number, line in enumerate(files.lines(REJECTED), 1):
            reason, shown = _parse_reject(line, f"{file}: line {number}", f"run `halofeed verify {files}`")
            examples = found.get(reason)
            if examples is not None and len(examples) < EXAMPLES_PER_REASON:
                examples.append(shown)
                missing -= 1
            # The file may have a line for each of millions of rejects; a few are shown.
            if missing <= 0:
                break
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    return found


def _parse_reject(line: bytes, place: str, fix: str) -> tuple[tuple[str, str], dict[str, str]]:
    """Return the stage and reason of a line of rejected.jsonl, and the texts to show."""
    try:
        # Names of files need not be UTF-8.
        entry = parse_json(line.decode("utf-8", "surrogateescape"), _MAX_LINE_VALUES)
        shown = {key: str(entry.get(key, ""))[:_LONGEST_TEXT] for key in ("source", "detail")}
        return (str(entry["stage"]), str(entry["reason"])), shown
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFileError(f"{place} is not a reject; {fix}") from error


def suspects(report: Report, used: int) -> dict[str, Any]:
    """Show what may be wrong with the data set; `used` are the characters of the sections without single records."""
    room = PAGE_BYTES[report.drawer.is_volumetric] - used
    pictures = report.samples > 0
    return suspect_values(report.drawer, report.review, room, pictures=pictures, runs=report.runs)


def contents(report: Report, used: int) -> dict[str, Any]:
    """Show records with search and filter; `used` as in `suspects`."""
    room = PAGE_BYTES[report.drawer.is_volumetric] - used
    found = content_values(report.drawer, report.review, room, pictures=report.samples > 0)
    return {**found, "data": partial(card_data, report.drawer), "has_masks": report.drawer.has_masks}


def conversion(report: Report) -> dict[str, Any]:
    """Show the records of each split, and the rejects with their reasons."""
    facts, splits = report.facts, report.facts.manifest.splits
    failures, left_out, objects = facts.rejected(), facts.rejected(SELECTION), facts.rejected(OBJECT)
    entries = [(f"s{at}", f"{name} {splits[name].records:,}") for at, name in enumerate(facts.splits)]
    entries += [("bad", f"rejected {failures:,}")] if failures else []
    entries += [("left", f"left out on purpose {left_out:,}")] if left_out else []
    rows = []
    for name in facts.splits:
        records = splits[name].records
        each = human_bytes(facts.bytes_of(name) // records) if records else "–"
        rows.append((*facts.split_cells(name), each))
    reasons = facts.reasons()
    return {
        "failures": failures,
        "left_out": left_out,
        "objects": objects,
        "entries": entries,
        "rows": rows,
        "parts": [(f"s{at}", splits[name].records) for at, name in enumerate(facts.splits)],
        "inputs": facts.manifest.inputs.get("count"),
        "rejected": {
            "Rejected": [entry for entry in reasons if entry.stage not in (SELECTION, OBJECT)],
            "Objects dropped": [entry for entry in reasons if entry.stage == OBJECT],
            "Left out on purpose": [entry for entry in reasons if entry.stage == SELECTION],
        },
        "file": REJECTED,
        "losses": loss_findings(Converted.of(facts.manifest)),
        "pictures": _reject_pictures(report),
    }


def _reject_pictures(report: Report) -> dict[str, str]:
    """Return the thumbnails of the rejects that are listed, by the name of their source, where they can be read."""
    sources = report.opened_sources[0] if report.samples else None
    if sources is None:
        return {}
    listed = [example["source"] for reason in report.facts.reasons() for example in reason.examples]
    found: dict[str, str] = {}
    for source in dict.fromkeys(listed[:_MAX_REJECT_PICTURES]):
        picture = reject_thumbnail(sources, source, report.facts.manifest, _REJECT_SIDE)
        if picture is not None:
            found[source] = picture
    return found


def samples(report: Report) -> dict[str, Any]:
    """Show records before and after the conversion, with their boxes; unusual ones come last."""
    facts = report.facts
    sources, without_sources = report.opened_sources
    shown = [
        load_sample(report.files, facts.manifest, one, sources, report.side, facts.ranks)
        for one in report.chosen
    ]
    return {
        "shown": [_sample_card(facts, sample) for sample in shown],
        "without_sources": without_sources,
        "quoted_path": shlex.quote(facts.path),
        "padded": any(sample.stored.content != (1.0, 1.0) for sample in shown),
        "tiled": any(sample.before is not None and sample.before.tile for sample in shown),
    }


def _sample_card(facts: DatasetFacts, sample: Sample) -> tuple[Any, ...]:
    """Return a sample, its first classes, the number of others, and its pictures: (picture, caption, width, boxes)."""
    counted = Counter(sample.candidate.labels).most_common()
    names = [(facts.label_name(label), facts.ranks.get(label, 0)) for label in sample.candidate.labels]
    stored = sample.stored
    unpadded = tuple(round(side * share) for side, share in zip(stored.size, stored.content, strict=True))
    inside = "" if unpadded == stored.size else f", picture {times(unpadded)}"
    caption = f"stored {times(stored.shape or stored.size)}{inside}"
    pictures = [(stored, caption, stored.size[1], _placed(stored, names))]
    if sample.before is not None:
        # One scale for both pictures, so that an object has the same size in both.
        width = unpadded[1] if sample.candidate.orientation < 5 else unpadded[0]
        before = sample.before
        placed = _placed(before, names, tags=False)
        pictures.insert(0, (before, f"source {times(before.shape or before.size)}", width, placed))
    return sample, counted[:_MAX_PICTURE_CHIPS], max(0, len(counted) - _MAX_PICTURE_CHIPS), pictures


def _placed(picture: Picture, names: Sequence[tuple[str, int]], *, tags: bool = True) -> list[PlacedBox]:
    """Lay out the boxes of a picture, or the outlines of its objects if it has their corners."""
    placed = lay_out_boxes(picture.boxes, names, picture.size, tags=tags, outlines=picture.corners)
    return [*lay_out_regions(picture.regions, picture.size), *placed]


def scans(report: Report) -> dict[str, Any]:
    """Show planes of some records with their classes; unusual ones come last."""
    facts = report.facts
    shown = []
    for one in report.chosen:
        scan = load_scan(report.files, facts.manifest, one, report.display, facts.ranks, report.side)
        counted = [(label, count) for label, count in scan.classes.voxels.items() if label]
        shown.append((scan, sorted(counted, key=lambda item: (-item[1], item[0]))))
    return {
        "shown": shown,
        "display": report.display,
        "overlap": bool(class_channels(facts.manifest)),
        "max_chips": _MAX_SCAN_CHIPS,
    }


def labels(report: Report) -> dict[str, Any]:
    """Show the frequency of each class in each split, and its pixels or voxels."""
    facts, words, counts = report.facts, report.facts.task, report.facts.label_counts
    present = [label for label, values in counts.items() if sum(values)]
    first, last = present, []
    if len(present) > _MAX_LABELS + _LAST_LABELS:
        first, last = present[:_MAX_LABELS], present[-_LAST_LABELS:]
    lead = words.lead.format(
        classes=plural(len(present), "class", "classes"),
        occur="occurs" if len(present) == 1 else "occur",
        unit=words.counted or facts.noun[1],
    )
    if len(present) > 1:
        most, least = present[0], present[-1]
        lead += words.extremes.format(
            most=facts.label_name(most),
            max_count=f"{sum(counts[most]):,}",
            least=facts.label_name(least),
            least_count=f"{sum(counts[least]):,}",
        )
    return {
        "lead": f"{lead}.",
        "per_class": words.per_class.format(records=facts.noun[1].capitalize()),
        "kind": "bars" if len(first) <= _FEW_LABELS else "bars many",
        "first": first,
        "last": last,
        "hidden": len(present) - len(first) - len(last),
        "lacking": _missing_in_splits(facts),
        "absent": _listed(facts, [label for label, values in counts.items() if not sum(values)]),
        **(_class_voxels(facts) if words.has_label_map else {}),
    }


def _class_voxels(facts: DatasetFacts) -> dict[str, Any]:
    """Return the table of pixels or voxels of each class, with their shares."""
    found = [one for one in facts.class_voxels() if one.label and one.is_counted]
    # Only volumes have a size in mm³ in their sources.
    has_cut = bool(facts.integers("label_mm3"))
    rows = [_voxel_row(facts, one, has_cut) for one in found[:_MAX_VOXEL_ROWS]] if facts.labelled else []
    head = ["class", "id", facts.noun[1], facts.kind.unit, f"each {facts.noun[0]}"]
    head += ["of the foreground", "of everything"]
    head += ["cut off"] if facts.labelled and has_cut else []
    hidden = max(0, len(found) - _MAX_VOXEL_ROWS)
    return {"voxel_rows": rows, "head": head, "notes": _voxel_notes(facts, hidden, has_cut)}


def _voxel_row(facts: DatasetFacts, one: ClassVoxels, has_cut: bool) -> list[str]:
    cells = [
        swatched(facts.label_name(one.label), facts.ranks.get(one.label, 0)),
        str(one.label),
        f"{one.records:,}",
        f"{one.voxels:,}",
        f"{one.voxels / one.records if one.records else 0:,.0f}",
        percent(one.of_foreground or 0),
        percent(one.of_everything or 0),
    ]
    cut = "–" if one.cut is None else percent(one.cut)
    return [*cells, cut] if has_cut else cells


def _voxel_notes(facts: DatasetFacts, hidden: int, has_cut: bool) -> list[str]:
    """Return the notes below the table of voxels; `hidden` is the number of classes without a row."""
    without = facts.records - facts.labelled
    has, is_, it = ("has", "is", "it is") if without == 1 else ("have", "are", "they are")
    notes = [
        (
            without,
            f"{plural(without, *facts.noun)} of {facts.records:,} {has} no label and {is_} for prediction: all values "
            f"of the label are 0, labelled is false, and {it} not counted here.",
        ),
        (
            class_channels(facts.manifest),
            "Classes overlap: a voxel counts for each of its classes, so shares may add up to more than 100 %.",
        ),
        (facts.labelled and hidden, f"{hidden:,} smaller classes are not shown."),
        (
            facts.labelled and has_cut,
            "“Cut off” is the share of the class's volume in the sources that is in no record, because it is outside "
            "of the static shape or a crop.",
        ),
    ]
    return [note for applies, note in notes if applies]


def boxes(report: Report) -> dict[str, Any] | None:
    """Show boxes per image, boxes beyond `max_boxes`, and changed or dropped boxes; None without boxes."""
    facts = report.facts
    per_image = {int(value): counts for value, counts in facts.per_split("boxes_per_image").items()}
    if not per_image:
        return None
    rows = []
    for name in facts.splits:
        found = facts.boxes(name)
        average = f"{found.average:.1f}" if found.images else "–"
        most = max((boxes for boxes, images in found.per_image.items() if images), default=0)
        rows.append((name, f"{found.boxes:,}", average, most, f"{found.empty:,}"))
    limits = [field.shape[0] for field in facts.manifest.fields if field.name == "boxes"]
    cut = facts.total.cut
    return {
        "per_image": per_image,
        "rows": rows,
        "fates": list(facts.per_split("boxes").items()),
        "sizes_mm": _box_sizes_mm(facts),
        "limit": limits[0] if limits else 0,
        "cut": cut if cut and cut.images else None,
    }


def _box_sizes_mm(facts: DatasetFacts) -> list[tuple[str, list[int]]]:
    """Return the objects of each split by ranges of their longest side; [] for pictures."""
    of_splits = [box_size_bins(facts.manifest.splits[name].statistics) for name in facts.splits]
    bins = box_size_bins(facts.total)
    return [(f"{words} mm", [found.get(words, 0) for found in of_splits]) for words in bins]


def sizes(report: Report) -> dict[str, Any]:
    """Show sizes and shapes of the sources, and the cost of padding now and with other options."""
    facts = report.facts
    choices = padding_choices(facts)
    rows = [
        (name, times(size), percent(share), f"{math.prod(size) / math.prod(facts.size[-2:]):.2f}×")
        for name, size, share in choices
    ]
    return {
        "sources": source_sizes(facts),
        "ratios": {float(ratio): counts for ratio, counts in facts.per_split("aspect_ratios").items()},
        "notes": [
            *facts.per_split("warnings").items(),
            *facts.per_split("notes").items(),
            *_hidden_bands(facts),
        ],
        "static": facts.image.form.has_one_shape or facts.manifest.recipe.get("pad") is True,
        "choices": choices,
        "rows": rows,
    }


def _hidden_bands(facts: DatasetFacts) -> Iterator[tuple[str, list[int]]]:
    """Yield a note for records with channels that no picture of the report shows; see `thumbnails.shown_bands`."""
    channels = facts.image.shape[-1]
    if channels not in (1, 3, 4):
        shown = "channels 1 to 3" if channels > 4 else "channel 1"
        records = [facts.manifest.splits[name].records for name in facts.splits]
        yield f"shown here with {shown} of {channels}", records


def pixels(report: Report) -> dict[str, Any]:
    """Show the distribution of pixel values in each channel, and mean and deviation for normalization."""
    facts = report.facts
    counted = facts.total.pixels
    if counted is None or not counted.count:
        return {"counted": None}
    channels = facts.image.shape[-1]
    names = _CHANNELS.get(channels, tuple(f"channel{at}" for at in range(channels)))
    peak = int(np.iinfo(facts.image.dtype).max)
    means, deviations = counted.mean_and_deviation()
    per_split = [
        (split, *of_channels) for split in facts.splits if (of_channels := pixel_figures(facts, split))
    ]
    scaled = [
        f"{what} = ({', '.join(f'{value / peak:.4f}' for value in values)}{',' * (len(names) == 1)})"
        for what, values in (("mean", means), ("std", deviations))
    ]
    return {
        "counted": counted,
        "figures": [
            (name, split, of_split[at], spread[at])
            for at, name in enumerate(names)
            for split, of_split, spread in per_split
        ],
        "means": means,
        "names": names,
        "peak": peak,
        "scaled": "\n".join(scaled),
        "row_step": ROW_STEP,
        "color_errors": color_errors(facts.total),
    }


def partitions(report: Report) -> dict[str, Any]:
    """Show how an image can be split over each number of cores."""
    size, rows = report.facts.size, []
    for cores, every in report.core_splits.items():
        shown = [
            (dims, [side // parts for side, parts in zip(size, dims[1:-1], strict=True)])
            for dims in every[:_MAX_SPLITS]
        ]
        fixes = () if every else nearest_multiples(size[-2], cores)
        rows.append((Markup("<b>{}</b>").format(cores), shown, len(every) - len(shown), fixes))
    return {"found": rows}


def stored_plan(report: Report) -> dict[str, Any] | None:
    """Show the stored result of `halofeed plan`; None without one."""
    plan = read_plan(str(report.files))
    return None if plan is None else plan_section_values(plan)


def recipe(report: Report) -> dict[str, Any]:
    """Show the options that differ from their defaults, then all others, and the fields of a record."""
    changed, defaults = (
        [(flag(name), setting_text(value)) for name, value in options.items()]
        for options in report.facts.options
    )
    return {"changed": changed, "defaults": defaults}


def commands(report: Report) -> dict[str, Any]:
    """Show code that loads the data, and a command that trains on it."""
    facts, manifest, shape = report.facts, report.facts.manifest, report.facts.image.shape
    filled = [name for name in facts.splits if manifest.splits[name].records] or list(facts.splits)
    split = filled[0] if filled else "train"
    records = manifest.splits[split].records if split in manifest.splits else 0
    # The largest batch size with at least four batches in an epoch.
    batch = next((size for size in (64, 32, 16, 8, 4, 2) if size * 4 <= records), 1)
    channels = class_channels(manifest)
    cores, dims = _shown_partition(report)
    parts = ",".join(map(str, dims))
    if facts.task.has_label_map:
        parts += f";label={','.join(map(str, (*dims[:-1], 1) if channels else dims[:-1]))}"
    label = [batch, *shape[:-1], len(channels)] if channels else [batch, *shape[:-1]]
    others = facts.task.in_batch.format(labels=[batch, len(manifest.labels)], label=label)
    loader = f"loader = Loader({facts.path!r}, split={split!r}, batch_size={batch}, seed=7)\n"
    train = f"halofeed train {shlex.quote(facts.path)} --split {split} --batch-size {max(1, min(8, batch))}"
    if cores > 1:
        train += f" \\\n    --cores-per-replica {cores} --partition image={parts}"
    return {
        "cores": cores,
        "train": train,
        "load": (
            f"from halofeed.loader import Loader\n\n{loader}"
            f'batch = loader.batch(0)        # "image": {facts.image.dtype} {[batch, *shape]}; {others}, "id", ...\n'
            "stream = loader.dataset()      # tf.data.Dataset, an epoch per iteration"
        ),
        "mesh": (
            "from halofeed.loader import Loader\n"
            "from halofeed.schemas.partition import Partition\n"
            "from halofeed.trainer.mesh import make_mesh\n\n"
            f"partition = Partition.parse('image={parts}', cores_per_replica={cores})\n{loader}"
            f"for batch in loader.on_mesh(make_mesh({cores}), partition):\n"
            "    ...                        # global jax.Arrays, each core holds its own part"
        ),
    }


def _shown_partition(report: Report) -> tuple[int, tuple[int, ...]]:
    """Return a number of cores and a split of an image over them for an example; (1, ...) if none is even."""
    axes = len(report.facts.image.shape) + 1
    found = report.core_splits
    # Four cores as in the pages' examples, else the fewest that divide an image evenly.
    cores = next((count for count in (4, 2, 8, 16) if found[count]), 1)
    every = found.get(cores, [])
    by_rows = (*(1,) * (axes - 3), cores, 1, 1)
    if report.facts.kind.splits_by_rows and by_rows in every:
        return cores, by_rows
    return cores, next(iter(every), (1,) * axes)


def _missing_in_splits(facts: DatasetFacts) -> str:
    """Return a sentence on the classes that a split lacks; "" if none does."""
    found = []
    for at, split in enumerate(facts.splits):
        records, statistics = facts.manifest.splits[split].records, facts.manifest.splits[split].statistics
        seen = statistics.labelled if facts.task.has_label_map else records
        lacking = [label for label, counts in facts.label_counts.items() if sum(counts) and not counts[at]]
        if lacking and seen:
            found.append(f"not in {split}: {_listed(facts, lacking)}")
        # No class is missing in particular where no record has a label.
        elif records and not seen:
            found.append(f"no labels at all in {split}")
    joined = "; ".join(found)
    return joined[:1].upper() + joined[1:] + "." if joined else ""


def _listed(facts: DatasetFacts, found: Sequence[int]) -> str:
    more = f" and {len(found) - _MAX_NAMES:,} more" if len(found) > _MAX_NAMES else ""
    return ", ".join(map(facts.label_name, found[:_MAX_NAMES])) + more


def findings(report: Report) -> dict[str, Any]:
    """List the findings about the sources: name, treatment, count, and count in each split."""
    found = []
    for one in report.facts.findings():
        split_counts = zip(report.facts.splits, one.per_split, strict=True)
        by_split = ", ".join(f"{split} {count:,}" for split, count in split_counts if count)
        found.append((*one.parts, one.meaning, one.count, by_split))
    return {"found": found, "treatments": TREATMENTS}


def grids(report: Report) -> dict[str, Any]:
    """Show spacing and size of the sources, and the cost of cropping and padding to the static shape."""
    facts = report.facts
    spacings, sizings = source_spacings(facts), volume_sizings(facts)
    planes = Counter[tuple[int, int]]()
    for (_, height, width), count in source_shapes(facts).items():
        planes[height, width] += count
    common = min(spacings, key=lambda spacing: (-sum(spacings[spacing]), spacing), default=None)
    rows = [
        (
            name,
            times(shape),
            percent(padded),
            "–" if cut is None else percent(cut),
            f"{math.prod(shape) / math.prod(facts.size):.2f}×",
        )
        for name, shape, padded, cut in sizings
    ]
    bodies = {int(percent): count for percent, count in (facts.total.body_cut_percents or {}).items()}
    cut_bodies = sum(count for percent, count in bodies.items() if percent > 1)
    return {
        "cut_bodies": (cut_bodies, sum(bodies.values()), max(bodies)) if cut_bodies else None,
        "through": _summed(spacings, lambda spacing: spacing[0]),
        "within": _summed(spacings, lambda spacing: spacing[1]),
        "slices": _summed(facts.per_split("source_shapes"), lambda shape: int(shape.split("x")[0])),
        "planes": planes,
        "common": (common, sum(spacings[common])) if common else None,
        "sizings": sizings,
        "rows": rows,
    }


def values(report: Report) -> dict[str, Any]:
    """Show the distribution of values in the body and in labeled voxels, with the window and figures."""
    facts, display = report.facts, report.display
    body, foreground = counts_of(facts.total, "body"), counts_of(facts.total, "foreground")
    if not body.total:
        return {"display": display, "body": body}
    split = next((name for name in facts.splits if name.startswith("train")), facts.splits[0])
    chosen = value_figures(facts, split, "foreground")
    which = f"Stored values of the labeled voxels of {split}"
    if chosen is None:
        chosen = value_figures(facts, split, "body")
        which = f"Stored values of all voxels of {split}, because none are labeled"
    z_scores = f"mean = {chosen.mean:.4f}\nstd = {chosen.deviation:.4f}" if chosen else ""
    return {
        "display": display,
        "body": body,
        "foreground": foreground,
        "curves": _value_curves(display, [("gray", body), ("red", foreground)]),
        "band": _band(report),
        "figures": _value_figures(facts, display),
        "which": which,
        "z_scores": z_scores,
        "row_step": ROW_STEP,
    }


def _value_curves(display: Display, series: Sequence[tuple[str, ValueCounts]]) -> Markup:
    """Draw the distribution of stored values; `series` are counts with the CSS class of their color."""
    known = [(kind, counts) for kind, counts in series if counts.total]
    # Outliers beyond the 0.1st and 99.9th percentile would squeeze the curves.
    low, high = (
        display.value(pick(percentile(counts, at) for _, counts in known))
        for pick, at in ((min, 0.1), (max, 99.9))
    )
    window = display.window
    if window:
        low, high = min(low, window.low), max(high, window.high)
    room = max((high - low) * 0.02, 1e-6)
    return charts.densities(
        [
            (kind, [display.value(value) for value in counts.values.tolist()], counts.counts.tolist())
            for kind, counts in known
        ],
        (window.low, window.high) if window else None,
        (low - room, high + room),
        unit="Hounsfield units" if display.unit == "HU" else "stored value",
        step=display.slope if display.dtype in ("uint8", "int16", "uint16") else 0.0,
        origin=display.intercept,
    )


def _band(report: Report) -> str:
    """Explain the band in the chart of values, or why there is none."""
    window = report.display.window
    if window is None:
        ends: Sequence[float] = report.facts.manifest.recipe.get("window_percentiles") or ()
        if len(ends) != 2:
            return "The recipe has no window, so the chart has no band."
        return (
            f"Each scan has its own window, from its {ends[0]:g}th to its {ends[1]:g}th percentile, so the chart shows "
            "stored values."
        )
    stored = " It is stored as 0 to 255." if report.display.dtype == "uint8" else ""
    band = f"The band is the recipe's window, {window.low:g} to {window.high:g} HU."
    return f"{band}{stored} Values outside are clipped to its ends."


def _value_figures(facts: DatasetFacts, display: Display) -> list[tuple[str, ...]]:
    rows = []
    for part, name in VALUE_PARTS.items():
        for split in facts.splits:
            if found := value_figures(facts, split, part):
                ends = (f"{display.value(value):,.5g}" for value in found.percentiles.values())
                spread = f"{found.deviation * display.slope:,.2f}"
                rows.append((name, split, f"{display.value(found.mean):,.2f}", spread, *ends))
    return rows


def _summed(counts: Mapping[Any, list[int]], key: Callable[[Any], Any]) -> dict[Any, list[int]]:
    """Add up the counts of each split by `key` of their names."""
    summed: dict[Any, list[int]] = {}
    for name, per_split in counts.items():
        known = summed.setdefault(key(name), [0] * len(per_split))
        known[:] = map(sum, zip(known, per_split, strict=True))
    return summed


VALUES: Mapping[str, Callable[[Report], dict[str, Any] | None]] = {
    "conversion": conversion,
    "samples": samples,
    "scans": scans,
    "labels": labels,
    "boxes": boxes,
    "sizes": sizes,
    "pixels": pixels,
    "findings": findings,
    "grids": grids,
    "values": values,
    "partitions": partitions,
    "plan": stored_plan,
    "recipe": recipe,
    "use": commands,
}
"""Function that returns the values of each section's template, or None to omit the section."""

RECORD_SECTIONS: Mapping[str, Callable[[Report, int], dict[str, Any] | None]] = {
    "suspects": suspects,
    "contents": contents,
}
"""The same for sections about single records, which share what the others leave of a page's bytes."""
