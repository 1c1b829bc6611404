"""Is a table that does not fit into memory read as one that does?"""

from __future__ import annotations

import json
import random

import pytest

from halofeed.prep.annotations import rows, sorted_records
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.sorted_records import SortedRecords
from halofeed.prep.layouts import find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError
from tests.allocations import traced


def draw(root, layout, lines, files):
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (len(name) % 7))
    header = ("filename", "class", "split", "group")
    if layout == "csv":
        text = "\n".join(",".join(line) for line in (header, *lines)) + "\n"
    else:
        text = "".join(json.dumps(dict(zip(header, line, strict=True))) + "\n" for line in lines)
    (root / f"table.{layout}").write_text("\ufeff" + text if layout == "csv" else text)


def listed(root, layout, table="table", **options):
    given = LayoutOptions(task="classification", **options)
    files = LocalFiles(root)
    return list(find_layout(layout).list_references(files, files, f"{table}.{layout}", given))


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_the_same_references_come_of_a_table_that_is_not_held(tmp_path, monkeypatch, layout):
    generator = random.Random(3)
    files = [
        f"{folder}/{number:03d}.{end}" for number in range(60) for folder, end in (("a", "jpg"), ("b", "JPG"))
    ]
    files += ["c/only.jpg", "d/1.jpg"]
    lines = [
        [name, generator.choice(["hat", "Hat", "coat"]), "train", f"g{name[-5]}"] for name in files[:100]
    ]
    lines += [
        ["b/007.jpg", "hat", "train", "g7"],
        ["only.jpg", "coat", "train", "g"],
        ["a/900.jpg", "hat", "train", ""],
    ]
    lines += [["a/900.jpg", "hat", "train", ""], ["", "hat", "train", ""], ["a/./058.jpg", "", "train", "g8"]]
    lines += [[line[0], "boot", *line[2:]] for line in generator.sample(lines[:60], 25)]
    generator.shuffle(lines)
    draw(tmp_path, layout, lines, files)
    options = {"several_classes": "keep"}
    held = listed(tmp_path, layout, **options)
    assert sum(one.problem is not None for one in held) > 10 and sum(bool(one.notes) for one in held) > 10
    monkeypatch.setattr(rows, "HELD_BYTES", 5)
    monkeypatch.setattr(sorted_records, "AT_ONCE", 7)
    assert listed(tmp_path, layout, **options) == held


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_faults_of_a_table_that_is_not_held_are_told_alike(tmp_path, monkeypatch, layout):
    draw(tmp_path, layout, [["a.jpg", "hat", "train", ""], ["a.jpg", "coat", "train", ""]], ["a.jpg"])
    told = []
    for size in (1 << 20, 5):
        monkeypatch.setattr(rows, "HELD_BYTES", size)
        with pytest.raises(AnnotationsError, match="two values of class") as caught:
            listed(tmp_path, layout)
        told.append(str(caught.value))
        table = tmp_path / f"broken.{layout}"
        table.write_bytes((tmp_path / f"table.{layout}").read_bytes() + b"b.jpg \xff")
        with pytest.raises(AnnotationsError, match="expected UTF-8 text, byte") as caught:
            listed(tmp_path, layout, table="broken")
        told.append(str(caught.value))
    assert told[:2] == told[2:]


def test_sorted_records_take_a_small_part_of_their_memory(monkeypatch):
    monkeypatch.setattr(sorted_records, "AT_ONCE", 2_000)
    with traced() as found:
        assert fill(SortedRecords(), 80_000) == 80_000
    assert found.peak < 80_000 * 20  # a record takes 200 bytes


def fill(records, count):
    for number in range(count):
        records.add((f"{number * 7919 % count:08d}", number, ("hat", None)))
    last, found = ("", -1), 0
    for text, number, _ in records:
        assert last < (text, number)
        last, found = (text, number), found + 1
    return found
