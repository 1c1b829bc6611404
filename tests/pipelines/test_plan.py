"""Are splits, labels and ids settled, or refused, before a picture is read and a file written?"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from halofeed.prep.tasks.splits import split_of
from halofeed.schemas.errors import AnnotationsError, HalofeedError, JobError, UsageError
from tests.support.conversions import draw_folders, read_all, read_split, run_convert

FOLDERS = {"layout": "folders"}


@pytest.fixture
def source(tmp_path) -> Path:
    return draw_folders(tmp_path / "src", 24)


def splits_of(done: Any) -> dict[str, str]:
    records = read_all(Path(done.folder), list(done.manifest.splits))
    return {source: features["split"] for source, features in records.items()}


def fails_and_writes_nothing(
    kind: type[HalofeedError], match: str, source: Path, out: Path, **options: Any
) -> None:
    with pytest.raises(kind, match=match):
        run_convert(source, out, **options)
    assert not out.exists()


def test_splits_by_hash_are_those_of_the_hash(source, tmp_path):
    shares = {"train": 0.5, "validation": 0.25, "test": 0.25}
    given = tuple(f"{name}={share}" for name, share in shares.items())
    done = run_convert(source, tmp_path / "out", split_shares=given, split_seed=3, **FOLDERS)
    found = splits_of(done)
    assert found == {name: split_of(name, shares, 3) for name in found}
    assert len(found) == 24 and len(set(found.values())) == 3


def test_a_group_is_never_divided(source, tmp_path):
    shares = ("train=0.5", "test=0.5")
    pattern = r"/\d\d(\d)"  # four groups of ten numbers
    done = run_convert(source, tmp_path / "out", split_shares=shares, group_pattern=pattern, **FOLDERS)
    groups = defaultdict(set)
    for name, split in splits_of(done).items():
        groups[name.rpartition("/")[2][2]].add(split)
    assert len(groups) == 3 and all(len(splits) == 1 for splits in groups.values())


def test_lists_assign_splits_and_the_rest_is_left_out(source, tmp_path):
    (tmp_path / "train.txt").write_text("hat/0000.jpg\n0001\nshirt/0003\n")
    (tmp_path / "test.txt").write_text("0002.jpg\n")
    lists = (f"train={tmp_path / 'train.txt'}", f"test={tmp_path / 'test.txt'}")
    done = run_convert(source, tmp_path / "out", split_lists=lists, max_rejected=0, **FOLDERS)
    assert splits_of(done) == {
        "hat/0000.jpg": "train",
        "shirt/0001.jpg": "train",
        "shirt/0003.jpg": "train",
        "hat/0002.jpg": "test",
    }
    assert done.manifest.rejected == {"selection: in no split list": 20}


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"split_shares": ("train",)}, UsageError, "expected name=share"),
        ({"split_shares": ("tr ain=1",)}, UsageError, "split 'tr ain': expected letters"),
        ({"split_lists": ("train=/no/such/list.txt",)}, UsageError, "/no/such/list.txt"),
        ({"split_lists": ("train.txt",)}, UsageError, "expected name=file"),
        ({"task": "detection"}, UsageError, "layout folders serves classification"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(source, tmp_path, options, kind, match):
    fails_and_writes_nothing(kind, match, source, tmp_path / "out", **{**FOLDERS, **options})


LABEL_MAPS = {
    "labels.txt": "coat\nshirt\nhat\n",
    "labels.json": json.dumps({"0": "coat", "1": "shirt", "2": "hat"}),
    "labels.pbtxt": "item { id: 0 name: 'coat' } item { id: 1 name: 'shirt' } item { id: 2 name: 'hat' }",
}


@pytest.mark.parametrize("name", LABEL_MAPS)
def test_a_label_map_file_decides_the_ids(source, tmp_path, name):
    (tmp_path / name).write_text(LABEL_MAPS[name])
    done = run_convert(source, tmp_path / "out", label_map=str(tmp_path / name), **FOLDERS)
    assert done.manifest.labels == {0: "coat", 1: "shirt", 2: "hat"}
    for source_name, features in read_all(Path(done.folder), ["train"]).items():
        assert features["image/class/label"][0] == {"hat": 2, "shirt": 1}[source_name.split("/")[0]]


def test_every_unknown_label_is_named_with_its_count_and_a_place(source, tmp_path):
    draw_folders(tmp_path / "more", 2)
    (tmp_path / "more/hat").rename(source / "glove")
    (tmp_path / "labels.txt").write_text("shirt\n")
    with pytest.raises(AnnotationsError) as caught:
        run_convert(source, tmp_path / "out", label_map=str(tmp_path / "labels.txt"), **FOLDERS)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("2 label(s) of the data are not in") and "known: shirt" in lines[0]
    assert lines[1:] == [
        "  'glove': 1 times, first in glove/0000.jpg",
        "  'hat': 12 times, first in hat/0000.jpg",
    ]
    assert not (tmp_path / "out/set").exists()


def coco(images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> str:
    categories = [{"id": 1, "name": "hat"}]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def test_two_sources_with_one_id_are_both_named(source, tmp_path):
    """7 and "7" are one id, since an id in a file name or a table is a text."""
    files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.jpg"))
    images = [{"id": 7, "file_name": files[0]}, {"id": "7", "file_name": files[1]}]
    (source / "instances.json").write_text(coco(images, []))
    fails_and_writes_nothing(
        JobError, f"(?s)id 7.*{files[0]}.*{files[1]}", source, tmp_path / "out", layout="coco"
    )


def test_ids_that_begin_again_in_a_second_file_are_no_collision(source, tmp_path):
    files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.jpg"))
    for part, name in (("train", files[0]), ("val", files[1])):
        (source / f"instances_{part}.json").write_text(coco([{"id": 7, "file_name": name}], []))
    done = run_convert(source, tmp_path / "out", layout="coco")
    assert splits_of(done) == {files[0]: "train", files[1]: "val"}


@pytest.mark.parametrize("layout", ["folders", "csv", "jsonl", "coco", "voc"])
def test_an_empty_source_is_refused(tmp_path, layout):
    (tmp_path / "src").mkdir()
    fails_and_writes_nothing(HalofeedError, str(tmp_path), tmp_path / "src", tmp_path / "out", layout=layout)


def test_a_split_whose_every_input_is_rejected_stays_as_an_empty_one(tmp_path):
    draw_folders(tmp_path / "src/train", 4)
    draw_folders(tmp_path / "src/test", 2, broken=2)
    manifest = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", shards=2).manifest
    assert {name: split.records for name, split in manifest.splits.items()} == {"test": 0, "train": 4}
    assert manifest.rejected and sum(manifest.rejected.values()) == 2


def test_more_shards_than_pictures_leaves_empty_ones(tmp_path):
    done = run_convert(draw_folders(tmp_path / "src", 2), tmp_path / "out", shards=7, **FOLDERS)
    assert Counter(shard.records for shard in done.manifest.splits["train"].shards)[0] >= 5
    assert len(read_all(Path(done.folder), ["train"])) == 2


def rename(path: Path, name: bytes) -> None:
    try:
        path.rename(path.with_name(name.decode("utf-8", "surrogateescape")))
    except OSError:
        pytest.skip("this file system holds UTF-8 names only")


def test_file_names_that_are_no_utf8_come_through(tmp_path):
    draw_folders(tmp_path / "src", 4)
    rename(tmp_path / "src/hat/0000.jpg", b"caf\xe9.jpg")
    done = run_convert(tmp_path / "src", tmp_path / "out", **FOLDERS)
    names = {bytes(features["image/filename"][0]) for features in read_split(Path(done.folder), "train")}
    assert b"hat/caf\xe9.jpg" in names and len(names) == 4


def test_a_class_whose_name_is_no_utf8_is_refused_by_name(tmp_path):
    draw_folders(tmp_path / "src", 4)
    rename(tmp_path / "src/hat", b"caf\xe9")
    fails_and_writes_nothing(AnnotationsError, "UTF-8", tmp_path / "src", tmp_path / "out", **FOLDERS)


def table(folder: Path, *rows: str) -> Path:
    """A CSV table over one drawn image a row."""
    draw_folders(folder, len(rows))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    lines = [f"{file},{row}" for file, row in zip(files, rows, strict=True)]
    (folder / "labels.csv").write_text("\n".join(["filename,class,split", *lines]) + "\n")
    return folder / "labels.csv"


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        (("train", "tr ain"), "split 'tr ain': expected letters"),
        (("train", "all"), "split 'all': "),
        (("Train", "train"), r"splits 'Train' and 'train' differ in upper and lower case alone.*rename one"),
    ],
)
def test_split_names_of_the_data_that_cannot_be_file_names_are_the_datas_fault(tmp_path, splits, match):
    source = table(tmp_path / "src", *(f"hat,{split}" for split in splits))
    fails_and_writes_nothing(AnnotationsError, match, source, tmp_path / "out", layout="csv")


def test_splits_of_one_spelling_in_an_option_are_wrong_usage(source, tmp_path):
    options = {"split_shares": ("Train=0.5", "train=0.5"), **FOLDERS}
    fails_and_writes_nothing(UsageError, "upper and lower case", source, tmp_path / "out", **options)


def test_a_table_without_rows_is_the_datas_fault(tmp_path):
    (tmp_path / "labels.csv").write_text("filename,class\n")
    match = r"labels\.csv: a header and no rows"
    fails_and_writes_nothing(AnnotationsError, match, tmp_path / "labels.csv", tmp_path / "out", layout="csv")
