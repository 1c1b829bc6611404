"""The memory of a step on a processor is allocated once, and not cleared by the kernel at each step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from halofeed.trainer.platform import computes_on_processor

STEPS = """
import resource, sys
from halofeed.system.memory import keep_all_freed_memory
if sys.argv[1] == "kept":
    keep_all_freed_memory()
import jax
import jax.numpy as jnp

compiled = jax.jit(lambda x: x + 1)  # its result is a new buffer at each step
image = jnp.ones((2048, 8192))  # 64 MiB, above glibc's largest threshold
for _ in range(40):  # the heap grows in the first steps
    compiled(image).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    compiled(image).block_until_ready()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() // 4 >> 20)
"""


def fresh_mebibytes(how: str) -> int:
    """Return the MiB of new pages of a step, in a process of its own: the setting is for a whole process."""
    command = [sys.executable, "-c", STEPS, how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_steps_take_no_new_pages() -> None:
    assert fresh_mebibytes("kept") <= 1
    # Without the setting each step has fresh pages: were that to change, the setting could go.
    assert fresh_mebibytes("given back") >= 64


HEAP = """
import numpy as np
from halofeed.system.memory import give_back_freed_memory, keep_all_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) >> 8  # pages of 4 KiB

keep_all_freed_memory()
before = resident()
value = np.ones(1 << 24)  # 128 MiB
del value
kept = resident() - before
give_back_freed_memory()
print(kept, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc_trim is glibc's")
def test_memory_that_the_heap_keeps_can_be_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", HEAP], check=True, capture_output=True, text=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 100 and left < 28


def test_a_plugin_of_jax_counts_as_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halofeed.trainer.platform._may_have_tpu", lambda: False)
    monkeypatch.setattr("halofeed.trainer.platform._has_plugins", lambda: True)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert not computes_on_processor()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert computes_on_processor()
