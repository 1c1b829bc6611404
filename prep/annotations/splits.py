"""Assignment of images to splits: by the source, by lists, or by a stable hash of their group."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from halofeed.prep.annotations.contract import is_split_name
from halofeed.prep.annotations.group_evidence import GroupEvidence, describe
from halofeed.prep.annotations.list_entries import match_ends
from halofeed.prep.annotations.patterns import Expression
from halofeed.prep.annotations.shares import Division, GroupCounts, fold_shares
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_image_name, is_video_name, is_volume_name, stem_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.storage.spill import SpillList
from halofeed.system.errors import AnnotationsError, SourceError, UsageError
from halofeed.system.wording import plural

_NO_GROUP = ("selection", "group pattern does not match", "")
_NO_COLUMN = ("selection", "group column is empty", "")
_EACH = "--group-pattern '(.+)' makes each input its own group"
_MAX_COLUMNS = 30
"""Most columns that a message lists."""
_NO_LIST = ("selection", "in no split list", "")
_RANK_STEP = 2**48
"""More than any source has images, so that a rank and a position fit into one number."""
_BY_END = 5
"""Rank of the end of a path, behind the five kinds of names."""
_NOT_FOUND = 6 * _RANK_STEP
_MAX_SHOWN = 3
_BIDS_SUBJECT = re.compile(r"(sub-[A-Za-z0-9]+)_")
"""Subject in the file names of BIDS, which begin with sub-LABEL_."""
_MISSING_GROUP = re.compile(r"-?|\?|n/?a|nan|none|null|unknown|anon(ymous|ymized)?")
"""Words of a cell that name no group."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """Options for assigning splits: by `shares`, by `lists` or `cases`, or as the source defines them.

    Args:
        shares: share of each split, in their order along the hash range; the sum is 1.
        lists: text of the list of each split, with one image per line: its path, file name, stem or id.
        cases: names of the cases of each split, as in nnU-Net's splits_final.json. They divide the images of split
            `train`; other images keep their split.
        seed: seed of the assignment by shares.
        group_pattern: regular expression with one group, applied to the source's path. Its match is the group that
            stays in one split, and replaces groups of the annotations.
        group_column: column or key of the annotations that names the group, in the same way.
        folds: number of folds of equal shares, which are splits named fold0, fold1, ...; in place of shares.

    >>> SplitOptions(shares={"train": 0.8, "test": 0.1})
    Traceback (most recent call last):
    ...
    halofeed.system.errors.UsageError: --split-shares: expected a sum of 1, got 0.9 (train=0.8, test=0.1)
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seed: int = 0
    group_pattern: str | None = None
    group_column: str | None = None
    folds: int | None = None

    def __post_init__(self) -> None:
        given = {"--nnunet-splits": self.cases, "--split-shares": self.shares, "--split-lists": self.lists}
        ways = [option for option, value in given.items() if value][-2:]
        if self.folds is not None:
            # Folds are splits of equal shares.
            if ways:
                raise UsageError("--folds and another option both assign splits; give one of them")
            object.__setattr__(self, "shares", fold_shares(self.folds))
        if self.group_pattern is not None and self.group_column is not None:
            raise UsageError("--group-pattern and --group-column both name groups; give one of them")
        if len(ways) > 1:
            raise UsageError(f"{' and '.join(ways)} both assign splits; give one of them")
        self._check_shares()
        if self.group_pattern is not None:
            compile_group_pattern(self.group_pattern)

    def _check_shares(self) -> None:
        written = ", ".join(f"{name}={share:g}" for name, share in self.shares.items())
        # A share of 0 is a split without an image.
        if any(not math.isfinite(share) or share <= 0 for share in self.shares.values()):
            raise UsageError(f"--split-shares: expected each above 0, got {written}")
        # Decimals such as 0.7, 0.2 and 0.1 do not add up to 1 exactly.
        if self.shares and abs((total := math.fsum(self.shares.values())) - 1) > 1e-6:
            raise UsageError(f"--split-shares: expected a sum of 1, got {total:g} ({written})")

    @property
    def option(self) -> str:
        """Return the name of the option that makes the splits."""
        return "split-shares" if self.folds is None else "folds"

    @property
    def finds_groups(self) -> bool:
        """Return whether no option names the groups, so that they must be found."""
        return self.group_pattern is None and self.group_column is None


def compile_group_pattern(pattern: str) -> Expression:
    """Return the compiled pattern; raise UsageError if it is not a regular expression with exactly one group."""
    compiled = Expression(option="--group-pattern", text=pattern)
    # The text in the parentheses is the group; of two it is unclear which.
    if compiled.groups != 1:
        such = "" if compiled.groups else f", such as '({pattern})'"
        raise UsageError(f"--group-pattern {pattern!r}: expected one (group), found {compiled.groups}{such}")
    return compiled


FindCopies = Callable[[Iterable[SourceExample]], Iterator[SourceExample]]
"""Function that yields the same examples, and joins copies (`SourceExample.joint`) or gives some of them a problem."""


def assign_splits(
    examples: Iterable[SourceExample],
    options: SplitOptions,
    warn: Callable[[str], None] = lambda _: None,
    find_copies: FindCopies = iter,
) -> Iterator[SourceExample]:
    """Yield each example with its group and its split, in the original order.

    Args:
        warn: receives a sentence about splits without an image.
        find_copies: is called once groups are known, and splits too, unless shares divide the examples.

    Raises:
        AnnotationsError: a group is in several splits, or a list entry matches no image or several.
    """
    examples = add_groups(examples, options)
    if options.shares:
        yield from _split_by_shares(find_copies(examples), options, warn)
        return
    if options.lists:
        examples = _split_by_lists(examples, options.lists)
    elif options.cases:
        examples = _split_by_cases(examples, options.cases)
    yield from _check_undivided_groups(find_copies(examples))


def add_groups(examples: Iterable[SourceExample], options: SplitOptions) -> Iterator[SourceExample]:
    """Yield each example with its group, by the pattern or the column of the options."""
    if options.group_pattern is not None:
        return _add_pattern_groups(examples, compile_group_pattern(options.group_pattern))
    if options.group_column is not None:
        return _add_column_groups(examples, options.group_column)
    return _add_known_groups(examples) if options.shares else iter(examples)


def _add_column_groups(examples: Iterable[SourceExample], column: str) -> Iterator[SourceExample]:
    """Yield each example with the group that a column or key names, or with a problem if it has none.

    Raises:
        UsageError: after the last example, if none has the column.
    """
    names: dict[str, None] = {}
    found = False
    for example in examples:
        values = dict(example.attributes)
        group = values.get(column, "").strip()
        if len(names) < _MAX_COLUMNS:
            names.update(dict.fromkeys(values))
        found |= bool(group)
        # "unknown" for a hundred images would make them one patient.
        if group and not _MISSING_GROUP.fullmatch(group.lower()):
            yield replace(example, group=group)
        else:
            yield replace(example, problem=example.problem or _NO_COLUMN)
    # The name is misspelled, or the column is read otherwise.
    if not found:
        listed = (
            f"found {', '.join(names)}"
            if names
            else "the annotations have no columns or keys that are not read"
        )
        raise UsageError(f"--group-column {column}: no input has it; {listed}; name one of them")


def _add_pattern_groups(examples: Iterable[SourceExample], pattern: Expression) -> Iterator[SourceExample]:
    """Yield each example with the group that the pattern finds in its source, or with a problem if it finds none."""
    for example in examples:
        match = pattern.search(example.source)
        if match is not None and match[1] is not None:
            yield replace(example, group=match[1])
        else:
            yield replace(example, problem=example.problem or _NO_GROUP)


def _add_known_groups(examples: Iterable[SourceExample]) -> Iterator[SourceExample]:
    """Yield each example with its group: words such as "unknown" mean none, and BIDS file names contain the subject.

    BIDS names the files of a subject sub-01_...
    """
    for example in examples:
        if example.group is not None and _MISSING_GROUP.fullmatch(example.group.strip().lower()):
            example = replace(example, group=None)
        subject = _BIDS_SUBJECT.match(example.source.rpartition("/")[2]) if example.group is None else None
        yield example if subject is None else replace(example, group=subject[1])


def check_groups(
    examples: Iterable[SourceExample],
    options: SplitOptions,
    *,
    are_patients: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[SourceExample]:
    """Yield the same examples, and check afterwards that shares can divide them.

    Args:
        are_patients: whether the format stores a patient id, so that a scan without a group lacks it.
        warn: receives a sentence about groups that the structure of names shows.

    Raises:
        AnnotationsError: after the last example, if only some have a group or all have the same one. Also if the
            paths or attributes of several without a group contain the same patient, case, video or similar.
    """
    if not options.shares:
        yield from examples
        return
    facts = GroupFacts()
    for example in examples:
        if example.problem is None:
            facts.add(example, options)
        yield example
    facts.check(options, are_patients=are_patients, warn=warn)


@dataclass(kw_only=True)
class GroupFacts:
    """Facts about groups, collected from all examples of a source; those of its parts can be added.

    Args:
        grouped, ungrouped: the first example of each kind by its path.
    """

    count: int = 0
    grouped: str = ""
    ungrouped: str = ""
    group: str | None = None
    has_several: bool = False
    evidence: GroupEvidence = field(default_factory=GroupEvidence)

    def add(self, example: SourceExample, options: SplitOptions) -> None:
        """Collect the facts of one example."""
        self.count += 1
        # Known groups need no evidence.
        if example.group is not None:
            self.has_several |= self.group is not None and self.group != example.group
            self.group = example.group
            self.grouped = min(self.grouped or example.source, example.source)
            return
        self.ungrouped = min(self.ungrouped or example.source, example.source)
        if options.finds_groups:
            self.evidence.add(example)

    def merge(self, other: GroupFacts) -> None:
        """Add the facts of another part of the source."""
        self.count += other.count
        self.has_several |= other.has_several or (
            None not in (self.group, other.group) and self.group != other.group
        )
        self.group = other.group if self.group is None else self.group
        self.grouped = min(filter(None, (self.grouped, other.grouped)), default="")
        self.ungrouped = min(filter(None, (self.ungrouped, other.ungrouped)), default="")
        self.evidence.merge(other.evidence)

    def check(
        self,
        options: SplitOptions,
        *,
        are_patients: bool = False,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raise AnnotationsError for a reason against dividing the examples, with a fix; warn of what may be one."""
        # One split divides no group; a pattern or column of the user is the answer already.
        if len(options.shares) < 2 or not options.finds_groups:
            return
        if fault := self._fault(are_patients):
            raise AnnotationsError(f"--{options.option}: {fault}")
        # Images with a group are no evidence: if all have one, nothing is found.
        found = self.evidence.find()
        if found is None:
            return
        text = f"{describe(found, self.evidence.level)}; {_EACH}"
        # A word such as patient is proof enough to refuse; structure alone may be cameras or batches, see
        # docs/decisions.md.
        if found.is_named:
            raise AnnotationsError(f"--{options.option}: {text}")
        warn(text)

    def _fault(self, are_patients: bool) -> str:
        if self.grouped and self.ungrouped:
            return (
                f"{self.grouped} has a group (a patient or the like) and {self.ungrouped} has none, so "
                f"that it may belong to one in another split; give all of them one, or use --group-pattern; {_EACH}"
            )
        # DICOM has a field for the patient, which is empty or was removed.
        if are_patients and self.ungrouped and self.count > 1:
            return (
                f"{self.ungrouped} has no patient id, so that it may be of one patient with a scan in another "
                f"split; use --group-pattern if its path names the patient; {_EACH}"
            )
        if self.grouped and not self.has_several and self.count > 1:
            return (
                f"all {plural(self.count, 'input is', 'inputs are')} of one group, such as "
                f"{self.grouped}, and a group is not "
                f"divided; use --group-pattern if their paths name others; {_EACH}"
            )
        return ""


def _check_undivided_groups(examples: Iterable[SourceExample]) -> Iterator[SourceExample]:
    """Yield the same examples; raise AnnotationsError for the first group with a second split."""
    first: dict[str, SourceExample] = {}
    for example in examples:
        if example.group is not None and example.problem is None:
            other = first.setdefault(example.group, example)
            # Results of the test split would be too good, see docs/conversion-findings.md.
            if other.split != example.split:
                raise AnnotationsError(
                    f"a group is divided, such as a patient's: {other.source} is in {other.split}, "
                    f"{example.source} in {example.split}; correct the splits, or assign them by shares"
                )
        yield example


def _split_by_shares(
    examples: Iterable[SourceExample], options: SplitOptions, warn: Callable[[str], None]
) -> Iterator[SourceExample]:
    """Yield each example with the split of its group."""
    counts = GroupCounts(seed=options.seed)
    spilled: SpillList[SourceExample] = SpillList()
    for example in examples:
        # Images that are rejected have no share.
        if example.problem is None:
            counts.add(example)
        spilled.add(example)
    yield from divide_examples(spilled, divide(counts, options, warn))


def divide(counts: GroupCounts, options: SplitOptions, warn: Callable[[str], None]) -> Division:
    """Return the split of every group by the shares; warn of splits without an image."""
    division = counts.divide(options.shares)
    if lacking := division.lacking():
        warn(f"--{options.option}: {lacking}")
    held_out = sorted(name for name in counts.source_splits if name.lower().startswith("test"))
    # Shares say that the source's splits are replaced; folds are mostly made of what is not held out.
    if options.folds is not None and held_out and len(counts.source_splits) > 1:
        warn(
            f"--folds: the images of the source's split {held_out[0]} are in the folds, too; to hold them out, remove "
            "them from --source, and convert them to a separate data set"
        )
    return division


def divide_examples(examples: Iterable[SourceExample], division: Division) -> Iterator[SourceExample]:
    """Yield each example with the split of its group."""
    for example in examples:
        yield replace(example, split=division.split_of(example))


def _split_by_lists(examples: Iterable[SourceExample], lists: Mapping[str, str]) -> Iterator[SourceExample]:
    """Yield each example with the split of the list that names it, or with a problem if no list does.

    An entry is compared with the images' paths first, then with paths without extension, ids, file names and stems.
    The first kind that matches any image decides. Then the end of a path decides, see `match_ends`.
    """
    meanings = _Meanings.of(lists)
    spilled: SpillList[SourceExample] = SpillList()
    count = 0
    for count, example in enumerate(examples, start=1):
        meanings.record(count - 1, example)
        spilled.add(example)
    meanings.record_ends(spilled)
    chosen = array("h", [-1]) * count
    _choose_lists(chosen, lists, meanings, spilled)
    names = list(lists)
    for number, example in zip(chosen, spilled, strict=True):
        if number >= 0:
            yield replace(example, split=names[number])
        else:
            yield replace(example, problem=example.problem or _NO_LIST)


def _choose_lists(
    chosen: array[int], lists: Mapping[str, str], meanings: _Meanings, examples: SpillList[SourceExample]
) -> None:
    """Write the number of the list that names each example into `chosen`.

    Raises:
        AnnotationsError: an entry means no image or several, or two entries mean one.
    """
    names = list(lists)
    for split, line, entry in _entries(lists):
        place = f"{split} list, line {line}"
        position = meanings.position_of(entry)
        if position is None:
            raise AnnotationsError(
                f"{place}: {entry!r} means no image; expected the path, file name, stem or id of one, and nothing else "
                "in the line; correct or remove it"
            )
        if among := meanings.several(entry):
            named = " and ".join(_sources(examples, among))
            raise AnnotationsError(f"{place}: {entry!r} means several images: {named}; write the path")
        # An image in train and test is a leak; twice in one list it is a mistake of the same kind.
        if chosen[position] >= 0:
            other = next(one for _, _, one in _entries(lists) if meanings.position_of(one) == position)
            raise AnnotationsError(
                f"{place}: {_sources(examples, [position])[0]} is already in the {names[chosen[position]]} list "
                f"({other!r}); list each image once"
            )
        chosen[position] = names.index(split)


def _entries(lists: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """Yield (split, line number, text) of every entry of all lists."""
    for split, text in lists.items():
        for line, entry in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            if entry.strip():
                yield split, line, entry.strip()


def _name_of(entry: str) -> str:
    """Return the name in an entry without a class number after it, as in UCF101's lists.

    >>> _name_of("./Archery/v_1.avi 3"), _name_of("scan 3")
    ('Archery/v_1.avi', 'scan 3')
    """
    name = entry.replace("\\", "/").removeprefix("./")
    first, _, last = name.rpartition(" ")
    # Other names may end in a number behind a blank.
    is_numbered = last.isdecimal() and (is_image_name(first) or is_video_name(first))
    return first.rstrip() if is_numbered else name


class _Meanings:
    """Image that each entry of lists means, by the best of the kinds of its names.

    It has one number for each entry: the rank of the best kind times `_RANK_STEP`, plus the position of the image.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._best = dict.fromkeys(names, _NOT_FOUND)
        self._several: dict[str, list[int]] = {}

    @classmethod
    def of(cls, lists: Mapping[str, str]) -> _Meanings:
        """Return the meanings of the entries of lists, before any image is known."""
        return cls(_name_of(entry) for _, _, entry in _entries(lists))

    def record(self, position: int, example: SourceExample) -> None:
        """Record the position of an example for each listed name that it matches, unless another has a better rank."""
        path = PurePosixPath(example.source)
        names = (example.source, str(path.with_suffix("")), str(example.key), path.name, path.stem)
        for rank, name in enumerate(names):
            if (best := self._best.get(name)) is None:
                continue
            if rank < best // _RANK_STEP:
                self._best[name] = rank * _RANK_STEP + position
                self._several.pop(name, None)
            elif rank == best // _RANK_STEP and len(self._several.get(name, ())) < _MAX_SHOWN:
                # A message names three images at most.
                self._several.setdefault(name, [best % _RANK_STEP]).append(position)

    def record_ends(self, examples: Iterable[SourceExample]) -> None:
        """Record the images of the names that are left, by the ends of their paths."""
        missing = [name for name, best in self._best.items() if best == _NOT_FOUND]
        if not missing:
            return
        for name, positions in match_ends(missing, (one.source for one in examples)).items():
            self._best[name] = _BY_END * _RANK_STEP + positions[0]
            if len(positions) > 1:
                self._several[name] = positions[:_MAX_SHOWN]

    def position_of(self, entry: str) -> int | None:
        """Return the position of the image that an entry means; None if it means none."""
        best = self._best[_name_of(entry)]
        return None if best == _NOT_FOUND else best % _RANK_STEP

    def several(self, entry: str) -> Sequence[int]:
        """Return the first positions if an entry means several images; () otherwise."""
        return self._several.get(_name_of(entry), ())


def _sources(examples: Iterable[SourceExample], positions: Sequence[int]) -> list[str]:
    return [one.source for number, one in enumerate(examples) if number in positions]


def read_fold(document: object, fold: int | None) -> dict[str, tuple[str, ...]]:
    """Return the cases per split for one fold of nnU-Net's splits_final.json: [{"train": [...], "val": [...]}, ...].

    Raises:
        UsageError: the document has another form, or no such fold.
    """
    if not isinstance(document, list) or not document or not all(map(_is_fold, document)):
        raise UsageError('expected [{"train": ["case", ...], "val": [...]}, ...], one for each fold')
    if fold is None and len(document) > 1:
        raise UsageError(f"it has {len(document)} folds; use --nnunet-fold 0 to {len(document) - 1}")
    if fold is not None and not 0 <= fold < len(document):
        raise UsageError(f"--nnunet-fold {fold}: expected 0 to {len(document) - 1}")
    return {split: tuple(cases) for split, cases in document[fold or 0].items()}


def _is_fold(content: object) -> bool:
    """Return whether a part of a document has a list of names for each split."""
    if not isinstance(content, dict):
        return False
    are_lists = all(isinstance(cases, list) for cases in content.values())
    return are_lists and all(isinstance(case, str) for cases in content.values() for case in cases)


def _split_by_cases(
    examples: Iterable[SourceExample], cases: Mapping[str, Sequence[str]]
) -> Iterator[SourceExample]:
    """Yield the examples of split `train` with the split of their case; one without a case gets a problem.

    A case is an image's id, or its file name without extension and without the number of its channel (_0000).
    """
    chosen = _split_of_cases(cases)
    listed, used = list(examples), set()
    for example in listed:
        used |= _case_names(example) if example.split == "train" else set()
    # Another data set's file would leave all images without a split.
    if unknown := [name for name in chosen if name not in used]:
        raise AnnotationsError(
            f"--nnunet-splits: {', '.join(unknown[:5])}: no such case among the training images; "
            "name the file of this data set"
        )
    for example in listed:
        found = [chosen[name] for name in _case_names(example) if name in chosen]
        if example.split != "train":  # imagesTs is nnU-Net's test set, which no fold divides
            yield example
        elif found:
            yield replace(example, split=found[0])
        else:
            yield replace(example, problem=example.problem or _NO_LIST)


def _split_of_cases(cases: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the split of each case; raise AnnotationsError for a case in two splits."""
    chosen: dict[str, str] = {}
    for split, names in cases.items():
        for name in names:
            if chosen.setdefault(name, split) != split:
                raise AnnotationsError(
                    f"--nnunet-splits: case {name!r} is in {chosen[name]} and in {split}; list it once"
                )
    return chosen


def _case_names(example: SourceExample) -> set[str]:
    stem = stem_of(example.source)
    return {str(example.key), stem, re.sub(r"_[0-9]{4}$", "", stem)}


def find_split_lists(files: SourceFiles) -> dict[str, str]:
    """Return the path of the list for each split, if lists divide the images of these files; otherwise {}.

    VOC's ImageSets/Segmentation has such lists: train.txt and val.txt. They are in one folder, each line names an
    image by path or stem, and no image occurs twice.
    """
    candidates = _lists_in_one_folder(files)
    if not candidates:
        return {}
    images = [path for path in files.sizes() if is_image_name(path) or is_volume_name(path)]
    stems = set(map(stem_of, images))
    for lists in candidates:
        names = _names_in_lists(files, lists)
        # Text files called train.txt may hold anything, such as paths of another set.
        if names and (stems.issuperset(map(stem_of, names)) or _mean_one_image_each(names, images)):
            return lists
    return {}


def _lists_in_one_folder(files: SourceFiles) -> list[dict[str, str]]:
    """Return the text files that are called like splits, by split, of each folder with several of them."""
    by_folder: dict[str, dict[str, str]] = {}
    for path in files.sizes():
        folder, _, name = path.rpartition("/")
        stem, _, extension = name.rpartition(".")
        # VOC's trainval is the union of train and val.
        if extension == "txt" and is_split_name(stem) and stem.lower() != "trainval":
            by_folder.setdefault(folder, {})[stem.lower()] = path
    return [lists for lists in by_folder.values() if len(lists) > 1]


def _names_in_lists(files: SourceFiles, lists: Mapping[str, str]) -> list[str]:
    """Return the names in lists; [] if a list is unreadable or repeats a name."""
    try:
        texts = {split: files.read(path).decode("utf-8-sig") for split, path in lists.items()}
    except (SourceError, UnicodeDecodeError):
        return []
    names = [_name_of(entry) for _, _, entry in _entries(texts)]
    return names if len(set(names)) == len(names) else []


def _mean_one_image_each(names: Sequence[str], images: Sequence[str]) -> bool:
    found = match_ends(names, images)
    return sorted(found) == sorted(names) and all(len(places) == 1 for places in found.values())
