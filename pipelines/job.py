"""What one conversion is: its sources, its output and its recipe, as one frozen value that workers receive."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halofeed import __version__
from halofeed.errors import JobError, UsageError
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.options.option import flag, option
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.file_names import common_folder
from halofeed.prep.sources.reference import Box, Keypoint, SourceExample
from halofeed.schemas.files import check_name, check_version, shard_file
from halofeed.system.addresses import NO_USER, Address, address_of

_LEAST = {"workers": 1, "threads": 1, "max_rejected": 0, "max_silence_minutes": 1, "job_restarts": 0}


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Where a conversion reads and writes, and how it runs; none of it changes a record's bytes."""

    source: str = option("", "folder or annotation file to convert; gs:// and s3:// work too")
    images: str | None = option(None, "folder that image paths are relative to; default: the source's folder")
    out: str = option("", "folder for data sets; this one goes to OUT/NAME/VERSION")
    name: str = option("", "the data set's name, e.g. cards")
    version: str = option("1.0.0", "the data set's version")
    label_map: str | None = option(
        None, "file of class names (.txt, .json, .pbtxt, .csv); default: from the data"
    )
    split_lists: tuple[str, ...] = option((), "split by lists of files, e.g. train=train.txt,test=test.txt")
    nnunet_splits: str | None = option(
        None, "nnU-Net's splits_final.json: the cases of train and val; --nnunet-fold says which fold"
    )
    nnunet_fold: int | None = option(None, "which fold of --nnunet-splits, from 0")
    max_rejected: int | None = option(
        None, "fail the job when more inputs than this are rejected; default: no limit"
    )
    normalize_like: str | None = option(
        None,
        "volumes, as nnU-Net does with CT: the folder of an earlier conversion, whose labeled voxels of split train "
        "give --window-hu (their percentiles 0.5 and 99.5) and --normalize (their mean and deviation) of this one",
    )
    disk_check: str = option(
        "refuse",
        "records that the local disk has no room for, worked out before the first is written: refuse, or ignore",
        choices=("refuse", "ignore"),
    )
    listing: str = option(
        "auto",
        "on another runner: where class folders of pictures are listed: by the command, in the job by its workers, or "
        "auto: in the job where there are more than 100,000 files",
        choices=("auto", "command", "job"),
    )
    warn_cut: float = option(
        0.01,
        "volumes: warn where the static shape cuts off more than this share of a class, or of the body of a scan "
        "without labels",
    )
    salt: str = option(
        "",
        "DICOM: mixed into the hashes that stand for patients when splits are made; written nowhere",
        is_secret=True,
    )
    overwrite: bool = option(False, "replace a version that is there already")
    workers: int | None = option(
        None,
        "worker processes of a local run; default: one per core, at most --shards, and as many as have memory for "
        "--max-memory each",
    )
    threads: int | None = option(
        None, "decoding threads per worker; default: all cores shared by the workers"
    )
    max_silence_minutes: float | None = option(
        None,
        "another runner's job: end it when none of its workers is heard of for so long, also at the beginning; they "
        "give a sign every half minute, but none while a runner shuffles; default: 60 once one was heard of, and no "
        "limit before that, as a job may wait for its turn",
    )
    job_restarts: int = option(
        0,
        "another runner's job: start it again, at most so often, where it fails for no fault that a worker names, or "
        "falls silent; it goes on from what is finished. For runners without retries (Prism), or beyond those",
    )

    def __post_init__(self) -> None:
        problems = [f"--{name}: say which" for name in ("source", "out", "name") if not getattr(self, name)]
        problems += [
            f"{name} {address}: {NO_USER}" for name, address in self._addresses() if address.has_user
        ]
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                problems.append(f"{flag(name)} {value}: expected {least} or more")
        if self.disk_check not in ("refuse", "ignore"):
            problems.append(f"--disk-check {self.disk_check!r}: expected refuse or ignore")
        if self.listing not in ("auto", "command", "job"):
            problems.append(f"--listing {self.listing!r}: expected auto, command or job")
        if not 0 <= self.warn_cut <= 1:
            problems.append(f"--warn-cut {self.warn_cut}: expected a share, 0 to 1")
        for check, value in ((check_name, self.name), (check_version, self.version)):
            try:
                if value:
                    check(value)
            except UsageError as error:
                problems.append(str(error))
        if problems:
            raise UsageError("\n".join(problems))

    def _addresses(self) -> Iterator[tuple[str, Address]]:
        """The flags of options that are addresses, and those."""
        given = [(name, value) for name, value in vars(self).items() if isinstance(value, str)]
        given += [("split_lists", part.partition("=")[2]) for part in self.split_lists]
        for name, value in given:
            if name != "salt" and (address := address_of(value)) is not None:
                yield flag(name), address

    @property
    def folder(self) -> str:
        """The folder of this version."""
        return "/".join([self.out.rstrip("/") or "/", self.name, self.version])


def check_software(submitted: str) -> None:
    """Go on only where the command that submitted a job has the version of halofeed that this worker has.

    Raises:
        JobError: it says both.
    """
    if submitted != __version__:
        raise JobError(
            f"a worker has halofeed {__version__}, and the command that submitted the job {submitted}: install the "
            "same where both run (`halofeed package` writes a wheel), then run the same command again"
        )


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """What a worker needs to know to write any shard of a job; travels as JSON.

    `folder` is where the shards are written, `replaces` the committed version whose place they will take, `room_bytes`
    the memory that the machine has for the inputs of one worker (None: nobody knows), `progress_folder` is where
    the workers of a local run count, `series_folder` where the slices of DICOM series are listed, `references_folder`
    where the references lie by shard (None: they come by the runner's shuffle), `wanted` the path of the file that
    is there as long as the job is to go on (None: a local run, which ends with its command), `holder` who must hold
    `folder` where that is in an object store, and `store_settings` how S3 is reached, beyond its usual chain.
    """

    recipe: Recipe
    task: str
    labels: LabelMap
    name: str
    version: str
    images: str
    folder: str
    replaces: str | None
    splits: tuple[str, ...]
    inputs: Mapping[str, Any]
    max_rejected: int | None
    threads: int
    room_bytes: int | None
    progress_folder: str | None
    series_folder: str | None = None
    references_folder: str | None = None
    wanted: str | None = None
    holder: str | None = None
    store_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """As text."""
        texts = {"recipe": self.recipe.to_json(), "labels": self.labels.to_json(), "software": __version__}
        return json.dumps({**vars(self), **texts})

    @classmethod
    def from_json(cls, text: str) -> ShardJob:
        """From text.

        Raises:
            JobError: another version of halofeed wrote it.
        """
        document = json.loads(text)
        check_software(document.pop("software", "of no known version"))
        document["recipe"] = Recipe.from_json(document["recipe"])
        document["labels"] = LabelMap.from_json(document["labels"])
        document["splits"] = tuple(document["splits"])
        return cls(**document)

    def shard_file(self, key: ShardKey) -> str:
        """The file name of a shard."""
        return shard_file(self.name, key.split, key.shard, self.recipe.shards)

    def shard_keys(self) -> list[ShardKey]:
        """Every shard of the data set, in order."""
        return [ShardKey(split, shard) for split in self.splits for shard in range(self.recipe.shards)]

    def number_of(self, key: ShardKey) -> int:
        """The place of a shard among `shard_keys`."""
        return self.splits.index(key.split) * self.recipe.shards + key.shard

    def fingerprint(self, key: ShardKey, references: list[str], contents: Mapping[str, str]) -> str:
        """What a shard is made from: software, recipe, labels, annotations, and each source's content."""
        made_from = {
            "software": __version__,
            "recipe": self.recipe.to_json(),
            "task": self.task,
            "labels": self.labels.to_json(),
            "name": self.name,
            "split": key.split,
            "shard": key.shard,
            "references": references,
            "contents": dict(sorted(contents.items())),
        }
        digest = hashlib.sha256()
        for piece in json.JSONEncoder(sort_keys=True).iterencode(
            made_from
        ):  # the text of all is nowhere whole
            digest.update(piece.encode())
        return digest.hexdigest()


@dataclass(frozen=True, order=True)
class ShardKey:
    """A shard's place: its split and number."""

    split: str
    shard: int

    def to_text(self) -> str:
        """As the key that crosses the shuffle."""
        return f"{self.split}/{self.shard}"

    @classmethod
    def from_text(cls, text: str) -> ShardKey:
        """From the key that crossed the shuffle."""
        split, _, shard = text.rpartition("/")
        return cls(split, int(shard))


def reference_to_json(reference: SourceExample) -> str:
    """A reference as text; equal references give equal text. What a reference does not have is left out.

    The members of a series all lie in one folder, which is written once, before their names.
    """
    document = {
        key: value
        for key, value in vars(reference).items()
        if value is not None and value is not False and value is not _NOTHING
    }
    if reference.boxes is not None:
        document["boxes"] = [_box_to_json(box) for box in reference.boxes]
    if reference.labels is not None:
        document["labels"] = list(reference.labels)
    if reference.stored is not None:
        document["stored"] = reference.stored[:2]
    if reference.members:
        folder = common_folder(reference.members)
        folder = "" if folder == "." else f"{folder}/"
        document["members"] = [folder, *(path[len(folder) :] for path in reference.members)]
    if reference.mask_members:
        document["mask_members"] = [
            [path, *(_below(path, file) for file in files)] for path, files in reference.mask_members
        ]
    return _TO_JSON(document)


_NOTHING = ()
_WHOLE = "\0"
"""Begins the whole path of a file that does not lie below the path that stands for it, such as FOLDER#MARK."""


def _below(folder: str, file: str) -> str:
    return file[len(folder) + 1 :] if file.startswith(f"{folder}/") else _WHOLE + file


_TO_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _box_to_json(box: Box) -> dict[str, Any]:
    document = {name: value for name, value in vars(box).items() if value is not None and value is not False}
    points = document.pop("keypoints")
    if points:
        document["keypoints"] = [[point.name, point.y, point.x, point.visibility] for point in points]
    return document


def _box_from_json(document: dict[str, Any]) -> Box:
    points = (
        Keypoint(name=name, y=y, x=x, visibility=visibility)
        for name, y, x, visibility in document.pop("keypoints", ())
    )
    return Box(**document, keypoints=tuple(points))


def reference_from_json(text: str) -> SourceExample:
    """The reference of a text."""
    document = json.loads(text)
    boxes = document.pop("boxes", None)
    document = {name: _as_tuples(value) for name, value in document.items()}
    if "stored" in document:
        document["stored"] += ("",)
    if boxes is not None:
        document["boxes"] = tuple(map(_box_from_json, boxes))
    if "members" in document:
        folder, *names = document["members"]
        document["members"] = tuple(folder + name for name in names)
    if "mask_members" in document:
        document["mask_members"] = tuple(
            (path, tuple(name[1:] if name.startswith(_WHOLE) else f"{path}/{name}" for name in names))
            for path, *names in document["mask_members"]
        )
    return SourceExample(**document)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
