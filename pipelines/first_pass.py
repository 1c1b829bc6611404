"""First pass over the sources of a conversion with --duplicates: which inputs show the same.

    inputs ──> signatures, by the workers ──> alike pairs ──> pixels of doubtful ones ──> groups of copies ──> labels

The pass decodes each picture at a small scale, and each scan and clip as the conversion does. Its result depends on the
inputs and on the recipe, and not on workers, so a conversion that was killed finds the same copies again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halofeed.pipelines.inputs import input_content, with_members
from halofeed.pipelines.run_distributed import RunDistributed
from halofeed.prep.annotations.unlabeled import is_unlabeled
from halofeed.prep.convert.source_signatures import (
    SIGNED_SIDE,
    SourceSignature,
    differing_annotations,
    differing_places,
    differing_shares,
    gray_picture,
    label_places,
    label_shares,
    sign_source,
)
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles, source_files
from halofeed.prep.voxels.copy_groups import (
    MOST_COMPARED,
    CopyGroup,
    are_copies,
    doubtful_pairs,
    group_pairs,
    without_unlike,
)
from halofeed.prep.voxels.copy_search import Pairs, find_pairs_within, is_certain
from halofeed.prep.voxels.same_pixels import Gray
from halofeed.prep.voxels.signatures import unpack_signatures, with_group
from halofeed.system.errors import JobError
from halofeed.system.memory import ReserveMemory, retry_when_memory_free
from halofeed.system.threads import OrderedThreads

_PICTURES_AT_ONCE, _SCANS_AT_ONCE = 64, 4
"""Inputs of one call of a worker."""
_PAIRS_AT_ONCE = 512
"""Doubtful pairs whose pictures are in memory at the same time: 36 MiB."""
_SAME_OBJECTS = 0.98
"""Correlation of details from which copies show the same objects, as in `halofeed review`."""


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """Options of the pass as each worker receives them.

    Args:
        recipe: recipe of the conversion.
        images: folder of the source.
        series_folder: folder of the lists of DICOM slices.
        threads: threads of each worker.
        memory_bytes: memory for the inputs of one worker; None if unknown.
    """

    recipe: Recipe
    images: str
    threads: int
    series_folder: str | None = None
    memory_bytes: int | None = None


_Numbered: TypeAlias = "tuple[int, SourceExample]"
_Work: TypeAlias = "Callable[[Recipe, SourceExample, SourceFiles, ReserveMemory], Any]"


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundCopies:
    """Copies among the inputs of a conversion.

    Args:
        groups: groups of inputs, by their numbers in the order of the listing.
        differences: how the labels of a group differ, by its number in `groups`.
        pixels: pixels or voxels of each input, int64 [input].
        contents: digest of the file's bytes of each input, by its number; "" for inputs that are not one file.
        failed: number of inputs that could not be decoded, which the conversion will reject.
        left: doubtful pairs that were not compared.
    """

    groups: Sequence[CopyGroup]
    differences: Mapping[int, str]
    pixels: NDArray[np.int64]
    contents: Mapping[int, str]
    failed: int
    left: int


@dataclass(kw_only=True, eq=False)
class FirstPass:
    """The pass over the inputs of one conversion; equal inputs are decoded once.

    Args:
        options: what each worker receives.
        run: calls functions in the workers, or here.
        complete: adds files to an example that its name does not show.
        known: returns the signature that an earlier version has of an example, and the content from which it was made.
        progress: receives the number of inputs that were given to workers, and the number of all.
    """

    options: PassOptions
    run: RunDistributed
    complete: Callable[[SourceExample], SourceExample]
    known: Callable[[SourceExample], tuple[tuple[int, ...], str] | None] = lambda example: None
    progress: Callable[[int, int], None] = lambda done, count: None
    _signed: dict[tuple[str, str | int, str | None], SourceSignature | None] = field(default_factory=dict)

    def find(self, examples: Iterable[SourceExample], count: int) -> FoundCopies:
        """Return the copies among examples, which are looped over several times; those with a problem have none.

        Args:
            count: number of the examples.
        """
        signed, unlabeled = self._sign(examples, count)
        width = max((len(one.words) for one in signed.values() if one is not None), default=0)
        words = np.zeros((count, width), np.int64)
        for number, one in signed.items():
            if one is not None:
                words[number, : len(one.words)] = one.words
        signatures = unpack_signatures(words)
        # One patient is in one split anyway, and scans of one region are much alike.
        # Images for prediction have no label that could leak, as `halofeed review` has it.
        pairs = find_pairs_within(signatures, unlabeled, signatures.groups)
        pairs, left = self._confirmed(examples, pairs, signatures.thumbnails.shape[1])
        groups = group_pairs(pairs)
        signed |= self._sign_known(examples, groups, signed)
        contents: dict[int, str] = {}
        pixels = np.zeros(count, np.int64)
        for number, one in signed.items():
            if one is not None:
                contents[number], pixels[number] = one.content, one.pixels
        return FoundCopies(
            groups=groups,
            differences=self._differences(examples, groups, contents),
            pixels=pixels,
            contents=contents,
            failed=sum(one is None for one in signed.values()),
            left=left,
        )

    def _sign(
        self, examples: Iterable[SourceExample], count: int
    ) -> tuple[dict[int, SourceSignature | None], NDArray[np.bool_]]:
        """Return the signature of each example without a problem, and which examples are for prediction."""
        unlabeled = np.zeros(count, np.bool_)
        keys: dict[int, tuple[str, str | int, str | None]] = {}
        may_lack_labels = self.options.recipe.may_hold_label_images()

        def unchanged() -> Iterator[_Numbered]:
            for number, example in enumerate(examples):
                if example.problem is None and self.known(example) is not None:
                    yield number, self.complete(example)

        contents = (
            dict(self._run(content_now, unchanged())) if _signs_records_alike(self.options.recipe) else {}
        )

        def new() -> Iterator[_Numbered]:
            for number, example in enumerate(examples):
                self.progress(number, count)
                if example.problem is not None:
                    continue
                unlabeled[number] = may_lack_labels and is_unlabeled(example)
                keys[number] = (example.source, example.key, example.group)
                earlier = self.known(example) if contents.get(number) else None
                if earlier is not None and earlier[1] == contents[number]:
                    words = with_group(earlier[0], example.group)
                    self._signed[keys[number]] = SourceSignature(words=words, pixels=0)
                elif keys[number] not in self._signed:
                    yield number, _decoded_alone(self.complete(example))

        for number, one in self._run(sign_source, new()):
            self._signed[keys[number]] = one
        return {number: self._signed[key] for number, key in keys.items()}, unlabeled

    def _sign_known(
        self,
        examples: Iterable[SourceExample],
        groups: Sequence[CopyGroup],
        signed: Mapping[int, SourceSignature | None],
    ) -> dict[int, SourceSignature]:
        """Return new signatures of those copies whose signatures are of the earlier version.

        Indexes have no size and no digest of the file alone, which decide which copy is kept, and whether boxes are
        compared by their places. Without them, --from would leave out what a complete conversion keeps.
        """
        members = {number for group in groups for number in group.records}
        known = {number for number in members if (one := signed[number]) is not None and not one.pixels}
        if not known:
            return {}
        again = ((number, _decoded_alone(example)) for number, example in self._chosen(examples, known))
        return {number: one for number, one in self._run(sign_source, again) if one is not None}

    def _confirmed(self, examples: Iterable[SourceExample], pairs: Pairs, planes: int) -> tuple[Pairs, int]:
        """Return the pairs that are copies, and how many were too many to compare."""
        certain = is_certain(pairs, planes)
        copies = certain.copy()
        doubtful, left = doubtful_pairs(pairs, planes, MOST_COMPARED)
        for part in range(0, len(doubtful), _PAIRS_AT_ONCE):
            some = doubtful[part : part + _PAIRS_AT_ONCE]
            wanted = {*pairs.first[some].tolist(), *pairs.second[some].tolist()}
            pictures: dict[int, Gray | None] = dict(self._run(gray_picture, self._chosen(examples, wanted)))
            for at in some.tolist():
                first, second = pictures[int(pairs.first[at])], pictures[int(pairs.second[at])]
                copies[at] = are_copies(pairs, at, first, second)
        trusted = without_unlike(copies, certain, doubtful)
        return pairs.take(trusted), left + int((copies & ~trusted).sum())

    def _differences(
        self,
        examples: Iterable[SourceExample],
        groups: Sequence[CopyGroup],
        contents: Mapping[int, str],
    ) -> dict[int, str]:
        """Return how the labels of each group differ, for the groups where they do."""
        of_group = {number: place for place, group in enumerate(groups) for number in group.records}
        members: dict[int, list[_Numbered]] = {}
        for number, example in self._chosen(examples, of_group.keys()):
            members.setdefault(of_group[number], []).append((number, example))
        found: dict[int, str] = {}
        labeled: list[_Numbered] = []
        exact: set[int] = set()
        for place, some in members.items():
            group = groups[place]
            is_whole = not group.is_part and group.similarity >= _SAME_OBJECTS
            same = {contents[number] for number, _ in some}
            is_exact = len(same) == 1 and "" not in same
            words = differing_annotations(
                [example for _, example in some],
                is_whole=is_whole,
                is_exact=is_exact,
            )
            if words:
                found[place] = words
            elif is_whole:
                labeled += [(number, example) for number, example in some if example.is_labelled]
                exact |= {place} if is_exact else set()
        return found | self._differing_masks(labeled, of_group, exact)

    def _differing_masks(
        self, labeled: Sequence[_Numbered], of_group: Mapping[int, int], exact: Set[int]
    ) -> dict[int, str]:
        """Return how the label files of each group differ, for the groups where they do.

        Args:
            labeled: inputs with label files.
            of_group: group of each input.
            exact: groups of files with the same bytes.
        """
        shares: dict[int, list[Mapping[str, float]]] = {}
        for number, one in self._run(label_shares, labeled):
            if one is not None:
                shares.setdefault(of_group[number], []).append(one)
        found = {place: words for place, some in shares.items() if (words := differing_shares(some))}
        # Only pictures with the same bytes have their labels at the same places.
        still = [one for one in labeled if of_group[one[0]] in exact - found.keys()]
        places: dict[int, list[Mapping[str, NDArray[np.float64]]]] = {}
        for number, one in self._run(label_places, still):
            if one is not None:
                places.setdefault(of_group[number], []).append(one)
        return found | {place: words for place, some in places.items() if (words := differing_places(some))}

    def _chosen(self, examples: Iterable[SourceExample], numbers: Iterable[int]) -> Iterator[_Numbered]:
        wanted = set(numbers)
        for number, example in enumerate(examples):
            if number in wanted:
                yield number, self.complete(example)

    def _run(self, work: _Work, inputs: Iterable[_Numbered]) -> Iterator[tuple[int, Any]]:
        """Yield the result of each input with its number, None where the input fails."""
        at_once = _PICTURES_AT_ONCE if self.options.recipe.rules.kind.name == "picture" else _SCANS_AT_ONCE
        call = functools.partial(_work_on, self.options, work)
        remaining = iter(inputs)
        for answers in self.run(call, iter(lambda: list(islice(remaining, at_once)), [])):
            yield from answers


def _signs_records_alike(recipe: Recipe) -> bool:
    """Return whether the signatures of records are those of their sources, up to rounding.

    Those of scans and clips are of the part that a record shows, and those of small records have fewer details.
    """
    sides = (recipe.height, recipe.width) if recipe.resize == "fixed-shape" else (recipe.min_dimension,)
    is_whole = recipe.rules.kind.name == "picture" and not cuts_pictures(recipe)
    return is_whole and min(sides) >= SIGNED_SIDE


def content_now(recipe: Recipe, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory) -> str:
    """Return the SHA-256 of the content of an input; "" where a file cannot be read."""
    return input_content(reference, files, recipe.memory_budget(None).share())


def _decoded_alone(example: SourceExample) -> SourceExample:
    """Return an example without its objects, which workers do not need to sign it."""
    return SourceExample(
        source=example.source,
        key=example.key,
        group=example.group,
        video_frame=example.video_frame,
        members=example.members,
        volume=example.volume,
        stored=example.stored,
        parts=example.parts,
        frame=example.frame,
        slices=example.slices,
    )


def _work_on(options: PassOptions, work: _Work, inputs: Sequence[_Numbered]) -> list[tuple[int, Any]]:
    """Return the result of each input, in the threads of a worker."""
    files = source_files(options.images)
    budget = options.recipe.memory_budget(options.memory_bytes)

    def result(numbered: _Numbered) -> tuple[int, Any]:
        number, example = numbered
        complete = with_members(example, options.series_folder)
        try:
            return number, retry_when_memory_free(
                budget, lambda share: work(options.recipe, complete, files, share.reserve_with_margin)
            )
        except JobError:
            raise
        except Exception:
            # The conversion meets the same error, and rejects the input with its reason or ends.
            return number, None

    threads = OrderedThreads(options.threads)
    try:
        return list(threads.map(result, inputs))
    finally:
        threads.close()
