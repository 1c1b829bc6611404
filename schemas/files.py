"""Names of the files of a data set, a training run and a plan, and readers of the last two."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from halofeed.errors import CorruptFileError, UsageError
from halofeed.schemas.bounded_json import check_json_checksum, parse_json
from halofeed.schemas.limits import RUN_BYTES, RUN_VALUES
from halofeed.system.atomic_files import read_regular

MANIFEST = "manifest.json"
REJECTED = "rejected.jsonl"
SELECTION = "selection"
"""The stage, in rejected.jsonl, of inputs that were left out on purpose; they are no failure."""
OBJECT = "object"
ZERO_AREA = "box has zero area"
"""The reason of an object that was dropped by --boxes-zero-area."""
"""The stage of single objects that were dropped from inputs that were written."""
TEMPORARY_FOLDER = ".incomplete"
"""Where unfinished files lie, below the version's folder, until they are renamed or swept away."""

DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"
UNCOMMITTED_MANIFEST = ".manifest.json.incomplete"
"""The manifest until all that it names is on the disk; it lies beside its place, so that one rename commits."""
_BESIDE_SHARDS = (MANIFEST, REJECTED, DATASET_INFO, FEATURES, TEMPORARY_FOLDER, UNCOMMITTED_MANIFEST)

_SHARD = r"-.*\.tfrecord-\d{5}-of-\d{5}(\.index)?"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


def check_name(name: str) -> str:
    """The data set's name if TFDS accepts it too: lower case letters, digits and underscores.

    >>> check_name("cards")
    'cards'
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r}: expected lower case letters, digits and '_', starting with a letter"
        )
    return name


def check_version(version: str) -> str:
    """The version if it is three numbers, as in 1.0.0."""
    if not _VERSION.fullmatch(version):
        raise UsageError(f"--version {version!r}: expected three numbers such as 1.0.0")
    return version


def check_split(split: str) -> str:
    """A split's name if it can stand in a file name; else UsageError."""
    if not _SPLIT.fullmatch(split) or split == "all":
        raise UsageError(
            f"split {split!r}: expected letters, digits, '_' and '.', starting with a letter, "
            "since it becomes part of file names, and not 'all', which TFDS keeps for itself; rename it in the source"
        )
    return split


def shard_file(name: str, split: str, shard: int, shard_count: int) -> str:
    """The file name of one shard.

    >>> shard_file("cards", "train", 3, 16)
    'cards-train.tfrecord-00003-of-00016'
    """
    return f"{name}-{split}.tfrecord-{shard:05d}-of-{shard_count:05d}"


def index_file(shard: str) -> str:
    """The sidecar index beside a shard's file."""
    return shard + ".index"


def is_own_file(file: str, name: str) -> bool:
    """Whether a conversion of the data set of that name wrote a file that is called so, whatever its options were.

    >>> is_own_file("cards-train.tfrecord-00003-of-00016.index", "cards"), is_own_file("notes.txt", "cards")
    (True, False)
    """
    return file in _BESIDE_SHARDS or bool(re.fullmatch(re.escape(name) + _SHARD, file))


RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
EXAMPLES = "examples"
RUN_FORMAT = 1


def read_run(folder: str | Path) -> dict[str, Any]:
    """The document of a run folder's run.json.

    Raises:
        UsageError: there is none.
        CorruptFileError: it cannot be read, or another version of halofeed made it.
    """
    file = Path(folder) / RUN_FILE
    try:
        document = parse_json(read_regular(file, RUN_BYTES), RUN_VALUES)
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: holds no run ({RUN_FILE} is missing); name a folder that `halofeed train --out` made"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptFileError(
            f"{file}: cannot be read: {error}; move {folder} away and train again"
        ) from error
    try:
        document = check_json_checksum(document)
    except ValueError as error:
        raise CorruptFileError(
            f'{file}: {error}; put back what was changed, or remove its member "crc32c" to take it as it is'
        ) from error
    if not isinstance(document, dict) or document.get("format") != RUN_FORMAT:
        raise CorruptFileError(
            f"{file}: expected a run of format {RUN_FORMAT}; it was made by another version of halofeed"
        )
    return document


PLAN_FORMAT = 1


def plan_file(folder: str | Path) -> Path:
    """Where the plan of a data set's version lies.

    >>> plan_file("data/cards/1.0.0").name
    '1.0.0-plan.json'
    """
    absolute = Path(os.path.abspath(folder))
    return absolute.with_name(f"{absolute.name}-plan.json")


def read_plan(folder: str | Path) -> dict[str, Any] | None:
    """The plan that was made for a data set's version; None where there is none.

    Raises:
        CorruptFileError: it cannot be read, or another version of halofeed made it.
    """
    file = plan_file(folder)
    try:
        document = check_json_checksum(parse_json(read_regular(file, RUN_BYTES), RUN_VALUES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}; plan again, or delete it") from error
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        raise CorruptFileError(
            f"{file}: expected a plan of format {PLAN_FORMAT}; another version of halofeed made it; plan again, or "
            "delete it"
        )
    return document
