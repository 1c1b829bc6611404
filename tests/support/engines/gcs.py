"""A server of Google Cloud Storage on the loopback, fake-gcs-server, with an empty bucket named "bucket"."""

import json
import urllib.request
from pathlib import Path

from tests.support.engines.processes import free_port, go_program, start_process, stop_all, wait_for_port

BUCKET = "bucket"
VERSION = "v1.56.1"


def start(home: Path) -> dict[str, str]:
    """Start it, which is built at the first time, some two minutes; the environment with which clients find it.

    Args:
        home: where `server.log` lies.
    """
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    server = go_program("fake-gcs-server", "github.com/fsouza/fake-gcs-server", VERSION)
    command = [server, *f"-scheme http -host 127.0.0.1 -port {port} -backend memory -log-level info".split()]
    start_process(home, "server", [*command, "-external-url", endpoint])
    wait_for_port(home, "server", port)
    request = urllib.request.Request(
        f"{endpoint}/storage/v1/b?project=test",
        data=json.dumps({"name": BUCKET}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    return {"STORAGE_EMULATOR_HOST": endpoint}


stop = stop_all
"""To end it, and lose what it holds."""
