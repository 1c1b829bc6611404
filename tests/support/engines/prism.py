"""Prism, Beam's own portable runner."""

from importlib import metadata
from pathlib import Path

from tests.support.engines.processes import (
    children_of,
    free_port,
    go_program,
    start_process,
    stop_all,
    wait_for_port,
)
from tests.support.engines.worker_environment import worker_options

MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"


def start(home: Path) -> dict[str, str]:
    """Bring it up; Beam's options for it are in HALOFEED_BEAM_OPTIONS."""
    program = go_program("prism", MODULE, f"v{metadata.version('apache-beam')}")
    port = free_port()
    arguments = [f"--job_port={port}", "--web_port=0", "--serve_http=false", "--idle_shutdown_timeout=-1s"]
    start_process(home, "prism", [program, *arguments])
    wait_for_port(home, "prism", port)
    options = ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", *worker_options(home)]
    return {"HALOFEED_BEAM_OPTIONS": " ".join(options)}


def worker_pids(home: Path) -> list[int]:
    """The Python workers that run, those of a pool too."""
    return [*children_of(home, "prism"), *children_of(home, "pool")]


stop = stop_all
"""To end it."""
