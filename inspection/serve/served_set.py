"""Pages of a data set's records, as `halofeed report --serve` sends them: a page of records, a record, pictures."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.dataset_files import open_files, open_manifest
from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.html.contents import Choices, class_choices, findings_by_record, kinds_of
from halofeed.inspection.html.page import included, rendered, script_hash
from halofeed.inspection.record_cards import CardDrawer, CardPicture, RecordCard, size_words
from halofeed.inspection.review.review import review_dataset
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.serve.record_columns import RecordColumns, RecordQuery
from halofeed.inspection.words import escape_unprintable
from halofeed.system.addresses import address_of
from halofeed.system.errors import HalofeedError
from halofeed.system.wording import plural

PER_PAGE = 48
_SIDE = 220
_LARGE_SIDE, _LARGE_SLICE_SIDE = 1000, 384
_SLICES = 64
_AT_ONCE = 4
"""Records that are read for pictures at the same time: each may be a volume."""
_CACHED_QUERIES, _CACHED_PICTURES = 8, 128
_DRAWING_LOCKS = 64
"""Locks of the records that are drawn, more than the records of a page, so that these do not wait for each other."""
_PAUSE_S = 0.05
"""Time without a request after which the columns are read on: a browser asks for the pictures after the page."""
_LONGEST_TEXT = 200
_MAX_SUSPECTS = 20
_LARGEST_NUMBER = 10**9
_TRANSPARENT = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""Picture of a record without classes."""


@dataclass(frozen=True, kw_only=True)
class PageNumbers:
    """Place of a page of records among the records that were found."""

    page: int
    pages: int
    found: int

    @property
    def first(self) -> int:
        """Return the number of the first record of the page among those found, from 0."""
        return (self.page - 1) * PER_PAGE


@dataclass(frozen=True, kw_only=True)
class ReviewState:
    """Result of the review so far.

    Args:
        kinds: kinds of suspects that were found.
        findings: numbers of the kinds of each record that is a suspect.
        suspects: what was found.
        words: what is known of it, for a page.
        is_done: whether the review has ended.
    """

    kinds: tuple[SuspectKind, ...] = ()
    findings: Mapping[int, tuple[int, ...]]
    suspects: tuple[Suspect, ...] = ()
    words: str
    is_done: bool = True


class ServedSet:
    """Pages and pictures of the records of a data set.

    Args:
        path: folder or address of the data set's version.

    Raises:
        UsageError, ManifestError: there is no finished data set.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = address_of(path) or path
        files = open_files(path)
        self._path = path
        self._facts = DatasetFacts(path=str(path), manifest=open_manifest(files))
        self._reviewed = ReviewedSet(files)
        self._drawer = CardDrawer(reviewed=self._reviewed, facts=self._facts)
        self.columns = RecordColumns(self._reviewed)
        self._review = ReviewState(
            findings={}, words="The search for suspects is still running.", is_done=False
        )
        self._reading = threading.BoundedSemaphore(_AT_ONCE)
        self._find = functools.lru_cache(_CACHED_QUERIES)(self._find_once)
        self._small = functools.lru_cache(_CACHED_PICTURES)(self._draw_small)
        # A browser asks for a picture and its mask at once, and lru_cache would draw both.
        self._drawing = [threading.Lock() for _ in range(_DRAWING_LOCKS)]
        self._answering, self._last_answer = 0, 0.0
        self._count = threading.Lock()
        self._style = included("report.css", "records.css")
        self._script = included("records.js")

    @property
    def policy(self) -> str:
        """Return the content security policy of its pages: our styles and script, and pictures of the server."""
        return (
            "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
            f"script-src {script_hash(self._script)}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Block in which a request is answered, so that the columns are not read meanwhile."""
        with self._count:
            self._answering += 1
        try:
            yield
        finally:
            with self._count:
                self._answering -= 1
                self._last_answer = time.monotonic()

    def _wait_for_requests(self) -> None:
        while self._answering or time.monotonic() - self._last_answer < _PAUSE_S:
            time.sleep(_PAUSE_S / 5)

    def prepare(self, stop: threading.Event) -> None:
        """Read what is searched, then review the data set, until `stop` is set; problems are shown in pages."""
        try:
            self.columns.read(stop, self._wait_for_requests)
        except Exception as error:
            self.columns.problem = f"Not all records can be searched: {words_of(error)}"
        if stop.is_set():
            return
        try:
            self._review = self._reviewed_state()
        except Exception as error:
            words = f"The search for suspects failed: {words_of(error)}"
            self._review = ReviewState(findings={}, words=words)

    def _reviewed_state(self) -> ReviewState:
        found = review_dataset(self._reviewed.files, show_progress=False)
        count = len(found.suspects)
        words = [f"{plural(count, 'suspect')}." if count else "No suspects."]
        words += [f"Not searched: {text}." for text in found.not_searched]
        return ReviewState(
            kinds=tuple(kinds_of(found)),
            findings=findings_by_record(self._drawer, found),
            suspects=found.suspects,
            words=" ".join(words),
        )

    def records(self, query: RecordQuery, page: int) -> str:
        """Return the page of the records that fit a query."""
        state = self._review
        numbers = self._numbers(query, state)
        count = len(self._reviewed) if numbers is None else len(numbers)
        pages = max(1, -(-count // PER_PAGE))
        where = PageNumbers(page=min(max(1, page), pages), pages=pages, found=count)
        wanted = range(where.first, min(where.first + PER_PAGE, count))
        drawer = replace(self._drawer, findings=state.findings)
        cards, problem = [], ""
        for at in wanted:
            number = at if numbers is None else int(numbers[at])
            try:
                cards.append(drawer.linked(number))
            except HalofeedError as error:
                problem = str(error)
        return self._page(
            "served.html",
            cards=cards,
            problem=problem or self.columns.problem,
            where=where,
            query=_stated(query),
            choices=self._choices(query, state),
            state=state,
            is_any=query.is_any,
            searched=self.columns.known if query.needs_columns else len(self._reviewed),
            has_masks=drawer.has_masks,
        )

    def record(self, number: int) -> str:
        """Return the page of one record: a large picture or its slices, and its description.

        Raises:
            HalofeedError: the record is not what was written.
        """
        drawer = replace(self._drawer, findings=self._review.findings)
        card = self._drawn(drawer, number, _LARGE_SIDE)
        name = f"{card.place.split}:{card.place.number}"
        where = (card.place.split, card.place.number)
        suspects = [
            one
            for one in self._review.suspects
            if any((place.split, place.number) == where for place in one.places)
        ]
        return self._page(
            "served_record.html",
            card=card,
            name=name,
            suspects=suspects[:_MAX_SUSPECTS],
            text=describe_record(self._path, name),
            has_masks=drawer.has_masks,
            last=len(self._reviewed) - 1,
        )

    def picture(self, number: int, *, mask: bool) -> tuple[str, bytes]:
        """Return the media type and the bytes of the small picture of a record, or of its classes.

        Raises:
            HalofeedError: the record is not what was written.
        """
        with self._drawing[number % _DRAWING_LOCKS]:
            picture = self._small(number)
        uri = (picture and (picture.mask if mask else picture.uri)) or _TRANSPARENT
        kind, _, data = uri.removeprefix("data:").partition(";base64,")
        return kind, base64.b64decode(data)

    def _draw_small(self, number: int) -> CardPicture | None:
        return self._drawn(self._drawer, number, _SIDE, slices=1).picture

    def _drawn(self, drawer: CardDrawer, number: int, side: int, slices: int = _SLICES) -> RecordCard:
        with self._reading:
            if drawer.is_volumetric:
                side = min(side, _LARGE_SLICE_SIDE)
            return drawer.draw(number, side, slices=slices)

    def __len__(self) -> int:
        return len(self._reviewed)

    def _numbers(self, query: RecordQuery, state: ReviewState) -> NDArray[np.int64] | None:
        """Return the numbers of the records that fit; None if all do."""
        return None if query.is_any else self._find(query, self.columns.known, state.is_done)

    def _find_once(self, query: RecordQuery, known: int, is_reviewed: bool) -> NDArray[np.int64]:
        """Find records; what was read and reviewed so far is part of the cache's key."""
        return self.columns.find(query, self._review.findings)

    def _choices(self, query: RecordQuery, state: ReviewState) -> Choices:
        names = list(self._facts.manifest.splits)
        return Choices(
            splits=[(at, name, at == query.split) for at, name in enumerate(names)],
            classes=class_choices(self._drawer, self.columns.labels(), query.label),
            findings=[(at, str(kind), at == query.finding) for at, kind in enumerate(state.kinds)],
            sizes=[(at, size_words(at), at == query.size) for at in self.columns.sizes()],
            name=query.text,
        )

    def _page(self, template: str, **values: Any) -> str:
        shared = {"style": self._style, "script": self._script, "facts": self._facts, "total": len(self)}
        manifest = self._facts.manifest
        return escape_unprintable(
            rendered(template, manifest=manifest, path=self._facts.path, **shared, **values)
        )


def words_of(error: Exception) -> str:
    """Return the message of an error; its type too where the message is not ours."""
    return str(error) if isinstance(error, HalofeedError) else f"{type(error).__name__}: {error}"


_FIELDS = {"split": "split", "class": "label", "finding": "finding", "size": "size"}


def parse_query(fields: Mapping[str, str]) -> RecordQuery:
    """Return the query of the fields of a form; a value that is no number is ignored.

    >>> parse_query({"text": " Cat ", "class": "3", "size": "x"})
    RecordQuery(text='Cat', split=None, label=3, finding=None, size=None)
    """
    numbers = {name: number_in(fields.get(field, "")) for field, name in _FIELDS.items()}
    return RecordQuery(text=fields.get("text", "").strip()[:_LONGEST_TEXT], **numbers)


def number_in(text: str) -> int | None:
    """Return a number of few ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST_NUMBER)) else None


def _stated(query: RecordQuery) -> list[tuple[str, str]]:
    """Return the fields of a query that say something, for links to its other pages."""
    numbers = {field: getattr(query, name) for field, name in _FIELDS.items()}
    stated = [(field, str(value)) for field, value in numbers.items() if value is not None]
    return [*([("text", query.text)] if query.text else []), *stated]
