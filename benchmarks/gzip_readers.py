"""Compare gzip readers on a CT, in one thread and in two.

    python benchmarks/gzip_readers.py [--depth 100] [--height 512] [--width 512] [--seconds 3] [--level 6]

Draws a CT-like int16 volume (a body with smooth organs and noise, air around it), compresses it as nibabel and
most tools do (zlib), and prints decompressed MB/s: per second of processor time on one thread, so that other
work on the machine matters less, and per second on the clock with two threads, each reading the volume: a reader
that held the interpreter lock would gain nothing there. Every reader fills one buffer of the volume's size,
except where "whole" says that it returns new bytes. The last lines are halofeed's own reader, and the bare
limit of it: the same pieces, not kept.
"""

from __future__ import annotations

import argparse
import gzip
import io
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from isal import igzip, igzip_lib
from volumes import draw_volume

from halofeed.prep.formats.volume.streams import INPUT_BYTES, OUTPUT_BYTES, GzipStream, skip

Reader = Callable[[bytes, memoryview], object]


def read_pieces(make: Callable[[], Any]) -> Reader:
    """By an object that decompresses piece by piece, as zlib's does."""

    def read(data: bytes, target: memoryview) -> None:
        source, decompressor, at, filled = memoryview(data), make(), 0, 0
        while not decompressor.eof:
            piece = decompressor.unconsumed_tail or source[at : at + INPUT_BYTES]
            at += 0 if decompressor.unconsumed_tail else INPUT_BYTES
            got = decompressor.decompress(piece, OUTPUT_BYTES)
            target[filled : filled + len(got)] = got
            filled += len(got)

    return read


def read_file(opened: Callable[..., Any]) -> Reader:
    """By a file object's readinto."""

    def read(data: bytes, target: memoryview) -> None:
        filled = 0
        with opened(fileobj=io.BytesIO(data), mode="rb") as stream:
            while got := stream.readinto(target[filled : filled + (1 << 20)]):
                filled += got

    return read


def ours(data: bytes, target: memoryview) -> None:
    stream = GzipStream(data)
    stream.read_into(target)
    skip(stream, 1)


def ours_unkept(data: bytes, target: memoryview) -> None:
    skip(GzipStream(data), len(target))


def igzip_pieces(data: bytes, target: memoryview) -> None:
    source, at, filled = memoryview(data), 0, 0
    decompressor: Any = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    while not decompressor.eof:
        piece = source[at : at + INPUT_BYTES] if decompressor.needs_input else b""
        at += len(piece)
        got = decompressor.decompress(piece, OUTPUT_BYTES)
        target[filled : filled + len(got)] = got
        filled += len(got)


def readers() -> dict[str, Reader]:
    """The competitors; zlib-ng where it is installed."""
    isal_decompress: Any = igzip.decompress
    table: dict[str, Reader] = {
        "zlib, whole": lambda data, target: gzip.decompress(data),
        "zlib, GzipFile.readinto": read_file(gzip.GzipFile),
        "zlib, pieces": read_pieces(lambda: zlib.decompressobj(31)),
        "isal, whole": lambda data, target: isal_decompress(data),
        "isal, IGzipFile.readinto": read_file(igzip.IGzipFile),
        "isal, pieces": igzip_pieces,
    }
    try:
        from zlib_ng import gzip_ng, zlib_ng
    except ImportError:
        print("zlib-ng is not installed, so it is left out")
    else:
        zlib_ng_decompress: Any = gzip_ng.decompress
        table["zlib-ng, whole"] = lambda data, target: zlib_ng_decompress(data)
        table["zlib-ng, GzipNGFile.readinto"] = read_file(gzip_ng.GzipNGFile)
        table["zlib-ng, pieces"] = read_pieces(lambda: zlib_ng.decompressobj(31))
    table["halofeed (isal, pieces, own frame)"] = ours
    table["bare limit: halofeed's, nothing kept"] = ours_unkept
    return table


def one_thread(read: Reader, data: bytes, byte_count: int, seconds: float) -> float:
    """Decompressed MB per second of processor time, of the best pass."""
    target = np.zeros(byte_count, np.uint8).data
    rates: list[float] = []
    started = time.perf_counter()
    while len(rates) < 3 or time.perf_counter() - started < seconds:
        before = time.thread_time()
        read(data, target)
        rates.append(byte_count / (time.thread_time() - before) / 1e6)
    return max(rates)


def two_threads(read: Reader, data: bytes, byte_count: int, seconds: float) -> float:
    """Decompressed MB per second of both, of the best pass."""
    targets = [np.zeros(byte_count, np.uint8).data for _ in range(2)]
    rates: list[float] = []
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        while len(rates) < 3 or time.perf_counter() - started < seconds:
            before = time.perf_counter()
            list(pool.map(lambda target: read(data, target), targets))
            rates.append(2 * byte_count / (time.perf_counter() - before) / 1e6)
    return max(rates)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("depth", 100), ("height", 512), ("width", 512), ("level", 6)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement (default 3)")
    options = parser.parse_args()
    content = draw_volume((options.depth, options.height, options.width)).tobytes()
    data = gzip.compress(content, options.level)
    print(f"{len(content) / 1e6:.1f} MB of voxels in {len(data) / 1e6:.1f} MB of gzip, level {options.level}")
    print(f"{'reader':38} {'MB/s of CPU':>12} {'2 threads':>10}")
    for name, read in readers().items():
        one, two = (
            measure(read, data, len(content), options.seconds) for measure in (one_thread, two_threads)
        )
        print(f"{name:38} {one:12.0f} {two:10.0f}", flush=True)


if __name__ == "__main__":
    main()
