"""An input that takes too much memory costs its own record alone, and many inputs take no more than few."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from halofeed.pipelines import beam_options as options
from halofeed.prep.convert import picture_records as picture
from halofeed.system.memory import MEBIBYTE, TOO_MUCH_MEMORY
from tests.support.conversions import (
    CLASSES,
    bytes_of,
    convert_words,
    draw_folders,
    peak_bytes,
    read_all,
    rejected_entries,
    run_convert,
)
from tests.support.level_rows import levels
from tests.support.memory_cases import PICTURES, even_png

# Bounded once everything is imported: interpreter and libraries differ between machines.
PROGRAM = r"""
import os, re, resource, sys
from halofeed.cli import main
import halofeed.pipelines.convert, halofeed.prep.convert.picture_records
def held(key):
    return int(re.search(key + r":\s+(\d+) kB", open("/proc/self/status").read())[1]) << 10
base = held("VmRSS")
more = int(os.environ.get("MAX_BYTES", 0))
if more:
    resource.setrlimit(resource.RLIMIT_AS, (held("VmSize") + more, held("VmSize") + more))
code = main(sys.argv[1:])
print("peak", held("VmHWM") - base)
sys.exit(code)
"""


def convert_in_child(source: Path, out: Path, *, max_bytes: int = 0, **options: object) -> tuple[Path, int]:
    """A conversion in a process of its own: the folder, and the bytes that it took besides what was imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *convert_words(source, out, workers=1, **options)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "MAX_BYTES": str(max_bytes)},
    )
    assert done.returncode == 0, done.stderr
    return out / "set/1.0.0", int(done.stdout.split("peak ")[1])


BOMBS = {
    "rgba16.png": lambda: even_png(4500, 4500, 16, 6),
    "interlaced.png": lambda: even_png(6000, 6000, 8, 6, interlaced=True),
    "lossless.webp": lambda: PICTURES["WebP lossless"](3500),
    "lzw.tif": lambda: PICTURES["TIFF deflate, one strip"](5000),
    "progressive.jpg": lambda: PICTURES["JPEG progressive"](5000),
    "frame.gif": lambda: PICTURES["GIF"](6500),
    "jump.bmp": lambda: jumping_bmp(1_000_000),
}
"""Files of at most a few megabytes that take hundreds once they are decoded."""


def jumping_bmp(width: int) -> bytes:
    """A BMP whose run lengths jump over 255 rows, again and again: one row is wanted."""
    runs = b"\0\2\xff\xff" * 4 + b"\0\1"
    header = (40).to_bytes(4, "little") + width.to_bytes(4, "little") + (1).to_bytes(4, "little")
    header += b"\1\0\x08\0" + (1).to_bytes(4, "little") + len(runs).to_bytes(4, "little") + bytes(16)
    offset = 14 + 40 + 1024
    start = b"BM" + (offset + len(runs)).to_bytes(4, "little") + bytes(4) + offset.to_bytes(4, "little")
    return start + header + bytes(1024) + runs


@pytest.mark.long
def test_bombs_are_rejected_below_the_bound_and_the_rest_is_converted(tmp_path: Path) -> None:
    draw_folders(tmp_path / "src", 6)
    for name, make in BOMBS.items():
        (tmp_path / "src/hat" / name).write_bytes(make())
    assert sum((tmp_path / "src/hat" / name).stat().st_size for name in BOMBS) < 12e6
    folder, peak = convert_in_child(tmp_path / "src", tmp_path / "out", threads=3, max_memory=96)
    found = {entry["source"].rpartition("/")[2]: entry for entry in rejected_entries(folder)}
    too_large = {name for name, entry in found.items() if entry["reason"] == TOO_MUCH_MEMORY}
    assert too_large == BOMBS.keys()
    for name in too_large:
        assert re.match(r"about [\d,]+ MiB; .* allows 96; raise it .*--max-memory \d+", found[name]["detail"])
    assert len(read_all(folder, ["train"])) == 6
    assert peak < (96 + 256 + 64) * MEBIBYTE, f"{peak / MEBIBYTE:.0f} MiB"


def draw_coco(folder: Path, segmentation: Any) -> None:
    """Two pictures, the first of which has one object with this mask."""
    folder.mkdir()
    images, annotations = [], []
    for number, mask in enumerate([segmentation, [[1.0, 1.0, 30.0, 1.0, 30.0, 30.0]]]):
        name = f"{number}.png"
        (folder / name).write_bytes(even_png(3000, 4000, 8, 2))
        images.append({"id": number, "file_name": name, "height": 3000, "width": 4000})
        box = {"bbox": [1, 1, 29, 29], "area": 400, "iscrowd": 0, "category_id": 1}
        annotations.append({**box, "id": number, "image_id": number, "segmentation": mask})
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "mark"}]}
    (folder / "instances.json").write_text(json.dumps(document))


def zigzag(points: int) -> list[list[float]]:
    """A polygon each of whose edges passes all rows."""
    flat = np.empty(2 * points)
    flat[0::2] = np.random.default_rng(0).random(points) * 4000
    flat[1::2] = np.tile([0.0, 3000.0], points // 2)
    return [flat.round(2).tolist()]


@pytest.mark.parametrize("points", levels(long=[500_000], exhaustive=[2_000_000]))
def test_a_polygon_without_end_costs_at_most_its_object(tmp_path: Path, points: int) -> None:
    draw_coco(tmp_path / "src", zigzag(points))
    given = {"layout": "coco", "masks": True, "height": 600, "width": 800}
    # The annotations themselves take more than a gigabyte: they are read before the limit counts.
    folder, _ = convert_in_child(tmp_path / "src", tmp_path / "out", max_bytes=4 << 30, **given)
    assert len(read_all(folder, ["train"])) == 2
    (entry,) = rejected_entries(folder)
    assert entry["reason"] == "mask has a polygon that crosses too many rows"


RAISED = [("opencv", TOO_MUCH_MEMORY), (MemoryError("Unable to allocate 9 GiB"), TOO_MUCH_MEMORY)]
RAISED += [(RuntimeError("std::bad_alloc"), TOO_MUCH_MEMORY)]
RAISED += [(RecursionError("maximum recursion depth exceeded"), "file is damaged")]
RAISED += [(OverflowError("Python int too large to convert to C long"), "file is damaged")]
RAISED += [(KeyError("a case that nobody thought of"), "halofeed fails at it")]


@pytest.mark.parametrize(("error", "reason"), RAISED, ids=repr)
@pytest.mark.parametrize("threads", [1, 3])
def test_whatever_a_reader_raises_costs_one_input(tmp_path, monkeypatch, error, reason, threads):
    draw_folders(tmp_path / "src", 6)
    (tmp_path / "src/hat/odd.png").write_bytes(even_png(33, 77, 8, 2))
    resize = picture.resize_image

    def failing(pixels: Any, *arguments: Any) -> Any:
        if pixels.shape[:2] == (33, 77):
            if error == "opencv":
                cv2.resize(pixels, (2**30, 2**30))
            raise error
        return resize(pixels, *arguments)

    monkeypatch.setattr(picture, "resize_image", failing)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", threads=threads)
    (entry,) = rejected_entries(done.folder)
    assert (entry["source"], entry["reason"]) == ("hat/odd.png", reason)
    assert len(read_all(Path(done.folder), ["train"])) == 6


def test_the_records_are_the_same_however_many_threads_share_the_bound(tmp_path: Path) -> None:
    draw_folders(tmp_path / "src", 12)
    for number in range(8):
        data = even_png(900 + 300 * number, 1000, 8, (2, 6)[number % 2])
        (tmp_path / f"src/hat/large {number}.png").write_bytes(data)
    options = {"layout": "folders", "max_memory": 64}
    source = tmp_path / "src"
    first, *others = [bytes_of(source, tmp_path / f"{n}", threads=n, **options) for n in (1, 2, 5)]
    assert all(other == first for other in others)
    assert first["rejected.jsonl"], "some take more than the bound"


def test_what_a_machine_has_too_little_memory_for_another_run_converts(tmp_path, monkeypatch):
    draw_folders(tmp_path / "src", 4)
    (tmp_path / "src/hat/large.png").write_bytes(even_png(6000, 6000, 8, 6))
    given: dict[str, Any] = {"layout": "folders", "workers": 1, "threads": 2, "shards": 1}
    with monkeypatch.context() as small:
        small.setattr(options, "machine_memory", lambda: 200 * MEBIBYTE)
        first = run_convert(tmp_path / "src", tmp_path / "out", **given)
    (entry,) = rejected_entries(first.folder)
    assert (entry["source"], entry["reason"]) == ("hat/large.png", TOO_MUCH_MEMORY)
    told = r"about [\d,]+ MiB; this machine has 160 for each worker; take fewer --workers"
    assert re.fullmatch(told, entry["detail"])
    again = run_convert(tmp_path / "src", tmp_path / "out", overwrite=True, **given)
    assert not rejected_entries(again.folder)
    assert len(read_all(Path(again.folder), ["train"])) == 5


@pytest.mark.parametrize(("encoding", "width"), [("jpeg", 65_501), ("png", 1_000_001)])
def test_a_picture_too_long_to_encode_costs_its_own_record(tmp_path: Path, encoding: str, width: int) -> None:
    draw_folders(tmp_path / "src", 2)
    (tmp_path / "src/hat/long.png").write_bytes(even_png(1, width, 8, 0))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", resize="none", encoding=encoding)
    (entry,) = rejected_entries(done.folder)
    assert (entry["source"], entry["stage"]) == ("hat/long.png", "encode")
    assert f"1 x {width} pixels" in entry["detail"] and "take --encoding" in entry["detail"]


def peaks(folder: Path, **options: int) -> list[int]:
    """What a worker takes for few pictures, and for many."""
    given = [(folder / name, folder / f"out {name}") for name in ("few", "many")]
    return [peak_bytes(convert_words(*places, workers=1, **options)) for places in given]


@pytest.mark.long
def test_eight_times_the_pictures_take_no_more_memory(tmp_path):
    draw_folders(tmp_path / "few", 100, side=64)
    shutil.copytree(tmp_path / "few", tmp_path / "many")
    for label in CLASSES:
        for copy in range(1, 8):
            for path in sorted((tmp_path / "few" / label).iterdir()):
                shutil.copy(path, tmp_path / "many" / label / f"{copy}-{path.name}")
    # 200 pictures are 118 MB of records: what is not written away at once shows.
    few, many = peaks(tmp_path, threads=2, height=448, width=448)
    shutil.rmtree(tmp_path / "out many")
    assert abs(many - few) < 25e6, f"{few / 1e6:.0f} MB for 100 pictures, {many / 1e6:.0f} MB for 800"


@pytest.mark.exhaustive
def test_twenty_thousand_references_take_their_own_size_only(tmp_path):
    """Kilobytes cross the shuffle: references, a few hundred bytes each."""
    draw_folders(tmp_path / "few", 10, side=24)
    for label in CLASSES:
        (tmp_path / "many" / label).mkdir(parents=True)
        paths = sorted((tmp_path / "few" / label).iterdir())
        for number in range(10_000):
            (tmp_path / "many" / label / f"{number}.jpg").hardlink_to(paths[number % len(paths)])
    few, many = peaks(tmp_path, height=8, width=8)
    assert many - few < 20_000 * 8_000, f"{(many - few) / 20_000:.0f} bytes a reference"
