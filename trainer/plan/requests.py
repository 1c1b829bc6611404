"""Requests to compile a training step for a machine, as JSON for another process, and the program of a request."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from halofeed.loader.batch import EPOCH, OBJECT_MAP, array_specs
from halofeed.schemas.kinds import KIND_BY_RANK, KINDS
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.storage.paths import find_paths, load_bytes
from halofeed.system.errors import MissingExtraError, UsageError, install_command
from halofeed.trainer.config import TrainConfig, import_named
from halofeed.trainer.models import model_named
from halofeed.trainer.plan.topologies import Topology
from halofeed.trainer.task import DataFacts
from halofeed.trainer.training_setup import Program, Spec, build_program

_LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
_SOURCES = (
    *("trainer/*.py", "trainer/models/*.py", "trainer/tasks/*.py", "trainer/detection/*.py"),
    *("trainer/plan/requests.py", "loader/batch.py", "loader/mesh_batches.py", "loader/device/*.py"),
    *("schemas/partition.py", "schemas/tasks.py", "schemas/kinds.py"),
)
"""Files that determine the program of a config."""
Arrays = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape (batch first) and dtype by name."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request to compile one training step for one machine.

    Args:
        config: config of the run; its batch size is that of the complete machine.
        topology: name of the machine, for `topology_named`.
        facts: output of `DataFacts.to_json`; None without a data set.
        arrays: arrays that the loader gives a step; None without a data set.
        classes: number of classes without a data set; 0 takes the task's usual number.
    """

    config: TrainConfig
    topology: str
    facts: Mapping[str, Any] | None = None
    arrays: Arrays | None = None
    classes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain JSON values."""
        return {**asdict(self), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        """Read the output of `to_json`."""
        return cls(**{**document, "config": TrainConfig.from_json(document["config"])})

    def key(self) -> str:
        """Return a hash of the request, the versions of the libraries and halofeed's sources."""
        own = [_own_sources_hash(name) for name in (self.config.model, self.config.task) if ":" in name]
        text = json.dumps([self.to_json(), versions(), _sources_hash(), own], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_compiler(topology: Topology) -> None:
    """Check that the compiler of a machine is installed.

    Raises:
        MissingExtraError: it is not installed; the message has the command that installs it.
    """
    if topology.platform == "tpu" and versions()["libtpu"] == "none":
        raise MissingExtraError(
            f"topology {topology.name}: libtpu, the TPU's compiler, is not installed; {install_command('plan')} (it "
            "needs no TPU), or take --topology cpu:8"
        )


def versions() -> dict[str, str]:
    """Return the versions of the libraries that trace and compile; "none" if a library is not installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


@functools.cache
def _sources_hash() -> str:
    """Return a hash of the files in `_SOURCES`."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(find_paths(package, pattern)):
            digest.update(load_bytes(file))
    return digest.hexdigest()


def _own_sources_hash(name: str) -> str:
    """Return a hash of the Python files beside the one that defines a user's `package:Class`."""
    folder, digest = Path(inspect.getfile(import_named("model", name))).parent, hashlib.sha256()
    for file in sorted(find_paths(folder, "*.py")):
        digest.update(load_bytes(file))
    return digest.hexdigest()


USUAL_CLASSES = {"classification": 1000, "detection": 90, "segmentation": 3}
"""Number of classes without a data set: ImageNet's, COCO's largest id, and an organ, its tumor and the background."""
USUAL_BOXES = 100
"""Number of boxes per image in a batch of detection."""
_DTYPES = {"picture": "uint8", "volume": "int16", "clip": "uint8"}


def build_lowered(request: Request, devices: Sequence[jax.Device]) -> tuple[Program, Spec]:
    """Return the program of a request, and the arrays of its batch.

    Raises:
        UsageError: the request is invalid for `build_program`.
    """
    config, document = request.config, request.facts
    facts = usual_facts(config, request.classes) if document is None else DataFacts.from_json(document)
    program = build_program(config, facts, devices)
    arrays = usual_arrays(config, facts) if request.arrays is None else request.arrays
    return program, {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in arrays.items()}


def trace(program: Program, spec: Spec) -> jax.stages.Traced:
    """Trace the training step on the machine's mesh, as `halofeed train` compiles it."""
    return program.step().trace(program.abstract_state(), program.abstract_batch(spec))


def usual_facts(config: TrainConfig, classes: int = 0) -> DataFacts:
    """Return the facts of a typical data set for a config.

    Args:
        config: config with an image shape.
        classes: number of classes; 0 takes `USUAL_CLASSES`.
    """
    # A class of the user has no entry in `MODELS` with its task.
    if ":" in config.model:
        raise UsageError(f"model {config.model}: only a data set says its task; name the folder of one")
    task, shape = model_named(config.model).task, config.image_shape
    assert shape is not None
    first = task_named(task).first_label_id
    count = classes or USUAL_CLASSES[task]
    return DataFacts(
        task=task,
        kind=KIND_BY_RANK[len(shape)],
        labels={label: f"class {label}" for label in range(first, first + count)},
        image_shape=shape,
        mean=(0.0,) * shape[-1],
        std=(1.0,) * shape[-1],
        foreground=(0.0, 1.0, 0.5, 1.0),
    )


def usual_arrays(config: TrainConfig, facts: DataFacts) -> Arrays:
    """Return the arrays of a batch that the loader gives for a data set with these facts."""
    kind = KINDS[facts.kind]
    image = ImageFormat(
        kind=kind,
        shape=facts.image_shape[:-1],
        channels=facts.image_shape[-1],
        dtype=_DTYPES[kind.name],
        encoding="raw",
    )
    fields = [
        field
        for field in task_named(facts.task).fields(image, max_boxes=USUAL_BOXES, masks=False)
        if not field.optional and field.dtype != "str"
    ]
    shape = facts.image_shape[:-1]
    further = [*([EPOCH] if config.device_augment else []), *([OBJECT_MAP] if config.has_mask_head else [])]
    specs = array_specs(fields, further, shown=shape, frame=shape)
    return {name: ((config.batch_size, *one.shape), str(one.dtype)) for name, one in specs.items()}
