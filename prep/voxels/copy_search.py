"""Search for copies among signatures, in n log n time and memory in proportion to n.

    thumbnail ──> window ──> 8 x 8 cosine terms ──> canonical turn ──> 61 signs ──> sorted keys ──> candidates
    candidates ──> correlation of the thumbnails ──> alignment ──> correlation of their details ──> pairs

A copy may be turned by quarters and mirrored. A mirror image has the same cosine terms with other signs, and a quarter
turn exchanges rows and columns, so the turn in which the two first terms are positive and the larger one is first is
the same for all eight. A copy may be a part of a picture, so each picture also asks for its parts: `_WINDOWS` are parts
of nine tenths, and what lies between them is close enough to one of them for the signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.signatures import SIDE, Signatures

CERTAIN = 0.92
"""Correlation of details from which two thumbnails are copies.

Of 2.9 million pairs of 2,400 photographs, catalog pictures and micrographs, those that were no copies reached 0.89."""
DOUBTFUL = 0.76
"""Correlation of details from which the pixels decide: 95 % of parts of nine tenths have more, and so have some pairs
of catalog pictures."""
_CERTAIN_PART = 0.96
_LINKING = 0.99
"""Correlation of details from which a pair makes other pairs of its group unnecessary."""
_STACK_CERTAIN = 0.97
"""Mean correlation of the three thumbnails from which scans are copies.

Phantoms with organs of other sizes lie as registered heads do, and reach 0.956; scans of hippocampi reach 0.764."""
_FLAT = 256
"""Spread below which a thumbnail shows nothing, in 1/256 of a gray level: black slices and blank pages."""
_LEAST_DETAILS = 6.0
"""Number of cells among which the details of a thumbnail are spread; a blank page with a page number has 1 or 2."""
_TERMS = 8
_BANDS, _MOST_BANDS, _FEW = 4, 16, 100_000
"""Orders in which keys are sorted, and those of at most `_FEW` records.

Of 286 known pairs of CIFAR-10 (60,000 pictures), 4 orders bring 216 to the comparison, and 16 bring 245 (processor time
13 and 26 s); 4 with 32 neighbors bring 234 in 21 s."""
_NEIGHBORS = 8
"""Sorted keys on each side of a key that are compared with it."""
_MOST_SIGNS = 14
"""Signs that may differ: one in 60,000 random pairs differs in as few."""
_UNSURE = 0.25
"""Size of a term, in parts of the usual one, below which the sign may be another in a copy."""
_LEAST_CORRELATION = 0.75
_LEAST_BEFORE_ALIGNMENT = 0.4
_CHUNK = 1 << 14
_ALIGNED_AT_ONCE = 1 << 10
_STEPS = (0.0, 0.025, 0.05, 0.075, 0.1, 0.125)
_MOST_CUT = 0.2
_SPANS = tuple((low, 1 - high) for low in _STEPS for high in _STEPS if low + high <= _MOST_CUT)
"""Parts of a side that an alignment tries."""
_ASKED = ((0.0, 1.0), (0.05, 0.95), (0.0, 0.9), (0.1, 1.0))
_THREADS = 2
MANY = 64
"""Copies of one picture of which pairs are left out that are not needed to link them."""
_WINDOWS = tuple(product(_ASKED, _ASKED))
"""Parts of a picture, rows and columns, that it asks for."""

_Floats = NDArray[np.float32]
_Integers = NDArray[np.int64]
_Span = tuple[float, float]
SearchProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of records that are copies, or may be.

    Args:
        first, second: numbers of the records, int64 [pair]; `second` shows `first`, or a part of it.
        scores: correlation of their details, float32 [pair].
        turns: how `first` is turned into `second`, int64 [pair]: 1 mirrors the columns, 2 mirrors the rows, and 4 then
            exchanges rows and columns.
        rows, columns: part of the first one that the second one shows, fractions, float32 [pair, 2].
    """

    first: _Integers
    second: _Integers
    scores: _Floats
    turns: _Integers
    rows: _Floats
    columns: _Floats

    def __len__(self) -> int:
        return len(self.first)

    def take(self, chosen: NDArray[Any] | slice) -> Pairs:
        """Return the pairs that a mask or numbers choose."""
        return Pairs(**{name: values[chosen] for name, values in vars(self).items()})


def find_pairs(
    signatures: Signatures,
    together: NDArray[np.int64] | None = None,
    progress: SearchProgress | None = None,
    *,
    quick: bool = False,
) -> Pairs:
    """Return the pairs whose thumbnails are alike by `DOUBTFUL` or more, each once.

    Records of one source are no pairs, and pictures that show nothing have no copies. Of many copies of one picture
    each one is in some pair. Of `MANY` and more only those pairs are sure to be found that link them.

    Args:
        signatures: those of all records.
        together: records of one number above 0 are no pairs either, int64 [record]; None for none.
        progress: called with the number of searched windows, and of all windows.
        quick: whether a small set is sorted in as few orders as a large one, for half of the time.
    """
    rows = np.flatnonzero(shows_something(signatures))
    thumbnails = signatures.thumbnails
    planes = thumbnails.shape[1]
    if len(rows) < 2 or not planes:
        return _no_pairs()
    apart = _Apart(sources=signatures.sources, together=together)
    index = _Index(
        thumbnails[:, planes // 2], rows, _MOST_BANDS if len(rows) <= _FEW and not quick else _BANDS
    )
    linked = _Linked(len(thumbnails))
    # Scans need the correlations of all planes before a pair is certain, and sets of scans are small.
    links = planes == 1
    kept = []
    with ThreadPoolExecutor(_THREADS) as threads:
        for window in range(len(_WINDOWS)):
            # All parts of a window see the trees of earlier windows, so that the pairs depend on no thread's speed.
            trees = linked.large_trees() if links else None
            work = partial(_pairs_of, index, window, trees, apart)
            for found in threads.map(work, _parts(len(rows), _CHUNK)):
                kept.append(linked.with_needed(found) if links else found)
            if progress is not None:
                progress(window + 1, len(_WINDOWS))
    pairs = _best_of_each(_joined([_no_pairs(), *kept]))
    del kept
    pairs = _all_aligned(thumbnails, pairs, linked) if links else _aligned(thumbnails, pairs)
    return pairs.take(pairs.scores >= DOUBTFUL)


def find_pairs_within(
    signatures: Signatures, kinds: NDArray[np.bool_], together: NDArray[np.int64] | None = None
) -> Pairs:
    """Return the pairs of `find_pairs` whose records are of one kind, searched for each kind alone.

    In a common search, 64 copies may be linked by records of the other kind only, and without these by nothing.

    Args:
        kinds: bool [record].
        signatures, together: as for `find_pairs`.
    """
    if kinds.all() or not kinds.any():
        return find_pairs(signatures, together)
    found = []
    for numbers in (np.flatnonzero(~kinds), np.flatnonzero(kinds)):
        some = Signatures(**{name: values[numbers] for name, values in vars(signatures).items()})
        pairs = find_pairs(some, None if together is None else together[numbers])
        found.append(replace(pairs, first=numbers[pairs.first], second=numbers[pairs.second]))
    return _joined(found)


def _pairs_of(index: _Index, window: int, trees: _Integers | None, apart: _Apart, part: slice) -> Pairs:
    """Return the pairs of which the first one is in a part of the index, with scores."""
    return _best_of_each(_alike(index.thumbnails, index.candidates(window, part, trees), apart))


def is_certain(pairs: Pairs, planes: int) -> NDArray[np.bool_]:
    """Return which pairs need no look at the pixels, bool [pair].

    A part was found by a search, which also finds the part of another picture that is most alike.
    """
    if planes > 1:
        return np.asarray(pairs.scores >= _STACK_CERTAIN)
    cut = (np.diff(pairs.rows) < 1) | (np.diff(pairs.columns) < 1)
    return np.asarray(pairs.scores >= np.where(cut[:, 0], _CERTAIN_PART, CERTAIN))


def shows_something(signatures: Signatures) -> NDArray[np.bool_]:
    """Return which records have a signature of a picture that is not nearly flat, bool [record]."""
    shown = signatures.spreads >= _FLAT
    for begin in range(0, len(shown), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        details = _details(signatures.thumbnails[part].reshape(-1, SIDE, SIDE).astype(np.float32))
        squares = details.reshape(len(shown[part]), -1) ** 2
        spread = squares.sum(1) ** 2 / np.maximum((squares**2).sum(1), 1e-9)
        shown[part] &= spread >= _LEAST_DETAILS
    return shown


def turned(pictures: NDArray[Any], turn: int) -> NDArray[Any]:
    """Return pictures [..., row, column] after a turn of `Pairs.turns`.

    >>> turned(np.array([[1, 2], [3, 4]]), 5).tolist()
    [[2, 4], [1, 3]]
    """
    if turn & 1:
        pictures = pictures[..., ::-1]
    if turn & 2:
        pictures = pictures[..., ::-1, :]
    return np.swapaxes(pictures, -1, -2) if turn & 4 else pictures


def turn_back(turn: int) -> int:
    """Return the turn that undoes a turn: exchanging rows and columns first also exchanges what is mirrored."""
    return turn if not turn & 4 else 4 | (turn & 1) << 1 | (turn & 2) >> 1


def turn_by_both(first: int, second: int) -> int:
    """Return the turn that is one turn after another one."""
    if not first & 4:
        return first ^ second
    return first ^ (second & 4 | (second & 1) << 1 | (second & 2) >> 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Apart:
    """Records that are not compared: those of one source, and those of one number above 0 in `together`.

    Args:
        sources, together: int64 [record].
    """

    sources: _Integers
    together: _Integers | None

    def are_compared(self, pairs: Pairs) -> NDArray[np.bool_]:
        compared = self.sources[pairs.first] != self.sources[pairs.second]
        if self.together is not None:
            numbers = self.together[pairs.first]
            compared &= (numbers != self.together[pairs.second]) | (numbers <= 0)
        return np.asarray(compared)


class _Linked:
    """Trees of records that pairs with nearly equal thumbnails link: a union-find structure.

    Frames of videos have dozens of pairs each, and their alignment took ten times as long as all else. So pairs within
    a tree of `MANY` records are left out. The pixels may still refuse a pair that links a tree, so only pairs above
    `_LINKING` do: retinas, which are no copies, reach 0.97.
    """

    def __init__(self, count: int) -> None:
        self._parents = np.arange(count)
        self._sizes = np.ones(count, np.int64)

    def large_trees(self) -> _Integers:
        """Return the number of each record's tree, int64 [record]; another one for each record of a small tree."""
        while True:
            above = self._parents[self._parents]
            if np.array_equal(above, self._parents):
                break
            self._parents = above
        return np.where(self._sizes[above] < MANY, -1 - np.arange(len(above)), above)

    def with_needed(self, pairs: Pairs) -> Pairs:
        """Return the pairs that are not within a large tree, and link the certain ones, the most alike first."""
        pairs = pairs.take(self._are_needed(pairs))
        certain = np.flatnonzero(is_certain(pairs, 1) & (pairs.scores >= _LINKING))
        certain = certain[np.argsort(-pairs.scores[certain], kind="stable")]
        first, second = pairs.first[certain].tolist(), pairs.second[certain].tolist()
        joins = [self._link(one, other) for one, other in zip(first, second, strict=True)]
        needed = self._are_needed(pairs)
        needed[certain] |= np.array(joins, np.bool_)
        return pairs.take(needed)

    def _are_needed(self, pairs: Pairs) -> NDArray[np.bool_]:
        first, second = self._roots(pairs.first), self._roots(pairs.second)
        return np.asarray((first != second) | (self._sizes[first] < MANY))

    def _roots(self, records: _Integers) -> _Integers:
        found = self._parents[records]
        while not np.array_equal(above := self._parents[found], found):
            found = above
        self._parents[records] = found
        return found

    def _link(self, first: int, second: int) -> bool:
        """Link the trees of two records; return whether they were in several."""
        parents = self._parents
        while (above := int(parents[first])) != first:
            parents[first] = first = int(parents[above])
        while (above := int(parents[second])) != second:
            parents[second] = second = int(parents[above])
        if first == second:
            return False
        low, high = min(first, second), max(first, second)
        parents[high] = low
        self._sizes[low] += self._sizes[high]
        return True


class _Index:
    """Sorted keys of some of the thumbnails [record, row, column].

    A key has the signs of the cosine terms in one of several orders, each of which begins with other low terms.
    """

    def __init__(self, thumbnails: NDArray[np.int8], rows: _Integers, bands: int) -> None:
        self.thumbnails, self._rows, self._bands = thumbnails, rows, bands
        count = len(rows)
        self._keys = np.empty((self._bands, count), np.uint64)
        self._turns = np.empty(count, np.uint8)
        for part in _parts(count, _CHUNK):
            terms = _terms(thumbnails[rows[part]], 0)
            turns, _ = _canonical_turns(terms)
            self._turns[part] = turns
            self._keys[:, part] = _keys(terms, np.arange(len(terms)), turns, self._bands)
        self._orders = np.empty((self._bands, count), np.int32)
        for keys, order in zip(self._keys, self._orders, strict=True):
            order[:] = np.argsort(keys)
            keys[:] = keys[order]

    def candidates(self, window: int, part: slice, trees: _Integers | None) -> Pairs:
        """Return pairs of which the second may show a window of the first, which is in a part; without scores.

        Records of one number in `trees` [record] are left out.
        """
        terms = _terms(self.thumbnails[self._rows[part]], window)
        turns, unsure = _canonical_turns(terms)
        asked = [np.flatnonzero((unsure & other) == other) for other in range(8)]
        rows = np.concatenate(asked)
        turns = turns[rows] ^ np.repeat(np.arange(8), list(map(len, asked)))
        first, second, turns = self._near(_keys(terms, rows, turns, self._bands), rows + part.start, turns)
        first, second = self._rows[first], self._rows[second]
        if trees is not None:
            other = trees[first] != trees[second]
            first, second, turns = first[other], second[other], turns[other]
        spans = np.full(len(first), window)
        return Pairs(
            first=first,
            second=second,
            scores=np.zeros(len(first), np.float32),
            turns=turns,
            rows=_ASKED_SPANS[spans // len(_ASKED)],
            columns=_ASKED_SPANS[spans % len(_ASKED)],
        )

    def _near(
        self, keys: NDArray[np.uint64], rows: _Integers, turns: _Integers
    ) -> tuple[_Integers, _Integers, _Integers]:
        """Return (first, second, turn) of records whose keys have few other signs, each once."""
        count = len(self._rows)
        found = [np.empty(0, np.int64)]
        for band_keys, own, order in zip(keys, self._keys, self._orders, strict=True):
            by_key = np.argsort(band_keys)
            asked = band_keys[by_key]
            places = np.searchsorted(own, asked)
            for step in range(-_NEIGHBORS, _NEIGHBORS):
                at = (places + step).clip(0, count - 1)
                near = np.flatnonzero(np.bitwise_count(own[at] ^ asked) <= _MOST_SIGNS)
                second, number = order[at[near]], by_key[near]
                turn = _TURNS_BETWEEN[turns[number], self._turns[second]]
                found.append((rows[number] * count + second) * 8 + turn)
        codes = np.unique(np.concatenate(found))
        first, second, turn = codes // (8 * count), codes // 8 % count, codes % 8
        other = first != second
        return first[other], second[other], turn[other]


def _alike(thumbnails: NDArray[np.int8], pairs: Pairs, apart: _Apart) -> Pairs:
    """Return the compared pairs that are alike where they are, with the correlation of their details.

    Args:
        thumbnails: [record, row, column].
        pairs: pairs of one window.
    """
    pairs = pairs.take(apart.are_compared(pairs))
    found = [_no_pairs()]
    # 2 MiB of thumbnails, so that the end of a small conversion takes little memory; twice as many take 7 % less time.
    for part in _parts(len(pairs), _CHUNK // 8):
        some = pairs.take(part)
        if not len(some):
            continue
        first = _resampled(thumbnails[some.first], some.rows[0], some.columns[0])
        second = _turned_back(thumbnails[some.second], some.turns)
        near = np.flatnonzero(_correlations(first, second) >= _LEAST_CORRELATION)
        scores = _correlations(_details(first[near]), _details(second[near]))
        some = replace(some.take(near), scores=scores)
        found.append(some.take(scores >= _LEAST_BEFORE_ALIGNMENT))
    return _joined(found)


def _all_aligned(thumbnails: NDArray[np.int8], pairs: Pairs, linked: _Linked) -> Pairs:
    """Return the pairs as `_aligned` does, the most alike first, without those within a large tree of earlier ones."""
    pairs = pairs.take(np.argsort(-pairs.scores, kind="stable"))
    certain = is_certain(pairs, 1)
    found, waiting = [pairs.take(certain)], pairs.take(~certain)
    for part in _parts(len(waiting), _CHUNK):
        some = _aligned(thumbnails, linked.with_needed(waiting.take(part)))
        found.append(linked.with_needed(some.take(some.scores >= DOUBTFUL)))
    return _joined(found)


def _aligned(thumbnails: NDArray[np.int8], pairs: Pairs) -> Pairs:
    """Return the pairs with the part of the first one that is most like the second one, and its score."""
    pairs = replace(pairs, scores=pairs.scores.copy(), rows=pairs.rows.copy(), columns=pairs.columns.copy())
    waiting, middle = np.flatnonzero(pairs.scores < CERTAIN), thumbnails.shape[1] // 2
    for part in _parts(len(waiting), _ALIGNED_AT_ONCE):
        at = waiting[part]
        first = thumbnails[pairs.first[at], middle].astype(np.float32)
        second = _turned_back(thumbnails[pairs.second[at], middle], pairs.turns[at])
        details = _details(second)[:, None]
        rows, columns = (_nearest_span(spans[at]) for spans in (pairs.rows, pairs.columns))
        resamplers = _resamplers()
        for _ in range(2):
            across = first @ resamplers[columns].transpose(0, 2, 1)
            scores = _correlations(_details(resamplers[None] @ across[:, None]), details)
            rows = scores.argmax(1)
            down = resamplers[rows] @ first
            scores = _correlations(_details(down[:, None] @ resamplers.transpose(0, 2, 1)[None]), details)
            columns = scores.argmax(1)
        best = scores.max(1)
        better = best > pairs.scores[at]
        pairs.scores[at] = np.where(better, best, pairs.scores[at])
        pairs.rows[at[better]] = _SPAN_TABLE[rows[better]]
        pairs.columns[at[better]] = _SPAN_TABLE[columns[better]]
    return pairs if thumbnails.shape[1] == 1 else _with_all_planes(thumbnails, pairs)


def _with_all_planes(thumbnails: NDArray[np.int8], pairs: Pairs) -> Pairs:
    """Return the pairs with the mean score of all planes, which are in the same or in the reverse order in both."""
    scores = np.empty(len(pairs), np.float32)
    resamplers = _resamplers()
    for part in _parts(len(pairs), _CHUNK // 4):
        some = pairs.take(part)
        rows, columns = (resamplers[_nearest_span(spans)][:, None] for spans in (some.rows, some.columns))
        first = rows @ thumbnails[some.first].astype(np.float32) @ columns.transpose(0, 1, 3, 2)
        second = _turned_back(thumbnails[some.second], some.turns)
        both = [_correlations(_details(first), _details(second[:, ::step])).mean(1) for step in (1, -1)]
        scores[part] = np.maximum(*both)
    return replace(pairs, scores=scores)


def _parts(count: int, size: int) -> Iterator[slice]:
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))


def _no_pairs() -> Pairs:
    none, spans = np.empty(0, np.int64), np.empty((0, 2), np.float32)
    return Pairs(
        first=none, second=none, scores=np.empty(0, np.float32), turns=none, rows=spans, columns=spans
    )


def _joined(pairs: Sequence[Pairs]) -> Pairs:
    return Pairs(**{name: np.concatenate([vars(one)[name] for one in pairs]) for name in vars(pairs[0])})


def _best_of_each(pairs: Pairs) -> Pairs:
    """Return each pair of records once, in either order, with its best score."""
    low, high = np.minimum(pairs.first, pairs.second), np.maximum(pairs.first, pairs.second)
    order = np.lexsort((-pairs.scores, high, low))
    low, high = low[order], high[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    return pairs.take(order[is_new])


# Cosine terms and their signs


@lru_cache(maxsize=1)
def _low_terms() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows and columns of the terms in a key, the lowest first, without those that have no sign.

    The mean says nothing, and the first term along each axis is positive in the canonical turn.
    """
    rows, columns = np.divmod(np.arange(_TERMS * _TERMS), _TERMS)
    order = np.lexsort((rows, np.maximum(rows, columns), rows + columns))[3:]
    return rows[order], columns[order]


@lru_cache(maxsize=len(_WINDOWS))
def _term_matrix(window: int) -> _Floats:
    """Return float32 [256, 64], which gives the terms of a window of flat thumbnails."""
    steps = (2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE)
    cosines = np.cos(np.arange(_TERMS)[:, None] * steps)
    rows, columns = (cosines @ _resampler(*span) for span in _WINDOWS[window])
    return np.ascontiguousarray(np.kron(rows, columns).T, np.float32)


def _terms(thumbnails: NDArray[np.int8], window: int) -> _Floats:
    """Return the cosine terms [record, row, column] of a window of thumbnails."""
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    return (flat @ _term_matrix(window)).reshape(-1, _TERMS, _TERMS)


def _canonical_turns(terms: _Floats) -> tuple[_Integers, _Integers]:
    """Return the turn of each record after which its terms are canonical, and which of its bits are unsure."""
    across, down = terms[:, 0, 1], terms[:, 1, 0]
    usual = np.sqrt((terms[:, :4, :4] ** 2).sum((1, 2)) - terms[:, 0, 0] ** 2) / 4
    turns = (across < 0) * 1 + (down < 0) * 2 + (np.abs(across) < np.abs(down)) * 4
    near = usual * _UNSURE
    unsure = (np.abs(across) < near) * 1 + (np.abs(down) < near) * 2
    unsure += (np.abs(np.abs(across) - np.abs(down)) < near) * 4
    return turns.astype(np.int64), unsure.astype(np.int64)


def _keys(terms: _Floats, rows: _Integers, turns: _Integers, bands: int) -> NDArray[np.uint64]:
    """Return the keys of some rows of terms [record, row, column] after turns, uint64 [band, key].

    The signs are in as many groups as bands, each with low terms first. The key of a band begins with another group.
    """
    places, masks = _sign_places(bands)
    negative = terms < 0
    negative[:, 0, 0] = False
    packed = np.array([_packed(one, places) for one in (negative, negative.transpose(0, 2, 1))])
    keys = packed[turns >> 2, rows] ^ masks[turns]
    shifts = np.arange(bands, dtype=np.uint64)[:, None] * np.uint64(_TERMS * _TERMS // bands)
    back = (np.uint64(_TERMS * _TERMS) - shifts) % np.uint64(_TERMS * _TERMS)
    return np.asarray(keys << shifts | keys >> back)


def _packed(negative: NDArray[np.bool_], places: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return the signs [record, row, column] as a number, uint64 [record]."""
    signs = np.take(negative.reshape(len(negative), -1), places, axis=1)
    return np.packbits(np.ascontiguousarray(signs), axis=1).view(">u8")[:, 0].astype(np.uint64)


@lru_cache(maxsize=2)
def _sign_places(bands: int) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Return the place of the term of each bit of a key, and the bits that each turn inverts."""
    rows, columns = _low_terms()
    # The bits that are left are those of the mean, whose sign is not used.
    spread = [np.arange(band, len(rows), bands) for band in range(bands)]
    size = _TERMS * _TERMS // bands
    order = np.concatenate([np.append(one, np.full(size - len(one), -1)) for one in spread])
    down, across = np.append(rows, 0)[order], np.append(columns, 0)[order]
    masks = []
    for turn in range(8):
        # A mirror image along an axis has other signs of the odd terms along it; the exchange comes after it.
        odd_rows, odd_columns = (across & 1, down & 1) if turn & 4 else (down & 1, across & 1)
        bits = (turn & 1) * odd_columns ^ (turn >> 1 & 1) * odd_rows
        masks.append(np.packbits(bits.astype(np.bool_)).view(">u8")[0])
    return down * _TERMS + across, np.array(masks, np.uint64)


# Thumbnails


def _resampler(low: float, high: float) -> NDArray[np.float64]:
    """Return float64 [16, 16], which gives 16 cells of a part of 16 cells, by cubic interpolation (a = -0.6)."""
    places = (low + (high - low) * (np.arange(SIDE) + 0.5) / SIDE) * SIDE - 0.5
    matrix = np.zeros((SIDE, SIDE))
    for cell, place in enumerate(places):
        for source in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            distance, a = abs(place - source), -0.6
            near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
            far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
            matrix[cell, min(max(source, 0), SIDE - 1)] += near if distance < 1 else far
    return matrix


@lru_cache(maxsize=1)
def _resamplers() -> _Floats:
    """Return the resampler of each of `_SPANS`, float32 [span, 16, 16]."""
    return np.array([_resampler(*span) for span in _SPANS], np.float32)


def _nearest_span(spans: _Floats) -> _Integers:
    """Return the number in `_SPANS` of each span [pair, 2]."""
    return np.asarray(np.abs(spans[:, None] - _SPAN_TABLE[None]).sum(2).argmin(1))


def _resampled(thumbnails: NDArray[np.int8], rows: _Floats, columns: _Floats) -> _Floats:
    """Return a part of each thumbnail [record, row, column] in as many cells."""
    down, across = (_resampler(*span.tolist()).astype(np.float32) for span in (rows, columns))
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    return np.asarray(flat @ np.kron(down, across).T, np.float32).reshape(-1, SIDE, SIDE)


def _turned_back(thumbnails: NDArray[np.int8], turns: _Integers) -> _Floats:
    """Return each thumbnail [record, ..., row, column] with its turn undone, float32."""
    found = np.empty(thumbnails.shape, np.float32)
    for turn in range(8):
        chosen = np.flatnonzero(turns == turn)
        found[chosen] = turned(thumbnails[chosen], turn_back(turn))
    return found


@lru_cache(maxsize=1)
def _blur() -> _Floats:
    """Return float32 [16, 16], which gives the mean of five cells; the cells at the edge are mirrored."""
    matrix = np.zeros((SIDE, SIDE), np.float32)
    for cell in range(SIDE):
        for other in range(cell - 2, cell + 3):
            matrix[cell, (SIDE - 1) - abs((SIDE - 1) - abs(other))] += 0.2
    return matrix


def _details(thumbnails: _Floats) -> _Floats:
    """Return thumbnails [..., row, column] without the means of 5 x 5 cells.

    Many pictures of one kind have the same large shapes, such as chests and folded clothes; copies have the same
    details.
    """
    return np.asarray(thumbnails - _blur() @ thumbnails @ _blur().T, np.float32)


def _correlations(first: _Floats, second: _Floats) -> _Floats:
    """Return the correlation of each pair of thumbnails [..., row, column]; 0 where one is flat."""
    first = first - first.mean((-1, -2), keepdims=True)
    second = second - second.mean((-1, -2), keepdims=True)
    products = (first * second).sum((-1, -2))
    sizes = (first**2).sum((-1, -2)) * (second**2).sum((-1, -2))
    return np.asarray(np.where(sizes > 1e-6, products / np.sqrt(np.maximum(sizes, 1e-6)), 0), np.float32)


_SPAN_TABLE = np.array(_SPANS, np.float32)
_ASKED_SPANS = np.array(_ASKED, np.float32)
_TURNS_BETWEEN = np.array(
    [[turn_by_both(one, turn_back(other)) for other in range(8)] for one in range(8)], np.int64
)
"""Turn from a thumbnail with the first canonical turn to one with the second."""
