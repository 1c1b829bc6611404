"""Command `plan`, which finds the splits of a model that fit on a machine."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halofeed.auto_config import AUTO, check_minutes, configuring, plan_data, toml_of
from halofeed.options import add_settings, not_in_brief, text_of_setting
from halofeed.parser import Command, CommandParser
from halofeed.system.console import print_status
from halofeed.system.errors import UsageError, require_extra
from halofeed.training import check_file

if TYPE_CHECKING:
    from halofeed.trainer.auto.judges import CompilingJudge, Configure
    from halofeed.trainer.plan.pictures import Pictures
    from halofeed.trainer.plan.requests import Request

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax", "libtpu")
_OWN = ("model", "task")
_OF_PICTURES = ("pictures", "tile_sizes", "tile_overlap", "object_size")

PLAN_EXAMPLE = """\
examples:
  a published recipe on eight cores of TPU v3, without a TPU and without data:
    halofeed plan --config retinanet_resnet50_fpn_2560_8way --topology v3-8 --images-per-replica 8

  your own data set, three splits, as a page:
    halofeed plan data/spleen/1.0.0 --config unet3d_128 --topology v5e-16 --cores-per-replica 1,4,8 --html plan.html

  the largest picture that fits at each split:
    halofeed plan --config retinanet_resnet50_fpn_640 --topology v3-8 --images-per-replica 1 --search side

  tiles, or one picture split over cores, for 500 pictures of 20,000 x 20,000 with objects of up to 200 pixels:
    halofeed plan --config retinanet_resnet50_fpn_640 --picture-size 20000,20000 --pictures 500 --object-size 200

  the TPUs to plan for:
    halofeed plan --topologies

For each split the machine's own compiler compiles the program that `halofeed train` would run. It needs only
the extra `plan` (docs/install.md). A large model takes one to ten minutes on a processor. Results are cached.
Exit status: 0 something fits, 1 nothing does, 2 wrong usage.
"""


def _add_plan(parser: CommandParser) -> None:
    # One line, so that the usual options fit a screen of 80 columns.
    parser.usage = "halofeed plan [options] [FOLDER]"
    parser.add_argument(
        "data",
        metavar="FOLDER",
        nargs="?",
        help="a data set's version (default: the config's own size)",
    )
    parser.add_argument("--split", default="train", help="split to train on (default: train)")
    parser.add_argument(
        "--config",
        metavar="NAME",
        help="a recipe of `halofeed configs`, a .toml file or a pipeline.config (default: train's)",
    )
    add_settings(parser, "batch_size=16, image_shape=[512,512,3]")
    for name in _OWN:
        own = f"a {name} of your own, as in train"
        not_in_brief(parser.add_argument(f"--{name}", metavar="PACKAGE:CLASS", help=own))
    parser.add_argument(
        "--auto", action="store_true", help="plan the network from the data set too, as train --config auto"
    )
    minutes = parser.add_argument(
        "--minutes", type=float, metavar="N", help="with --auto: time to train for (default: 120 on a TPU)"
    )
    toml = parser.add_argument(
        "--toml", metavar="FILE", help="with --auto: also write the configuration, for train --config FILE"
    )
    not_in_brief(minutes, toml)
    parser.add_argument("--remat", action="store_true", help="as in train: recompute activations")
    parser.add_argument(
        "--topology",
        default="v3-8",
        metavar="NAME",
        help="v2-8, v3-8, v3-64, v4-8, v5e-16, v5p-8, v6e-8, tpu7x-8 and larger; the grid of the chips, v3:4x8; "
        "cpu:8 for virtual devices; gpu:1 for GPUs here (default: v3-8)",
    )
    parser.add_argument(
        "--topologies",
        action="store_true",
        help="only list the TPUs that the compiler here knows",
    )
    parser.add_argument(
        "--cores-per-replica",
        type=_numbers,
        default=(),
        metavar="N,N,...",
        help="splits to compile (default: 1,2,4,8,16 to its cores)",
    )
    parser.add_argument(
        "--images-per-replica",
        type=int,
        metavar="N",
        help="default: the recipe's batch; 1 with --picture-size",
    )
    classes = parser.add_argument(
        "--classes",
        type=int,
        default=0,
        metavar="N",
        help="number of classes without a data set (default: a usual number)",
    )
    parser.add_argument(
        "--search",
        choices=("side", "batch", "depth"),
        help="find the largest that fits at each split",
    )
    parser.add_argument(
        "--savings", action="store_true", help="also what --remat and smaller optimizers save"
    )
    _add_pictures(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the plan to this file; - prints only the plan"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the plan as a page")
    jobs = parser.add_argument(
        "--jobs", type=int, metavar="N", help="parallel compilations (default: by cores and memory)"
    )
    not_in_brief(classes, jobs)


def _add_pictures(parser: CommandParser) -> None:
    parser.add_argument(
        "--picture-size",
        type=_numbers,
        metavar="H,W",
        help="compare tiles of pictures of this size in pixels with splits of the picture over cores",
    )
    pictures = parser.add_argument(
        "--pictures", type=int, metavar="N", help="with --picture-size: pictures in an epoch (default: 1)"
    )
    sizes = parser.add_argument(
        "--tile-sizes",
        type=_sizes,
        metavar="N,HxW,...",
        help="with --picture-size: the tiles to compare (default: 512,1024,2048)",
    )
    overlap = parser.add_argument(
        "--tile-overlap",
        type=_numbers,
        metavar="H,W",
        help="with --picture-size: minimum overlap of neighbors (default: --object-size, else 128)",
    )
    longest = parser.add_argument(
        "--object-size",
        type=int,
        metavar="N",
        help="with --picture-size: longest side of the largest object, which a tile must show whole",
    )
    not_in_brief(pictures, sizes, overlap, longest)


def run_plan(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed plan`."""
    if parsed.topologies:
        return _list_topologies(parsed)
    _check_plan(parsed)
    plan = _make_auto_plan(parsed) if parsed.auto else _make_plan(parsed, _request(parsed))
    plan["command"] = shlex.join(["halofeed", "train", parsed.data or "FOLDER", *_config_arguments(parsed)])
    _write_plan(parsed, plan)
    if parsed.json == "-":
        _write_json(parsed, plan)
    elif parsed.picture_size:
        from halofeed.inspection.picture_plan import describe_picture_plan

        print(describe_picture_plan(plan))
    else:
        from halofeed.inspection.plan_report import describe_plan

        print(*plan.get("auto", {}).get("lines", ()), sep="\n")
        print(describe_plan(plan))
    return 0 if plan["recommended"] is not None else 1


def _list_topologies(parsed: argparse.Namespace) -> int:
    """List what the TPU's compiler compiles for, by asking it once for each of its versions."""
    check_file("--json", parsed.json)
    # The list is about the machine of the compiler, not about an accelerator of this one, which may be in use.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with require_extra("plan", *_LIBRARIES):
        from halofeed.trainer.plan.compiling import CompileCache, cache_folder
        from halofeed.trainer.plan.known_topologies import known_topologies
    from halofeed.inspection.plan_report import describe_topologies

    known = known_topologies(CompileCache(cache_folder()))
    _write_json(parsed, known)
    if parsed.json != "-":
        print(describe_topologies(known))
    return 0


def _write_json(parsed: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """Write what `--json` asks for; a program reads it from standard output, where nothing else may be then."""
    from halofeed.storage.atomic_files import atomic_write

    if parsed.json == "-":
        print(json.dumps(document, indent=1))
    elif parsed.json:
        atomic_write(Path(parsed.json), (json.dumps(document, indent=1) + "\n").encode())


def _check_plan(parsed: argparse.Namespace) -> None:
    """Refuse wrong options before the first compilation, which may take minutes."""
    check_minutes(parsed, is_auto=parsed.auto, flag="--auto")
    _check_auto(parsed)
    for flag in ("--json", "--html", "--toml"):
        check_file(flag, getattr(parsed, flag[2:]))
    for flag in ("jobs", "images_per_replica", "pictures", "object_size"):
        value = getattr(parsed, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag.replace('_', '-')} {value}: expected 1 or more")
    _check_pictures(parsed)


def _check_auto(parsed: argparse.Namespace) -> None:
    """Refuse options that --auto needs or decides."""
    if not parsed.auto:
        if parsed.toml is not None:
            raise UsageError(f"--toml {parsed.toml}: has an effect only with --auto; add it")
        return
    if parsed.data is None:
        raise UsageError(
            "--auto: needs a data set; name its folder, as in `halofeed plan data/spleen/1.0.0 --auto`"
        )
    decided = ("config", "picture_size", "search", "images_per_replica", "cores_per_replica", "savings")
    if given := [name for name in decided if getattr(parsed, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')}: --auto decides this itself; leave one of them out")


def _check_pictures(parsed: argparse.Namespace) -> None:
    """Refuse wrong sizes, options without the picture size that they need, and options that would have no effect."""
    if parsed.picture_size is None:
        for flag in _OF_PICTURES:
            if getattr(parsed, flag) is not None:
                raise UsageError(
                    f"--{flag.replace('_', '-')}: needs --picture-size, such as --picture-size 20000,20000"
                )
        return
    for flag in ("search", "savings"):
        if getattr(parsed, flag):
            raise UsageError(f"--{flag}: has no effect with --picture-size; leave one of them out")
    for flag, least in (("picture_size", 1), ("tile_overlap", 0)):
        value = getattr(parsed, flag)
        if value is not None and (len(value) != 2 or min(value) < least):
            given, name = ",".join(map(str, value)), flag.replace("_", "-")
            example = f"{value[0]},{value[0]}" if len(value) == 1 and value[0] >= least else "128,128"
            raise UsageError(f"--{name} {given}: expected height,width in pixels, such as --{name} {example}")


def _write_plan(parsed: argparse.Namespace, plan: Mapping[str, Any]) -> None:
    """Write the plan to the files that the command line names, and beside the data set, whose report shows it."""
    from halofeed.storage.atomic_files import atomic_write

    # The data set's report shows its splits, not those for pictures of another size.
    if parsed.data is not None and parsed.picture_size is None:
        from halofeed.schemas.bounded_json import with_json_checksum
        from halofeed.schemas.file_layout import plan_file

        atomic_write(plan_file(parsed.data), (json.dumps(with_json_checksum(plan), indent=1) + "\n").encode())
    if parsed.json != "-":
        _write_json(parsed, plan)
    if parsed.html and parsed.picture_size:
        from halofeed.inspection.picture_plan import write_picture_plan_page

        write_picture_plan_page(plan, parsed.html)
    elif parsed.html:
        from halofeed.inspection.plan_report import write_plan_page

        write_plan_page(plan, parsed.html)


def _make_plan(parsed: argparse.Namespace, request: Request) -> dict[str, Any]:
    from halofeed.trainer.plan.compiling import CompileCache, cache_folder
    from halofeed.trainer.plan.document import plan_config

    how: dict[str, Any] = {"cache": CompileCache(cache_folder()), "jobs": parsed.jobs}
    how["tell"] = lambda line: print_status(f"halofeed plan: {line}")
    if parsed.picture_size:
        from halofeed.trainer.plan.pictures import plan_pictures

        how["images_per_replica"] = parsed.images_per_replica or 1
        return plan_pictures(request, _pictures(parsed, request), cores=parsed.cores_per_replica, **how)
    plan = plan_config(
        request, cores=parsed.cores_per_replica, images_per_replica=parsed.images_per_replica, **how
    )
    if parsed.savings:
        from halofeed.trainer.plan.search import savings

        plan["savings"] = savings(request, plan, **how)
    if parsed.search:
        from halofeed.trainer.plan.search import search

        plan["search"] = search(request, plan, parsed.search, **how)
    return plan


def _make_auto_plan(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the plan of the configuration that --auto chooses, with the reasons in its member `auto`."""
    from halofeed.trainer.plan.requests import check_compiler
    from halofeed.trainer.plan.topologies import topology_named

    topology = topology_named(parsed.topology)
    check_compiler(topology)
    # The compiler of another machine runs on this processor; an accelerator here may be in use.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with require_extra("plan", *_LIBRARIES):
        from halofeed.trainer.auto.judges import CompilingJudge, machine_of
    from halofeed.schemas.manifest import read_manifest
    from halofeed.trainer.auto.plan_auto import MINUTES, Planner
    from halofeed.trainer.plan.compiling import CompileCache, cache_folder

    manifest = read_manifest(parsed.data)
    minutes = parsed.minutes or MINUTES[topology.platform]
    given = {key: value for key in (*_OWN, "remat") if (value := getattr(parsed, key))}
    judges: list[CompilingJudge] = []

    def judge_of(configure: Configure) -> CompilingJudge:
        judge = CompilingJudge(
            configure=configure,
            path=parsed.data,
            split=parsed.split,
            topology=topology.name,
            cache=CompileCache(cache_folder()),
            tell=lambda line: print_status(f"halofeed plan: {line}"),
            jobs=parsed.jobs,
        )
        judges.append(judge)
        return judge

    planner = Planner(
        machine=machine_of(topology),
        seconds=60 * minutes,
        configure=configuring(parsed.settings, given),
        judge_of=judge_of,
    )
    found = plan_data(manifest, parsed.data, parsed.split, planner)
    config = planner.configure(found.recipe, found.changes)
    # The chosen program is in the cache, so nothing is compiled again.
    document = judges[0].plan(found.chosen.candidate)
    document["config"] = config.to_json()
    document["auto"] = {"recipe": found.recipe, "minutes": minutes, "lines": list(found.lines)}
    if parsed.toml:
        from halofeed.storage.atomic_files import atomic_write

        atomic_write(Path(parsed.toml), toml_of(config, tuple(found.lines)).encode())
    return document


def _pictures(parsed: argparse.Namespace, request: Request) -> Pictures:
    """Return the pictures of the command line."""
    from halofeed.trainer.plan.pictures import USUAL_OVERLAP, Pictures, usual_tile_sizes

    side = parsed.object_size or USUAL_OVERLAP
    overlap = (side, side) if parsed.tile_overlap is None else parsed.tile_overlap
    sizes = parsed.tile_sizes or usual_tile_sizes(parsed.picture_size, overlap, request.config)
    return Pictures(
        size=parsed.picture_size,
        count=parsed.pictures or 1,
        tile_sizes=sizes,
        overlap=overlap,
        object_size=parsed.object_size or 0,
    )


def _request(parsed: argparse.Namespace) -> Request:
    """Return the request of the command line: a config, a machine, and a data set if one is named."""
    from halofeed.trainer.config import configure, default_config
    from halofeed.trainer.plan.requests import Request, check_compiler
    from halofeed.trainer.plan.topologies import topology_named

    check_compiler(topology_named(parsed.topology))
    if parsed.data is None and parsed.config is None:
        raise UsageError(
            "--config: name a recipe of `halofeed configs`, or the folder of a data set to plan for"
        )
    name = parsed.config
    if name is None:
        from halofeed.schemas.manifest import read_manifest

        name = default_config(read_manifest(parsed.data))
    given = {key: value for key in (*_OWN, "remat") if (value := getattr(parsed, key))}
    config = configure(name, parsed.settings, **given)
    if parsed.data is None:
        return Request(config=config, topology=parsed.topology, classes=parsed.classes)
    # The compiler of another machine runs on this processor; an accelerator here may be in use.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with require_extra("plan", *_LIBRARIES):
        from halofeed.trainer.auto.judges import request_of_data
    # Only the shapes of one record are read; the plan sets the batch of each split itself.
    one = config if parsed.images_per_replica is None else config.changed(batch_size=1)
    return replace(request_of_data(one, parsed.data, parsed.split, parsed.topology), config=config)


def _config_arguments(parsed: argparse.Namespace) -> list[str]:
    """Return the arguments with which `halofeed train` uses the same config."""
    if parsed.auto:
        named = ["--config", parsed.toml or AUTO]
        return (
            named if parsed.minutes is None or parsed.toml else [*named, "--minutes", f"{parsed.minutes:g}"]
        )
    named = [] if parsed.config is None else ["--config", parsed.config]
    settings = [word for one in parsed.settings for word in ("--set", text_of_setting(one))]
    own = [word for name in _OWN if getattr(parsed, name) for word in (f"--{name}", getattr(parsed, name))]
    return [*named, *settings, *own, *(["--remat"] if parsed.remat else [])]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


_numbers.__name__ = "list of int"  # the parser's messages begin from it


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Parse sizes of tiles: one number for a square, HxW for others."""
    found = [re.fullmatch(r"\s*([1-9]\d*)(?:x([1-9]\d*))?\s*", part) for part in text.split(",")]
    sizes = [(int(one[1]), int(one[2] or one[1])) for one in found if one]
    if len(sizes) < len(found):
        raise argparse.ArgumentTypeError(f"expected sides such as 512,1024 or 512x1024, got {text!r}")
    return tuple(sizes)


_sizes.__name__ = "list of str"

PLAN = Command(
    summary="find the splits of a model that fit on a machine, before you pay for one",
    example=PLAN_EXAMPLE,
    add=_add_plan,
    run=run_plan,
)
