"""Measure `halofeed convert --from` after 10 % more pictures beside a full conversion of the same sources.

    python benchmarks/versions.py --images 2000 --rounds 3

full    convert all pictures, old and new
from    the same sources with --from the version of the old ones
again   the same command as `from` once more, which finds the version

Rounds are interleaved. Wall time is that of the whole command with its start-up; processor time is user and system time
of its processes. The sources are links to photographs, 16 shards of 640 x 640 pixels as in `benchmarks/convert.py`.
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
import time
from collections.abc import Sequence
from pathlib import Path

from convert import SIZE, SOURCE, collect

_ADDED = 0.1
_TARGET = 0.25


def converted(sources: Path, out: Path, *more: str) -> tuple[float, float]:
    """Convert a folder with the command line; return its wall time and processor time in seconds."""
    sides = [f"--min-dimension={SIZE}", f"--max-dimension={SIZE}", "--resize=keep-aspect", "--pad"]
    # In one process, because the system does not add the time of workers that end with their command.
    first = ["--workers=1", *(more or [*sides, "--shards=16"])]
    command = [
        sys.executable,
        "-m",
        "halofeed",
        "convert",
        f"--source={sources}",
        f"--out={out}",
        "--name=photos",
    ]
    before, began = os.times(), time.monotonic()
    subprocess.run([*command, *first, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - began, os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, used


def shards_of(version: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and the bytes of each shard by split and number."""
    manifest = json.loads((version / "manifest.json").read_text())
    return {
        f"{split}/{number}": ((version / shard["file"]).stat().st_ino, shard["bytes"])
        for split, content in manifest["splits"].items()
        for number, shard in enumerate(content["shards"])
    }


def measure(source: Path, images: int, rounds: int, folder: Path) -> None:
    """Print the times of all rounds, and what the new version shares with the earlier one."""
    added = round(images * _ADDED)
    sources = folder / "sources"
    linked = collect(source, images + added, sources)
    later = [(path, os.readlink(path)) for path in linked[images:]]
    for path, _ in later:
        path.unlink()
    converted(sources, folder / "from")
    for path, target in later:
        path.symlink_to(target)
    earlier = folder / "from" / "photos" / "1.0.0"
    new = folder / "from" / "photos" / "1.1.0"
    times: dict[str, list[tuple[float, float]]] = {"full": [], "from": [], "again": []}
    for _ in range(rounds):
        for out in (folder / "full", new):
            shutil.rmtree(out, ignore_errors=True)
        times["full"].append(converted(sources, folder / "full"))
        more = (f"--from={earlier}", "--version=1.1.0", "--keep-splits")
        times["from"].append(converted(sources, folder / "from", *more))
        times["again"].append(converted(sources, folder / "from", *more))
    medians = {
        name: [statistics.median(one[part] for one in found) for part in (0, 1)]
        for name, found in times.items()
    }
    print(f"{images:,} pictures and {added:,} more, medians of {rounds} rounds\n")
    print(f"{'':8}{'wall s':>10}{'of full':>10}{'CPU s':>10}{'of full':>10}")
    for name, (wall, used) in medians.items():
        print(
            f"{name:8}{wall:10.2f}{wall / medians['full'][0]:10.3f}{used:10.2f}{used / medians['full'][1]:10.3f}"
        )
    before, after = shards_of(earlier), shards_of(new)
    shared = [key for key in after if before.get(key, (0, 0))[0] == after[key][0]]
    total, kept = (sum(after[key][1] for key in keys) for keys in (after, shared))
    print(
        f"\n{len(shared)} of {len(after)} shards and {kept / total:.1%} of their bytes are those of the earlier version"
    )
    share = medians["from"][0] / medians["full"][0]
    verdict = "reached" if share <= _TARGET else "missed"
    print(f"target: at most {_TARGET} of a full conversion; {verdict} with {share:.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of photographs")
    parser.add_argument("--images", type=int, default=2000, help="pictures of the earlier version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the data; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="versions-") as folder:
        measure(options.source, options.images, options.rounds, Path(folder))


if __name__ == "__main__":
    main()
