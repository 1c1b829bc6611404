"""Copies among the inputs with --duplicates: kept in one split, or left out but for one of each.

    group   copies are joined, with their groups (patients, scenes); a joint name then assigns the split
    drop    one of each group of copies is converted, and the others are listed as left out

Copies are joined transitively: a patient of whom one scan is a copy of another patient's goes to the split of that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from halofeed.pipelines.first_pass import FirstPass, FoundCopies
from halofeed.prep.annotations.shares import group_name
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.file_layout import SELECTION
from halofeed.storage.spill import SpillList
from halofeed.system.errors import AnnotationsError
from halofeed.system.wording import plural

COPIES = "copies"
"""Entry of `Manifest.inputs` with `Duplicates.counts`."""
COPY, CONFLICT = "copy of another input", "copies have other labels"
"""Reasons of inputs that --duplicates leaves out."""
_Change = Callable[[SourceExample], SourceExample]


@dataclass(kw_only=True, eq=False)
class Duplicates:
    """Copies among the inputs of a conversion, as `assign_splits` takes it.

    Args:
        mode: value of --duplicates other than "report".
        search: the first pass over the sources.
        by_shares: whether shares divide the inputs later; otherwise their splits are known.
        is_earlier: whether an input is of the version that --from names.
        kept_split: returns the split that --keep-splits gives an input; None where it gives none.
        warn: receives sentences about what was found.
        counts: what was found by the last call, for the manifest.
    """

    mode: str
    search: FirstPass
    by_shares: bool
    is_earlier: Callable[[SourceExample], bool] = lambda example: False
    kept_split: Callable[[SourceExample], str | None] = lambda example: None
    warn: Callable[[str], None] = lambda text: None
    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, examples: Iterable[SourceExample]) -> Iterator[SourceExample]:
        """Yield the examples; copies are joined, or all but one of them have a problem.

        Raises:
            AnnotationsError: copies that should be joined are in several splits that the source or a list names.
        """
        kept: SpillList[SourceExample] = SpillList()
        count = 0
        for example in examples:
            kept.add(example)
            count += 1
        found = self.search.find(kept, count)
        members = _members(kept, found)
        self._note(found, members)
        if self.mode == "group":
            yield from self._joined(kept, found, members)
            return
        changes = self._dropped(found, members)
        self.counts["left out"] = len(changes)
        for number, example in enumerate(kept):
            yield changes[number](example) if number in changes else example

    def _note(self, found: FoundCopies, members: Mapping[int, SourceExample]) -> None:
        """Count what was found, and warn of copies with other labels and of what was not compared."""
        counts = {
            "groups": len(found.groups),
            "groups with other labels": len(found.differences),
            "inputs not compared": found.failed,
        }
        self.counts = {name: count for name, count in counts.items() if count or name == "groups"}
        if found.differences:
            place, words = next(iter(sorted(found.differences.items())))
            named = " and ".join(members[number].source for number in found.groups[place].records[:2])
            what = {
                "group": "they are kept in one split",
                "drop": "all of them are kept; correct the labels, or leave them out with --duplicates drop-conflicts",
                "drop-conflicts": "none of them is converted",
            }[self.mode]
            has = "has" if len(found.differences) == 1 else "have"
            self.warn(
                f"--duplicates: {plural(len(found.differences), 'group')} of copies {has} labels that differ, such as "
                f"{named} ({words}); {what}"
            )
        if found.left:
            self.warn(
                f"--duplicates: {plural(found.left, 'pair')} of pictures whose signatures are less alike were not "
                "compared; `halofeed review` of the data set shows what is left"
            )

    def _dropped(self, found: FoundCopies, members: Mapping[int, SourceExample]) -> dict[int, _Change]:
        """Return what becomes of each input that is not converted."""
        changes: dict[int, _Change] = {}
        for place, group in enumerate(found.groups):
            if place not in found.differences:
                best = min(
                    group.records, key=lambda number: self._rank(members[number], int(found.pixels[number]))
                )
                left_out = [
                    number
                    for number in group.records
                    if number != best and not _may_show_more(members[number], number, best, found.contents)
                ]
                detail = f"{members[best].source} is kept" + (
                    "" if self.by_shares else f" in {members[best].split}"
                )
                changes |= dict.fromkeys(left_out, _with_problem(COPY, detail))
            elif self.mode == "drop-conflicts":
                for number in group.records:
                    other = next(one for one in group.records if one != number)
                    detail = f"{members[other].source} shows the same: {found.differences[place]}"
                    changes[number] = _with_problem(CONFLICT, detail)
        return changes

    def _rank(self, example: SourceExample, pixels: int) -> tuple[object, ...]:
        """Return what orders copies; the first one is kept.

        An input of the earlier version keeps its shard. A label is worth more than a split. A test set stays as it was
        published, so the copies in the training set are left out. A smaller copy was made from a larger one.
        """
        has_label = example.has_annotation or example.boxes is not None or example.labels is not None
        split = _rank_of_split(self.kept_split(example) or ("" if self.by_shares else example.split))
        size = pixels * (example.frames or 1)
        return not self.is_earlier(example), not has_label, split, -size, example.source, str(example.key)

    def _joined(
        self, kept: SpillList[SourceExample], found: FoundCopies, members: Mapping[int, SourceExample]
    ) -> Iterator[SourceExample]:
        """Yield the examples, of which copies and their groups have one joint name."""
        joint = _joint_names(
            [group_name(members[number]) for number in group.records] for group in found.groups
        )
        first: dict[str, SourceExample] = {}
        divided: dict[str, SourceExample] = {}
        count = 0
        for example in kept:
            name = joint.get(group_name(example))
            if name is None or example.problem is not None:
                yield example
                continue
            count += 1
            if first.setdefault(name, example).split != example.split:
                divided.setdefault(name, example)
            yield replace(example, joint=name)
        self.counts["kept together"] = count
        if divided and not self.by_shares:
            self._refuse(first, divided, has_other_labels=bool(found.differences))

    def _refuse(
        self,
        first: Mapping[str, SourceExample],
        divided: Mapping[str, SourceExample],
        *,
        has_other_labels: bool,
    ) -> None:
        """Refuse copies in several named splits: grouping would move pictures out of a published test set."""
        name, other = next(iter(divided.items()))
        one = first[name]
        are = "is" if len(divided) == 1 else "are"
        # `drop` keeps copies whose labels differ.
        drop = (
            "drop-conflicts converts one of each, and none where labels differ"
            if has_other_labels
            else "drop converts one of each, that of test before that of train"
        )
        raise AnnotationsError(
            f"--duplicates group: {plural(len(divided), 'group')} of copies {are} in several splits of the source, "
            f"such as {one.source} ({one.split}) and {other.source} ({other.split}), and an input is not moved from a "
            f"split that has a name; --duplicates {drop}, or divide all inputs anew with "
            "--split-shares train=0.8,validation=0.1,test=0.1"
        )


def _with_problem(reason: str, detail: str) -> _Change:
    return lambda example: replace(example, problem=(SELECTION, reason, detail))


def _may_show_more(example: SourceExample, number: int, kept: int, contents: Mapping[int, str]) -> bool:
    """Return whether a file has frames that the kept copy may lack: the signature is that of the first one."""
    is_equal = contents[number] == contents[kept] != ""
    return (example.frames or 1) > 1 and not is_equal


def _rank_of_split(split: str) -> int:
    """Return 0 for a test set, 2 for a training set, 1 for the others.

    >>> [_rank_of_split(name) for name in ("test", "Training", "val")]
    [0, 2, 1]
    """
    name = split.lower()
    return 0 if name.startswith("test") else 2 if name.startswith("train") else 1


def _members(kept: Iterable[SourceExample], found: FoundCopies) -> dict[int, SourceExample]:
    """Return the inputs of all groups by their numbers."""
    wanted = {number for group in found.groups for number in group.records}
    return {number: example for number, example in enumerate(kept) if number in wanted}


def _joint_names(groups: Iterable[list[str]]) -> dict[str, str]:
    """Return the joint name of each group name that a copy joins with others: the first of them by name.

    >>> _joint_names([["b", "c"], ["c", "a"], ["x", "x"]])
    {'a': 'a', 'b': 'a', 'c': 'a', 'x': 'x'}
    """
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parents.setdefault(name, name)) != name:
            parents[name] = parents[above]
            name = above
        return name

    for names in groups:
        for name in names[1:]:
            low, high = sorted((root(names[0]), root(name)))
            parents[high] = low
    return {name: root(name) for name in sorted(parents)}


def describe_copies(counts: Mapping[str, int]) -> str:
    """Return what --duplicates found, such as "3 groups of copies: 4 left out"; see `Duplicates.counts`.

    >>> describe_copies({"groups": 3, "groups with other labels": 1, "left out": 2})
    '3 groups of copies, 1 with other labels; 2 inputs left out'
    """
    found = Counter(counts)
    text = f"{plural(found['groups'], 'group')} of copies"
    if found["groups with other labels"]:
        text += f", {found['groups with other labels']:,} with other labels"
    for name, what in (("left out", "left out"), ("kept together", "kept together")):
        if found[name]:
            text += f"; {plural(found[name], 'input')} {what}"
    if found["inputs not compared"]:
        text += f"; {plural(found['inputs not compared'], 'input')} not decoded, and not compared"
    return text
