"""Check of a converted data set: every checksum, record, index entry and invariant.

verify -> _Verification.check
    for each shard: index() against the manifest, shard() record by record, ShardCounts against the statistics
    unique_ids() over all shards, rejects() of rejected.jsonl
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_facts import color_errors
from halofeed.inspection.dataset_files import DatasetFiles, check_recipe, open_files
from halofeed.inspection.record_words import task_words
from halofeed.inspection.stored_records import (
    SequentialShard,
    bytes_of,
    integer_of,
    text_of,
)
from halofeed.inspection.stored_values import FORMS, packed_problems
from halofeed.inspection.verify_record import (
    ShardCounts,
    record_problems,
)
from halofeed.prep.convert.loss_findings import describe_findings
from halofeed.schemas import keys
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.croissant import EARLIER_VERSION, croissant_json
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import CROISSANT, MANIFEST, REJECTED, TEMPORARY_FOLDER
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import INDEX_BYTES, MANIFEST_BYTES
from halofeed.schemas.lineage import lineage_of, possible_shards
from halofeed.schemas.manifest import Manifest, Shard, manifest_text
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tasks import TASKS
from halofeed.schemas.tfds import metadata_files
from halofeed.schemas.tfexample import Decoded, decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.addresses import address_of
from halofeed.system.checksum import crc32c
from halofeed.system.errors import CorruptFileError, ManifestError, UsageError
from halofeed.system.wording import plural

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes checked, total bytes)."""
MAX_PROBLEMS = 100_000
"""A verification stops after this many problems; a folder full of garbage would fill the memory."""
_MAX_PRINTED = 20
_MAX_LINE_VALUES = 1000
_FEW_BYTES = 1 << 20
_NUMBER = re.compile(r"'[^']*'|\d+(?:\.\d+)?")
"""Parts ignored when grouping identical problems."""


@dataclass(frozen=True, kw_only=True)
class DatasetProblem:
    """One fault and its place: the file and, if known, the number of the record in it, its byte offset and id.

    >>> print(DatasetProblem(file="a.tfrecord-00000-of-00001", record=3, offset=120, id=7, message="label is missing"))
    a.tfrecord-00000-of-00001: record 3 at byte 120, id 7: label is missing
    """

    file: str
    message: str
    record: int | None = None
    offset: int | None = None
    id: int | None = None

    def __str__(self) -> str:
        named = [("record", self.record), ("at byte", self.offset)]
        place = " ".join(f"{word} {value}" for word, value in named if value is not None)
        place = ", ".join(filter(None, [place, "" if self.id is None else f"id {self.id}"]))
        return f"{self.file}: {place}: {self.message}" if place else f"{self.file}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Amount of data checked, every problem found, and what the conversion lost, which is not a problem of the files.

    `notes` state the error of encodings that do not keep every number.
    """

    folder: str
    files: int
    records: int
    bytes: int
    problems: tuple[DatasetProblem, ...]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems

    def __str__(self) -> str:
        checked = (
            f"{plural(self.files, 'file')}, {plural(self.records, 'record')}, {plural(self.bytes, 'byte')}"
        )
        count = len(self.problems)
        verdict = "no problems" if self.ok else plural(count, "problem")
        if self.findings:
            verdict = "files as written" if self.ok else verdict
            verdict += f"; {plural(len(self.findings), 'finding')} about what the conversion lost"
        lines = [f"  {problem}" for problem in self.problems[:_MAX_PRINTED]]
        if count > _MAX_PRINTED:
            kinds = Counter(_NUMBER.sub("#", problem.message) for problem in self.problems[_MAX_PRINTED:])
            lines.append(f"  and {count - _MAX_PRINTED:,} more:")
            lines += [f"  {times:>7,} x {kind}" for kind, times in kinds.most_common(_MAX_PRINTED)]
        lines += [f"  finding: {finding}" for finding in self.findings]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([f"{self.folder}: {verdict} ({checked})", *lines])


def verify(path: str | Path, progress: ProgressCallback | None = None) -> VerifyReport:
    """Check every byte of a data set, with one record in memory at a time.

    Args:
        path: folder or address that holds manifest.json.
        progress: callback for the number of bytes checked in shards.

    Raises:
        UsageError: there is no such folder.
    """
    files = open_files(path)
    if address_of(path) is None and not Path(path).is_dir():
        raise UsageError(f"{path}: no such folder; name the one that holds {MANIFEST}")
    if not files.exists(MANIFEST):
        # A folder that is no data set raises UsageError here; an unfinished data set is checked as usual.
        with contextlib.suppress(ManifestError):
            files.manifest()
    verification = _Verification(files=files, progress=progress or (lambda done, total: None))
    with contextlib.suppress(_TooManyProblemsError):
        manifest = None
        with verification.reading(MANIFEST):
            manifest = verification.manifest()
        if manifest is not None:
            verification.findings += describe_findings(manifest)
            verification.notes += _error_notes(manifest)
            verification.check(manifest)
    return VerifyReport(
        folder=str(files),
        files=verification.files_read,
        records=verification.records,
        bytes=verification.bytes_read,
        problems=tuple(verification.problems),
        findings=tuple(verification.findings),
        notes=tuple(verification.notes),
    )


def _error_notes(manifest: Manifest) -> Iterator[str]:
    """Yield, for each split whose encoding does not keep every number, how much the numbers differ."""
    for name, split in manifest.splits.items():
        if errors := color_errors(split.statistics):
            yield f"{name}: stored colors differ from those of the pictures by {errors}"


class _TooManyProblemsError(Exception):
    """The signal that ends a verification early."""


@dataclass(kw_only=True)
class _Verification:
    """One verification: its progress, and the problems found so far.

    Args:
        bytes_done, bytes_total: size of the shards checked so far, and of all shards.
        ids: the ids of each shard read so far, with its file name.
        rejected: rejected inputs that the indexes list.
    """

    files: DatasetFiles
    progress: ProgressCallback
    problems: list[DatasetProblem] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files_read: int = 0
    records: int = 0
    bytes_read: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    ids: list[tuple[str, NDArray[np.int64]]] = field(default_factory=list)
    rejected: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, file: str, message: str, **place: int | None) -> None:
        self.problems.append(DatasetProblem(file=file, message=message, **place))
        if len(self.problems) == MAX_PROBLEMS:
            self.problems.append(
                DatasetProblem(file=file, message="the rest is not checked: there is too much wrong")
            )
            raise _TooManyProblemsError

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Turn errors about a complete file into a problem, and skip the rest of the block."""
        try:
            yield
        except ManifestError as error:
            for path, message in error.problems:
                self.add(name, f"{path}: {message}" if path else message)
        except FileNotFoundError:
            self.add(name, "it is missing")
        except OSError as error:
            self.add(name, f"it cannot be read: {error.strerror or error}")
        except CorruptFileError as error:
            self.add(name, str(error).removeprefix(f"{self.files.path(name)}: ").removeprefix(f"{name}: "))

    def read(self, name: str, max_bytes: int) -> bytes:
        data = self.files.read(name, max_bytes)
        self.files_read += 1
        self.bytes_read += len(data)
        return data

    def manifest(self) -> Manifest:
        if not self.files.exists(MANIFEST):
            fix = "it is missing: the conversion did not finish; run the same `halofeed convert` again"
            raise ManifestError(MANIFEST, [("", fix)])
        data = self.read(MANIFEST, MANIFEST_BYTES)
        manifest = Manifest.from_json(data, MANIFEST)
        check_recipe(manifest, MANIFEST)
        self.same_bytes(MANIFEST, data, manifest_text(data).encode())
        first = TASKS[manifest.task].first_label_id
        # Voxels outside of every object, and those of records without a label, are 0.
        if task_words(manifest).has_background and 0 not in manifest.labels:
            self.add(MANIFEST, "labels: expected 0, the background, among the classes of segmentation")
        for label in manifest.labels:
            if label < first:
                self.add(MANIFEST, f"labels.{label}: labels of {manifest.task} begin at {first}")
        return manifest

    def same_bytes(self, name: str, data: bytes, expected: bytes) -> None:
        """Add a problem if a file differs from what follows from the manifest."""
        if data == expected:
            return
        pairs = zip(data, expected, strict=False)
        differ = (number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
        at = next(differ, min(len(data), len(expected)))
        around = slice(max(0, at - 20), at + 20)
        message = f"expected {expected[around]!r} there as the manifest says, got {data[around]!r}"
        self.add(name, message, offset=at)

    def same_size(self, name: str, size: int, stated: int) -> None:
        if size != stated:
            self.add(name, f"expected {plural(stated, 'byte')} as the manifest says, got {size:,}")

    def same_checksum(self, name: str, checksum: int, stated: int) -> None:
        if checksum != stated:
            self.add(name, f"its checksum is {checksum:#010x}, the manifest says {stated:#010x}")

    def check(self, manifest: Manifest) -> None:
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        self.bytes_total = sum(shard.bytes for shard in shards)
        described = metadata_files(manifest)
        shard_files = {name for shard in shards for name in (shard.file, shard.index)}
        self.leftovers({*shard_files, *described, MANIFEST, REJECTED})
        self.metadata(described, manifest)
        for name in manifest.splits:
            self.split(name, manifest)
        self.unique_ids()
        # Rejects are compared with the indexes, which must be complete and sound for that.
        indexes = {shard.index for shard in shards}
        indexes_read = all(map(self.files.exists, indexes))
        with self.reading(REJECTED):
            self.rejects(manifest, indexes_read and not any(p.file in indexes for p in self.problems))

    def metadata(self, described: Mapping[str, bytes], manifest: Manifest) -> None:
        """Compare the files that follow from the manifest: those of TensorFlow Datasets and Croissant."""
        # Data sets made before 2026-11-30 have the earlier version of the format.
        earlier = croissant_json(manifest, EARLIER_VERSION).encode("utf-8", "surrogateescape")
        for file, expected in described.items():
            if file == CROISSANT and not self.files.exists(file):
                continue  # data sets made before 2026-11-28 have none
            with self.reading(file):
                found = self.read(file, 2 * len(expected) + _FEW_BYTES)
                if file != CROISSANT or found != earlier:
                    self.same_bytes(file, found, expected)

    def split(self, name: str, manifest: Manifest) -> None:
        """Check each index and shard of a split, and the sum of their statistics."""
        split = manifest.splits[name]
        lineage = lineage_of(manifest.inputs)
        generations = (len(split.shards),) if lineage is None else lineage.generations[name]
        statistics: list[Statistics] = []
        for number, shard in enumerate(split.shards):
            index = None
            with self.reading(shard.index):
                index = self.index(shard, manifest)
                statistics.append(index.statistics)
                self.rejected += index.rejected
            with self.reading(shard.file):
                self.shard(shard, number, generations, index, manifest)
            self.bytes_done += shard.bytes
        # Without every index there is no sum to compare, and the missing index is a problem already.
        if len(statistics) == len(split.shards) and Statistics.total(statistics) != split.statistics:
            self.add(MANIFEST, f"splits.{name}.statistics: not the sum of the shards' statistics")

    def leftovers(self, known: set[str]) -> None:
        """Add a problem for each entry of the folder that is not part of the data set."""
        for name, is_file in (self.files.entries() or {}).items():
            if name == TEMPORARY_FOLDER:
                continue  # left by a command that was killed after the commit; the next such command deletes it
            if name not in known:
                self.add(name, "it belongs to nothing that the manifest names; delete it or move it away")
            elif not is_file:
                self.add(name, "expected a file")

    def index(self, shard: Shard, manifest: Manifest) -> ShardIndex:
        """Read the index of a shard and check it against the manifest."""
        name = shard.index
        data = self.read(name, INDEX_BYTES)
        self.same_size(name, len(data), shard.index_bytes)
        self.same_checksum(name, crc32c(data), shard.index_crc32c)
        index = ShardIndex.from_bytes(data, name)
        for what, ours, theirs in (
            ("records", len(index), shard.records),
            ("file_bytes", index.file_bytes, shard.bytes),
            ("file_checksum", index.file_checksum, shard.crc32c),
        ):
            if ours != theirs:
                self.add(name, f"{what}: {ours}, the manifest says {theirs}")
        self.adjacent(name, index)
        self.rising_ids(name, index)
        arrays = {key: field for field in manifest.fields if field.is_array for key in field.keys}
        packed = {key for key, field in arrays.items() if field.is_packed}
        # An index learns its keys from the first record, so that of an empty shard has none.
        if len(index) and set(index.raw_starts) != set(arrays):
            self.add(name, f"raw keys: expected {sorted(arrays)}, got {sorted(index.raw_starts)}")
        if len(index) and set(index.packed_bytes) != packed:
            self.add(name, f"packed keys: expected {sorted(packed)}, got {sorted(index.packed_bytes)}")
        self.ids.append((shard.file, np.array(index.ids)))
        return index

    def adjacent(self, name: str, index: ShardIndex) -> None:
        """Add a problem if the records of an index leave a gap or overlap; only the first, since others follow."""
        ends = index.offsets + index.lengths + HEADER_BYTES + FOOTER_BYTES
        expected = np.concatenate([np.zeros(1, np.int64), ends])
        for number in np.flatnonzero(expected[:-1] != index.offsets)[:1].tolist():
            begins = f"begins at byte {index.offsets[number]}"
            self.add(name, f"{begins}, but the record before it ends at {expected[number]}", record=number)
        if expected[-1] != index.file_bytes:
            self.add(name, f"the last record ends at byte {expected[-1]}, the file at {index.file_bytes}")

    def rising_ids(self, name: str, index: ShardIndex) -> None:
        """Add a problem for each record of an index whose id is not above the one before."""
        # The tiles of a scan are adjacent and ordered by the id of the scan; `shard` checks that order.
        if index.statistics.tiles:
            return
        for number in np.flatnonzero(index.ids[1:] <= index.ids[:-1]).tolist():
            message = f"its id comes after {index.ids[number]}; expected ids in rising order"
            self.add(name, message, record=number + 1, id=int(index.ids[number + 1]))

    def shard(
        self,
        shard: Shard,
        number: int,
        generations: tuple[int, ...],
        index: ShardIndex | None,
        manifest: Manifest,
    ) -> None:
        """Check the file of a shard and each record; see `_RecordCheck`."""
        file = self.files.in_order(shard)
        self.files_read += 1
        self.bytes_read += file.bytes
        self.same_size(shard.file, file.bytes, shard.bytes)
        check = _RecordCheck(manifest=manifest, number=number, generations=generations, index=index)
        # A file that is too long, perhaps endless, is read up to the manifest's size only.
        frames = SequentialShard(file, min(file.bytes, shard.bytes))
        for record, (offset, stored) in enumerate(frames.records(index)):
            self.records += not isinstance(stored, CorruptFileError)
            identity = None if index is None else int(index.ids[record])
            for message in check.problems(record, offset, stored, frames):
                message = message.removeprefix(f"{shard.file}: record at byte {offset:,}: ")
                self.add(shard.file, message, record=record, offset=offset, id=identity)
            self.progress(self.bytes_done + offset, self.bytes_total)
        # A damaged record was reported already, and it changes the checksum and the counts of its shard.
        if check.all_sound:
            self.same_checksum(shard.file, frames.checksum(), shard.crc32c)
            self.same_counts(shard, check.counts, index)
        self.progress(self.bytes_done + shard.bytes, self.bytes_total)

    def same_counts(self, shard: Shard, counts: ShardCounts, index: ShardIndex | None) -> None:
        """Compare the number of records with the manifest, and their statistics with the index."""
        if counts.records != shard.records:
            self.add(
                shard.file, f"holds {plural(counts.records, 'record')}, the manifest says {shard.records}"
            )
        # An index of other records has other statistics.
        if index is not None and counts.records == len(index):
            for problem in counts.problems(index.statistics):
                self.add(shard.index, problem)

    def unique_ids(self) -> None:
        """Add a problem for each id that several records share, over all shards and splits."""
        if not self.ids:
            return
        unique, counted = np.unique(np.concatenate([ids for _, ids in self.ids]), return_counts=True)
        for identity in unique[counted > 1].tolist():
            places = [f"{file} record {n}" for file, ids in self.ids for n in np.flatnonzero(ids == identity)]
            self.add(MANIFEST, f"several records have this id: {', '.join(places)}", id=identity)

    def rejects(self, manifest: Manifest, complete: bool) -> None:
        """Compare rejected.jsonl with the indexes and the manifest, line by line."""
        reasons = Counter(dict.fromkeys(manifest.rejected, 0))
        count = 0
        for number, line in enumerate(self.files.lines(REJECTED)):
            self.bytes_read += len(line)
            # A file that was cut ends inside a line.
            if not line.endswith(b"\n"):
                self.add(REJECTED, "its last line does not end", record=number)
                break
            count += 1
            self.reject(number, line[:-1].decode("utf-8", "surrogateescape"), complete, reasons)
        self.files_read += 1
        # Without all indexes, the lines have nothing to be compared with.
        if complete and count != len(self.rejected):
            self.add(
                REJECTED,
                f"holds {plural(count, 'line')}, the indexes name {len(self.rejected)} rejected inputs",
            )
        if reasons != Counter(dict(manifest.rejected)):
            self.add(
                REJECTED, f"counts {dict(reasons)!r:.300}, the manifest says {dict(manifest.rejected)!r:.300}"
            )

    def reject(self, number: int, line: str, complete: bool, reasons: Counter[str]) -> None:
        """Compare one line of rejected.jsonl with the entry in the indexes, and count its reason."""
        try:
            entry = parse_json(line, _MAX_LINE_VALUES)
        except ValueError as error:
            self.add(REJECTED, f"not a JSON line: {error}", record=number)
            return
        if isinstance(entry, dict):
            reason = f"{entry.get('stage')}: {entry.get('reason')}"
            # All reasons that the manifest does not list are counted as one, to bound the memory.
            reasons[reason if reason in reasons else "a reason that the manifest does not name"] += 1
        # Equal data sets have equal bytes, also where JSON has several spellings.
        if json.dumps(entry, ensure_ascii=False) != line:
            problem = "not as it was written (white space or escapes were changed)"
            self.add(REJECTED, problem, record=number)
        elif complete and number < len(self.rejected) and entry != dict(self.rejected[number]):
            problem = f"{entry!r:.200}, the index says {self.rejected[number]!r:.200}"
            self.add(REJECTED, problem, record=number)


@dataclass(kw_only=True)
class _RecordCheck:
    """Check of the records of one shard, in order.

    Args:
        number: number of the shard in its split.
        generations: shards of the split that each version has added, see `halofeed.schemas.lineage`.
        index: index of the shard; None if it cannot be read.
        counts: statistics of the records so far.
        arrays: fields of which a part can be read, by the key that holds them.
        all_sound: whether every record so far could be decoded.
        order: order of the tiles of a shard.
    """

    manifest: Manifest
    number: int
    generations: tuple[int, ...]
    index: ShardIndex | None
    counts: ShardCounts = field(init=False)
    arrays: dict[str, Field] = field(init=False)
    all_sound: bool = True
    order: _TileOrder = field(default_factory=lambda: _TileOrder())

    def __post_init__(self) -> None:
        self.counts = ShardCounts(manifest=self.manifest)
        self.arrays = {key: one for one in self.manifest.fields if one.is_array for key in one.keys}

    def problems(
        self, record: int, offset: int, stored: memoryview | CorruptFileError, frames: SequentialShard
    ) -> list[str]:
        """Return each problem of the record that was read last, which begins at byte `offset`."""
        if isinstance(stored, CorruptFileError):
            self.all_sound = False
            return [str(stored), *self.band_problems(record, frames)]
        found, footer = list[str](), frames.footer
        if self.index is not None and footer != (expected := self.index.checksums[record]):
            found.append(f"its checksum is {footer:#010x}, the index says {expected:#010x}")
        try:
            features = decode_example(stored)
        except CorruptFileError as error:
            self.all_sound = False
            return [*found, str(error)]
        found += record_problems(features, self.manifest, self.counts)
        if self.index is not None:
            found += _index_problems(features, stored, offset, self.index, record)
            found += self.checksum_problems(features, self.index, record)
        return [*found, *self.order_problems(features)]

    def band_problems(self, record: int, frames: SequentialShard) -> Iterator[str]:
        """Yield each damaged band of the packed values of a record whose checksum is wrong."""
        if (index := self.index) is None:
            return
        for key, sizes in index.packed_bytes.items():
            start, size = int(index.raw_starts[key][record]), int(sizes[record])
            value = frames.read(start, size)
            # If the file ends inside the record, the first message states that.
            if key in self.arrays and self.arrays[key].is_packed and len(value) == size:
                layout = self.arrays[key].packed_layout
                yield from (f"{key}: {text}" for text in packed_problems(value, layout))

    def checksum_problems(self, features: Decoded, index: ShardIndex, record: int) -> Iterator[str]:
        """Yield each difference between the arrays of a record and their sizes and checksums in the index."""
        for key, checksums in index.raw_checksums.items():
            value = bytes_of(features, key)
            # The check of the field reports a missing value.
            if value is None or key not in self.arrays:
                continue
            problems = FORMS[self.arrays[key].encoding].checksum_problems(
                value, checksums[record], index.block_bytes
            )
            yield from (f"{key}: {text}" for text in problems)
            sizes = index.packed_bytes.get(key)
            if sizes is not None and sizes[record] != len(value):
                yield f"{key}: {plural(len(value), 'byte')}, the index says {sizes[record]:,}"

    def order_problems(self, features: Decoded) -> Iterator[str]:
        """Yield each problem of a record's place: the shard, and its order in a shard of tiles."""
        position = _sort_key(features)
        if position is None:
            return
        expected = possible_shards(position[0], self.generations)
        if self.number not in expected:
            yield f"its id belongs into shard {' or '.join(map(str, expected))}, it is in {self.number}"
        # Without tiles, the order of ids is checked in the index.
        if self.index is not None and self.index.statistics.tiles:
            yield from self.order.problems(position, is_flat=keys.TILE_WHOLE in features)


@dataclass
class _TileOrder:
    """Check of the order of tiles in a shard: sources by rising id, the tiles of each together.

    Tiles of a volume or a clip are by rising number. Those of a picture are in the order of the rows of its file, which
    are read once. An EXIF orientation reverses these rows or turns them to columns, so that the numbers of its tiles,
    which follow the displayed picture, need not rise; each number is there at most once.

    Attributes:
        source: id of the source of the record before.
        highest: highest tile number of that source.
        numbers: tile numbers of that source.
    """

    source: int = -1
    highest: int = -1
    numbers: set[int] = field(default_factory=set)

    def problems(self, position: tuple[int, int], *, is_flat: bool) -> Iterator[str]:
        """Yield a problem if a record is out of order; `position` is its source's id and its tile number.

        Args:
            is_flat: whether the record is a tile of a picture.
        """
        source, number = position
        if source != self.source:
            if source < self.source:
                yield "expected sources by rising id, and the tiles of each together"
            self.source, self.highest, self.numbers = source, -1, set()
        elif number in self.numbers:
            yield f"tile {number} of its source is there a second time"
        elif number < self.highest and not is_flat:
            yield f"tile {number} comes after tile {self.highest}; expected the tiles of a source by rising number"
        self.highest = max(self.highest, number)
        self.numbers.add(number)


def _index_problems(
    features: Decoded, data: memoryview, offset: int, index: ShardIndex, record: int
) -> Iterator[str]:
    """Yield each difference between a record, whose `data` begins at byte `offset`, and its index entry."""
    stored, identity = text_of(features, keys.SOURCE_ID) or "", index.ids[record]
    if stored != str(identity):
        yield f"image/source_id: {stored!r:.80}, the index says {identity}"
    for key, starts in index.raw_starts.items():
        value = bytes_of(features, key)
        # The check of the field reports a missing value.
        if value is None:
            continue
        at = offset + HEADER_BYTES + _view_offset(data, value)
        if at != starts[record]:
            yield f"{key} begins at byte {at}, the index says {starts[record]}"


def _sort_key(features: Decoded) -> tuple[int, int] | None:
    """Return the id that selects the shard of a record (a tile has that of the first tile), and the tile number."""
    tile = integer_of(features, keys.TILE) or 0
    key, stored = text_of(features, keys.KEY_SOURCE), text_of(features, keys.SOURCE_ID) or ""
    if key is not None and tile:
        return example_id(key), tile
    # Longer numbers exceed 64 bits; the check of the id reports them.
    return (int(stored), tile) if stored.isdecimal() and len(stored) < 20 else None


def _view_offset(base: memoryview, view: memoryview) -> int:
    """Return the byte of `base` at which `view`, a slice of it, begins."""
    # An empty view has no address within its base.
    if not len(view):
        return 0
    start, at = (np.frombuffer(one, np.uint8).ctypes.data for one in (base, view))
    return at - start
