"""Packed records hold what raw ones hold, and packing changes no other byte, statistic or promise of a conversion."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.inspection.verify import verify
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.manifest import read_manifest
from halofeed.system.checksum import crc32c
from tests.support.conversions import all_bytes, convert_words, die_at, halofeed_here, run_convert
from tests.support.encoded_kinds import CASES, arrays_of, convert_case, records_of
from tests.support.level_rows import levels

CHANGED = levels(("tiles", 1, 2), long=[("scans", 2, 2), ("labeled clips", 2, 1)])


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """One source of each kind, converted to raw and to packed records."""
    folder = tmp_path_factory.mktemp("kind")
    raw, packed = (convert_case(request.param, folder, encoding=encoding) for encoding in ("raw", "packed"))
    return raw, packed


def test_the_arrays_and_every_other_feature_are_those_of_raw_records(both):
    raw, packed = both
    expected, found = arrays_of(raw), arrays_of(packed)
    assert len(expected) == len(found) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            assert ours[name].dtype == array.dtype
            np.testing.assert_array_equal(ours[name], array, err_msg=name)
    keys = {key for field in read_manifest(raw).fields if field.is_array for key in field.keys}
    for ours, theirs in zip(records_of(packed), records_of(raw), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - keys - {"image/format"}:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
        assert bytes(ours["image/format"][0]) == b"packed"


def test_the_statistics_and_all_fields_but_their_encodings_are_those_of_raw_records(both):
    raw, packed = map(read_manifest, both)
    for name, split in raw.splits.items():
        assert packed.splits[name].statistics == split.statistics
    assert (packed.labels, packed.rejected, packed.task) == (raw.labels, raw.rejected, raw.task)
    for ours, theirs in zip(packed.fields, raw.fields, strict=True):
        assert dataclasses.replace(ours, encoding=theirs.encoding) == theirs
        assert ours.is_packed == theirs.is_raw
    assert packed.field("image").is_packed


def test_verify_finds_no_problem(both):
    for folder in both:
        report = verify(folder)
        assert report.ok, str(report)


def test_the_index_holds_the_size_and_one_checksum_of_each_value(both):
    _, packed = both
    manifest = read_manifest(packed)
    keys = {key for field in manifest.fields if field.is_packed for key in field.keys}
    for split in manifest.splits.values():
        for shard in split.shards:
            index = ShardIndex.from_bytes((packed / shard.index).read_bytes(), shard.index)
            data = memoryview((packed / shard.file).read_bytes())
            assert index.packed_bytes.keys() == index.raw_starts.keys() == keys
            for key in keys:
                for start, size, (checksum,) in zip(
                    index.raw_starts[key], index.packed_bytes[key], index.raw_checksums[key], strict=True
                ):
                    value = data[start : start + size]
                    assert checksum == crc32c(value)
                    assert value[:4] == b"\1\0\0\0" and value[-16:] == bytes(16)


def test_smooth_pictures_and_labels_take_less_than_their_arrays(tmp_path):
    raw, packed = (convert_case("labeled pictures", tmp_path, encoding=one) for one in ("raw", "packed"))
    pixels, labels = (
        [len(features[f"image/{name}"][0]) for features in records_of(packed)]
        for name in ("encoded", "label")
    )
    assert max(pixels) < 0.7 * 45 * 70 * 3 and max(labels) < 0.1 * 45 * 70
    assert sum(map(len, map(Path.read_bytes, packed.glob("*.tfrecord-*")))) < 0.6 * sum(
        map(len, map(Path.read_bytes, raw.glob("*.tfrecord-*")))
    )


def test_a_dry_run_converts_a_sample_to_say_how_large_the_records_are(tmp_path):
    CASES["labeled pictures"].draw(tmp_path / "in")
    words = convert_words(
        tmp_path / "in", tmp_path / "out", encoding="packed", **CASES["labeled pictures"].options
    )
    done = halofeed_here(*words, "--dry-run")
    assert "5 records of 5 inputs" in done.stdout and not (tmp_path / "out").exists()
    (size,) = re.findall(r"records of the sample have ([0-9.]+) kB; all: about", done.stdout)
    assert float(size) < 0.6 * 45 * 70 * 4 / 1000


# Promises of every conversion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "workers", "threads"), levels(("tiles", 1, 2), long=[("scans", 2, 2), ("labeled clips", 2, 1)])
)
def test_workers_and_threads_change_no_byte_of_any_file(name, workers, threads, tmp_path):
    expected = all_bytes(convert_case(name, tmp_path, encoding="packed", shards=2))
    done = convert_case(name, tmp_path, encoding="packed", shards=2, workers=workers, threads=threads)
    assert all_bytes(done) == expected


@pytest.mark.parametrize("name", levels("labeled pictures", long=["scans"]))
def test_a_beam_runner_writes_the_same_bytes(name, tmp_path):
    expected = all_bytes(convert_case(name, tmp_path, encoding="packed", shards=2))
    recipe = Recipe(**CASES[name].options, encoding="packed", shards=2)
    options = JobOptions(source=str(tmp_path / "source"), out=str(tmp_path / "beam"), name="set", workers=1)
    done = convert(options, recipe, ("--direct_runner_bundle_repeat=1",), show_progress=False)
    assert all_bytes(Path(done.folder)) == expected


def test_a_second_run_keeps_finished_shards_and_a_changed_encoding_replaces_them(tmp_path):
    folder = convert_case("pictures", tmp_path, encoding="packed")
    expected, out = all_bytes(folder), folder.parents[1]
    options = CASES["pictures"].options
    run_convert(tmp_path / "source", out, overwrite=True, encoding="raw", **options)
    assert all_bytes(folder) != expected
    run_convert(tmp_path / "source", out, overwrite=True, encoding="packed", **options)
    assert all_bytes(folder) == expected


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_conversion_resumes_with_the_same_bytes(tmp_path, when):
    given = {**CASES["scans"].options, "encoding": "packed", "shards": 3, "workers": 1}
    expected = all_bytes(convert_case("scans", tmp_path, encoding="packed", shards=3))
    source, out = tmp_path / "source", tmp_path / "killed"
    die_at(("-00001-of-00003", when, "exchange", convert_words(source, out, **given)))
    assert all_bytes(Path(run_convert(source, out, **given).folder)) == expected


# What is refused ------------------------------------------------------------------------------------------------


def test_a_reader_that_does_not_know_the_encoding_says_that_a_newer_halofeed_wrote_it(tmp_path, monkeypatch):
    folder = convert_case("pictures", tmp_path, encoding="packed")
    monkeypatch.delitem(ENCODINGS, "packed")
    with pytest.raises(Exception, match=r"got 'packed'; if a newer halofeed wrote it, install that one"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pictures", {"encoding": "packed", "resize": "none"}, "--encoding packed needs one size for all"),
        (
            "scans",
            {"encoding": "png"},
            "--encoding png: volumes are stored raw or packed; take --encoding packed",
        ),
        (
            "clips",
            {"encoding": "jpeg"},
            "--encoding jpeg: clips are stored raw or packed; take --encoding packed",
        ),
        (
            "scans",
            {"encoding": "yuv420"},
            "--encoding yuv420: volumes .* packed; take --encoding packed, about",
        ),
        (
            "clips",
            {"encoding": "yuv420"},
            "--encoding yuv420: clips .* packed; take --encoding packed, about",
        ),
    ],
)
def test_an_encoding_that_the_kind_does_not_have_is_refused(tmp_path, name, options, message):
    with pytest.raises(UsageError, match=message):
        run_convert(tmp_path, tmp_path / "out", **{**CASES[name].options, **options})


def test_every_kind_may_be_packed():
    assert all("packed" in kind.stored for kind in KINDS.values())
