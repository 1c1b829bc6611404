"""Earlier version from which a conversion starts (`--from`): where its examples are, and what is kept of it.

The version keeps the shards of the earlier one, with their numbers:

    earlier    0 1 2 3          an example of the earlier version stays in its shard
    version    0 1 2 3 4        new examples are in added shards, each about as full as the others

So a shard is written again only if one of its examples was changed or removed. A shard's bytes depend on the earlier
version and on the sources, and not on the runner or on the order of the listing.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.annotations.unlabeled import UNLABELED_SPLIT
from halofeed.prep.options.option import flag
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.voxels.signatures import have_other_version
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.file_layout import LABEL_MAP, MANIFEST
from halofeed.schemas.identity import example_id, shard_of
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import INDEX_BYTES, MANIFEST_VALUES
from halofeed.schemas.lineage import Lineage, OlderRecipe, lineage_of
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.storage.spill import SpillList
from halofeed.system.addresses import is_remote
from halofeed.system.checksum import crc32c
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural

_SPLIT_OPTIONS = frozenset(
    ("split_shares", "split_seed", "folds", "group_pattern", "group_column", "split_folders", "duplicates")
)
"""Options of a recipe that assign splits and change no record; --keep-splits allows other values."""
_FREE_OPTIONS = frozenset(("license", "citation", "limit"))
"""Options of a recipe that no shard depends on."""
_INDEXES_AT_ONCE = 8
_STRIDE = 1 << 20
"""More than the shards of any split."""
_MOST_SHARDS = 99_999
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlierVersion:
    """A committed version, and the split and shard of each of its examples.

    Args:
        folder: its folder or address.
        ids: ids of its records in rising order, int64 [record].
        places: split number * 2**20 + shard of each of `ids`, int64 [record].
        sources: hashes of the sources of its shards in rising order, also of rejected ones, uint64 [source].
        source_places: place of each of `sources`.
        signatures: signature of each of `ids`, int64 [record, word]; no rows unless --duplicates compares them.
        contents: SHA-256 of the content of each source, as indexes have it; empty in the same case.
    """

    folder: str
    manifest: Manifest
    crc32c: int
    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    sources: NDArray[np.uint64]
    source_places: NDArray[np.int64]
    signatures: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))
    contents: Mapping[str, str] = field(default_factory=dict)

    def signature_of(self, identity: int, source: str) -> tuple[tuple[int, ...], str] | None:
        """Return the signature of an example's record and the content of its source; None where one is unknown."""
        content = self.contents.get(source, "")
        if not (content and len(self.signatures) and self.has_record(identity)):
            return None
        words = self.signatures[int(np.searchsorted(self.ids, identity))]
        return (tuple(words.tolist()), content) if words.any() else None

    @property
    def shard_counts(self) -> dict[str, int]:
        """Return the number of shards of each split."""
        return {name: len(split.shards) for name, split in self.manifest.splits.items()}

    @property
    def generations(self) -> dict[str, tuple[int, ...]]:
        """Return the generations of the shards of each split, see `Lineage`."""
        lineage = lineage_of(self.manifest.inputs)
        return (
            dict(lineage.generations)
            if lineage
            else {name: (count,) for name, count in self.shard_counts.items()}
        )

    def has_record(self, identity: int) -> bool:
        """Return whether this version has a record of an example."""
        at = int(np.searchsorted(self.ids, identity))
        return at < len(self.ids) and bool(self.ids[at] == identity)

    def split_of(self, identity: int, source: str) -> str | None:
        """Return the split that an example has in this version; None for a new one."""
        found = self._places_of(identity, source)
        return list(self.manifest.splits)[found[0] // _STRIDE] if found else None

    def shard_of(self, split: str, identity: int, source: str) -> int | None:
        """Return the shard that an example has in a split of this version; None where it is new in the split."""
        if split not in self.manifest.splits:
            return None
        number = list(self.manifest.splits).index(split)
        shards = [
            place % _STRIDE for place in self._places_of(identity, source) if place // _STRIDE == number
        ]
        if len(shards) < 2:
            return shards[0] if shards else None
        # The frames of a video have one source, and rejected ones no id of a record.
        usual = shard_of(identity, self.generations[split][0])
        return usual if usual in shards else shards[0]

    def _places_of(self, identity: int, source: str) -> list[int]:
        """Return the places of an example by its id; of one without a record by its source."""
        if self.has_record(identity):
            return [int(self.places[int(np.searchsorted(self.ids, identity))])]
        key = _hash_of(source)
        first, last = np.searchsorted(self.sources, key), np.searchsorted(self.sources, key, side="right")
        return sorted(self.source_places[first:last].tolist())

    def mean_records(self, split: str) -> float:
        """Return the mean number of records of the shards of a split, at least 1."""
        found = self.manifest.splits[split]
        return max(1.0, found.records / max(1, len(found.shards)))


def open_earlier(options: JobOptions, recipe: Recipe) -> EarlierVersion | None:
    """Return the version that --from names, with the places of its examples; None without the option.

    Raises:
        UsageError: there is none, it is a subset or the same version, or the recipe differs in other options than
            those that may.
        CorruptFileError: one of its indexes is damaged.
    """
    if not options.from_:
        if options.keep_splits:
            raise UsageError("--keep-splits has no effect without --from; add that, or leave it out")
        return None
    output = OutputFolder(options.from_)
    manifest, checksum = read_earlier(options.from_)
    _check_version(options, manifest)
    _check_recipe(options, recipe, manifest)
    shards = [
        (number * _STRIDE + place, shard)
        for number, split in enumerate(manifest.splits.values())
        for place, shard in enumerate(split.shards)
    ]

    def read(shard: Any) -> ShardIndex:
        data = output.read(shard.index, 0, INDEX_BYTES + 1)
        if crc32c(data) != shard.index_crc32c:
            raise CorruptFileError(
                f"{output.path(shard.index)}: its checksum is not the manifest's; run `halofeed verify {options.from_}`"
            )
        return ShardIndex.from_bytes(data, output.path(shard.index))

    ids, places, sources, source_places = [], [], [], []
    signatures: list[NDArray[np.int64]] = []
    contents: dict[str, str] = {}
    with ThreadPoolExecutor(_INDEXES_AT_ONCE) as threads:
        for (place, _), index in zip(shards, threads.map(read, [shard for _, shard in shards]), strict=True):
            ids.append(index.ids)
            places.append(np.full(len(index), place, np.int64))
            named = {*index.inputs, *(entry["source"] for entry in index.rejected)}
            sources.append(np.fromiter(map(_hash_of, named), np.uint64, len(named)))
            source_places.append(np.full(len(named), place, np.int64))
            # They would take 200 bytes for each record.
            if recipe.duplicates != "report":
                found = index.signatures
                is_known = found is not None and not have_other_version(found).any()
                signatures.append(
                    found if found is not None and is_known else np.zeros((len(index), 0), np.int64)
                )
                contents |= index.inputs
    return EarlierVersion(
        folder=options.from_,
        manifest=manifest,
        crc32c=checksum,
        **dict(zip(("ids", "places"), _by_rising(ids, places, np.int64), strict=True)),
        **dict(zip(("sources", "source_places"), _by_rising(sources, source_places, np.uint64), strict=True)),
        signatures=_joined_signatures(signatures, ids),
        contents=contents,
    )


def _joined_signatures(
    signatures: Sequence[NDArray[np.int64]], ids: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the signatures of all shards by rising ids; zeros for those of a shard without any."""
    width = max((one.shape[1] for one in signatures), default=0)
    if not width:
        return np.empty((0, 0), np.int64)
    joined = np.concatenate([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in signatures])
    return np.asarray(joined[np.argsort(np.concatenate(list(ids)), kind="stable")], np.int64)


def read_earlier(folder: str) -> tuple[Manifest, int]:
    """Return the manifest of a version in a folder or a store, and its checksum.

    Raises:
        UsageError, ManifestError: there is none, or it is wrong.
    """
    output = OutputFolder(folder)
    if not is_remote(folder):
        manifest = read_manifest(folder)  # names what is there instead
    elif output.exists(MANIFEST):
        manifest = Manifest.from_json(output.read(MANIFEST), output.path(MANIFEST))
    else:
        raise UsageError(
            f"--from {folder}: is no data set: no {MANIFEST} there; name the address of a version"
        )
    return manifest, int(parse_json(output.read(MANIFEST), MANIFEST_VALUES)["crc32c"])


def _by_rising(keys: Sequence[Any], places: Sequence[Any], dtype: Any) -> tuple[Any, Any]:
    """Return all keys in rising order, with their places."""
    joined, beside = (
        np.concatenate([np.empty(0, dtype), *keys]),
        np.concatenate([np.empty(0, np.int64), *places]),
    )
    order = np.argsort(joined, kind="stable")
    return joined[order], beside[order]


def _hash_of(source: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(source.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
    )


def _check_version(options: JobOptions, manifest: Manifest) -> None:
    """Refuse an earlier version from which this one cannot start."""
    lineage = lineage_of(manifest.inputs)
    if lineage is not None and lineage.where is not None:
        raise UsageError(
            f"--from {options.from_}: is a subset of version {lineage.version}, so its shards lack examples of the "
            "sources; name the version that was converted"
        )
    if manifest.name != options.name:
        raise UsageError(
            f"--from {options.from_}: is the data set {manifest.name}, and files of shards have the name of their data "
            f"set; use --name {manifest.name}"
        )
    if manifest.version == options.version:
        raise UsageError(
            f"--version {options.version}: is the version that --from names; give the new one another number"
        )


def _check_recipe(options: JobOptions, recipe: Recipe, manifest: Manifest) -> None:
    """Refuse options by which every record could differ from that of the earlier version."""
    free = _FREE_OPTIONS | (_SPLIT_OPTIONS if options.keep_splits else frozenset())
    allowed = tuple(f"{flag(name)}: " for name in free)
    differences = [line for line in recipe.difference(manifest.recipe) if not line.startswith(allowed)]
    if not differences:
        return
    are_of_splits = all(
        line.startswith(tuple(f"{flag(name)}: " for name in _SPLIT_OPTIONS)) for line in differences
    )
    fix = (
        "add --keep-splits, which keeps the splits of the earlier version's examples"
        if are_of_splits
        else "leave them out; for other records convert all of them, without --from"
    )
    listed = "\n".join(f"  {line}" for line in differences)
    raise UsageError(
        f"--from {options.from_}: the recipe is that of the earlier version, and these options differ; {fix}:\n{listed}"
    )


def compatible_labels(earlier: EarlierVersion, found: LabelMap, *, are_given: bool) -> LabelMap:
    """Return the classes of a version whose earlier classes keep their numbers; new ones follow.

    Args:
        found: classes of the sources.
        are_given: whether a file of the user or the values of label images give the numbers.

    Raises:
        UsageError: they give a class of the earlier version another number, or lack it, or have no names where the
            earlier version has.
    """
    before = dict(earlier.manifest.labels)
    if found.is_open:
        _check_still_named(earlier, before, found)
    # Without names, every value is its own class.
    if found.is_open or all(found.names.get(identity) == name for identity, name in before.items()):
        return found
    if not are_given:
        known = set(before.values())
        added = [name for name in found.names.values() if name not in known]
        entries = (*before.items(), *enumerate(added, start=max(before, default=found.first_id - 1) + 1))
        return replace(found, entries=entries)
    changed = [
        f"  class {identity} was {name!r}, now {found.names.get(identity, 'missing')!r}"
        for identity, name in before.items()
        if found.names.get(identity) != name
    ]
    more = [f"  and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
    raise UsageError(
        "\n".join(
            [
                f"--from {earlier.folder}: {plural(len(changed), 'class', 'classes')} of the earlier version must keep "
                "the number; add new classes behind them, or convert all without --from:",
                *changed[:_SHOWN],
                *more,
            ]
        )
    )


def _check_still_named(earlier: EarlierVersion, before: Mapping[int, str], found: LabelMap) -> None:
    """Refuse label images whose values have no names now, where those of the earlier version had."""
    named = {number: name for number, name in before.items() if number and name != str(number)}
    lost = [f"{number} {name}" for number, name in named.items() if found.names.get(number) != name]
    if lost:
        more = ", ..." if len(lost) > _SHOWN else ""
        file = shlex.quote(f"{earlier.folder.rstrip('/')}/{LABEL_MAP}")
        raise UsageError(
            f"--from {earlier.folder}: its classes have names ({', '.join(lost[:_SHOWN])}{more}), and nothing names "
            f"them now; repeat --label-map with the file of that conversion, or take --label-map {file}"
        )


def older_recipes(earlier: EarlierVersion, recipe: Recipe, labels: LabelMap) -> tuple[OlderRecipe, ...]:
    """Return what the shards of the earlier version and of those before it were made with."""
    now, before = _split_options(recipe), _split_options(Recipe.from_json(earlier.manifest.recipe))
    added = () if labels.is_open else tuple(one for one in labels.names if one not in earlier.manifest.labels)
    lineage = lineage_of(earlier.manifest.inputs)
    older = [OlderRecipe(options={}, without_classes=()), *(() if lineage is None else lineage.recipes)]
    found = [
        OlderRecipe(
            options={
                name: value
                for name, value in {**before, **one.options}.items()
                if name in now and value != now[name]
            },
            without_classes=(*one.without_classes, *added),
        )
        for one in older
    ]
    kept = [one for one in found if one.options or one.without_classes]
    return tuple(one for number, one in enumerate(kept) if one not in kept[:number])


def _split_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options that assign splits as plain JSON values."""
    values = {name: getattr(recipe, name) for name in sorted(_SPLIT_OPTIONS)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def lineage_from(
    earlier: EarlierVersion, recipe: Recipe, labels: LabelMap, shard_counts: Mapping[str, int]
) -> Lineage:
    """Return the lineage of a version with so many shards by split."""
    generations = {}
    for split, count in shard_counts.items():
        before = earlier.generations.get(split, ())
        added = count - sum(before)
        generations[split] = (*before, added) if added else before
    return Lineage(
        version=earlier.manifest.version,
        crc32c=earlier.crc32c,
        generations=generations,
        recipes=older_recipes(earlier, recipe, labels),
    )


def keep_splits(
    references: Iterable[SourceExample], earlier: EarlierVersion, warn: Any = lambda _: None
) -> Iterator[SourceExample]:
    """Yield each reference with the split of the earlier version; one of a known group gets that of the group.

    An image that was in the split "unlabeled" and has a label now is like a new one.

    Args:
        warn: receives a sentence about groups that are in several splits of the earlier version.
    """
    spilled: SpillList[tuple[SourceExample, str | None]] = SpillList()
    of_groups: dict[str, Counter[str]] = {}
    for reference in references:
        split = _kept_split(reference, earlier)
        spilled.add((reference, split))
        group = reference.joint or reference.group
        if split is not None and group is not None and reference.problem is None:
            of_groups.setdefault(group, Counter())[split] += 1
    divided = sorted(group for group, splits in of_groups.items() if len(splits) > 1)
    if divided:
        warn(
            f"--keep-splits: {plural(len(divided), 'group is', 'groups are')} in several splits of the earlier "
            f"version, such as {divided[0]}; its new examples go where most of it is"
        )
    # The most frequent one, and of several the first by name.
    chosen = {
        group: min(splits, key=lambda name: (-splits[name], name)) for group, splits in of_groups.items()
    }
    for reference, known in spilled:
        split = known or chosen.get(reference.joint or reference.group or "", reference.split)
        yield reference if split == reference.split else replace(reference, split=split)


def _kept_split(reference: SourceExample, earlier: EarlierVersion) -> str | None:
    """Return the split that an example keeps; None for a new one."""
    split = earlier.split_of(example_id(reference.key), reference.source)
    # Its image had no label and was for prediction only, so no training and no test has used it.
    return None if split == UNLABELED_SPLIT and reference.is_labelled else split


class AddedShards:
    """Shards of the examples that an earlier version does not have, chosen once all are counted.

    >>> AddedShards.count(90, 100.0), AddedShards.count(250, 100.0)
    (1, 2)
    """

    def __init__(self, earlier: EarlierVersion, shards: int) -> None:
        self._earlier, self._shards = earlier, shards
        self._counts: Counter[str] = Counter()

    @staticmethod
    def count(examples: int, mean_records: float) -> int:
        """Return the number of shards for new examples, each about as full as the others, and not more than fit."""
        return min(max(1, round(examples / mean_records)), _MOST_SHARDS)

    def add(self, split: str) -> None:
        """Count a new example."""
        self._counts[split] += 1

    def shard_of(self, split: str, identity: int) -> int:
        """Return the shard of a new example, once all are counted."""
        first, count = self._range(split)
        return first + shard_of(identity, count)

    def shard_count(self, split: str) -> int:
        """Return the number of shards of a split."""
        before = self._earlier.shard_counts.get(split)
        if before is None:
            return self._shards
        return sum(self._range(split)) if self._counts[split] else before

    def _range(self, split: str) -> tuple[int, int]:
        """Return the first shard of the new examples of a split, and how many there are."""
        if split not in self._earlier.manifest.splits:
            return 0, self._shards
        before, mean = self._earlier.shard_counts[split], self._earlier.mean_records(split)
        last = self._earlier.manifest.splits[split].shards[-1]
        generations = self._earlier.generations[split]
        # A shard that an earlier version added takes more until it is as full as the others. Otherwise a hundred
        # versions with a picture each would have a hundred shards more.
        is_open = len(generations) > 1 and generations[-1] == 1
        if is_open and last.records + self._counts[split] <= mean:
            return before - 1, 1
        return before, self.count(self._counts[split], mean)
