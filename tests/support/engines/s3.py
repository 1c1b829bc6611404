"""An S3 server on the loopback, moto's, with an empty bucket named "bucket"."""

import os
import sys
import urllib.request
from pathlib import Path

from tests.support.engines.processes import free_port, start_process, stop_all, wait_for_port

BUCKET = "bucket"
_PROGRAM = """
import sys, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

application = DomainDispatcherApplication(create_backend_app)

link, free_at, bytes_per_second = threading.Lock(), 0.0, float(sys.argv[3])

def later(environment, start):
    time.sleep(float(sys.argv[2]))
    parts = application(environment, start)
    return shared_link(parts) if bytes_per_second else parts

def shared_link(parts):
    global free_at
    for part in parts:
        with link:
            free_at = max(free_at, time.monotonic()) + len(part) / bytes_per_second
            waits = free_at - time.monotonic()
        time.sleep(max(0, waits))
        yield part

class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *arguments):
        print(self.requestline, flush=True)

run_simple("127.0.0.1", int(sys.argv[1]), later, threaded=True, request_handler=Handler)
"""
"""Prints a line for every request."""


def start(home: Path, latency_seconds: float = 0, bytes_per_second: float = 0) -> dict[str, str]:
    """Start it; the environment with which clients find it.

    Args:
        home: where `server.log` lies.
        latency_seconds: how much longer it takes for each answer.
        bytes_per_second: how much all answers take together; 0 for no limit.
    """
    port = free_port()
    # A name of its own keeps the user's settings of the cloud from the server.
    apart = {"AWS_ENDPOINT_URL": "", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    settings = [str(port), str(latency_seconds), str(bytes_per_second)]
    start_process(home, "server", [sys.executable, "-c", _PROGRAM, *settings], apart)
    wait_for_port(home, "server", port)
    endpoint = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": endpoint, **keys}


stop = stop_all
"""To end it, and lose what it holds."""
