"""Options of a training run: one frozen dataclass, read from the TOML files in `configs/` or from a user's file.

This file does not import JAX, so that the command line can set the platform first.
"""

from __future__ import annotations

import dataclasses
import os
import pkgutil
import re
import sys
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from halofeed.prep.options.option import option
from halofeed.schemas.file_layout import CHECKPOINTS, MANIFEST, SIGNATURE, read_run
from halofeed.schemas.kinds import KIND_BY_RANK
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition
from halofeed.storage.atomic_files import read_regular
from halofeed.system.console import print_status
from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean
from halofeed.trainer.pipeline_config import read_pipeline

_MAX_FILE_BYTES = 1 << 20
COMPUTE_DTYPES = ("bfloat16", "float32")
OPTIMIZER_NAMES = ("sgd", "adam", "adamw", "lamb", "lars")
SCHEDULE_NAMES = ("cosine", "polynomial", "manual_step", "exponential", "constant")
FALLING_TO_ZERO = ("cosine", "polynomial")
"""Schedules that reach 0 at the end of the run, and so depend on its length."""
SETTINGS_OF_SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "hold_steps": ("cosine",),
    "schedule_steps": FALLING_TO_ZERO,
    "schedule_power": ("polynomial",),
    **dict.fromkeys(("boundaries", "rates"), ("manual_step",)),
    **dict.fromkeys(("decay_steps", "decay_rate"), ("exponential",)),
}
"""Settings that only some schedules use, with the names of those."""
RANDOM_CROP = "RandomCrop"
BATCH_MIX = "BatchMix"
NORMALIZATIONS = ("dataset", "foreground", "caffe", "tf")
NORM_SCOPES = ("global", "replica", "core")
REPEAT_FACTOR = "repeat-factor"
DRAWS = ("", "class", "foreground", REPEAT_FACTOR)
DEFAULT_CONFIGS = {
    ("classification", "picture"): "classifier_small",
    ("classification", "volume"): "classifier_small",
    ("classification", "clip"): "classifier_small",
    ("detection", "picture"): "retinanet_small",
    ("segmentation", "picture"): "unet2d_small",
    ("segmentation", "volume"): "unet3d_small",
    ("segmentation", "clip"): "unet3d_small",
}
"""Default config of `halofeed train` by task and kind of image."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of a training run, except the data.

    A field with a help text is also an option of the command line. `--set name=value` sets any field.

    Args:
        model_options: options of the model by name; `--set model.width=16`.
        task_options: options of the task by name; `--set task.alpha=0.75`.
        image_shape: required shape of the images, [height, width, channel] or [depth, height, width, channel]; None
            takes the shape of the data set.
        normalization: "dataset" uses the mean and deviation in the data set's manifest. "foreground" (volumes) uses
            those of the labeled voxels and clips to their percentiles 0.5 and 99.5, as nnU-Net does with CT. "caffe"
            and "tf" are the normalizations of keras.applications weights.
        augment: tables with a `name` in halofeed.loader.augment and its arguments, applied in order.
        foreground_share: share of the windows of RandomCrop that hold a voxel of a class, as far as their record has
            one: its class is chosen first, each class of the record equally often. It replaces RandomCrop's
            `foreground`; nnU-Net takes 0.33. 0 changes nothing.
        device_augment: the same for halofeed.loader.device, applied in the training step before the normalization.
        draw_by: how often each record is drawn, as `Loader(draw_by=)` takes it: "class" (each class equally often),
            "foreground" (records with objects or labels as often as without), "repeat-factor" (records of rare classes
            more often); "" draws each once per epoch.
        repeat_threshold: share of the records below which "repeat-factor" repeats a class.
        backbone_weights: file of keras.applications weights (.weights.h5, .h5); "" initializes the weights at random.
        init: run whose weights are the initial ones, by its best checkpoint, or RUN/checkpoints/00000100 for another
            one. Its classes may differ; then the outputs per class are new.
        nesterov: with sgd, apply the momentum once more to each update, as nnU-Net does with momentum 0.99.
        schedule_steps: steps over which a cosine or polynomial falls; 0 takes `steps`. With 150 a run of 100 steps can
            be continued to 150, and is the same as one of 150 steps.
        warmup_learning_rate: rate at step 0; it rises linearly to `learning_rate` at `warmup_steps`.
        hold_steps: number of steps at the highest rate, between warm-up and cosine.
        schedule_power: exponent of a polynomial rate; 0 takes 0.9, as DeepLab and nnU-Net do.
        boundaries: steps at which the rate of manual_step changes.
        rates: rates of manual_step: rates[i] applies from step boundaries[i - 1].
        decay_steps: steps in which an exponential rate falls by the factor `decay_rate`.
        decay_rate: factor of an exponential rate, between 0 and 1.
        base_batch_size: batch size for which `learning_rate` is given; the rates grow linearly with the batch. 0 uses
            the rates unchanged.
        weight_decay: decay of kernels, not of norms and biases. With sgd it is L2, added to the gradients.
        clip_norm: maximum global norm of the gradients; larger ones are scaled down. 0 is no limit.
        accumulate_steps: number of batches per update.
        average_decay: decay of the moving average of the parameters, which is evaluated; 0 for no average.
        norm_decay: decay of batch norm's running statistics.
        norm_epsilon: value that batch norm adds to the variance, unless the model has its own.
        norm_scope: "global" computes the statistics of batch norm over the complete batch, so that they do not depend
            on the number of devices. "replica" computes them for each replica, "core" for each core.

    Raises:
        UsageError: options are invalid; the message names all of them.
        PartitionError: the partition breaks a rule.
    """

    model: str = option(
        "classifier",
        "name of the network, which `halofeed configs` lists, or package:Class of your own",
        brief=True,
    )
    task: str = option("", "package:Class of a task of your own (default: the data set's)")
    model_options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = None
    normalization: str = "dataset"
    augment: tuple[Mapping[str, Any], ...] = ()
    foreground_share: float = 0.0
    device_augment: tuple[Mapping[str, Any], ...] = ()
    draw_by: str = ""
    repeat_threshold: float = 0.001
    backbone_weights: str = option("", "file of keras.applications weights for the backbone")
    init: str = option(
        "",
        "run whose weights to start from: its best checkpoint, or RUN/checkpoints/00000100. Its classes may differ; "
        "then the outputs per class are new. Without --config the options are that run's too",
        brief="run whose weights to start from, also with other classes",
        metavar="RUN",
    )

    steps: int = option(100, "number of steps to take", brief=True)
    batch_size: int = option(8, "images per step, over all devices", brief=True)
    iterations_per_loop: int = option(
        1, "steps that are dispatched before their results are awaited, as of TPUConfig; for very short steps"
    )
    seed: int = option(
        0,
        "seed of the initial parameters and of the order of the data",
        brief=True,
    )

    optimizer: str = option("sgd", "name of the optimizer", choices=OPTIMIZER_NAMES)
    momentum: float = 0.9
    nesterov: bool = False
    learning_rate: float = option(0.05, "highest learning rate", brief=True)
    schedule: str = option("cosine", "change of the rate after its warm-up", choices=SCHEDULE_NAMES)
    warmup_steps: int = 0
    warmup_learning_rate: float = 0.0
    hold_steps: int = 0
    schedule_steps: int = 0
    schedule_power: float = 0.0
    boundaries: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    decay_steps: int = 0
    decay_rate: float = 0.0
    base_batch_size: int = 0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    accumulate_steps: int = 1
    average_decay: float = 0.0
    norm_decay: float = 0.997
    norm_epsilon: float = 1e-3
    norm_scope: str = "global"

    compute_dtype: str = option("bfloat16", "precision of the activations", choices=COMPUTE_DTYPES)
    remat: bool = option(
        False, "keep only the convolutions' outputs for the backward pass and compute the rest again"
    )
    cores_per_replica: int = option(
        1,
        "number of cores that share each image: 1, 2, 4, ..., 128",
        brief=True,
    )
    partition: str = option(
        "",
        "parts along each axis, batch first, e.g. image=1,4,1,1 for 4 bands of rows; separate several by ;. It "
        "takes TPUConfig's lists too: '[[1,4,1,1],None]'",
        brief="parts along each axis, e.g. image=1,4,1,1 for 4 bands of rows",
    )

    evaluate_every: int = option(
        0,
        "steps between evaluations; 0 evaluates once, at the end",
        brief=True,
    )
    evaluate_split: str = option(
        "", "split to evaluate on (default: the first of validation, val and test that exists)"
    )
    evaluate_batch_size: int = option(0, "images per evaluation step (default: the batch size)")
    checkpoint_every: int = option(
        0,
        "steps between checkpoints; 0 saves at evaluations and at the end",
        brief=True,
    )
    keep_last: int = option(2, "number of last checkpoints to keep, besides the best")

    def __post_init__(self) -> None:
        for name in ("boundaries", "rates", "augment", "device_augment"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("model_options", "task_options"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        if self.image_shape is not None:
            object.__setattr__(self, "image_shape", tuple(self.image_shape))
        wrong = [
            f"{name.replace('_', ' ')}: expected {expected}, got {getattr(self, name)}"
            for name, expected, right in self._rules()
            if not right
        ]
        cores = self.parsed_partition().cores_per_replica
        # Each core would compute the complete image.
        if cores > 1 and not self.parsed_partition().dims:
            wrong.append(
                f"partition: expected one for {cores} cores per replica, else each core does the same work; "
                f"pass --partition image=1,{cores},1,1 (for volumes image=1,{cores},1,1,1)"
            )
        if self.init and self.backbone_weights:
            wrong.append(
                f"init {self.init}: has weights of the backbone too; leave --backbone-weights out, or where the "
                "recipe names them, add --set backbone_weights="
            )
        if wrong:
            raise UsageError("; ".join(wrong))

    def _rules(self) -> list[tuple[str, str, bool]]:
        positive = ("steps", "batch_size", "iterations_per_loop", "accumulate_steps", "keep_last")
        natural = (
            *("seed", "warmup_steps", "hold_steps", "schedule_steps", "base_batch_size", "evaluate_every"),
            *("evaluate_batch_size", "checkpoint_every", "warmup_learning_rate", "weight_decay", "clip_norm"),
            "schedule_power",
        )
        choices = {
            "optimizer": OPTIMIZER_NAMES,
            "schedule": SCHEDULE_NAMES,
            "compute_dtype": COMPUTE_DTYPES,
            "normalization": NORMALIZATIONS,
            "norm_scope": NORM_SCOPES,
            "draw_by": DRAWS,
        }
        return [
            *((name, "1 or more", getattr(self, name) >= 1) for name in positive),
            *((name, "0 or more", getattr(self, name) >= 0) for name in natural),
            *(
                (name, f"one of {', '.join(filter(None, known))}", getattr(self, name) in known)
                for name, known in choices.items()
            ),
            *((name, "more than 0", getattr(self, name) > 0) for name in ("learning_rate", "norm_epsilon")),
            ("foreground_share", "0 to 1", 0 <= self.foreground_share <= 1),
            ("repeat_threshold", "more than 0 up to 1", 0 < self.repeat_threshold <= 1),
            (
                "image_shape",
                "[height, width, channel] or [depth, height, width, channel], each 1 or more",
                self.image_shape is None
                or (len(self.image_shape) in KIND_BY_RANK and min(self.image_shape) >= 1),
            ),
            *(
                (name, "0 or more and less than 1", 0 <= getattr(self, name) < 1)
                for name in ("average_decay", "norm_decay", "momentum")
            ),
        ]

    @property
    def schedule_updates(self) -> int:
        """Updates over which a cosine or polynomial falls.

        >>> TrainConfig(steps=150, schedule_steps=100, accumulate_steps=4).schedule_updates
        25
        """
        return (self.schedule_steps or self.steps) // self.accumulate_steps

    def loader_augment(self) -> list[Mapping[str, Any]]:
        """Return the augmentations of the loader, with `foreground_share` in place of RandomCrop's `foreground`.

        Raises:
            UsageError: there is a share and no RandomCrop.

        >>> TrainConfig(augment=({"name": "RandomCrop", "sides": [24, 24]},), foreground_share=0.33).loader_augment()
        [{'name': 'RandomCrop', 'sides': [24, 24], 'foreground': 0.33, 'by_class': True}]
        """
        share = self.foreground_share
        if share and RANDOM_CROP not in [table.get("name") for table in self.augment]:
            raise UsageError(
                f"foreground_share: places the windows of {RANDOM_CROP}, and the recipe has none; leave it out, or cut "
                f"windows: --set 'augment=[{{name=\"{RANDOM_CROP}\",sides=[32,32]}}]'"
            )
        return [
            {**table, "foreground": share, "by_class": True}
            if share and table.get("name") == RANDOM_CROP
            else table
            for table in self.augment
        ]

    def check_effects(self) -> None:
        """Raise UsageError for options that would change nothing; a run that was trained with them can still be read.

        >>> TrainConfig(batch_size=1, device_augment=({"name": "BatchMix"},)).check_effects()
        Traceback (most recent call last):
        halofeed.system.errors.UsageError: device_augment BatchMix: mixes images of a batch, and batch_size is 1; ...
        """
        without = []
        if self.repeat_threshold != TrainConfig.repeat_threshold and self.draw_by != REPEAT_FACTOR:
            without.append(
                f"repeat_threshold {self.repeat_threshold:g}: has an effect only with --set draw_by={REPEAT_FACTOR}; "
                "add it, or leave repeat_threshold out"
            )
        if self.model_options.get("anisotropic") and self.model_options.get("strides"):
            without.append(
                "model.anisotropic: has no effect beside model.strides, which state the halvings of each axis; add "
                "--set model.anisotropic=false, or --set model.strides=[]"
            )
        if self.batch_size == 1 and BATCH_MIX in [table.get("name") for table in self.device_augment]:
            without.append(
                f"device_augment {BATCH_MIX}: mixes images of a batch, and batch_size is 1; pass --batch-size 2 or "
                "more, or leave it out"
            )
        if without:
            raise UsageError("; ".join(without))

    @property
    def has_mask_head(self) -> bool:
        """Return whether the model predicts a mask of each object."""
        return bool(self.model_options.get("mask_head", False))

    @property
    def options_of_task(self) -> dict[str, Any]:
        """Return `task_options` with those that follow from the model.

        >>> TrainConfig(model_options={"mask_head": True}, task_options={"alpha": 0.75}).options_of_task
        {'masks': True, 'alpha': 0.75}
        """
        return {**({"masks": True} if self.has_mask_head else {}), **self.task_options}

    def parsed_partition(self) -> Partition:
        """Return the partition that `cores_per_replica` and `partition` describe.

        >>> TrainConfig(cores_per_replica=4, partition="image=1,2,2,1").parsed_partition().dims
        {'image': (1, 2, 2, 1)}
        """
        return Partition.parse(self.partition, cores_per_replica=self.cores_per_replica)

    def to_json(self) -> dict[str, Any]:
        """Return the config as plain JSON values."""
        return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrainConfig:
        """Read the output of `to_json` or a TOML file; UsageError names an unknown key or a wrong type."""
        if unknown := sorted(set(document) - set(_FIELDS)):
            near = did_you_mean(unknown[0], _FIELDS)
            raise UsageError(f"{unknown[0]}: no such setting; {near}known: {', '.join(_FIELDS)}")
        return cls(**{name: _check_type(name, value) for name, value in document.items()})

    def changed(self, settings: Sequence[str | tuple[str, Any]] = (), **changes: Any) -> TrainConfig:
        """Return this config with settings, `name=value` as --set takes them or (name, value), and with changed fields.

        The value of a text is TOML (numbers, true, [1, 2], "text"); any other one is text. `model.NAME` and
        `task.NAME` set one option of the model or the task.

        >>> TrainConfig().changed(["steps=20", "model.features=[8, 8]"], batch_size=4).model_options
        {'features': [8, 8]}
        """
        document = {name: getattr(self, name) for name in _FIELDS}
        for setting in settings:
            name, value = _parse_setting(setting) if isinstance(setting, str) else setting
            part, dot, key = name.partition(".")
            # Other names with a dot are no settings, and `from_json` lists the known ones.
            if dot and part in ("model", "task"):
                options = f"{part}_options"
                document[options] = {**document[options], key: value}
            else:
                document[name] = value
        return TrainConfig.from_json({**document, **changes})


def import_named(setting: str, name: str) -> Any:
    """Return the object that `package.module:Name` names; the current folder is searched last.

    Args:
        setting: field that holds the name, for messages.
        name: name of the object.

    Raises:
        UsageError: it cannot be imported.
    """
    # `halofeed` is a script, for which Python does not search the current folder.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{setting} {name}: cannot be imported ({error}); expected package.module:Class, installed or below the "
            "current folder"
        ) from error


_FIELDS: dict[str, Any] = typing.get_type_hints(TrainConfig)
_DEFAULTS: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(TrainConfig)}


def named_configs() -> dict[str, str]:
    """Return the text of each config that comes with halofeed, by name."""
    folder = files("halofeed.trainer") / "configs"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(".toml"): entry.read_text("utf-8")
        for entry in entries
        if entry.name.endswith(".toml")
    }


def config_summary(text: str) -> str:
    """Return the first line of a config's text, without the #.

    >>> config_summary("# Small.\\nsteps = 3")
    'Small.'
    """
    return text.partition("\n")[0].lstrip("# ")


def is_untrained(task: str, kind: str) -> bool:
    """Return whether no bundled model trains on records of a task and a kind of image: boxes in volumes."""
    return task == "detection" and kind == "volume"


def no_detector_of_volumes(name: str) -> UsageError:
    """Return the error for a data set, by its name, that no bundled model trains on."""
    return UsageError(
        f"{name}: it has boxes in volumes, and the trainer has no detector of volumes; train a model of your own on "
        "the batches of halofeed.loader"
    )


def default_config(manifest: Manifest) -> str:
    """Return the name of the default config for a data set; UsageError if no bundled model trains on it."""
    if is_untrained(manifest.task, manifest.kind.name):
        raise no_detector_of_volumes(manifest.name)
    return DEFAULT_CONFIGS[manifest.task, manifest.kind.name]


def load_config(name: str) -> TrainConfig:
    """Return the config of `read_config`."""
    return read_config(name)[0]


def read_config(name: str) -> tuple[TrainConfig, list[str]]:
    """Read a config by its name, from a user's TOML file, or from a pipeline.config of the TF Object Detection API.

    Returns:
        The config, and a line for each field of a pipeline.config that was translated.

    Raises:
        UsageError: the name is unknown (with the known ones), or the file cannot be read or translated.
    """
    try:
        text = config_text(name)
        if not name.endswith(".config"):
            return TrainConfig.from_json(tomllib.loads(text)), []
        settings, mapped = read_pipeline(text)
        return TrainConfig.from_json(settings), mapped
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f'--config {name}: {error}; TOML has name = value on each line, and text in quotes: model = "unet"'
        ) from error
    except UsageError as error:
        raise UsageError(f"--config {name}: {error}") from error


def run_and_checkpoint(path: str | Path) -> tuple[Path, str]:
    """Return the run that `init` names, and its checkpoint as `Run.restore` names it.

    Args:
        path: folder of a run, or of one of its checkpoints.

    Raises:
        UsageError: the folder is an export, which has no arrays by name, or a data set.

    >>> run_and_checkpoint("runs/cards/checkpoints/00000100"), run_and_checkpoint("runs/cards")
    ((PosixPath('runs/cards'), '100'), (PosixPath('runs/cards'), 'best'))
    """
    folder = Path(path)
    if (folder / SIGNATURE).is_file():
        raise UsageError(
            f"--init {path}: is an exported program, which cannot be trained; name the run that it was exported from"
        )
    if (folder / MANIFEST).is_file():
        raise UsageError(f"--init {path}: is a data set, not a training run; name the folder of a run")
    if folder.parent.name == CHECKPOINTS and re.fullmatch(r"\d{8}", folder.name):
        return folder.parent.parent, str(int(folder.name))
    return folder, "best"


def config_of_run(folder: str | Path) -> TrainConfig:
    """Return the config of a run for another one that starts from its weights, maybe on other data.

    Raises:
        UsageError: the folder holds no run.
        CorruptFileError: its run.json cannot be read.
    """
    of_its_data = {"init": "", "backbone_weights": "", "image_shape": None, "evaluate_split": ""}
    return TrainConfig.from_json({**read_run(folder)["config"], **of_its_data})


def configure(
    source: str | TrainConfig, settings: Sequence[str | tuple[str, Any]], **changes: Any
) -> TrainConfig:
    """Return a config, or that of a name, with changes as of `TrainConfig.changed`, and print what follows from them.

    Where a change makes the run shorter than the warm-up of a cosine or polynomial, the warm-up becomes a fifth of the
    run. Where a change names another schedule, what the recipe sets for its own schedule alone is left out, and the
    highest of its rates is the learning rate if it has no other.

    >>> configure("retinanet_resnet50_fpn_640", ["steps=10"]).warmup_steps
    2
    """
    config, lines = read_config(source) if isinstance(source, str) else (source, [])
    changed = reconfigured(config, settings, **changes)
    if changed.warmup_steps != config.changed(settings, **changes).warmup_steps:
        line = f"a fifth of this run's {changed.schedule_updates} updates, in place of {config.warmup_steps}"
        lines = [*lines, f"warmup_steps = {changed.warmup_steps}, {line}"]
    left = [name for name in SETTINGS_OF_SCHEDULES if getattr(config, name) and not getattr(changed, name)]
    if left and changed.schedule != config.schedule:
        rate = f"; learning_rate = {changed.learning_rate:g}"
        lines = [
            *lines,
            f"{' and '.join(left)} of the schedule {config.schedule}: left out for {changed.schedule}{rate}",
        ]
    for line in lines:
        print_status(line)
    return changed


def reconfigured(
    config: TrainConfig, settings: Sequence[str | tuple[str, Any]], **changes: Any
) -> TrainConfig:
    """Return a config with changes, as `configure` without its lines.

    >>> reconfigured(load_config("retinanet_resnet50_fpn_640"), ["steps=10"]).warmup_steps
    2
    >>> cosine = reconfigured(load_config("classifier_resnet20_cifar"), ["schedule=cosine"])
    >>> cosine.schedule, cosine.rates
    ('cosine', ())
    """
    changed, warmup = config.changed(settings, **changes), config.warmup_steps
    if changed.schedule != config.schedule:
        # What the user sets for a schedule stays, so that `build_schedule` refuses it where it has no effect.
        left: dict[str, Any] = {
            name: _DEFAULTS[name]
            for name, schedules in SETTINGS_OF_SCHEDULES.items()
            if changed.schedule not in schedules and getattr(changed, name) == getattr(config, name)
        }
        # A recipe of manual_step may state its rates alone.
        if config.rates and changed.learning_rate == config.learning_rate == _DEFAULTS["learning_rate"]:
            left["learning_rate"] = max(config.rates)
        changed = changed.changed(**left)
    before, updates = (one.schedule_updates for one in (config, changed))
    # A recipe whose own steps are fewer than its warm-up is a mistake, and is refused elsewhere.
    depends = changed.schedule in FALLING_TO_ZERO and changed.warmup_steps == warmup
    return changed.changed(warmup_steps=updates // 5) if updates < warmup <= before and depends else changed


def config_text(name: str) -> str:
    """Return the text of a config by its name, or of a user's file.

    Raises:
        UsageError: the name is unknown and not a .toml or .config file, or the file cannot be read.
    """
    known = named_configs()
    if name in known:
        return known[name]
    is_file = name.endswith((".toml", ".config"))
    if not is_file and ("/" in name or "." in name):
        raise UsageError(
            "expected a recipe's name, a .toml file or a pipeline.config; `halofeed configs retinanet_small > "
            "mine.toml` writes a .toml file"
        )
    if not is_file:
        near = did_you_mean(name, known)
        raise UsageError(
            f"not known; {near}known: {', '.join(known)}; or name a .toml file or a pipeline.config; "
            "`halofeed configs` lists the networks too"
        )
    try:
        return read_regular(name, _MAX_FILE_BYTES).decode()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}; name a .toml file that is there"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot be read: {error}") from error


_TYPE_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Mapping: "a table",
    list: "a list such as [1, 2]",
}
_ITEM_TYPES: dict[str, tuple[type, ...]] = {
    "image_shape": (int,),
    "boundaries": (int,),
    "rates": (int, float),
}
"""Types of the items of lists of numbers."""


def _parse_setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: expected name=value, e.g. steps=1000 or model.width=16")
    return name.strip().replace("-", "_"), _value(value)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _check_type(name: str, value: Any) -> Any:
    """Return the value of a field, with an integer turned into a float where the field has floats."""
    hint = _FIELDS[name]
    if name == "partition" and isinstance(value, list):
        return str(value)  # TPUConfig's lists
    # TOML writes 1 where a rate of 1.0 is meant.
    if hint is float and _is_one_of(value, int):
        return float(value)
    types = _types_of(hint)
    wrong = not _is_one_of(value, *types)
    if not wrong and name in _ITEM_TYPES and value is not None:
        wrong = not all(_is_one_of(item, *_ITEM_TYPES[name]) for item in value)
    if wrong:
        expected = 'a list such as [{name="FlipLeftRight"}]' if "augment" in name else _TYPE_WORDS[types[0]]
        more = "; its options are model.NAME, such as model.width=16" if name == "model" else ""
        raise UsageError(f"{name}: expected {expected}, got {value!r}{more}")
    return value


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the types of the values of a field; the first is named in messages."""
    if hint in (int, float, str, bool):
        return (hint,)
    return (Mapping,) if typing.get_origin(hint) is Mapping else (list, tuple, type(None))


def _is_one_of(value: Any, *types: type) -> bool:
    """Return whether a value has one of some types; in Python a bool is an int, and in TOML it is not."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
