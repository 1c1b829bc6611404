"""Measure conversions of the same pictures from files and from container files, in one run.

    pip install 'halofeed[test]'
    python -m benchmarks.containers --pictures 2000

Draws JPEGs with noise once, and writes them as class folders, as TFRecords, as tar files of WebDataset and as Parquet
with row groups of 100 pictures. Each row has the median of
the rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.tfexample import encode_example
from halofeed.schemas.tfrecord import RecordWriter

NAMES = ("zebra", "ant")


def tfrecord_of(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a TFRecord file of Examples with these features."""
    writer = RecordWriter(file := io.BytesIO())
    for record in records:
        example = encode_example(record)
        writer.write(example.chunks, example.length)
    return file.getvalue()


def tar_of(members: Mapping[str, bytes | str]) -> bytes:
    """Return a tar file with these members; a text is the target of a symbolic link. Blanks at a name's end are cut."""
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.rstrip())
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def parquet_of(rows: Sequence[Mapping[str, Any]], group: int = 100) -> bytes:
    """Return a Parquet file as Hugging Face writes it, with the classes NAMES."""
    import pyarrow
    from pyarrow import parquet

    label = {"names": NAMES, "_type": "ClassLabel"}
    objects = {"feature": {"category": label}, "_type": "Sequence"}
    described = {"info": {"features": {"image": {"_type": "Image"}, "label": label, "objects": objects}}}
    table = pyarrow.Table.from_pylist(list(rows)).replace_schema_metadata(
        {"huggingface": json.dumps(described)}
    )
    parquet.write_table(table, file := io.BytesIO(), row_group_size=group)
    return file.getvalue()


def samples_of(pictures: Sequence[bytes], ending: str) -> dict[str, bytes]:
    """Return the members of a tar file: each picture with its class."""
    found: dict[str, bytes] = {}
    for number, picture in enumerate(pictures):
        found |= {f"a/{number:06d}.{ending}": picture, f"a/{number:06d}.cls": b"%d" % (number % 2)}
    return found


def classified(pictures: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return features of TF-slim: each picture with its class."""
    found = []
    for number, picture in enumerate(pictures):
        label = np.array([number % 2])
        found.append({"image/encoded": picture, "image/filename": b"p.png", "image/class/label": label})
    return found


def packed(pictures: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file: each picture with its class."""
    return [
        {"image": {"bytes": picture, "path": "p.png"}, "label": number % 2}
        for number, picture in enumerate(pictures)
    ]


CONTAINERS: dict[str, tuple[str, Callable[[Sequence[bytes]], bytes]]] = {
    "tfrecord": ("t.tfrecord", lambda pictures: tfrecord_of(classified(pictures))),
    "webdataset": ("t.tar", lambda pictures: tar_of(samples_of(pictures, "jpg"))),
    "jsonl": ("t.parquet", lambda pictures: parquet_of(packed(pictures))),
}
"""File name and content of the container file that each layout reads."""


def main() -> None:
    """Print a row for each form of the source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    noise = np.random.default_rng(0).integers(0, 255, (given.pictures, 48, 64, 3), np.uint8)
    pictures = [cv2.imencode(".jpg", cv2.resize(one, (640, 480)))[1].tobytes() for one in noise]
    with tempfile.TemporaryDirectory() as folder:
        for number, picture in enumerate(pictures):
            (path := Path(folder, "folders", NAMES[number % 2], f"{number}.jpg")).parent.mkdir(
                parents=True, exist_ok=True
            )
            path.write_bytes(picture)
        for layout, (name, write) in CONTAINERS.items():
            Path(folder, layout).mkdir()
            Path(folder, layout, name).write_bytes(write(pictures))
        seconds: dict[str, list[float]] = {layout: [] for layout in ("folders", *CONTAINERS)}
        for number in range(given.rounds):
            for layout, found in seconds.items():
                job = JobOptions(
                    source=f"{folder}/{layout}",
                    out=f"{folder}/out",
                    name=f"{layout.replace('-', '')}{number}",
                )
                start = time.perf_counter()
                convert(job, Recipe(layout=layout, height=224, width=224, shards=8), show_progress=False)
                found.append(time.perf_counter() - start)
    for layout, found in seconds.items():
        median = statistics.median(found)
        print(f"{layout:12} {median:6.2f} s, {given.pictures / median:6.0f} pictures/s")


if __name__ == "__main__":
    main()
