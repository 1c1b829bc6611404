"""Compile one request of a plan, and print the memory that the compiler reports; see test_known_topologies.py.

python -m tests.support.compiler_memory CACHE < request.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax

from halofeed.trainer.plan.compiling import CompileCache, compile_request
from halofeed.trainer.plan.requests import Request

FIELDS = ("argument", "output", "alias", "temp", "generated_code")


def main(folder: str) -> None:
    """Put the compiled program into the cache of the folder, as `halofeed plan` does."""
    reported: list[Any] = []
    exact = jax.stages.Compiled.memory_analysis

    def noted(self: jax.stages.Compiled) -> Any:
        reported.append(exact(self))
        return reported[-1]

    jax.stages.Compiled.memory_analysis = noted  # type: ignore[method-assign]
    compile_request(Request.from_json(json.load(sys.stdin)), CompileCache(Path(folder)))
    (memory,) = reported
    sizes = {field: getattr(memory, f"{field}_size_in_bytes") for field in FIELDS}
    print(json.dumps({**sizes, "peak": memory.peak_memory_in_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])
