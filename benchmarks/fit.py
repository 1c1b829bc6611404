"""List what fits on which TPU, what its cores exchange, and from which size on, by the TPU's compiler.

    python benchmarks/fit.py [--known] [--only PART ...] [--table fit|scaling|sizes] [--jobs N]

No TPU is needed, but the compiler: pip install 'halofeed[plan]'. The programs are those that `halofeed train` runs, of
every recipe. A program takes the compiler two to ten minutes of a processor, the whole table some hours on two cores;
what was compiled once is remembered (HALOFEED_PLAN_CACHE), so that the table can be filled in parts, and asking again
takes seconds. `--known` compiles nothing and says which rows are not known yet.

First table: each recipe at its published size and batch, unsplit or split as it says, with what the published systems
and our sketch promise. Second: the headline rows over 1 to 16 cores; `links` is the time that a core's links need at
least for what it sends, beside the least time of a step without them. `power` is by which power of the cores memory
falls from the split above: 1 is in proportion. Third: the headline splits at smaller images, until the links need
more than a tenth of the step.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from halofeed.trainer.config import load_config
from halofeed.trainer.plan.compiling import UNKNOWN, CompileCache, cache_folder, jobs_at_once
from halofeed.trainer.plan.document import plan_config
from halofeed.trainer.plan.requests import Request

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One program, what it promises to be, and in how much memory a sketch was; `size` () is the config's own."""

    config: str
    topology: str
    cores: int
    images: int
    size: tuple[int, ...] = ()
    promise: str = ""
    sketch_gib: float | None = None
    settings: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.size)) if self.size else ""
        return f"{self.config} {size}".strip()


ALL_AT_ONCE = ("remat=false", "model.images_at_once=0")
"""Settings of the U-Net 256 x 256 x 256 for the scaling of one volume."""

FIT = (
    Row("retinanet_resnet50_fpn_1280", "v3-8", 1, 8, promise="fits", sketch_gib=13.3),
    Row("retinanet_resnet50_fpn_2560_8way", "v3-8", 1, 8, promise="does not fit", sketch_gib=30.7),
    Row("retinanet_resnet50_fpn_2560_8way", "v3-8", 8, 8, promise="fits with 3 % to spare"),
    Row("unet3d_tpu_256_16way", "v3-16", 16, 8, promise="fits with 3 % to spare"),
    Row("unet3d_256_16way", "v3-16", 16, 8, promise="fits with 3 % to spare"),
    Row("unet3d_256_16way", "v3-8", 1, 1, promise="does not fit", settings=ALL_AT_ONCE),
    Row("unet3d_128", "v3-8", 1, 4, promise="fits at the published batch of 32"),
    Row("retinanet_resnet50_fpn_640", "v3-8", 1, 8, promise="fits"),
    Row("retinanet_mobilenet_v1_fpn_640", "v3-8", 1, 8, promise="fits"),
    Row("ssd_mobilenet_v1_300", "v3-8", 1, 128, promise="fits"),
    Row("ssd_mobilenet_v1_ppn_300", "v3-8", 1, 64, promise="fits"),
    Row("retinanet_small", "v3-8", 4, 8, (128, 128, 3), "fits"),
    Row("unet3d_small", "v3-8", 4, 4, (24, 24, 24, 1), "fits"),
    Row("unet2d_small", "v3-8", 4, 8, (128, 128, 3), "fits"),
    Row("classifier_small", "v3-8", 4, 32, (96, 96, 3), "fits"),
)
HEADLINES = (
    ("retinanet_resnet50_fpn_1280", 8),
    ("retinanet_resnet50_fpn_2560_8way", 8),
    ("unet3d_128", 4),
    ("unet3d_256_16way", 1),
)
"""Config and images a replica."""
SPLITS = {1: "v3-8", 2: "v3-8", 4: "v3-8", 8: "v3-8", 16: "v3-16"}
"""Cores of a replica, and the machine."""
SIZES = (
    ("retinanet_resnet50_fpn_2560_8way", 8, 8, ((), (1280, 1280, 3), (640, 640, 3), (320, 320, 3))),
    ("unet3d_256_16way", 16, 1, ((), (128, 128, 128, 1), (64, 64, 64, 1), (32, 32, 32, 1))),
)
"""Config, cores of a replica, images of it, and sizes, the first the config's own."""


def scaling_rows() -> list[Row]:
    """The headline rows over more and more cores."""
    return [
        Row(config, SPLITS[cores], cores, images, settings=_settings(config))
        for config, images in HEADLINES
        for cores in SPLITS
    ]


def _settings(config: str) -> tuple[str, ...]:
    return ALL_AT_ONCE if config == "unet3d_256_16way" else ()


def size_rows() -> list[Row]:
    """The headline splits at smaller and smaller sizes."""
    return [
        Row(config, SPLITS[cores], cores, images, size, settings=_settings(config))
        for config, cores, images, sizes in SIZES
        for size in sizes
    ]


ROWS: dict[str, Callable[[], Sequence[Row]]] = {
    "fit": lambda: FIT,
    "scaling": scaling_rows,
    "sizes": size_rows,
}


def main() -> int:
    arguments = parse_arguments()
    cache = CompileCache(cache_folder())

    def known(row: Row) -> dict[str, Any]:
        return compiled(row, cache, arguments)

    tables = {"fit": print_fit, "scaling": print_scaling, "sizes": print_sizes}
    asked = [name for name in tables if arguments.table in (None, name)]
    if not arguments.known:
        rows = dict.fromkeys(chosen([row for name in asked for row in ROWS[name]()], arguments.only))
        with ThreadPoolExecutor(arguments.jobs or jobs_at_once()) as pool:
            list(pool.map(known, rows))
    for name in asked:
        tables[name](known, arguments.only)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--known", action="store_true", help="compile nothing")
    parser.add_argument("--only", nargs="+", default=(), metavar="PART", help="rows whose name holds a part")
    parser.add_argument(
        "--table", choices=("fit", "scaling", "sizes"), help="one of the three (default: all)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="compilers at once")
    return parser.parse_args()


def compiled(row: Row, cache: CompileCache, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the compiler says of a row: one split of a plan."""
    config = load_config(row.config)
    partition = config.partition if row.cores == config.cores_per_replica else ""
    changed = config.changed(
        row.settings,
        cores_per_replica=1 if not partition else row.cores,
        partition=partition,
        **({"image_shape": list(row.size)} if row.size else {}),
    )
    plan = plan_config(
        Request(config=changed, topology=row.topology),
        cores=(row.cores,),
        images_per_replica=row.images,
        cache=cache,
        tell=lambda line: print(f"  {row.name}, {line}", file=sys.stderr, flush=True),
        jobs=arguments.jobs,
        known_only=arguments.known,
    )
    split: dict[str, Any] = plan["splits"][0]
    return split


def print_fit(known: Any, only: Sequence[str]) -> None:
    print("What fits: each recipe at its published size and batch, per core\n")
    head = (
        "machine",
        "split",
        "images",
        "verdict",
        "GiB",
        "arguments",
        "TFLOP",
        "bytes",
        "gathers whole",
        "at best",
    )
    print(f"{'recipe':40}" + "".join(f"{word:>15}" for word in head) + "   promised")
    for row in chosen(FIT, only):
        split = known(row)
        cells = [row.topology, f"{row.cores}-way" if row.cores > 1 else "unsplit", str(row.images)]
        cells += verdict_cells(split)
        cells += [""] * (len(head) - len(cells))
        promised = row.promise + (f"; sketch {row.sketch_gib} GiB" if row.sketch_gib else "")
        print(f"{row.name:40}" + "".join(f"{cell:>15}" for cell in cells) + f"   {promised}", flush=True)
    print()


def verdict_cells(split: dict[str, Any]) -> list[str]:
    if "memory" not in split:
        return [split["refused"][:60]]
    memory = split["memory"]
    total = f"{memory['total'] / GIB:.2f}" if memory["total"] else "?"
    if not split["fits"]:
        return ["does not fit", total]
    arguments = memory["parameters"] + memory["optimizer"] + memory["batch"]
    finest = max((max(gather["result_shape"][1:-1]) for gather in split["whole_gathers"]), default=0)
    return [
        "fits",
        total,
        f"{arguments / GIB:.2f}",
        f"{split['flops'] / 1e12:.2f}",
        f"{split['bytes_accessed'] / 1e9:.1f} GB",
        f"{finest} at most" if finest else "none",
        f"{1000 * split['bound']['step']:.0f} ms",
    ]


def per_core_share(fewer: dict[str, Any], more: dict[str, Any]) -> float:
    """Return the power of p/q by which memory falls from p to q cores; 1 is proportional."""
    ratio = more["memory"]["total"] / fewer["memory"]["total"]
    return math.log(ratio) / math.log(fewer["cores"] / more["cores"])


def print_scaling(known: Any, only: Sequence[str]) -> None:
    print("What is sent: the headline rows over more cores, a core and a step\n")
    head = ("split", "verdict", "GiB", "power", "halos", "sums", "gathers", "links", "without", "share")
    for config, images in HEADLINES:
        rows = chosen([row for row in scaling_rows() if row.config == config], only)
        if not rows:
            continue
        print(f"{config}, {images} images a replica")
        print("".join(f"{word:>14}" for word in head))
        before: dict[str, Any] | None = None
        for row in rows:
            split = known(row)
            fits = bool(split["fits"])
            power = f"{per_core_share(before, split):.2f}" if before and fits else ""
            cells = [f"{row.cores}-way", *verdict_cells(split)[:2], power]
            if fits:
                cells += link_cells(split)
                before = split
            print("".join(f"{cell:>14}" for cell in cells), flush=True)
        print()


def link_cells(split: dict[str, Any]) -> list[str]:
    sent, bound = split["sent_bytes"], split["bound"]
    return [
        *(f"{sent[kind] / 1e6:.1f} MB" for kind in ("halos", "all-reduces", "gathers")),
        f"{1000 * bound['links']:.1f} ms",
        f"{1000 * max(bound['compute'], bound['memory']):.1f} ms",
        f"{100 * link_share(split):.1f} %",
    ]


def link_share(split: dict[str, Any]) -> float:
    """The least time of the links beside the least time of a step without them."""
    bound = split["bound"]
    return float(bound["links"] / max(bound["compute"], bound["memory"]))


def print_sizes(known: Any, only: Sequence[str]) -> None:
    print("From which size on the links need more than a tenth of a step\n")
    for config, cores, _, _ in SIZES:
        last = ""
        for row in chosen([row for row in size_rows() if row.config == config], only):
            split = known(row)
            if not split["fits"]:
                print(f"{row.name}: {split['refused'] or 'does not fit'}")
                if split["refused"] == UNKNOWN:
                    break
                continue
            share = link_share(split)
            print(f"{row.name}, {cores}-way: {100 * share:.1f} %", flush=True)
            if share > 0.1:
                print(f"passes a tenth between {last or 'larger sizes'} and {row.name}")
                break
            last = row.name
    print()


def chosen(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    return [row for row in rows if not only or any(part in row.name for part in only)]


if __name__ == "__main__":
    raise SystemExit(main())
