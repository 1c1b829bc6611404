"""Which files a converted data set consists of, and what they are called."""

from __future__ import annotations

import re

from halofeed.schemas.errors import UsageError

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
