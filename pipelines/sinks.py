"""How a shard is written, and how the data set is committed once all shards are there."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from halofeed import __version__
from halofeed.pipelines.inputs import contents_of, convert_input
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.remote import check_wanted
from halofeed.pipelines.storage import OutputFolder
from halofeed.prep.annotations.contract import is_mostly_bad
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.table import converter_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import merge_statistics
from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError, JobError, SourceError
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import (
    DATASET_INFO,
    FEATURES,
    OBJECT,
    REJECTED,
    SELECTION,
    index_file,
    is_own_file,
)
from halofeed.schemas.manifest import Manifest, Shard, Split
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.schemas.tfds import dataset_info_json, features_json
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter

_LINES_AT_ONCE = 1_000
_HEAVY_BUFFERS = 8
"""So that the next volume is read while the last one, or 56 MB of it, is on its way to the disk."""


def is_failure(rejected: Mapping[str, str]) -> bool:
    """Whether an entry counts against --max-rejected: neither what was left out on purpose, nor a single object."""
    return rejected["stage"] not in (SELECTION, OBJECT)


def check_committed_budget(manifest: Manifest, max_rejected: int | None, folder: str) -> None:
    """Refuse a committed version of which more inputs were rejected than a later command allows.

    Raises:
        JobError: it names the reasons.
    """
    failures, reasons = _count_failures(manifest.rejected), _most_common(Counter(manifest.rejected))
    if max_rejected is not None and failures > max_rejected:
        raise JobError(
            f"{folder} is converted, but {failures} of its inputs were rejected and --max-rejected allows "
            f"{max_rejected} ({reasons}); see {OutputFolder(folder).path(REJECTED)}. Nothing was changed: fix the "
            "sources and add --overwrite, or raise the limit"
        )


def _stage(reason: str) -> str:
    return reason.partition(": ")[0]


def _count_failures(reasons: Mapping[str, int]) -> int:
    return sum(count for reason, count in reasons.items() if is_failure({"stage": _stage(reason)}))


def _failures_first(reasons: Counter[str]) -> Counter[str]:
    """The reasons of failures; all of them where nothing failed."""
    failures = {reason: count for reason, count in reasons.items() if is_failure({"stage": _stage(reason)})}
    return Counter(failures) or reasons


def _most_common(reasons: Counter[str]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in _failures_first(reasons).most_common(3))


@dataclass(kw_only=True)
class _Rows:
    """The index's columns while a shard is being written."""

    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    raw_starts: dict[str, list[int]] = field(default_factory=dict)
    raw_checksums: dict[str, list[list[int]]] = field(default_factory=dict)


def write_shard(
    job: ShardJob,
    key: ShardKey,
    references: Sequence[str],
    sources: SourceFiles,
    threads: OrderedThreads,
    count: Callable[[int, Sequence[Mapping[str, str]]], None],
) -> bool:
    """Write one shard and its index, unless they are there and made from the same.

    Args:
        references: the shard's references as JSON texts, in any order.
        threads: read and decode; two more examples than they are many are held at once.
        count: told (records written, entries of rejected inputs) as it goes on; its JobError ends the shard.

    Returns:
        whether the shard was written; False where it was there already.
    """
    check_wanted(job)
    ordered, parsed, rejected = _classify(references)
    output = OutputFolder(job.folder, job.holder)
    name = job.shard_file(key)
    finished = _finished_index(job, key, ordered, parsed, sources, threads)
    if finished is not None:
        count(len(finished), finished.rejected)
        return False
    count(0, rejected)
    converter = converter_of(job.recipe, job.task, job.labels)
    heavy = job.recipe.rules.is_heavy
    ahead = job.threads - 1 if heavy else None  # of heavy ones none waits for its turn
    budget = job.recipe.memory_budget(job.room_bytes)
    outcomes = threads.map(
        lambda reference: convert_input(reference, sources, converter, budget, job.series_folder),
        parsed,
        ahead,
    )
    rows, contents = _Rows(), {}
    statistics = converter.new_statistics()
    with output.temporary(name, _HEAVY_BUFFERS if heavy else 2) as file:
        writer = RecordWriter(file.stream)
        for outcome in outcomes:
            source = outcome.reference.source
            contents[source] = outcome.content
            if isinstance(outcome.result, SourceError):
                rejected.append(_entry(outcome.reference, outcome.result))
                count(0, rejected[-1:])
                continue
            rejected += _bad_objects(outcome.reference, outcome.result)
            _append_all(outcome.result, writer, rows, statistics)
            # Else these records would be held until the next ones are there.
            del outcome
            count(1, ())
        index = ShardIndex(
            offsets=np.array(rows.offsets, np.int64),
            lengths=np.array(rows.lengths, np.int64),
            checksums=np.array(rows.checksums, np.uint32),
            ids=np.array(rows.ids, np.int64),
            raw_starts={name: np.array(starts, np.int64) for name, starts in rows.raw_starts.items()},
            raw_checksums={name: np.array(sums, np.uint32) for name, sums in rows.raw_checksums.items()},
            file_bytes=writer.offset,
            file_checksum=writer.checksum,
            fingerprint=job.fingerprint(key, ordered, contents),
            inputs=contents,
            statistics=statistics.to_json(),
            rejected=tuple(sorted(rejected, key=_rejected_order)),
        )
        check_wanted(job)
        file.keep()
    output.write(index_file(name), index.to_bytes())
    return True


def _bad_objects(reference: Reference, records: Sequence[Record]) -> list[dict[str, str]]:
    """Entries for the objects of an input that were dropped from its records."""
    return [_entry(reference, SourceError(OBJECT, *bad)) for record in records for bad in record.bad_objects]


def _classify(references: Sequence[str]) -> tuple[list[str], list[Reference], list[dict[str, str]]]:
    """The texts of a shard's references in its order, those to convert, and entries for those with a problem.

    Of the latter there may be hundreds of thousands, in one shard: no more is kept of them than the entry.
    """
    convertible: list[tuple[int, str, Reference]] = []
    keyed: list[tuple[int, str]] = []
    rejected = []
    for text in references:
        reference = reference_from_json(text)
        identity = example_id(reference.key)
        keyed.append((identity, text))
        if reference.problem is None:
            convertible.append((identity, text, reference))
        else:
            rejected.append(_entry(reference, SourceError(*reference.problem)))
    keyed.sort()
    convertible.sort(key=lambda one: one[:2])
    return [text for _, text in keyed], [reference for _, _, reference in convertible], rejected


def _entry(reference: Reference, error: SourceError) -> dict[str, str]:
    return {
        "source": reference.source,
        "split": sys.intern(reference.split),
        "stage": sys.intern(error.stage),
        "reason": sys.intern(error.reason),
        "detail": error.detail,
    }


def _rejected_order(entry: Mapping[str, str]) -> tuple[str, ...]:
    return entry["detail"], entry["reason"], entry["source"], entry["split"], entry["stage"]


def _append_all(records: Sequence[Record], writer: RecordWriter, rows: _Rows, statistics: Any) -> None:
    for record in records:
        _append(record, writer, rows)
        statistics.add(record.facts)


def _append(record: Record, writer: RecordWriter, rows: _Rows) -> None:
    offset = writer.offset
    known = {record.example.starts[key]: value.checksum for key, value in record.raw.items()}
    rows.checksums.append(writer.write(record.example.chunks, record.example.length, known))
    rows.offsets.append(offset)
    rows.lengths.append(record.example.length)
    rows.ids.append(record.id)
    for key, value in record.raw.items():
        rows.raw_starts.setdefault(key, []).append(offset + HEADER_BYTES + record.example.starts[key])
        rows.raw_checksums.setdefault(key, []).append(value.blocks)


def _finished_index(
    job: ShardJob,
    key: ShardKey,
    ordered: list[str],
    references: Sequence[Reference],
    sources: SourceFiles,
    threads: OrderedThreads,
) -> ShardIndex | None:
    """The index of a shard that an earlier run finished from the same sources, or None.

    One of the version that is being replaced is taken over.
    """
    name = job.shard_file(key)
    inputs = {reference.source for reference in references}
    contents: dict[str, str] = {}
    for folder in (job.folder, *filter(None, [job.replaces])):
        index = _whole_index(OutputFolder(folder), name, inputs)
        if index is None:
            continue
        if not contents:
            budget = job.recipe.memory_budget(job.room_bytes)
            contents = contents_of(references, sources, budget, threads, job.series_folder)
        if job.fingerprint(key, ordered, contents) == index.fingerprint:
            if folder != job.folder:
                for file in (name, index_file(name)):
                    OutputFolder(job.folder, job.holder).take(file, OutputFolder(folder))
            return index
    return None


def _whole_index(output: OutputFolder, name: str, inputs: Set[str]) -> ShardIndex | None:
    """The index of a shard that was made of these inputs, or None where one of the two is missing or not whole."""
    if not output.exists(index_file(name)) or not output.exists(name):
        return None
    try:
        index = ShardIndex.from_bytes(output.read(index_file(name)), index_file(name))
    except CorruptFileError:
        return None
    if output.size(name) != index.file_bytes or inputs != set(index.inputs):
        return None
    return index if _checksum(output, name) == index.file_checksum else None


def _checksum(output: OutputFolder, name: str) -> int:
    checksum = 0
    with output.open(name) as stream:
        while block := stream.read(1 << 22):
            checksum = crc32c(block, checksum)
    return checksum


def commit(job: ShardJob) -> Manifest:
    """Put the shards' statistics and rejects together and write the manifest, which is the commit mark.

    Raises:
        JobError: too many inputs were rejected, or none was left; rejected.jsonl is there to read.
    """
    output = OutputFolder(job.folder, job.holder)
    splits: dict[str, Split] = {}
    reasons: Counter[str] = Counter()
    firsts: dict[str, Mapping[str, str]] = {}
    with output.temporary(REJECTED) as listing:
        for split in job.splits:
            shards, statistics = [], []
            for number in range(job.recipe.shards):
                shard, index = _read_shard(job, ShardKey(split, number), output)
                shards.append(shard)
                statistics.append(index.statistics)
                _list_rejected(index.rejected, listing.stream, reasons, firsts)
                del index
            splits[split] = Split(shards=tuple(shards), statistics=merge_statistics(statistics))
        listing.keep()
    records = sum(split.records for split in splits.values())
    _check_outcome(job, reasons, records, _example(reasons, firsts))
    _check_objects(job, splits, reasons, firsts)
    manifest = _manifest(job, splits, reasons)
    output.write(FEATURES, features_json(manifest).encode())
    output.write(DATASET_INFO, dataset_info_json(manifest).encode())
    files = [shard.file for split in splits.values() for shard in split.shards]
    whole = [*files, *map(index_file, files), REJECTED, FEATURES, DATASET_INFO]
    output.delete([name for name in output.sizes() if is_own_file(name, job.name) and name not in whole])
    check_wanted(job)
    if job.wanted is None:
        output.sweep()  # elsewhere the runner may do all of this again, and needs what is there; the command sweeps
    output.commit(manifest.to_json().encode(), after=whole)
    return manifest


def _list_rejected(
    rejected: Iterable[Mapping[str, str]],
    stream: Any,
    reasons: Counter[str],
    firsts: dict[str, Mapping[str, str]],
) -> None:
    """Write a line for each rejected input; add to the counts by stage and reason, and to the first of each."""
    entries = iter(rejected)
    while some := list(islice(entries, _LINES_AT_ONCE)):
        text = "".join(json.dumps(dict(entry), ensure_ascii=False) + "\n" for entry in some)
        stream.write(text.encode("utf-8", "surrogateescape"))
        for entry in some:
            reason = f"{entry['stage']}: {entry['reason']}"
            reasons[reason] += 1
            firsts.setdefault(reason, entry)


def _read_shard(job: ShardJob, key: ShardKey, output: OutputFolder) -> tuple[Shard, ShardIndex]:
    name = job.shard_file(key)
    data = output.read(index_file(name))
    index = ShardIndex.from_bytes(data, index_file(name))
    shard = Shard(
        file=name,
        records=len(index),
        bytes=index.file_bytes,
        crc32c=index.file_checksum,
        index_bytes=len(data),
        index_crc32c=crc32c(data),
    )
    return shard, index


def _check_outcome(job: ShardJob, reasons: Counter[str], records: int, example: str) -> None:
    failures = _count_failures(reasons)
    most = _most_common(reasons)
    listing = OutputFolder(job.folder).path(REJECTED)
    if job.max_rejected is not None and failures > job.max_rejected:
        raise JobError(
            f"{failures} inputs were rejected and --max-rejected allows {job.max_rejected} ({most}); see {listing}. "
            "What is finished is kept: fix the sources or raise the limit, then run the same command again"
            f"{example}"
        )
    if not records:
        raise JobError(
            f"nothing was converted: all {reasons.total()} inputs were rejected ({most}); see {listing}"
            f"{example}"
        )


def _check_objects(
    job: ShardJob, splits: Mapping[str, Split], reasons: Counter[str], firsts: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse a data set of whose objects most had to be dropped, as planning does where the annotations show it."""
    dropped = Counter({reason: count for reason, count in reasons.items() if _stage(reason) == OBJECT})
    stored = sum(
        int(boxes) * images
        for split in splits.values()
        for boxes, images in split.statistics.get("boxes_per_image", {}).items()
    )
    if is_mostly_bad(dropped.total(), dropped.total() + stored):
        raise JobError(
            f"{dropped.total()} of {dropped.total() + stored} objects could not be used "
            f"({'; '.join(f'{count} x {reason}' for reason, count in dropped.most_common(3))}); see "
            f"{OutputFolder(job.folder).path(REJECTED)}; correct the annotations, leave --masks out, or reject the "
            f"images that have such objects with --on-bad-object reject{_example(dropped, firsts)}"
        )


def _example(reasons: Counter[str], firsts: Mapping[str, Mapping[str, str]]) -> str:
    """The first reject of the most common reason, on a line of its own: its detail says what to do."""
    if not reasons:
        return ""
    entry = firsts[_failures_first(reasons).most_common(1)[0][0]]
    detail = f" ({entry['detail']})" if entry["detail"] else ""
    return f"\nsuch as {entry['source']}: {entry['reason']}{detail}"


def _manifest(job: ShardJob, splits: dict[str, Split], reasons: Counter[str]) -> Manifest:
    recipe, task = job.recipe, task_named(job.task)
    largest = merge_statistics(split.statistics for split in splits.values())["largest"]
    image = ImageFormat(
        kind=recipe.rules.kind,
        shape=recipe.static_shape() or tuple(largest),
        channels=recipe.channels,
        dtype=recipe.dtype,
        encoding=recipe.encoding,
        pad_value=recipe.rules.padding(recipe),
        label_dtype=job.labels.dtype,
        classes=len(job.labels.channels) if recipe.holds_class_sets() else 0,
        scaled=recipe.rules.is_scaled(recipe),
    )
    names = job.labels.names
    if job.labels.is_open:
        found = merge_statistics(split.statistics for split in splits.values())["label_voxels"]
        names = {**{int(value): value for value in found}, **names}
    several = job.task == "classification" and recipe.several_classes == "keep"
    return Manifest(
        name=job.name,
        version=job.version,
        task=job.task,
        fields=task.fields(
            image,
            max_boxes=recipe.max_boxes,
            masks=recipe.masks,
            keep=recipe.keep,
            several_classes=len(names) if several else None,
        ),
        labels=dict(sorted(names.items())),
        recipe=recipe.to_json(),
        inputs=job.inputs,
        splits=splits,
        rejected=dict(reasons),
        software={"halofeed": __version__},
    )
