"""A review and a report print which record they read, on standard error, while they take longer than some seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.inspection.review.review import review_dataset
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect
from halofeed.system.console import StatusLine
from tests.support.dataset_writer import draw_examples, write_dataset


class EagerLine(StatusLine):
    """A line that prints each state."""

    def __init__(self, *, show: bool = True) -> None:
        super().__init__(show=show, every_seconds=0.0)


def find_names(reviewed: ReviewedSet) -> Iterator[Suspect]:
    for record in range(len(reviewed)):
        reviewed.place(record)
    return iter(())


def test_a_review_shows_the_search_and_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("halofeed.inspection.review.review.SEARCHES", (find_names,))
    monkeypatch.setattr("halofeed.inspection.review.review.StatusLine", EagerLine)
    folder = write_dataset(
        tmp_path / "1", draw_examples("classification", {"train": 3}), task="classification"
    )
    review_dataset(folder)
    printed = capsys.readouterr()
    expected = [f"searched {number} of 3 records for names" for number in (1, 2, 3)]
    assert list(dict.fromkeys(printed.err.splitlines())) == expected and printed.out == ""
    review_dataset(folder, show_progress=False)
    assert capsys.readouterr().err == "", "a server prints its address only"
