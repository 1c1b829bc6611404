"""Cut one drawn large picture into tiles with halofeed, SAHI and datumaro, and with the bare decoder, in one run.

    python benchmarks/tiles.py --peer-python ../peers/bin/python                  # 20,000 x 20,000 with 5,000 boxes
    python benchmarks/tiles.py --forms png,jpeg --encodings png --rounds 1
    python benchmarks/tiles.py --memory                                           # 60,000 x 60,000: peak of a worker
    python benchmarks/tiles.py --check                                            # every box again, within 0.5 pixels

halofeed  `halofeed convert --fit tiles`, the whole command with its start-up: records, index, checksums, statistics
bare      decode each block once in as many threads as cores, cut the same tiles, encode them as halofeed does, and
          write these bytes one after the other: no annotations, records, checksums or start-up of a command
sahi      `sahi.slicing.slice_coco`, in the Python of --peer-python: a file for each tile and a COCO document
datumaro  its transform `tile` and export as COCO with pictures, in the Python of --datumaro-python

Tiles are 1024 x 1024 and overlap by 128 pixels or more; those of datumaro are as many, and smaller. It decodes the
whole picture for each tile, so measure it with --side 3000. Tiles are written as raw pixels, PNG or JPEG: quality 95 of
halofeed and the bare decoder, and the default of Pillow and OpenCV in SAHI and datumaro. SAHI writes PNG unless it is
told otherwise. Neither writes raw pixels, so that the lines of PNG also give the ratio of halofeed with raw pixels.
Boxes are those that count: of the others less than 0.3 is visible, and SAHI and datumaro leave them out.

Rounds are interleaved, and a figure is the median; a ratio is the median of the rounds' ratios. Peak memory is that of
the process and all its children, sampled; of pages that several share, each has its part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convert import tree_memory

HERE = Path(__file__).resolve().parents[1]
MIN_VISIBLE = 0.3
MOST_PIXELS = 0.5
"""Largest distance of a box that is found again, in pixels of the source."""
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What is cut: a folder with a picture and annotations.json, the tiles, and how they are written."""

    folder: str
    file: str
    tile: int
    overlap: int
    encoding: str
    threads: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a system did.

    Args:
        peak: most bytes that all its processes held together.
        process_peak: most bytes that one of them held.
        tiles, boxes: number of tiles, and of boxes in them that count; 0 for a system that writes none.
        written: bytes of all files.
    """

    seconds: float
    peak: int
    process_peak: int
    tiles: int
    boxes: int
    written: int


# The systems. Each runs in a process of its own, with `Cut` and an empty folder.


def run_halofeed(cut: Cut, out: Path) -> None:
    """The real command."""
    from halofeed.cli import run_and_exit

    sys.argv = [
        "halofeed", "convert", "--layout", "coco", "--source", cut.folder, "--out", str(out), "--name", "tiles",
        "--fit", "tiles", "--height", str(cut.tile), "--width", str(cut.tile), "--shards", "1",
        "--tile-overlap", f"{cut.overlap},{cut.overlap}", "--min-visible", str(MIN_VISIBLE),
        "--encoding", cut.encoding,
    ]  # fmt: skip
    run_and_exit()


def run_sahi(cut: Cut, out: Path) -> None:
    """SAHI's function, with its annotations left out at the same share of their area."""
    from sahi.slicing import slice_coco

    slice_coco(
        str(Path(cut.folder, "annotations.json")), cut.folder, "sliced", str(out),
        slice_height=cut.tile, slice_width=cut.tile, min_area_ratio=MIN_VISIBLE, out_ext=f".{cut.encoding}",
        overlap_height_ratio=cut.overlap / cut.tile, overlap_width_ratio=cut.overlap / cut.tile,
    )  # fmt: skip


def run_datumaro(cut: Cut, out: Path) -> None:
    """datumaro's transform: a grid of so many rows and columns, each tile larger by a share."""
    import datumaro

    (image,) = json.loads(Path(cut.folder, "annotations.json").read_text())["images"]
    step = cut.tile - cut.overlap
    grid = tuple(-(-(image[side] - cut.overlap) // step) for side in ("height", "width"))
    with tempfile.TemporaryDirectory(dir=out.parent) as linked:  # its reader wants these names
        for name, source in (
            ("images/default", cut.file),
            ("annotations/instances_default.json", "annotations.json"),
        ):
            link = Path(linked, name, cut.file) if name.startswith("images") else Path(linked, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(cut.folder, source))
        dataset = datumaro.Dataset.import_from(linked, "coco_instances")
        overlap = (cut.overlap / step,) * 2
        dataset.transform("tile", grid_size=grid, overlap=overlap, threshold_drop_ann=MIN_VISIBLE)
        dataset.export(str(out), "coco_instances", save_media=True, image_ext=f".{cut.encoding}")


def run_bare(cut: Cut, out: Path) -> None:
    """Decode in row bands, cut, encode in threads, write."""
    import numpy as np

    from halofeed.prep.geometry.picture_tiles import plan_picture_tiles
    from halofeed.prep.voxels.encode import ENCODERS

    with ThreadPoolExecutor(cut.threads) as pool, open(out / "tiles", "wb") as stream:
        rows = _bare_rows(Path(cut.folder, cut.file), pool)
        size = next(rows)
        band, top = np.empty((0, size[1], 3), np.uint8), 0
        waiting: list[Future[Any]] = []
        tiles = plan_picture_tiles(size, (cut.tile, cut.tile), (cut.overlap, cut.overlap), size)
        for first in tiles.tops:
            band, top = band[first - top :], first
            parts, have = [band], len(band)
            while have < min(cut.tile, size[0] - first):
                parts.append(next(rows))
                have += len(parts[-1])
            band = np.concatenate(parts) if len(parts) > 1 else band
            for done in waiting:
                stream.write(done.result())
            waiting = [
                pool.submit(ENCODERS[cut.encoding], np.ascontiguousarray(band[: cut.tile, left : left + cut.tile]), 95)
                for left in tiles.lefts
            ]  # fmt: skip
        for done in waiting:
            stream.write(done.result())


def _bare_rows(file: Path, pool: ThreadPoolExecutor) -> Iterator[Any]:
    """Yield the (height, width) of a picture and then its rows, in bands from top to bottom."""
    import numpy as np

    if file.suffix == ".tif":
        import tifffile

        with tifffile.TiffFile(file) as opened:
            page = opened.pages.first
            yield page.shape[:2]
            step = page.tilelength if page.is_tiled else page.rowsperstrip
            across = -(-page.imagewidth // page.tilewidth) if page.is_tiled else 1
            # Bands of 256 rows or more keep the threads busy where a strip has few rows.
            segments = across * max(1, 256 // step)
            for begin in range(0, len(page.dataoffsets), segments):
                numbers = range(begin, min(begin + segments, len(page.dataoffsets)))
                read = [
                    _read_at(opened.filehandle, page.dataoffsets[n], page.databytecounts[n]) for n in numbers
                ]
                top = begin // across * step
                band = np.empty(
                    (min(len(numbers) // across * step, page.imagelength - top), *page.shape[1:]), page.dtype
                )

                def place(number: int, data: bytes, band: Any = band, top: int = top) -> None:
                    pixels, (*_, row, column, _), _ = page.decode(
                        data, number, jpegtables=page.jpegtables, jpegheader=page.jpegheader
                    )
                    assert pixels is not None
                    target = band[row - top : row - top + step, column : column + pixels.shape[2]]
                    target[...] = pixels[0, : target.shape[0], : target.shape[1]]

                list(pool.map(place, numbers, read))
                yield band
    elif file.suffix == ".png":
        import cv2

        os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(1 << 40)
        pixels = cv2.imread(str(file), cv2.IMREAD_COLOR_RGB)
        assert pixels is not None
        yield pixels.shape[:2]
        yield pixels
    else:
        import simplejpeg

        pixels = simplejpeg.decode_jpeg(file.read_bytes())
        yield pixels.shape[:2]
        yield pixels


def _read_at(file: Any, offset: int, count: int) -> bytes:
    file.seek(offset)
    return bytes(file.read(count))


SYSTEMS = {"halofeed": run_halofeed, "bare": run_bare, "sahi": run_sahi, "datumaro": run_datumaro}


def count_halofeed(out: Path) -> tuple[int, int]:
    """Tiles, and boxes that are not ignored because too little of them is visible."""
    tiles = boxes = 0
    for features in records_of(out):
        tiles += 1
        boxes += int((features["image/object/is_crowd"] == 0).sum())
    return tiles, boxes


def records_of(out: Path) -> Iterator[dict[str, Any]]:
    """The features of all records, in stored order; shards are mapped and not read whole."""
    import numpy as np

    from halofeed.schemas.tfexample import decode_example
    from halofeed.schemas.tfrecord import read_records

    for path in sorted(out.rglob("*.tfrecord-*")):
        for _, data in read_records(np.memmap(path, mode="r").data, path.name):
            features = decode_example(data)
            features.pop("image/encoded")
            yield features


def count_coco(out: Path) -> tuple[int, int]:
    """Tiles and boxes of COCO documents."""
    documents = [json.loads(file.read_text()) for file in out.rglob("*.json")]
    return sum(len(one["images"]) for one in documents), sum(len(one["annotations"]) for one in documents)


COUNTERS = {"halofeed": count_halofeed, "sahi": count_coco, "datumaro": count_coco}


# Measurements.


def children_of(process: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    waiting = [process]
    while waiting:
        try:
            tasks = list(Path(f"/proc/{waiting.pop()}/task").iterdir())
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue
        found += children
        waiting += children
    return found


def resident_peak(process: int) -> int:
    """Most bytes that a process held resident so far, with libraries and mapped files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10
    except (OSError, StopIteration):
        return 0


def measure(system: str, cut: Cut, scratch: Path, python: str = sys.executable) -> Outcome:
    """Run a system in a process of its own, and watch its memory."""
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        given = [json.dumps(cut.__dict__), out]
        command = [python, "-W", "ignore", str(Path(__file__).resolve()), "--run", system, *given]
        peak, single, ended = [0], [0], threading.Event()
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=HERE)

        def watch() -> None:
            while not ended.wait(0.05):
                peak[0] = max(peak[0], tree_memory(process.pid))
                single[0] = max(single[0], *map(resident_peak, [process.pid, *children_of(process.pid)]))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        errors = process.communicate()[1].decode()
        seconds = time.perf_counter() - start
        ended.set()
        watcher.join()
        if process.returncode:
            raise SystemExit(f"{system} failed:\n{errors[-3000:]}")
        tiles, boxes = COUNTERS[system](Path(out)) if system in COUNTERS else (0, 0)
        written = sum(file.stat().st_size for file in Path(out).rglob("*") if file.is_file())
        memory = {"peak": peak[0], "process_peak": single[0]}
        return Outcome(seconds=seconds, **memory, tiles=tiles, boxes=boxes, written=written)


def draw(scratch: Path, form: str, side: int, objects: int, given: argparse.Namespace) -> tuple[Any, Cut]:
    """Draw a picture and its annotations into a folder."""
    from tests.support.large_picture_files import WRITERS
    from tests.support.large_pictures import LargePicture, write_coco

    picture = LargePicture(side, side, count=objects)
    name, write = WRITERS[form]
    folder = scratch / f"{form}-{side}"
    folder.mkdir()
    print(f"# drawing {form} of {side:,} x {side:,} pixels with {objects:,} objects", flush=True)
    write(folder / name, picture)
    write_coco(folder / "annotations.json", {name: picture})
    cut = Cut(
        folder=str(folder), file=name, tile=given.tile, overlap=given.overlap, encoding="raw",
        threads=len(os.sched_getaffinity(0)),
    )  # fmt: skip
    return picture, cut


def compare(form: str, given: argparse.Namespace, scratch: Path) -> None:
    """Print the table of one form of file."""
    _, cut = draw(scratch, form, given.side, given.objects, given)
    cuts = {encoding: replace(cut, encoding=encoding) for encoding in given.encodings.split(",")}
    cases = [(system, encoding) for encoding in cuts for system in given.systems.split(",")]
    # Pillow and OpenCV, by which the others write, have no file of raw pixels.
    cases = [case for case in cases if case[1] != "raw" or case[0] in ("halofeed", "bare")]
    pythons = {"sahi": given.peer_python, "datumaro": given.datumaro_python}
    outcomes: dict[tuple[str, str], list[Outcome]] = {case: [] for case in cases}
    for number in range(given.rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            system, encoding = case
            outcome = measure(system, cuts[encoding], scratch, pythons.get(system, sys.executable))
            outcomes[case].append(outcome)
    size = Path(cut.folder, cut.file).stat().st_size / MIB
    print(f"{form}, {size:,.0f} MiB, {cut.threads} cores")
    print(
        f"{'system':<9} {'as':<5} {'s':>6} {'(rounds)':<20} {'peak MiB':>9} {'tiles':>6} {'boxes':>7} "
        f"{'written MiB':>12}  halofeed is"
    )
    for (system, encoding), found in outcomes.items():
        seconds = [one.seconds for one in found]
        rounds = " ".join(f"{one:.1f}" for one in seconds)
        print(
            f"{system:<9} {encoding:<5} {statistics.median(seconds):>6.1f} {rounds:<20} "
            f"{max(one.peak for one in found) / MIB:>9,.0f} {found[0].tiles:>6,} {found[0].boxes:>7,} "
            f"{found[0].written / MIB:>12,.0f}  {_ratios(system, encoding, outcomes)}",
            flush=True,
        )
    shutil.rmtree(cut.folder)


def _ratios(system: str, encoding: str, outcomes: dict[tuple[str, str], list[Outcome]]) -> str:
    """How many times as fast halofeed is with this encoding, and beside PNG of the others with raw pixels."""
    shown = []
    for ours in dict.fromkeys([encoding, "raw"]) if encoding == "png" else [encoding]:
        pairs = zip(outcomes.get(("halofeed", ours), []), outcomes[system, encoding], strict=False)
        ratios = [other.seconds / one.seconds for one, other in pairs]
        if ratios and system != "halofeed" and (ours == encoding or system != "bare"):
            shown.append(f"{statistics.median(ratios):.2f} x as fast" + f" with {ours}" * (ours != encoding))
    return ", ".join(shown)


def compare_memory(form: str, given: argparse.Namespace, scratch: Path) -> None:
    """Print the peak memory of a conversion beside that of a picture of one tile."""
    rows = []
    for side, objects in ((given.tile, 10), (given.side, given.objects)):
        _, cut = draw(scratch, form, side, objects, given)
        rows.append((side, measure("halofeed", replace(cut, encoding="jpeg"), scratch)))
        shutil.rmtree(cut.folder)
    base = rows[0][1].process_peak
    print(
        f"{'pixels':>16} {'s':>7} {'tiles':>6} {'process MiB':>12} {'over one tile':>14} {'all processes':>14}"
    )
    for side, found in rows:
        print(
            f"{side:>7,} x {side:<6,} {found.seconds:>7.1f} {found.tiles:>6,} {found.process_peak / MIB:>12,.0f} "
            f"{(found.process_peak - base) / MIB:>14,.0f} {found.peak / MIB:>14,.0f}"
        )


def check(form: str, given: argparse.Namespace, scratch: Path) -> bool:
    """Convert, find every box again, and print the largest distance; return whether the promise holds."""
    import numpy as np

    from tests.support.tile_boxes import find_boxes

    picture, cut = draw(scratch, form, given.side, given.objects, given)
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        command = [sys.executable, str(Path(__file__).resolve()), "--run", "halofeed"]
        subprocess.run([*command, json.dumps(cut.__dict__), out], check=True, cwd=HERE)
        found = find_boxes(records_of(Path(out)), np.array([drawn.box for drawn in picture.objects]))
    shutil.rmtree(cut.folder)
    print(
        f"{form}: {len(picture.objects):,} objects in {found.records:,} tiles, {found.cut:,} cut by a border, "
        f"{found.whole:,} whole in a tile, {len(found.missing):,} missing; at most {found.worst:.4f} pixels away"
    )
    return not found.missing and found.worst <= MOST_PIXELS


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default="", help="interpreter of an environment with sahi")
    parser.add_argument("--datumaro-python", default="", help="interpreter of an environment with datumaro")
    parser.add_argument("--forms", default="jpeg-tiles,lzw-strips,cog,png,jpeg", help="forms of the file")
    parser.add_argument("--encodings", default="raw,png,jpeg", help="what the tiles are written as")
    parser.add_argument("--systems", default="", help="of " + ",".join(SYSTEMS))
    parser.add_argument("--side", type=int, default=0, help="of the picture; 20,000, or 60,000 with --memory")
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--overlap", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the files, some 5 GB")
    parser.add_argument("--memory", action="store_true", help="peak memory of the form `big`")
    parser.add_argument("--check", action="store_true", help="find every box again; exit 1 if one is missing")
    parser.add_argument("--run", nargs=3, metavar=("SYSTEM", "CUT", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        system, cut, out = given.run
        SYSTEMS[system](Cut(**json.loads(cut)), Path(out))
        return
    sys.path.insert(0, str(HERE))
    given.side = given.side or (60000 if given.memory else 20000)
    peers = {"sahi": given.peer_python, "datumaro": given.datumaro_python}
    given.systems = given.systems or ",".join(name for name in SYSTEMS if peers.get(name, "given"))
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        if given.memory:
            compare_memory("big", given, Path(scratch))
        elif given.check:
            held = [check(form, given, Path(scratch)) for form in given.forms.split(",")]
            if not all(held):
                raise SystemExit(1)
        else:
            for form in given.forms.split(","):
                compare(form, given, Path(scratch))


if __name__ == "__main__":
    main()
