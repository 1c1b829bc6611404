"""An S3 server on the loopback, moto's, with an empty bucket named "bucket"."""

import os
import sys
import urllib.request
from pathlib import Path

from tests.support.engines.processes import free_port, start_process, stop_all, wait_for_port

BUCKET = "bucket"
_PROGRAM = """
import sys, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

application = DomainDispatcherApplication(create_backend_app)

def later(environment, start):
    time.sleep(float(sys.argv[2]))
    return application(environment, start)

class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *arguments):
        print(self.requestline, flush=True)

run_simple("127.0.0.1", int(sys.argv[1]), later, threaded=True, request_handler=Handler)
"""
"""Prints a line for every request."""


def start(home: Path, latency_seconds: float = 0) -> dict[str, str]:
    """Start it; the environment with which clients find it.

    Args:
        home: where `server.log` lies.
        latency_seconds: how much longer it takes for each answer.
    """
    port = free_port()
    # A name of its own keeps the user's settings of the cloud from the server.
    apart = {"AWS_ENDPOINT_URL": "", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    start_process(home, "server", [sys.executable, "-c", _PROGRAM, str(port), str(latency_seconds)], apart)
    wait_for_port(home, "server", port)
    endpoint = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": endpoint, **keys}


stop = stop_all
"""To end it, and lose what it holds."""
