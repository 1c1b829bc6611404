"""How a shard is written, and how the data set is committed once all shards are there."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from halofeed import __version__
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.storage import OutputFolder, is_remote
from halofeed.prep.annotations.layout import is_mostly_bad
from halofeed.prep.annotations.reference import Reference
from halofeed.prep.converters import Converter, converter_of
from halofeed.prep.record import Record
from halofeed.prep.sources import SourceFiles
from halofeed.prep.statistics import merge_statistics
from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError, HalofeedError, JobError, SourceError
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import MANIFEST, OBJECT, REJECTED, SELECTION, index_file
from halofeed.schemas.manifest import Manifest, Shard, Split
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.schemas.tfds import dataset_info_json, features_json
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter

_LINES_AT_ONCE = 1_000
_VOLUME_BUFFERS = 8
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
            f"{max_rejected} ({reasons}); see {OutputFolder(folder).path(REJECTED)}. Nothing was changed: mend the "
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one input: its records, or the reason why there are none; and its content's SHA-256."""

    reference: Reference
    content: str
    result: tuple[Record, ...] | SourceError


@dataclass(kw_only=True)
class _Rows:
    """The index's columns while a shard is being written."""

    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
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
    ordered, parsed, rejected = _sort_out(references)
    output = OutputFolder(job.folder)
    name = job.shard_file(key)
    finished = _finished_index(job, key, ordered, parsed, sources, threads, output)
    if finished is not None:
        count(len(finished), finished.rejected)
        return False
    count(0, rejected)
    converter = converter_of(job.recipe, job.task, job.labels)
    # A volume takes as much memory as hundreds of pictures: none waits for its turn.
    ahead = None if job.recipe.depth is None else job.threads - 1
    outcomes = threads.map(lambda reference: _convert(reference, sources, converter), parsed, ahead)
    rows, contents = _Rows(), {}
    statistics = converter.new_statistics()
    with output.temporary(2 if job.recipe.depth is None else _VOLUME_BUFFERS) as file:
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
        file.keep_as(name)
    output.write(index_file(name), index.to_bytes())
    return True


def _bad_objects(reference: Reference, records: Sequence[Record]) -> list[dict[str, str]]:
    """Entries for the objects of an input that were dropped from its records."""
    return [_entry(reference, SourceError(OBJECT, *bad)) for record in records for bad in record.bad_objects]


def _sort_out(references: Sequence[str]) -> tuple[list[str], list[Reference], list[dict[str, str]]]:
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
    writer.write(record.example.chunks, record.example.length, known)
    rows.offsets.append(offset)
    rows.lengths.append(record.example.length)
    rows.ids.append(record.id)
    for key, value in record.raw.items():
        rows.raw_starts.setdefault(key, []).append(offset + HEADER_BYTES + record.example.starts[key])
        rows.raw_checksums.setdefault(key, []).append(value.blocks)


class _Hashed:
    """Source files of which each is hashed when it is first read."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self.root = files.root
        self._hashes: dict[str, str] = {}

    def sizes(self) -> Mapping[str, int]:
        return self._files.sizes()

    def size(self, path: str) -> int | None:
        return self._files.size(path)

    def files_in(self, folder: str) -> list[str]:
        return self._files.files_in(folder)

    def has_folder(self, folder: str) -> bool:
        return self._files.has_folder(folder)

    def head(self, path: str, size: int) -> bytes:
        return self._files.head(path, size)

    def read(self, path: str) -> bytes:
        data = self._files.read(path)
        if path not in self._hashes:
            self._hashes[path] = hashlib.sha256(data).hexdigest()
        return data

    def content_of(self, reference: Reference) -> str:
        """The SHA-256 of a reference's file, or of the list of its files and theirs; "" where one cannot be read."""
        try:
            for path in reference.paths:
                if path not in self._hashes:
                    self.read(path)
        except SourceError:
            return ""
        hashes = [self._hashes[path] for path in reference.paths]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _convert(reference: Reference, sources: SourceFiles, converter: Converter) -> Outcome:
    files = _Hashed(sources)
    try:
        records = converter.records(reference, files)
        return Outcome(reference=reference, content=files.content_of(reference), result=records)
    except SourceError as error:
        return Outcome(reference=reference, content=files.content_of(reference), result=error)
    except HalofeedError as error:
        raise JobError(f"{reference.source}: {error}") from error
    except Exception as error:
        raise JobError(f"{reference.source}: {type(error).__name__}: {error}") from error


def _finished_index(
    job: ShardJob,
    key: ShardKey,
    ordered: list[str],
    references: Sequence[Reference],
    sources: SourceFiles,
    threads: OrderedThreads,
    output: OutputFolder,
) -> ShardIndex | None:
    """The index of a shard that an earlier run finished from the same sources, or None."""
    name = job.shard_file(key)
    if not output.exists(index_file(name)) or not output.exists(name):
        return None
    try:
        index = ShardIndex.from_bytes(output.read(index_file(name)), index_file(name))
    except CorruptFileError:
        return None
    if output.size(name) != index.file_bytes:
        return None
    if {reference.source for reference in references} != set(index.inputs):
        return None
    if _checksum(output, name) != index.file_checksum:
        return None
    digests = threads.map(lambda reference: _Hashed(sources).content_of(reference), references)
    contents = {reference.source: digest for reference, digest in zip(references, digests, strict=True)}
    return index if job.fingerprint(key, ordered, contents) == index.fingerprint else None


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
    output = OutputFolder(job.folder)
    splits: dict[str, Split] = {}
    reasons: Counter[str] = Counter()
    firsts: dict[str, Mapping[str, str]] = {}
    with output.temporary() as listing:
        for split in job.splits:
            shards, statistics = [], []
            for number in range(job.recipe.shards):
                shard, index = _read_shard(job, ShardKey(split, number), output)
                shards.append(shard)
                statistics.append(index.statistics)
                _list_rejected(index.rejected, listing.stream, reasons, firsts)
                del index
            splits[split] = Split(shards=tuple(shards), statistics=merge_statistics(statistics))
        if reasons or not is_remote(job.folder):
            listing.keep_as(REJECTED)
        else:
            output.write(REJECTED, b"")
    records = sum(split.records for split in splits.values())
    _check_outcome(job, reasons, records, _example(reasons, firsts))
    _check_objects(job, splits, reasons, firsts)
    manifest = _manifest(job, splits, reasons)
    output.write("features.json", features_json(manifest).encode())
    output.write("dataset_info.json", dataset_info_json(manifest).encode())
    expected = {shard.file for split in splits.values() for shard in split.shards}
    stale = re.compile(re.escape(job.name) + r"-.*\.tfrecord-\d{5}-of-\d{5}(\.index)?")
    names = [
        name
        for name in output.sizes()
        if stale.fullmatch(name) and name.removesuffix(".index") not in expected
    ]
    output.delete(names)
    output.sweep()
    output.write(MANIFEST, manifest.to_json().encode())
    output.sweep()
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
            "What is finished is kept: mend the sources or raise the limit, then run the same command again"
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
    height, width = recipe.static_size() or largest
    image = ImageFormat(
        height=height,
        width=width,
        channels=recipe.channels,
        dtype=recipe.store,
        encoding=recipe.encoding,
        pad_value=recipe.stored_padding(),
        depth=recipe.depth,
        label_dtype=job.labels.dtype,
        classes=len(job.labels.channels) if recipe.holds_class_sets() else 0,
        scaled=recipe.depth is not None and recipe.scales_each_scan(),
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
