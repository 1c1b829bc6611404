"""Measure splitting an image and whether steps wait for input, on virtual devices of this processor.

    python benchmarks/partition.py [--steps 4] [--only retinanet unet] [--no-input] [--large]

It takes about three minutes on two cores.

First table: one training step of the same global batch on the same devices, with p cores per replica: p = 1 gives each
device whole images, p = 8 splits each image over all of them, by rows (of volumes, by depth, or by depth and height).
The work is the same, and so are the processor's cores that the virtual devices share: the ratio to p = 1 shows what
splitting costs here, not how much faster an image is done. Beside it, how many collectives of each kind the compiled
program holds; a TPU's compiler chooses others. The rounds of all p are interleaved, and a time is the median.

Second table: a data set is drawn and converted, and a detector is trained on it by the trainer's own loop, which makes
batches ahead. The share of the time that steps waited for a batch leaves the first step out. Beside it, how many
batches a second the loader gives where nobody else works.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.trainer.platform import configure_platform

DEVICES = 8
BATCH = 8
COLLECTIVES = ("collective-permute", "all-reduce", "all-gather", "all-to-all", "reduce-scatter")
FRAMES = {"drawn at 128": 128, "drawn at 256": 256}
SMALL_RETINANET = {"width": 8, "blocks": [1, 1, 1, 1], "features": 32, "last_level": 5, "tower_depth": 1}


@dataclass(frozen=True)
class Workload:
    """A model, its images, and how they are split over p cores."""

    model: str
    task: str
    image_shape: tuple[int, ...]
    splits: Mapping[int, Sequence[int]]
    options: Mapping[str, Any] = field(default_factory=dict)


BY_ROWS = {2: (1, 2, 1, 1), 4: (1, 4, 1, 1), 8: (1, 8, 1, 1)}
WORKLOADS = {
    "classifier": Workload("classifier", "classification", (128, 128, 3), BY_ROWS),
    "retinanet": Workload("retinanet", "detection", (128, 128, 3), BY_ROWS, SMALL_RETINANET),
    "unet": Workload(
        "unet",
        "segmentation",
        (32, 32, 32, 1),
        {2: (1, 2, 1, 1, 1), 4: (1, 4, 1, 1, 1), 8: (1, 4, 2, 1, 1)},
        {"depth": 3, "width": 8},
    ),
}


def main() -> None:
    arguments = parse_arguments()
    configure_platform(DEVICES)
    print(
        f"{DEVICES} virtual devices share this machine's cores: ratios show what splitting costs, not a gain.\n"
    )
    for name in arguments.only or WORKLOADS:
        print_steps(name, WORKLOADS[name], arguments.steps)
    if not arguments.no_input:
        print_input(len(FRAMES) if arguments.large else 1, arguments.steps)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each program (default: 4)")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="which models to split (default: all)")
    parser.add_argument("--no-input", action="store_true", help="leave the second table out")
    parser.add_argument("--large", action="store_true", help="larger pictures in the second table too")
    return parser.parse_args()


def print_steps(name: str, workload: Workload, steps: int) -> None:
    """A line for each number of cores per replica."""
    size = " x ".join(map(str, workload.image_shape[:-1]))
    print(f"{name}, {size}, global batch {BATCH} on {DEVICES} devices, float32")
    print(
        f"{'cores per replica':24}{'step':>9}{'ratio':>8}   " + "".join(f"{kind:>20}" for kind in COLLECTIVES)
    )
    programs = {parts: compiled(workload, parts) for parts in (1, *workload.splits)}
    seconds: dict[int, list[float]] = {parts: [] for parts in programs}
    for number in range(steps + 1):
        for parts, (take_step, _) in programs.items():
            taken = take_step()
            if number:
                seconds[parts].append(taken)
    for parts, (_, counts) in programs.items():
        median = statistics.median(seconds[parts])
        dims = "x".join(map(str, workload.splits[parts][1:-1])) if parts > 1 else "whole images"
        ratio = median / statistics.median(seconds[1])
        listed = "".join(f"{counts[kind]:>20}" for kind in COLLECTIVES)
        print(f"{f'{parts}  ({dims})':24}{1000 * median:>6.0f} ms{ratio:>8.2f}   {listed}", flush=True)
    print()


def compiled(workload: Workload, parts: int) -> tuple[Callable[[], float], Counter[str]]:
    """What takes a step and gives its seconds, and how many collectives of each kind it holds."""
    import jax

    from halofeed.loader.mesh_batches import mesh_specs, place_batch
    from halofeed.trainer.config import TrainConfig
    from halofeed.trainer.mesh import make_mesh
    from halofeed.trainer.optimizers import build_optimizer
    from halofeed.trainer.step import compile_step, new_state
    from halofeed.trainer.training_setup import batch_partition, build_training_setup

    config = TrainConfig(
        model=workload.model,
        model_options=workload.options,
        compute_dtype="float32",
        learning_rate=1e-3,
        cores_per_replica=parts,
        partition="image=" + ",".join(map(str, workload.splits[parts])) if parts > 1 else "",
    )
    mesh = make_mesh(parts)
    problem = build_training_setup(config, facts_of(workload), mesh)
    optimizer, _ = build_optimizer(config)
    state = new_state(problem, optimizer, 0)
    arrays = draw_batch(workload)
    shapes = {key: value.shape for key, value in arrays.items()}
    specs = mesh_specs(mesh, batch_partition(config.parsed_partition(), problem.task), shapes)
    batch = place_batch(
        mesh, specs, shapes, lambda start, stop: {key: value[start:stop] for key, value in arrays.items()}
    )
    program = compile_step(problem, optimizer).lower(state, batch).compile()

    def take_step() -> float:
        nonlocal state
        started = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, batch))
        return time.perf_counter() - started

    return take_step, count_collectives(program.as_text() or "")


def count_collectives(text: str) -> Counter[str]:
    """How often each collective is called in a program's HLO text.

    >>> sorted(count_collectives("%a = f32[] all-reduce(%b)  %c = (s8[], s8[]) all-gather-start(%a)").items())
    [('all-gather', 1), ('all-reduce', 1)]
    """
    return Counter(re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", text))


def facts_of(workload: Workload) -> Any:
    from halofeed.trainer.task import DataFacts

    channels = workload.image_shape[-1]
    return DataFacts(
        task=workload.task,
        kind="volume" if len(workload.image_shape) == 4 else "picture",
        labels={1: "disc", 2: "square", 3: "triangle"}
        | ({} if workload.task == "detection" else {0: "ground"}),
        image_shape=workload.image_shape,
        mean=(128.0,) * channels,
        std=(64.0,) * channels,
    )


def draw_batch(workload: Workload) -> dict[str, np.ndarray[Any, Any]]:
    """Noise with labels, as the loader would give them."""
    generator = np.random.default_rng(0)
    shape = (BATCH, *workload.image_shape)
    batch = {"image": generator.integers(0, 256, shape).astype(np.uint8)}
    if workload.task == "classification":
        return {**batch, "label": generator.integers(0, 4, BATCH).astype(np.int32)}
    if workload.task == "segmentation":
        return {**batch, "label": generator.integers(0, 4, shape[:-1]).astype(np.uint8)}
    corner, size = generator.uniform(0, 0.6, (BATCH, 8, 2)), generator.uniform(0.1, 0.4, (BATCH, 8, 2))
    return {
        **batch,
        "boxes": np.concatenate([corner, corner + size], -1).astype(np.float32),
        "classes": generator.integers(1, 4, (BATCH, 8)).astype(np.int32),
        "num_boxes": np.full(BATCH, 8, np.int32),
        "is_crowd": np.zeros((BATCH, 8), bool),
    }


def print_input(sizes: int, steps: int) -> None:
    """Train on drawn pictures, and say how long the steps waited for them."""
    print("input: RetinaNet on drawn pictures, batch 8, each split over 4 cores by rows")
    print(f"{'pictures':16}{'loader alone':>16}{'training':>16}{'waiting for input':>20}")
    with tempfile.TemporaryDirectory() as folder:
        from halofeed.demo import draw_data_set

        source = Path(folder) / "source"
        draw_data_set(source, 60)
        for name, side in list(FRAMES.items())[:sizes]:
            data = convert(source, Path(folder) / "data", side)
            rate, summary = loader_rate(data), train_on(data, 4 * steps)
            print(
                f"{name:16}{rate:>9.0f} img/s{summary.images_per_second:>10.1f} img/s{summary.waiting_share:>20.2%}",
                flush=True,
            )


def convert(source: Path, out: Path, side: int) -> Path:
    """The drawn pictures as a data set of side x side pixels."""
    name = f"shapes{side}"
    subprocess.run(
        [
            *(sys.executable, "-m", "halofeed", "convert", "--layout", "coco", "--source", str(source)),
            *("--out", str(out), "--name", name, "--resize", "keep-aspect", "--pad", "--encoding", "raw"),
            *("--min-dimension", str(side), "--max-dimension", str(side), "--max-boxes", "8"),
        ],
        check=True,
        capture_output=True,
    )
    return out / name / "1.0.0"


def loader_rate(data: Path, batches: int = 100) -> float:
    """Images a second that the loader gives on the host, after a warm-up."""
    from halofeed.loader import Loader

    loader = Loader(data, batch_size=BATCH)
    for step in range(5):
        loader.batch(step)
    started = time.perf_counter()
    for step in range(5, 5 + batches):
        loader.batch(step)
    return batches * BATCH / (time.perf_counter() - started)


def train_on(data: Path, steps: int) -> Any:
    """The summary of a run that neither evaluates nor keeps anything."""
    from halofeed.trainer.config import TrainConfig
    from halofeed.trainer.data import open_data
    from halofeed.trainer.tasks import build_task
    from halofeed.trainer.train import train

    config = TrainConfig(
        model="retinanet",
        model_options=SMALL_RETINANET,
        augment=({"name": "FlipLeftRight"},),
        steps=steps,
        batch_size=BATCH,
        learning_rate=1e-3,
        compute_dtype="float32",
        cores_per_replica=4,
        partition="image=1,4,1,1",
    )
    opened = open_data(
        config, data, "train", lambda facts: build_task(facts, config.options_of_task, config.task)
    )
    return train(config, replace(opened, evaluation=None), stream=io.StringIO())


if __name__ == "__main__":
    main()
