"""Impossible NRRD and MetaImage files are refused with a reason before memory is taken."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import random
import re
import zlib
from typing import Any

import numpy as np
import pytest

from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.formats.volumes import open_mask, open_scan
from halofeed.schemas.errors import SourceError
from tests.support.allocations import traced
from tests.support.nifti_writer import MemoryFiles
from tests.support.text_volume_writer import meta_parts, nrrd_parts, write_meta, write_nrrd

STORED = np.arange(120, dtype=np.int16).reshape(6, 5, 4)


def refusal(data: bytes, name: str, read: bool = True, **options: Any) -> str:
    """The reason and the detail of the error."""
    try:
        scan = open_scan(MemoryFiles({name: data}), name, (), ScanOptions(**options))
        if read:
            scan.read()
    except SourceError as error:
        return str(error)
    raise AssertionError("it is read")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type": "block"}, "voxels of this type are not supported"),
        ({"type": "half"}, "voxels of this type are not supported .*'half'"),
        ({"type": None}, "type is missing"),
        ({"dimension": "0"}, "dimension"),
        ({"dimension": "17"}, "dimension"),
        ({"dimension": "4"}, "sizes: expected 4 whole numbers"),
        ({"sizes": "6 5 0"}, "sizes: expected numbers from 1"),
        ({"sizes": "6 5 4.5"}, "sizes: expected 3 whole numbers"),
        ({"sizes": f"6 5 {'9' * 5000}"}, "sizes: expected 3 whole numbers"),
        ({"sizes": "6 5 5"}, "voxels are missing"),
        ({"sizes": "6 5 3"}, "more voxels than the header says"),
        ({"sizes": "99999 99999 99999"}, "more voxels than allowed"),
        ({"endian": None}, "endian: expected little or big"),
        ({"space": "moon"}, "space is not known .*'moon'"),
        ({"space_directions": "(2,0,0) (0,3,0)"}, "space directions: expected 3"),
        ({"space_directions": "(2,0,0) (0,3,0) (0,0,x)"}, "space directions: expected 3 numbers"),
        ({"space_directions": "(2,0,0) (0,3,0) (0,0,nan)"}, "space directions: expected 3 numbers"),
        ({"space_directions": "(2,0,0) (0,3,0) none"}, "not three axes of space"),
        ({"space_directions": "(2,0,0) (0,3,0) (0,0,0)"}, "not three axes of space"),
        ({"space_directions": "(2,0,0) (0,3,0) (2,3,0)"}, "affine is singular"),
        ({"space_directions": "(2,0,0) (0,3,0) (0,0,1e300)"}, "voxel size is impossible"),
        (
            {"space_directions": "(2,0) (0,3) none", "space": None, "space_dimension": "2"},
            "space dimension 2",
        ),
        ({"space_directions": None, "space_origin": None}, "voxel size is not given"),
        ({"space_directions": None, "spacings": "2 -3 1"}, "voxel size is negative"),
        ({"space_directions": None, "spacings": "2 0 1"}, "voxel size is zero"),
        ({"space_directions": None, "spacings": "2 3 nan"}, "not three axes of space"),
        ({"space_origin": "(0,0,1e9)"}, "lies 1e\\+09 mm from the origin"),
        ({"space_units": '"mm" "mm" "m"'}, "axes have several units"),
        ({"space_units": "mm mm mm"}, "space units: expected 3 texts in quotation marks"),
        ({"kinds": "complex space space"}, "complex numbers; store the magnitude"),
        ({"kinds": "space space"}, "kinds: expected 3"),
        ({"line_skip": "99"}, "line skip 99: the file has fewer lines"),
        ({"line_skip": "-1"}, "line skip"),
        ({"byte_skip": "1"}, "voxels are missing"),
        ({"byte_skip": "-2"}, "byte skip"),
        ({"data_file": "a.raw"}, "voxels lie in another file than the name says .*name it .nhdr"),
        ({"data_file": "LIST"}, "voxels lie in several files .*save it with all voxels in one file"),
        ({"data_file": "a%03d.raw 1 4 1"}, "voxels lie in several files"),
        ({"data_file": "/etc/passwd"}, "data file is named by an absolute path"),
        ({"data_file": "../a.raw"}, "data file lies outside"),
    ],
)
def test_an_nrrd_header_that_cannot_be_true_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert re.search(reason, refusal(write_nrrd(STORED, **fields), "a.nrrd"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ObjectType": "Tube"}, "not a MetaImage file .*'Tube'"),
        ({"NDims": "2", "DimSize": "6 20"}, "not three axes of space"),
        ({"NDims": "five"}, "NDims: expected 1 whole number"),
        ({"NDims": None}, "NDims is missing"),
        ({"DimSize": "6 5"}, "DimSize: expected 3"),
        ({"DimSize": "6 5 -4"}, "DimSize: expected numbers from 1"),
        ({"DimSize": "6 5 5"}, "voxels are missing"),
        ({"DimSize": "6 5 3"}, "more voxels than the header says"),
        ({"DimSize": "99999 99999 99999"}, "more voxels than allowed"),
        ({"ElementNumberOfChannels": "99999999999"}, "more voxels than allowed"),
        ({"ElementType": "MET_STRING"}, "voxels of this type are not supported .*'MET_STRING'"),
        ({"ElementType": "MET_FLOAT_ARRAY"}, "voxels of this type are not supported"),
        ({"TransformMatrix": "1 0 0 0 1 0"}, "TransformMatrix: expected 9 numbers"),
        ({"TransformMatrix": "1 0 0 0 1 0 1 1 0"}, "affine is singular"),
        ({"TransformMatrix": "0 0 0 0 0 0 0 0 0"}, "voxel size is zero"),
        ({"TransformMatrix": "1 0 0 0 1 0 0 0 inf"}, "TransformMatrix: expected 9 numbers"),
        ({"Position": "1 2 3"}, "Offset and Position say different things"),
        ({"ElementSpacing": "2 -3 1"}, "voxel size is negative"),
        ({"TransformMatrix": None, "AnatomicalOrientation": "LPI"}, "orientation contradicts itself"),
        ({"AnatomicalOrientation": "RAR"}, "AnatomicalOrientation: expected three letters"),
        ({"ElementToIntensityFunctionSlope": "2"}, "values are to be rescaled"),
        ({"BinaryData": "perhaps"}, "BinaryData: expected True or False"),
        ({"HeaderSize": "-2"}, "HeaderSize"),
        ({"HeaderSize": "1"}, "voxels are missing"),
        ({"CompressedData": "True"}, "zlib data is damaged"),
        ({"CompressedData": "True", "CompressedDataSize": "999"}, "CompressedDataSize is 999"),
        ({"ElementDataFile": "a.raw"}, "voxels lie in another file than the name says .*name it .mhd"),
        ({"ElementDataFile": "LIST"}, "voxels lie in several files"),
        ({"ElementDataFile": "a%03d.raw 1 4 1"}, "voxels lie in several files"),
        ({"ElementDataFile": "C:\\scans\\a.raw"}, "data file is named by an absolute path"),
        ({"ElementDataFile": "../a.raw"}, "data file lies outside"),
        ({"ElementDataFile": ""}, "header names no data file"),
    ],
)
def test_a_metaimage_header_that_cannot_be_true_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert re.search(reason, refusal(write_meta(STORED, **fields), "a.mha"))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.nrrd", b"", "not an NRRD file .*begins with nothing"),
        ("a.nrrd", b"\x89PNG\r\n", "not an NRRD file"),
        (
            "a.nrrd",
            write_nrrd(STORED).replace(b": raw", b": zrl"),
            "encoding is not read .*'zrl'; read are raw",
        ),
        ("a.nrrd", write_nrrd(STORED).replace(b"encoding:", b"coding:"), "encoding is missing"),
        ("a.nrrd", b"NRRD0009\n\n", "version of NRRD is not read"),
        ("a.nrrd", b"NRRD0004\n" + b"# words\n" * 200_000, "no empty line ends it"),
        ("a.nrrd", b"NRRD0004\nwords\n\n", "line 2 has no colon"),
        ("a.nrrd", b"NRRD0004\ntype: int\ntype: int\n\n", "'type' stands there twice"),
        ("a.mha", b"", "not a MetaImage file"),
        ("a.mha", b"\x89PNG\r\n", "not a MetaImage file"),
        ("a.mha", b"Width = 7\nElementDataFile = LOCAL\n", "not a MetaImage file"),
        ("a.mha", b"NDims = 3\nDimSize = 1 1 1\n", "no ElementDataFile"),
        ("a.mha", b"NDims = 3\nNDims = 3\n", "'NDims' stands there twice"),
        ("a.mha", b"NDims = 3\nComment = " + b"x" * (1 << 21), "no ElementDataFile within 1048576 bytes"),
        ("a.nrrd", write_nrrd(STORED, "ascii")[:-40], "voxels are missing"),
        ("a.nrrd", write_nrrd(STORED, "ascii") + b" " + b"1 " * 99, "more voxels than the header says"),
        ("a.nrrd", write_nrrd(STORED, "ascii") + b"x", "voxels are no numbers"),
        (
            "a.nrrd",
            write_nrrd(STORED.astype("u1"), "ascii", type="int8", sizes="6 5 4") + b"900",
            "do not fit in",
        ),
        ("a.nrrd", write_nrrd(STORED, "hex")[:-1], "the last byte has one digit"),
        ("a.nrrd", write_nrrd(STORED, "hex") + b"x", "hexadecimal digits are damaged"),
        ("a.nrrd", write_nrrd(STORED, "bzip2")[:-9], "bzip2 data is truncated"),
        ("a.nrrd", write_nrrd(STORED, "bzip2") + b"more", "bzip2 data is damaged"),
        ("a.nrrd", write_nrrd(STORED, "gzip", byte_skip="-1"), "byte skip -1 is for raw voxels"),
        ("a.nrrd", write_nrrd(STORED, "gzip")[:-9], "gzip data is truncated"),
        ("a.mha", write_meta(STORED, "zlib")[:-1], "CompressedDataSize is"),
        ("a.mha", write_meta(STORED, "zlib", CompressedDataSize=None)[:-9], "zlib data is truncated"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(name: str, data: bytes, reason: str) -> None:
    assert re.search(reason, refusal(data, name))


def test_bytes_and_lines_before_the_voxels_are_skipped() -> None:
    expected = STORED.transpose(2, 1, 0)[..., None]
    header, raw = nrrd_parts(STORED, data_file="sub/a.bin", line_skip="2", byte_skip="3")
    from_end, _ = nrrd_parts(STORED, data_file="b.bin", byte_skip="-1")
    packed, _ = nrrd_parts(STORED, "gzip", data_file="c.gz", byte_skip="7")
    meta, _ = meta_parts(STORED, HeaderSize="5", ElementDataFile="d.raw")
    meta_end, _ = meta_parts(STORED, HeaderSize="-1", ElementDataFile="b.bin")
    files = MemoryFiles(
        {
            "1.nhdr": header,
            "sub/a.bin": b"one\ntwo\nxxx" + raw,
            "2.nhdr": from_end,
            "b.bin": b"an old header of any length" + raw,
            "3.nhdr": packed,
            "c.gz": gzip.compress(b"skipped" + raw),
            "4.mhd": meta,
            "d.raw": b"12345" + raw,
            "5.mhd": meta_end,
        }
    )
    for name in ("1.nhdr", "2.nhdr", "3.nhdr", "4.mhd", "5.mhd"):
        scan = open_scan(files, name)
        np.testing.assert_array_equal(scan.read(), expected)
        assert len(scan.files) == 2 and name in scan.files


BOMB = bytes(100 << 20)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.nrrd", nrrd_parts(STORED, encoding="gzip")[0] + gzip.compress(BOMB, 9)),
        ("a.nrrd", nrrd_parts(STORED, encoding="bzip2")[0] + bz2.compress(BOMB, 9)),
        ("a.mha", meta_parts(STORED, "zlib", CompressedDataSize=None)[0] + zlib.compress(BOMB, 9)),
    ],
    ids=["gzip", "bzip2", "zlib"],
)
def test_compressed_data_that_expands_without_end_takes_no_memory(name: str, data: bytes) -> None:
    with traced() as memory:
        assert "more voxels than the header says" in refusal(data, name)
    assert memory.peak < 2 << 20


@pytest.mark.parametrize("encoding", ["raw", "gzip", "hex", "ascii"])
def test_a_header_that_claims_what_its_file_cannot_hold_takes_no_memory(encoding: str) -> None:
    claims = write_nrrd(STORED, encoding, sizes="1000 1000 1000")
    with traced() as memory:
        assert "voxels are missing" in refusal(claims, "a.nrrd", read=False)
        zlib_claims = write_meta(STORED, "zlib", DimSize="1000 1000 1000")
        assert "voxels are missing" in refusal(zlib_claims, "a.mha", read=False)
    assert memory.peak < 1 << 20


def test_reading_takes_one_volume_beside_the_file_and_raw_voxels_none() -> None:
    stored = np.zeros((256, 128, 128), np.int16)
    cases = {
        "a.nrrd": (write_nrrd(stored, "gzip"), 1),
        "b.nrrd": (write_nrrd(stored), 0),
        "c.mha": (write_meta(stored, "zlib"), 1),
        "d.mha": (write_meta(stored), 0),
    }
    for name, (data, volumes) in cases.items():
        files = MemoryFiles({name: data})
        with traced() as memory:
            scan = open_scan(files, name)
            voxels = scan.read()
        assert voxels.nbytes == stored.nbytes
        assert scan.held_bytes == len(data) and scan.read_bytes == volumes * stored.nbytes
        assert memory.peak < volumes * stored.nbytes + (4 << 20), name


SOUND = {
    **{
        f"{encoding}.nrrd": write_nrrd(STORED, encoding)
        for encoding in ("raw", "gzip", "bzip2", "hex", "ascii")
    },
    **{f"{encoding}.mha": write_meta(STORED, encoding) for encoding in ("raw", "zlib", "ascii")},
}


@pytest.mark.parametrize("name", SOUND)
def test_whatever_is_changed_in_a_file_it_is_read_or_refused_in_little_memory(name: str) -> None:
    draw = random.Random(name)
    options = ScanOptions(max_voxels=10**6)
    for number in range(120):
        data = bytearray(SOUND[name])
        for _ in range(draw.choice((1, 1, 2, 8))):
            place = draw.randrange(min(len(data), draw.choice((400, 10**6))))
            kind = draw.randrange(4)
            if kind == 0:
                data[place] = draw.randrange(256)
            elif kind == 1:
                data[place : place + draw.randrange(1, 9)] = draw.choice(
                    (b"", b"9", b"-", b"nan", b" ", b"\n")
                )
            elif kind == 2:
                data[place:place] = data[draw.randrange(len(data)) :][: draw.randrange(60)]
            elif number % 3 == 0:
                del data[place:]
            if not data:
                break
        files = MemoryFiles({name: bytes(data)})
        with traced() as memory, contextlib.suppress(SourceError):
            scan = open_scan(files, name, (), options)
            scan.read()
            open_mask(files, name, scan.grid, options).read()
        assert memory.peak < 16 << 20
