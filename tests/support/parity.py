"""The distance of one training step on a partition from the same step on one device.

Everything that a step computes is compared: the loss and its parts, each gradient, the norms' running statistics, and
what the optimizer changes. In float64: in float32 deep gradients differ by percents for reasons of rounding alone.

    case = Case(model="classifier", image_shape=(64, 16, 3))
    assert wrong(case, [(8, (1, 4, 2, 1))]) == {}

A partition has two replicas where the devices suffice: XLA has faults that only show where replicas and cores meet.
The tests have eight virtual devices; where a split needs sixteen, the case runs in a process of its own, on 32. By
hand:

    python -m tests.support.parity '{"model": "classifier", "image_shape": [64, 64, 3]}' 1,8,1,1 1,4,2,1 1,16,1,1
    python -m tests.support.parity --predictions '{"model": "unet", "image_shape": [64, 64, 3]}' 1,16,1,1
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from halofeed.loader.batch import split_id
from halofeed.loader.device import Normalization
from halofeed.schemas.partition import Partition
from halofeed.schemas.tasks import task_named
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.layers import Layers
from halofeed.trainer.optimizers import build_optimizer
from halofeed.trainer.platform import platform_environment
from halofeed.trainer.step import (
    TrainingSetup,
    TrainState,
    abstract_state,
    compile_prediction,
    compile_step,
    replicated_sharding,
)
from halofeed.trainer.task import DataFacts, DeviceBatch
from halofeed.trainer.tasks import build_task
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.trainer.training_setup import batch_partition, builder, device_augmentations
from tests.support.training import facts_of, placed

Arrays = dict[str, NDArray[Any]]
Leaves = dict[str, dict[str, Any]]
"""Of scalars, gradients, statistics and changes (of the parameters, by the optimizer): numbers by the leaves' names."""
Split = tuple[int, tuple[int, ...]]
"""Cores per replica, and the image's parts along each axis, batch first."""

DEVICES = 8
"""At least these are used, if there are as many."""
MANY_DEVICES = 32
PREDICTIONS = "--predictions"
TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-10
MAX_BOXES = 6
SHOWN = 6
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Both only change how machine code is made of a program that is partitioned already; a quarter of the time."""


def splits(*all_dims: tuple[int, ...]) -> list[Split]:
    """Each dims with the cores that it needs.

    >>> splits((1, 4, 2, 1))
    [(8, (1, 4, 2, 1))]
    """
    return [(math.prod(dims), dims) for dims in all_dims]


ROWS = splits((1, 2, 1, 1), (1, 4, 1, 1), (1, 8, 1, 1), (1, 16, 1, 1))
ROWS_AND_COLUMNS = splits((1, 2, 2, 1), (1, 4, 2, 1))
DEPTH = splits((1, 2, 1, 1, 1), (1, 4, 1, 1, 1), (1, 8, 1, 1, 1), (1, 16, 1, 1, 1))
HEIGHT = splits((1, 1, 2, 1, 1), (1, 1, 4, 1, 1), (1, 1, 8, 1, 1), (1, 1, 16, 1, 1))
DEPTH_AND_HEIGHT_SPLITS = splits((1, 2, 2, 1, 1), (1, 4, 2, 1, 1), (1, 4, 4, 1, 1))
PICTURE_SPLITS = ROWS + ROWS_AND_COLUMNS
VOLUME_SPLITS = DEPTH + HEIGHT + DEPTH_AND_HEIGHT_SPLITS


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained on which images.

    Args:
        model: a key of MODELS; its task makes the loss.
        image_shape: [height, width, channel] or [depth, height, width, channel].
        model_options, task_options: as in a config.
        layer_options: of `Layers`, e.g. how convolutions over volumes are computed.
        classes: how many; detection's without the background, segmentation's with it.
        batch_size: 4 at least; the second row and the last are not valid.
        devices: how many are used at most; each holds several copies of the parameters.
        norm_parts: parts of the image along each axis in which batch norm has statistics of its own.
        multi_label: whether an image of classification has several classes.
        device_augment: augmentations on the device, as in a config.
    """

    model: str
    image_shape: tuple[int, ...]
    model_options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    layer_options: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 3
    batch_size: int = 4
    devices: int = MANY_DEVICES
    norm_parts: tuple[int, ...] | None = None
    multi_label: bool = False
    device_augment: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        options = {**self.model_options, **self.task_options, **self.layer_options}
        words = (f"{name}={value}".replace(" ", "") for name, value in options.items())
        parts = [] if self.norm_parts is None else [f"norm_parts={self.norm_parts}"]
        parts += ["multi_label"] if self.multi_label else []
        parts += [str(table["name"]) for table in self.device_augment]
        return " ".join([self.model, "x".join(map(str, self.image_shape)), *words, *parts])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Of one JSON object; what is left out has its default."""
        document = json.loads(text)
        given = {name: tuple(document[name]) for name in ("image_shape", "norm_parts") if document.get(name)}
        return cls(**{**document, **given})

    @property
    def task(self) -> str:
        return MODELS[self.model].task

    def facts(self) -> DataFacts:
        first, channels = task_named(self.task).first_label_id, range(self.image_shape[-1])
        labels = {label: f"class {label}" for label in range(first, first + self.classes)}
        mean, std = (tuple(a + b * channel for channel in channels) for a, b in ((120.0, -10), (60.0, 5)))
        more = {"mean": mean, "std": std, "multi_label": self.multi_label}
        return facts_of(self.task, labels, self.image_shape, **more)

    def problem(self, dtype: str) -> TrainingSetup:
        """On one device, all of it in one precision."""
        facts = self.facts()

        config = TrainConfig(model_options=self.model_options, task_options=self.task_options)
        task = build_task(facts, config.options_of_task)
        built = builder(MODELS[self.model], task, facts, self.model_options)

        def build(layers: Layers) -> nnx.Module:
            return built(dataclasses.replace(layers, **self.layer_options))

        given: dict[str, Any] = {"compute_dtype": dtype, "param_dtype": dtype, "norm_decay": 0.9}
        given["norm_parts"] = self.norm_parts
        given["augment"] = tuple(device_augmentations(TrainConfig(device_augment=tuple(self.device_augment))))
        given["normalization"] = Normalization(mean=facts.mean, std=facts.std)
        return TrainingSetup(build=build, task=task, **given)

    def batch(self) -> Arrays:
        """Images of noise, so that every gradient depends on every row, with labels as the loader gives them."""
        generator = np.random.default_rng(3)
        shape = (self.batch_size, *self.image_shape)
        valid = np.ones(self.batch_size, bool)
        valid[[1, -1]] = False
        batch = {"image": generator.integers(0, 256, shape).astype(np.uint8), "valid": valid}
        if self.device_augment:
            batch |= {
                "id": split_id(np.arange(self.batch_size)),
                "epoch": np.zeros(self.batch_size, np.int32),
            }
        if self.multi_label:
            batch["labels"] = generator.integers(0, 2, (self.batch_size, self.classes)).astype(np.uint8)
        elif self.task == "classification":
            batch["label"] = generator.integers(0, self.classes, self.batch_size).astype(np.int32)
        elif self.task == "segmentation":
            batch["label"] = _blocks(generator, shape[:-1], self.classes)
            batch["labelled"] = np.arange(self.batch_size) != 2
        else:
            batch |= _boxes(generator, self.batch_size, self.classes)
            if self.model_options.get("mask_head"):
                batch["object_map"] = _object_map(batch, shape[1:3])
        return batch


def beyond(distances: Leaves) -> dict[str, float]:
    """Return the worst distances of each kind that rounding in float64 does not explain, and all that are no number."""
    found = {}
    for kind, leaves in distances.items():
        limit = LOSS_TOLERANCE if kind == "scalars" else TOLERANCE
        far = {name: distance for name, distance in leaves.items() if not distance <= limit}
        worst = sorted(far, key=lambda name: -np.nan_to_num(far[name], nan=np.inf))
        found |= {f"{kind} {name}": far[name] for name in worst[:SHOWN]}
    return found


def optimizer() -> optax.GradientTransformation:
    """Momentum SGD with weight decay and clipping that keeps the unclipped gradients in its state."""
    keep = optax.GradientTransformation(
        lambda parameters: jax.tree.map(jax.numpy.zeros_like, parameters),
        lambda gradients, _, parameters=None: (gradients, gradients),
    )
    rates: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 1e-3, "clip_norm": 1.0}
    config = TrainConfig(optimizer="sgd", schedule="constant", **rates)
    return optax.chain(keep, build_optimizer(config)[0])


def measure(case: Case, cores: int = 1, dims: tuple[int, ...] | None = None) -> Leaves:
    """One step in float64, on one device or on a partition."""
    with jax.enable_x64(True):
        before = first_state(case.to_json(), "float64")
        problem, batch = _placed(case, "float64", cores, dims)
        state = jax.device_put(before, replicated_sharding(problem.mesh))
        step = compile_step(problem, optimizer()).lower(state, batch).compile(QUICKLY_COMPILED)
        after, scalars = step(state, batch)
        parameters, start = _by_name(after.parameters), _by_name(before.parameters)
        return {
            "scalars": {name: float(value) for name, value in scalars.items()},
            "gradients": _by_name(after.optimizer_state[0]),
            "statistics": _by_name(after.statistics),
            "changes": {name: parameters[name] - start[name] for name in start},
        }


def compare(case: Case, cores: int, dims: tuple[int, ...]) -> Leaves:
    """Return the distances of a step on a partition from the step on one device, which is taken once for every case.

    Scalars relative to their size; a leaf's ‖difference‖ relative to ‖leaf‖ + ‖all leaves of its kind‖.
    """
    expected, found = _one_device(case.to_json()), measure(case, cores, dims)
    scalars = expected["scalars"]
    assert math.isfinite(scalars["loss"]) and scalars["gradient_norm"] > 0
    far = {key: abs(found["scalars"][key] - value) / max(abs(value), 1e-6) for key, value in scalars.items()}
    kinds = ("gradients", "statistics", "changes")
    return {"scalars": far, **{kind: _distances(found[kind], expected[kind]) for kind in kinds}}


def compare_predictions(case: Case, cores: int, dims: tuple[int, ...]) -> Leaves:
    """The largest difference of each array that is predicted in float64, from parameters that nothing has trained."""
    expected, found = _predictions(case.to_json()), _predictions(case.to_json(), cores, dims)
    assert found.keys() == expected.keys() and all(np.isfinite(values).all() for values in expected.values())
    return {"predictions": {name: float(np.max(np.abs(found[name] - expected[name]))) for name in expected}}


class _UnroundedMasks(Segmentation):
    """Predicts the float64 probabilities too, because float16 and the labels hide most distances."""

    def predict(self, outputs: Mapping[str, Any], batch: DeviceBatch) -> dict[str, jax.Array]:
        return self.masks(self.probabilities(outputs))

    def masks(self, probabilities: jax.Array) -> dict[str, jax.Array]:
        return {**super().masks(probabilities), "unrounded": probabilities}


class _UnroundedObjects(Detection):
    """Predicts what 8-bit masks of objects are made of too."""

    def predict(self, outputs: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        pixels = outputs.pixels
        made_of = {"foreground": pixels.foreground, "log_distances": pixels.log_distances}
        return {**super().predict(outputs, batch), **made_of}


def _unrounded(task: Any) -> Any:
    """The task, if it rounds what it predicts without rounding."""
    if isinstance(task, Segmentation):
        kind: Any = _UnroundedMasks
    elif isinstance(task, Detection) and task.masks:
        kind = _UnroundedObjects
    else:
        return task
    return kind(**{one.name: getattr(task, one.name) for one in dataclasses.fields(task) if one.init})


def wrong(case: Case, splits: Sequence[Split], *, predictions: bool = False) -> dict[str, dict[str, float]]:
    """All that is wrong on any of the splits, by split and leaf; also in a process of its own, see above."""
    if max(cores for cores, _ in splits) > len(jax.devices()):
        arguments = [",".join(map(str, dims)) for _, dims in splits]
        option = [PREDICTIONS] if predictions else []
        command = [sys.executable, "-m", "tests.support.parity", *option, case.to_json(), *arguments]
        env = {**os.environ, **platform_environment(os.environ, MANY_DEVICES)}
        how = {"cwd": Path(__file__).parents[2], "env": env, "capture_output": True, "text": True}
        run = subprocess.run(command, **how, check=False)
        assert run.returncode in (0, 1) and run.stdout, run.stderr
        print(run.stdout)
        found: dict[str, dict[str, float]] = json.loads(run.stdout.splitlines()[-1])
        return found
    return {name: wrong for name, wrong in _walk(case, splits, predictions) if wrong}


def _walk(case: Case, splits: Sequence[Split], predictions: bool) -> Iterator[tuple[str, dict[str, float]]]:
    for cores, dims in splits:
        started = time.process_time()
        distances = (compare_predictions if predictions else compare)(case, cores, dims)
        found = beyond(distances)
        seconds = time.process_time() - started
        worst = {kind: max(leaves.values(), default=0.0) for kind, leaves in distances.items()}
        figures = "  ".join(f"{kind} {distance:.1e}" for kind, distance in worst.items())
        name = ",".join(map(str, dims))
        verdict = "WRONG" if found else "equal"
        print(f"{case}  {name:9}  {figures}  {seconds:.0f} s of CPU  {verdict}", flush=True)
        yield name, found


def _placed(case: Case, dtype: str, cores: int, dims: tuple[int, ...] | None) -> tuple[TrainingSetup, Any]:
    problem, batch = case.problem(dtype), case.batch()
    if dims is None:
        return problem, batch
    mesh = make_mesh(cores, jax.devices()[: min(max(DEVICES, 2 * cores), case.devices)])
    partition = batch_partition(Partition(cores_per_replica=cores, dims={"image": dims}), problem.task)
    return dataclasses.replace(problem, mesh=mesh, dims=dims), placed(mesh, partition, batch)


@functools.cache
def _one_device(case: str) -> Leaves:
    return measure(Case.from_json(case))


@functools.cache
def first_state(case: str, dtype: str) -> TrainState:
    """A first state on the host, drawn by NumPy: XLA takes many times longer to compile the draws than a step."""
    generator = np.random.default_rng(4)

    def draw(path: Any, leaf: Any) -> NDArray[Any]:
        noise = generator.standard_normal(leaf.shape)
        if leaf.ndim >= 2:
            drawn = noise * np.sqrt(2 / np.prod(leaf.shape[:-1]))
        else:
            drawn = 0.05 * noise + ("scale" in jax.tree_util.keystr(path))
        return np.asarray(drawn, leaf.dtype)

    def begin(path: Any, leaf: Any) -> NDArray[Any]:
        return np.full(leaf.shape, "variance" in jax.tree_util.keystr(path), leaf.dtype)

    shapes = abstract_state(Case.from_json(case).problem(dtype), optimizer())
    parameters = jax.tree_util.tree_map_with_path(draw, shapes.parameters)
    return dataclasses.replace(jax.tree_util.tree_map_with_path(begin, shapes), parameters=parameters)


@functools.cache
def _predictions(case: str, cores: int = 1, dims: tuple[int, ...] | None = None) -> Arrays:
    with jax.enable_x64(True):
        problem, batch = _placed(Case.from_json(case), "float64", cores, dims)
        problem = dataclasses.replace(problem, task=_unrounded(problem.task))
        state = jax.device_put(first_state(case, "float64"), replicated_sharding(problem.mesh))
        given = (state.parameters, state.statistics, batch)
        predictions, _ = compile_prediction(problem).lower(*given).compile(QUICKLY_COMPILED)(*given)
        return {name: np.asarray(values, np.float64) for name, values in predictions.items()}


def _by_name(tree: Any) -> Arrays:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _distances(found: Arrays, expected: Arrays) -> dict[str, float]:
    assert found.keys() == expected.keys()
    everything = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in expected.values()))
    return {
        name: float(np.linalg.norm(found[name] - leaf) / (np.linalg.norm(leaf) + everything))
        for name, leaf in expected.items()
    }


def _blocks(generator: np.random.Generator, shape: tuple[int, ...], classes: int) -> NDArray[np.uint8]:
    """Class indices in blocks of four pixels, so that coarser levels of deep supervision see every class."""
    coarse = generator.integers(0, classes, (shape[0], *(-(-size // 4) for size in shape[1:])))
    for axis in range(1, len(shape)):
        coarse = np.repeat(coarse, 4, axis)
    return coarse[tuple(slice(0, size) for size in shape)].astype(np.uint8)


def _boxes(generator: np.random.Generator, rows: int, classes: int) -> Arrays:
    """Boxes of many sizes; some twice or centered, so that anchors tie; a row without, and padding."""
    centers = generator.uniform(0.2, 0.8, (rows, MAX_BOXES, 2))
    halves = 0.5 * np.exp(generator.uniform(np.log(0.08), np.log(0.9), (rows, MAX_BOXES, 2)))
    boxes = np.concatenate([centers - halves, centers + halves], -1).clip(0, 1).astype(np.float32)
    boxes[:, 0] = (0.25, 0.25, 0.75, 0.75)
    boxes[0, 2] = boxes[0, 1]
    num_boxes = np.resize([MAX_BOXES, 3, 0, MAX_BOXES - 2], rows).astype(np.int32)
    given = np.arange(MAX_BOXES) < num_boxes[:, None]
    sides = boxes[..., 2:] - boxes[..., :2]
    return {
        "boxes": np.where(given[..., None], boxes, 0).astype(np.float32),
        "classes": np.where(given, generator.integers(1, classes + 1, given.shape), 0).astype(np.int32),
        "num_boxes": num_boxes,
        "is_crowd": given & (np.arange(MAX_BOXES) == 3),
        "area": np.where(given, 1e4 * sides.prod(-1), 0).astype(np.float32),
    }


def _object_map(batch: Arrays, size: tuple[int, ...]) -> NDArray[np.uint16]:
    """The ellipse inside of each box, the last one on top; the crowd too."""
    y, x = ((np.arange(side) + 0.5) / side for side in size)
    found = np.zeros((len(batch["boxes"]), *size), np.uint16)
    for row, count in enumerate(batch["num_boxes"]):
        for number, (top, left, bottom, right) in enumerate(batch["boxes"][row, :count].astype(float), 1):
            down, across = (2 * y - top - bottom) / (bottom - top), (2 * x - left - right) / (right - left)
            found[row][down[:, None] ** 2 + across**2 < 1] = number
    return found


def main(arguments: Sequence[str]) -> int:
    """Print a line a split, and all that is wrong as JSON; 1 if anything is."""
    predictions = arguments[0] == PREDICTIONS
    case, *all_dims = arguments[predictions:]
    read = splits(*(tuple(map(int, dims.split(","))) for dims in all_dims))
    everything = {name: wrong for name, wrong in _walk(Case.from_json(case), read, predictions) if wrong}
    print(json.dumps(everything))
    return 1 if everything else 0


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", MANY_DEVICES)
    sys.exit(main(sys.argv[1:]))
