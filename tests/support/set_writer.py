"""The one writer of small data sets for tests: records whose features are known in, a finished folder out."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.converters import Tally
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import MANIFEST, REJECTED, index_file, shard_file
from halofeed.schemas.identity import example_id, shard_of
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.manifest import Manifest, Shard, Split
from halofeed.schemas.packed.packed_arrays import pack
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.schemas.tfds import metadata_files
from halofeed.schemas.tfexample import encode_example
from halofeed.schemas.tfrecord import HEADER_BYTES, RecordWriter
from halofeed.system import checksum
from halofeed.system.checksum import block_checksums, crc32c

Rejected = Sequence[Mapping[str, str]]
Features = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record.

    Args:
        features: of its tf.train.Example.
        inputs: what it was made of, by key: the digests.
        facts: whatever the statistics count of it.
    """

    id: int
    features: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    facts: Any = None


Splits = dict[str, list[list[Record]]]


def refusal(source: str, stage: str, reason: str, detail="", *, split="train") -> dict[str, str]:
    return {"source": source, "split": split, "stage": stage, "reason": reason, "detail": detail}


def deal(examples: Sequence[Any], shards: int, record: Callable[[Any], Record]) -> Splits:
    """The records of examples, each in the shard of its split that its key names, in the order of a conversion."""
    splits: Splits = {}
    order = sorted(examples, key=lambda one: (one.split, example_id(one.key), getattr(one, "tile", 0)))
    for example in order:
        parts = splits.setdefault(example.split, [[] for _ in range(shards)])
        parts[shard_of(example_id(example.key), shards)].append(record(example))
    return splits


def counted(tally: Tally, facts: Iterable[Any]) -> Statistics:
    """What a tally says of the facts."""
    for one in facts:
        tally.add(one)
    return tally.statistics()


def image_format(shape: Sequence[int], dtype: str, encoding: str, **more: Any) -> ImageFormat:
    """How images [(depth,) height, width, channel] are stored."""
    *size, channels = shape
    kind = KINDS["volume" if len(size) == 3 else "picture"]
    how = {"dtype": dtype, "encoding": encoding, **more}
    return ImageFormat(kind=kind, shape=tuple(size), channels=channels, **how)


def encode_pixels(pixels: NDArray[Any], encoding: str) -> bytes:
    """The bytes of a picture's file, or of an array; `write_set` packs those of packed fields."""
    return bytes(ENCODERS["raw" if encoding == "packed" else encoding](pixels, 95))


def stored_features(key, identity, encoded: bytes, encoding, shape: Sequence[int], *, file="") -> Features:
    """What every record says of its image [(depth,) height, width]; its file is called as its key unless said."""
    sides = ("depth", "height", "width")[-len(shape) :]
    digest = (
        {}
        if encoding in ("raw", "packed", "yuv420")
        else {"image/key/sha256": hashlib.sha256(encoded).hexdigest().encode()}
    )
    names = {"filename": file or key, "key/source": key, "source_id": str(identity), "format": encoding}
    texts = {f"image/{name}": text.encode() for name, text in names.items()}
    sizes = {f"image/{side}": np.array([size]) for side, size in zip(sides, shape, strict=True)}
    return {**digest, "image/encoded": encoded, **texts, **sizes}


def picture_features(unpadded: Sequence[int], source: Sequence[int], transform: Any) -> Features:
    """What a picture's record says beside: (height, width) without padding and of the source, [2, 3] to the source."""
    found = {}
    for of, (height, width) in {"unpadded": unpadded, "source": source}.items():
        found |= {f"image/{of}/height": np.array([height]), f"image/{of}/width": np.array([width])}
    return {**found, "image/transform": np.asarray(transform, np.float32).ravel()}


def write_set(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[Record]]],
    *,
    task: str,
    image: ImageFormat,
    labels: Mapping[int, str],
    name: str = "tiny",
    statistics: Callable[[Sequence[Any]], Statistics] = lambda facts: Statistics(),
    rejected: Rejected = (),
    recipe: Mapping[str, Any] | None = None,
    max_boxes: int = 0,
    masks: bool = False,
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder.

    Args:
        splits: the records of each shard of each split.
        statistics: what is counted of a shard's facts.
        rejected: entries of rejected.jsonl; each split's first shard names its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fields = task_named(task).fields(image, max_boxes=max_boxes, masks=masks)
    arrays = {field.keys[0]: field for field in fields if field.is_array}
    written, lines = {}, []
    for split, parts in splits.items():
        shards, counted = [], []
        for number, records in enumerate(parts):
            refused = [dict(entry) for entry in rejected if entry["split"] == split and number == 0]
            path = folder / shard_file(name, split, number, len(parts))
            counted.append(statistics([record.facts for record in records]))
            shards.append(_write_shard(path, records, arrays, counted[-1], refused))
            lines += [json.dumps(entry, ensure_ascii=False) + "\n" for entry in refused]
        written[split] = Split(shards=tuple(shards), statistics=Statistics.total(counted))
    count = sum(len(part) for parts in splits.values() for part in parts) + len(rejected)
    about: Any = {"version": "1.0.0", "software": {"halofeed": "0.1.0"}, "inputs": {"count": count}}
    about |= {"fields": fields, "labels": labels, "recipe": recipe or {}, "splits": written}
    about["rejected"] = Counter(f"{entry['stage']}: {entry['reason']}" for entry in rejected)
    manifest = Manifest(name=name, task=task, **about)
    (folder / REJECTED).write_bytes("".join(lines).encode("utf-8", "surrogateescape"))
    for file, data in metadata_files(manifest).items():
        (folder / file).write_bytes(data)
    (folder / MANIFEST).write_bytes(manifest.to_json().encode())
    return folder


def _packed(field: Field, value: bytes) -> bytes:
    """The packed value of an array's bytes; bytes of another size stay as a test made them."""
    if not field.is_packed or len(value) != field.stored_bytes:
        return value
    array = np.frombuffer(value, "<u2" if field.dtype == "bfloat16" else field.stored_dtype)
    return bytes(pack(array, field.packed_layout, patches=field.name == "label"))


def _write_shard(
    path: Path, records: Sequence[Record], arrays: Mapping[str, Field], statistics: Statistics, rejected
) -> Shard:
    """Write a shard and its index; a feature that a test took away begins at 0 and is one byte."""
    offsets, lengths, footers = [], [], []
    starts: dict[str, list[int]] = {key: [] for key in arrays if records}
    checksums: dict[str, list[Any]] = {key: [] for key in starts}
    sizes: dict[str, list[int]] = {key: [] for key in starts if arrays[key].is_packed}
    with path.open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            features = dict(record.features)
            for key in arrays.keys() & features.keys():
                features[key] = _packed(arrays[key], features[key])
            encoded = encode_example(features)
            offsets.append(writer.offset)
            lengths.append(encoded.length)
            for key in starts:
                starts[key].append(writer.offset + HEADER_BYTES + encoded.starts.get(key, 0))
                value = features.get(key, b"-")
                checksums[key].append(
                    [crc32c(value)] if key in sizes else block_checksums(value, checksum.BLOCK_BYTES)
                )
                if key in sizes:
                    sizes[key].append(len(value))
            footers.append(writer.write(encoded.chunks, encoded.length))
    index = ShardIndex(
        offsets=np.array(offsets, np.int64),
        lengths=np.array(lengths, np.int64),
        checksums=np.array(footers, np.uint32),
        ids=np.array([record.id for record in records], np.int64),
        raw_starts={key: np.array(values, np.int64) for key, values in starts.items()},
        raw_checksums={key: np.array(values, np.uint32) for key, values in checksums.items()},
        packed_bytes={key: np.array(values, np.int64) for key, values in sizes.items()},
        block_bytes=checksum.BLOCK_BYTES,
        file_bytes=writer.offset,
        file_checksum=writer.checksum,
        fingerprint=hashlib.sha256(path.name.encode()).hexdigest(),
        inputs={key: digest for record in records for key, digest in record.inputs.items()},
        statistics=statistics,
        rejected=tuple(rejected),
    ).to_bytes()
    path.with_name(index_file(path.name)).write_bytes(index)
    sums = {"crc32c": writer.checksum, "index_bytes": len(index), "index_crc32c": crc32c(index)}
    return Shard(
        file=path.name, index=index_file(path.name), records=len(records), bytes=writer.offset, **sums
    )
