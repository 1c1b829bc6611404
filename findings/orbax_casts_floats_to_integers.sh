#!/usr/bin/env bash
# A checkpoint of floats that is restored into an int32 target is truncated without a word: 0.75, 1.75 become 0, 1; a wrong shape raises.
# orbax-checkpoint 0.12.8, StandardCheckpointer. One expects an error for float to integer, as for shapes and for missing names.
# Source: the restored type is that of the target (documentation of orbax, checkpointing PyTrees, dtype).
# Why here: a target built from a step counter or a quantized model turns all weights to zeros that load without an error.
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
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

folder = os.path.abspath("saved")
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, {"w": jnp.arange(4.0) + 0.75})
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(folder, {"w": jax.ShapeDtypeStruct((4,), jnp.int32)})["w"]
    try:
        checkpointer.restore(folder, {"w": jax.ShapeDtypeStruct((2, 2), jnp.float32)})
        shape = "accepted"
    except ValueError as error:
        shape = str(error)[:70]
print("orbax-checkpoint", version("orbax-checkpoint"), "0.75 to 3.75 as int32:", restored, "; other shape:", shape)
assert restored.tolist() == [0, 1, 2, 3] and "not compatible" in shape
END
