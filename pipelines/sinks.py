"""How a shard is written, and how the data set is committed once all shards are there."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halofeed import __version__
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.storage import OutputFolder
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
    failures = {
        reason: count
        for reason, count in manifest.rejected.items()
        if is_failure({"stage": reason.partition(": ")[0]})
    }
    if max_rejected is not None and sum(failures.values()) > max_rejected:
        raise JobError(
            f"{folder} is converted, but {sum(failures.values())} of its inputs were rejected and --max-rejected "
            f"allows {max_rejected} ({_most_common(Counter(failures))}); see {OutputFolder(folder).path(REJECTED)}. "
            "Nothing was changed: mend the sources and add --overwrite, or raise the limit"
        )


def _most_common(reasons: Counter[str]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))


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
    parsed = [(text, reference_from_json(text)) for text in references]
    parsed.sort(key=lambda pair: (example_id(pair[1].key), pair[0]))
    ordered = [text for text, _ in parsed]
    output = OutputFolder(job.folder)
    name = job.shard_file(key)
    finished = _finished_index(job, key, parsed, sources, threads, output)
    if finished is not None:
        count(len(finished), finished.rejected)
        return False
    converter = converter_of(job.recipe, job.task, job.labels)
    # A volume takes as much memory as hundreds of pictures: none waits for its turn.
    ahead = None if job.recipe.depth is None else job.threads - 1
    outcomes = threads.map(lambda pair: _convert(pair[1], sources, converter), parsed, ahead)
    rows, contents, rejected = _Rows(), {}, []
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
            for record in outcome.result:
                rejected += [
                    _entry(outcome.reference, SourceError(OBJECT, *bad)) for bad in record.bad_objects
                ]
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
            rejected=tuple(sorted(rejected, key=lambda entry: sorted(entry.items()))),
        )
        file.keep_as(name)
    output.write(index_file(name), index.to_bytes())
    return True


def _entry(reference: Reference, error: SourceError) -> dict[str, str]:
    return {
        "source": reference.source,
        "split": reference.split,
        "stage": error.stage,
        "reason": error.reason,
        "detail": error.detail,
    }


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
    content, files = "", _Hashed(sources)
    try:
        if reference.problem is not None:
            raise SourceError(*reference.problem)
        records = converter.records(reference, files)
        return Outcome(reference=reference, content=files.content_of(reference), result=records)
    except SourceError as error:
        content = "" if reference.problem is not None else files.content_of(reference)
        return Outcome(reference=reference, content=content, result=error)
    except HalofeedError as error:
        raise JobError(f"{reference.source}: {error}") from error
    except Exception as error:
        raise JobError(f"{reference.source}: {type(error).__name__}: {error}") from error


def _finished_index(
    job: ShardJob,
    key: ShardKey,
    parsed: Sequence[tuple[str, Reference]],
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
    references = [reference for _, reference in parsed]
    if {reference.source for reference in references} != set(index.inputs):
        return None
    if _checksum(output, name) != index.file_checksum:
        return None
    digests = threads.map(lambda reference: _content(reference, sources), references)
    contents = {reference.source: digest for reference, digest in zip(references, digests, strict=True)}
    ordered = [text for text, _ in parsed]
    return index if job.fingerprint(key, ordered, contents) == index.fingerprint else None


def _checksum(output: OutputFolder, name: str) -> int:
    checksum = 0
    with output.open(name) as stream:
        while block := stream.read(1 << 22):
            checksum = crc32c(block, checksum)
    return checksum


def _content(reference: Reference, sources: SourceFiles) -> str:
    return "" if reference.problem is not None else _Hashed(sources).content_of(reference)


def commit(job: ShardJob) -> Manifest:
    """Put the shards' statistics and rejects together and write the manifest, which is the commit mark.

    Raises:
        JobError: too many inputs were rejected, or none was left; rejected.jsonl is there to read.
    """
    output = OutputFolder(job.folder)
    splits: dict[str, Split] = {}
    rejected: list[dict[str, str]] = []
    for split in job.splits:
        shards, statistics = [], []
        for number in range(job.recipe.shards):
            shard, index = _read_shard(job, ShardKey(split, number), output)
            shards.append(shard)
            statistics.append(index.statistics)
            rejected += [dict(entry) for entry in index.rejected]
        splits[split] = Split(shards=tuple(shards), statistics=merge_statistics(statistics))
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in rejected]
    output.write(REJECTED, "".join(lines).encode("utf-8", "surrogateescape"))
    reasons = Counter(f"{entry['stage']}: {entry['reason']}" for entry in rejected)
    _check_outcome(job, rejected, reasons, sum(split.records for split in splits.values()))
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


def _check_outcome(
    job: ShardJob, rejected: list[dict[str, str]], reasons: Counter[str], records: int
) -> None:
    failures = sum(map(is_failure, rejected))
    most = _most_common(reasons)
    listing = OutputFolder(job.folder).path(REJECTED)
    if job.max_rejected is not None and failures > job.max_rejected:
        raise JobError(
            f"{failures} inputs were rejected and --max-rejected allows {job.max_rejected} ({most}); see {listing}. "
            "What is finished is kept: mend the sources or raise the limit, then run the same command again"
            f"{_example(rejected)}"
        )
    if not records:
        raise JobError(
            f"nothing was converted: all {len(rejected)} inputs were rejected ({most}); see {listing}"
            f"{_example(rejected)}"
        )


def _example(rejected: Sequence[Mapping[str, str]]) -> str:
    """The first reject of the most common reason, on a line of its own: its detail says what to do."""
    entries = [entry for entry in rejected if is_failure(entry)] or rejected
    if not entries:
        return ""
    reason = Counter(entry["reason"] for entry in entries).most_common(1)[0][0]
    entry = next(entry for entry in entries if entry["reason"] == reason)
    detail = f" ({entry['detail']})" if entry["detail"] else ""
    return f"\nsuch as {entry['source']}: {reason}{detail}"


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
    )
    names = job.labels.names
    if job.labels.is_open:
        found = merge_statistics(split.statistics for split in splits.values())["label_voxels"]
        names = {**{int(value): value for value in found}, **names}
    return Manifest(
        name=job.name,
        version=job.version,
        task=job.task,
        fields=task.fields(image, max_boxes=recipe.max_boxes, masks=recipe.masks),
        labels=dict(sorted(names.items())),
        recipe=recipe.to_json(),
        inputs=job.inputs,
        splits=splits,
        rejected=dict(reasons),
        software={"halofeed": __version__},
    )
