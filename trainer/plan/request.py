"""What is asked of a compiler, as plain JSON that another process can be given."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halofeed.schemas.errors import MissingExtraError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.topologies import Topology

_LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
_SOURCES = (
    *(f"trainer/{name}.py" for name in ("config", "problem", "program", "step", "optimizers", "schedules")),
    *(f"trainer/{name}/*.py" for name in ("mesh", "models", "tasks", "losses", "detection", "shared")),
    *(
        "trainer/plan/lowered.py",
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
