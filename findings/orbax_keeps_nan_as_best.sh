#!/usr/bin/env bash
# A checkpoint whose metric is NaN counts as the best one and displaces the true best: after 0.9, 0.5, 0.6, NaN, 0.1 the steps 4 and 5 are left.
# orbax-checkpoint 0.12.8, CheckpointManager with best_fn and max_to_keep=2. One expects NaN to be the worst, or an error.
# Source: checkpoints are sorted by the metric with sorted(), and every comparison with NaN is false.
# Why here: a score without a positive example (0 / 0) deletes the best model of the run; return -inf from best_fn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2
env/bin/python -I - <<'END'
import logging
import os
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
logging.disable(logging.CRITICAL)
import jax.numpy as jnp
import orbax.checkpoint as ocp


def kept(scores, name):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["dice"], enable_async_checkpointing=False)
    with ocp.CheckpointManager(os.path.abspath(name), options=options) as manager:
        for step, score in enumerate(scores, start=1):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.ones(1)}), metrics={"dice": score})
        return manager.all_steps(), manager.best_step()


plain, broken = kept((0.9, 0.5, 0.6, 0.0, 0.1), "plain"), kept((0.9, 0.5, 0.6, float("nan"), 0.1), "broken")
print("orbax-checkpoint", version("orbax-checkpoint"), "kept steps and best, step 4 with 0:", plain, "; with NaN:", broken)
assert plain == ([1, 3], 1) and broken == ([4, 5], 5)
END
