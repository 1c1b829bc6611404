"""`--config auto` of `halofeed train` and `--auto` of `halofeed plan`: the configuration follows from the data set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halofeed.system.console import print_status
from halofeed.system.errors import UsageError

if TYPE_CHECKING:
    from halofeed.schemas.manifest import Manifest
    from halofeed.trainer.auto.plan_auto import AutoPlan, Planner
    from halofeed.trainer.config import TrainConfig

AUTO = "auto"
"""Value of --config that plans the configuration."""


@dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Planned configuration of a run, with a line for each choice."""

    config: TrainConfig
    lines: tuple[str, ...]


def check_minutes(parsed: argparse.Namespace, *, is_auto: bool, flag: str) -> None:
    """Raise UsageError for a wrong time budget, or for one that nothing would read."""
    if parsed.minutes is None:
        return
    if not is_auto:
        raise UsageError(
            f"--minutes {parsed.minutes:g}: has an effect only with {flag}; add it, or pass --steps"
        )
    if not parsed.minutes > 0:
        raise UsageError(f"--minutes {parsed.minutes:g}: expected more than 0, such as --minutes 10")


def plan_for_training(
    parsed: argparse.Namespace, manifest: Manifest, split: str, fields: Mapping[str, Any]
) -> AutoConfig:
    """Return the configuration of a run with --config auto, and print what was chosen and why.

    A run that has saved a step keeps its own configuration, so that the same command resumes it.

    Args:
        parsed: options of `halofeed train`.
        manifest: manifest of the data set.
        split: splits to train on.
        fields: fields of the configuration that options name.
    """
    from halofeed.trainer.config import reconfigured
    from halofeed.trainer.distributed import devices_of_run, is_chief, process_count

    kept = None if parsed.overwrite else _of_saved_run(parsed.out)
    if kept is not None:
        print_status(f"halofeed train: --config auto: the options are those of the run in {parsed.out}")
        return AutoConfig(config=reconfigured(kept.config, parsed.settings, **fields), lines=kept.lines)
    # On a TPU with several hosts JAX finds the processes by its environment, without --process-count.
    if process_count() > 1:
        raise UsageError(
            "--config auto: the processes of a run need one configuration; write it with `halofeed plan FOLDER --auto "
            "--topology v5e-8 --toml auto.toml` and train with --config auto.toml"
        )
    platform, devices = devices_of_run()
    from halofeed.trainer.auto.judges import PresentJudge, present_machine
    from halofeed.trainer.auto.plan_auto import MINUTES, Planner

    machine = present_machine(platform, devices)
    planner = Planner(
        machine=machine,
        seconds=60 * (parsed.minutes or MINUTES[platform]),
        configure=configuring(parsed.settings, fields),
        judge_of=lambda configured: PresentJudge(
            configure=configured,
            path=parsed.path,
            split=split,
            machine=machine,
            tell=lambda line: print_status(f"halofeed train: tried {line}"),
        ),
    )
    plan = plan_data(manifest, parsed.path, split, planner)
    if is_chief():
        for line in plan.lines:
            print_status(f"halofeed train: {line}")
    return AutoConfig(config=planner.configure(plan.recipe, plan.changes), lines=tuple(plan.lines))


def plan_data(manifest: Manifest, path: str, split: str, planner: Planner) -> AutoPlan:
    """Return the plan of a data set, with the advice on its conversion as further lines.

    Args:
        manifest: manifest of the data set.
        path: version folder of the data set.
        split: splits to train on.
        planner: machine, budget, and functions that make configs and verdicts.
    """
    from dataclasses import replace

    from halofeed.trainer.auto.anchors import sampled_box_sides
    from halofeed.trainer.auto.fingerprint import fingerprint_of
    from halofeed.trainer.auto.plan_auto import plan_auto
    from halofeed.trainer.choose_config import choose_config

    fingerprint = fingerprint_of(manifest, split)
    choice = choose_config(
        manifest,
        platform=planner.machine.platform,
        devices=planner.machine.devices,
        records=fingerprint.records,
    )
    has_boxes = fingerprint.task == "detection" and fingerprint.kind == "picture"
    sides = sampled_box_sides(path, split) if has_boxes else None
    plan = plan_auto(fingerprint, choice, planner, sides)
    return replace(plan, lines=[*plan.lines, *_advice_lines(manifest, path, split)])


def _advice_lines(manifest: Manifest, path: str, split: str) -> list[str]:
    """Return lines on what the conversion should choose differently, with its command; none if nothing."""
    from halofeed.pipelines.source_registry import recall
    from halofeed.trainer.auto.conversion_advice import conversion_advice
    from halofeed.trainer.auto.fingerprint import fingerprint_of

    advice = conversion_advice(fingerprint_of(manifest, split))
    if advice is None:
        return []
    origin = recall(path, manifest)
    command = advice.command(manifest, path, "SOURCE" if origin is None else origin.source)
    return [*(f"conversion: {reason}" for reason in advice.reasons), f"conversion: for that run `{command}`"]


def configuring(
    settings: Sequence[Any], fields: Mapping[str, Any]
) -> Callable[[str, Mapping[str, Any]], TrainConfig]:
    """Return a function from a recipe and its changes to a config, with the user's settings on top.

    Args:
        settings: settings as of `TrainConfig.changed`.
        fields: fields of the config by name.
    """
    from halofeed.trainer.config import load_config, reconfigured

    def configure(recipe: str, changes: Mapping[str, Any]) -> TrainConfig:
        return reconfigured(load_config(recipe).changed(**changes), settings, **fields)

    return configure


def _of_saved_run(out: str) -> AutoConfig | None:
    """Return the configuration of a run that has saved a step; None if there is none."""
    from halofeed.schemas.file_layout import CHECKPOINTS, RUN_FILE
    from halofeed.trainer.checkpoint import saved_steps
    from halofeed.trainer.run_folder import open_run

    folder = Path(out)
    if not (folder / RUN_FILE).is_file() or not saved_steps(folder / CHECKPOINTS):
        return None
    run = open_run(folder)
    return AutoConfig(config=run.config, lines=tuple(run.document.get("plan", ())))


def toml_of(config: TrainConfig, lines: tuple[str, ...]) -> str:
    """Return a configuration as the text of a TOML file, with a comment for each choice.

    Args:
        config: the configuration; fields that have their default are left out.
        lines: one line for each choice.
    """
    from halofeed.trainer.config import TrainConfig

    defaults, document = TrainConfig().to_json(), config.to_json()
    text = [f"# {line}" for line in lines]
    text += ["", *(f"{name} = {_toml(value)}" for name, value in document.items() if value != defaults[name])]
    return "\n".join(text) + "\n"


def _toml(value: Any) -> str:
    """Return a JSON value in TOML, on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        from json import dumps

        return dumps(value)
    return repr(value)
