"""Is a table that does not fit into memory read as one that does?"""

from __future__ import annotations

import json
import random

import pytest

from halofeed.prep.annotations import sorted_records, table_bytes
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.sorted_records import SortedRecords
from halofeed.prep.layouts import find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError
from tests.support.allocations import traced


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
    monkeypatch.setattr(table_bytes, "HELD_BYTES", 5)
    monkeypatch.setattr(sorted_records, "AT_ONCE", 7)
    assert listed(tmp_path, layout, **options) == held


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_faults_of_a_table_that_is_not_held_are_told_alike(tmp_path, monkeypatch, layout):
    draw(tmp_path, layout, [["a.jpg", "hat", "train", ""], ["a.jpg", "coat", "train", ""]], ["a.jpg"])
    told = []
    for size in (1 << 20, 5):
        monkeypatch.setattr(table_bytes, "HELD_BYTES", size)
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


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other", "no text"])
def test_a_table_that_changes_between_two_passes_is_noticed(tmp_path, monkeypatch, layout, change):
    monkeypatch.setattr(table_bytes, "HELD_BYTES", 5)
    files = [f"{number}.jpg" for number in range(30)]
    draw(tmp_path, layout, [[name, "hat", "train", ""] for name in files], files)
    table = tmp_path / f"table.{layout}"
    before = table.read_bytes()
    line = before.splitlines(keepends=True)[-1]
    changed = {"longer": before + line, "shorter": before.removesuffix(line)}
    changed |= {"other": before.replace(b"29", b"28"), "no text": before.replace(b"29", b"\xff\xff")}
    passes = []

    def opens(files, path, opened=LocalFiles.open):
        passes.append(path)
        if len(passes) == 2:
            table.write_bytes(changed[change])
        return opened(files, path)

    monkeypatch.setattr(LocalFiles, "open", opens)
    with pytest.raises(AnnotationsError, match="changed while it was read"):
        listed(tmp_path, layout)


def test_a_large_table_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(table_bytes, "HELD_BYTES", 1 << 16)
    monkeypatch.setattr(sorted_records, "AT_ONCE", 1_000)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "table.csv").write_text("filename,class,note\n" + f"a.jpg,hat,{'x' * 1_000}\n" * 20_000)
    sources = LocalFiles(tmp_path)
    with traced() as found:
        (only,) = find_layout("csv").list_references(sources, sources, "table.csv", LayoutOptions())
    assert only.label == "hat" and found.peak < 12_000_000  # of 20 MB of text


@pytest.mark.parametrize("size", [1 << 22, 5])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\xff", b"\xe2\x82"])
def test_the_first_byte_that_is_no_text_is_named(tmp_path, monkeypatch, size, start, end):
    monkeypatch.setattr(table_bytes, "HELD_BYTES", size)
    monkeypatch.setattr(table_bytes, "_PIECE_BYTES", 7)
    text = start + "filename,class\né€.jpg,hat\n".encode()
    (tmp_path / "table.csv").write_bytes(text + end)
    with pytest.raises(AnnotationsError, match=f"byte {len(text)} is 0x{end[0]:02x}"):
        listed(tmp_path, "csv")
