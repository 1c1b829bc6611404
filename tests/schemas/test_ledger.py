"""Ledgers of losses add up in any order, are read as they were written, and manifests without one still load."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.convert.loss_findings import Converted, loss_findings
from halofeed.schemas.ledger import Ledger, LedgerCounter, bin_size, ledger_problems
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Statistics, statistics_problems

EVENTS = st.tuples(
    st.sampled_from(["objects", "tiny_objects", "sources"]),
    st.integers(1, 9),
    st.sampled_from(["", "a.png: 3", "b.png"]),
)
RECORDS = st.lists(st.lists(EVENTS, max_size=4), max_size=8)


def ledger_of(records: list[list[tuple[str, int, str]]]) -> Ledger:
    counter = LedgerCounter()
    for events in records:
        one = LedgerCounter()
        for name, number, example in events:
            one.count(name, number, example)
            one.bin("object_sides_after", bin_size(number))
            one.extend("values_before", -number, number / 2)
        counter.add(one)
    return counter.ledger()


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.integers(0, 8), st.randoms(use_true_random=False))
def test_any_division_of_records_into_shards_gives_the_same_ledger(records, cut, generator):
    shuffled = generator.sample(records, len(records))
    parts = (shuffled[:cut], shuffled[cut:], [])
    total = Statistics.total(Statistics(ledger=ledger_of(part)) for part in parts)
    assert total.ledger == ledger_of(records)
    written = json.loads(json.dumps(total.to_json()))
    assert not list(statistics_problems(written, "statistics"))
    assert Statistics.from_json(written) == total


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("counts", {"objects": -1}),
        ("counts", {"Objects of a name": 1}),
        ("counts", {f"a{number}": 1 for number in range(300)}),
        ("histograms", {"sides": {"1.5": 1}}),
        ("ranges", {"values": [2, 1]}),
        ("ranges", {"values": [0, float("inf")]}),
        ("examples", {"objects": 5}),
        ("examples", []),
    ],
)
def test_a_wrong_part_of_a_ledger_is_named(part: str, value: Any) -> None:
    sound = {"counts": {}, "examples": {}, "histograms": {}, "ranges": {}}
    assert not list(ledger_problems(sound, "ledger"))
    ((path, _),) = ledger_problems({**sound, part: value}, "ledger")
    assert path.startswith(f"ledger.{part}")
    assert list(ledger_problems({"counts": {}}, "ledger"))


def test_a_manifest_of_an_earlier_version_has_no_ledger_and_no_findings(converted):
    document = json.loads(converted.to_json())
    document.pop("checksum", None)
    for split in document["splits"].values():
        del split["statistics"]["ledger"]
    earlier = Statistics.from_json(document["splits"]["train"]["statistics"])
    assert earlier.ledger is None and earlier.merge(Statistics()).ledger is None
    assert Converted.of(converted).ledger.count("sources") == 2
    from dataclasses import replace

    old = replace(converted, splits={"train": replace(converted.splits["train"], statistics=earlier)})
    assert Manifest.from_json(old.to_json().encode(), "manifest.json") == old
    assert not loss_findings(Converted.of(old))


@pytest.fixture
def converted(tmp_path) -> Manifest:
    import numpy as np
    from PIL import Image

    from tests.support.conversions import run_convert

    for name in ("hat", "shirt"):
        (tmp_path / "s" / name).mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(0, 255, (20, 20, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "s" / name / "1.png")
    return run_convert(tmp_path / "s", tmp_path / "out", layout="folders").manifest
