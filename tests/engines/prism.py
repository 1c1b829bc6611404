"""Prism, Beam's own portable runner; the pipeline's process has the workers."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from tests.engines.processes import (
    alone,
    cache,
    free_port,
    need,
    prepare,
    start_process,
    stop_all,
    wait_for_port,
)

MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"


def start(home: Path) -> dict[str, str]:
    """Bring it up; Beam's options for it are in HALOFEED_BEAM_OPTIONS."""
    version = metadata.version("apache-beam")
    folder = cache() / f"prism-{version}"
    with alone("prism"):
        if not (folder / "prism").is_file():
            command = [need("go", "golang"), "install", f"{MODULE}@v{version}"]
            prepare(command, cache() / "prism.log", {"GOBIN": str(folder)})
    port = free_port()
    arguments = [f"--job_port={port}", "--web_port=0", "--serve_http=false", "--idle_shutdown_timeout=-1s"]
    start_process(home, "prism", [folder / "prism", *arguments])
    wait_for_port(home, "prism", port)
    options = ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"]
    return {"HALOFEED_BEAM_OPTIONS": " ".join(options)}


def stop(home: Path) -> None:
    """End it."""
    stop_all(home)
