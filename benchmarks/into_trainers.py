"""Compare trainers' own loaders with ours: same pictures, same augmentation, in one run, and compare the boxes.

    pip install 'halofeed[convert]' torch torchvision pycocotools
    python benchmarks/into_trainers.py torchvision_detection

A module of benchmarks/own_loaders names what its trainer needs. Files are drawn once and are in the page cache. Rounds
of the two loaders alternate. A figure is the median of the rounds; the first batches of a round, in which workers
start, are not counted. "processor" is user and system time of this process and its workers, for each example.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from importlib import import_module, metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from own_loaders.comparison import Round, measure

NAMES = (
    "torchvision_detection",
    "ultralytics_yolo",
    "monai_volumes",
    "nnunet_patches",
    "keras_sequence",
    "rf_detr",
)

_SETTINGS = {
    "YOLO_OFFLINE": "true",
    "YOLO_VERBOSE": "false",
    "HF_HUB_OFFLINE": "1",
    "KERAS_BACKEND": "torch",
    **dict.fromkeys(("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"), "unused"),
}
"""What trainers read from the environment when they are imported; nothing is downloaded."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--count", type=int, default=768, help="pictures, or a sixteenth as many volumes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warm", type=int, default=8, help="batches that are not counted")
    parser.add_argument(
        "--scratch", type=Path, default=None, help="folder of the files, kept for the next run"
    )
    given = parser.parse_args()
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    module = import_module(f"own_loaders.{given.name}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.scratch or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found, cases = module.cases(folder, given.count)
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in module.PACKAGES)
        print(f"{versions}; {os.cpu_count()} cores\n{found}")
        print(
            f"{'':<44} {'own /s':>8} {'ours /s':>8} {'ratio':>6}  {'own ms':>7} {'ours ms':>7}  ratios by round"
        )
        for case in cases:
            rounds: list[tuple[Round, Round]] = []
            for number in range(given.rounds):
                makers = [case.own, case.ours]
                order = makers if number % 2 == 0 else makers[::-1]
                made = {make: measure(make, case, given.seconds, given.warm) for make in order}
                rounds.append((made[case.own], made[case.ours]))
            own, ours = (statistics.median(pair[side].rate for pair in rounds) for side in (0, 1))
            busy = [statistics.median(pair[side].processor_ms for pair in rounds) for side in (0, 1)]
            ratios = [second.rate / first.rate for first, second in rounds]
            print(
                f"{case.title:<44} {own:>8,.0f} {ours:>8,.0f} {statistics.median(ratios):>6.1f}  {busy[0]:>7.2f} "
                f"{busy[1]:>7.2f}  {' '.join(f'{ratio:.1f}' for ratio in ratios)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
