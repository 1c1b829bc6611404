"""Eight virtual CPU devices for every test of the trainer, and programs that are compiled once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# Many tests run the same program. The processes of one run share a folder, which the next run does not read.
CACHE = (
    Path(tempfile.gettempdir())
    / f"halofeed-test-programs-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
)
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
