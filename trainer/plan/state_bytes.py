"""How many bytes of a core hold parameters, optimizer and average, before any padding?"""

from __future__ import annotations

from typing import Any

import jax

from halofeed.trainer.step import TrainState


def state_bytes(state: TrainState) -> dict[str, int]:
    """By part; `parameters` holds the norms' statistics too. Every core has a whole copy."""
    return {
        "parameters": _bytes((state.parameters, state.statistics)),
        "optimizer": _bytes((state.optimizer_state, state.step)),
        "average": _bytes(state.average),
    }


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
