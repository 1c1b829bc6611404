"""Verify finds every fault and names its file and record."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.describe_dataset import describe_record
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import DatasetProblem, VerifyReport, verify
from halofeed.schemas.croissant import EARLIER_VERSION, croissant_json
from halofeed.schemas.file_layout import CROISSANT, index_file
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.tfds import dataset_info_json
from halofeed.schemas.tfrecord import RecordWriter, read_records
from halofeed.system.checksum import crc32c
from tests.support.allocations import traced
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.conversions import draw_folders, run_convert
from tests.support.dataset_writer import draw_examples, encode_pixels, write_dataset
from tests.support.scripts import run_script
from tests.support.set_writer import refusal

REJECTED = (
    refusal("a/ä\udcff.jpg", "decode", "truncated", "8 bytes"),
    refusal("b.jpg", "read", "cannot be read", split="test"),
)
CASES = [
    ("classification", "raw", "uint8", 3),
    ("classification", "png", "uint16", 1),
    ("detection", "raw", "uint16", 1),
    ("detection", "png", "uint8", 4),
    ("detection", "jpeg", "uint8", 3),
]


def write(folder: Path, task: str = "detection", encoding: str = "raw", **more: Any) -> Path:
    examples = draw_examples(task, {"train": 9, "test": 3}, varied=encoding != "raw")
    return write_dataset(folder, examples, task=task, encoding=encoding, rejected=REJECTED, **more)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sound") / "set")


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "set"))


@pytest.mark.parametrize(("task", "encoding", "dtype", "channels"), CASES)
def test_a_sound_data_set_has_no_problems(tmp_path, task, encoding, dtype, channels):
    drawing = {"shape": (8, 12, channels), "dtype": dtype, "varied": encoding != "raw"}
    examples = draw_examples(task, {"train": 9, "test": 3}, **drawing)
    more = {"shards": 5, "masks": task == "detection"}
    folder = write_dataset(tmp_path, examples, task=task, encoding=encoding, **more)
    seen: list[tuple[int, int]] = []
    report = verify(folder, progress=lambda done, total: seen.append((done, total)))
    assert report.ok, str(report)
    assert report.records == 12
    assert report.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert report.files == len(list(folder.iterdir()))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("most", [3, pytest.param(60, marks=pytest.mark.long)])
def test_every_flipped_byte_is_found_and_its_file_named(copied: Path, most: int) -> None:
    generator = np.random.default_rng(3)
    missed = []
    for path in sorted(copied.iterdir()):
        data = path.read_bytes()
        count = min(len(data), most)
        for position in generator.choice(len(data), count, replace=False).tolist():
            changed = bytearray(data)
            changed[position] ^= int(generator.integers(1, 256))
            path.write_bytes(changed)
            if not any(problem.file == path.name for problem in verify(copied).problems):
                missed.append((path.name, position, data[position], changed[position]))
        path.write_bytes(data)
    assert not missed
    assert verify(copied).ok


def test_every_truncation_and_every_missing_file_is_named(copied: Path) -> None:
    for path in sorted(copied.iterdir()):
        data = path.read_bytes()
        for cut in (1, 5, 100):
            path.write_bytes(data[:-cut])
            assert not data or any(one.file == path.name for one in verify(copied).problems), path.name
        path.unlink()
        found = [problem for problem in verify(copied).problems if problem.file == path.name]
        assert path.name == CROISSANT or (found and "missing" in found[0].message), path.name
        path.write_bytes(data)


def test_a_shard_that_ends_early_is_one_problem_not_one_a_record(copied: Path) -> None:
    path = max(copied.glob("*.tfrecord-*[0-9]"), key=lambda found: found.stat().st_size)
    path.write_bytes(path.read_bytes()[:5])
    found = [problem for problem in verify(copied).problems if problem.record is not None]
    assert len(found) == 1 and "records after it are missing too" in found[0].message


def test_leftovers_are_named_but_those_of_a_command_that_was_killed_after_the_commit(copied: Path) -> None:
    (copied / ".incomplete").mkdir()
    (copied / ".incomplete" / "references-00000.jsonl").write_text("{}\n")
    assert verify(copied).ok
    (copied / (shard := "tiny-train.tfrecord-00000-of-00009")).write_bytes(b"")
    (copied / "notes.txt").write_text("mine")
    assert [problem.file for problem in verify(copied).problems] == ["notes.txt", shard]


def test_a_damaged_record_is_named_with_number_offset_and_id_and_others_still_checked(copied: Path) -> None:
    name = "tiny-train.tfrecord-00001-of-00002"
    index = ShardIndex.from_bytes((copied / index_file(name)).read_bytes(), name)
    data = bytearray((copied / name).read_bytes())
    for record in (0, 2):
        data[int(index.offsets[record]) + 3] ^= 1
    (copied / name).write_bytes(data)
    report = verify(copied)
    damaged = [(p.record, p.offset, p.id) for p in report.problems if p.record is not None]
    assert damaged == [(n, int(index.offsets[n]), int(index.ids[n])) for n in (0, 2)]
    assert report.records == 10


def test_a_record_exchanged_under_right_frame_checksums_breaks_the_files_checksum(copied: Path) -> None:
    name = "tiny-train.tfrecord-00000-of-00002"
    records = [bytearray(data) for _, data in read_records((copied / name).read_bytes(), name)]
    records[1][-1] ^= 1
    with (copied / name).open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            writer.write([record], len(record))
    assert f"{name}: its checksum is " in str(verify(copied))


def test_a_data_set_of_an_earlier_version_has_no_problems_and_white_space_is_found(copied: Path) -> None:
    path = copied / "manifest.json"
    document = json.loads(path.read_bytes())
    del document["kind"], document["crc32c"]
    document["recipe"] = {"depth": None, "store": "uint8", "kernel": "antialias", "interpolation": "linear"}
    document["crc32c"] = crc32c(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    assert verify(copied).ok, verify(copied)
    path.write_text(path.read_text().replace('"store": ', '"store":\t'))
    (problem,) = verify(copied).problems
    assert problem.file == "manifest.json" and "store" in problem.message


def test_croissant_of_the_version_that_earlier_data_sets_have_verifies(copied: Path) -> None:
    manifest = read_manifest(copied)
    path = copied / CROISSANT
    assert b"croissant/1.1" in path.read_bytes()
    path.write_text(croissant_json(manifest, EARLIER_VERSION), encoding="utf-8")
    assert b"croissant/1.0" in path.read_bytes() and verify(copied).ok
    path.write_bytes(path.read_bytes().replace(b"1.0.0", b"1.0.1"))
    assert not verify(copied).ok


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        verify(tmp_path / "nothing")
    (tmp_path / ".incomplete").mkdir()
    assert "did not finish" in str(verify(tmp_path))


Alter = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""What changes the features of a drawn record."""


def put(key: str, value: Any) -> Alter:
    return lambda example, features: {**features, key: value}


def put_at(key: str, at: Any, value: float) -> Alter:
    def alter(example: Any, features: dict[str, Any]) -> dict[str, Any]:
        changed = np.array(features[key])
        changed[at] = value
        return {**features, key: changed}

    return alter


def first_box(key: str, value: float) -> Alter:
    return put_at(key, slice(1), value)


def without(key: str) -> Alter:
    return lambda example, features: {name: value for name, value in features.items() if name != key}


def replaced_image(data: bytes) -> Alter:
    digest = hashlib.sha256(data).hexdigest().encode()
    return lambda example, features: {**features, "image/encoded": data, "image/key/sha256": digest}


KEY = "image/encoded"
SMALL_PNG = encode_pixels(np.zeros((2, 3, 3), np.uint8), "png")
FAULTS = {
    ("detection", "raw"): [
        (without("image/transform"), "image/transform is missing"),
        (put("image/transform", np.zeros(5, np.float32)), "expected 6 values"),
        (put("image/transform", np.full(6, np.nan, np.float32)), "is nan, which is not a valid float32"),
        (put("image/transform", np.zeros(6, np.int64)), "expected float32 values, got 6 int64"),
        (put("image/format", b"jpeg"), "expected 'raw' as the manifest says, got 'jpeg'"),
        (put("image/height", np.array([9])), "of a raw image, got [9, 12]"),
        (put("image/unpadded/height", np.array([9])), "expected 1 to 8, got 9"),
        (put("image/source/width", np.array([2**40])), "which is not a valid int32"),
        (put("image/key/sha256", b"0" * 64), "image/key/sha256: image/encoded has"),
        (put("image/source_id", b"7"), "image/source_id: 7, but image/key/source"),
        (put("image/source_id", b"7 "), "expected a decimal number, got '7 '"),
        (put("image/source_id", b"7"), "the index says"),
        (replaced_image(b"\x00" * 7), "expected 288 bytes (uint8 [8, 12, 3]), got 7"),
        (first_box("image/object/bbox/ymin", -0.1), "ymin: box 0: expected 0 to 1, got -0.1"),
        (first_box("image/object/bbox/xmax", np.nan), "xmax: box 0: expected 0 to 1, got nan"),
        (first_box("image/object/bbox/xmin", 1), "box 0: xmin 1.0 is more than xmax"),
        (first_box("image/object/is_crowd", 2), "value 0 is 2, which is not a valid bool (0 or 1)"),
        (first_box("image/object/area", -1), "area: box 0: expected 0 or more, got -1.0"),
        (first_box("image/object/class/label", 3), "box 0: 3 is not in the manifest's labels"),
        (put("image/object/area", np.ones(9, np.float32)), "expected lists of one length"),
        (put("image/object/class/text", [b"dog"] * 4), "'dog', but label"),
    ],
    ("classification", "raw"): [
        (put("image/class/label", np.array([1, 2])), "expected 1 value (shape []), got 2"),
        (put("image/class/label", [b"1"]), "expected int64 values, got 1 bytes values"),
        (put("image/class/label", np.array([1])), "statistics.labels: the records give"),
    ],
    ("detection", "jpeg"): [
        (put("image/key/sha256", b"0" * 64), "image/key/sha256: image/encoded has"),
        (replaced_image(SMALL_PNG), "not a jpeg image that can be decoded"),
    ],
    ("detection", "png"): [
        (without("image/key/sha256"), "the record says None"),
        (replaced_image(b"\x00" * 7), "not a png image that can be decoded"),
        (replaced_image(SMALL_PNG), "decodes to 2 x 3"),
    ],
}


@pytest.mark.parametrize(
    ("task", "encoding", "alter", "expected"),
    [(*kind, *fault) for kind, faults in FAULTS.items() for fault in faults],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_content_that_is_wrong_under_right_checksums_is_found(tmp_path, task, encoding, alter, expected):
    problems = verify(write(tmp_path, task, encoding, alter=alter)).problems
    assert any(expected in str(problem) for problem in problems), [str(problem) for problem in problems[:20]]


def test_masks_that_do_not_fit_are_found(tmp_path: Path) -> None:
    masks = [SMALL_PNG, encode_pixels(np.full((8, 12, 1), 2, np.uint8), "png"), b"no"]
    text = str(verify(write(tmp_path, masks=True, alter=put("image/object/mask", masks))))
    assert "mask 0 is uint8 [2, 3, 3], expected uint8 [8, 12, 1]" in text
    assert "mask 1 holds 2, expected 0 and 1" in text
    assert "mask 2 is not a PNG that can be decoded" in text


def rewrite_index(folder: Path, name: str, **changes: Any) -> None:
    """Change an index and put its new checksum into the manifest, as a faulty writer would have."""
    path = folder / index_file(name)
    data = replace(ShardIndex.from_bytes(path.read_bytes(), name), **changes).to_bytes()
    path.write_bytes(data)
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    splits = {}
    for split, content in manifest.splits.items():
        shards = [
            replace(shard, index_bytes=len(data), index_crc32c=crc32c(data)) if shard.file == name else shard
            for shard in content.shards
        ]
        splits[split] = replace(content, shards=tuple(shards))
    (folder / "manifest.json").write_text(replace(manifest, splits=splits).to_json())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda index: {"ids": index.ids[::-1]}, "expected ids in rising order"),
        (lambda index: {"ids": index.ids + 1}, "the index says"),
        (lambda index: {"checksums": index.checksums ^ 1}, ": its checksum is 0x"),
        (lambda index: {"offsets": index.offsets + 1}, "record 5 is outside the shard's"),
        (lambda index: {"lengths": index.lengths + 1}, "record 5 is outside the shard's"),
        (lambda index: {"offsets": index.offsets - (index.offsets > 0)}, "but the record before it ends at"),
        (lambda index: {"lengths": index.lengths - 1}, "but the record before it ends at"),
        (lambda index: {"raw_starts": {KEY: index.raw_starts[KEY] - 1}}, "begins at byte"),
        (lambda index: {"raw_checksums": {KEY: index.raw_checksums[KEY] ^ 1}}, "of block 0 is"),
        (lambda index: {"raw_starts": {}, "raw_checksums": {}}, f"raw keys: expected ['{KEY}'], got []"),
        (lambda index: {"statistics": replace(index.statistics, records=1)}, "records: the records give"),
        (lambda index: {"statistics": replace(index.statistics, notes={"x": 1})}, "not the sum of the"),
        (lambda index: {"rejected": ()}, "holds 2 lines, the indexes name 1"),
    ],
)
def test_a_wrong_index_under_right_checksums_is_found(copied: Path, change: Any, expected: str) -> None:
    name = "tiny-train.tfrecord-00000-of-00002"
    index = ShardIndex.from_bytes((copied / index_file(name)).read_bytes(), name)
    rewrite_index(copied, name, **change(index))
    assert expected in str(verify(copied))


def test_a_record_in_the_wrong_shard_and_an_id_in_two_splits_are_found(tmp_path: Path) -> None:
    examples = draw_examples("classification", {"train": 4})
    twins = [*examples, replace(examples[0], split="test")]
    report = str(verify(write_dataset(tmp_path / "twins", twins, task="classification")))
    assert "several records have this id: tiny-test" in report
    folder = write_dataset(tmp_path / "swapped", examples, task="classification")
    first, second = (f"tiny-train.tfrecord-0000{number}-of-00002" for number in range(2))
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    pairs = zip(reversed(manifest.splits["train"].shards), (first, second), strict=True)
    swapped = tuple(replace(shard, file=name, index=index_file(name)) for shard, name in pairs)
    split = replace(manifest.splits["train"], shards=swapped)
    for of in (str, index_file):
        (folder / of(first)).rename(folder / "moved")
        (folder / of(second)).rename(folder / of(first))
        (folder / "moved").rename(folder / of(second))
    changed = replace(manifest, splits={"train": split})
    (folder / "manifest.json").write_text(changed.to_json())
    (folder / "dataset_info.json").write_text(dataset_info_json(changed))
    report = verify(folder)
    assert len(report.problems) == 4
    assert all("its id belongs into shard" in str(problem) for problem in report.problems)


def test_rejects_that_differ_from_the_indexes_are_found_by_line(copied: Path) -> None:
    path = copied / "rejected.jsonl"
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b", ", b",\t", 1))
    assert [(problem.file, problem.record) for problem in verify(copied).problems] == [("rejected.jsonl", 0)]
    lines = sound.splitlines()
    entry = json.loads(lines[1].decode("utf-8", "surrogateescape"))
    path.write_bytes(lines[0] + b"\n" + json.dumps({**entry, "reason": "other"}).encode() + b"\n")
    problems = verify(copied).problems
    assert [problem.record for problem in problems if problem.record is not None] == [1]
    assert any("the manifest says" in problem.message for problem in problems)


@pytest.mark.parametrize("layout", ["folders", "csv"])
def test_a_label_map_with_names_and_display_names_verifies(tmp_path: Path, layout: str) -> None:
    draw_folders(tmp_path / "s", 6)
    if layout == "csv":
        rows = [boxed(f"hat/{number:04d}.jpg", (1, 1, 8, 8)) for number in range(0, 6, 2)]
        write_annotations(tmp_path / "s", "csv", rows)
    item = 'item {{ id: {0} name: "/m/{0}" display_name: "{1}" }}\n'
    items = item.format(1, "hat") + item.format(2, "shirt")
    (tmp_path / "labels.pbtxt").write_text(items)
    label_map = str(tmp_path / "labels.pbtxt")
    report = verify(run_convert(tmp_path / "s", tmp_path / "out", layout=layout, label_map=label_map).folder)
    assert report.ok, str(report)


def test_many_problems_of_one_kind_are_counted_and_not_listed() -> None:
    problems = tuple(DatasetProblem(file="a", record=n, message=f"label {n} is 'x{n}'") for n in range(500))
    text = str(VerifyReport(folder="x", files=1, records=500, bytes=1, problems=problems))
    assert text.startswith("x: 500 problems") and len(text.splitlines()) == 23
    assert "and 480 more:" in text and "480 x label # is #" in text


STORM = """
import os, sys, time
from pathlib import Path
from halofeed.inspection.html.report import write_report
from halofeed.inspection.describe_dataset import describe_record
from halofeed.inspection.verify import verify
from halofeed.errors import CorruptFileError
folder = Path({folder!r})
paths = sorted(folder.glob("*.tfrecord-*-of-00001"))
data = {{path: path.read_bytes() for path in paths}}
child = os.fork()
if child == 0:
    parent = os.getppid()
    while os.getppid() == parent:
        for path in paths:
            os.truncate(path, len(data[path]) // 3)
            time.sleep(0.001)
            path.write_bytes(data[path])
            time.sleep(0.005)
    os._exit(0)
def verified():
    found = verify(folder)
    if not found.ok:
        raise CorruptFileError(str(found))
def inspected(): describe_record(folder, "train:11")
def reported(): write_report(folder)
for look in (verified, inspected, reported):
    named = 0
    while named < 5:
        try:
            look()
        except CorruptFileError as error:
            assert any(path.name in str(error) for path in paths), error
            named += 1
    print(look.__name__, named)
os.kill(child, 9)
"""


def write_shard(folder: Path, count: int = 12, side: int = 110, seed: int = 0) -> Path:
    examples = draw_examples("classification", {"train": count}, shape=(side, side, 3), seed=seed)
    return write_dataset(folder, examples, task="classification", shards=1)


@pytest.fixture
def one_shard(tmp_path: Path) -> Path:
    return write_shard(tmp_path / "set")


@pytest.mark.long
def test_a_shard_shortened_while_it_is_looked_at_is_named(one_shard: Path) -> None:
    """Each attempt may end its process with SIGBUS; a shard that is whole again gives no error."""
    output = run_script(STORM.format(folder=str(one_shard)), seconds=300)
    assert output.splitlines() == ["verified 5", "inspected 5", "reported 5"]


@pytest.mark.parametrize("files", [[str], [str, index_file]])
def test_a_stale_shard_is_found_by_all_that_look(one_shard, tmp_path, files):
    stale = write_shard(tmp_path / "stale", seed=5)
    name = "tiny-train.tfrecord-00000-of-00001"
    for of in files:
        shutil.copyfile(stale / of(name), one_shard / of(name))
    found = verify(one_shard).problems
    if files == [str]:
        assert any("the index says" in problem.message for problem in found if problem.record is not None)
    assert any("the manifest says" in problem.message for problem in found)
    for look in (lambda: describe_record(one_shard, "train:0"), lambda: write_report(one_shard)):
        with pytest.raises(CorruptFileError, match="halofeed verify"):
            look()


def test_verify_holds_one_record_in_memory(tmp_path: Path) -> None:
    folder = write_shard(tmp_path / "set", count=24, side=512)
    path = next(folder.glob("*-of-00001"))
    data = bytearray(path.read_bytes())
    data[6] ^= 1  # of the first length: 2**48 bytes are announced
    with traced() as memory:
        assert verify(folder).ok
        path.write_bytes(data)
        del data
        assert not verify(folder).ok
    assert memory.peak < 8 * 512 * 512 * 3
