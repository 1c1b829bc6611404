"""Sections of a data set's report about single records: suspects first, then its contents with search and filter.

Their pictures are part of the page, so they have a budget in bytes. The
sections say how much of the data set they show.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from halofeed.inspection.record_cards import CardDrawer, RecordCard, size_words
from halofeed.inspection.review.label_faults import PREDICTED_KINDS
from halofeed.inspection.review.review import Review
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.system.console import StatusLine
from halofeed.system.wording import plural

PAGE_BYTES = {False: 4_900_000, True: 14_500_000}
"""Most characters of the report of pictures, and of that of volumes."""
_SUSPECT_BYTES = {False: 1_000_000, True: 3_000_000}
_CONTENT_BYTES = {False: 1_500_000, True: 6_000_000}
_LEAST_BYTES = 150_000
_CARD_BYTES = 1_600
"""Characters of a card beside its pictures, about."""
_READ_VALUES = 1 << 30
"""Values of images that are read for the contents, so that a report of large images does not take minutes."""
_LEAST_RECORDS = 12
_SIDE, _PAIR_SIDE = 220, 300
_SLICE_SIDE = 256
_SLICES = 64
_SUSPECTS_PER_KIND = 6
_PLACES_PER_SUSPECT = 4


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values to choose from in the fields above records: (value, words, whether it is chosen).

    Args:
        splits, classes, findings, sizes: choices of each field; a field without a choice is not shown. One
            finding is a choice, because most records have none.
        name: text that the names of sources contain.
    """

    splits: Sequence[tuple[int, str, bool]] = ()
    classes: Sequence[tuple[int, str, bool]] = ()
    findings: Sequence[tuple[int, str, bool]] = ()
    sizes: Sequence[tuple[int, str, bool]] = ()
    name: str = ""

    @property
    def fields(self) -> list[tuple[str, str, Sequence[tuple[int, str, bool]]]]:
        """Return the fields with a choice: name, label and values."""
        every = (
            ("split", "Split", self.splits),
            ("class", "Class", self.classes),
            ("finding", "Finding", self.findings),
            ("size", "Longer side", self.sizes),
        )
        return [(name, label, values) for name, label, values in every if len(values) > (name != "finding")]


def kinds_of(review: Review) -> list[SuspectKind]:
    """Return the kinds of a review's suspects; a kind's number is its place here."""
    return list(review.by_kind())


def findings_by_record(drawer: CardDrawer, review: Review) -> dict[int, tuple[int, ...]]:
    """Return the numbers of the kinds of suspects that each record is among."""
    found: dict[int, set[int]] = {}
    for kind, suspects in enumerate(review.by_kind().values()):
        for suspect in suspects:
            for place in suspect.places:
                number = drawer.reviewed.number_of(place)
                if number is not None:
                    found.setdefault(number, set()).add(kind)
    return {number: tuple(sorted(kinds)) for number, kinds in found.items()}


@dataclass(frozen=True, kw_only=True)
class ShownSuspect:
    """A suspect with the cards of its first records.

    Args:
        suspect: what was found.
        cards: the first of its records.
        box: its place in percent of the first picture; "" for all of it.
        is_beside: whether the prediction for the record is beside its label.
    """

    suspect: Suspect
    cards: Sequence[RecordCard]
    box: str
    is_beside: bool = False

    @property
    def more(self) -> int:
        """Return the number of its records that are not drawn."""
        return len(self.suspect.places) - len(self.cards)


def suspect_values(
    drawer: CardDrawer, review: Review, room: int, *, pictures: bool = True, runs: str = ""
) -> dict[str, Any]:
    """Show the suspects of each kind, the worst first, with their pictures side by side.

    Args:
        drawer: drawing of the data set's records.
        review: what was found.
        room: characters that the page still has room for.
        pictures: whether to draw pictures.
        runs: folders of the runs that predicted, with commas, for the command that lists all.
    """
    volumes = drawer.is_volumetric
    budget = max(_LEAST_BYTES, min(_SUSPECT_BYTES[volumes], room)) if pictures else 0
    by_kind = review.by_kind()
    shown: dict[SuspectKind, list[ShownSuspect]] = {kind: [] for kind in by_kind}
    # The worst suspect of each kind first, so that no kind takes the pictures of all others.
    for round_ in range(_SUSPECTS_PER_KIND):
        for kind, suspects in by_kind.items():
            if round_ >= len(suspects):
                continue
            one = _shown(drawer, suspects[round_], draw=budget > 0)
            # Beside the prediction, the picture is in the page twice.
            repeated = sum(card.picture.bytes for card in one.cards if card.picture and one.is_beside)
            budget -= _CARD_BYTES + sum(card.bytes for card in one.cards) + repeated
            shown[kind].append(one)
    rows = [(kind, len(by_kind[kind]), found) for kind, found in shown.items()]
    return {
        "rows": rows,
        "review": review,
        "quoted_path": shlex.quote(drawer.facts.path),
        "quoted_runs": shlex.quote(runs) if runs else "",
    }


def _shown(drawer: CardDrawer, suspect: Suspect, *, draw: bool) -> ShownSuspect:
    is_beside = isinstance(suspect.kind, PREDICTED_KINDS)
    if not is_beside:
        # A copy or a dark picture is one whatever a run predicts.
        drawer = replace(drawer, predictions=None)
    side = _PAIR_SIDE if is_beside else _SIDE
    cards = []
    for at, place in enumerate(suspect.places[: _PLACES_PER_SUSPECT if draw else 0]):
        number = drawer.reviewed.number_of(place)
        if number is not None:
            depth, near = (suspect.depth, suspect.box) if at == 0 else (None, None)
            cards.append(drawer.draw(number, side, depth=depth, near=near, tags=True))
    box = ""
    if suspect.box is not None and cards and (picture := cards[0].picture) is not None:
        shown = picture.sheet.shown_box(suspect.box) if picture.sheet else suspect.box
        ymin, xmin, ymax, xmax = (100 * min(max(float(side), 0.0), 1.0) for side in shown)
        box = f"left:{xmin:.2f}%;top:{ymin:.2f}%;width:{xmax - xmin:.2f}%;height:{ymax - ymin:.2f}%"
    is_beside = is_beside and any(card.prediction is not None for card in cards)
    return ShownSuspect(suspect=suspect, cards=cards, box=box, is_beside=is_beside)


def content_values(drawer: CardDrawer, review: Review, room: int, *, pictures: bool = True) -> dict[str, Any]:
    """Show records with their pictures, as many as the budget allows, in the order of the data set.

    Args:
        drawer: drawing of the data set's records, with the findings of `review`.
        review: what was found.
        room: characters that the page still has room for.
        pictures: whether to draw pictures.
    """
    cards: list[RecordCard] = []
    with closing(StatusLine()) as line:
        for card in _drawn(drawer, room) if pictures else ():
            cards.append(card)
            line.update(lambda _: f"drew {plural(len(cards), 'record')} for the contents")
    cards.sort(key=lambda card: card.number)
    return {
        "cards": cards,
        "total": len(drawer.reviewed),
        "choices": choices_of(drawer, kinds_of(review), cards),
        "kinds": kinds_of(review),
        "volumes": drawer.is_volumetric,
        "is_predicted": any(card.prediction is not None and not card.prediction.guesses for card in cards),
        "quoted_path": shlex.quote(drawer.facts.path),
    }


def _drawn(drawer: CardDrawer, room: int) -> Iterator[RecordCard]:
    """Draw records until the budget is used: suspects up to a third of it, then others spread over the data set."""
    volumes = drawer.is_volumetric
    budget = max(_LEAST_BYTES, min(_CONTENT_BYTES[volumes], room))
    most = max(_LEAST_RECORDS, _READ_VALUES // max(1, drawer.record_pixels))
    side, slices = (_SLICE_SIDE, _slices_of(len(drawer.reviewed))) if volumes else (_SIDE, 1)
    used = 0
    seen: set[int] = set()
    suspects = sorted(drawer.findings)
    spread = spread_numbers(len(drawer.reviewed))
    for number, is_suspect in chain(((one, True) for one in suspects), ((one, False) for one in spread)):
        if number in seen or (is_suspect and (3 * used > budget or 3 * len(seen) > most)):
            continue
        if len(seen) >= most:
            return
        card = drawer.draw(number, side, slices=slices)
        used += _CARD_BYTES + card.bytes
        # One record at least, so that a report is never without a picture.
        if used > budget and seen:
            return
        seen.add(number)
        yield card


def _slices_of(records: int) -> int:
    """Return the slices of each volume: fewer where there are many volumes."""
    return max(16, min(_SLICES, 640 // max(1, records)))


def spread_numbers(count: int) -> Iterator[int]:
    """Yield each number below `count` once, so that the first ones are spread over all.

    The bits of a counter in reverse order: van der Corput (1935).

    >>> list(spread_numbers(6))
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(1, (count - 1).bit_length())
    for at in range(1 << bits if count else 0):
        number = int(f"{at:0{bits}b}"[::-1], 2)
        if number < count:
            yield number


def choices_of(drawer: CardDrawer, kinds: Sequence[SuspectKind], cards: Iterable[RecordCard]) -> Choices:
    """Return the choices that some of the cards fit."""
    facts = drawer.facts
    shown = list(cards)
    splits = {card.place.split for card in shown}
    labels = {label for card in shown for label in card.facts.labels}
    found = {kind for card in shown for kind in card.findings}
    sizes = {card.facts.size_range for card in shown}
    return Choices(
        splits=[(at, name, False) for at, name in enumerate(facts.splits) if name in splits],
        classes=class_choices(drawer, labels),
        findings=[(at, str(kind), False) for at, kind in enumerate(kinds) if at in found],
        sizes=[(at, size_words(at), False) for at in sorted(sizes)],
    )


def class_choices(
    drawer: CardDrawer, labels: Iterable[int], chosen: int | None = None
) -> list[tuple[int, str, bool]]:
    """Return classes to choose from, in the order of their names."""
    named = {label: drawer.facts.label_name(label) for label in labels}
    return [
        (label, name, label == chosen)
        for label, name in sorted(named.items(), key=lambda one: (one[1].lower(), one[0]))
    ]


def card_data(drawer: CardDrawer, card: RecordCard) -> Mapping[str, str]:
    """Return the values of a card that its page's script compares with the fields."""
    return {
        "split": str(drawer.facts.splits.index(card.place.split)),
        "class": " ".join(str(label) for label, _ in card.facts.classes),
        "finding": " ".join(map(str, card.findings)),
        "size": str(card.facts.size_range),
    }
