"""Subset of a data set: a version with the records that meet a condition, which lists its parent.

The subset has the shards of its parent, with their numbers. A shard of which all records are kept is linked or copied
as a file; of another one, the kept records are copied byte for byte. Indexes and statistics are those of these records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.compare_records import source_of
from halofeed.inspection.dataset_files import DatasetFiles, open_files, open_manifest
from halofeed.inspection.record_values import NAMES, Findings, RecordValues, values_of_class
from halofeed.inspection.recounted import Recount, only_recounted
from halofeed.inspection.review.review import KINDS, review_dataset
from halofeed.inspection.stored_records import StoredShard
from halofeed.inspection.where import Condition, parse_condition
from halofeed.pipelines.commit import shard_entry
from halofeed.pipelines.lease import held
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.replace import check_own_version, delete_unnamed, real_version_folder
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.file_layout import MANIFEST, REJECTED, check_name, check_version, index_file, shard_file
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import MANIFEST_BYTES, MANIFEST_VALUES
from halofeed.schemas.lineage import PARENT, Lineage, lineage_of
from halofeed.schemas.manifest import Manifest, Shard, Split
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tfds import metadata_files
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.storage.atomic_files import read_regular
from halofeed.system import signals
from halofeed.system.addresses import is_remote
from halofeed.system.checksum import crc32c
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_OTHERS = "; a name with a slash is a feature of the record, such as image/format"


@dataclass(frozen=True, kw_only=True)
class SubsetOptions:
    """Options of a subset.

    Args:
        where: condition that its records meet, see `halofeed.inspection.where`.
        out: folder below which NAME/VERSION is made.
        name, version: name and version; "" is that of the parent.
        findings: findings by id of the record, for conditions on `finding`; None: those of `halofeed review`.
    """

    where: str
    out: str
    name: str = ""
    version: str = ""
    findings: Findings | None = None


@dataclass(frozen=True, kw_only=True)
class Subset:
    """Written subset.

    Args:
        folder: folder of the version.
        records: records of the parent.
        whole: shards that were kept whole.
    """

    folder: str
    manifest: Manifest
    records: int
    whole: int

    def __str__(self) -> str:
        kept = sum(split.records for split in self.manifest.splits.values())
        shards = sum(len(split.shards) for split in self.manifest.splits.values())
        splits = ", ".join(f"{name} {split.records:,}" for name, split in self.manifest.splits.items())
        return (
            f"{self.manifest.name} {self.manifest.version}: {kept:,} of {plural(self.records, 'record')} ({splits}), "
            f"{self.whole:,} of {plural(shards, 'shard')} kept whole\n{self.folder}: look at it with `halofeed report "
            f"{self.folder}`"
        )


def write_subset(path: str | os.PathLike[str], options: SubsetOptions) -> Subset:
    """Write the records that meet a condition as a version of their own.

    Raises:
        UsageError: the condition is wrong or no record meets it, a review cannot search for all findings that it may
            mean, or the folder of the version is in use.
        CorruptFileError: a record that must be read is damaged.
    """
    files = open_files(path)
    parent = open_manifest(files)
    findings = options.findings
    known = {"class": values_of_class(parent), "split": tuple(parent.splits)}
    if findings is None:
        known["finding"] = KINDS
    condition = parse_condition(options.where, NAMES, others=_OTHERS, values=known)
    if "finding" in condition.names and findings is None:
        findings = _reviewed(files)
    name, version = check_name(options.name or parent.name), check_version(options.version or parent.version)
    named = "/".join([options.out.rstrip("/") or "/", name, version])
    folder = real_version_folder(named)
    if folder == os.path.realpath(str(files)):
        raise UsageError(
            f"--out {options.out}: would replace the data set itself; take another --name or --version"
        )
    output = OutputFolder(folder)
    check_own_version(output, name, "take another --name, --version or --out")
    if output.exists(MANIFEST):
        raise UsageError(f"{folder}: is there already; take another --name or --version, or remove it")
    chosen = list(_choose(files, parent, condition, findings))
    if not any(one.kept.any() for one in chosen):
        raise UsageError(
            f"--where {options.where}: no record of {files} meets it; `halofeed report {files}` shows what there is"
        )
    writer = _Writer(files=files, parent=parent, condition=condition, name=name, version=version)
    with signals.CleanupOnExit(output.withdraw) as cleanup:
        output.make()
        with held(output.root):
            subset = writer.write(output, chosen)
        cleanup.keep()
    return replace(subset, folder=named)


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """Shard of the parent, and which of its records are kept, bool [record]."""

    split: str
    number: int
    shard: Shard
    stored: StoredShard
    kept: NDArray[np.bool_]


def _choose(
    files: DatasetFiles, parent: Manifest, condition: Condition, findings: Findings | None
) -> Iterator[_Chosen]:
    """Yield each shard of the parent with the records that meet the condition."""
    for name, split in parent.splits.items():
        for number, shard in enumerate(split.shards):
            stored = StoredShard(files, shard)
            rows = (
                RecordValues(stored=stored, row=row, split=name, manifest=parent, findings=findings)
                for row in range(len(stored.index))
            )
            kept = np.fromiter((condition.meets(one.values) for one in rows), np.bool_, len(stored.index))
            yield _Chosen(split=name, number=number, shard=shard, stored=stored, kept=kept)


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Writer of a subset of a data set."""

    files: DatasetFiles
    parent: Manifest
    condition: Condition
    name: str
    version: str

    def write(self, output: OutputFolder, chosen: list[_Chosen]) -> Subset:
        """Write the shards, the files beside them, and the manifest."""
        splits = [
            name for name in self.parent.splits if any(one.split == name and one.kept.any() for one in chosen)
        ]
        chosen = [one for one in chosen if one.split in splits]
        is_partial = not all(one.kept.all() for one in chosen)
        shards: dict[str, list[Shard]] = {name: [] for name in splits}
        statistics = dict.fromkeys(splits, Statistics())
        for one in chosen:
            shard, counted = self._write_shard(output, one, is_partial=is_partial)
            shards[one.split].append(shard)
            statistics[one.split] = statistics[one.split].merge(counted)
        manifest = self._manifest(
            {name: Split(shards=tuple(shards[name]), statistics=statistics[name]) for name in splits}
        )
        described = metadata_files(manifest)
        for name, data in {**described, REJECTED: b""}.items():
            output.write(name, data)
        names = {file for one in shards.values() for shard in one for file in (shard.file, shard.index)}
        names |= {REJECTED, *described}
        delete_unnamed(output, self.name, names)
        output.commit(manifest.to_json().encode(), after=sorted(names), swept=True)
        return Subset(
            folder=output.root,
            manifest=manifest,
            records=sum(split.records for split in self.parent.splits.values()),
            whole=sum(bool(one.kept.all()) for one in chosen),
        )

    def _manifest(self, splits: dict[str, Split]) -> Manifest:
        lineage = lineage_of(self.parent.inputs)
        generations = {} if lineage is None else lineage.generations
        before = None if lineage is None else lineage.where
        data = self.files.read(MANIFEST, MANIFEST_BYTES)
        parent = Lineage(
            version=self.parent.version,
            crc32c=int(parse_json(data, MANIFEST_VALUES)["crc32c"]),
            generations={name: generations.get(name, (len(split.shards),)) for name, split in splits.items()},
            where=self.condition.text if before is None else f"({before}) and ({self.condition.text})",
            name=self.parent.name,
        )
        count = sum(split.records for split in splits.values())
        digest = hashlib.sha256(
            self.parent.inputs.get("fingerprint", "").encode() + self.condition.text.encode()
        )
        return replace(
            self.parent,
            name=self.name,
            version=self.version,
            splits=splits,
            rejected={},
            inputs={"count": count, "fingerprint": digest.hexdigest(), PARENT: parent.to_json()},
        )

    def _write_shard(
        self, output: OutputFolder, one: _Chosen, *, is_partial: bool
    ) -> tuple[Shard, Statistics]:
        """Write a shard and its index; return its entry in the manifest, and its statistics."""
        count = len(self.parent.splits[one.split].shards)
        name = shard_file(self.name, one.split, one.number, count)
        index = one.stored.index
        is_whole = bool(one.kept.all())
        if is_whole and not is_remote(str(self.files)):
            output.take(name, OutputFolder(str(self.files)), one.shard.file)
            statistics, sources = index.statistics, None
        else:
            index, statistics, sources = self._copy_records(output, name, one)
        if is_partial:
            # A sum of a figure over some of the shards would be wrong.
            statistics = only_recounted(index.statistics) if is_whole else statistics
        inputs = dict(one.stored.index.inputs)
        index = replace(
            index,
            # No conversion takes this shard for one that it made.
            fingerprint=hashlib.sha256(f"subset {one.stored.index.fingerprint}".encode()).hexdigest(),
            inputs=inputs if sources is None else {file: inputs[file] for file in sources if file in inputs},
            statistics=statistics,
            rejected=(),
        )
        data = index.to_bytes()
        output.write(index_file(name), data)
        return shard_entry(name, index, data), statistics

    def _copy_records(
        self, output: OutputFolder, name: str, one: _Chosen
    ) -> tuple[ShardIndex, Statistics, list[str] | None]:
        """Copy the kept records of a shard; return its index, its statistics and the sources of the records."""
        old, is_whole = one.stored.index, bool(one.kept.all())
        rows = np.flatnonzero(one.kept)
        recount = Recount(manifest=self.parent, max_boxes=_max_boxes(self.parent))
        sources: list[str] = []
        checksum = 0
        with output.temporary(name) as file:
            for row in rows.tolist():
                frame = one.stored.frame(row)
                file.stream.write(frame)
                checksum = crc32c(frame, checksum)
                if not is_whole:
                    features = decode_example(frame[HEADER_BYTES:-FOOTER_BYTES])
                    recount.add(features)
                    sources.append(source_of(features))
            file.keep()
        sizes = old.lengths[rows] + HEADER_BYTES + FOOTER_BYTES
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        shift = offsets[:-1] - old.offsets[rows]
        index = replace(
            old,
            offsets=offsets[:-1],
            lengths=old.lengths[rows],
            checksums=old.checksums[rows],
            ids=old.ids[rows],
            raw_starts={key: starts[rows] + shift for key, starts in old.raw_starts.items()},
            raw_checksums={key: sums[rows] for key, sums in old.raw_checksums.items()},
            packed_bytes={key: sums[rows] for key, sums in old.packed_bytes.items()},
            signatures=None if old.signatures is None else old.signatures[rows],
            measures={key: one[rows] for key, one in old.measures.items()},
            file_bytes=int(offsets[-1]),
            file_checksum=checksum,
        )
        return index, old.statistics if is_whole else recount.statistics(), None if is_whole else sources


def _reviewed(files: DatasetFiles) -> Findings:
    """Return the findings of a review; refuse a data set in which it cannot search for all of them."""
    review = review_dataset(files).to_json()
    if missing := review["not_searched"]:
        listed = "\n".join(f"  {text}" for text in missing)
        raise UsageError(
            f"--where: {files}: a review cannot search all of it, so a condition on findings could keep what it does "
            f"not find:\n{listed}\n`halofeed review {files} --json FILE` and --findings FILE take what can be searched"
        )
    return findings_of(review)


def _max_boxes(manifest: Manifest) -> int:
    return Recipe.from_json(manifest.recipe).max_boxes


def findings_of(review: Mapping[str, Any]) -> Findings:
    """Return the kinds of suspects by the ids of their records, of a review's JSON form.

    >>> findings_of({"suspects": [{"kind": "dark picture", "records": [{"id": 7}]}]})
    {7: ['dark picture']}
    """
    found: dict[int, list[str]] = {}
    for suspect in review["suspects"]:
        for record in suspect["records"]:
            found.setdefault(int(record["id"]), []).append(str(suspect["kind"]))
    return found


def read_findings(file: str | Path) -> Findings:
    """Return the findings of a JSON file: what `halofeed review --json` wrote, or {"id": ["finding", ...], ...}.

    Raises:
        UsageError: the file cannot be read, or has another form.
    """
    expected = (
        'expected what `halofeed review --json FILE` wrote, or {"ID OF A RECORD": ["FINDING", ...], ...}'
    )
    try:
        document = parse_json(read_regular(file, MANIFEST_BYTES), MANIFEST_VALUES)
        if isinstance(document, dict) and "suspects" in document:
            return findings_of(document)
        return _plain_findings(document)
    except OSError as error:
        raise UsageError(f"--findings {file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"--findings {file}: {expected}: {error!r:.200}") from error


def _plain_findings(document: Any) -> Findings:
    """Return the findings of an object of lists; raise ValueError for another document."""
    if not isinstance(document, dict):
        raise ValueError(f"got {type(document).__name__}")
    for key, names in document.items():
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise ValueError(f"{key}: got {names!r:.60}")
    return {int(key): tuple(names) for key, names in document.items()}
