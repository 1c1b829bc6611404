"""Manifest of a converted data set: its JSON form, and a reader that reports all problems at once."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.schemas import file_layout as files
from halofeed.schemas import limits
from halofeed.schemas.bounded_json import checksum_of, parse_json
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import Kind, kind_of, with_current_option_names
from halofeed.schemas.lineage import lineage_problems
from halofeed.schemas.statistics import Statistics, statistics_problems
from halofeed.schemas.tasks import TASKS, field_problems, task_named
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.storage.atomic_files import read_regular
from halofeed.storage.paths import find_paths, names_in
from halofeed.system.addresses import is_remote, meant_address
from halofeed.system.checksum import BLOCK_BYTES
from halofeed.system.errors import ManifestError, UsageError
from halofeed.system.wording import did_you_mean, nearest_name, plural

FORMAT_VERSION = 3
"""Version 2 names each index, see `file_layout.index_file`, and has label_map.pbtxt and TFDS's class names.
Version 3 has packed arrays, color planes, or raw values with the checksums of several blocks of 64 KiB."""
_MAX_VERSIONS_NAMED = 8


def format_version_of(fields: Iterable[Field]) -> int:
    """Return the earliest version whose programs read these fields; others ask for a newer halofeed.

    Programs of version 2 know blocks of 1 MiB alone, and would report a raw value of several smaller ones as corrupt.
    """
    newer = any(
        field.is_packed or field.holds_planes or (field.is_raw and field.stored_bytes > BLOCK_BYTES)
        for field in fields
    )
    return FORMAT_VERSION if newer else 2


@dataclass(frozen=True, kw_only=True)
class Shard:
    """TFRecord file: its name, record count, size and CRC32C, and the name, size and CRC32C of its index."""

    file: str
    index: str
    records: int
    bytes: int
    crc32c: int
    index_bytes: int
    index_crc32c: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """Shards of one split in order, and the statistics of its records."""

    shards: tuple[Shard, ...]
    statistics: Statistics

    @property
    def records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.records for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a reader needs before it opens a shard.

    Args:
        name: name of the data set, as in the folder's path.
        version: version of the data set, as in the folder's path.
        task: a key of `halofeed.schemas.tasks.TASKS`.
        fields: all arrays of a record.
        labels: class name by label id.
        recipe: resolved options of the conversion, as plain JSON values.
        inputs: fingerprint and count of the source's listing, as plain JSON values; they show whether the source has
            changed. Its member `parent` names the earlier version, see `halofeed.schemas.lineage`. A data set does not
            contain the path of its source, so its bytes do not depend on that path, see
            `halofeed.pipelines.source_registry`. Early versions wrote a path, which is never opened.
        splits: splits in the order of their names.
        rejected: number of rejected inputs by "stage: reason".
        software: version by program.
        ignore_label: segmentation: label value of unknown pixels or voxels, which is no class; None if there is none.
        format_version: version of the document's format, see `format_version_of`.
    """

    name: str
    version: str
    task: str
    fields: tuple[Field, ...]
    labels: Mapping[int, str]
    recipe: Mapping[str, Any]
    inputs: Mapping[str, Any]
    splits: Mapping[str, Split]
    rejected: Mapping[str, int]
    software: Mapping[str, str]
    ignore_label: int | None = None
    format_version: int = FORMAT_VERSION

    @property
    def kind(self) -> Kind:
        """Kind of the images: picture, volume or clip."""
        image = self.field("image")
        kind = kind_of(image.axes)
        if kind is None:
            raise UsageError(f"{self.name}: no kind of image has the axes {image.axes}")
        return kind

    def field(self, name: str) -> Field:
        """Return the field of this name; UsageError lists the known ones."""
        for field in self.fields:
            if field.name == name:
                return field
        known = [field.name for field in self.fields]
        raise UsageError(
            f"no field {name!r} in {self.name}; {did_you_mean(name, known)}known: {', '.join(known)}"
        )

    def split(self, name: str) -> Split:
        """Return the split of this name, or several that a plus joins as in TFDS: train+validation.

        Raises:
            UsageError: no such split; the message lists the known ones.
        """
        # No stored name has a plus, see `file_layout.check_split`.
        names = name.split("+")
        for one in names:
            if one not in self.splits:
                raise self._no_split(one)
        if len(names) == 1:
            return self.splits[name]
        if len(set(names)) < len(names):
            raise UsageError(f"split {name!r}: one comes twice; name each once")
        parts = [self.splits[one] for one in names]
        return Split(
            shards=tuple(shard for part in parts for shard in part.shards),
            statistics=Statistics.total(part.statistics for part in parts),
        )

    def _no_split(self, name: str) -> UsageError:
        near = did_you_mean(name, self.splits)
        folds = "; choose by fold=0 or --fold 0" if "fold0" in self.splits and name == "train" else ""
        known = ", ".join(self.splits)
        return UsageError(f"no split {name!r} in {self.name}; {near}known: {known}{folds}")

    def splits_of_fold(self, fold: int) -> tuple[str, str]:
        """Return the splits to train and to validate with, for one of the folds that `--folds` made.

        Raises:
            UsageError: there is no such fold.
        """
        names = [f"fold{number}" for number in range(len(self.splits))]
        names = [name for name in names if name in self.splits]
        if len(names) < 2:
            raise UsageError(
                f"fold {fold}: {self.name} has no folds, but the splits {', '.join(self.splits)}; convert it with "
                "--folds 5"
            )
        if not 0 <= fold < len(names):
            raise UsageError(
                f"fold {fold}: {self.name} has {len(names)} folds; expected 0 to {len(names) - 1}"
            )
        return "+".join(name for name in names if name != f"fold{fold}"), f"fold{fold}"

    def is_for_prediction(self, name: str) -> bool:
        """Return whether a split of a segmentation set has records and none with a label: their labels are zeros."""
        split = self.split(name)
        return (
            self.task in TASKS
            and task_named(self.task).has_label_image
            and split.statistics.labelled == 0 < split.records
        )

    def to_json(self) -> str:
        """Return the document's text with its own checksum; equal manifests give equal bytes."""
        document = {
            "format_version": self.format_version,
            "name": self.name,
            "version": self.version,
            "kind": self.kind.name,
            "task": self.task,
            "fields": [field.to_json() for field in self.fields],
            "labels": {str(key): self.labels[key] for key in sorted(self.labels)},
            "recipe": _in_order(self.recipe),
            "inputs": _in_order(self.inputs),
            "splits": {
                name: {
                    "records": split.records,
                    "shards": [self._shard_json(shard) for shard in split.shards],
                    "statistics": _in_order(split.statistics.to_json()),
                }
                for name, split in sorted(self.splits.items())
            },
            "rejected": dict(sorted(self.rejected.items())),
            "software": dict(sorted(self.software.items())),
        }
        if self.ignore_label is not None:  # keeps the bytes of data sets without one
            document["ignore_label"] = self.ignore_label
        document["crc32c"] = checksum_of(document)
        return _text(document)

    def _shard_json(self, shard: Shard) -> dict[str, Any]:
        """Return the members of a shard; format 1 does not name the index."""
        return {key: value for key, value in vars(shard).items() if key != "index" or self.format_version > 1}

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "manifest.json") -> Manifest:
        """Read a document.

        Raises:
            ManifestError: lists every problem with its path in the document.
        """
        if len(text) > limits.MANIFEST_BYTES:  # before json.loads, which takes several times as much memory
            problem = f"expected at most {limits.MANIFEST_BYTES:,} bytes, got {len(text):,}"
            raise ManifestError(where, [("", problem)])
        try:
            document = parse_json(text, limits.MANIFEST_VALUES)
        except ValueError as error:
            raise ManifestError(where, [("", f"not JSON: {error}")]) from error
        return _Reader(where).manifest(document)


def _in_order(value: Any) -> Any:
    """Sort the members of every object in a JSON value by name, integers by value."""
    if isinstance(value, Mapping):
        # By length first, so that "10" comes after "9"; JSON has texts as names of members.
        ordered = sorted(value, key=lambda name: (0, len(name), name) if name.isdecimal() else (1, 0, name))
        return {name: _in_order(value[name]) for name in ordered}
    return [_in_order(item) for item in value] if isinstance(value, list | tuple) else value


def _text(document: Any) -> str:
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Python represents a file name that is not UTF-8 by lone surrogates, which JSON can only hold as escapes.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def manifest_text(data: bytes) -> str:
    """Return a manifest of any version in the form in which this version writes manifests."""
    return _text(parse_json(data, limits.MANIFEST_VALUES))


def is_intact(text: bytes) -> bool:
    """Return True if a manifest's own checksum matches, so that some version of halofeed wrote its bytes.

    >>> is_intact(b"")
    False
    """
    try:
        document = parse_json(text, limits.MANIFEST_VALUES)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("crc32c") == checksum_of(document)


_LABEL_ID = re.compile("0|[1-9][0-9]{0,17}")
_TYPE_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
_TYPE_NAMES |= {list: "a list", dict: "an object"}


class _Reader:
    """Reader of a document that collects up to `limits.PROBLEMS` problems and reports them together."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[tuple[str, str]] = []

    def add(self, path: str, problem: str) -> None:
        """Add a problem; raise ManifestError if there are too many."""
        self.problems.append((f"{path:.200}", f"{problem:.2000}"))
        if len(self.problems) >= limits.PROBLEMS:
            raise ManifestError(self.where, self.problems)

    def add_all(self, problems: Iterable[tuple[str, str]]) -> None:
        """Add several problems."""
        for path, problem in problems:
            self.add(path, problem)

    def item(self, document: Mapping[str, Any], key: str, kind: type, path: str = "") -> Any:
        """Return document[key] if it has the type `kind`; else add a problem and return an empty value."""
        full = f"{path}.{key}" if path else key
        if key not in document:
            self.add(full, f"expected {_TYPE_NAMES[kind]}, it is missing")
        elif not isinstance(document[key], kind) or (kind is int and isinstance(document[key], bool)):
            self.add(full, f"expected {_TYPE_NAMES[kind]}, got {document[key]!r:.60}")
        else:
            return document[key]
        return kind()

    def count(self, document: Mapping[str, Any], key: str, path: str) -> int:
        """Return document[key] if it is an integer from 0 to 2**63 - 1, or 2**32 - 1 for a checksum."""
        value = int(self.item(document, key, int, path))
        return self.in_range(value, f"{path}.{key}", 32 if key.endswith("crc32c") else 63)

    def in_range(self, value: int, path: str, bits: int) -> int:
        """Return the value; add a problem and return 0 if it is negative or needs more bits."""
        if 0 <= value < 1 << bits:
            return value
        self.add(path, f"expected 0 to 2**{bits} - 1, got {value!r:.60}")
        return 0

    def items(
        self, document: Mapping[str, Any], key: str, kinds: tuple[type, ...], path: str
    ) -> tuple[Any, ...]:
        """Return the values of the list document[key] that have one of the types; add a problem for each other one."""
        found = self.item(document, key, list, path)
        for number, value in enumerate(found):
            if type(value) not in kinds:  # also refuses true as a number, which is an int in Python
                self.add(f"{path}.{key}[{number}]", f"expected {_TYPE_NAMES[kinds[-1]]}, got {value!r:.60}")
        return tuple(value for value in found if type(value) in kinds)

    def values(self, document: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
        """Return the members of the object document[key] that have the type; add a problem for each other one."""
        found = self.item(document, key, dict)
        for name, value in found.items():
            if type(value) is not kind:
                self.add(f"{key}.{name}", f"expected {_TYPE_NAMES[kind]}, got {value!r:.60}")
        return {name: value for name, value in found.items() if type(value) is kind}

    def checked(self, check: Callable[[str], str], value: str, path: str) -> str:
        """Return the value; add a problem if `check` refuses it."""
        try:
            return check(value)
        except UsageError as error:
            self.add(path, str(error))
            return value

    def manifest(self, document: Any) -> Manifest:
        version = self.format_version(document)
        task = self.item(document, "task", str)
        if task not in TASKS:
            self.add("task", f"expected one of {', '.join(TASKS)}, got {task!r}")
        name = self.checked(files.check_name, self.item(document, "name", str), "name")
        read = {
            "name": name,
            "version": self.checked(files.check_version, self.item(document, "version", str), "version"),
            "task": task,
            "fields": self.fields(self.item(document, "fields", list)),
            "labels": self.labels(self.item(document, "labels", dict)),
            "recipe": with_current_option_names(self.item(document, "recipe", dict)),
            "inputs": self.item(document, "inputs", dict),
            "splits": {
                split: self.split(document["splits"][split], f"splits.{split}", name, split, version)
                for split in sorted(self.item(document, "splits", dict))
            },
            "rejected": {
                reason: self.in_range(count, f"rejected.{reason}", 63)
                for reason, count in self.values(document, "rejected", int).items()
            },
            "software": self.values(document, "software", str),
            "format_version": version,
        }
        if "ignore_label" in document:
            read["ignore_label"] = self.in_range(self.item(document, "ignore_label", int), "ignore_label", 16)
        known = (*read, "kind", "crc32c")
        self.add_all((key, "unknown") for key in document if key not in known)
        manifest = Manifest(**read)
        # Members of wrong types would make these raise, and a wrong checksum follows from any other problem.
        if not self.problems:
            self.check_agreement(manifest, document)
        self.check_checksum(document)
        if self.problems:
            raise ManifestError(self.where, self.problems)
        return manifest

    def format_version(self, document: Any) -> int:
        """Return the version of the document's format; raise ManifestError for one that cannot be read."""
        if not isinstance(document, dict):
            raise ManifestError(self.where, [("", f"expected an object, got {type(document).__name__}")])
        version = int(self.item(document, "format_version", int))
        if self.problems:
            raise ManifestError(self.where, self.problems)
        if not 1 <= version <= FORMAT_VERSION:
            cure = "install a newer halofeed" if version > FORMAT_VERSION else "convert the data again"
            problem = f"this halofeed reads versions 1 to {FORMAT_VERSION}, the document is version {version}; {cure}"
            raise ManifestError(self.where, [("format_version", problem)])
        return version

    def check_checksum(self, document: Mapping[str, Any]) -> None:
        checksum = self.item(document, "crc32c", int)
        if not self.problems and checksum != checksum_of(document):
            problem = (
                f"expected {checksum_of(document)}, got {checksum}: it was changed; convert the data again"
            )
            self.add("crc32c", problem)

    def check_agreement(self, manifest: Manifest, document: Mapping[str, Any]) -> None:
        """Add a problem for each contradiction between members."""
        self.add_all(field_problems(manifest.task, manifest.fields, manifest.labels))
        self.add_all(_ignore_label_problems(manifest))
        counts = {name: len(split.shards) for name, split in manifest.splits.items()}
        self.add_all(lineage_problems(manifest.inputs, counts))
        image = next((field for field in manifest.fields if field.name == "image"), None)
        kind = kind_of(image.axes) if image else None
        # Documents of early versions have no kind.
        if kind is not None and document.get("kind", kind.name) != kind.name:
            self.add("kind", f"expected {kind.name!r} by the image's axes, got {document['kind']!r:.60}")
        self.check_numbers(manifest, image.shape[-1] if image and image.shape else None)

    def check_numbers(self, manifest: Manifest, channels: int | None) -> None:
        """Add a problem for each number beyond the limits of readers, and for sums of other channels."""
        splits, rejected = manifest.splits, manifest.rejected
        if len(splits) > limits.SPLITS:
            self.add("splits", f"expected at most {limits.SPLITS:,}, got {len(splits):,}")
        if len(rejected) > limits.NAMES:
            self.add("rejected", f"expected at most {limits.NAMES:,} reasons, got {len(rejected):,}")
        self.add_all(_channel_problems(manifest, channels))
        if not self.problems:
            # Reports have a table of all names by all splits.
            names = len(manifest.labels) + sum(split.statistics.names() for split in splits.values())
            if names * len(splits) > limits.CELLS:
                self.add(
                    "splits",
                    f"expected at most {limits.CELLS:,} counts, got {plural(names, 'name')} in {len(splits):,}",
                )
        shards = sum(len(split.shards) for split in splits.values())
        if shards > limits.SHARDS:
            self.add("splits", f"expected at most {limits.SHARDS:,} shards, got {shards:,}")
        self.in_range(sum(split.records for split in splits.values()), "splits.*.records", 63)
        self.in_range(sum(rejected.values()), "rejected.*", 63)

    def fields(self, documents: list[Any]) -> tuple[Field, ...]:
        if len(documents) > limits.FIELDS:
            self.add("fields", f"expected at most {limits.FIELDS:,}, got {len(documents):,}")
            return ()
        found = []
        for number, document in enumerate(documents):
            path = f"fields[{number}]"
            if not isinstance(document, dict):
                self.add(path, f"expected an object, got {document!r:.60}")
                continue
            field = Field(
                name=self.item(document, "name", str, path),
                keys=self.items(document, "keys", (str,), path),
                dtype=self.item(document, "dtype", str, path),
                axes=self.items(document, "axes", (str,), path),
                shape=self.items(document, "shape", (int,), path),
                encoding=self.item(document, "encoding", str, path),
                fill=self.items(document, "fill", (int, float), path),
                optional=self.item(document, "optional", bool, path),
            )
            self.add_all((f"{path}.{attribute}", problem) for attribute, problem in field.problems())
            found.append(field)
        names = Counter(field.name for field in found)
        self.add_all(("fields", f"{name!r:.60} is there twice") for name in sorted(names) if names[name] > 1)
        return tuple(found)

    def labels(self, document: dict[str, Any]) -> dict[int, str]:
        if len(document) > limits.LABELS:
            self.add("labels", f"expected at most {limits.LABELS:,}, got {len(document):,}")
            return {}
        found = {}
        for key, name in document.items():
            if not _LABEL_ID.fullmatch(key) or not isinstance(name, str):
                self.add(f"labels.{key}", f"expected an id and a name, got {key!r:.60} and {name!r:.60}")
            elif len(name) > limits.LABEL_LENGTH:
                self.add(
                    f"labels.{key}", f"expected at most {limits.LABEL_LENGTH:,} characters, got {len(name):,}"
                )
            else:
                found[int(key)] = name
        return found

    def split(self, document: Any, path: str, name: str, split_name: str, version: int) -> Split:
        before = len(self.problems)
        self.checked(files.check_split, split_name, path)
        if not isinstance(document, dict):
            self.add(path, f"expected an object, got {document!r:.60}")
        if len(self.problems) > before:
            # The names of files follow from that of the split, and a name with a lone surrogate has no bytes.
            return Split(shards=(), statistics=Statistics())
        shards = []
        documents = self.item(document, "shards", list, path)
        for number, shard in enumerate(documents):
            shard_path = f"{path}.shards[{number}]"
            if not isinstance(shard, dict):
                self.add(shard_path, f"expected an object, got {shard!r:.60}")
                continue
            file = files.shard_file(name, split_name, number, len(documents))
            shards.append(self.shard(shard, shard_path, file, version))
        counted = self.item(document, "statistics", dict, path)
        problems = list(statistics_problems(counted, f"{path}.statistics"))
        self.add_all(problems)
        statistics = Statistics() if problems else Statistics.from_json(counted)
        split = Split(shards=tuple(shards), statistics=statistics)
        records = self.count(document, "records", path)
        if records != split.records:
            self.add(f"{path}.records", f"expected the shards' sum {split.records}, got {records}")
        return split

    def shard(self, document: Mapping[str, Any], path: str, file: str, version: int) -> Shard:
        """Return a shard.

        Args:
            file: name that its file must have. Readers open no other, so that a manifest cannot lead them elsewhere.
            version: version of the document's format.
        """
        counts = {
            key: self.count(document, key, path)
            for key in Shard.__dataclass_fields__
            if key not in ("file", "index")
        }
        # Format 1 does not state the name of the index.
        index = files.index_file_1(file) if version == 1 else files.index_file(file)
        names = {"file": file} if version == 1 else {"file": file, "index": index}
        for key, expected in names.items():
            found = self.item(document, key, str, path)
            if found != expected:
                self.add(f"{path}.{key}", f"expected {expected!r}, got {found!r:.200}")
        if counts["records"] * (HEADER_BYTES + FOOTER_BYTES) > counts["bytes"]:
            problem = f"{counts['bytes']:,} bytes hold no {counts['records']:,} records"
            self.add(f"{path}.records", problem)
        return Shard(file=file, index=index, **counts)


def _channel_problems(manifest: Manifest, channels: int | None) -> Iterator[tuple[str, str]]:
    for name, split in manifest.splits.items():
        sums = split.statistics.pixels
        if sums is not None and sums.sum and len(sums.sum) != channels:
            problem = f"expected the sums of {channels} channels, got {len(sums.sum)}"
            yield f"splits.{name}.statistics.pixels", problem


def _ignore_label_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    ignored = manifest.ignore_label
    if ignored is None:
        return
    if manifest.task in TASKS and not TASKS[manifest.task].has_label_image:
        yield "ignore_label", f"records of {manifest.task} have no label image"
    # 0 is the background of every label image.
    if ignored in manifest.labels or not ignored:
        yield "ignore_label", f"expected the id of no class and not 0, got {ignored}"


def only_version(path: str | os.PathLike[str]) -> str:
    """Return the folder of a data set's only version, data/cards/1.0.0 for data/cards; any other path as it is."""
    folder = Path(path)
    if is_remote(os.fspath(path)) or (folder / files.MANIFEST).exists():
        return os.fspath(path)
    found = list(find_paths(folder, f"[!.]*/{files.MANIFEST}"))
    return str(found[0].parent) if len(found) == 1 else os.fspath(path)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a data set in a folder of this machine.

    Raises:
        UsageError: the folder is missing or is no data set; the message names versions in its subfolders.
        ManifestError: the conversion has not finished, or the document cannot be read or is wrong.
    """
    # `s3:/bucket`: pathlib and shells' completion turn two slashes into one.
    if (meant := meant_address(os.fspath(path))) is not None:
        raise UsageError(f"{path}: an address has two slashes; write {meant}")
    folder = Path(path)
    if is_remote(os.fspath(path)):
        raise UsageError(
            f"{path}: this command reads data sets from local disk; copy the folder there first, with "
            "`aws s3 sync`, `gcloud storage rsync -r` or `wget -r -np`, and name the copy"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder}: {_no_folder(folder)}")
    file = folder / files.MANIFEST
    try:
        return Manifest.from_json(read_regular(file, limits.MANIFEST_BYTES), str(file))
    except FileNotFoundError as error:
        raise _no_manifest(folder, file) from error
    except OSError as error:
        raise ManifestError(str(file), [("", f"cannot be read: {error.strerror or error}")]) from error


def _no_manifest(folder: Path, file: Path) -> UsageError | ManifestError:
    """Return the error for a folder without a manifest, by what else is there."""
    if found := sorted(
        entry.parent
        for level in ("[!.]*", "*/[!.]*")
        for entry in find_paths(folder, f"{level}/{files.MANIFEST}")
    ):
        listed = ", ".join(map(str, found[:_MAX_VERSIONS_NAMED]))
        more = f" and {len(found) - _MAX_VERSIONS_NAMED} more" if len(found) > _MAX_VERSIONS_NAMED else ""
        return UsageError(f"{folder}: holds versions, not a data set; name one: {listed}{more}")
    if any(find_paths(folder, "*.tfrecord-*")) or (folder / files.TEMPORARY_FOLDER).exists():
        cure = "it is missing, so the conversion has not finished; run the same `halofeed convert` again"
        return ManifestError(str(file), [("commit mark", cure)])
    if (folder / files.RUN_FILE).is_file():
        return UsageError(
            f"{folder}: is a training run, not a data set; name the folder that `halofeed convert` wrote; of "
            f"this run it is {files.read_run(folder).get('data')}"
        )
    return UsageError(
        f"{folder}: is no data set: no {files.MANIFEST} in it; name the folder that `halofeed convert` wrote, "
        f"<out>/<name>/<version>. To make one of files: `halofeed convert --source {folder} --out data --name new`"
    )


def _no_folder(path: Path) -> str:
    """Return what is wrong with a data set's path that is no folder, and what to write."""
    above = path.parent
    if path.exists():
        found = above if (above / files.MANIFEST).exists() else "such as data/cards/1.0.0"
        return f"is a file; name the version's folder, {found}"
    # `data=data/cards/1.0.0`, as other tools want it
    key, equals, rest = str(path).partition("=")
    if equals and os.path.exists(rest):
        return f"no such folder; leave out {key}=, and write {rest}"
    if versions := sorted(str(one.parent) for one in find_paths(above, f"[!.]*/{files.MANIFEST}")):
        return f"no such folder; name one that is there: {', '.join(versions[:_MAX_VERSIONS_NAMED])}"
    if (near := nearest_name(path.name, names_in(above) if above.is_dir() else ())) is not None:
        return f"no such folder; did you mean {above / near}?"
    return "no such folder; name the version's folder, such as data/cards/1.0.0"
