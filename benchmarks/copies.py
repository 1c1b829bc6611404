"""Measure which copies `halofeed review` finds, beside other programs, and in sets with known copies.

    python benchmarks/copies.py planted --source ../shared/data --peers PYTHON
    python benchmarks/copies.py known --data data/cifar/1.0.0 --pairs pairs.csv --peers PYTHON --source cifar

planted   copies of every kind in `KINDS` of photographs below --source, `--each` of each kind, beside `--clean` other
          photographs: recall of each kind, and pairs of two photographs that were called copies
known     pairs of file names in a CSV file without a header, relative to the source: how many are found

PYTHON is an interpreter with some of cleanvision, imagededup and fastdup. imagededup's CNN downloads its weights, so
only its hashes run, with their default distance of 10; fastdup runs with 0.96, its bound of near duplicates. Processor
time is that of reading and the search, without imports. halofeed reads in the conversion, whose time is printed too.
Groups count as all pairs in them.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from convert import SOURCE, draw_pictures, is_photograph
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Random = np.random.Generator
Pair = frozenset[str]
_SIDE = 640
_QUALITIES = {"jpg": cv2.IMWRITE_JPEG_QUALITY, "webp": cv2.IMWRITE_WEBP_QUALITY}


def _scaled(factor: float, added: float) -> Callable[[Pixels, Random], Pixels]:
    def apply(pixels: Pixels, random: Random) -> Pixels:
        return np.asarray(np.clip((pixels - 128.0) * factor + 128 + added, 0, 255), np.uint8)

    return apply


def _resized(pixels: Pixels, random: Random) -> Pixels:
    factor = random.uniform(0.3, 0.7)
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA), np.uint8)


def _cropped(pixels: Pixels, random: Random) -> Pixels:
    """Return nine tenths of each side, anywhere."""
    height, width = (round(0.9 * side) for side in pixels.shape[:2])
    top = int(random.integers(pixels.shape[0] - height + 1))
    left = int(random.integers(pixels.shape[1] - width + 1))
    return pixels[top : top + height, left : left + width]


def _gray(pixels: Pixels, random: Random) -> Pixels:
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY), np.uint8)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Change of a photograph, and the file that the changed one becomes."""

    change: Callable[[Pixels, Random], Pixels] = lambda pixels, random: pixels
    extension: str = "jpg"
    quality: int = 90


KINDS: Mapping[str, Kind] = {
    "exact": Kind(extension=""),
    "resized": Kind(change=_resized),
    "recompressed": Kind(quality=25),
    "PNG": Kind(extension="png"),
    "WebP": Kind(extension="webp", quality=80),
    "mirrored": Kind(change=lambda pixels, random: pixels[:, ::-1]),
    "turned by 90": Kind(change=lambda pixels, random: np.rot90(pixels)),
    "turned by 180": Kind(change=lambda pixels, random: np.rot90(pixels, 2)),
    "turned by 270": Kind(change=lambda pixels, random: np.rot90(pixels, 3)),
    "brightened": Kind(change=_scaled(1, 30)),
    "more contrast": Kind(change=_scaled(1.3, 0)),
    "less contrast": Kind(change=_scaled(0.6, 0)),
    "cropped by 10 %": Kind(change=_cropped),
    "gray": Kind(change=_gray),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Pairs of file names that a program calls copies, and what the search took."""

    pairs: frozenset[Pair]
    cpu_s: float
    mib: float


def plant(source: Path, folder: Path, each: int, clean: int, seed: int) -> dict[str, tuple[str, str]]:
    """Write photographs and their copies; return the original and the kind of each copy by its name."""
    random = np.random.default_rng(seed)
    root = source if source.is_dir() else draw_pictures(folder.parent / "photographs")
    # A photograph that the folder has twice would be a pair that nobody planted.
    distinct = {sha256(path.read_bytes()).digest(): path for path in root.rglob("*") if is_photograph(path)}
    paths = sorted(distinct.values())
    random.shuffle(paths)  # type: ignore[arg-type]
    kinds = [kind for kind in KINDS for _ in range(each)] + [""] * clean
    planted = {}
    for split in ("train", "test"):
        (folder / split / "all").mkdir(parents=True)
    for number, (path, name) in enumerate(zip(paths, kinds, strict=False)):
        pixels = cv2.imread(str(path))
        if pixels is None:
            continue
        if (scale := _SIDE / max(pixels.shape[:2])) < 1:
            pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        original = f"train/all/{number:05d}.jpg"
        cv2.imwrite(str(folder / original), pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])
        if not name:
            continue
        kind = KINDS[name]
        copy = f"test/all/{number:05d}.{kind.extension or 'jpg'}"
        if not kind.extension:
            (folder / copy).write_bytes((folder / original).read_bytes())
        else:
            changed = kind.change(np.asarray(cv2.imread(str(folder / original)), np.uint8), random)
            options = [_QUALITIES[kind.extension], kind.quality] if kind.extension in _QUALITIES else []
            cv2.imwrite(str(folder / copy), np.ascontiguousarray(changed), options)
        planted[copy] = (original, name)
    return planted


# Programs ---------------------------------------------------------------------------------------------------------

_REVIEW = """
import json, resource, sys, time
from pathlib import Path
from halofeed.inspection.review.copies import copy_groups
from halofeed.inspection.review.reviewed_set import ReviewedSet
start = time.process_time()
reviewed = ReviewedSet(sys.argv[1])
groups = [[reviewed.place(record).source for record in group.records] for group in copy_groups(reviewed)]
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("\\n" + json.dumps({"groups": groups, "cpu_s": time.process_time() - start, "mib": mib}))
"""
_PEERS = {
    "CleanVision": """
from cleanvision import Imagelab
start = time.process_time()
lab = Imagelab(data_path=folder)
lab.find_issues({"exact_duplicates": {}, "near_duplicates": {}}, n_jobs=1, verbose=False)
groups = [one for name in ("exact_duplicates", "near_duplicates") for one in lab.info[name]["sets"]]
""",
    **{
        f"imagededup {name}": f"""
from imagededup.methods import {name}
start = time.process_time()
files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.*"))
method = {name}(verbose=False)
hashes = {{file: code for file in files if (code := method.encode_image(str(Path(folder, file))))}}
found = method.find_duplicates(encoding_map=hashes, max_distance_threshold=10, num_dist_workers=0)
groups = [[one, other] for one, others in found.items() for other in others]
"""
        for name in ("PHash", "DHash", "WHash")
    },
    "fastdup": """
import os, tempfile
os.environ["SENTRY_OPT_OUT"] = "True"
import fastdup
start = time.process_time()
data = fastdup.create(work_dir=tempfile.mkdtemp(), input_dir=folder)
data.run(overwrite=True, num_threads=1, print_summary=False, verbose=False, threshold=0.9)
found = data.similarity()
found = found[found["distance"] >= 0.96]
groups = found[["filename_from", "filename_to"]].values.tolist()
""",
}
_BEFORE = """
import json, resource, sys, time
from pathlib import Path
folder = sys.argv[1]
"""
_AFTER = """
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("\\n" + json.dumps({"groups": groups, "cpu_s": time.process_time() - start, "mib": mib}))
"""


def _run(python: str, code: str, argument: Path, root: Path) -> Result | None:
    """Return what a program finds; None if the interpreter lacks it."""
    done = subprocess.run([python, "-c", code, str(argument)], capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{done.stdout[-1000:]}{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    groups = ([_relative(name, root) for name in group] for group in found["groups"])
    pairs = frozenset(frozenset(pair) for group in groups for pair in combinations(sorted(set(group)), 2))
    return Result(pairs=pairs, cpu_s=found["cpu_s"], mib=found["mib"])


def _relative(name: str, root: Path) -> str:
    path = Path(name)
    return str(path.resolve().relative_to(root.resolve())) if path.is_absolute() else name


def convert(source: Path, out: Path) -> tuple[Path, float]:
    """Convert a folder; return the data set and the processor time in seconds."""
    command = [sys.executable, "-m", "halofeed", "convert", "--layout", "folders", "--source", str(source)]
    command += ["--out", str(out), "--name", "copies", "--resize", "keep-aspect", "--pad", "--workers", "1"]
    command += ["--min-dimension", str(_SIDE), "--max-dimension", str(_SIDE)]
    timed = ["import resource, subprocess, sys", "done = subprocess.run(sys.argv[1:], stdout=sys.stderr)"]
    timed += ["used = resource.getrusage(resource.RUSAGE_CHILDREN)", "print(used.ru_utime + used.ru_stime)"]
    timed += ["sys.exit(done.returncode)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(timed), *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return out / "copies" / "1.0.0", float(done.stdout)


def run_all(data: Path, source: Path | None, peers: str | None) -> dict[str, Result]:
    """Return what each program finds."""
    ours = _run(sys.executable, _REVIEW, data, source or data)
    assert ours is not None
    results = {"halofeed": ours}
    if source and peers:
        for name, code in _PEERS.items():
            if (result := _run(peers, _BEFORE + code + _AFTER, source, source)) is None:
                print(f"{name}: not installed in {peers}")
            else:
                results[name] = result
    return results


# Tables -----------------------------------------------------------------------------------------------------------


def _print_rows(rows: Mapping[str, Sequence[str]], names: Iterable[str]) -> None:
    print(f"\n| {'':<28} | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(next(iter(rows.values()))))
    for label, cells in rows.items():
        print(f"| {label:<28} | " + " | ".join(cells) + " |")


def _costs(results: Mapping[str, Result]) -> dict[str, list[str]]:
    return {
        "processor time, s": [f"{one.cpu_s:.1f}" for one in results.values()],
        "peak memory, MiB": [f"{one.mib:.0f}" for one in results.values()],
    }


def compare_planted(given: argparse.Namespace) -> None:
    """Print the recall of each kind of copy, and the pairs of two photographs that were called copies."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "pictures"
        planted = plant(given.source, folder, given.each, given.clean, given.seed)
        data, cpu_s = convert(folder, Path(scratch) / "out")
        results = run_all(data, folder, given.peers)
    of_kind = defaultdict(list)
    for copy, (original, kind) in planted.items():
        of_kind[kind].append(frozenset({copy, original}))
    rows = {
        kind: [f"{np.mean([pair in one.pairs for pair in pairs]):.2f}" for one in results.values()]
        for kind, pairs in of_kind.items()
    }
    true = {pair for pairs in of_kind.values() for pair in pairs}
    rows["pairs of two photographs"] = [str(len(one.pairs - true)) for one in results.values()]
    _print_rows({**rows, **_costs(results)}, results)
    print(f"{len(planted)} copies; the conversion took {cpu_s:.1f} s of processor time")
    if given.list:
        for name, one in results.items():
            print(name, sorted(map(sorted, one.pairs - true)))


def compare_known(given: argparse.Namespace) -> None:
    """Print how many known pairs each program finds."""
    with given.pairs.open(newline="") as stream:
        known: list[tuple[str, ...]] = [tuple(row) for row in csv.reader(stream)]
    wrong = [row for row in known if len(row) < 2]
    if wrong:
        raise SystemExit(f"{given.pairs}: expected two file names in each row, got {wrong[0]}")
    results = run_all(given.data, given.source, given.peers)
    kinds: Mapping[str, list[tuple[str, ...]]] = defaultdict(list)
    for row in known:
        kinds[row[2] if len(row) > 2 else "known pairs"].append(row)
    rows: dict[str, list[str]] = {}
    for kind, pairs in sorted(kinds.items()):
        sets = [frozenset(pair[:2]) for pair in pairs]
        rows[kind] = [f"{sum(pair in one.pairs for pair in sets)} of {len(sets)}" for one in results.values()]
    rows["all pairs"] = [str(len(one.pairs)) for one in results.values()]
    _print_rows({**rows, **_costs(results)}, results)


def main() -> None:
    """Print the table of a comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    planted = commands.add_parser("planted", help="copies of every kind")
    planted.add_argument("--source", type=Path, default=SOURCE, help="folder of photographs")
    planted.add_argument("--each", type=int, default=20, help="copies of each kind")
    planted.add_argument("--clean", type=int, default=400, help="photographs without a copy")
    planted.add_argument("--seed", type=int, default=0)
    planted.add_argument("--list", action="store_true", help="name the pairs of two photographs")
    planted.set_defaults(run=compare_planted)
    known = commands.add_parser("known", help="pairs that are known")
    known.add_argument("--data", type=Path, required=True, help="converted data set")
    known.add_argument(
        "--pairs", type=Path, required=True, help="CSV file: two file names, and a kind if there are several"
    )
    known.add_argument("--source", type=Path, help="folder of the pictures, for the other programs")
    known.set_defaults(run=compare_known)
    for command in (planted, known):
        command.add_argument("--peers", metavar="PYTHON", help="interpreter with the other programs")
    given: Any = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
