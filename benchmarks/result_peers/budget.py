"""Budget of processor time, and what every peer's script reads and writes."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import ImageFile

# A picture of `kangaroos` lacks its last 20 bytes, which decoders fill with gray.
ImageFile.LOAD_TRUNCATED_IMAGES = True


@dataclass(kw_only=True)
class Budget:
    """Processor time that a side may use, all threads of the process together, from the process's start.

    Processor time does not change with the load of the machine, so both sides may run beside other work.
    """

    minutes: float
    steps: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    def used_share(self) -> float:
        """Return the used share of the budget."""
        return time.process_time() / (60 * self.minutes)

    def cosine(self, warm: float = 0.02) -> float:
        """Return the factor of the learning rate: a linear rise, then half a cosine over the budget."""
        share = min(self.used_share(), 1.0)
        return min(share / warm, 1.0) * 0.5 * (1 + math.cos(math.pi * share)) + 1e-4


def read_arguments(document: str) -> tuple[dict[str, Any], Path, Budget, int]:
    """Return the task, the folder of predictions, the budget and the seed of the command."""
    parser = argparse.ArgumentParser(description=document)
    parser.add_argument("task", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="processor time of training")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return json.loads(given.task.read_text()), given.out, Budget(minutes=given.minutes), given.seed


def of_split(task: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """Return the examples of a split."""
    return [one for one in task["examples"] if one["split"] == split]


def write_log(out: Path, budget: Budget, packages: Sequence[str], parameters: int, trained_s: float) -> None:
    """Write what the row says about the peer, trained_s being the processor time when training ended."""
    from importlib import metadata

    versions = {name: metadata.version(name) for name in packages}
    log = {
        "versions": versions,
        "steps": budget.steps,
        "parameters": parameters,
        "processor_s": trained_s,
        "cores": os.cpu_count(),
        **budget.notes,
    }
    (out / "log.json").write_text(json.dumps(log))
