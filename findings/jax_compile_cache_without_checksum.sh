#!/usr/bin/env bash
# An entry of JAX's persistent compilation cache has no checksum if zstandard is installed: most flipped bits give other machine code.
# jax 0.10.2, zstandard 0.25.0. One expects an error for a damaged entry, as without zstandard, where zlib has a checksum, and as of the program zstd.
# Source: jax/_src/compilation_cache.py calls ZstdCompressor(), whose write_checksum is False by default; zlib has an Adler-32 (RFC 1950).
# Why here: a program that the disk or a copy changed would be run. halofeed stores JAX's bytes with a SHA-256 of its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cat > compile.py <<'END'
import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

jax.config.update("jax_compilation_cache_dir", "cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: jnp.sort(jnp.tanh(x @ x.T)))(jnp.ones((64, 64))).block_until_ready()
END
cat > flip.py <<'END'
import glob
import random
import sys
import zlib
from importlib.metadata import version

if sys.argv[1] == "zstandard":
    import zstandard

    decompress, Damaged = lambda data: zstandard.ZstdDecompressor().decompress(data), zstandard.ZstdError
else:
    decompress, Damaged = zlib.decompress, zlib.error
entry = max((open(file, "rb").read() for file in glob.glob("cache/*-cache")), key=len)
whole, draw, silent = decompress(entry), random.Random(0), 0
for _ in range(500):
    data, bit = bytearray(entry), draw.randrange(len(entry) * 8)
    data[bit // 8] ^= 1 << bit % 8
    try:
        silent += decompress(bytes(data)) != whole
    except Damaged:
        pass
print("jax", version("jax"), sys.argv[1], f"{len(entry):,} bytes: {silent} of 500 flipped bits unnoticed")
assert silent > 100 if sys.argv[1] == "zstandard" else silent == 0
END
env/bin/python -I compile.py
env/bin/python -I flip.py zlib
env/bin/python -m pip install --quiet --disable-pip-version-check zstandard==0.25.0
rm -r cache
env/bin/python -I compile.py
env/bin/python -I flip.py zstandard
