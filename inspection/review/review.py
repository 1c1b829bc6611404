"""Review of a data set: every search, its suspects by kind, as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.review.box_outliers import BoxKind, box_outliers
from halofeed.inspection.review.copies import CopyKind, find_copies
from halofeed.inspection.review.drift import DriftKind, drift
from halofeed.inspection.review.label_faults import PredictedBatches, label_faults
from halofeed.inspection.review.picture_outliers import PictureKind, picture_outliers
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.scan_outliers import ScanKind, scan_outliers
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.prep.voxels.signatures import have_other_version
from halofeed.system.console import StatusLine
from halofeed.system.wording import plural

Search = Callable[[ReviewedSet], Iterator[Suspect]]
SEARCHES: tuple[Search, ...] = (find_copies, drift, picture_outliers, box_outliers, scan_outliers)
"""The searches of a review, in the order of its text: what costs most in training first."""
KINDS: tuple[SuspectKind, ...] = (*CopyKind, *DriftKind, *PictureKind, *BoxKind, *ScanKind)
"""The kinds of suspects that these searches find."""
_SHOWN, _LISTED = 5, 6
"""Suspects of each kind in the text, and records of each."""


@dataclass(frozen=True, kw_only=True)
class Review:
    """Result of a review: the suspects among the records of a data set.

    Args:
        folder: folder or address of the data set's version.
        records: number of records that were looked at.
        suspects: what was found, in the order of the searches, the worst of each kind first.
        not_searched: what could not be searched, and why.
    """

    folder: str
    records: int
    suspects: tuple[Suspect, ...]
    not_searched: tuple[str, ...] = ()

    def by_kind(self) -> dict[SuspectKind, list[Suspect]]:
        """Return the suspects of each kind that was found."""
        found: dict[SuspectKind, list[Suspect]] = {}
        for suspect in self.suspects:
            found.setdefault(suspect.kind, []).append(suspect)
        return found

    def text(self, shown: int = _SHOWN) -> str:
        """Return the text of `halofeed review`, with the first suspects of each kind."""
        looked = f"{self.folder}: {plural(self.records, 'record')}"
        found_text = plural(len(self.suspects), "suspect") if self.suspects else "nothing suspicious"
        lines = [f"{looked}, {found_text}", *(f"  not searched: {text}" for text in self.not_searched)]
        for kind, found in self.by_kind().items():
            lines += ["", f"{kind}: {len(found):,}", f"  {kind.meaning} {kind.fix}"]
            for suspect in found[:shown]:
                places = ", ".join(map(str, suspect.places[:_LISTED]))
                more = len(suspect.places) - _LISTED
                lines.append(f"    {suspect.words}: {places}{f' and {more:,} more' if more > 0 else ''}")
            if len(found) > shown:
                lines.append(f"    and {len(found) - shown:,} more; --json FILE lists all")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def to_json(self) -> Mapping[str, Any]:
        """Return it as JSON values."""
        return {
            "folder": self.folder,
            "records": self.records,
            "suspects": [suspect.to_json() for suspect in self.suspects],
            "not_searched": list(self.not_searched),
        }


def review_dataset(
    path: str | os.PathLike[str] | DatasetFiles,
    predicted: PredictedBatches | None = None,
    *,
    show_progress: bool = True,
) -> Review:
    """Search a data set for what may hurt training.

    Args:
        path: folder or address of the data set's version.
        predicted: predictions of its records; likely label faults are then the first suspects, best first over all
            of their kinds.
        show_progress: whether to print which record is searched, on standard error.

    Raises:
        ManifestError, CorruptFileError: the data set is not what was written.
    """
    reviewed = ReviewedSet(path)
    # The predictor prints its own progress.
    found = [] if predicted is None else label_faults(reviewed, predicted)
    with closing(StatusLine(show=show_progress)) as line:
        for search in SEARCHES:
            reviewed.watch = _watch(line, search, len(reviewed))
            found += _worst_first(search(reviewed))
    reviewed.watch = None
    return Review(
        folder=str(reviewed.files),
        records=len(reviewed),
        suspects=tuple(found),
        not_searched=tuple(_not_searched(reviewed)),
    )


def _watch(line: StatusLine, search: Search, records: int) -> Callable[[int], None]:
    """Return a function that shows the record that a search reads."""
    name = getattr(search, "__name__", "search").removeprefix("find_").replace("_", " ")

    def watch(record: int) -> None:
        line.update(lambda _: f"searched {record + 1:,} of {plural(records, 'record')} for {name}")

    return watch


def _not_searched(reviewed: ReviewedSet) -> Iterator[str]:
    """Yield what a review left out, and what it cannot search because an earlier version wrote the data set."""
    yield from reviewed.not_searched
    again = "the same conversion with --overwrite adds them"
    if len(reviewed) and not reviewed.signatures.any():
        yield f"copies, because the data set has no signatures; {again}"
    if others := int(have_other_version(reviewed.signatures).sum()):
        yield f"copies of {plural(others, 'record')} with signatures of another version; {again}"
    if len(reviewed) and not reviewed.measure_names:
        yield f"unusual pictures and scans, because the data set has no measures; {again}"


def _worst_first(found: Iterator[Suspect]) -> list[Suspect]:
    """Sort the suspects of one search by kind, and each kind by falling score; equal ones keep their order."""
    by_kind: dict[SuspectKind, list[Suspect]] = {}
    for suspect in found:
        by_kind.setdefault(suspect.kind, []).append(suspect)
    return [
        suspect for of_kind in by_kind.values() for suspect in sorted(of_kind, key=lambda one: -one.score)
    ]
