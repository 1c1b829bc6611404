"""Measure the search for copies among many signatures: time, memory, and how many of the planted copies it finds.

    python benchmarks/copies_search.py --signatures 1000000

scenes  thumbnails of different pictures, drawn with the spectrum of photographs
mixed   of 100 thumbnails 60 of different pictures, 20 frames of videos of 30 to 300 frames, 10 exact copies of other
        ones, and 10 plain pictures (black frames, white pages, gray ramps)

In both, 1 of 1,000 is a changed copy of another one: with noise, turned, mirrored, or a part of nine tenths. Each case
runs in a process of its own, whose peak memory is with everything that it imports and with the signatures. A frame
counts as found if it is in a pair with a frame of its video.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CASES = ("scenes", "mixed")
_CHUNK = 1 << 14
_Levels = NDArray[np.int8]


def draw_scenes(random: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return means of cells [record, 20, 20], of which 16 x 16 are shown; amplitudes fall with the frequency."""
    down, across = np.fft.fftfreq(20)[:, None], np.fft.rfftfreq(20)
    strength = 1 / np.maximum(np.hypot(down, across), 1 / 20)
    waves = random.normal(size=(count, 20, 11)) + 1j * random.normal(size=(count, 20, 11))
    return np.fft.irfft2(waves * strength, (20, 20)).astype(np.float32)


def to_levels(cells: NDArray[np.float32]) -> _Levels:
    """Return the levels of thumbnails [record, 16, 16], as `sign_picture` makes them of the means of cells."""
    distances = cells - cells.mean((1, 2), keepdims=True)
    spread = np.abs(distances).mean((1, 2), keepdims=True)
    levels = np.floor(distances * 2.5 / np.maximum(spread, 1e-9) + 0.5).clip(-8, 7)
    return np.asarray(levels, np.int8)


def change(random: np.random.Generator, scenes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the shown 16 x 16 cells of changed copies of scenes: each third of them in another way."""
    import cv2

    shown = scenes[:, :16, :16].copy()
    noise = random.normal(size=shown.shape) * shown.std((1, 2), keepdims=True) * 0.05
    for number in range(len(shown)):
        if number % 3 == 1:
            shown[number] = np.rot90(shown[number], number // 3 % 4)[:, :: -1 if number % 2 else 1]
        elif number % 3 == 2:
            large = cv2.resize(shown[number], (160, 160), interpolation=cv2.INTER_CUBIC)
            shown[number] = cv2.resize(large[4:148, 8:152], (16, 16), interpolation=cv2.INTER_AREA)
    return np.asarray(shown + noise, np.float32)


def draw_videos(random: np.random.Generator, levels: _Levels, begin: int, end: int) -> NDArray[np.int64]:
    """Write frames of videos, between two scenes each; return the number of each frame's video."""
    videos = np.zeros(end - begin, np.int64)
    at, number = begin, 0
    while at < end:
        count = min(int(random.integers(30, 301)), end - at)
        first, last = draw_scenes(random, 2)[:, :16, :16]
        share = np.linspace(0, 0.5, count, dtype=np.float32)[:, None, None]
        frames = first * (1 - share) + last * share
        levels[at : at + count] = to_levels(
            frames + random.normal(size=frames.shape).astype(np.float32) * 0.01
        )
        videos[at - begin : at - begin + count] = number
        at, number = at + count, number + 1
    return videos


def draw(case: str, count: int) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """Return signatures, the numbers of changed copies, and those of what they are copies of."""
    from halofeed.prep.voxels.signatures import Signatures

    random = np.random.default_rng(0)
    levels, spreads = np.zeros((count, 1, 16, 16), np.int8), np.full(count, 256 * 30, np.int64)
    flat = levels[:, 0]
    copies, originals = np.arange(count // 1000), count // 1000 + np.arange(count // 1000)
    kept = []
    scenes_end = count if case == "scenes" else count * 6 // 10
    for begin in range(0, scenes_end, _CHUNK):
        scenes = draw_scenes(random, min(_CHUNK, scenes_end - begin))
        flat[begin : begin + len(scenes)] = to_levels(scenes[:, :16, :16])
        if begin < 2 * len(copies):
            kept.append(scenes)
    flat[copies] = to_levels(change(random, np.concatenate(kept)[originals]))
    if case == "mixed":
        draw_videos(random, flat, scenes_end, count * 8 // 10)
        chosen = random.integers(2 * len(copies), scenes_end, count // 10)
        flat[count * 8 // 10 : count * 8 // 10 + len(chosen)] = flat[chosen]
        plain = flat[count * 8 // 10 + len(chosen) :]
        third = len(plain) // 3
        spreads[count - len(plain) : count - len(plain) + third] = 0
        plain[third:, 3, 4:6] = 7  # a page with a number
        ramp = np.linspace(-6, 6, 16, dtype=np.float32)
        plain[2 * third :] = np.rint(ramp + random.normal(size=(len(plain) - 2 * third, 16, 16)) * 0.3)
    signatures = Signatures(
        thumbnails=levels, spreads=spreads, sources=np.arange(count), groups=np.zeros(count, np.int64)
    )
    return signatures, copies, originals


def run_case(case: str, count: int) -> None:
    """Search in this process, and print the figures."""
    from halofeed.prep.voxels.copy_search import find_pairs

    signatures, copies, originals = draw(case, count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, processor = time.perf_counter(), time.process_time()
    pairs = find_pairs(signatures)
    seconds, processor = time.perf_counter() - clock, time.process_time() - processor
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    hits = sum(
        (one, other) in found or (other, one) in found
        for one, other in zip(copies.tolist(), originals.tolist(), strict=True)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inside = np.union1d(pairs.first, pairs.second)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "processor": processor,
                "before_mib": before / 1024,
                "peak_mib": peak / 1024,
                "pairs": len(pairs),
                "recall": hits / max(1, len(copies)),
                "records": len(inside),
            }
        )
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--signatures", type=int, default=1_000_000)
    parser.add_argument("--cases", default=",".join(_CASES), help="comma-separated (default: all)")
    parser.add_argument("--run", choices=_CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_case(given.run, given.signatures)
        return
    print(
        f"{'case':<7} {'seconds':>8} {'processor, s':>12} {'MiB':>6} {'MiB before':>10} {'pairs':>9} {'recall':>6}"
    )
    for case in given.cases.split(","):
        command = [sys.executable, str(Path(__file__)), "--run", case, "--signatures", str(given.signatures)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{case} failed:\n{done.stderr[-2000:]}")
        row = json.loads(done.stdout)
        print(
            f"{case:<7} {row['seconds']:>8.1f} {row['processor']:>12.1f} {row['peak_mib']:>6.0f} "
            f"{row['before_mib']:>10.0f} {row['pairs']:>9,} {row['recall']:>6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
