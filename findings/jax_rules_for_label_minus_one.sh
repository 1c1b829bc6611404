#!/usr/bin/env bash
# Label -1 is the last class in optax's cross entropy, class 0 in jnp.bincount, the last class in .at[].add, and nothing in segment_sum and one_hot.
# jax 0.10.2, optax 0.2.8. Label 255 gives NaN in the loss and is left out elsewhere. One expects one rule, or the value to be ignored.
# Source: negative indices count from the end, others are filled or dropped (JAX, out-of-bounds indexing); bincount clips at 0.
# Why here: a forgotten mask of ignored pixels trains the last class and never shows as NaN; 255 shows at once.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.3.5
env/bin/python -I - <<'END'
import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import optax

logits = jnp.array([[0.0, 1.0, 2.0]])
print("jax", jax.__version__, "optax", optax.__version__, "3 classes, no label 2 in the data")
found = {}
for label in (-1, 255):
    labels = jnp.array([label])
    found[label] = {
        "integer labels": float(optax.softmax_cross_entropy_with_integer_labels(logits, labels)[0]),
        "one_hot": float(optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 3))[0]),
        "bincount": jnp.bincount(labels, length=3).tolist(),
        "at_add": jnp.zeros(3, int).at[labels].add(1).tolist(),
        "segment_sum": jax.ops.segment_sum(jnp.ones(1, int), labels, 3).tolist(),
    }
    print(label, found[label])
last = float(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([2]))[0])
minus, large = found[-1], found[255]
assert minus["integer labels"] == last and minus["one_hot"] == 0 and large["integer labels"] != large["integer labels"]
assert minus["bincount"] == [1, 0, 0] and minus["at_add"] == [0, 0, 1] and minus["segment_sum"] == [0, 0, 0]
assert large["one_hot"] == 0 and large["bincount"] == large["at_add"] == large["segment_sum"] == [0, 0, 0]
END
