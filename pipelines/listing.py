"""Listing of a large source by a job's workers, which also assign splits and count.

    command           each folder             each 100,000 files           each 16 million ids
    names folders ──> list files and      ──> make, count and write    ──> search for
    near the top      look at the layout      references and their ids     duplicate ids

The workers write their results below the output's temporary folder, and the command receives totals. Between the first
two steps the command decides what all references depend on: whether the first folder is a split, and equal class names.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np

from halofeed.pipelines.list_references import print_warning, with_chosen_classes
from halofeed.pipelines.opened_sources import Sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.references import REFERENCES_PER_FILE, NumberedFiles, read_file, write_file
from halofeed.pipelines.run_distributed import Place, RunDistributed, write_pieces
from halofeed.pipelines.totals import Totals
from halofeed.prep.annotations.choose_classes import ChosenCounts
from halofeed.prep.annotations.contract import LayoutOptions, PartwiseListing, reject_lone_surrogates
from halofeed.prep.annotations.group_evidence import GroupEvidence, ImageFacts
from halofeed.prep.annotations.shares import Division, GroupCounts
from halofeed.prep.annotations.splits import (
    GroupFacts,
    SplitOptions,
    add_groups,
    assign_splits,
    divide,
    divide_examples,
)
from halofeed.prep.layouts import Layout, find_layout, folders
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_dicom_name, is_image_name, is_scan_name
from halofeed.prep.sources.files import LocalFiles, RemoteFiles, settled_stamp, source_files
from halofeed.prep.sources.walk import PartialListing
from halofeed.schemas.file_layout import TEMPORARY_FOLDER
from halofeed.schemas.identity import ID_LIMIT, refuse_repeated
from halofeed.schemas.ledger import LedgerCounter
from halofeed.storage.choose import for_workers, store_of
from halofeed.system.addresses import is_remote
from halofeed.system.checksum import with_checksum, without_checksum
from halofeed.system.console import print_status
from halofeed.system.errors import Problem, UsageError

FILES_IN_COMMAND = 100_000
"""Number of files up to which the command lists a source itself by default."""
_FOLDERS, _DEEPEST = 1000, 3
"""Folders to list in parallel: those of the first level with so many, or of the deepest level that is searched."""
_OTHERS = 10_000
"""Maximum number of files other than images; with more, the command lists the source itself."""
_PIECES_AT_ONCE = 10
_IDS_AT_ONCE = 16_000_000
_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A listing as each worker receives it.

    Args:
        images: folder of the source.
        folder: output folder.
        division: split of every group, where shares divide the images of all workers.
    """

    recipe: Recipe
    images: str
    folder: str
    layout: str
    options: LayoutOptions
    splits: SplitOptions
    division: Division | None = None


@dataclass(kw_only=True)
class _Listed:
    """Result for one folder.

    Args:
        shown: the layout's findings.
        others: files other than images, at most one more than `_OTHERS`.
        faults: problems by path, as in `PartialListing`; also `seen` and `has_links`.
        files: the paths of `faults` that are files.
        pieces: places of the lists of files, with up to 10,000 files each.
        count: number of files.
        has_dicom: whether a file is DICOM by its name.
    """

    shown: Any
    others: list[str] = field(default_factory=list)
    faults: dict[str, Problem] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    seen: tuple[tuple[int, int], ...] = ()
    has_links: bool = False
    has_dicom: bool = False
    pieces: list[Place] = field(default_factory=list)
    count: int = 0


TRANSFERRED_CLASSES = (
    *(_Listed, Totals, ChosenCounts, folders.FolderSummary, Counter),
    *(GroupCounts, GroupFacts, GroupEvidence, ImageFacts, LedgerCounter),
)
"""Classes that travel between the command and its workers."""


@dataclass(frozen=True, kw_only=True)
class ListingInJob:
    """Listing of a source by workers, as `make_plan` takes it.

    Args:
        output: folder of the version.
        writer: writer of the references.
        is_required: whether the user asked for it, even for few files.
    """

    recipe: Recipe
    sources: Sources
    output: OutputFolder
    run_distributed: RunDistributed
    writer: NumberedFiles
    is_required: bool

    def _unfit(self, layout: Layout, splits: SplitOptions) -> str:
        if layout.in_parts is None or self.sources.annotation_file is not None:
            return f"layout {layout.name} is read as a whole"
        if self.recipe.rules.kind.name != "picture" or cuts_pictures(self.recipe):
            return "it is for pictures"
        # Each worker would have to list both folders to pair their files.
        if self.sources.annotations is not self.sources.images:
            return "it is for one folder, without --images"
        if splits.lists or splits.cases:
            return "lists of splits are compared with all names"
        if not splits.finds_groups and not splits.shares:
            return "groups are compared with the splits of all images; --split-shares divides by groups"
        return ""

    def __call__(self, layout: Layout, options: LayoutOptions, splits: SplitOptions) -> Totals | None:
        """List the source, write its references and return their totals; None where the command must list it."""
        reason = self._unfit(layout, splits)
        if reason and self.is_required:
            raise UsageError(f"--listing job: {reason}; leave it out")
        if reason or layout.in_parts is None:
            return None
        # A job takes minutes to start, in which the command lists a small source itself.
        if not self.is_required and self.sources.images.lists_within(FILES_IN_COMMAND):
            return None
        try:
            # Workers judge files by their names, and refuse a source with DICOM pictures.
            plain = replace(options, takes=is_image_name, takes_scan=is_scan_name)
            return self._listed(layout.in_parts, layout.name, plain, splits)
        except _CommandMustListError as error:
            print_status(f"halofeed convert: this command lists the source, not the job: {error}")
            return None

    def _listed(
        self, in_parts: PartwiseListing, layout: str, options: LayoutOptions, splits: SplitOptions
    ) -> Totals:
        files = self.sources.images
        search = _Search(
            recipe=self.recipe,
            images=for_workers(files.root),
            folder=for_workers(self.output.root),
            layout=layout,
            options=options,
            splits=splits,
        )
        names, near_top = _split_into_folders(files)
        list_folder = functools.partial(_list_folder, search)
        listed = [_write_listing(search, near_top), *self.run_distributed(list_folder, names)]
        _check_listings(listed)
        rules = self._rules(in_parts, listed, options)
        faults: dict[str, Problem] = {}
        for one in listed:
            faults |= one.faults
        files.adopt({}, faults)
        totals = self._plan(search, rules, listed)
        of_files = {path for one in listed for path in one.files}
        named = {one.source for one in in_parts.references_of(sorted(of_files), rules, options)}
        self._add_faults(totals, {path: faults[path] for path in faults.keys() - named})
        self.writer.finish(())
        return totals

    def _rules(self, in_parts: PartwiseListing, listed: Sequence[_Listed], options: LayoutOptions) -> Any:
        """Return what all references depend on, such as whether the first folder is a split."""
        shown = listed[0].shown
        for one in listed[1:]:
            shown.add(one.shown)
        others = [path for one in listed for path in one.others]
        rules = in_parts.resolve_rules(shown, others, self.sources.images, options)
        if rules is None:
            raise _CommandMustListError("files beside the images may describe them")
        return rules

    def _add_faults(self, totals: Totals, faults: Mapping[str, Problem]) -> None:
        """Write a rejected reference for each path that could not be listed and that no reference names."""
        files = self.sources.images
        stamp = functools.partial(settled_stamp, files)
        for path, problem in sorted(faults.items()):
            reference = SourceExample(source=path, key=path, problem=problem)
            self.writer.add(reference.split, *totals.take(reference, files.size, stamp))

    def _plan(self, search: _Search, rules: Any, listed: list[_Listed]) -> Totals:
        pieces = [place for one in listed for place in one.pieces]
        numbers = range(0, len(pieces), _PIECES_AT_ONCE)
        groups = [(first, pieces[first : first + _PIECES_AT_ONCE]) for first in numbers]
        parts = -(-sum(one.count for one in listed) // _IDS_AT_ONCE)
        totals = Totals()
        ids: list[list[Place]] = [[] for _ in range(parts)]
        if search.splits.shares:
            search = replace(search, division=self._divide(search, rules, groups))
        plan_pieces = functools.partial(_plan_pieces, search, rules, parts)
        for more, places in self.run_distributed(plan_pieces, groups):
            totals.add(more)
            for part, place in zip(ids, places, strict=True):
                part.append(place)
        self.writer.count = len(pieces)
        self._check_ids(search.folder, ids)
        return totals

    def _check_ids(self, folder: str, ids: Sequence[list[Place]]) -> None:
        """Refuse references of one id, by the places of the ids of each range."""
        # A single range is compared here: submitting a job takes longer than sorting 16 million ids.
        call = self.run_distributed if len(ids) > 1 else map
        for repeated in call(functools.partial(_find_repeated, folder), ids):
            refuse_repeated(array("q", 2 * repeated), self._keys)

    def _divide(self, search: _Search, rules: Any, groups: Sequence[tuple[int, list[Place]]]) -> Division:
        """Return the split of every group; memory: 12 bytes per image, and `group_evidence.MAX_ROWS` paths."""
        counts, facts = GroupCounts(seed=search.splits.seed), GroupFacts()
        for more_counts, more_facts in self.run_distributed(
            functools.partial(_measure_pieces, search, rules), groups
        ):
            counts.merge(more_counts)
            facts.merge(more_facts)
        facts.check(search.splits, warn=print_warning)
        return divide(counts, search.splits, print_warning)

    def _keys(self) -> Iterator[tuple[str | int, str]]:
        for number in range(self.writer.count):
            for reference, _ in read_file(self.output, number):
                if reference.problem is None:
                    yield reference.key, reference.source


class _CommandMustListError(Exception):
    """Reason why workers cannot list a source in parts."""


def _split_into_folders(files: LocalFiles | RemoteFiles) -> tuple[list[str], list[PartialListing]]:
    """Return folders to list in parallel, and the parts near the top that belong to none of them."""
    large: list[str] = []
    parts: list[PartialListing] = []
    level = [""]
    for _ in range(_DEEPEST):
        # Enough for all workers of a cluster; deeper levels would only cost requests here.
        if not level or len(level) >= _FOLDERS:
            break
        deeper: list[str] = []
        with ThreadPoolExecutor(_THREADS) as pool:
            for folder, part in zip(level, pool.map(files.list_folder, level), strict=True):
                if part is None:  # too many entries to list here; a worker lists all below it
                    large.append(folder)
                elif part.has_links:
                    raise _CommandMustListError("links lead to folders")
                else:
                    deeper += part.folders
                    parts.append(part)
        level = deeper
    return [*large, *level], parts


def _check_listings(listed: Iterable[_Listed]) -> None:
    """Refuse listings that may not add up to the source."""
    seen: set[tuple[int, int]] = set()
    others = 0
    for one in listed:
        others += len(one.others)
        if one.has_dicom:
            raise _CommandMustListError("the headers of DICOM pictures name their patients")
        if one.has_links:
            raise _CommandMustListError("links lead to folders")
        if not seen.isdisjoint(one.seen):
            raise _CommandMustListError("two paths lead to one folder")
        if others > _OTHERS:
            raise _CommandMustListError("there are many files other than images")
        seen.update(one.seen)


def _list_folder(search: _Search, folder: str) -> _Listed:
    """List everything below a folder of the source."""
    return _write_listing(search, [source_files(search.images).below(folder)])


def _write_listing(search: _Search, parts: Iterable[PartialListing]) -> _Listed:
    """Write the list of files in pieces, and return the findings."""
    in_parts = find_layout(search.layout).in_parts
    assert in_parts is not None
    found = _Listed(shown=in_parts.summarize((), search.options))

    def pieces() -> Iterator[bytes]:
        for part in parts:
            files = iter(part.files)
            while some := list(islice(files, REFERENCES_PER_FILE)):
                yield with_checksum(json.dumps(some).encode())
                paths = [path for path, _ in some]
                found.shown.add(in_parts.summarize(paths, search.options))
                others = (path for path in paths if not is_image_name(path))
                found.others += islice(others, _OTHERS + 1 - len(found.others))
                found.files += part.faults.keys() & set(paths)
                found.count += len(some)
                found.has_dicom |= any(map(is_dicom_name, paths))
            found.faults.update(part.faults)
            found.seen += part.seen
            found.has_links |= part.has_links

    found.pieces = write_pieces(OutputFolder(search.folder), f"{TEMPORARY_FOLDER}/listed", pieces())
    return found


def _references_of(
    search: _Search, rules: Any, paths: Iterable[str], counts: ChosenCounts
) -> Iterator[SourceExample]:
    layout = find_layout(search.layout)
    assert layout.in_parts is not None
    references = reject_lone_surrogates(layout.in_parts.references_of(paths, rules, search.options))
    return with_chosen_classes(references, search.recipe, counts)


def _measure_pieces(
    search: _Search, rules: Any, group: tuple[int, list[Place]]
) -> tuple[GroupCounts, GroupFacts]:
    """Return the groups of a group of pieces, and the evidence of groups."""
    counts, facts = GroupCounts(seed=search.splits.seed), GroupFacts()
    output = OutputFolder(search.folder)
    for place in group[1]:
        paths = [path for path, _ in json.loads(without_checksum(output.read(*place)))]
        for example in add_groups(_references_of(search, rules, paths, ChosenCounts()), search.splits):
            if example.problem is None:
                # A rejected example has no record, so it takes no share of a split.
                counts.add(example)
                facts.add(example, search.splits)
    return counts, facts


def _plan_pieces(
    search: _Search, rules: Any, parts: int, group: tuple[int, list[Place]]
) -> tuple[Totals, list[Place]]:
    """Write the references of a group of pieces; return their totals, and the place of the ids in each of equal ranges.

    Args:
        parts: number of ranges.
        group: number of the first piece, and the places of the pieces.
    """
    output = OutputFolder(search.folder)
    totals = Totals(in_order=None)
    stamp = functools.partial(settled_stamp, source_files(search.images))
    first, places = group
    for number, place in enumerate(places, start=first):
        sizes = dict(json.loads(without_checksum(output.read(*place))))
        size = functools.partial(_size, search.images, sizes)
        references = _references_of(search, rules, sizes, totals.chosen)
        if search.division is None:
            assigned = assign_splits(references, search.splits)
        else:
            assigned = divide_examples(add_groups(references, search.splits), search.division)
        lines = [totals.take(reference, size, stamp)[1] for reference in assigned]
        write_file(output, number, lines)
    ids = np.sort(np.frombuffer(totals.identities, np.int64))
    name = f"{TEMPORARY_FOLDER}/ids-{first:05d}"
    output.write(name, ids.tobytes())
    limits = [-(-number * ID_LIMIT // parts) for number in range(1, parts)]
    ends = [0, *(8 * np.searchsorted(ids, np.array(limits, np.int64))).tolist(), ids.nbytes]
    return totals, [(name, start, end) for start, end in pairwise(ends)]


def _size(images: str, known: Mapping[str, int], path: str) -> int | None:
    """Return the bytes of a file of the source; None where there is no such file."""
    # A piece knows its own files; a reference may name others, such as a mask in another folder.
    if path in known:
        return known[path]
    if not is_remote(images):
        return LocalFiles(images).size(path)
    stored = store_of(images).stat(path)
    return None if stored is None else stored.size


def _find_repeated(folder: str, places: Iterable[Place]) -> list[int]:
    """Return the ids that occur more than once in these places."""
    output = OutputFolder(folder)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda place: output.read(*place), places))
    ids = np.sort(np.frombuffer(b"".join(found), np.int64))
    return [int(one) for one in np.unique(ids[1:][ids[1:] == ids[:-1]])]
