"""Configuration of a data set with `--config auto`: a recipe with planned changes, and a line for each choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.auto.anchors import planned_anchors
from halofeed.trainer.auto.candidates import (
    Machine,
    PlanCandidate,
    RecipeCandidate,
    UNetCandidate,
    least_patch,
    unet_candidates,
)
from halofeed.trainer.auto.choose import (
    LEAST_STEPS,
    STEP_SHARE,
    Chosen,
    Judge,
    Verdict,
    choose_candidate,
    steps_in,
)
from halofeed.trainer.auto.fingerprint import Fingerprint
from halofeed.trainer.choose_config import ConfigChoice
from halofeed.trainer.config import BATCH_MIX, TrainConfig
from halofeed.trainer.tasks.detection import Detection

MINUTES = {"cpu": 10.0, "gpu": 120.0, "tpu": 120.0}
"""Minutes of training without --minutes, by platform."""
_LONG_RUN = 2000
"""Steps from which a run warms up, averages its weights, and is evaluated on the way."""
_VERY_LONG_RUN = 20_000
"""Steps from which nnU-Net's optimizer is taken: SGD with Nesterov momentum 0.99 and a polynomial rate from 0.01. Adam
learns faster in the first thousands of steps."""
_OFTEN = 20
"""Times that a run sees each record, from which mirrored scans teach more than they cost."""
_RATES = {32: 2e-3, 16: 3e-3, 8: 5e-3}
"""Learning rate of Adam by the width of the finest size: that of `unet3d_small`, and less for wider networks."""


_DETECTIONS_PER_BOX, _CANDIDATES_PER_BOX = 1.25, 4
"""Detections of an image, and anchors before the suppression, for each box of the image that has most. Not measured."""
_PRECISION_LINE = "precision: float32, because most processors compute bfloat16 no faster"
"""On a core of an AMD EPYC with AVX-512 BF16, a step of a 3-D U-Net of width 16 takes 0.257 s, and 0.290 s in bfloat16;
one of `unet2d_small` 0.57 and 0.53 s. Processors without these instructions convert each value."""


@dataclass(frozen=True, kw_only=True)
class AutoPlan:
    """Planned configuration.

    Args:
        recipe: name of the recipe that the changes are made to.
        changes: fields that differ from the recipe's, by name.
        lines: one line for each choice, with its reason.
        chosen: candidate and verdict.
    """

    recipe: str
    changes: Mapping[str, Any]
    lines: Sequence[str]
    chosen: Chosen[Any]


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Machine, time and functions of a plan.

    Args:
        machine: devices of the run.
        seconds: time budget of the run.
        configure: function from a recipe and changes to the config, with the user's own settings on top.
        judge_of: function that makes a judge from a function from a candidate to its config.
    """

    machine: Machine
    seconds: float
    configure: Callable[[str, Mapping[str, Any]], TrainConfig]
    judge_of: Callable[[Callable[[PlanCandidate], TrainConfig]], Judge[Any]]


def plan_auto(
    fingerprint: Fingerprint,
    choice: ConfigChoice,
    planner: Planner,
    box_sides: NDArray[np.float64] | None = None,
) -> AutoPlan:
    """Plan the configuration of a data set.

    Segmentation gets a U-Net by nnU-Net's rules; other tasks get the recipe of `choose_config`, with the batch that
    fits and the steps that the time has room for. The anchors of a RetinaNet follow from the boxes.

    Args:
        fingerprint: data set.
        choice: recipe by task, size and devices.
        planner: machine, budget, and functions that make configs and verdicts.
        box_sides: heights and widths [box, 2] of boxes in pixels of the records; None or none for other data.

    Raises:
        UsageError: no configuration fits the memory.
    """
    is_unet = fingerprint.task == "segmentation"
    task_changes = _unet_training(fingerprint, planner.machine) if is_unet else dict(choice.changes)
    if planner.machine.platform == "cpu":
        task_changes["compute_dtype"] = "float32"
    base = planner.configure(choice.name, task_changes)
    box_lines: list[str] = []
    if base.model == "retinanet" and box_sides is not None and len(box_sides):
        box_changes, box_lines = _for_boxes(
            base, fingerprint, box_sides, partial(planner.configure, choice.name)
        )
        task_changes = _merged(task_changes, box_changes)
        base = planner.configure(choice.name, task_changes)
    candidates: list[Any] = (
        list(unet_candidates(fingerprint, planner.machine))
        if is_unet
        else recipe_candidates(base, fingerprint.records, planner.machine.devices)
    )

    if not candidates:
        raise UsageError(
            f"--config auto: no U-Net fits {plural(fingerprint.records, 'record')} of {_by(fingerprint.sides)} on "
            f"{plural(planner.machine.devices, 'device')}: a side of 8 or more must be halved, and a batch needs a "
            "record for each device or a split that divides the sides; take fewer devices, or name a recipe of "
            "`halofeed configs` with --config"
        )

    def configured(candidate: PlanCandidate) -> TrainConfig:
        return planner.configure(choice.name, _merged(task_changes, candidate.changes()))

    chosen = choose_candidate(
        candidates,
        planner.judge_of(configured),
        platform=planner.machine.platform,
        seconds=planner.seconds,
        limit_bytes=planner.machine.limit_bytes,
    )
    changes = _merged(task_changes, chosen.candidate.changes())
    lengths, length_line = _length(fingerprint, chosen, base, planner)
    changes |= lengths
    if is_unet:
        changes |= _rate_and_mirrors(fingerprint, chosen.candidate, changes)
    lines = [
        *(
            _unet_lines(fingerprint, chosen, planner.machine)
            if is_unet
            else [f"recipe: {choice.name}, {choice.reason}"]
        ),
        *box_lines,
        *([] if is_unet else [f"batch: {changes['batch_size']} images"]),
        *([_PRECISION_LINE] if changes.get("compute_dtype") == "float32" else []),
        _memory_line(chosen),
        length_line,
    ]
    return AutoPlan(recipe=choice.name, changes=changes, lines=lines, chosen=chosen)


def _for_boxes(
    base: TrainConfig,
    fingerprint: Fingerprint,
    box_sides: NDArray[np.float64],
    configure: Callable[[Mapping[str, Any]], TrainConfig],
) -> tuple[dict[str, Any], list[str]]:
    """Return the changes of a RetinaNet that follow from the boxes, and a line for each choice.

    Args:
        base: configuration of the recipe.
        fingerprint: data set.
        box_sides: heights and widths [box, 2] in pixels of the records.
        configure: function from changes of the recipe to the configuration with the user's options on top.
    """
    # What the user has set stays, whatever the recipe is changed to.
    others = {"first_level": 0, "anchor_scale": 0.0, "aspect_ratios": []}
    tried = configure({"model_options": {**base.model_options, **others}}).model_options
    fixed = [name for name, value in others.items() if tried.get(name) != value]
    anchors, line = planned_anchors(base, box_sides, fixed)
    changes: dict[str, Any] = {"model_options": {**base.model_options, **anchors}}
    most = int(base.options_of_task.get("max_detections", Detection.max_detections))
    if fingerprint.most_boxes <= most:
        return changes, [line]
    # A detector finds some objects twice, and several anchors of each come before the suppression.
    wanted = round(_DETECTIONS_PER_BOX * fingerprint.most_boxes)
    candidates = max(_CANDIDATES_PER_BOX * fingerprint.most_boxes, Detection.max_candidates_per_level)
    changes["task_options"] = {
        **base.task_options,
        "max_detections": wanted,
        "max_candidates_per_level": candidates,
    }
    if configure(changes).task_options.get("max_detections") != wanted:
        return {"model_options": changes["model_options"]}, [line]
    found = f"detections: {wanted} an image, because one has {fingerprint.most_boxes} boxes; the recipe has {most}"
    return changes, [line, found]


def recipe_candidates(config: TrainConfig, records: int, devices: int) -> list[RecipeCandidate]:
    """Return a recipe's batch and its halves, each a multiple of the replicas and at most the records.

    Raises:
        PartitionError: the devices are no multiple of the cores that share an image.
    """
    replicas = config.parsed_partition().replicas(devices)
    batch, found = config.batch_size, []
    # A mixed image needs another one.
    least = 2 if any(table.get("name") == BATCH_MIX for table in config.device_augment) else 1
    while batch >= least:
        fitting = max(replicas, min(batch, records) // replicas * replicas)
        evaluate = max(1, config.evaluate_batch_size * fitting // config.batch_size)
        one = RecipeCandidate(
            batch=fitting, evaluate_batch=evaluate if config.evaluate_batch_size else 0, devices=devices
        )
        if one not in found:
            found.append(one)
        batch //= 2
    return found


def _merged(changes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes with more; options of model and task are joined."""
    options = {
        name: {**changes.get(name, {}), **more.get(name, {})}
        for name in ("model_options", "task_options")
        if name in changes or name in more
    }
    return {**changes, **more, **options}


def _unet_training(fingerprint: Fingerprint, machine: Machine) -> dict[str, Any]:
    """Return the fields of training that do not depend on the network's size."""
    # Losses at the coarser sizes cost a processor the time of several steps in a hundred.
    deep = {"model_options": {"deep_supervision": True}} if machine.platform != "cpu" else {}
    return {
        **deep,
        "optimizer": "adamw",
        "weight_decay": 1e-4,
        "clip_norm": 12.0,
        "normalization": "foreground" if fingerprint.is_ct else "dataset",
        "image_shape": None,
        "remat": False,
        # Long runs average their weights, and a verdict must include that memory.
        "average_decay": 0.999,
        # Most crops lack some class (docs/decisions.md).
        "task_options": {"overlap_over_batch": True},
    }


def _rate_and_mirrors(
    fingerprint: Fingerprint, candidate: UNetCandidate, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the learning rate of the width, and the augmentations: the crop, and mirrors where records repeat."""
    seen = changes["steps"] * candidate.batch / max(1, fingerprint.records)
    # Short runs learn classes that differ by their side worse from mirrored scans (docs/segmentation.md).
    is_long = changes["steps"] >= _LONG_RUN
    is_mirrored = fingerprint.kind == "picture" or (is_long and seen >= _OFTEN)
    mirrors = [{"name": "FlipLeftRight"}] if is_mirrored else []
    rate: dict[str, Any] = {"learning_rate": _RATES[candidate.width]}
    if changes["steps"] >= _VERY_LONG_RUN:
        rate = {
            "optimizer": "sgd",
            "momentum": 0.99,
            "nesterov": True,
            "weight_decay": 3e-5,
            "learning_rate": 0.01,
            "schedule": "polynomial",
        }
    found = {**rate, "augment": (*candidate.changes()["augment"], *mirrors)}
    # A model that has learned from mirrored images is also asked about them, which doubles the time of a prediction.
    if mirrors and is_long:
        found["task_options"] = {**changes["task_options"], "mirror_at_test": ["width"]}
    return found


def _length(
    fingerprint: Fingerprint, chosen: Chosen[Any], base: TrainConfig, planner: Planner
) -> tuple[dict[str, Any], str]:
    """Return the fields that depend on the number of steps, and a line that explains it."""
    verdict: Verdict = chosen.verdict
    minutes = f"{planner.seconds / 60:g} minutes"
    if verdict.step_seconds is None:
        return {"steps": base.steps}, f"steps: {base.steps:,}, the recipe's, because no step was timed"
    steps = steps_in(planner.seconds - chosen.seconds - verdict.compile_seconds, verdict.step_seconds)
    how = "measured" if verdict.is_measured else "the lower bound by published rates"
    epochs = steps * chosen.candidate.batch / max(1, fingerprint.records)
    line = (
        f"steps: {steps:,} in {minutes} at {_seconds(verdict.step_seconds)} a step ({how}); each record is seen "
        f"{epochs:.3g} times"
    )
    if chosen.seconds:
        line += f"; {chosen.seconds:.0f} s went into this plan, and the compiler takes {verdict.compile_seconds:.0f} s"
    if not chosen.is_in_time:
        line += f"; expect a weak model: {LEAST_STEPS} steps or more need --minutes {_minutes(chosen)}"
    is_long = steps >= _LONG_RUN
    fields: dict[str, Any] = {
        "steps": steps,
        "warmup_steps": min(1000, steps // 10),
        "schedule": "cosine",
        # The running statistics must forget the first steps within the run.
        "norm_decay": 0.99 if is_long else 0.9,
        "average_decay": 0.999 if is_long else 0.0,
        "evaluate_every": -(-steps // 10) if is_long else 0,
        "checkpoint_every": -(-steps // 10),
    }
    if fingerprint.task == "segmentation":
        return fields, line
    # A recipe has its own schedule, which is stretched to the steps.
    kept = {name: fields[name] for name in ("steps", "evaluate_every", "checkpoint_every")}
    if base.schedule == "manual_step":
        share = steps / base.steps
        boundaries = sorted({max(1, round(step * share)) for step in base.boundaries})
        if len(boundaries) == len(base.boundaries):
            kept |= {"boundaries": tuple(boundaries)}
    if base.warmup_steps:
        kept |= {
            "warmup_steps": max(1, min(base.warmup_steps, round(base.warmup_steps * steps / base.steps)))
        }
    return kept, line


def _unet_lines(fingerprint: Fingerprint, chosen: Chosen[UNetCandidate], machine: Machine) -> list[str]:
    """Return a line for each choice of a U-Net."""
    one = chosen.candidate
    shrunk = [f"{name} {reason}" for name, reason in _refusals(chosen)]
    unit = "pixels" if len(one.patch) == 2 else "voxels"
    lines = []
    if fingerprint.kind == "volume":
        lines.append(
            f"spacing: {_by(fingerprint.spacing_mm)} mm, of the records; the sources of "
            f"{plural(fingerprint.records, 'record')} suggest {_by(fingerprint.best_spacing_mm)} mm"
        )
    covered = math.prod(one.patch) / math.prod(fingerprint.median_shape)
    structure = max(fingerprint.structures.values(), default=0.0)
    lines += [
        f"patch: {_by(one.patch)} of {_by(fingerprint.sides)} {unit}, {min(covered, 1):.0%} of the median image "
        f"({_by(fingerprint.median_shape)}); the largest structure has {structure:,.0f} {unit} and needs "
        f"{_by(least_patch(fingerprint))}" + (f"; {shrunk[-1]}" if shrunk else ""),
        f"network: {plural(one.pooling.depth, 'size')}, halved by {_strides(one)} until an axis has 4 {unit}"
        + ("" if one.pooling.is_plain else ", thick slices later and with kernels of 1 until then"),
        f"width: {', '.join(map(str, one.features))} features"
        + (
            ""
            if one.width == 32
            else ", fewer than nnU-Net's 32 first ones, so that the time has room for enough steps"
        ),
        f"batch: {one.batch} images a step"
        + (f", each split over {one.cores} cores ({_by(one.partition)})" if one.cores > 1 else ""),
        "values: "
        + (
            "clipped to percentiles 0.5 and 99.5 of the labeled voxels, and normalized by their mean and deviation (CT)"
            if fingerprint.is_ct
            else "normalized by the data set's mean and deviation"
        ),
    ]
    return lines


def _refusals(chosen: Chosen[Any]) -> list[tuple[str, str]]:
    """Return the candidates that were compiled before the chosen one, with the reason against each."""
    found = []
    for candidate, verdict in chosen.refused:
        if not verdict.fits:
            size = f"{verdict.total_bytes / 2**30:.2f} GiB" if verdict.total_bytes else "more memory"
            found.append((candidate.name, f"needs {size}"))
        elif verdict.step_seconds is not None:
            found.append((candidate.name, f"takes {_seconds(verdict.step_seconds)} a step"))
    return found


def _memory_line(chosen: Chosen[Any]) -> str:
    verdict: Verdict = chosen.verdict
    total = "an unknown size" if verdict.total_bytes is None else f"{verdict.total_bytes / 2**30:.2f} GiB"
    limit = (
        ""
        if verdict.limit_bytes is None
        else f" of {verdict.limit_bytes / 2**30:.2f} GiB that a step may take"
    )
    return f"memory: {total}{limit} on each device, by the compiler"


def _strides(candidate: UNetCandidate) -> str:
    return " ".join(_by(row) for row in candidate.pooling.strides)


def _by(sizes: Sequence[float]) -> str:
    return " x ".join(f"{size:g}" for size in sizes)


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _minutes(chosen: Chosen[Any]) -> int:
    """Return the minutes in which a network can take the fewest steps of a run, with its plan and the evaluation."""
    verdict = chosen.verdict
    steps = LEAST_STEPS * (verdict.step_seconds or 0.0) / STEP_SHARE
    return math.ceil((steps + chosen.seconds + verdict.compile_seconds) / 60)
