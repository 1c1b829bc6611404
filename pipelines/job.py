"""Options of a conversion, and the job that workers receive: sources, output and recipe as one frozen value in JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from halofeed import __version__
from halofeed.pipelines.reject_limit import RejectLimit
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.options.option import OUTPUT, RUNNING, SHAPE, SOURCE, flag, option, refusal
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, Keypoint, SourceExample
from halofeed.prep.sources.file_names import common_folder
from halofeed.schemas.file_layout import check_name, check_version, shard_file
from halofeed.schemas.lineage import OlderRecipe
from halofeed.system.addresses import NO_USER, Address, address_of
from halofeed.system.errors import JobError, UsageError

ON_LOSS = ("refuse", "warn", "ignore")
_LEAST = {"workers": 1, "threads": 1, "max_silence_minutes": 1, "job_restarts": 0}
_EXAMPLES = {"source": "photos", "out": "data", "name": "photos"}
"""Required options, with a value that messages show."""
_CHOICES = {
    "disk_check": (("refuse", "ignore"), "refuse or ignore"),
    "on_loss": (ON_LOSS, ", ".join(ON_LOSS)),
    "listing": (("auto", "command", "job"), "auto, command or job"),
}
_NOT_IN_SHARDS = ("license", "citation", "limit")
"""Options of the recipe that change no record."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options for the input, the output and the execution of a conversion; none changes a record's bytes."""

    OPTION_GROUP: ClassVar[str] = RUNNING

    source: str = option(
        "",
        "folder or annotation file to convert; gs:// and s3:// work too",
        brief="folder or annotation file; gs:// and s3:// work too",
        once=True,
        group=SOURCE,
    )
    images: str | None = option(
        None,
        "folder that image paths are relative to; default: the source's folder",
        once=True,
        group=SOURCE,
    )
    out: str = option(
        "",
        "folder for data sets; this one goes to OUT/NAME/VERSION",
        brief="the result goes to OUT/NAME/VERSION",
        group=OUTPUT,
    )
    name: str = option("", "the data set's name, e.g. cards", brief=True, group=OUTPUT)
    version: str = option("1.0.0", "the data set's version", group=OUTPUT)
    from_: str = option(
        "",
        "folder or address of an earlier version, such as data/cards/1.0.0: take its recipe, keep its shards without a "
        "changed or removed example, and put new examples into further shards; its classes keep their numbers. "
        "--source names all sources, old and new; --out and --name are those of the earlier version",
        group=OUTPUT,
        metavar="FOLDER",
    )
    keep_splits: bool = option(
        False,
        "with --from: examples of the earlier version keep their split, and new ones of their groups get it; other "
        "options of splits are then for the rest",
        group=OUTPUT,
    )
    label_map: str | None = option(
        None,
        "file of class names (.txt, .json, .pbtxt, .csv); default: from the data",
        group=SOURCE,
    )
    split_lists: tuple[str, ...] = option(
        (), "split by lists of files, e.g. train=train.txt,test=test.txt", group=SOURCE
    )
    nnunet_splits: str | None = option(
        None,
        "nnU-Net's splits_final.json: the cases of train and val; --nnunet-fold says which fold",
        group=SOURCE,
    )
    nnunet_fold: int | None = option(None, "fold of --nnunet-splits, from 0", group=SOURCE)
    max_rejected: str | None = option(
        None,
        "fail the job when more inputs than this are rejected: a number, such as 100, or a share of all inputs, such "
        "as 0.05 or 5%; default: no limit, and a warning above 5%",
        brief="fail when more inputs than N or N% are rejected",
        metavar="N",
    )
    normalize_like: str | None = option(
        None,
        "volumes, as nnU-Net does for CT: folder of an earlier conversion; the labeled voxels of its split train give "
        "--window-hu (their percentiles 0.5 and 99.5) and --normalize (their mean and deviation)",
        group=SHAPE,
    )
    disk_check: str = option(
        "refuse",
        "records too large for the local disk, calculated before the first is written: refuse, or ignore",
        choices=("refuse", "ignore"),
    )
    listing: str = option(
        "auto",
        "on another runner: where class folders of pictures are listed: by the command, in the job by its workers, or "
        "auto: in the job where there are more than 100,000 files",
        choices=("auto", "command", "job"),
    )
    on_loss: str = option(
        "refuse",
        "records that lost their information, such as those of one value, or whose objects are all below 2 pixels: "
        "refuse the conversion where most records are hit, and warn of other losses; or warn or ignore only",
        choices=ON_LOSS,
    )
    warn_cut: float = option(
        0.01,
        "volumes: warn where the static shape cuts off more than this share of a class, or of the body of a scan "
        "without labels",
    )
    salt: str = option(
        "",
        "DICOM: secret mixed into the hashes of patients when splits are made; never written",
        is_secret=True,
        group=SOURCE,
    )
    overwrite: bool = option(
        False,
        "replace a version that is there already",
        brief=True,
        group=OUTPUT,
    )
    dry_run: bool = option(
        False,
        "write nothing: print inputs, classes, sizes and the first rejects, convert a sample of 10 in a temporary "
        "folder, and for volumes propose shape, spacing and window",
        brief="write nothing: print inputs, classes and rejects",
    )
    preview: str | None = option(None, "with --dry-run: PNG file to write, with the pictures of the sample")
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
        "another runner's job: cancel it when no worker has sent a heartbeat for this long, also at the beginning; "
        "workers send one every 30 s, but not while a runner shuffles; default: 60 after the first heartbeat, and no "
        "limit before it, because a job may be queued",
    )
    job_restarts: int = option(
        0,
        "another runner's job: restart it at most this often when it fails without an error from a worker, or falls "
        "silent; it resumes from the finished shards. For runners without retries (Prism), or beyond those",
    )

    def __post_init__(self) -> None:
        problems = [
            f"--{name}: give a value, such as {example}"
            for name, example in _EXAMPLES.items()
            if not getattr(self, name)
        ]
        problems += self._path_problems()
        problems += self._value_problems()
        problems += self._name_problems()
        if problems:
            raise UsageError("\n".join(problems))

    def _path_problems(self) -> Iterator[str]:
        """Yield a message for each address with a password, and each path that only a shell would expand."""
        for name, address in self._addresses():
            if address.has_user:
                yield f"{name} {address}: {NO_USER}"
        for name, value in self._paths():
            meant = os.path.expandvars(os.path.expanduser(value))
            # --out=~/data and a quoted "$HOME/data" reach the program unexpanded, and would become a folder called "~".
            if value.startswith(("~", "$")) and meant != value:
                yield (
                    f"{name} {value}: only a shell expands {value[0]}, outside of quotes; write {meant}, or "
                    f"./{value} for a path of this name"
                )

    def _value_problems(self) -> Iterator[str]:
        """Yield a message for each value outside of its range."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:  # also refuses NaN
                yield f"{flag(name)} {value}: expected {least} or more"
        for name, (values, listed) in _CHOICES.items():
            if getattr(self, name) not in values:
                yield f"{flag(name)} {getattr(self, name)!r}: expected {listed}"
        if (limit := self.max_rejected) is not None:
            yield from refusal(lambda: RejectLimit.of(limit))
        if not 0 <= self.warn_cut <= 1:
            yield f"--warn-cut {self.warn_cut}: expected a share, 0 to 1"
        if self.preview is not None and not (self.dry_run and self.preview.lower().endswith(".png")):
            yield f"--preview {self.preview}: expected a .png file, with --dry-run"

    def _name_problems(self) -> Iterator[str]:
        """Yield what is wrong with the name and the version, which become names of folders and files."""
        for check, value in ((check_name, self.name), (check_version, self.version)):
            try:
                if value:
                    check(value)
            except UsageError as error:
                yield str(error)

    def _paths(self) -> Iterator[tuple[str, str]]:
        """Yield the flag and the value of each option that is a path or an address."""
        for name in (
            "source",
            "images",
            "out",
            "label_map",
            "nnunet_splits",
            "normalize_like",
            "preview",
            "from_",
        ):
            if value := getattr(self, name):
                yield flag(name), value
        for part in self.split_lists:
            yield flag("split_lists"), part.partition("=")[2]

    def _addresses(self) -> Iterator[tuple[str, Address]]:
        """Yield the flag and the address of each option that is an address."""
        for name, value in self._paths():
            if (address := address_of(value)) is not None:
                yield name, address

    @property
    def reject_limit(self) -> RejectLimit | None:
        """Return the limit of rejected inputs; None where none was given."""
        return None if self.max_rejected is None else RejectLimit.of(self.max_rejected)

    @property
    def folder(self) -> str:
        """Return the folder of this version."""
        return "/".join([self.out.rstrip("/") or "/", self.name, self.version])


def check_software(submitted: str) -> None:
    """Check that a worker has the same version of halofeed as the command.

    Raises:
        JobError: the versions differ.
    """
    if submitted != __version__:
        raise JobError(
            f"a worker has halofeed {__version__}, and the command that submitted the job {submitted}: install the "
            "same where both run (`halofeed package` writes a wheel), then run the same command again"
        )


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """A job as each worker receives it, in JSON, to write any of its shards.

    Args:
        folder: folder of the version to write.
        replaces: folder of the committed version that this one will replace.
        memory_bytes: memory for the inputs of one worker; None if unknown.
        progress_folder: folder for the counts of a local run's workers.
        series_folder: folder of the lists of DICOM slices.
        references_folder: folder of the references by shard; None if the runner shuffles them.
        heartbeat_path: path of the file that exists while the command wants the job; None for a local run.
        holder: token that must hold the lease of `folder` in an object store.
        store_settings: arguments of the S3 client.
        on_loss: "refuse" ends the job where most records lost their information.
        shard_counts: number of shards by split where it is not the recipe's.
        earlier: the version whose shards are kept where they are the same.
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
    max_rejected: str | None
    threads: int
    memory_bytes: int | None
    progress_folder: str | None
    series_folder: str | None = None
    references_folder: str | None = None
    heartbeat_path: str | None = None
    holder: str | None = None
    store_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    on_loss: str = "warn"
    shard_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    earlier: EarlierShards | None = None

    def to_json(self) -> str:
        """Return the job as JSON."""
        texts = {"recipe": self.recipe.to_json(), "labels": self.labels.to_json(), "software": __version__}
        earlier = None if self.earlier is None else self.earlier.to_json()
        return json.dumps({**vars(self), **texts, "earlier": earlier})

    @classmethod
    def from_json(cls, text: str) -> ShardJob:
        """Parse a job.

        Raises:
            JobError: another version of halofeed wrote the text.
        """
        document = json.loads(text)
        check_software(document.pop("software", "of no known version"))
        document["recipe"] = Recipe.from_json(document["recipe"])
        document["labels"] = LabelMap.from_json(document["labels"])
        document["splits"] = tuple(document["splits"])
        if document["earlier"] is not None:
            document["earlier"] = EarlierShards.from_json(document["earlier"])
        return cls(**document)

    @property
    def reject_limit(self) -> RejectLimit | None:
        """Return the limit of rejected inputs; None where none was given."""
        return None if self.max_rejected is None else RejectLimit.of(self.max_rejected)

    def shard_file(self, key: ShardKey) -> str:
        """Return the file name of a shard."""
        return shard_file(self.name, key.split, key.shard, self.shard_count(key.split))

    def shard_count(self, split: str) -> int:
        """Return the number of shards of a split."""
        return self.shard_counts.get(split, self.recipe.shards)

    def shard_keys(self) -> list[ShardKey]:
        """Return the key of every shard of the data set, in order."""
        return [ShardKey(split, shard) for split in self.splits for shard in range(self.shard_count(split))]

    def number_of(self, key: ShardKey) -> int:
        """Return a shard's index in `shard_keys`."""
        before = self.splits[: self.splits.index(key.split)]
        return sum(map(self.shard_count, before)) + key.shard

    def earlier_file(self, key: ShardKey) -> str | None:
        """Return the name of a shard in the earlier version; None where it has no such shard."""
        count = 0 if self.earlier is None else self.earlier.shard_counts.get(key.split, 0)
        return shard_file(self.name, key.split, key.shard, count) if key.shard < count else None

    def fingerprints(
        self,
        key: ShardKey,
        references: list[str],
        contents: Mapping[str, str],
        *,
        may_lack_classes: bool = True,
    ) -> Iterator[str]:
        """Yield the digest of a shard, then those of the same records made with the recipes of earlier versions.

        Args:
            may_lack_classes: whether fewer classes leave the shard as it is; False where they rejected an input.
        """
        yield self.fingerprint(key, references, contents)
        for older in () if self.earlier is None else self.earlier.recipes:
            labels = without_classes(self.labels, older.without_classes)
            sets = self.recipe.holds_class_sets()
            if older.without_classes and not (
                may_lack_classes and are_stored_alike(self.labels, labels, sets=sets)
            ):
                continue
            yield self.fingerprint(key, references, contents, older=older, labels=labels)

    def fingerprint(
        self,
        key: ShardKey,
        references: list[str],
        contents: Mapping[str, str],
        *,
        older: OlderRecipe | None = None,
        labels: LabelMap | None = None,
    ) -> str:
        """Return the digest of what a shard is made from: software, recipe, labels, annotations and source contents.

        Args:
            older: what an earlier version was made with; None: this one.
            labels: its classes.
        """
        options = older.options if older else {}
        tuples: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in options.items()
        }
        recipe = dataclasses.replace(self.recipe, **tuples).to_json()
        made_from = {
            "software": __version__,
            "recipe": {key: one for key, one in recipe.items() if key not in _NOT_IN_SHARDS},
            "task": self.task,
            "labels": (labels or self.labels).to_json(),
            "name": self.name,
            "split": key.split,
            "shard": key.shard,
            "references": references,
            "contents": dict(sorted(contents.items())),
        }
        digest = hashlib.sha256()
        # In chunks, because the complete text may be large.
        for chunk in json.JSONEncoder(sort_keys=True).iterencode(made_from):
            digest.update(chunk.encode())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class EarlierShards:
    """Shards of an earlier version that a job keeps where they are the same.

    Args:
        folder: folder of the version.
        shard_counts: number of its shards by split.
        recipes: what they were made with, where that differs from the job.
    """

    folder: str
    shard_counts: Mapping[str, int]
    recipes: tuple[OlderRecipe, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "recipes": [one.to_json() for one in self.recipes]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EarlierShards:
        """Read the JSON form."""
        recipes = (
            OlderRecipe(options=one["options"], without_classes=tuple(one["without_classes"]))
            for one in document["recipes"]
        )
        return cls(folder=document["folder"], shard_counts=document["shard_counts"], recipes=tuple(recipes))


def without_classes(labels: LabelMap, ids: Sequence[int]) -> LabelMap:
    """Return a label map without some classes."""
    if not ids:
        return labels
    return dataclasses.replace(
        labels,
        entries=tuple(one for one in labels.entries if one[0] not in ids),
        aliases=tuple(one for one in labels.aliases if one[1] not in ids),
        values=None if labels.values is None else tuple(one for one in labels.values if one[1] not in ids),
    )


def are_stored_alike(labels: LabelMap, fewer: LabelMap, *, sets: bool) -> bool:
    """Return whether an input that was converted with fewer classes has the same record with all of them.

    Args:
        sets: whether records hold sets of classes.

    >>> some = LabelMap(entries=((1, "tumor"),), first_id=0, values=((1, 1), (2, 1)))
    >>> more = LabelMap(entries=((1, "tumor"), (2, "core")), first_id=0, values=((1, 1), (2, 1), (2, 2)))
    >>> are_stored_alike(more, some, sets=True)
    False
    """
    known = {value for value, _ in fewer.values or ()}
    added = {value for value, _ in {*(labels.values or ())} - {*(fewer.values or ())}}
    # A value of an added class was refused, but where it was left out or was in other regions alone.
    if labels.drops_others or added & known:
        return False
    # More classes may need larger numbers in label images.
    return fewer.stored_dtype(sets=sets) == labels.stored_dtype(sets=sets)


@dataclass(frozen=True, order=True)
class ShardKey:
    """Split and number of a shard."""

    split: str
    shard: int

    def to_text(self) -> str:
        """Return the key as text for the shuffle."""
        return f"{self.split}/{self.shard}"

    @classmethod
    def from_text(cls, text: str) -> ShardKey:
        """Parse the text of a key."""
        split, _, shard = text.rpartition("/")
        return cls(split, int(shard))


def reference_to_json(reference: SourceExample) -> str:
    """Return a reference as JSON without its empty fields; equal references give equal text.

    The members of a series are in one folder. The text has the folder once, before their names.
    """
    document = _without_empty(vars(reference))
    # Attributes are for the choice of splits and groups, which is finished. They may name a patient.
    document.pop("attributes", None)
    # Empty lists stay: they mean that a picture has no object or no class; without a list this is unknown.
    if reference.boxes is not None:
        document["boxes"] = [_box_to_json(box) for box in reference.boxes]
    if reference.labels is not None:
        document["labels"] = list(reference.labels)
    if reference.class_runs is not None:
        document["class_runs"] = list(reference.class_runs)
    if reference.stored is not None:
        # Without the digest of the stamps: a copy of the files, with other times, has equal references.
        document["stored"] = reference.stored[:2]
    if reference.members:
        document["members"] = _members_to_json(reference.members)
    if reference.mask_members:
        document["mask_members"] = [
            [path, *(_below(path, file) for file in files)] for path, files in reference.mask_members
        ]
    return _TO_JSON(document)


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the usual defaults None, False and ()."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and value is not False and value != ()
    }


def _members_to_json(members: Sequence[str]) -> list[str]:
    folder = common_folder(members)
    folder = "" if folder == "." else f"{folder}/"
    return [folder, *(path[len(folder) :] for path in members)]


_FULL_PATH = "\0"
"""Prefix of a full path: of a file outside the folder that its list names, such as FOLDER#MARK."""


def _below(folder: str, file: str) -> str:
    return file[len(folder) + 1 :] if file.startswith(f"{folder}/") else _FULL_PATH + file


_TO_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _box_to_json(box: Box) -> dict[str, Any]:
    document = _without_empty(vars(box))
    if box.keypoints:
        document["keypoints"] = [[point.name, point.y, point.x, point.visibility] for point in box.keypoints]
    return document


def _box_from_json(document: dict[str, Any]) -> Box:
    points = (
        Keypoint(name=name, y=y, x=x, visibility=visibility)
        for name, y, x, visibility in document.pop("keypoints", ())
    )
    corners = document.pop("corners", ())
    return Box(**document, corners=tuple(corners), keypoints=tuple(points))


def reference_from_json(text: str) -> SourceExample:
    """Parse a reference."""
    document = json.loads(text)
    boxes, runs = document.pop("boxes", None), document.pop("class_runs", None)
    document = {name: _as_tuples(value) for name, value in document.items()}
    if "stored" in document:
        document["stored"] += ("",)  # in place of the digest of stamps, which only planning needs
    if boxes is not None:
        document["boxes"] = tuple(map(_box_from_json, boxes))
    if runs is not None:
        document["class_runs"] = tuple((name, code) for name, code in runs)
    if "members" in document:
        folder, *names = document["members"]
        document["members"] = tuple(folder + name for name in names)
    if "mask_members" in document:
        document["mask_members"] = tuple(
            (path, tuple(name[1:] if name.startswith(_FULL_PATH) else f"{path}/{name}" for name in names))
            for path, *names in document["mask_members"]
        )
    return SourceExample(**document)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
