"""Verify, exports, pages and the printed program read packed records as raw ones, and damage is found by its band."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.inspection.describe_dataset import describe_dataset, describe_record, parser_code
from halofeed.inspection.export_data import export_data, targets_of
from halofeed.inspection.html.report import write_report
from halofeed.inspection.stored_values import packed_problems
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_record import record_problems
from halofeed.schemas.fields import Field
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.packed.packed_arrays import pack
from halofeed.schemas.packed.packed_layout import SLACK_BYTES, PackedLayout
from tests.support.conversions import all_bytes, shard_paths
from tests.support.encoded_kinds import CASES, arrays_of, convert_case, records_of
from tests.support.level_rows import levels

QUICK = ("labeled pictures", "class sets", "labeled clips")


@pytest.fixture(scope="module", params=levels(*QUICK, long=[name for name in CASES if name not in QUICK]))
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """One source of each kind, converted to raw and to packed records."""
    folder = tmp_path_factory.mktemp("kind")
    raw, packed = (convert_case(request.param, folder, encoding=encoding) for encoding in ("raw", "packed"))
    return raw, packed


def test_every_target_of_export_gets_the_same_bytes_from_packed_records(both, tmp_path):
    raw, packed = both
    targets = targets_of(read_manifest(packed))
    assert targets == targets_of(read_manifest(raw))
    for target in targets:
        results: list[Any] = []
        for number, folder in enumerate((raw, packed)):
            try:
                export_data(folder, target, tmp_path / f"{target}{number}")
                results.append(all_bytes(tmp_path / f"{target}{number}"))
            except Exception as error:  # such as tiles of scans, which no file holds
                results.append(str(error).partition(": ")[2])
        assert results[0] == results[1]


def test_the_printed_program_reads_the_arrays_with_tensorflow_and_with_numpy(both):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    raw, packed = both
    programs: list[dict[str, Any]] = [{}, {}]
    rows = []
    for folder, program in zip(both, programs, strict=True):
        exec(parser_code(folder), program)
        files = [str(path) for split in read_manifest(folder).splits for path in shard_paths(folder, split)]
        records = tf.data.TFRecordDataset(files)
        rows.append(list(records.map(program["parse"]).as_numpy_iterator()))
    for ours, theirs in zip(rows[1], rows[0], strict=True):
        assert ours.keys() == theirs.keys()
        for name, expected in theirs.items():
            found = np.asarray(ours[name])
            assert found.dtype == np.asarray(expected).dtype
            np.testing.assert_array_equal(found, expected, err_msg=name)
    fields = [field for field in read_manifest(packed).fields if field.is_packed]
    for features, arrays in zip(records_of(packed), arrays_of(raw), strict=True):
        for field in fields:
            unpacked = _with_numpy(parser_code(packed), programs[1], field, bytes(features[field.keys[0]][0]))
            np.testing.assert_array_equal(unpacked, arrays[field.name], err_msg=field.name)


def _with_numpy(code: str, program: dict[str, Any], field: Field, value: bytes) -> Any:
    """The array that the line with NumPy in the program gives."""
    (line,) = re.findall(rf"#     (unpack_with_numpy\(value, \*PACKED\[\"{field.name}\"\]\).*)", code)
    return eval(line, {**program, "value": value})


def test_descriptions_and_reports_show_packed_records(both, tmp_path):
    packed = both[1]
    assert " packed " in describe_dataset(packed)
    split = next(iter(read_manifest(packed).splits))
    shown = []
    for folder in both:
        text = describe_record(folder, f"{split}:0").partition("\nFeatures\n")[0]
        # The place in the file and the size of the image differ.
        shown.append([line for line in text.splitlines() if not re.match("  (file|image) ", line)])
    assert shown[0] == shown[1]
    image, features = read_manifest(packed).field("image"), next(records_of(packed))
    share = 100 * len(features[image.keys[0]][0]) / PackedLayout.of(image.shape, image.dtype, 2).array_bytes
    assert f", {share:.0f} % of the plain " in describe_record(packed, f"{split}:0")
    pages = [
        write_report(folder, tmp_path / f"{number}.html").read_text() for number, folder in enumerate(both)
    ]
    pictures = [re.findall(r"data:image/[^\"]+", page) for page in pages]
    assert pictures[0] == pictures[1] != []


# Damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "patches"), [("uint8", False), ("int16", False), ("uint8", True)])
def test_every_changed_bit_of_a_value_is_a_problem_of_its_band(dtype, patches):
    rows, columns = np.mgrid[0:70, 0:9]
    array = ((rows // 9 + columns // 3) * (1 if patches else 7)).astype(dtype)
    layout = PackedLayout.of(array.shape, dtype, axes=2)
    value = bytearray(pack(array, layout, patches=patches))
    places, _ = layout.read_table(value, len(value))
    assert not list(packed_problems(memoryview(value), layout))
    for place in range(len(value)):
        for bit in range(8):
            value[place] ^= 1 << bit
            (problem,) = packed_problems(memoryview(value), layout)
            band = int(np.searchsorted(places, place, side="right")) - 1
            if place >= len(value) - SLACK_BYTES:
                assert problem.startswith("expected zeros after the last band")
            elif band < 0:
                assert re.match(
                    "not a packed array of .*: (expected version|the checksum of its table)", problem
                )
            else:
                assert problem.startswith(f"band {band} (rows {32 * band} to {min(32 * band + 31, 69)}): ")
            assert "halofeed convert` with --overwrite" in problem
            value[place] ^= 1 << bit


@pytest.fixture(scope="module")
def scans(tmp_path_factory) -> Path:
    return convert_case("scans", tmp_path_factory.mktemp("scans"), encoding="packed")


def place_of(folder: Path, key: str, record: int) -> tuple[Path, int, int]:
    """The shard of a record, and where the value of a key begins and ends in it."""
    (shard,) = read_manifest(folder).splits["train"].shards
    index = ShardIndex.from_bytes((folder / shard.index).read_bytes(), shard.index)
    start = int(index.raw_starts[key][record])
    return folder / shard.file, start, start + int(index.packed_bytes[key][record])


@pytest.mark.parametrize(
    ("name", "band", "words"),
    [("image", 3, "plane 1, rows 32 to 39"), ("label", 4, "plane 2, rows 0 to 31")],
)
def test_verify_names_file_record_and_band_of_a_changed_bit_and_what_to_do(
    scans, tmp_path, name, band, words
):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file, data in all_bytes(scans).items():
        (copy / file).write_bytes(data)
    field = read_manifest(copy).field(name)
    path, start, stop = place_of(copy, field.keys[0], 1)
    data = bytearray(path.read_bytes())
    places, _ = field.packed_layout.read_table(bytes(data[start:stop]), stop - start)
    data[start + places[band] + 3] ^= 16
    path.write_bytes(data)
    report = verify(copy)
    assert len(report.problems) == 2
    first, second = report.problems
    assert (first.file, first.record) == (second.file, second.record) == (path.name, 1)
    assert first.message == "the data's checksum is wrong"
    assert second.message.startswith(f"{field.keys[0]}: band {band} ({words}): the checksum is 0x")
    assert "run the same `halofeed convert` with --overwrite" in second.message


def test_a_value_that_another_program_packed_wrongly_is_found_under_right_checksums(scans, tmp_path):
    """The band's mode is unknown, and all checksums are right."""
    field = read_manifest(scans).field("image")
    layout, features = field.packed_layout, next(records_of(scans))
    value = bytes(features[field.keys[0]][0])
    places, _ = layout.read_table(value, len(value))
    bands = [value[start:stop] for start, stop in pairwise(places)]
    bands[2] = b"\7" + bands[2][1:]
    bands[5] = bands[5][:-2]
    spoiled = layout.write_table(bands) + b"".join(bands) + bytes(SLACK_BYTES)
    features[field.keys[0]] = [memoryview(spoiled)]
    found = list(record_problems(features, read_manifest(scans)))
    assert [text.partition("; run")[0] for text in found] == [
        "image/encoded: band 2 (plane 1, rows 0 to 31): expected a band's mode 0, 1 or 2, got 7",
        "image/encoded: band 5 (plane 2, rows 32 to 39): a band's size is not that of its groups",
    ]
