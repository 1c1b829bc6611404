"""Initial weights of a run: those of another run, or of a backbone of keras.applications.

A run may start from another one with other classes:

    part of the model                               taken from the other run
    ─────────────────                               ────────────────────────
    shapes do not depend on the classes             all of it, else the model is another one: an error
    outputs: parts with shapes that depend on them  the arrays that fit, if they do not depend on the classes
                                                    or the classes are the same; the others are new
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from halofeed.schemas.file_layout import RUN_FILE
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.config import TrainConfig, run_and_checkpoint
from halofeed.trainer.models.keras_weights import keras_normalization, load_backbone
from halofeed.trainer.run_folder import Run, open_run
from halofeed.trainer.step import TrainingSetup
from halofeed.trainer.task import DataFacts

Name = tuple[Any, ...]
"""Path of an array in a model, such as ("blocks", 0, "convolution", "kernel")."""

_FIXED_NORMALIZATIONS = {"caffe", "tf"}
"""Normalizations whose scale is not that of the data."""
_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Run whose weights another run starts from.

    Args:
        document: member of run.json: the run, its step and data set, and the parts of the model that are loaded or new.
        line: line for the user that says the same, and why parts are new.
    """

    document: Mapping[str, Any]
    line: str


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Weights to load into a new model.

    Args:
        load: function that loads them into a model, in place.
        origin: run that they come from; None for those of a backbone.
    """

    load: Callable[[nnx.Module], None]
    origin: Origin | None = None


def check_other_folder(config: TrainConfig, folder: str | Path | None) -> None:
    """Raise UsageError for a run that would start from its own weights."""
    if not config.init or folder is None:
        return
    if os.path.realpath(run_and_checkpoint(config.init)[0]) == os.path.realpath(folder):
        raise UsageError(
            f"--init {config.init}: is the run's own folder; leave --init out to resume that run, or name another "
            "folder with --out"
        )


def initial_weights(config: TrainConfig, facts: DataFacts, setup: TrainingSetup) -> InitialWeights | None:
    """Return the weights that a config names for a new run; None if all are drawn from the seed.

    Each process of a run reads them itself.

    Args:
        config: options of the run.
        facts: facts of its data set.
        setup: training setup of the run; its mesh holds the other run's state while it is read.

    Raises:
        UsageError: the other run or its checkpoint does not exist, or its model is another one.
        CorruptFileError: its checkpoint is damaged.
    """
    if config.init:
        return _of_run(config, facts, setup)
    if config.backbone_weights:
        return InitialWeights(load=partial(_load_keras_backbone, config))
    return None


def _load_keras_backbone(config: TrainConfig, model: nnx.Module) -> None:
    load_backbone(model, config.backbone_weights)
    expected = keras_normalization(model)
    # Other inputs than those of the training make the weights worthless, without an error.
    if config.normalization != expected:
        raise UsageError(
            f"normalization {config.normalization}: the backbone's weights were trained with {expected}; pass "
            f"--set normalization={expected}"
        )


def _of_run(config: TrainConfig, facts: DataFacts, setup: TrainingSetup) -> InitialWeights:
    run_folder, which = run_and_checkpoint(config.init)
    run = open_run(run_folder)
    _check_same_inputs(config, facts, run)
    # The mesh of this run, whatever that of the other one was.
    single = run.changed(cores_per_replica=1)
    other_setup = single.problem(setup.mesh)
    here, there = _shapes(setup, facts.classes), _shapes(other_setup, run.facts.classes)
    same_classes = facts.names == run.facts.names
    fitting, new = _fitting(here, there, same_classes=same_classes)
    if not fitting:
        raise _other_model(config, facts, run, ["no array has the name and the shape of one here"])
    if wrong := _misfits(here, there, new):
        raise _other_model(config, facts, run, wrong)
    *states, step = single.restore(other_setup, which)
    values = {name: np.asarray(leaf.addressable_data(0)) for name, leaf in _arrays(*states).items()}
    unused = _parts([name for name in there.arrays if name not in here.arrays], here.arrays)
    reason = "its shape differs" if same_classes else _difference_of_classes(run.facts, facts)
    document = {
        "run": config.init,
        "step": step,
        "data_name": run.document.get("data_name"),
        "data_version": run.document.get("data_version"),
        "loaded": _parts(fitting, new),
        "new": _parts(new, fitting),
    }
    line = (
        f"init {config.init}: weights after step {step}; loaded {_described(fitting, new)}"
        + (f"; new {_described(new, fitting)}, because {reason}" if new else "")
        + (f"; not used {', '.join(unused)}" if unused else "")
    )
    return InitialWeights(
        load=partial(_load, {name: values[name] for name in fitting}),
        origin=Origin(document=document, line=line),
    )


def _check_same_inputs(config: TrainConfig, facts: DataFacts, run: Run) -> None:
    """Raise UsageError for another task, other channels, or pixels on another fixed scale."""
    if run.facts.task != facts.task:
        raise UsageError(
            f"--init {config.init}: is a model for {run.facts.task}, the data set is for {facts.task}; name a run for "
            "that"
        )
    shape, trained_shape = facts.image_shape, run.facts.image_shape
    if len(shape) != len(trained_shape):
        raise UsageError(
            f"--init {config.init}: is a model for images {list(trained_shape)}, the data set has {list(shape)}; "
            f"name a run on images of {len(shape)} axes"
        )
    if shape[-1] != trained_shape[-1]:
        raise UsageError(
            f"--init {config.init}: was trained on {plural(trained_shape[-1], 'channel')}, the data set has "
            f"{shape[-1]}; convert the data with --recipe {shlex.quote(str(run.folder / RUN_FILE))}"
        )
    scales = {config.normalization, run.config.normalization}
    # Those of the data set and of its labeled voxels both give a mean of about 0 and a deviation of about 1.
    if len(scales) > 1 and scales & _FIXED_NORMALIZATIONS:
        raise UsageError(
            f"normalization {config.normalization}: the weights of {config.init} were trained with "
            f"{run.config.normalization}; pass --set normalization={run.config.normalization}"
        )


@dataclass(frozen=True, kw_only=True)
class _Shapes:
    """Shapes of a model's arrays by name, and which of them depend on the classes.

    Args:
        arrays: shape and dtype of each array.
        by_class: names of the arrays whose shape depends on the number of classes.
    """

    arrays: Mapping[Name, jax.ShapeDtypeStruct]
    by_class: frozenset[Name]

    @property
    def outputs(self) -> frozenset[Name]:
        """Names of the arrays in the parts of the model that have one by class: `head`, `outputs`."""
        parts = {name[0] for name in self.by_class}
        found = frozenset(name for name in self.arrays if name[0] in parts)
        # A model that keeps all of its layers in one part shows only by the shapes which are outputs.
        return found if len(found) < len(self.arrays) else self.by_class


def _shapes(setup: TrainingSetup, classes: int) -> _Shapes:
    # The model with one more class shows which shapes depend on their number, also for a user's own model.
    build: Callable[..., nnx.Module] = setup.build
    more = replace(setup, build=partial(build, classes=classes + 1))
    arrays, others = (
        _arrays(nnx.state(nnx.eval_shape(lambda one=one: one.new_model(0)))) for one in (setup, more)
    )
    by_class = {
        name for name, leaf in arrays.items() if name not in others or others[name].shape != leaf.shape
    }
    return _Shapes(arrays=arrays, by_class=frozenset(by_class))


def _arrays(*states: nnx.State[Any, Any]) -> dict[Name, Any]:
    """Return the arrays of states of a model by their names."""
    return {
        name: variable.get_value()
        for state in states
        for name, variable in nnx.to_flat_state(state)  # type: ignore[no-untyped-call]
    }


def _fitting(here: _Shapes, there: _Shapes, *, same_classes: bool) -> tuple[list[Name], list[Name]]:
    """Return the names of the arrays to load, and of those that are new."""
    fitting = [
        name
        for name, leaf in here.arrays.items()
        if name in there.arrays
        and (there.arrays[name].shape, there.arrays[name].dtype) == (leaf.shape, leaf.dtype)
        # Equal numbers of other classes have the same shapes, and their weights would predict the wrong ones.
        and (same_classes or name not in here.by_class)
    ]
    loaded = set(fitting)
    return fitting, [name for name in here.arrays if name not in loaded]


def _misfits(here: _Shapes, there: _Shapes, new: Iterable[Name]) -> list[str]:
    """Return a line for each array that is no output and is not in both models, or has two shapes."""
    wrong = {name: here.arrays[name] for name in new if name not in here.outputs}
    lines = [
        f"{_joined(name)}: {_shape_of(there.arrays.get(name))} there, {_shape_of(leaf)} here"
        for name, leaf in wrong.items()
    ]
    return lines + [
        f"{_joined(name)}: {_shape_of(leaf)} there, none here"
        for name, leaf in there.arrays.items()
        if name not in here.arrays and name not in there.outputs
    ]


def _other_model(config: TrainConfig, facts: DataFacts, run: Run, lines: list[str]) -> UsageError:
    settings = [
        f"{name}: {_text(old)} there, {_text(new)} here"
        for name, old, new in _model_settings(run.config, config)
    ]
    more = [f"and {plural(len(lines) - _LISTED, 'other array')}"] if len(lines) > _LISTED else []
    return UsageError(
        f"--init {config.init}: its model is another one; leave --config and the options of the model out, and the run "
        "has the model of that one:" + "".join(f"\n  {line}" for line in [*settings, *lines[:_LISTED], *more])
    )


def _model_settings(there: TrainConfig, here: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Return the settings of the model that differ, with both values; None for one that is not set."""
    names = sorted({*there.model_options, *here.model_options})
    pairs: list[tuple[str, Any, Any]] = [("model", there.model, here.model)]
    pairs += [
        (f"model.{name}", there.model_options.get(name), here.model_options.get(name)) for name in names
    ]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)


def _shape_of(leaf: Any) -> str:
    return "none" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def _joined(name: Name) -> str:
    return ".".join(map(str, name))


def _parts(names: Iterable[Name], others: Iterable[Name]) -> list[str]:
    """Return the largest parts of a model that hold only arrays of `names`, and none of `others`.

    >>> names = [("backbone", 0, "kernel"), ("backbone", 0, "bias"), ("outputs", "codes", "kernel")]
    >>> _parts(names, [("outputs", "logits", "kernel")])
    ['backbone', 'outputs.codes']
    """
    mixed = {name[:end] for name in others for end in range(1, len(name))}
    parts = (
        next((name[:end] for end in range(1, len(name)) if name[:end] not in mixed), name) for name in names
    )
    return list(dict.fromkeys(map(_joined, parts)))


def _described(names: list[Name], others: Iterable[Name]) -> str:
    return f"{', '.join(_parts(names, others))} ({plural(len(names), 'array')})"


def _difference_of_classes(there: DataFacts, here: DataFacts) -> str:
    return f"the classes differ: {_listed(there.names)} there, {_listed(here.names)} here"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_LISTED]) + (f", ... ({len(names)})" if len(names) > _LISTED else "")


def _load(values: Mapping[Name, NDArray[Any]], model: nnx.Module) -> None:
    """Replace arrays of a model, in place; each keeps its devices."""
    state = nnx.state(model)
    for name, variable in nnx.to_flat_state(state):  # type: ignore[no-untyped-call]
        if name in values:
            old = variable.get_value()
            variable.set_value(jax.device_put(values[name], old.sharding))
    nnx.update(model, state)
