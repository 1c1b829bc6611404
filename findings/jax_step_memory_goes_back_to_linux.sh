#!/usr/bin/env bash
# JAX on a processor gives a step's memory back to Linux after each step, and every page is cleared again at the next one.
# jax 0.10.2 with glibc. One expects glibc to keep it with a high trim threshold and without mmap (MALLOC_MMAP_MAX_=0,
# MALLOC_TRIM_THRESHOLD_), which changes nothing: the threads of XLA have heaps of 64 MiB, and map what is larger.
# Only MALLOC_ARENA_MAX=1 beside them helps. Source: malloc/malloc.c and arena.c of glibc (sysmalloc, HEAP_MAX_SIZE).
# Why here: `halofeed train` sets it by mallopt before JAX starts; steps of small U-Nets took a sixth less time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > main.py <<'END'
import resource

import jax
import jax.numpy as jnp


def loss(kernels, image):
    for kernel in kernels:
        image = jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        image = jax.nn.relu(image)
    return image.mean()


step = jax.jit(jax.value_and_grad(loss))
kernels = [jnp.full((3, 3, 16, 16), 0.01)] * 6
image = jnp.ones((8, 192, 192, 16))
for _ in range(8):
    jax.block_until_ready(step(kernels, image))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    jax.block_until_ready(step(kernels, image))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
END
kept="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000"
export JAX_PLATFORMS=cpu
default=$(env/bin/python main.py)
kept_only=$(env $kept env/bin/python main.py)
one_heap=$(env $kept MALLOC_ARENA_MAX=1 env/bin/python main.py)
env/bin/python -c 'import jax, platform; print("jax", jax.__version__, *platform.libc_ver())'
echo "new pages a step: default $default, without mmap and trim $kept_only, and with one heap $one_heap"
[ "$default" -gt 10000 ] && [ "$kept_only" -gt 10000 ] && [ "$one_heap" -lt 1000 ]
