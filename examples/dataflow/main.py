"""Launcher program of the flex template: `halofeed convert` with its parameters."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

_ONE_PROCESS = "--experiments=no_use_multiple_sdk_containers"
_MACHINES = (
    (3584, ["--machine_type=n2-standard-4"]),
    (7168, ["--machine_type=n2-highmem-4"]),
    (14336, ["--machine_type=n2-highmem-2", _ONE_PROCESS]),
)
"""Machines by MiB for each worker process. Dataflow runs one process per vCPU, unless an experiment says one."""
_PROCESS_MIB = 1024
"""Memory of a worker process in addition to `--max-memory`."""


def command(parameters: Sequence[str]) -> list[str]:
    """Return the words of the conversion.

    Args:
        parameters: `--NAME=VALUE` of the template's parameters and of Beam's options. A parameter without a value is
            left out.

    Raises:
        SystemExit: no machine type of the table holds `--max-memory`, and the parameters name none.
    """
    options = ""
    beam = ["--runner=DataflowRunner", "--sdk_location=container"]
    for parameter in parameters:
        if parameter.startswith("--options="):
            options = parameter.removeprefix("--options=")
        elif not parameter.endswith("="):
            beam.append(parameter)
    words = shlex.split(options)
    if "--" in words:
        at = words.index("--")
        words, beam = words[:at], [*beam, *words[at + 1 :]]
    if not any(word.startswith("--machine_type") for word in beam):
        beam += _machine(words)
    return ["convert", *words, "--", *beam]


def _machine(words: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-memory", type=int, default=8192)  # the largest default: that of volumes
    needed_mib = parser.parse_known_args(words)[0].max_memory + _PROCESS_MIB
    for room_mib, options in _MACHINES:
        if needed_mib <= room_mib:
            return options
    raise SystemExit(
        f"--max-memory: a worker process needs {needed_mib} MiB, and the largest known machine has {room_mib} for it; "
        "give a lower --max-memory, or the parameter machine_type"
    )


if __name__ == "__main__":
    from halofeed.cli import main

    sys.exit(main(command(sys.argv[1:])))
