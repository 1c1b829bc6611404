"""Names of the files of a data set, a training run and a plan, and readers of runs and plans."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from halofeed.schemas.bounded_json import check_json_checksum, parse_json
from halofeed.schemas.limits import RUN_BYTES, RUN_VALUES
from halofeed.storage.atomic_files import read_regular
from halofeed.system.errors import CorruptFileError, UsageError

MANIFEST = "manifest.json"
REJECTED = "rejected.jsonl"
SELECTION = "selection"
"""Stage in rejected.jsonl of inputs that were skipped on purpose, which is no failure."""
OBJECT = "object"
"""Stage in rejected.jsonl of single objects that were dropped from converted inputs."""
ZERO_AREA = "box has zero area"
"""Reason of an object that --boxes-zero-area dropped."""
IN_NO_RECORD = "object is in no record"
"""Reason of an object of a volume that lies outside of the static shape."""
TEMPORARY_FOLDER = ".incomplete"
"""Folder of unfinished files below the version's folder; they are later renamed or deleted."""

DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"
LABEL_MAP = "label_map.pbtxt"
CROISSANT = "croissant.json"
CLASS_NAMES = ("image.class.label.labels.txt", "image.object.class.label.labels.txt")
"""Files in which TFDS expects the class names of the features `image/class/label` and `image/object/class/label`."""
UNCOMMITTED_MANIFEST = ".manifest.json.incomplete"
"""Name of the manifest until all files that it names are on the disk; one rename commits it."""
BESIDE_SHARDS = frozenset(
    (MANIFEST, UNCOMMITTED_MANIFEST, REJECTED, DATASET_INFO, FEATURES, LABEL_MAP, CROISSANT, *CLASS_NAMES)
)
"""Names of the files of a data set that are neither a shard nor an index."""

_TEMPORARY_NAME = re.compile(
    r"\.?(?:alive|bundles|calls|headers|ids|listed|references|rejected|wanted)(?:[-.][^/]*)?"
)
_SHARD = r"-.*\.tfrecord-\d{5}-of-\d{5}"
_INDEX = r"_index-\d{5}-[0-9a-f]{12}"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


def check_name(name: str) -> str:
    """Return a data set's name if TFDS accepts it: lower case letters, digits and underscores.

    >>> check_name("cards")
    'cards'
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r}: expected lower case letters, digits and '_', starting with a letter"
        )
    return name


def check_version(version: str) -> str:
    """Return a version if it has three numbers, as in 1.0.0; else raise UsageError."""
    if not _VERSION.fullmatch(version):
        raise UsageError(f"--version {version!r}: expected three numbers such as 1.0.0")
    return version


def check_split(split: str) -> str:
    """Return a split's name if it can be part of a file name; else raise UsageError."""
    # tfds.Split.ALL is the name "all".
    if not _SPLIT.fullmatch(split) or split == "all":
        raise UsageError(
            f"split {split!r}: expected letters, digits, '_' and '.', starting with a letter, "
            "since it becomes part of file names, and not 'all', which TFDS keeps for itself; rename it in the source"
        )
    return split


def shard_file(name: str, split: str, shard: int, shard_count: int) -> str:
    """Return the file name of a shard.

    >>> shard_file("cards", "train", 3, 16)
    'cards-train.tfrecord-00003-of-00016'
    """
    return f"{name}-{split}.tfrecord-{shard:05d}-of-{shard_count:05d}"


def index_file(shard: str) -> str:
    """Return the file name of a shard's index: the shard's number, and a digest of its split and of the shard count.

    No pattern that means shards matches it, such as `cards*`, `*train*`, `*.tfrecord-*` or `*-00003-of-*`.

    >>> index_file("cards-train.tfrecord-00003-of-00016")
    '_index-00003-158770c3f3dd'
    """
    start, number, _, count = shard.rsplit("-", 3)
    return f"_index-{number}-{hashlib.sha256(os.fsencode(f'{start}-{count}')).hexdigest()[:12]}"


def index_file_1(shard: str) -> str:
    """Return the file name of a shard's index in data sets of format 1."""
    return f"{shard}.index"


def index_files(file: str) -> set[str]:
    """Return the names that the index of a file may have, in any format; none for a file that is no shard.

    >>> index_files("notes.txt")
    set()
    """
    return {index_file(file), index_file_1(file)} if re.fullmatch(f".*{_SHARD}", file) else set()


def is_index_file(file: str) -> bool:
    """Return True if a conversion gives this name to an index, or did so in format 1.

    >>> is_index_file("_index-00003-158770c3f3dd"), is_index_file("cards-train.tfrecord-00003-of-00016.index")
    (True, True)
    """
    return bool(re.fullmatch(rf"{_INDEX}|.*{_SHARD}\.index", file))


def is_conversion_file(file: str, name: str) -> bool:
    """Return True if a conversion of the data set `name` may write a file of this name.

    >>> is_conversion_file("cards-train.tfrecord-00003-of-00016", "cards")
    True
    >>> is_conversion_file("notes.txt", "cards")
    False
    """
    other = (*BESIDE_SHARDS, TEMPORARY_FOLDER)
    return file in other or bool(re.fullmatch(rf"{re.escape(name)}{_SHARD}(\.index)?|{_INDEX}", file))


def is_temporary_name(name: str) -> bool:
    """Return True if a conversion may write a file of this name into its temporary folder in an object store.

    >>> is_temporary_name("rejected-00003.jsonl"), is_temporary_name("notes.txt")
    (True, False)
    """
    return bool(_TEMPORARY_NAME.fullmatch(name))


RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
EXAMPLES = "examples"
SIGNATURE = "signature.json"
"""File of an exported model."""
RUN_FORMAT = 1
PLAN_FORMAT = 1


def read_run(folder: str | Path) -> dict[str, Any]:
    """Read run.json of a run's folder.

    Raises:
        UsageError: the file is missing.
        CorruptFileError: it cannot be read, or another version of halofeed wrote it.
    """
    try:
        return _read_document(
            Path(folder) / RUN_FILE, "run", RUN_FORMAT, f"move {folder} away and train again"
        )
    except (FileNotFoundError, NotADirectoryError):
        # The likely mistakes: the two folders of `evaluate` exchanged, or a folder inside of the run.
        if (Path(folder) / MANIFEST).exists():
            raise UsageError(
                f"{folder}: is a data set, not a training run; the folder of the run comes first, as in "
                f"`halofeed evaluate RUN {folder}`"
            ) from None
        if (above := _run_above(Path(folder))) is not None:
            raise UsageError(f"{folder}: is a part of a run; name the run's folder, {above}") from None
        what = f"holds no run ({RUN_FILE} is missing)" if os.path.isdir(folder) else "no such folder"
        raise UsageError(f"{folder}: {what}; name a folder that `halofeed train --out` made") from None


def _run_above(path: Path) -> Path | None:
    return next((above for above in list(path.parents)[:2] if (above / RUN_FILE).is_file()), None)


def plan_file(folder: str | Path) -> Path:
    """Return the path of the plan for a data set's version.

    >>> plan_file("data/cards/1.0.0").name
    '1.0.0-plan.json'
    """
    absolute = Path(os.path.abspath(folder))
    return absolute.with_name(f"{absolute.name}-plan.json")


def read_plan(folder: str | Path) -> dict[str, Any] | None:
    """Read the plan for a data set's version; return None if there is none.

    Raises:
        CorruptFileError: it cannot be read, or another version of halofeed wrote it.
    """
    try:
        return _read_document(plan_file(folder), "plan", PLAN_FORMAT, "plan again, or delete it")
    except FileNotFoundError:
        return None


def _read_document(file: Path, kind: str, expected_format: int, fix: str) -> dict[str, Any]:
    try:
        document = parse_json(read_regular(file, RUN_BYTES), RUN_VALUES)
    except (FileNotFoundError, NotADirectoryError):
        raise  # the callers say what a missing file means
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}; {fix}") from error
    try:
        document = check_json_checksum(document)
    except ValueError as error:
        raise CorruptFileError(
            f'{file}: {error}; undo the change, or remove its member "crc32c" to accept it'
        ) from error
    if not isinstance(document, dict) or document.get("format") != expected_format:
        raise CorruptFileError(
            f"{file}: expected a {kind} of format {expected_format}; another version of halofeed wrote it; {fix}"
        )
    return document
