"""Which options does a training run have? One frozen dataclass; the named ones are the files of `configs/`.

Nothing here imports JAX, so that the command line can set the platform first.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from halofeed.errors import UsageError
from halofeed.prep.options.option import option
from halofeed.schemas.kinds import EARLY_KINDS
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition
from halofeed.system.atomic_files import read_regular

_MOST_BYTES = 1 << 20
COMPUTE_DTYPES = ("bfloat16", "float32")
OPTIMIZER_NAMES = ("sgd", "adam", "adamw", "lamb", "lars")
SCHEDULE_NAMES = ("cosine", "manual_step", "constant")
NORMALIZATIONS = ("dataset", "foreground", "caffe", "tf")
DEFAULT_CONFIGS = {
    ("classification", "picture"): "classifier_small",
    ("classification", "volume"): "classifier_small",
    ("classification", "clip"): "classifier_small",
    ("detection", "picture"): "retinanet_small",
    ("segmentation", "picture"): "unet2d_small",
    ("segmentation", "volume"): "unet3d_small",
    ("segmentation", "clip"): "unet3d_small",
}
"""Per task and kind, what `halofeed train` takes where no config is named."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a training run, beside the data.

    Fields that have a help text are options of the command line too; all can be set by `--set name=value`.

    Args:
        model_options: of the model, by name; `--set model.width=16`.
        task_options: of the task, by name; `--set task.alpha=0.75`.
        image_shape: that the config is made for, [height, width, channel] or [depth, height, width, channel];
            another one is refused with the way to convert. None takes what the data set has.
        normalization: "dataset" by the mean and deviation of the data set's manifest; "foreground", of volumes, by
            those of the labeled voxels, clipped to their percentiles 0.5 and 99.5, as nnU-Net does with CT; "caffe" and
            "tf" as the weights of keras.applications expect it.
        augment: tables of a `name` in halofeed.loader.augment and its arguments, applied in order.
        device_augment: the same of halofeed.loader.device, applied within the training step, before normalization.
        backbone_weights: a file of keras.applications weights (.weights.h5, .h5); "" draws them at random.
        warmup_learning_rate: at step 0; it rises linearly to `learning_rate` at `warmup_steps`.
        hold_steps: of cosine, after the warm-up.
        boundaries, rates: of manual_step: rates[i] from step boundaries[i - 1] on.
        base_batch_size: the batch that `learning_rate` is meant for; the rates grow linearly with the batch.
            0 takes them as they are.
        weight_decay: of kernels only; norms and biases are spared. With sgd it is L2, added to the gradients.
        clip_norm: gradients of a greater global norm are scaled down to it; 0 for none.
        accumulate_steps: how many batches make one update.
        average_decay: of the moving average of the parameters that is evaluated; 0 for none.
        norm_decay: of batch norm's running statistics.

    Raises:
        UsageError: with every option that is wrong; PartitionError if the partition breaks a rule.
    """

    model: str = option("classifier", "which network; `halofeed configs` lists them")
    model_options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    image_shape: tuple[int, ...] | None = None
    normalization: str = "dataset"
    augment: tuple[Mapping[str, Any], ...] = ()
    device_augment: tuple[Mapping[str, Any], ...] = ()
    backbone_weights: str = option("", "a file of keras.applications weights for the backbone")

    steps: int = option(100, "how many steps to take")
    batch_size: int = option(8, "images in a step, over all devices")
    seed: int = option(0, "draws the initial parameters and the order of the data")

    optimizer: str = option("sgd", "of gradients to updates", choices=OPTIMIZER_NAMES)
    momentum: float = 0.9
    learning_rate: float = option(0.05, "the highest rate")
    schedule: str = option("cosine", "how the rate changes after its warm-up", choices=SCHEDULE_NAMES)
    warmup_steps: int = 0
    warmup_learning_rate: float = 0.0
    hold_steps: int = 0
    boundaries: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    base_batch_size: int = 0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    accumulate_steps: int = 1
    average_decay: float = 0.0
    norm_decay: float = 0.997

    compute_dtype: str = option("bfloat16", "precision of the activations", choices=COMPUTE_DTYPES)
    remat: bool = option(
        False, "keep the convolutions' outputs alone for the backward pass, and compute the rest again"
    )
    cores_per_replica: int = option(1, "over how many cores each image is split: 1, 2, 4, ..., 128")
    partition: str = option(
        "",
        "parts along each axis, batch first, e.g. image=1,4,1,1 for 4 bands of rows; part several by ;",
    )

    evaluate_every: int = option(0, "steps between evaluations; 0 evaluates once, at the end")
    evaluate_split: str = option(
        "", "split to evaluate on (default: validation, val or test, the first there is)"
    )
    evaluate_batch_size: int = option(0, "images in a step of evaluation (default: the batch size)")
    checkpoint_every: int = option(0, "steps between checkpoints; 0 saves at evaluations and at the end")
    keep_last: int = option(2, "how many of the last checkpoints to keep, beside the best")

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
        if cores > 1 and not self.parsed_partition().dims:
            wrong.append(
                f"partition: expected one for {cores} cores per replica, else each core does the same work; "
                f"pass --partition image=1,{cores},1,1 (of volumes image=1,{cores},1,1,1)"
            )
        if wrong:
            raise UsageError("; ".join(wrong))

    def _rules(self) -> list[tuple[str, str, bool]]:
        positive = ("steps", "batch_size", "accumulate_steps", "keep_last")
        natural = (
            *("seed", "warmup_steps", "hold_steps", "base_batch_size", "evaluate_every"),
            *("evaluate_batch_size", "checkpoint_every", "warmup_learning_rate", "weight_decay", "clip_norm"),
        )
        choices = {
            "optimizer": OPTIMIZER_NAMES,
            "schedule": SCHEDULE_NAMES,
            "compute_dtype": COMPUTE_DTYPES,
            "normalization": NORMALIZATIONS,
        }
        return [
            *((name, "1 or more", getattr(self, name) >= 1) for name in positive),
            *((name, "0 or more", getattr(self, name) >= 0) for name in natural),
            *(
                (name, f"one of {', '.join(known)}", getattr(self, name) in known)
                for name, known in choices.items()
            ),
            ("learning_rate", "more than 0", self.learning_rate > 0),
            (
                "image_shape",
                "[height, width, channel] or [depth, height, width, channel], each 1 or more",
                self.image_shape is None
                or (len(self.image_shape) in EARLY_KINDS and min(self.image_shape) >= 1),
            ),
            *(
                (name, "0 or more and less than 1", 0 <= getattr(self, name) < 1)
                for name in ("average_decay", "norm_decay", "momentum")
            ),
        ]

    def parsed_partition(self) -> Partition:
        """The partition that `cores_per_replica` and `partition` spell.

        >>> TrainConfig(cores_per_replica=4, partition="image=1,2,2,1").parsed_partition().dims
        {'image': (1, 2, 2, 1)}
        """
        return Partition.parse(self.partition, cores_per_replica=self.cores_per_replica)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrainConfig:
        """What `to_json` gave, or a TOML file holds; UsageError that names unknown keys and wrong types."""
        return cls(**_checked(document))

    def changed(self, settings: Sequence[str] = (), **changes: Any) -> TrainConfig:
        """This config with `name=value` settings, as --set takes them, and with changed fields.

        Values are TOML: numbers, true, [1, 2], "text"; what is not TOML is text. `model.NAME` and `task.NAME` set
        one option of the model or the task.

        >>> TrainConfig().changed(["steps=20", "model.features=[8, 8]"], batch_size=4).model_options
        {'features': [8, 8]}
        """
        document = {name: getattr(self, name) for name in _FIELDS}
        for setting in settings:
            name, equals, text = setting.partition("=")
            name = name.strip().replace("-", "_")
            if not equals:
                raise UsageError(f"--set {setting}: expected name=value, e.g. steps=1000 or model.width=16")
            part, dot, key = name.partition(".")
            if dot and part in ("model", "task"):
                options = f"{part}_options"
                document[options] = {**document[options], key: _value(text)}
            else:
                document[name] = _value(text)
        return TrainConfig.from_json({**document, **changes})


_FIELDS: dict[str, Any] = typing.get_type_hints(TrainConfig)


def named_configs() -> dict[str, str]:
    """The text of each config that comes with halofeed, by name."""
    folder = files("halofeed.trainer") / "configs"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(".toml"): entry.read_text("utf-8")
        for entry in entries
        if entry.name.endswith(".toml")
    }


def config_summary(text: str) -> str:
    """The first line of a config's text, without its mark.

    >>> config_summary("# Small.\\nsteps = 3")
    'Small.'
    """
    return text.partition("\n")[0].lstrip("# ")


def default_config(manifest: Manifest) -> str:
    """The name of the small config that learns a data set's task."""
    return DEFAULT_CONFIGS[manifest.task, manifest.kind.name]


def load_config(name: str) -> TrainConfig:
    """A config by its name, or from a TOML file of one's own; UsageError that lists the known names."""
    try:
        return TrainConfig.from_json(tomllib.loads(config_text(name)))
    except (tomllib.TOMLDecodeError, UsageError) as error:
        raise UsageError(f"--config {name}: {error}") from error


def config_text(name: str) -> str:
    """The text of a config by its name, or of a TOML file of one's own.

    Raises:
        UsageError: there is none of the name, which is no file's, or the file cannot be read.
    """
    known = named_configs()
    if name in known:
        return known[name]
    if not name.endswith(".toml"):
        raise UsageError(f"not known; known: {', '.join(known)}; or name a .toml file")
    try:
        return read_regular(name, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _checked(document: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(document) - set(_FIELDS)):
        raise UsageError(f"{unknown[0]}: no such setting; known: {', '.join(_FIELDS)}")
    return {name: _as_kind(name, value) for name, value in document.items()}


def _as_kind(name: str, value: Any) -> Any:
    hint = _FIELDS[name]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    kinds: dict[Any, tuple[type, ...]] = {int: (int,), float: (float,), str: (str,), bool: (bool,)}
    origin = typing.get_origin(hint)
    expected = kinds.get(hint, (Mapping,) if origin is Mapping else (list, tuple, type(None)))
    if not isinstance(value, expected) or (isinstance(value, bool) and hint is not bool):
        names = " or ".join("table" if kind is Mapping else kind.__name__ for kind in expected[:1])
        raise UsageError(f"{name}: expected a value of type {names}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
