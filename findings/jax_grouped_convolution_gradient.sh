#!/usr/bin/env bash
# Weight gradients of a grouped convolution are twice too large on a mesh of 2 replicas with 2 cores each whose activations are the same.
# jax and jaxlib 0.10.2, four virtual CPU devices, GSPMD. Loss and input gradient are exact; one expects all three or none to be right.
# Source: the partitioner of XLA handles grouped convolutions apart (openxla/xla issue 47945, pull request 48086, are about its cost).
# Why here: the loss of a depthwise model looks right while it learns with k times the rate; halofeed sums such gradients itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
env/bin/python -I - <<'END'
import os

os.environ["XLA_FLAGS"], os.environ["JAX_PLATFORMS"] = "--xla_force_host_platform_device_count=4", "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

split = NamedSharding(Mesh(np.array(jax.devices()).reshape(2, 2), ("replica", "core")), PartitionSpec("replica"))
generator = np.random.default_rng(0)
pictures = jnp.asarray(generator.normal(size=(4, 2, 2, 6)), jnp.float32)


def results(groups, keep):
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3, 6 // groups, 6)), jnp.float32)

    def loss(kernel, x):
        options = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)
        return jnp.sum(keep(jax.lax.conv_general_dilated(keep(x), kernel, (1, 1), "SAME", **options)) * x)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(kernel, keep(pictures))


print("jax", jax.__version__)
for groups in (1, 2, 3, 6):
    one, (weight, of_x) = results(groups, lambda value: value)
    two, (split_weight, split_of_x) = results(groups, lambda value: jax.lax.with_sharding_constraint(value, split))
    ratio = float(jnp.vdot(split_weight, weight) / jnp.vdot(weight, weight))
    print("groups", groups, "losses", one, two, "weight gradient, mesh / one device:", round(ratio, 4))
    assert np.allclose(one, two, rtol=1e-4) and np.allclose(of_x, split_of_x, atol=1e-4)
    assert abs(ratio - (1 if groups == 1 else 2)) < 1e-3
END
