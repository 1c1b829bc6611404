"""Every flipped bit of shards, indexes and manifests is found and placed, or changes nothing.

`halofeed verify` finds those of all files: tests/inspection/test_verify.py. Under verify="always" the loader checks

    shard      a record's length        against the index, and its own checksum
               the length's checksum    against the length
               the data                 raw values by their blocks' checksums in the index, packed ones by those of
                                        their table and bands, all else by the record's own
               the data's checksum      against the index
    index      all of it                against the manifest's checksum of it
    manifest   all that it says         against its own checksum; how a number or a letter is written changes nothing
"""

from collections import Counter

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, ManifestError
from halofeed.loader import Loader
from halofeed.schemas import shard_file
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from tests.support.level_rows import others
from tests.support.volume_writer import draw_scans, write_scans

FLIPS = {"raw": 300, "jpeg": 120, "volumes": 180, "packed": 60, "yuv420": 60, "packed volumes": 180}


@pytest.fixture
def folder(draw, write, tmp_path, request):
    if "volumes" in request.param:
        encoding = "packed" if "packed" in request.param else "raw"
        return write_scans(tmp_path / "1.0.0", draw_scans({"train": 7}), encoding=encoding)
    return write(draw(7), encoding=request.param, pad=request.param != "jpeg", shards=2)


def everything(folder):
    """All that the loader gives of the data set, bit by bit."""
    loader = Loader(folder, batch_size=8, training=False, verify="always")
    (batch,) = loader.batches()
    return {name: array.tobytes() for name, array in batch.items()}


def attempt(folder):
    """All that the loader gives, or what it says of the damage."""
    try:
        return everything(folder), ""
    except (CorruptFileError, ManifestError) as error:
        return {}, str(error)


def places(folder):
    """Where each record stands: file, first byte, byte after the last, id, and from where to where its raw values."""
    loader = Loader(folder, batch_size=1, training=False)
    found = []
    for number in range(loader.num_records):
        record = loader.stored(number)
        name, _, place = record.place.partition(": record at byte ")
        start = int(place.partition(" ")[0].replace(",", ""))
        keys = loader._shards.array_bytes
        raw = [(begin := record.value_start(key), begin + record.value_bytes(key)) for key in keys]
        found.append((name, start, record.end, record.id, raw))
    return found


def region(at, start, end, raw):
    """Which part of a record a byte belongs to."""
    if at < start + HEADER_BYTES:
        return "length" if at < start + 8 else "the length's checksum"
    if at >= end - FOOTER_BYTES:
        return "the data's checksum"
    return "a raw value" if any(first <= at < last for first, last in raw) else "other data"


@pytest.mark.parametrize("folder", others(FLIPS, ["jpeg", "packed"]), indirect=True, ids=list(FLIPS))
def test_a_flipped_bit_is_found_and_placed(folder, request, monkeypatch):
    monkeypatch.setattr(shard_file, "_TICK_SECONDS", 0)  # nobody else writes: no wait for the clock to go on
    right, stored = everything(folder), places(folder)
    shards = {name for name, *_ in stored}
    files = [path for path in sorted(folder.iterdir()) if path.name.startswith(("_index", "tiny-"))]
    files.append(folder / "manifest.json")
    sizes = [path.stat().st_size for path in files]
    rng = np.random.default_rng(1)
    kind = request.node.callspec.id
    # Half of them anywhere by size, half of them in files in turn, so that small ones get theirs.
    chosen = rng.choice(len(files), FLIPS[kind] // 2, p=np.array(sizes) / sum(sizes)).tolist()
    chosen += [number % len(files) for number in range(FLIPS[kind] // 2)]
    targets = [(files[number], int(rng.integers(sizes[number]))) for number in chosen]
    for name, start, end, _, raw in stored:  # and each part of each record
        path = next(path for path in files if str(path) == name)
        at = [start + 3, start + 9, start + HEADER_BYTES + 1, end - 2, *(first for first, _ in raw)]
        targets += [(path, place) for place in at]
    seen, harmless = Counter(), []
    for path, at in targets:
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        where = (path.name, at, data[at], flipped[at])
        found, said = attempt(folder)
        path.write_bytes(data)
        if not said:
            assert path.name == "manifest.json" and found == right, where
            harmless.append(where)
            continue
        assert str(path) in said, (where, said)
        if str(path) not in shards:
            seen[path.name[:6]] += 1
            continue
        (hit,) = (one for one in stored if one[0] == str(path) and one[1] <= at < one[2])
        _, start, end, identity, raw = hit
        assert f"record at byte {start:,}" in said and f"(id {identity})" in said, (where, said)
        seen[region(at, start, end, raw)] += 1
    assert everything(folder) == right
    expected = {"length", "the length's checksum", "other data", "the data's checksum", "_index", "manife"}
    assert set(seen) == expected | ({"a raw value"} if kind != "jpeg" else set()), seen
    assert sum(seen.values()) >= len(targets) - 2, harmless
