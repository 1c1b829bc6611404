"""Ranges of source files: local and in a store, and the stream over them."""

import io
import random

import numpy as np
import pytest
import tifffile

from halofeed.errors import SourceError
from halofeed.prep.formats.region.tiff_regions import open_tiff_regions
from halofeed.prep.sources.files import LocalFiles, RemoteFiles
from halofeed.prep.sources.range_stream import RangeStream
from halofeed.storage.base import FileInfo, Files


@pytest.mark.parametrize("block_bytes", [0, 1, 7, 64])
def test_a_stream_over_ranges_reads_as_bytes_in_memory(block_bytes):
    data, rng = random.Random(1).randbytes(300), random.Random(block_bytes)
    stream = RangeStream(300, lambda start, stop: data[start:stop], block_bytes, blocks=3)
    expected = io.BytesIO(data)
    for _ in range(300):
        step = rng.choice(["seek", "end", "read", "all", "into"])
        if step == "seek":
            place = rng.randrange(400)
            assert stream.seek(place) == expected.seek(place)
        elif step == "end":
            assert stream.seek(-5, io.SEEK_END) == expected.seek(-5, io.SEEK_END)
        elif step == "into":
            found, shown = np.zeros(6, np.uint16), np.zeros(6, np.uint16)
            assert stream.readinto(found) == expected.readinto(shown)
            np.testing.assert_array_equal(found, shown)
        else:
            size = rng.randrange(90) if step == "read" else -1
            assert stream.read(size) == expected.read(size)
        assert stream.tell() == expected.tell()
    with pytest.raises(ValueError):
        stream.seek(-1)


def test_a_local_file_is_opened_once_and_a_change_is_reported(tmp_path, monkeypatch):
    path, data = tmp_path / "a.bin", bytes(range(100))
    path.write_bytes(data)
    ranges = LocalFiles(tmp_path).open_ranges("a.bin")
    with monkeypatch.context() as patch:
        patch.setattr("halofeed.storage.local.open_regular", None)
        assert (ranges.size, ranges.read(10, 20), ranges.read(95, 200)) == (100, data[10:20], data[95:])
        assert ranges.read(5, 5) == ranges.read(300, 400) == b""
        ranges.check_unchanged()
    path.write_bytes(bytes(101))
    with pytest.raises(SourceError, match="changed"):
        ranges.check_unchanged()
    ranges.close()
    ranges.close()
    with pytest.raises(SourceError, match="read"):
        LocalFiles(tmp_path).open_ranges("b.bin")


class MemoryStore(Files):
    """A store of one file that counts requests."""

    def __init__(self, data: bytes) -> None:
        self.data, self.version, self.asked = data, "1", []

    def read_once(self, path, start, stop, seconds=None):
        self.asked.append((start, stop))
        return self.data[start:stop]

    def stat_once(self, path):
        return FileInfo(size=len(self.data), version=self.version, age_seconds=0)


def test_a_remote_tiff_is_read_in_few_requests_and_a_new_version_is_reported(tmp_path, monkeypatch):
    picture = np.random.default_rng(0).integers(0, 255, (512, 1024, 3), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", picture, photometric="rgb", tile=(64, 64), compression="deflate")
    store = MemoryStore((tmp_path / "a.tif").read_bytes())
    monkeypatch.setattr(RemoteFiles, "_files", lambda self: store)
    files = RemoteFiles("s3://bucket")
    files.adopt({"a.tif": len(store.data)}, {})
    reader = open_tiff_regions(files, "a.tif")
    assert len(store.asked) <= 2
    store.asked.clear()
    np.testing.assert_array_equal(reader.read(0, 64, 0, 128, 1024), picture[64:192])
    assert len(store.asked) == 1  # 32 neighboring tiles
    store.version = "2"
    with pytest.raises(SourceError, match="changed"):
        reader.read(0, 0, 0, 64, 64)
    reader.close()
