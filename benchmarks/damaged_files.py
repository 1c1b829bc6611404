"""Compare what libraries and our own readers make of damaged files.

    python benchmarks/damaged_files.py            # Pillow, nibabel's NetCDF, pycocotools, pydicom

Each file is cut off, or one to three of its bytes are changed. The table counts the files that both refuse, that one
of the two refuses, and that both read to equal or to other values. A library that ends its process is counted apart.
docs/decisions.md says what follows.
"""

from __future__ import annotations

import argparse
import io
import logging
import multiprocessing
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Reader = Callable[[bytes], Any]
"""Function from a file to a value that is equal for equal content; it raises for a file that it refuses."""
VERDICTS = (
    "both refuse",
    "only ours refuses",
    "only it refuses",
    "both read",
    "other values",
    "process ended",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files, our reader of them and that of a library, and the offset from which on they are damaged."""

    files: Sequence[bytes]
    ours: Reader
    theirs: Reader
    first: int = 8


def damaged(data: bytes, first: int, chance: random.Random) -> bytes:
    """Return a file that is cut off or has other bytes, half of them among its first 300."""
    if chance.random() < 0.3:
        return data[: chance.randrange(first, len(data))]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3))):
        changed[chance.randrange(first, chance.choice((len(data), min(len(data), 300))))] = chance.randrange(
            256
        )
    return bytes(changed)


def answer(read: Reader, data: bytes) -> Any:
    """Return what a reader makes of a file; None if it refuses it."""
    try:
        return read(data)
    except Exception:
        return None


def verdict(ours: Any, theirs: Any) -> str:
    """Return the column of two answers."""
    if ours is None or theirs is None:
        return "both refuse" if ours is theirs else f"only {'ours' if ours is None else 'it'} refuses"
    return "both read" if ours == theirs else "other values"


def _judge(name: str, numbers: range, sender: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for what the C library says of a broken heap
    case = CASES[name]()
    for number in numbers:
        data = damaged(case.files[number % len(case.files)], case.first, random.Random(number))
        sender.send(verdict(answer(case.ours, data), answer(case.theirs, data)))
    sender.close()


def count(name: str, files: int) -> Counter[str]:
    """Judge so many damaged files of a case, in processes that are replaced when they end early."""
    found: Counter[str] = Counter()
    while found.total() < files:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        numbers = range(found.total(), files)
        process = multiprocessing.Process(target=_judge, args=(name, numbers, sender))
        process.start()
        sender.close()
        try:
            for _ in numbers:
                found[receiver.recv()] += 1
        except EOFError:
            found["process ended"] += 1
        process.join()
    return found


def _pictures(kind: str, plugin: Any) -> Case:
    from PIL import Image

    from halofeed.prep.formats.picture import ReadOptions, read_image
    from halofeed.prep.formats.picture.image import convert_pixels
    from halofeed.prep.formats.picture.pillow import load_raster

    generator = np.random.default_rng(1)
    frames = [Image.fromarray(generator.integers(0, 60, (23, 31), dtype=np.uint8)) for _ in range(3)]
    files = []
    for more in ({}, {"save_all": True, "append_images": frames[1:]}, {"comment": b"x" * 300}):
        stream = io.BytesIO()
        frames[0].save(stream, kind, **more)
        files.append(stream.getvalue())
    options = ReadOptions(channels=4, max_pixels=10**6)
    return Case(
        files=files,
        ours=lambda data: read_image(data, options).pixels.tobytes(),
        theirs=lambda data: convert_pixels(load_raster(plugin(io.BytesIO(data))).pixels, options)[
            0
        ].tobytes(),
    )


def gif() -> Case:
    """Pillow alone, instead of after a check of the blocks."""
    from PIL import GifImagePlugin

    return _pictures("GIF", GifImagePlugin.GifImageFile)


def tiff() -> Case:
    """Pillow's own directories."""
    from PIL import TiffImagePlugin

    return _pictures("TIFF", TiffImagePlugin.TiffImageFile)


def netcdf() -> Case:
    """nibabel's reader, which maps files with a descriptor only."""
    import nibabel
    from nibabel.externals.netcdf import netcdf_file

    from halofeed.prep.formats.volume.minc import read_netcdf_header

    def theirs(data: bytes) -> bytes:
        with os.fdopen(os.memfd_create("scan"), "w+b") as file:
            file.write(data)
            file.flush()
            file.seek(0)
            return bytes(netcdf_file(file, "r", mmap=True).variables["image"].data.tobytes())

    folder = Path(nibabel.__file__).parent / "tests" / "data"
    return Case(
        files=[(folder / name).read_bytes() for name in ("tiny.mnc", "minc1_4d.mnc", "minc1-no-att.mnc")],
        ours=lambda data: read_netcdf_header(data)["image"].values(data).tobytes(),
        theirs=theirs,
        first=4,
    )


def run_lengths() -> Case:
    """pycocotools, which scores masks."""
    from pycocotools import mask

    from halofeed.prep.voxels.masks import decode_coco_run_lengths

    size = (40, 30)
    drawn = np.random.default_rng(1).random((3, *size)) < 0.3
    files = [mask.encode(np.asfortranarray(one.astype(np.uint8)))["counts"] for one in drawn]
    return Case(
        files=files,
        ours=lambda data: decode_coco_run_lengths({"size": size, "counts": data}, size).tobytes(),
        theirs=lambda data: mask.decode({"size": size, "counts": data}).tobytes(),
        first=0,
    )


def fragments() -> Case:
    """pydicom's fragments of compressed frames."""
    from pydicom.encaps import encapsulate, generate_frames

    from halofeed.prep.formats.dicom.pixels import compressed_frames

    frames = [bytes([number]) * 40 for number in range(4)]
    files = [encapsulate(frames, fragments_per_frame=parts) for parts in (1, 2)]

    def ours(data: bytes) -> list[bytes]:
        found = compressed_frames(data, 0, len(frames))
        return [b"".join(data[start : start + size] for start, size in frame) for frame in found]

    def theirs(data: bytes) -> list[bytes] | None:
        found = list(generate_frames(data, number_of_frames=len(frames)))
        return found if len(found) == len(frames) else None

    return Case(
        files=[file + b"\xfe\xff\xdd\xe0" + bytes(4) for file in files], ours=ours, theirs=theirs, first=0
    )


CASES: dict[str, Callable[[], Case]] = {
    "GIF by Pillow": gif,
    "TIFF directories by Pillow": tiff,
    "NetCDF by nibabel": netcdf,
    "run lengths by pycocotools": run_lengths,
    "fragments by pydicom": fragments,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=2_000, help="damaged files of each case (default: 2000)")
    files = parser.parse_args().files
    print(f"{'':<30}", *(f"{name:>18}" for name in VERDICTS))
    for name in CASES:
        found = count(name, files)
        print(f"{name:<30}", *(f"{found[verdict]:>18}" for verdict in VERDICTS), flush=True)


if __name__ == "__main__":
    main()
