"""How tests make a sound data set hostile: its manifest, an index or a record says something else, all checksums right.

A hostile value is written as JSON text, since some have no form in Python: 1e400, 10 000 digits, a name twice.
"""

import json
import math
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.schemas.file_layout import index_file
from halofeed.schemas.index import MAGIC, ShardIndex
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.packed.packed_layout import SLACK_BYTES, PackedLayout
from halofeed.schemas.tfexample import decode_example, encode_example
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter, read_records
from halofeed.system.checksum import block_checksums, crc32c, mask_crc
from tests.support.memory_cases import png_chunk

MANIFEST = "manifest.json"
Starts = Mapping[str, list[int]]
EMPTY: Starts = {}

NUMBERS = ["-1", "0", "1", "2", "7", "255", "65536", "2147483648", "1099511627776", "4611686018427387904"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "-1e400", "0.5"]
NUMBERS += ["1e39", "NaN", "Infinity", "1e-320", "1" * 30, "1" * 400, "1" * 5000]
WORDS = ["", "../../x", "/etc/passwd", "\\u0000", "\\ud800", "<script>alert(1)</script>", "\\u001b[31m"]
WORDS += ["x", "1", "-1", "1e400", "nan", "0x0", "1x2x3", "9" * 5000, "y" * 100_000, "float64", "int64"]
WORDS += [
    "bfloat16",
    "str",
    "bool",
    "sets",
    "raw",
    "packed",
    "png",
    "jpeg",
    "list",
    "value",
    "text",
    "classes",
]
TEXTS = [f'"{word}"' for word in [*WORDS, "png_list", "depth", "class", "detection", "segmentation"]]
OTHERS = ["null", "true", "false", "[]", "{}", "[[]]", '{"a":{}}', '{"0":1}', '{"a":1,"a":2}', "[1,2]"]
OTHERS += ["[1,2,3]", "[" * 900 + "]" * 900, "[" * 200_000 + "]" * 200_000]
OTHERS += [f"[{','.join(['0'] * 3000)}]", '{"x":"y"}']
OTHERS += [f"{{{','.join(f'{chr(34)}k{n}{chr(34)}:{n}' for n in range(3000))}}}", "[4294967295,4294967295,3]"]
HOSTILE = [*NUMBERS, *TEXTS, *OTHERS]
VARINTS = (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x80" * 9 + b"\x00")
PLACED = ("pipe", "zero", "folder", "nothing", "itself", "sparse", "line", "empty", "twice", "text")
BYTES = (b"", b"\0", b"\xff\xfe", b"<script>", b"../../../x", b"9" * 20, b"0", b"-1", b"y" * 99_999)
_MARK = "@hostile:{}@"


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members: Any = ()
    if isinstance(document, dict):
        members = document.items()
    elif isinstance(document, list):
        members = enumerate(document[:40])
    for key, value in members:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutate(document: Any, draw: random.Random) -> tuple[Any, list[str]]:
    """A copy of a JSON document with one to three changes, and what they are in words; marks stand for hostile text."""
    changed, said = json.loads(json.dumps(document)), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # Each depth and each parent is as likely as the others: most values lie in histograms.
        by_depth: dict[int, dict[tuple[Any, ...], list[Any]]] = {}
        for *above, last in places(changed):
            by_depth.setdefault(len(above), {}).setdefault(tuple(above), []).append(last)
        if not by_depth:
            break
        siblings = by_depth[draw.choice(sorted(by_depth))]
        above = draw.choice(sorted(siblings, key=str))
        last = draw.choice(siblings[above])
        parent = changed
        for key in above:
            parent = parent[key]
        value = parent[last]
        what = draw.choice(("replace",) * 6 + ("remove", "repeat", "add", "rename", "nudge"))
        number = draw.randrange(len(HOSTILE))
        if what == "remove":
            del parent[last]
        elif what == "repeat" and isinstance(parent, list):
            parent += [value] * draw.choice((1, 3, 2000))
        elif what == "add" and isinstance(value, list):
            value.append(_MARK.format(number))
        elif what == "add" and isinstance(value, dict):
            value[draw.choice(("x", "0", "-1", "9" * 30, "../x", "<script>"))] = _MARK.format(number)
        elif what == "rename" and isinstance(parent, dict):
            parent[draw.choice(("x", "0", "1", "-1", "1e3", "../x", "<script>", "\ud800"))] = parent.pop(last)
        elif what == "nudge" and isinstance(value, int) and not isinstance(value, bool):
            parent[last] = value + draw.choice((-1, 1, 1 << 33, 1 << 62))
        else:
            parent[last] = _MARK.format(number)
        said.append(f"{what} {'.'.join(map(str, (*above, last)))} {HOSTILE[number]:.40}")
    return changed, said


def to_text(document: Any) -> str:
    """The document as JSON with hostile text for its marks."""
    text = json.dumps(document)
    for number, value in enumerate(HOSTILE):
        text = text.replace(f'"{_MARK.format(number)}"', value)
    return text


def with_checksum(text: str) -> str:
    """A manifest's text without `crc32c` and with the right one, as far as it can be read at all."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            return text
        document.pop("crc32c", None)
        checksum = crc32c(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    except (ValueError, RecursionError):
        checksum = 0
    inside = text.strip().removeprefix("{").removesuffix("}").strip()
    return f'{{{inside}{"," if inside else ""}"crc32c":{checksum}}}'


def hostile_manifest(folder: Path, draw: random.Random) -> list[str]:
    file = folder / MANIFEST
    document = json.loads(file.read_bytes())
    del document["crc32c"]
    changed, said = mutate(document, draw)
    file.write_text(with_checksum(to_text(changed)), "utf-8")
    return said


def hostile_index(folder: Path, draw: random.Random) -> list[str]:
    """Change the index of one shard, its header or its numbers, and the manifest so that its checksum is right."""
    file = draw.choice(sorted(folder.glob("_index*")))
    data = file.read_bytes()
    start = len(MAGIC) + 8
    base = start + struct.unpack_from("<Q", data, len(MAGIC))[0]
    header, body = json.loads(data[start:base]), bytearray(data[base:-4])
    if draw.random() < 0.4 and len(body) >= 8:
        numbers = [-1, 0, 1, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63)]
        said = []
        for _ in range(draw.choice((1, 2, 5))):
            at, number = 8 * draw.randrange(len(body) // 8), draw.choice(numbers)
            body[at : at + 8] = struct.pack("<q", number)
            said.append(f"index body {at} {number}")
        text = json.dumps(header)
    else:
        changed, said = mutate(header, draw)
        text = to_text(changed)
    encoded = text.encode("utf-8", "surrogatepass")
    length = draw.choice((len(encoded),) * 12 + (0, 1 << 40, (1 << 64) - 1, len(encoded) - 1))
    whole = MAGIC + struct.pack("<Q", length) + encoded + bytes(body)
    file.write_bytes(whole + struct.pack("<I", mask_crc(crc32c(whole))))
    _told(folder, file.name)
    return [f"{file.name}: {what}" for what in said]


def _some_shard(folder: Path, draw: random.Random) -> Path:
    files = sorted(folder.glob("*.tfrecord-*"))
    return draw.choice([file for file in files if file.stat().st_size])


def hostile_record(folder: Path, draw: random.Random) -> list[str]:
    """Change bytes of the records of one shard, and its index and the manifest so that all checksums are right."""
    file = _some_shard(folder, draw)
    records = [bytearray(data) for _, data in read_records(file.read_bytes(), file.name)]
    said = []
    for _ in range(draw.choice((1, 1, 2, 4))):
        record = draw.choice(records)
        at = draw.randrange(len(record))
        what = draw.choice(("byte", "byte", "varint", "cut", "insert", "swap"))
        if what == "byte":
            record[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, record[at] ^ 1 << draw.randrange(8)))
        elif what == "varint":
            record[at : at + 10] = draw.choice(VARINTS)
        elif what == "cut":
            del record[at : at + draw.choice((1, 2, 100))]
        elif what == "insert":
            record[at:at] = draw.randbytes(draw.choice((1, 2, 50)))
        else:
            begin = draw.randrange(len(record))
            here, there = slice(at, at + 40), slice(begin, begin + 40)
            record[here], record[there] = record[there], record[here]
        said.append(f"{file.name}: {what} at {at}")
    rewrite(folder, file.name, [bytes(record) for record in records])
    return said


def hostile_file(folder: Path, draw: random.Random) -> list[str]:
    file = draw.choice([*sorted(path for path in folder.iterdir() if path.is_file()), folder / "another"])
    what = draw.choice(PLACED)
    content = file.read_bytes() if file.exists() else b""
    file.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(file)
    elif what == "zero":
        file.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem", "/proc/kmsg")))
    elif what == "folder":
        file.mkdir()
    elif what == "itself":
        file.symlink_to(file.name)
    elif what in ("sparse", "line"):
        with file.open("wb") as stream:
            stream.write(content if what == "sparse" else b"")
            stream.truncate(draw.choice((len(content) + 1, 1 << 28, 1 << 34, 1 << 42)))
    elif what != "nothing":
        file.write_bytes({"empty": b"", "twice": content * 2, "text": b"\xff\xfenothing\n"}[what])
    return [f"{file.name}: {what}"]


def hostile_feature(folder: Path, draw: random.Random) -> list[str]:
    """Change features of the records of one shard to values that fit their keys by type alone, if at all."""
    file = _some_shard(folder, draw)
    records = [decode_example(data) for _, data in read_records(file.read_bytes(), file.name)]
    layouts = {
        key: field.packed_layout
        for field in read_manifest(folder).fields
        if field.is_packed
        for key in field.keys
    }
    said = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        features = draw.choice(records)
        key = draw.choice(sorted(features))
        layout = layouts.get(key)
        if layout is not None and draw.random() < 0.7:
            features[key] = _hostile_packed(bytes(features[key][0]), layout, draw)
        else:
            features[key] = _hostile_value(features[key], draw)
        if draw.random() < 0.1:
            del features[key]
        said.append(f"{file.name}: {key} is {features.get(key)!r:.60}")
    encoded = [encode_example(features) for features in records]
    before = ShardIndex.from_bytes((folder / index_file(file.name)).read_bytes(), file.name)
    starts = {key: [one.starts.get(key, 0) for one in encoded] for key in before.raw_starts}
    sizes = {key: [_size_of(features.get(key)) for features in records] for key in before.packed_bytes}
    rewrite(folder, file.name, [one.to_bytes() for one in encoded], starts, sizes)
    return said


def _size_of(value: Any) -> int:
    """How long a value is; 0 for one that is no bytes."""
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else b""
    return len(value) if isinstance(value, bytes | memoryview) else 0


def _hostile_packed(value: bytes, layout: PackedLayout, draw: random.Random) -> bytes:
    """Change bytes of a band, its length or the number of bands, under right checksums."""
    try:
        places, _ = layout.read_table(value, len(value))
    except ValueError:  # it was changed before
        return value[: draw.randrange(len(value) + 1)]
    bands = [bytearray(value[start:stop]) for start, stop in pairwise(places.tolist())]
    for _ in range(draw.choice((1, 1, 3))):
        band = draw.choice(bands)
        way = draw.randrange(4)
        if way == 0:
            band[0] = draw.choice((0, 1, 2, 3, 255))
        elif way == 1:
            band[draw.randrange(len(band))] = draw.choice((0, 1, 15, 127, 128, 255))
        elif way == 2:
            del band[draw.randrange(1, len(band) + 1) :]
        else:
            band += bytes(draw.choice((1, 16, 1000)))
    if draw.random() < 0.1:
        bands = bands[: draw.randrange(len(bands) + 1)]
    return layout.write_table([bytes(band) for band in bands]) + b"".join(bands) + bytes(SLACK_BYTES)


def _hostile_value(value: Any, draw: random.Random) -> Any:
    if isinstance(value, np.ndarray):
        length = draw.choice((len(value),) * 5 + (0, 1, len(value) + 1, 100_000))
        if value.dtype.kind == "f" and draw.random() < 0.9:
            numbers = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e38, -1e38, 1e-45, 0.5]
            return np.array([draw.choice(numbers) for _ in range(length)], np.float32)
        if draw.random() < 0.9:
            numbers = [-1, 0, 1, 2, 3, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), 65_535]
            return np.array([draw.choice(numbers) for _ in range(length)], np.int64)
    elif draw.random() < 0.8:
        text = draw.choice(BYTES)
        return draw.choice((text, [text] * 3, [], [text, *value], picture(draw)))
    return draw.choice((np.zeros(0, np.float32), np.arange(3), [b"a"] * 5, b""))


def picture(draw: random.Random) -> bytes:
    """The head of a PNG or JPEG that says it is large, or of another kind of file that a decoder would take."""
    sides = [draw.choice((0, 1, 7, 16, 24, 40_000, 65_535)) for _ in range(2)]
    kind = draw.choice(("png", "png", "jpeg", "bmp", "pnm", "gif"))
    if kind == "png":
        depth, colors = draw.choice(((8, 2), (16, 6), (8, 0), (1, 3), (8, 4)))
        parts = [(b"IHDR", struct.pack(">IIBBBBB", *sides, depth, colors, 0, 0, draw.choice((0, 1))))]
        parts += [(b"IDAT", zlib.compress(bytes(draw.choice((0, 100, 1_000_000))))), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts)
    if kind == "jpeg":
        frame = struct.pack(">HBHHB", 17, 8, *sides, 3) + b"\1\x11\0\2\x11\0\3\x11\0"
        scan = struct.pack(">HB", 12, 3) + b"\1\0\2\0\3\0\0\x3f\0"
        scans = (b"\xff\xda" + scan) * draw.choice((1, 600))
        return b"\xff\xd8\xff\xc0" + frame + scans + b"\0" * 50 + b"\xff\xd9"
    if kind == "pnm":
        return f"P6 {sides[0]} {sides[1]} 255\n".encode()
    if kind == "gif":
        return b"GIF89a" + struct.pack("<HHBBB", *sides, 0, 0, 0) + b"\x3b"
    return b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, *sides, 1, 24, 0, 0, 0, 0, 0, 0)


def rewrite(
    folder: Path, shard: str, records: list[bytes], raw_starts: Starts = EMPTY, packed_bytes: Starts = EMPTY
) -> None:
    """Write a shard again.

    Args:
        raw_starts: by key where in each record its raw value begins; else where it began, as far as that goes.
        packed_bytes: by key how long its packed value is; else as long as it was.
    """
    before = ShardIndex.from_bytes((folder / index_file(shard)).read_bytes(), shard)
    offsets = []
    with (folder / shard).open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            offsets.append(writer.offset)
            writer.write([record], len(record))
    begins = np.array(offsets, np.int64)
    lengths = np.array([len(record) for record in records], np.int64)
    first, moved = begins + HEADER_BYTES, begins - before.offsets
    starts = {key: np.clip(old + moved, first, first + lengths) for key, old in before.raw_starts.items()}
    starts |= {key: first + np.array(inside, np.int64) for key, inside in raw_starts.items()}
    values = {**vars(before), "offsets": begins, "lengths": lengths, "raw_starts": starts}
    values["checksums"] = np.array([mask_crc(crc32c(record)) for record in records], np.uint32)
    packed = {**before.packed_bytes, **{key: np.array(one, np.int64) for key, one in packed_bytes.items()}}
    values["packed_bytes"] = {
        key: np.minimum(one, first + lengths - starts[key]) for key, one in packed.items()
    }
    for key, column in starts.items():
        if key in packed:
            sums = [
                [crc32c(memoryview(record)[at : at + size])]
                for record, at, size in zip(
                    records, (column - first).tolist(), values["packed_bytes"][key].tolist(), strict=True
                )
            ]
            values["raw_checksums"] = {**values["raw_checksums"], key: np.array(sums, np.uint32)}
            continue
        sums = [
            block_checksums(
                memoryview(record)[int(at) : int(at) + _raw_bytes(folder, key)], before.block_bytes
            )
            for record, at in zip(records, column - first, strict=True)
        ]
        if all(len(one) == 1 for one in sums):
            values["raw_checksums"] = {**values["raw_checksums"], key: np.array(sums, np.uint32)}
    values |= {"file_bytes": writer.offset, "file_checksum": writer.checksum}
    (folder / index_file(shard)).write_bytes(ShardIndex(**values).to_bytes())
    _told(folder, shard)


def _raw_bytes(folder: Path, key: str) -> int:
    """How long a raw value is, as the manifest says."""
    manifest = read_manifest(folder)
    field = next(field for field in manifest.fields if key in field.keys)
    item = {"uint8": 1, "float32": 4}.get(field.stored_dtype, 2)
    return math.prod(field.stored_shape) * item


def _told(folder: Path, name: str) -> None:
    """Let the manifest say the sizes and checksums that a shard and its index, either of this name, have now."""
    document = json.loads((folder / MANIFEST).read_bytes())
    del document["crc32c"]
    for split in document["splits"].values():
        for entry in split["shards"]:
            if name in (entry["file"], entry["index"]):
                content, data = ((folder / entry[key]).read_bytes() for key in ("file", "index"))
                entry |= {"index_bytes": len(data), "index_crc32c": crc32c(data)}
                entry |= {"bytes": len(content), "crc32c": crc32c(content)}
    (folder / MANIFEST).write_text(with_checksum(json.dumps(document)), "utf-8")


KINDS: dict[str, Callable[[Path, random.Random], list[str]]] = {
    "manifest": hostile_manifest,
    "index": hostile_index,
    "record": hostile_record,
    "feature": hostile_feature,
    "file": hostile_file,
}


def make_hostile(sound: Path, folder: Path, kind: str, seed: int) -> list[str]:
    """Copy a sound data set and change it; equal seeds give equal bytes. Returns what was changed, in words."""
    shutil.copytree(sound, folder)
    return KINDS[kind](folder, random.Random(f"{kind} {sound.name} {seed}"))
