"""A server of Google Cloud Storage on the loopback, fake-gcs-server, with an empty bucket named "bucket"."""

from __future__ import annotations

import json
import urllib.request
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

BUCKET = "bucket"
VERSION = "v1.56.1"


def build() -> Path:
    """The server's program, which is built at the first time, some two minutes; MissingError where it cannot be."""
    folder = cache() / f"fake-gcs-server-{VERSION}"
    with alone("gcs"):
        if not (folder / "fake-gcs-server").is_file():
            module = f"github.com/fsouza/fake-gcs-server@{VERSION}"
            prepare([need("go", "golang"), "install", module], folder / "build.log", {"GOBIN": str(folder)})
    return folder / "fake-gcs-server"


def start(home: Path) -> dict[str, str]:
    """Start it; the environment with which clients find it.

    Args:
        home: where `server.log` lies.
    """
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        str(build()),
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "memory",
    ]
    start_process(home, "server", [*command, "-external-url", endpoint, "-log-level", "info"])
    wait_for_port(home, "server", port)
    request = urllib.request.Request(
        f"{endpoint}/storage/v1/b?project=test",
        data=json.dumps({"name": BUCKET}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    return {"STORAGE_EMULATOR_HOST": endpoint}


def stop(home: Path) -> None:
    """End it, and lose what it holds."""
    stop_all(home)
