"""A listing in arrays equals the sorted dict that it replaces."""

import random

import pytest

from halofeed.prep.sources import files as source_module
from halofeed.prep.sources import walk
from halofeed.prep.sources.files import source_files
from halofeed.prep.sources.walk import FileSizes
from halofeed.storage.base import Entry
from tests.support.allocations import traced
from tests.support.conversions import all_bytes, draw_folders, run_convert

PARTS = ("a", "b", "a-", "a.b", "a0", "A", "é", "z\udc80", "\ud7ff", "\uffff", "\U00010000", "ab")


@pytest.mark.parametrize("seed", range(20))
def test_any_tree_is_its_sorted_dict(seed, monkeypatch):
    generator = random.Random(seed)
    folders = {"": set()}
    for _ in range(60):
        depth = generator.randrange(5)
        folder = "/".join(generator.choice(PARTS) for _ in range(depth))
        folders.setdefault(folder, set()).add(generator.choice(PARTS) + ".jpg")
    expected, found = {}, FileSizes()
    in_parts = FileSizes()
    monkeypatch.setattr(walk, "_FILES_PER_BATCH", 1 + seed)
    for folder, names in generator.sample(sorted(folders.items()), len(folders)):
        files = [(name, generator.randrange(1 << 40)) for name in names]
        generator.shuffle(files)
        found.add_folder(folder, files)
        expected |= {f"{folder}/{name}" if folder else name: size for name, size in files}
    order = sorted if seed % 2 else lambda some: generator.sample(some, len(some))
    in_parts.add_files(order([*expected.items()]))
    assert [*in_parts.items()] == [*found.items()]
    for folder in folders:
        inside = [path for path in sorted(expected) if path.rpartition("/")[0] == folder]
        assert in_parts.in_folder(folder) == inside
    expected = dict(sorted(expected.items()))
    assert list(found) == list(expected) and len(found) == len(expected)
    assert list(found.items()) == list(expected.items()) and found == expected
    for path in generator.sample(sorted(expected), len(expected)):
        assert found[path] == expected[path] and path + "x" not in found and path[:-1] not in found
    assert "" not in found and "no/such" not in found


def test_a_large_source_is_converted_as_a_small_one(tmp_path, monkeypatch):
    draw_folders(tmp_path / "src", 30, broken=2)
    small = run_convert(tmp_path / "src", tmp_path / "small", layout="folders", shards=2)
    monkeypatch.setattr(walk, "DICT_MAX_FILES", 0)
    assert isinstance(source_files(str(tmp_path / "src")).sizes(), FileSizes)
    large = run_convert(tmp_path / "src", tmp_path / "large", layout="folders", shards=2)
    assert small.manifest == large.manifest
    assert all_bytes(tmp_path / "small") == all_bytes(tmp_path / "large")


def test_a_file_takes_its_name_and_a_few_bytes():
    taken = FileSizes()
    with traced() as found:
        for folder in range(10):
            taken.add_folder(f"class_{folder}", ((f"{number:08d}.jpg", number) for number in range(10_000)))
    assert found.kept < 100_000 * 28


@pytest.mark.long
def test_what_a_store_lists_is_held_as_what_a_folder_lists(monkeypatch):
    class Listed:
        def entries(self):
            for number in range(100_000):
                yield Entry(f"{number // 40_000}/{number:08d}.jpg", 7, "1")
            yield Entry("2/.hidden", 1, "1")

    monkeypatch.setattr(source_module.RemoteFiles, "_files", lambda files: Listed())
    monkeypatch.setattr(walk, "DICT_MAX_FILES", 0)
    monkeypatch.setattr(walk, "_FILES_PER_BATCH", 5_000)
    files = source_files("s3://bucket/all")
    with traced() as found:
        assert len(files.sizes()) == 100_000
    assert found.kept < 100_000 * 28 and found.peak < found.kept + 5_000_000
    assert files.size("2/00080001.jpg") == 7 and files.size("2/.hidden") is None
    assert len(files.files_in("2")) == 20_000 and files.files_in("3") == []
