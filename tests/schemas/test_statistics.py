"""Statistics do not depend on the order of merging and are read as they were written."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.schemas.statistics import Statistics, statistics_problems

COUNT = st.integers(0, 2**40)
NUMBERS = st.dictionaries(st.integers(0, 99).map(str), COUNT, max_size=4)
NAMES = st.dictionaries(st.text(max_size=4), COUNT, max_size=4)


def sums(channels: int) -> st.SearchStrategy[Any]:
    """Pixels of so many channels, or none that were counted."""
    figures = st.lists(COUNT, min_size=channels, max_size=channels)
    bins = st.lists(st.integers(0, 9), min_size=256, max_size=256)
    none = st.just({"count": 0, "sum": [], "sum_squares": [], "histogram": []})
    histogram = st.lists(bins, min_size=channels, max_size=channels)
    some = {"count": COUNT, "sum": figures, "sum_squares": figures, "histogram": histogram}
    return none | st.fixed_dictionaries(some)


OPTIONAL = {"records": COUNT, "tiles": COUNT, "pixels": sums(2), "labels": NUMBERS, "label_mm3": NUMBERS}
OPTIONAL |= {"intensities": st.fixed_dictionaries({"body": NUMBERS, "foreground": NUMBERS}), "boxes": NAMES}
OPTIONAL |= {"cut": st.fixed_dictionaries({"images": COUNT, "boxes": COUNT})}
OPTIONAL["largest"] = st.lists(COUNT.map(lambda side: side % 2**31), min_size=2, max_size=2)
PAIRS = st.tuples(COUNT, COUNT).map(sorted)
OPTIONAL["padding"] = PAIRS.map(lambda pair: {"stored_pixels": pair[1], "padded_pixels": pair[0]})
DOCUMENTS = st.fixed_dictionaries({}, optional=OPTIONAL)


def as_written(statistics: Statistics) -> Any:
    return json.loads(json.dumps(statistics.to_json()))


@settings(deadline=None, max_examples=50)
@given(DOCUMENTS)
def test_what_is_written_is_read_again(document):
    assert not list(statistics_problems(document, "statistics"))
    assert as_written(Statistics.from_json(document)) == document


@settings(deadline=None, max_examples=50)
@given(st.lists(DOCUMENTS, max_size=5), st.randoms(use_true_random=False), st.integers(0, 5))
def test_parts_give_the_same_sum_in_any_order_and_grouping(documents, generator, cut):
    def total(parts: Iterable[Any]) -> Statistics:
        return Statistics.total(map(Statistics.from_json, parts))

    shuffled = generator.sample(documents, len(documents))
    assert total(shuffled[:cut]).merge(total(shuffled[cut:])) == total(documents)
    assert Statistics.from_json(as_written(total(documents))) == total(documents)
    for name in ("records", "tiles"):
        counted = [document[name] for document in documents if name in document]
        assert getattr(total(documents), name) == (sum(counted) if counted else None)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Statistics)])
def test_every_figure_says_what_is_wrong_with_it(name):
    ((path, problem),) = statistics_problems({name: "many"}, "statistics")
    assert path == f"statistics.{name}" and problem.startswith("expected ")
