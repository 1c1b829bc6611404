"""What is asked of a compiler, as plain JSON that another process can be given.

Which program does a request make, traced and lowered for its machine?
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from halofeed.errors import MissingExtraError
from halofeed.schemas.kinds import EARLY_KINDS, KINDS
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.models import model_named
from halofeed.trainer.plan.topologies import Topology
from halofeed.trainer.problem import Program, Spec, build_program
from halofeed.trainer.task import DataFacts

_LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
_SOURCES = (
    *(f"trainer/{name}.py" for name in ("config", "setup", "program", "step", "optimizers", "schedules")),
    *(f"trainer/{name}/*.py" for name in ("mesh", "models", "tasks", "losses", "detection", "shared")),
    *(
        "trainer/plan/requests.py",
        "loader/mesh.py",
        "loader/device/*.py",
        "schemas/partition.py",
        "schemas/tasks.py",
        "schemas/kinds.py",
    ),
)
Arrays = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape (the batch first) and dtype by name."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One training step to compile for one machine.

    Args:
        config: its batch is the whole machine's.
        topology: a name that `topology_named` knows.
        facts: of the data set, as `DataFacts.to_json` gives them; None where the config stands alone.
        arrays: what the loader gives a step; None where the config stands alone.
        classes: how many there are, where the config stands alone; 0 takes the task's usual number.
    """

    config: TrainConfig
    topology: str
    facts: Mapping[str, Any] | None = None
    arrays: Arrays | None = None
    classes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        """What `to_json` gave."""
        return cls(**{**document, "config": TrainConfig.from_json(document["config"])})

    def key(self) -> str:
        """The same for what is sure to be the same program: equal words to equal versions of all that makes it."""
        words = json.dumps([self.to_json(), versions(), _sources()], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:32]


def check_compiler(topology: Topology) -> None:
    """Refuse a machine whose compiler is not installed.

    Raises:
        MissingExtraError: it says what installs it.
    """
    if topology.platform == "tpu" and versions()["libtpu"] == "none":
        raise MissingExtraError(
            f"topology {topology.name}: libtpu, the TPU's compiler, is not installed; pip install 'halofeed[plan]' (it "
            "needs no TPU), or take --topology cpu:8"
        )


def versions() -> dict[str, str]:
    """The versions of the libraries that trace and compile; "none" for those that are not installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


@functools.cache
def _sources() -> str:
    """A hash of the files that say which program a config makes."""
    house, whole = Path(__file__).parents[2], hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(house.glob(pattern)):
            whole.update(file.read_bytes())
    return whole.hexdigest()


USUAL_CLASSES = {"classification": 1000, "detection": 90, "segmentation": 3}
"""Where no data set says it: ImageNet's, COCO's largest id, and an organ with its tumor beside the background."""
USUAL_BOXES = 100
"""Of a batch of detection, an image."""
_DTYPES = {"picture": "uint8", "volume": "int16", "clip": "uint8"}


def build(request: Request, devices: Sequence[jax.Device]) -> tuple[Program, Spec]:
    """The program of a request, and what its step is given.

    Raises:
        UsageError: what `build_program` refuses.
    """
    config, known = request.config, request.facts
    facts = usual_facts(config, request.classes) if known is None else DataFacts.from_json(known)
    program = build_program(config, facts, devices)
    arrays = usual_arrays(config, facts) if request.arrays is None else request.arrays
    return program, {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in arrays.items()}


def trace(program: Program, spec: Spec) -> jax.stages.Traced:
    """The training step on the machine's mesh, as `halofeed train` compiles it."""
    return program.step().trace(program.abstract_state(), program.abstract_batch(spec))


def usual_facts(config: TrainConfig, classes: int = 0) -> DataFacts:
    """The facts of a data set that a config would be trained on.

    Args:
        config: of a named size.
        classes: how many there are; 0 takes `USUAL_CLASSES`.
    """
    task, shape = model_named(config.model).task, config.image_shape
    assert shape is not None
    first = task_named(task).first_label_id
    count = classes or USUAL_CLASSES[task]
    return DataFacts(
        task=task,
        kind=EARLY_KINDS[len(shape)],
        labels={label: f"class {label}" for label in range(first, first + count)},
        image_shape=shape,
        mean=(0.0,) * shape[-1],
        std=(1.0,) * shape[-1],
        foreground=(0.0, 1.0, 0.5, 1.0),
    )


def usual_arrays(config: TrainConfig, facts: DataFacts) -> Arrays:
    """What the loader gives a step of a data set with these facts."""
    kind = KINDS[facts.kind]
    image = ImageFormat(
        kind=kind,
        shape=facts.image_shape[:-1],
        channels=facts.image_shape[-1],
        dtype=_DTYPES[kind.name],
        encoding="raw",
    )
    fields = task_named(facts.task).fields(image, max_boxes=USUAL_BOXES, masks=False)
    arrays = {
        field.name: ((config.batch_size, *field.shape), field.dtype)
        for field in fields
        if not field.optional and field.dtype != "str"
    }
    return {
        **arrays,
        **({"num_boxes": ((config.batch_size,), "int32")} if task_named(facts.task).has_boxes else {}),
        **({"epoch": ((config.batch_size,), "int32")} if config.device_augment else {}),
        "valid": ((config.batch_size,), "bool"),
    }
