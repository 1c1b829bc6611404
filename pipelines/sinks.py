"""How a shard is written, or kept where it is there and made from the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from halofeed.pipelines.inputs import contents_of, convert_input
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.remote import check_wanted
from halofeed.pipelines.storage import OutputFolder
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.table import Tally, converter_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import Reference
from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError, SourceError
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import OBJECT, index_file
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter

_HEAVY_BUFFERS = 8
"""So that the next volume is read while the last one, or 56 MB of it, is on its way to the disk."""


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
    check_wanted(job.wanted)
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
    tally = converter.new_tally()
    with output.temporary(name, _HEAVY_BUFFERS if heavy else 2) as file:
        writer = RecordWriter(file.stream)
        for outcome in outcomes:
            contents[outcome.reference.source] = outcome.content
            if isinstance(outcome.result, SourceError):
                rejected.append(_entry(outcome.reference, outcome.result))
                count(0, rejected[-1:])
                continue
            rejected += _bad_objects(outcome.reference, outcome.result)
            _append(outcome.result, writer, rows, tally)
            # Else these records would be held until the next ones are there, and the last of them by a loop's variable.
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
            statistics=tally.statistics(),
            rejected=tuple(sorted(rejected, key=_rejected_order)),
        )
        check_wanted(job.wanted)
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


def _append(records: Sequence[Record], writer: RecordWriter, rows: _Rows, tally: Tally) -> None:
    for record in records:
        offset, example = writer.offset, record.example
        known = {example.starts[key]: value.checksum for key, value in record.raw.items()}
        rows.checksums.append(writer.write(example.chunks, example.length, known))
        rows.offsets.append(offset)
        rows.lengths.append(example.length)
        rows.ids.append(record.id)
        for key, value in record.raw.items():
            rows.raw_starts.setdefault(key, []).append(offset + HEADER_BYTES + example.starts[key])
            rows.raw_checksums.setdefault(key, []).append(value.blocks)
        tally.add(record.facts)


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


def changed_input(
    job: ShardJob, key: ShardKey, references: Sequence[str], sources: SourceFiles, threads: OrderedThreads
) -> Reference | None:
    """The first reference of a finished shard whose files hold something else than what it was made of.

    Those that could not be read when it was made are not compared; none is where the index is missing or no file.

    Raises:
        CorruptFileError: the index is damaged.
        OSError: it cannot be read.
    """
    output, name = OutputFolder(job.folder), index_file(job.shard_file(key))
    if not output.exists(name):
        return None
    index = ShardIndex.from_bytes(output.read(name), name)
    known = [one for one in _classify(references)[1] if index.inputs.get(one.source)]
    budget = job.recipe.memory_budget(job.room_bytes)
    contents = contents_of(known, sources, budget, threads, job.series_folder)
    return next((one for one in known if contents[one.source] != index.inputs[one.source]), None)


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
