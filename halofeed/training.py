"""Commands of the trainer: train, evaluate, predict, export and configs."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from halofeed.auto_config import AUTO, AutoConfig, check_minutes, plan_for_training
from halofeed.option_rows import saved_rows, train_rows
from halofeed.options import Option, add_options, add_settings, not_in_brief
from halofeed.parser import Command, CommandParser
from halofeed.system import signals
from halofeed.system.addresses import address_of
from halofeed.system.console import VERBOSE, print_error, print_status
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from halofeed.schemas.manifest import Manifest
    from halofeed.trainer.config import TrainConfig
    from halofeed.trainer.data import TrainData
    from halofeed.trainer.detection.merge_tiles import MergeRule
    from halofeed.trainer.run_folder import Run
    from halofeed.trainer.task import Host

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax")
_SHOWN = 3
_RUN_FIELDS = ("cores_per_replica", "partition", "model", "task")
NEW_SPLIT = "train"
"""Split of a conversion whose source names no split."""

TRAIN_EXAMPLE = """\
examples:
  a small model for the data's task, each picture split over 4 cores:
    halofeed train data/cards/1.0.0 --steps 200 --cores-per-replica 4 --partition image=1,4,1,1

  a published recipe on this machine's TPU, with two changed settings:
    halofeed train data/coco640/1.0.0 --config retinanet_resnet50_fpn_640 --out runs/coco \\
        --set steps=50000 --set task.alpha=0.5

  a network and a length that are planned from the data, for ten minutes of this machine:
    halofeed train data/spleen/1.0.0 --config auto --minutes 10

  a volume split by depth and height:
    halofeed train data/spleen/1.0.0 --config unet3d_128 --cores-per-replica 4 --partition image=1,2,2,1,1

Killed or stopped (Ctrl-C and SIGTERM save first)? The same command resumes, and its losses are the same bit for bit.
Without an accelerator the cores are virtual devices of this processor. `halofeed configs` lists the recipes.
"""


def _add_evaluate(parser: CommandParser) -> None:
    _add_run(parser)
    _add_data(parser)
    _add_merge(parser)
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="of several runs, such as those of all folds: each on the split that it was evaluated on, as one table",
    )
    _add_components(parser)
    parser.add_argument("--json", metavar="FILE", help="also write the metrics to this file")


def _add_components(parser: CommandParser) -> None:
    components = parser.add_argument(
        "--no-largest-component",
        action="store_true",
        help="masks: keep all components, also of classes for which the validation split has proved that the largest "
        "one alone is better",
    )
    not_in_brief(components)


def _add_merge(parser: CommandParser) -> None:
    group = parser.add_argument_group("boxes of pictures that are stored as tiles (--fit tiles)")
    group.add_argument(
        "--merge",
        default="shared",
        metavar="METHOD",
        help="shared: boxes of two tiles are one object if they agree in the part that both tiles show (default); nms: "
        "keep the box with the highest score; nmm, greedy-nmm: the union of overlapping boxes, as SAHI; none",
    )
    overlap = group.add_argument(
        "--merge-overlap",
        default="iou",
        metavar="OVERLAP",
        help="of nms, nmm and greedy-nmm: iou, or ios, the intersection over the smaller box (default: iou)",
    )
    threshold = group.add_argument(
        "--merge-threshold",
        type=float,
        metavar="SHARE",
        help="smallest overlap of two boxes of one object (default: 0.3 for shared, 0.5 for the others)",
    )
    not_in_brief(overlap, threshold)


def _add_predict(parser: CommandParser) -> None:
    _add_run(parser)
    _add_data(parser)
    _add_merge(parser)
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="SCORE",
        help="leave out boxes with a lower score; 0 keeps all, for COCO metrics of detections.json (default: 0.05, and "
        "0.3 for what --draw shows)",
    )
    parser.add_argument(
        "--draw",
        action="store_true",
        help="also draw boxes, classes or masks: pictures in OUT/drawn, and one page, OUT/predictions.html, the worst "
        "first where labels exist",
    )
    parser.add_argument(
        "--draw-count",
        type=int,
        default=50,
        metavar="N",
        help="most pictures, scans or clips that --draw shows (default: 50)",
    )
    parser.add_argument(
        "--geojson",
        action="store_true",
        help="also write a GeoJSON file for each picture of tiles: boxes, or outlines of masks or classes, on the map "
        "if the source is georeferenced",
    )
    _add_components(parser)
    parser.add_argument("--source", metavar="PATH", help="new pictures, scans or clips instead of a data set")
    parser.add_argument(
        "--no-windows",
        action="store_true",
        help="crop or pad new volumes to the recipe's shape instead of overlapping windows",
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="output folder")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace earlier predictions there, if halofeed wrote all files in the folder and none has changed",
    )


def _add_export(parser: CommandParser) -> None:
    parser.add_argument(
        "path",
        metavar="RUN_OR_DATA",
        help="the folder that `halofeed train --out` made; with --to a data set's version folder or address",
    )
    _add_checkpoint(parser)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="output folder")
    parser.add_argument(
        "--format",
        choices=("stablehlo", "savedmodel"),
        help="of a run; savedmodel writes TensorFlow's beside the StableHLO (default: stablehlo)",
    )
    data = parser.add_argument_group("of a data set")
    data.add_argument(
        "--to",
        metavar="TARGET",
        help="folders: classification; coco, yolo, voc, dota: detection; nifti: segmentation of volumes; parquet: "
        "pictures of any task, and volumes as NIfTI; webdataset: pictures of any task. Pictures are the stored JPEG or "
        "PNG files, or PNG; padding is cut off",
    )
    data.add_argument(
        "--grid",
        help="stored: boxes, masks and labels of the stored pictures and volumes (default); source: of the files that "
        "were converted",
    )
    data.add_argument(
        "--images",
        metavar="FOLDER",
        help="with --grid source: the folder of pictures that was converted, to copy them",
    )
    data.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an earlier export there, if halofeed wrote all files in the folder and none has changed",
    )


def _add_configs(parser: CommandParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="print this recipe, as the start of your own for --config"
    )


def _add_train(parser: CommandParser) -> None:
    _add_train_options(parser, train_rows())


def _add_saved_train(parser: CommandParser) -> None:
    _add_train_options(parser, saved_rows("train"))


def _add_train_options(parser: CommandParser, rows: Iterable[Option]) -> None:
    parser.usage = "halofeed train FOLDER [options]"
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder")
    parser.add_argument("--split", default="train", help="split to train on (default: train)")
    parser.add_argument(
        "--fold",
        type=int,
        metavar="N",
        help="evaluate on this fold of `halofeed convert --folds 5`, from 0, and train on the others",
    )
    parser.add_argument("--out", metavar="FOLDER", help="the run's folder (default: runs/DATA-CONFIG)")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the run in the folder, if halofeed wrote all files in it and none has changed",
    )
    parser.add_argument(
        "--config",
        metavar="NAME",
        help="a recipe of `halofeed configs`, a .toml file, or a pipeline.config of the TF Object Detection API "
        "(default: by the data's task and size, and the devices); auto plans one by nnU-Net's rules, for "
        "--minutes of this machine",
    )
    minutes = parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="with --config auto: time of the command in minutes, with the plan and the evaluation (default: 10 on a "
        "processor, 120 on accelerators)",
    )
    not_in_brief(minutes)
    add_settings(parser, "clip_norm=10, model.width=16, task.alpha=0.75")
    add_options(parser, rows)
    _add_devices(parser)
    group = parser.add_argument_group("several processes, one per host (all three, or none)")
    not_in_brief(
        group.add_argument("--coordinator", metavar="HOST:PORT", help="the address of process 0"),
        group.add_argument("--process-count", type=int, metavar="N", help="number of processes"),
        group.add_argument("--process-id", type=int, metavar="N", help="number of this process, from 0"),
    )


def _add_run(parser: CommandParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the folder that `halofeed train --out` made; several, RUN0,RUN1, are averaged",
    )
    _add_checkpoint(parser)


def _add_checkpoint(parser: CommandParser) -> None:
    parser.add_argument(
        "--checkpoint", default="best", metavar="WHICH", help="best, last or a step (default: best)"
    )
    parser.add_argument(
        "--cores-per-replica", type=int, metavar="N", help="cores that share an image (default: the run's)"
    )
    parser.add_argument("--partition", metavar="PARTS", help="parts along each axis (default: the run's)")
    for name in ("model", "task"):
        moved = f"{name} of your own that was moved (default: the run's)"
        not_in_brief(parser.add_argument(f"--{name}", metavar="PACKAGE:CLASS", help=moved))
    _add_devices(parser)


def _add_data(parser: CommandParser) -> None:
    parser.add_argument(
        "data", metavar="FOLDER", nargs="?", help="a data set's version folder (default: the run's)"
    )
    parser.add_argument("--split", default="", help="name of the split (default: the run's evaluation split)")


def _open_run(parsed: argparse.Namespace) -> Run:
    return _open_runs(parsed, [parsed.run])[0]


def _open_runs(parsed: argparse.Namespace, folders: Sequence[str]) -> list[Run]:
    """Open runs with the options of the command line, and start JAX with as many devices as the largest needs."""
    from halofeed.schemas.file_layout import read_run

    cores = parsed.cores_per_replica or max(read_run(one)["config"]["cores_per_replica"] for one in folders)
    _start_jax(parsed.virtual_devices, cores)
    from halofeed.system.garbage_collection import paused_collector

    with require_extra("train", *_LIBRARIES), paused_collector():
        from halofeed.trainer.run_folder import open_run
    return [open_run(one).changed(**{name: getattr(parsed, name) for name in _RUN_FIELDS}) for one in folders]


def _run_folders(text: str, name: str = "RUN") -> list[str]:
    """Return the folders of RUN or RUN0,RUN1, an argument of that name; a folder with a comma in its name is one."""
    folders = [text] if Path(text).is_dir() else [folder for folder in text.split(",") if folder]
    if not folders:
        raise UsageError(f"{name}: expected the folder of a run, such as runs/cards")
    if twice := [folder for number, folder in enumerate(folders) if folder in folders[:number]]:
        raise UsageError(f"{twice[0]}: is named twice; name each run once")
    return folders


@contextlib.contextmanager
def reviewed_predictions(parsed: argparse.Namespace) -> Iterator[Iterable[tuple[Host, Host]]]:
    """Yield the predictions of the data set `parsed.path` by the runs of --run, for a search for label faults.

    A line on the console names splits that their run was trained on.
    """
    from halofeed.schemas.file_layout import read_run

    folders = _run_folders(parsed.run, "--run")
    cores = max(read_run(folder)["config"]["cores_per_replica"] for folder in folders)
    _start_jax(None, cores)
    parsed.compile_cache = None
    with _compile_cache(parsed):
        from halofeed.trainer.held_out import choose_runs, predict_splits
        from halofeed.trainer.run_folder import open_run

        chosen = choose_runs([open_run(folder) for folder in folders], parsed.path, parsed.split)
        if seen := [one.split for one in chosen if not one.is_held_out]:
            print_status(
                f"halofeed review: {', '.join(seen)}: the run was trained on these labels and may repeat their faults; "
                "to find more of them, convert with --folds 2, train with --fold 0 and with --fold 1, and give both "
                "runs: --run RUN0,RUN1"
            )
        yield predict_splits(chosen, parsed.path, parsed.checkpoint)


def _add_devices(parser: CommandParser) -> None:
    parser.add_argument(
        "--virtual-devices",
        type=int,
        metavar="N",
        help="use this many CPU devices instead of accelerators",
    )
    cache = parser.add_argument(
        "--compile-cache",
        metavar="FOLDER",
        help="folder of compiled programs, so that the next command compiles nothing; none for no cache (default: "
        "$HALOFEED_COMPILE_CACHE, else ~/.cache/halofeed/compiled)",
    )
    not_in_brief(cache)


@contextlib.contextmanager
def _compile_cache(parsed: argparse.Namespace, processes: int = 1) -> Iterator[None]:
    """Keep the programs that a block compiles in the folder of --compile-cache, and load those that are there."""
    from halofeed.system.garbage_collection import paused_collector

    with require_extra("train", *_LIBRARIES), paused_collector():
        from halofeed.trainer.compile_cache import chosen_folder, compile_cache
    with compile_cache(chosen_folder(parsed.compile_cache, processes=processes)) as files:
        yield
    if files is not None:
        print_status(
            f"halofeed {parsed.command}: {plural(files.found, 'compiled program')} loaded, {files.stored:,} stored",
            VERBOSE,
        )


def run_train(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed train`."""
    from halofeed.schemas.manifest import read_manifest
    from halofeed.trainer.config import default_config, load_config

    check_minutes(parsed, is_auto=parsed.config == AUTO, flag="--config auto")
    # A wrong option fails before JAX starts. A recipe that is not named depends on JAX's devices.
    manifest = None
    if parsed.config not in (None, AUTO) or (parsed.config is None and getattr(parsed, "init", None)):
        config, name = _named_config(parsed)
        cores = config.cores_per_replica
    else:
        manifest = read_manifest(parsed.path)
        small = load_config(default_config(manifest))
        cores = small.changed(parsed.settings, **_fields(parsed)).cores_per_replica
    _start_jax(parsed.virtual_devices, cores)
    with _compile_cache(parsed, parsed.process_count or 1):
        with require_extra("train", *_LIBRARIES):
            from halofeed.trainer.distributed import start_processes
        # jax.distributed.initialize must come before any computation of JAX.
        start_processes(parsed.coordinator, parsed.process_count, parsed.process_id)
        plan: tuple[str, ...] = ()
        if manifest is not None and parsed.config == AUTO:
            planned = _plan_config(parsed, manifest)
            name, config, plan = AUTO, planned.config, planned.lines
        elif manifest is not None:
            name, config = _choose_config(parsed, manifest)
        return _train(parsed, config, name, plan)


def _plan_config(parsed: argparse.Namespace, manifest: Manifest) -> AutoConfig:
    """Return the configuration of --config auto, for the splits of a fold if one is named."""
    split, name = parsed.split, AUTO
    if parsed.fold is not None:
        split, name = manifest.splits_of_fold(parsed.fold)[0], f"{AUTO}-fold{parsed.fold}"
    parsed.out = parsed.out or str(Path("runs") / f"{manifest.name}-{name}")
    return plan_for_training(parsed, manifest, split, _fields(parsed))


def _named_config(parsed: argparse.Namespace) -> tuple[TrainConfig, str]:
    """Return the config that --config names, or that of the run of --init, and a name for the run's folder."""
    from halofeed.trainer.config import configure

    if parsed.config is not None:
        return _config_of(parsed, parsed.config), Path(parsed.config).stem
    config, name = _config_of_init(parsed)
    return configure(config, parsed.settings, **_fields(parsed)), name


def _choose_config(parsed: argparse.Namespace, manifest: Manifest) -> tuple[str, TrainConfig]:
    """Choose the recipe by the data and the devices, and print which and why; return its name and the configuration."""
    from halofeed.trainer.choose_config import choose_config, mask_hint
    from halofeed.trainer.distributed import devices_of_run, is_chief

    platform, devices = devices_of_run()
    # The splits of a fold are known later, and are nearly all records.
    counted = manifest.splits.values() if parsed.fold is not None else [manifest.split(parsed.split)]
    choice = choose_config(
        manifest,
        platform=platform,
        devices=devices,
        records=sum(split.records for split in counted),
    )
    if is_chief():
        print_status(
            f"halofeed train: recipe {choice.name}, for {choice.reason}; choose another of `halofeed configs` with "
            "--config NAME"
        )
        if hint := mask_hint(manifest):
            print_status(f"halofeed train: {hint}")
    return choice.name, _config_of(parsed, choice.name, choice.changes)


def _train(parsed: argparse.Namespace, config: TrainConfig, name: str, plan: Sequence[str] = ()) -> int:
    from dataclasses import replace

    from halofeed.system.garbage_collection import paused_collector

    with require_extra("train", *_LIBRARIES), paused_collector():
        from halofeed.inspection.html.run_report import write_run_report
        from halofeed.trainer.data import open_data
        from halofeed.trainer.distributed import is_chief
        from halofeed.trainer.evaluate import summary_lines
        from halofeed.trainer.tasks import build_task
        from halofeed.trainer.train import train
        from halofeed.trainer.unlearned import unlearned_lines
    split = parsed.split
    if parsed.fold is not None:
        split, config = _with_fold(config, parsed.path, parsed.fold, split)
        name = f"{name}-fold{parsed.fold}"
    data = open_data(
        config, parsed.path, split, lambda facts: build_task(facts, config.options_of_task, config.task)
    )
    if plan:
        data = replace(data, description={**data.description, "plan": list(plan)})
    parsed.out = parsed.out or str(Path("runs") / f"{data.description['data_name']}-{name}")
    folder = Path(parsed.out)
    done = train(config, data, folder, overwrite=parsed.overwrite, notes=_not_evaluated(data))
    # All processes predict together. Every one has the same metrics; one of them writes and prints.
    proved = _prove_after_training(folder, data) if plan and done.stopped_by is None else []
    if is_chief():
        report = write_run_report(folder)
        metrics = done.metrics or {}
        unlearned = unlearned_lines(config, data, metrics=metrics, losses=done.losses, steps=done.steps)
        print(*summary_lines(metrics), *unlearned, *proved, f"report: {report}", sep="\n")
        if done.stopped_by is None and data.evaluation is not None:
            print_status(
                f"look at predictions with `halofeed predict {quote(str(folder))} --out found --draw`"
            )
    if done.stopped_by is not None:
        # A shell's status for a signal. Below 0 another process was told to stop, by a signal that is not known here.
        return 128 + (done.stopped_by if done.stopped_by > 0 else signal.SIGTERM)
    return 0


def _prove_after_training(folder: Path, data: TrainData) -> list[str]:
    """Return lines on the largest components that the evaluation split proves for a run that --config auto planned."""
    from halofeed.trainer.component_rules import prove_rules
    from halofeed.trainer.run_folder import open_run

    split = data.description.get("evaluate_split")
    if split is None or data.facts.task != "segmentation":
        return []
    return prove_rules(open_run(folder), str(data.description["data"]), str(split), "best")[0]


def _not_evaluated(data: TrainData) -> list[str]:
    """Return the line that a run has no split to evaluate on, if it has none."""
    if data.evaluation is not None:
        return []
    return [
        "no metrics: the data set has no labeled split named validation, val or test besides "
        f"{data.description['split']!r}; convert it with --split-shares train=0.8,test=0.2, or name a split: "
        "--set evaluate_split=NAME"
    ]


def _with_fold(config: TrainConfig, path: str, fold: int, split: str) -> tuple[str, TrainConfig]:
    """Return the splits to train on, and the configuration that evaluates on a fold."""
    from halofeed.schemas.manifest import read_manifest

    # A fold decides both splits.
    if split != "train" or config.evaluate_split:
        other = f"--split {split}" if split != "train" else f"evaluate_split {config.evaluate_split}"
        raise UsageError(f"--fold {fold} and {other} both choose splits; give one of them")
    trained, evaluated = read_manifest(path).splits_of_fold(fold)
    return trained, config.changed(evaluate_split=evaluated)


def check_file(flag: str, path: str | None) -> None:
    """Raise UsageError, before the work begins, for a folder where a file is to be written."""
    if path is not None and os.path.isdir(path):
        raise UsageError(f"{flag} {path}: is a folder; name a file in it")


def run_evaluate(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed evaluate`."""
    check_file("--json", parsed.json)
    runs = _open_runs(parsed, _run_folders(parsed.run))
    if parsed.cross_validate and parsed.split:
        raise UsageError(
            f"--cross-validate and --split {parsed.split}: each run has its own split; leave one of them out"
        )
    with _compile_cache(parsed):
        return _cross_validate(parsed, runs) if parsed.cross_validate else _evaluate(parsed, runs)


def _evaluate(parsed: argparse.Namespace, runs: Sequence[Run]) -> int:
    from halofeed.trainer.ensemble import Ensemble, load_runs
    from halofeed.trainer.evaluate import summary_lines
    from halofeed.trainer.loaded_run import choose_split
    from halofeed.trainer.run_folder import write_json

    data, split = choose_split(runs[0], parsed.data, parsed.split)
    _check_ensemble_split(parsed, runs, data, split)
    with_rules = not parsed.no_largest_component
    if len(runs) == 1 and with_rules and parsed.data is None:
        runs = [_with_component_rules(runs[0], data, split, parsed.checkpoint)]
    trained = load_runs(runs, data, split, which=parsed.checkpoint)
    metrics = trained.evaluate(_merge_rule(parsed), with_rules=with_rules)
    steps = trained.steps if isinstance(trained, Ensemble) else trained.step
    if parsed.json:
        document = {"step": steps, "data": data, "split": split, "metrics": metrics}
        write_json(Path(parsed.json), document)
    what = f"step {steps}" if len(runs) == 1 else f"mean of {len(runs)} runs"
    print(f"{what} on {split} of {data}")
    if trained.kept and with_rules:
        print(f"largest component alone: {_class_names(runs[0], trained.kept)}")
    if "tiles" in metrics:
        print(f"whole pictures: {metrics['examples']:,}, tiles: {metrics['tiles']:,}")
    if dropped := metrics.get("tiles_dropped"):
        print(
            f"{dropped:,} empty tiles were left out of the data set; false detections in them are not counted"
        )
    print(*summary_lines(metrics), sep="\n")
    return 0


def _check_ensemble_split(parsed: argparse.Namespace, runs: Sequence[Run], data: str, split: str) -> None:
    """Refuse a split that nobody named for runs of different folds, and warn of one that some run was trained on."""
    if len(runs) == 1:
        return
    from halofeed.schemas.manifest import read_manifest
    from halofeed.trainer.held_out import is_trained_on

    own = {str(run.document.get("evaluate_split")) for run in runs}
    if not parsed.split and len(own) > 1:
        raise UsageError(
            f"the runs were evaluated on different splits, {', '.join(sorted(own))}: pass --cross-validate for each on "
            "its own, or name a split for their mean, such as --split test"
        )
    manifest = read_manifest(data)
    if trained := [str(run.folder) for run in runs if is_trained_on(run, manifest, split)]:
        print_status(
            f"warning: {', '.join(trained)} learned from {split}, so these figures are better than those of new data; "
            "--cross-validate evaluates each run on its own split"
        )


def _with_component_rules(run: Run, data: str, split: str, which: str) -> Run:
    """Prove the largest components of a run on its own evaluation split, once for a checkpoint, and store them."""
    from halofeed.trainer.component_rules import prove_rules

    lines, proved = prove_rules(run, data, split, which)
    for line in lines:
        print_status(f"halofeed evaluate: {line}")
    return proved


def _class_names(run: Run, classes: Iterable[int]) -> str:
    return ", ".join(run.facts.labels.get(label, f"class {label}") for label in sorted(classes))


def _cross_validate(parsed: argparse.Namespace, runs: Sequence[Run]) -> int:
    from halofeed.inspection.words import table
    from halofeed.trainer.cross_validation import cross_validate
    from halofeed.trainer.run_folder import write_json

    found = cross_validate(
        runs,
        parsed.data,
        which=parsed.checkpoint,
        rule=_merge_rule(parsed),
        with_rules=not parsed.no_largest_component,
    )
    if parsed.json:
        write_json(Path(parsed.json), found.to_json())
    head, rows = found.rows()
    print(*table(head, rows, right=range(2, len(head))), sep="\n")
    return 0


def run_predict(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed predict`."""
    runs = _open_runs(parsed, _run_folders(parsed.run))
    with _compile_cache(parsed):
        return _predict(parsed, runs)


def _predict(parsed: argparse.Namespace, runs: Sequence[Run]) -> int:
    from halofeed.trainer.loaded_run import choose_split
    from halofeed.trainer.predict import WRITTEN_SCORE, PredictionOptions, predict

    run = runs[0]
    if parsed.draw_count < 1:
        raise UsageError(f"--draw-count {parsed.draw_count}: expected a whole number of at least 1")
    options = PredictionOptions(
        rule=_merge_rule(parsed),
        min_score=WRITTEN_SCORE if parsed.min_score is None else parsed.min_score,
        geojson=parsed.geojson,
        source=parsed.source,
        with_rules=not parsed.no_largest_component,
    )
    page: Path | None = None
    with contextlib.ExitStack() as stack:
        if parsed.source is not None:
            if parsed.data is not None or parsed.split:
                raise UsageError(
                    f"--source {parsed.source}: new files take the place of a data set and its split; leave out "
                    "FOLDER and --split, or --source"
                )
            from halofeed.storage.scratch import scratch_folder

            scratch = Path(stack.enter_context(scratch_folder()))
            data, split = _convert_new_files(parsed, run, scratch), NEW_SPLIT
        else:
            data, split = choose_split(run, parsed.data, parsed.split)
            _print_other_classes(run, data)
        done = predict(
            runs,
            data,
            split,
            parsed.out,
            which=parsed.checkpoint,
            overwrite=parsed.overwrite,
            options=options,
        )
        # One process writes. The records of new files are deleted at the end of this block.
        if done and parsed.draw:
            page = _draw_predictions(parsed, data, split)
    if done:
        _print_prediction(done, runs, parsed.out)
    if page is not None:
        print(f"page: {page}")
    return 0


def _print_prediction(done: Mapping[str, Any], runs: Sequence[Run], out: str) -> None:
    """Print what was predicted, by predictions.json: where, by which step, and what was left out."""
    from halofeed.trainer.predict import SOURCE_NOUNS

    count = plural(done["sources"], SOURCE_NOUNS[done["kind"]])
    by = f"step {done['checkpoint']}" if len(runs) == 1 else f"the mean of {len(runs)} runs"
    print(f"{count} predicted by {by} into {out}")
    if done.get("largest_component"):
        print(
            f"largest component alone: {', '.join(done['largest_component'])}, as the validation split has proved "
            "(--no-largest-component keeps all)"
        )
    if done.get("boxes_left_out"):
        written, left_out = (plural(done[name], "box", "boxes") for name in ("boxes", "boxes_left_out"))
        print(
            f"{written} written, {left_out} with a score below {done['min_score']:g} left out, the highest with "
            f"{done['highest_score_left_out']:.4f} (--min-score 0 keeps all)"
        )
    if dropped := done.get("tiles_dropped"):
        were = "was" if dropped == 1 else "were"
        print(
            f"{plural(dropped, 'empty tile')} {were} left out of the data set, so nothing is predicted there; "
            "--source FOLDER predicts complete pictures"
        )


def _print_other_classes(run: Run, data: str) -> None:
    """Print where a data set has other classes than the model learned: the predictions have the model's."""
    from halofeed.schemas.manifest import read_manifest

    stored, learned = dict(read_manifest(data).labels), dict(run.facts.labels)
    # Data that was converted for prediction alone may have no classes.
    if stored and stored != learned:
        numbers = [number for number in sorted(stored | learned) if stored.get(number) != learned.get(number)]
        number = numbers[0]
        print_status(
            f"warning: {data} has other classes than the model learned: {len(numbers)} of {len(stored | learned)} "
            f"numbers differ, such as {number}, {stored.get(number, 'no class')} there and "
            f"{learned.get(number, 'no class')} in the model; predictions have the model's names, and a page compares "
            "true and predicted classes by their numbers"
        )


def _draw_predictions(parsed: argparse.Namespace, data: str, split: str) -> Path:
    from halofeed.inspection.html.predictions_page import write_predictions_page
    from halofeed.inspection.html.run_gallery import MIN_SCORE

    shown = MIN_SCORE if parsed.min_score is None else parsed.min_score
    return write_predictions_page(parsed.out, data, split, count=parsed.draw_count, min_score=shown)


def _merge_rule(parsed: argparse.Namespace) -> MergeRule:
    from halofeed.trainer.detection.merge_tiles import MergeRule

    return MergeRule(method=parsed.merge, overlap=parsed.merge_overlap, threshold=parsed.merge_threshold)


def _convert_new_files(parsed: argparse.Namespace, run: Run, scratch: Path) -> str:
    """Convert new files with the recipe of the run's data, print the skipped ones, and return the data set's folder."""
    with unlogged():
        from halofeed.pipelines.convert import convert
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.convert.loss_findings import Converted, loss_findings
    from halofeed.trainer.new_files import list_new_files, rejected_new_files

    listed = scratch / "listed"
    listed.mkdir()
    new = list_new_files(run.recipe, run.facts.task, parsed.source, listed, windows=not parsed.no_windows)
    job = JobOptions(
        source=new.source,
        images=new.images,
        out=str(scratch / "data"),
        name="new_files",
        workers=1,
        on_loss="warn",  # a prediction warns of what would refuse a conversion
    )
    done = convert(job, new.recipe, [])
    rejects = rejected_new_files(done.folder)
    # The fix of a finding is an option of `halofeed convert`, which a prediction does not have.
    for finding in loss_findings(Converted.of(done.manifest)):
        print_status(f"warning: {finding.text}")
    if new.passed_over:
        print_status(_describe_skipped(new.passed_over, run))
    for rejected in (*new.rejected, *rejects):
        print_error(f"rejected: {rejected.source}: {rejected.reason}")
    if not done.manifest.split(NEW_SPLIT).records:
        raise UsageError(
            f"--source {parsed.source}: none of its {plural(len(rejects), 'file')} could be converted"
        )
    return str(done.folder)


def _describe_skipped(paths: Sequence[str], run: Run) -> str:
    """Return a line on the files of a folder that are neither pictures, scans nor clips by their names."""
    listed = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
    return f"skipped {plural(len(paths), 'file')} without a name of a {run.facts.kind}: {listed}"


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Disable log messages: Beam's import warns of Google Cloud packages that only some runners need."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _is_data_set(parsed: argparse.Namespace) -> bool:
    """Return whether `export` gets a data set; UsageError if --to says otherwise."""
    from halofeed.schemas.file_layout import MANIFEST, RUN_FILE

    path = parsed.path
    if (Path(path) / RUN_FILE).is_file():
        of_data = {name: getattr(parsed, name) for name in ("to", "grid", "images")}
        if given := [f"--{name} {value}" for name, value in of_data.items() if value is not None]:
            raise UsageError(
                f"{given[0]}: {path} is a training run, and only data sets have targets; leave it out"
            )
        return False
    # An address is a data set's: runs are in local folders.
    if parsed.to is None and (address_of(path) is not None or (Path(path) / MANIFEST).is_file()):
        from halofeed.inspection.dataset_files import open_manifest
        from halofeed.inspection.export_data import targets_of

        known = " or ".join(f"--to {target}" for target in targets_of(open_manifest(path)))
        raise UsageError(
            f"{path}: is a data set, not a training run; {known or 'no target holds such records'}"
        )
    return parsed.to is not None


def _export_data(parsed: argparse.Namespace) -> int:
    from halofeed.inspection.export_data import export_data
    from halofeed.pipelines.progress import Bar

    # argparse fills in the defaults, so an option that was given is told by another value.
    of_runs = {"format": None, "checkpoint": "best"} | dict.fromkeys(
        (*_RUN_FIELDS, "virtual_devices", "compile_cache")
    )
    if given := [name for name, default in of_runs.items() if getattr(parsed, name) != default]:
        raise UsageError(
            f"--{given[0].replace('_', '-')}: is of a run's model, not of a data set; leave it out"
        )
    with contextlib.closing(Bar(0, "records")) as bar:

        def progress(count: int, total: int) -> None:
            bar.total = total
            bar.update(count, None)

        done = export_data(
            parsed.path,
            parsed.to,
            parsed.out,
            overwrite=parsed.overwrite,
            grid=parsed.grid or "stored",
            images=parsed.images,
            progress=progress,
        )
    for note in done.notes:
        print_status(note)
    print(f"{plural(done.records, 'record')} exported to {parsed.out}")
    return 0


def run_export(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed export`."""
    if _is_data_set(parsed):
        return _export_data(parsed)
    parsed.run = parsed.path
    run = _open_run(parsed)
    with _compile_cache(parsed):
        return _export_run(parsed, run)


def _export_run(parsed: argparse.Namespace, run: Run) -> int:
    from halofeed.trainer.export import (
        export_folder,
        export_saved_model,
        export_stablehlo,
        prediction_function,
    )

    facts, problem = run.facts, run.problem()
    parameters, statistics, step = run.restore(problem, parsed.checkpoint)
    function = prediction_function(problem, parameters, statistics)
    dtype = str(run.document["image_dtype"])
    with export_folder(parsed.out) as folder:
        signature = export_stablehlo(
            function, facts.image_shape, dtype, folder, labels=facts.labels, task=facts.task
        )
        if parsed.format == "savedmodel":
            from halofeed.storage.scratch import temporary_files_in_scratch

            any_batch = signature["batch"] == "any"
            with temporary_files_in_scratch():  # TensorFlow does not delete its generated code
                export_saved_model(function, facts.image_shape, dtype, folder, any_batch=any_batch)
    print(f"step {step} exported to {parsed.out}; README.md there says how to call it")
    return 0


def run_configs(parsed: argparse.Namespace, _: list[str]) -> int:
    """Run `halofeed configs`."""
    from halofeed.trainer.config import config_summary, config_text, load_config, named_configs

    texts = named_configs()
    if parsed.name is not None:
        load_config(parsed.name)
        print(config_text(parsed.name), end="")
        return 0
    print("recipes (--config):")
    print(*(f"  {name:<33} {config_summary(text)}" for name, text in texts.items()), sep="\n")
    # A list of names needs no accelerator, which another process may hold.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with require_extra("train", *_LIBRARIES):
        from halofeed.trainer.models import MODELS
    print("\nmodels (--model), with their options (--set model.NAME=VALUE):")
    for name, model in MODELS.items():
        options = ", ".join(f"{key}={value!r}" for key, value in model.options().items())
        print(f"  {name:<33} {model.task}: {model.summary}" + (f"\n{'':<36}{options}" if options else ""))
    return 0


def _config_of(
    parsed: argparse.Namespace, name: str, changes: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Return a config with changes, and with the options of the command line, which take precedence."""
    from halofeed.trainer.config import configure

    return configure(name, [*(changes or {}).items(), *parsed.settings], **_fields(parsed))


def _fields(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a config that options of the command line name."""
    from halofeed.trainer.config import TrainConfig

    return {
        field: value for field, value in vars(parsed).items() if field in TrainConfig.__dataclass_fields__
    }


def _config_of_init(parsed: argparse.Namespace) -> tuple[TrainConfig, str]:
    """Return the config of the run that --init names, and a name for the run that starts from it."""
    from halofeed.schemas.file_layout import RUN_FILE
    from halofeed.schemas.manifest import read_manifest
    from halofeed.trainer.config import config_of_run, run_and_checkpoint

    origin, _ = run_and_checkpoint(parsed.init)
    name = f"from-{origin.absolute().name}"
    out = Path(parsed.out or Path("runs") / f"{read_manifest(parsed.path).name}-{name}")
    # The same command resumes a run also when the one that it started from was deleted.
    resumes = not origin.exists() and (out / RUN_FILE).is_file()
    source = out if resumes else origin
    config = config_of_run(source)
    print_status(f"--init without --config: the options are those of {source}")
    return config, name


def _start_jax(virtual_devices: int | None, cores_per_replica: int) -> None:
    from halofeed.system.memory import keep_all_freed_memory
    from halofeed.trainer.platform import computes_on_processor, configure_platform

    configure_platform(virtual_devices, at_least=cores_per_replica)
    if computes_on_processor():
        keep_all_freed_memory()
    signals.handle_in_thread()  # such as XLA's compilations


COMMANDS = {
    "train": Command(
        summary="train a detector, a segmenter or a classifier, each image split over several cores",
        example=TRAIN_EXAMPLE,
        add=_add_train,
        add_saved=_add_saved_train,
        run=run_train,
    ),
    "evaluate": Command(
        summary="measure a trained model on a split",
        example="""\
        examples:
          halofeed evaluate runs/cards                          # the best checkpoint, on the run's own data
          halofeed evaluate runs/cards data/cards/1.0.0 --split test --checkpoint last
          halofeed evaluate runs/fold0,runs/fold1 --cross-validate      # each on its own fold, as one table
          halofeed evaluate runs/fold0,runs/fold1 --split test          # the mean of their probabilities""",
        add=_add_evaluate,
        run=run_evaluate,
    ),
    "predict": Command(
        summary="write predictions in the coordinates of the source files",
        example="""\
        examples:
          halofeed predict runs/cards data/cards/1.0.0 --split test --out predictions     # detections.json
          halofeed predict runs/spleen --source new_scans --out masks                     # new files, a mask each
          halofeed predict runs/fold0,runs/fold1 --source new_scans --out masks           # the mean of two runs

        The command writes boxes as COCO results in pixels of the source picture, masks as NIfTI on the scan's own grid
        (PNG for pictures), and classes as CSV. It converts new files with the recipe of the training data, and predicts
        volumes larger than the recipe's shape in overlapping windows.""",
        add=_add_predict,
        run=run_predict,
    ),
    "export": Command(
        summary="write a trained model, or the pictures and labels of a data set, for use without halofeed",
        example="""\
        examples:
          halofeed export runs/cards --out exported                              # StableHLO, by jax.export
          halofeed export runs/cards --out exported --format savedmodel          # TensorFlow's SavedModel

        of a data set; `halofeed convert` reads the results with the layouts of the same names, NIfTI as msd:
          halofeed export data/cards/1.0.0 --to coco --out cards_coco            # also yolo and voc
          halofeed export data/photos/1.0.0 --to folders --out photos            # SPLIT/CLASS/NAME
          halofeed export data/spleen/1.0.0 --to nifti --out spleen              # images/, labels/, dataset.json
          halofeed export data/spleen/1.0.0 --to nifti --out masks --grid source    # on the scans' own voxels
        in shards of about 500 MB, for other loaders:
          halofeed export data/cards/1.0.0 --to parquet --out cards_hf           # Hugging Face's datasets
          halofeed export data/cards/1.0.0 --to webdataset --out cards_tar       # webdataset""",
        add=_add_export,
        run=run_export,
    ),
    "configs": Command(
        summary="list the recipes and models, or print one recipe",
        example="examples:\n  halofeed configs\n  halofeed configs retinanet_resnet50_fpn_640 > mine.toml",
        add=_add_configs,
        run=run_configs,
    ),
}
"""The trainer's commands by name."""
