"""Commit of a data set: workers summarize groups of shards, and the last step merges them into the manifest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed import __version__
from halofeed.pipelines.heartbeat import check_alive
from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.reject_limit import RejectLimit, failures_in, inputs_in, inputs_of, stage_of
from halofeed.pipelines.replace import delete_unnamed
from halofeed.pipelines.run_counts import ShardOutcome, WorkDone
from halofeed.prep.annotations.labels import VOC_VOID, void_problem
from halofeed.prep.annotations.written_boxes import is_mostly_bad
from halofeed.prep.convert.loss_findings import refusing_finding
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.schemas import keys
from halofeed.schemas.file_layout import (
    IN_NO_RECORD,
    MANIFEST,
    OBJECT,
    REJECTED,
    TEMPORARY_FOLDER,
    ZERO_AREA,
    index_file,
)
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest, Shard, Split, format_version_of
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.schemas.tfds import metadata_files
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import HEADER_BYTES
from halofeed.system.checksum import crc32c
from halofeed.system.errors import JobError
from halofeed.system.wording import plural

SHARDS_PER_SUM = 256
WORK_DONE: Final = f"{TEMPORARY_FOLDER}/work-done.json"
"""File in which the commit of a job on another runner leaves a `WorkDone` for its command."""
_LINES_AT_ONCE = 1_000
_SHOWN_IDS = 10
_COPIED_AT_ONCE = 4 << 20


def check_committed_budget(manifest: Manifest, limit: RejectLimit | None, folder: str) -> None:
    """Refuse a committed version with more rejected inputs than a later command allows.

    Raises:
        JobError: more inputs were rejected; the message has the most common reasons.
    """
    excess = _excess(limit, Counter(manifest.rejected), inputs_of(manifest), folder)
    if excess:
        raise JobError(
            f"{folder} is converted, but {excess}. Nothing was changed: fix the sources and add --overwrite, or raise "
            "the limit"
        )


def _excess(limit: RejectLimit | None, reasons: Counter[str], inputs: int, folder: str) -> str:
    """Return how many inputs too many were rejected, why, and where they are listed; "" within the limit."""
    failures = failures_in(reasons).total()
    if limit is None or failures <= limit.most(inputs):
        return ""
    return (
        f"{plural(failures, 'input was', 'inputs were')} rejected and --max-rejected allows "
        f"{limit.describe(inputs)} ({_most_common(reasons)}); see {OutputFolder(folder).path(REJECTED)}"
    )


def _most_common(reasons: Counter[str]) -> str:
    """Return the most common reasons of failures, or of all entries if none is a failure."""
    most = (failures_in(reasons) or reasons).most_common(3)
    return "; ".join(f"{count} x {reason}" for reason, count in most)


def sum_up(job: ShardJob, number: int, outcomes: Iterable[ShardOutcome] = ()) -> str:
    """Return the summary of a group of shards as JSON, and list the group's rejected inputs in a file.

    Args:
        number: number of the group; each has `SHARDS_PER_SUM` consecutive shards.
        outcomes: what workers did for the shards, which a job on another runner passes on to its command.
    """
    output = OutputFolder(job.folder, job.holder)
    shards: dict[str, list[dict[str, Any]]] = {}
    statistics: dict[str, Statistics] = {}
    reasons: Counter[str] = Counter()
    firsts: dict[str, Mapping[str, str]] = {}
    identities: list[NDArray[np.int64]] = []
    with output.temporary(_rejected_file(number)) as listing:
        for key in shards_of_group(job, number):
            shard, index = _read_shard(job, key, output)
            shards.setdefault(key.split, []).append(vars(shard))
            statistics[key.split] = statistics.get(key.split, Statistics()).merge(index.statistics)
            identities.append(index.ids)
            _list_rejected(index.rejected, listing.stream, reasons, firsts)
            del index  # frees its memory before the next one is read
        listing.keep()
    if _has_tiles(job):  # else planning has compared the ids of all references
        with output.temporary(_ids_file(number)) as ids:
            ids.stream.write(np.concatenate(identities).astype("<i8").tobytes())
            ids.keep()
    counted = {split: found.to_json() for split, found in statistics.items()}
    return json.dumps(
        {
            "number": number,
            "shards": shards,
            "statistics": counted,
            "reasons": reasons,
            "firsts": firsts,
            "done": WorkDone.of(outcomes).to_json(),
        }
    )


def shards_of_group(job: ShardJob, number: int) -> list[ShardKey]:
    """Return the keys of a group's shards."""
    return job.shard_keys()[number * SHARDS_PER_SUM : (number + 1) * SHARDS_PER_SUM]


def count_groups(job: ShardJob) -> int:
    """Return the number of groups of a job's shards."""
    return -(-len(job.shard_keys()) // SHARDS_PER_SUM)


def group_of(job: ShardJob, key: ShardKey) -> int:
    """Return the number of a shard's group."""
    return job.number_of(key) // SHARDS_PER_SUM


def _rejected_file(number: int) -> str:
    return f"{TEMPORARY_FOLDER}/rejected-{number:05d}.jsonl"


def _ids_file(number: int) -> str:
    return f"{TEMPORARY_FOLDER}/ids-{number:05d}"


def _has_tiles(job: ShardJob) -> bool:
    """Return whether a source can give several records, so that planning could not check their ids."""
    shape = job.recipe.static_shape() or (1, 1, 1)
    return any(keys.TILE in field.keys for field in job.recipe.rules.kind.origin(shape))


def commit(job: ShardJob, sums: Iterable[str]) -> Manifest:
    """Merge the summaries of all groups and write the manifest, which commits the data set.

    A runner may repeat this step. A local run has then deleted its temporary files, and the manifest exists. On another
    runner the command deletes them afterwards.

    Args:
        sums: results of `sum_up` for every group, in any order.

    Raises:
        JobError: too many inputs were rejected (see rejected.jsonl), no record is left, most records lost their
            information, or two records have one id.
    """
    output = OutputFolder(job.folder, job.holder)
    if job.heartbeat_path is None and output.exists(MANIFEST):  # the step is repeated
        return Manifest.from_json(output.read(MANIFEST), output.path(MANIFEST))
    groups = sorted(map(json.loads, sums), key=lambda one: one["number"])
    splits = merged(job, groups)
    reasons, firsts = _join_rejected(output, groups)
    records = sum(split.records for split in splits.values())
    _check_outcome(job, reasons, records, _example(reasons, firsts))
    _check_objects(job, splits, reasons, firsts)
    check_losses(job, Statistics.total(split.statistics for split in splits.values()))
    if _has_tiles(job):
        _check_ids(job, output, [group["number"] for group in groups])
    manifest = _manifest(job, splits, reasons)
    described = metadata_files(manifest)
    for name, data in described.items():
        output.write(name, data)
    names = _files_of(splits) | {REJECTED, *described}
    delete_unnamed(output, job.name, names)
    if job.heartbeat_path is not None:  # the command reads it before it deletes temporary files
        done = WorkDone.total(WorkDone.from_json(group["done"]) for group in groups)
        output.write(WORK_DONE, done.to_json().encode())
    # A stopped command deleted its heartbeat; Flink continues a cancelled job up to this step.
    check_alive(job.heartbeat_path)
    output.commit(manifest.to_json().encode(), after=sorted(names), swept=job.heartbeat_path is None)
    return manifest


def _join_rejected(
    output: OutputFolder, groups: Iterable[Mapping[str, Any]]
) -> tuple[Counter[str], dict[str, Mapping[str, str]]]:
    """Join the lists of rejected inputs of all groups into one; return the count and the first entry of each reason."""
    reasons: Counter[str] = Counter()
    firsts: dict[str, Mapping[str, str]] = {}
    with output.temporary(REJECTED) as listing:
        for group in groups:
            with output.open(_rejected_file(group["number"])) as stream:
                shutil.copyfileobj(stream, listing.stream, _COPIED_AT_ONCE)
            reasons.update(group["reasons"])
            firsts = {**group["firsts"], **firsts}
        listing.keep()
    return reasons, firsts


def _files_of(splits: Mapping[str, Split]) -> set[str]:
    """Return the names of all shards and indexes."""
    shards = [shard for split in splits.values() for shard in split.shards]
    return {name for shard in shards for name in (shard.file, shard.index)}


def merged(job: ShardJob, groups: Iterable[Mapping[str, Any]]) -> dict[str, Split]:
    """Return the shards and statistics of each split, merged from summaries in the order of their groups.

    Raises:
        JobError: a shard is missing.
    """
    groups = list(groups)
    splits = {}
    for split in job.splits:
        parts = [group for group in groups if split in group["shards"]]
        shards = tuple(Shard(**shard) for group in parts for shard in group["shards"][split])
        statistics = Statistics.total(Statistics.from_json(group["statistics"][split]) for group in parts)
        splits[split] = Split(shards=shards, statistics=statistics)
    found = {shard.file for split in splits.values() for shard in split.shards}
    if missing := [key.to_text() for key in job.shard_keys() if job.shard_file(key) not in found]:
        raise JobError(f"shards were not written: {', '.join(missing)}; run the same command again")
    return splits


def _list_rejected(
    rejected: Iterable[Mapping[str, str]],
    stream: Any,
    reasons: Counter[str],
    firsts: dict[str, Mapping[str, str]],
) -> None:
    """Write a JSON line for each rejected input; count each reason and keep its first entry."""
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
    return shard_entry(name, index, data), index


def shard_entry(name: str, index: ShardIndex, data: bytes) -> Shard:
    """Return the manifest's entry of a shard; `data` are the bytes of its index file."""
    return Shard(
        file=name,
        index=index_file(name),
        records=len(index),
        bytes=index.file_bytes,
        crc32c=index.file_checksum,
        index_bytes=len(data),
        index_crc32c=crc32c(data),
    )


def _check_outcome(job: ShardJob, reasons: Counter[str], records: int, example: str) -> None:
    # Only a limit needs the number of inputs.
    inputs = 0 if job.reject_limit is None else inputs_in(job.inputs, job.recipe.limit, reasons)
    if excess := _excess(job.reject_limit, reasons, inputs, job.folder):
        raise JobError(
            f"{excess}. What is finished is kept: fix the sources or raise the limit, then run the same command again"
            f"{example}"
        )
    if not records:
        most, listing = _most_common(reasons), OutputFolder(job.folder).path(REJECTED)
        raise JobError(
            f"nothing was converted: {plural(reasons.total(), 'input was', 'inputs were')} rejected "
            f"({most}); see {listing}{example}"
        )


def _check_objects(
    job: ShardJob, splits: Mapping[str, Split], reasons: Counter[str], firsts: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse a data set that lost most of its objects, as planning does where the annotations show it."""
    dropped = Counter({reason: count for reason, count in reasons.items() if stage_of(reason) == OBJECT})
    del dropped[f"{OBJECT}: {ZERO_AREA}"]  # the recipe drops these on purpose
    cut = dropped.pop(f"{OBJECT}: {IN_NO_RECORD}", 0)
    count = dropped.total()
    stored = sum(
        int(boxes) * images
        for split in splits.values()
        for boxes, images in (split.statistics.boxes_per_image or {}).items()
    )
    # The static shape loses these, and not their annotations.
    if is_mostly_bad(cut, cut + stored) and job.on_loss == "refuse":
        raise JobError(
            f"{cut} of {plural(cut + stored, 'object')} lie outside of the static shape and are in no record; "
            "take --fit tiles, a larger --depth, --height and --width, or --center label; --on-loss warn converts "
            "the scans nevertheless"
        )
    if is_mostly_bad(count, count + stored):
        raise JobError(
            f"{count} of {plural(count + stored, 'object')} could not be used ({_most_common(dropped)}); see "
            f"{OutputFolder(job.folder).path(REJECTED)}; correct the annotations, leave --masks out, or reject the "
            f"images that have such objects with --on-bad-object reject{_example(dropped, firsts)}"
        )


def check_losses(job: ShardJob, statistics: Statistics, *, of_all: bool = False) -> None:
    """Refuse records that lost their information, with --on-loss refuse.

    Args:
        statistics: statistics of the records so far.
        of_all: whether every record must be hit, for a decision after the first records.

    Raises:
        JobError: most records are useless; the message has the numbers, an example and a fix.
    """
    if job.on_loss != "refuse":
        return
    kind = job.recipe.rules.kind.name
    finding = refusing_finding(statistics, job.recipe.to_json(), job.task, kind, of_all=of_all)
    if finding is None:
        return
    so_far = " so far" if of_all else ""
    raise JobError(
        f"{finding.text}{so_far}; {finding.fix}. Nothing was committed. --on-loss warn commits the records as they "
        "are; what is finished is kept for it"
    )


def _check_ids(job: ShardJob, output: OutputFolder, groups: Iterable[int]) -> None:
    """Refuse a data set with two records of one id; the message names both sources."""
    ids = np.concatenate([np.frombuffer(output.read(_ids_file(number)), "<i8") for number in groups])
    ids.sort()
    repeated = np.unique(ids[1:][ids[1:] == ids[:-1]])
    if not len(repeated):
        return
    named: dict[int, list[str]] = {int(identity): [] for identity in repeated[:_SHOWN_IDS]}
    for key in job.shard_keys():
        index = _read_shard(job, key, output)[1]
        for record in np.flatnonzero(np.isin(index.ids, repeated[:_SHOWN_IDS])):
            start = int(index.offsets[record]) + HEADER_BYTES
            data = output.read(job.shard_file(key), start, start + int(index.lengths[record]))
            found = decode_example(data, keys=[keys.KEY_SOURCE, keys.TILE])
            text = bytes(found[keys.KEY_SOURCE][0]).decode("utf-8", "replace")
            named[int(index.ids[record])].append(f"{text!r} (tile {int(found[keys.TILE][0])})")
    lines = (f"  id {identity}: {' and '.join(sources)}" for identity, sources in named.items())
    raise JobError(
        f"{len(repeated)} ids belong to more than one record; give these sources other ids, such as their paths in "
        "the column id of a table:\n" + "\n".join(lines)
    )


def _example(reasons: Counter[str], firsts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the first entry of the most common reason on its own line, because its detail says what to do."""
    if not reasons:
        return ""
    entry = firsts[(failures_in(reasons) or reasons).most_common(1)[0][0]]
    detail = f" ({entry['detail']})" if entry["detail"] else ""
    return f"\nsuch as {entry['source']}: {entry['reason']}{detail}{cure_of(entry['reason'])}"


def cure_of(reason: str) -> str:
    """Return the advice for a rejected input whose details have none, after a semicolon; "" without advice.

    >>> cure_of("decode: file is truncated"), cure_of("box is inverted")
    ('; copy or download it again', '')
    """
    cure = _CURES.get(reason.rpartition(": ")[2])
    return f"; {cure}" if cure else ""


_CURES: Final = {
    "file is truncated": "copy or download it again",
    "file is empty": "copy or download it again",
    "malformed XML": "correct it, or copy it again",
    "malformed JSON": "correct it, or copy it again",
    "image lies in no class folder": "move it into the folder of its class",
    "TIFF of other than unsigned integers is not supported": "save it with whole numbers of 8 or 16 bits",
    "TIFF of this bit depth is not supported": "save it with 8 or 16 bits",
}


def _manifest(job: ShardJob, splits: dict[str, Split], reasons: Counter[str]) -> Manifest:
    recipe, task = job.recipe, task_named(job.task)
    total = Statistics.total(split.statistics for split in splits.values())
    names = _class_names(job, total)
    several = job.task == "classification" and recipe.several_classes == "keep"
    fields = task.fields(
        _image_format(job, total),
        max_boxes=recipe.max_boxes,
        masks=recipe.masks,
        keep=recipe.keep,
        several_classes=len(names) if several else None,
        ignored_boxes=max(map(int, total.ignored_per_image or ()), default=0),
    )
    return Manifest(
        name=job.name,
        version=job.version,
        task=job.task,
        fields=fields,
        labels=dict(sorted(names.items())),
        recipe=recipe.to_json(),
        inputs=job.inputs,
        splits=splits,
        rejected=dict(reasons),
        software={"halofeed": __version__},
        ignore_label=job.labels.stored_ignore,
        format_version=format_version_of(fields),
    )


def _image_format(job: ShardJob, total: Statistics) -> ImageFormat:
    recipe = job.recipe
    return ImageFormat(
        kind=recipe.rules.kind,
        shape=recipe.static_shape() or total.largest or (),
        channels=recipe.channels,
        dtype=recipe.dtype,
        encoding=recipe.encoding,
        pad_value=recipe.rules.padding(recipe),
        label_dtype=job.labels.dtype,
        classes=len(job.labels.channels) if recipe.holds_class_sets() else 0,
        ignore_label=job.labels.stored_ignore,
        scaled=recipe.rules.is_scaled(recipe),
        tiled=cuts_pictures(recipe),
        stated=tuple(total.stated or ()),
    )


def _class_names(job: ShardJob, total: Statistics) -> dict[int, str]:
    """Return the name of each class; where nothing names them, also the values that records hold.

    Raises:
        JobError: the values look like masks with 255 as the void of PASCAL VOC, and nothing states what it means.
    """
    labels = job.labels
    if not labels.is_open:
        return dict(labels.names)
    held = {int(value): value for value in total.label_voxels or ()}
    is_said = labels.ignore is not None or labels.id_of_value(VOC_VOID) is not None
    if not is_said and (problem := _problem_of_values(held.keys())):
        raise JobError(f"the labels of {job.name}: {problem}")
    return {**held, **labels.names}


def _problem_of_values(values: Set[int]) -> str:
    # Planning reads only some label images, and makes 255 foreground if they hold only 0 and 255. The values of all
    # images are known only here.
    if VOC_VOID in values and values <= {0, VOC_VOID}:
        return f"{VOC_VOID} is the only class; --map-classes {VOC_VOID}=foreground makes it class 1"
    return void_problem(set(values))
