"""Writer of shards: converts references in threads, keeps finished shards, and stops after too many rejects."""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.pipelines.commit import check_losses
from halofeed.pipelines.counted_files import CountedFiles
from halofeed.pipelines.heartbeat import Heartbeat, check_alive
from halofeed.pipelines.inputs import IncompleteInputError, Outcome, contents_of, convert_input, stream_input
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.references import read_shard
from halofeed.pipelines.reject_limit import inputs_in, is_failure
from halofeed.pipelines.run_counts import ShardOutcome
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.converters import Converter, StreamingConverter, Tally, converter_of
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles, source_files
from halofeed.prep.voxels.signatures import have_other_version
from halofeed.schemas.file_layout import OBJECT, index_file, index_file_1
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter
from halofeed.system.checksum import BLOCK_BYTES, crc32c
from halofeed.system.errors import CorruptFileError, JobError, SourceError
from halofeed.system.threads import OrderedThreads

_FIRST_RECORDS = 500
_FIRST_HEAVY_RECORDS = 20
"""Records of a shard after which a conversion ends if all of them lost their information. Pictures take seconds until
then, and volumes a minute."""
_BUFFERS, _HEAVY_BUFFERS = 8, 32
"""Buffers of a file. Of volumes: the next one is read while the last one, or 62 MB of it, is being written."""


@dataclass(kw_only=True)
class _Rows:
    """Columns of the index of the shard being written."""

    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    raw_starts: dict[str, list[int]] = field(default_factory=dict)
    raw_checksums: dict[str, list[list[int]]] = field(default_factory=dict)
    packed_bytes: dict[str, list[int]] = field(default_factory=dict)
    signatures: list[tuple[int, ...]] = field(default_factory=list)
    measures: list[Mapping[str, float]] = field(default_factory=list)

    def signature_column(self) -> NDArray[np.int64] | None:
        """Return the signatures [record, word], zeros where a record has none; None if none has one."""
        words = max(map(len, self.signatures), default=0)
        if not words:
            return None
        return np.array([signature or (0,) * words for signature in self.signatures], np.int64)

    def measure_columns(self) -> dict[str, NDArray[np.float64]]:
        """Return each measure of the records [record], NaN where a record lacks it."""
        names = sorted({name for measures in self.measures for name in measures})
        return {name: np.array([one.get(name, math.nan) for one in self.measures]) for name in names}


def write_shard(
    job: ShardJob,
    key: ShardKey,
    references: Sequence[str],
    sources: SourceFiles,
    threads: OrderedThreads,
    count: Callable[[int, Sequence[Mapping[str, str]]], None],
) -> ShardOutcome:
    """Write a shard and its index, unless both exist and come from the same inputs.

    Args:
        references: JSON texts of the shard's references, in any order.
        threads: threads that read and decode; memory holds two more examples than threads.
        count: called with (records written, entries of rejected inputs) during the work; its JobError ends the shard.
    """
    sources = CountedFiles(sources)
    check_alive(job.heartbeat_path)
    ordered, parsed, rejected = _classify(references)
    output = OutputFolder(job.folder, job.holder)
    name = job.shard_file(key)
    finished = _finished_index(job, key, ordered, parsed, sources, threads)
    if finished is not None:
        count(len(finished), finished.rejected)
        return _outcome_of(key, finished, sources.bytes_read, written=None)
    count(0, rejected)
    work = _Work(job=job, references=parsed, sources=sources, threads=threads, count=count)
    while True:
        try:
            index = _write_records(work, output, key, ordered, rejected)
            break
        except IncompleteInputError as incomplete:
            # Its first records are in the file, so the file is made again without it.
            work.failed[incomplete.outcome.reference.key] = incomplete.outcome
    data = index.to_bytes()
    output.write(index_file(name), data)
    return _outcome_of(key, index, sources.bytes_read, written=index.file_bytes + len(data))


def _outcome_of(key: ShardKey, index: ShardIndex, bytes_read: int, *, written: int | None) -> ShardOutcome:
    """Return what was done for a shard; `written` is its size with its index, and None keeps it."""
    return ShardOutcome(
        key=key.to_text(),
        is_kept=written is None,
        bytes_read=bytes_read,
        bytes_written=written or 0,
        records=len(index),
        rejected=dict(Counter(f"{entry['stage']}: {entry['reason']}" for entry in index.rejected)),
    )


@dataclass(kw_only=True, eq=False)
class _Work:
    """Inputs of a shard that are converted.

    Args:
        failed: outcomes by key of inputs that failed after some of their records; they are not tried again.
        counted: keys of inputs that were counted, perhaps for a file that is made again.
    """

    job: ShardJob
    references: Sequence[SourceExample]
    sources: SourceFiles
    threads: OrderedThreads
    count: Callable[[int, Sequence[Mapping[str, str]]], None]
    failed: dict[str | int, Outcome] = field(default_factory=dict)
    counted: set[str | int] = field(default_factory=set)

    def count_once(self, key: str | int, records: int, rejected: Sequence[Mapping[str, str]]) -> None:
        """Count an input unless it was counted for an earlier file."""
        if key not in self.counted:
            self.counted.add(key)
            self.count(records, rejected)

    def outcomes(self, converter: Converter) -> Iterator[Outcome]:
        """Yield the outcome of each input in order, in parts where the converter streams."""
        job = self.job
        budget = job.recipe.memory_budget(job.memory_bytes)
        if not isinstance(converter, StreamingConverter):
            # No finished volume waits in memory for its turn.
            ahead = job.threads - 1 if job.recipe.rules.is_heavy else None
            yield from self.threads.map(
                lambda one: convert_input(one, self.sources, converter, budget, job.series_folder),
                self.references,
                ahead,
            )
            return
        for reference in self.references:
            if (failed := self.failed.get(reference.key)) is not None:
                yield failed
            else:
                yield from stream_input(reference, self.sources, converter, budget, self.threads)


def _write_records(
    work: _Work,
    output: OutputFolder,
    key: ShardKey,
    ordered: list[str],
    unusable: Sequence[Mapping[str, str]],
) -> ShardIndex:
    """Write the records of a shard, and return its index.

    Args:
        ordered: JSON texts of all references in order, for the fingerprint.
        unusable: entries of references that have a problem.

    Raises:
        IncompleteInputError: an input failed after some of its records.
    """
    job, heavy = work.job, work.job.recipe.rules.is_heavy
    converter = converter_of(job.recipe, job.task, job.labels)
    rows, contents, rejected = _Rows(), {}, list(unusable)
    checked_at = _FIRST_HEAVY_RECORDS if heavy else _FIRST_RECORDS
    tally = converter.new_tally()
    with output.temporary(job.shard_file(key), _HEAVY_BUFFERS if heavy else _BUFFERS) as file:
        writer = RecordWriter(file.stream)
        for outcome in work.outcomes(converter):
            reference, result = outcome.reference, outcome.result
            if not outcome.is_part:
                contents[reference.source] = outcome.content
            if isinstance(result, SourceError):
                rejected.append(_entry(reference, result))
                work.count_once(reference.key, 0, rejected[-1:])
                continue
            rejected += _bad_objects(reference, result)
            _append(result, writer, rows, tally)
            # Otherwise the loop variables would keep these records in memory until the next ones are there.
            is_part = outcome.is_part
            del outcome, result
            # At doubled counts, because the statistics of all records so far are formed for each check.
            if len(rows.ids) >= checked_at:
                check_losses(job, tally.statistics(), of_all=True)
                checked_at *= 2
            if is_part:
                # A worker that is not heard of for minutes counts as lost, and a picture may take longer.
                work.count(0, ())
            else:
                work.count_once(reference.key, 1, ())
        index = ShardIndex(
            offsets=np.array(rows.offsets, np.int64),
            lengths=np.array(rows.lengths, np.int64),
            checksums=np.array(rows.checksums, np.uint32),
            ids=np.array(rows.ids, np.int64),
            raw_starts={name: np.array(starts, np.int64) for name, starts in rows.raw_starts.items()},
            raw_checksums={name: np.array(sums, np.uint32) for name, sums in rows.raw_checksums.items()},
            packed_bytes={name: np.array(sizes, np.int64) for name, sizes in rows.packed_bytes.items()},
            signatures=rows.signature_column(),
            measures=rows.measure_columns(),
            file_bytes=writer.offset,
            file_checksum=writer.checksum,
            fingerprint=job.fingerprint(key, ordered, contents),
            inputs=contents,
            statistics=tally.statistics(),
            rejected=tuple(sorted(rejected, key=_rejected_order)),
        )
        check_alive(job.heartbeat_path)
        file.keep()
    return index


def _bad_objects(reference: SourceExample, records: Sequence[Record]) -> list[dict[str, str]]:
    """Return entries for the objects that were dropped from the records of an input."""
    return [_entry(reference, SourceError(OBJECT, *bad)) for record in records for bad in record.bad_objects]


def _classify(references: Sequence[str]) -> tuple[list[str], list[SourceExample], list[dict[str, str]]]:
    """Return the texts of a shard's references in order, those to convert, and entries for those with a problem.

    A shard may have hundreds of thousands with a problem, so only their entries are kept.
    """
    convertible: list[tuple[int, str, SourceExample]] = []
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


def _entry(reference: SourceExample, error: SourceError) -> dict[str, str]:
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
        known = {example.starts[key]: value.checksum for key, value in record.arrays.items()}
        rows.checksums.append(writer.write(example.chunks, example.length, known))
        rows.offsets.append(offset)
        rows.lengths.append(example.length)
        rows.ids.append(record.id)
        rows.signatures.append(record.signature)
        rows.measures.append(record.measures)
        for key, value in record.arrays.items():
            rows.raw_starts.setdefault(key, []).append(offset + HEADER_BYTES + example.starts[key])
            rows.raw_checksums.setdefault(key, []).append(value.checksums)
            if not value.is_fixed_size:
                rows.packed_bytes.setdefault(key, []).append(len(value.data))
        tally.add(record.facts)


def _finished_index(
    job: ShardJob,
    key: ShardKey,
    ordered: list[str],
    references: Sequence[SourceExample],
    sources: SourceFiles,
    threads: OrderedThreads,
) -> ShardIndex | None:
    """Return the index of a shard that an earlier run finished from the same inputs, or None.

    The shard may belong to the version being replaced, or to an earlier one; it is then linked or copied here.
    """
    name = job.shard_file(key)
    inputs = {reference.source for reference in references}
    contents: dict[str, str] = {}
    places = [(job.folder, name, index_file(name))]
    if job.replaces:  # index_file_1: the name of indexes in format 1
        places += [(job.replaces, name, index_file(name)), (job.replaces, name, index_file_1(name))]
    if job.earlier is not None and (earlier := job.earlier_file(key)) is not None:
        places.append((job.earlier.folder, earlier, index_file(earlier)))
    for folder, shard_name, index_name in places:
        # The shards of a committed version are on the disk since its commit; those of a killed run may lack their end.
        is_committed = job.earlier is not None and folder == job.earlier.folder
        index = _intact_index(OutputFolder(folder), shard_name, index_name, inputs, read_all=not is_committed)
        if index is None:
            continue
        if not contents:  # hashed at most once, and only where some index may prove the shard
            budget = job.recipe.memory_budget(job.memory_bytes)
            contents = contents_of(references, sources, budget, threads, job.series_folder)
        # The fingerprint has the software, recipe, classes, references and contents, so an equal one means equal bytes.
        proofs = job.fingerprints(key, ordered, contents, may_lack_classes=_may_lack_classes(index))
        if _has_current_columns(index) and index.fingerprint in proofs:
            if folder != job.folder:
                output = OutputFolder(job.folder, job.holder)
                for file, there in ((name, shard_name), (index_file(name), index_name)):
                    output.take(file, OutputFolder(folder), there)
            return index
    return None


def _has_current_columns(index: ShardIndex) -> bool:
    """Return whether an index has the blocks and signatures that this version writes."""
    # Earlier versions had larger blocks; all shards of a data set have blocks of one size.
    if not index.raw_starts.keys() <= index.packed_bytes.keys() and index.block_bytes != BLOCK_BYTES:
        return False
    # Without signatures, a review of the data set would compare only some of its records.
    return not len(index) or (index.signatures is not None and not have_other_version(index.signatures).any())


def _may_lack_classes(index: ShardIndex) -> bool:
    """Return whether a shard that was made with fewer classes holds the same with more of them.

    More classes may cure what a label image was rejected for. Listed references with a problem have no input, and
    objects that are dropped for their class are in the text of the reference, which the fingerprint has.
    """
    return not any(
        entry["stage"] == "annotation" and entry["source"] in index.inputs for entry in index.rejected
    )


def changed_input(
    job: ShardJob, key: ShardKey, references: Sequence[str], sources: SourceFiles, threads: OrderedThreads
) -> SourceExample | None:
    """Return the first reference of a finished shard whose files have changed since, or None.

    Inputs that could not be read then are not compared, and nothing is compared without an index.

    Raises:
        CorruptFileError: the index is damaged.
        OSError: the index cannot be read.
    """
    output, name = OutputFolder(job.folder), index_file(job.shard_file(key))
    if not output.exists(name):
        return None
    index = ShardIndex.from_bytes(output.read(name), name)
    known = [one for one in _classify(references)[1] if index.inputs.get(one.source)]
    budget = job.recipe.memory_budget(job.memory_bytes)
    contents = contents_of(known, sources, budget, threads, job.series_folder)
    return next((one for one in known if contents[one.source] != index.inputs[one.source]), None)


def _intact_index(
    output: OutputFolder, name: str, index_name: str, inputs: Set[str], *, read_all: bool
) -> ShardIndex | None:
    """Return the index of a shard of these inputs; None where the shard or the index is missing or damaged.

    Args:
        read_all: compare the shard's checksum too, and not only its size.
    """
    if not output.exists(index_name) or not output.exists(name):
        return None
    try:
        index = ShardIndex.from_bytes(output.read(index_name), index_name)
    except CorruptFileError:
        return None
    if output.size(name) != index.file_bytes or inputs != set(index.inputs):
        return None
    return index if not read_all or _checksum(output, name) == index.file_checksum else None


def _checksum(output: OutputFolder, name: str) -> int:
    checksum = 0
    with output.open(name) as stream:
        while block := stream.read(1 << 22):
            checksum = crc32c(block, checksum)
    return checksum


LISTED = 10
"""Number of rejected inputs that the error of a stopped job names."""


class ShardWriter:
    """Writer of the shards of one job, one at a time."""

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        limit = job.reject_limit
        # A share is of the inputs that were not left out on purpose, which only the commit knows. Here it is of all.
        inputs = 0 if limit is None else inputs_in(job.inputs, job.recipe.limit, {})
        self._limit = None if limit is None else limit.most(inputs)
        self._described = "" if limit is None else limit.describe(inputs)
        self._sources: SourceFiles = source_files(job.images)
        self._threads = OrderedThreads(job.threads)
        # OpenCV's own thread pool would compete with these threads: it took half of all system time.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        self._progress = WorkerProgress(job.progress_folder)
        self._heartbeat = Heartbeat(job.heartbeat_path)
        self._shard: ShardKey | None = None
        self._last: deque[tuple[ShardKey | None, Mapping[str, str]]] = deque(maxlen=LISTED)

    def write(self, key: str, references: Iterable[bytes]) -> ShardOutcome:
        """Write a shard and its index, or keep both from an earlier run.

        A runner may repeat the call, also after a crash in the middle; each input counts once.

        Args:
            references: references that came with the key; unused if they are in files by shard.

        Raises:
            JobError: this process alone has rejected more inputs than the job allows.
        """
        shard = self._shard = ShardKey.from_text(key)
        all_lines = references if self._job.references_folder is None else read_shard(self._job, shard)
        lines = [line.decode("utf-8", "surrogateescape") for line in all_lines]
        self._progress.begin(self._job.number_of(shard))
        self._last = deque((one for one in self._last if one[0] != shard), LISTED)
        with self._progress.reporting(f"shard {key}"):
            return write_shard(self._job, shard, lines, self._sources, self._threads, self._count)

    def close(self) -> None:
        """Stop the threads, and restore OpenCV's thread pool."""
        cv2.setNumThreads(self._opencv_threads)
        self._threads.close()

    def _count(self, done: int, rejected: Sequence[Mapping[str, str]]) -> None:
        """Count records and rejects; stop as soon as this process alone has exceeded the limit."""
        self._heartbeat.beat()
        failures = [entry for entry in rejected if is_failure(entry)]
        limit = self._limit
        if limit is not None:
            # A shard may have thousands of rejected annotations at once; the one that exceeds the limit ends the job.
            del failures[max(0, limit + 1 - self._progress.rejected) :]
        self._progress.add(done, len(failures))
        self._last.extend((self._shard, entry) for entry in failures)
        if limit is not None and self._progress.rejected > limit and failures:
            raise self._limit_error()

    def _limit_error(self) -> JobError:
        last, *others = [
            f"{entry['source']}: {SourceError(entry['stage'], entry['reason'], entry['detail'])}"
            for _, entry in reversed(self._last)
        ]
        before = "".join(["; and before it:", *(f"\n  {line}" for line in others)]) if others else ""
        return JobError(
            f"inputs rejected: more than --max-rejected {self._described} allows; a higher "
            "limit lists all in "
            f"rejected.jsonl; the last was {last}{before}"
        )


@lru_cache(maxsize=1)
def _writer_of(job: str) -> ShardWriter:
    return ShardWriter(ShardJob.from_json(job))


def write_shard_of_job(shard: tuple[str, str, list[bytes]]) -> ShardOutcome:
    """Write a shard in a worker process, from (job's text, shard key, references); return as `ShardWriter.write`."""
    job, key, references = shard
    return _writer_of(job).write(key, references)
