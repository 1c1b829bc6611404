"""What Beam starts as a worker: asks the nursery for one and lives as long. It imports nothing that takes time.

The one argument before Beam's options is the name of the nursery's socket. See pipelines/forked.py.
"""

import json
import os
import signal
import socket
import sys

_NAMES = (
    "CONTROL_API_SERVICE_DESCRIPTOR",
    "LOGGING_API_SERVICE_DESCRIPTOR",
    "PIPELINE_OPTIONS",
    "WORKER_ID",
)


def main() -> int:
    """The exit status: 0 where the worker took leave."""
    request = {
        "environment": {name: os.environ[name] for name in _NAMES if name in os.environ},
        "arguments": sys.argv[2:],
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + sys.argv[1])
        connection.sendall(json.dumps(request).encode() + b"\n")
        return 0 if connection.recv(1) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    try:
        sys.exit(main())
    except OSError:  # the nursery has ended, and with it the driver
        sys.exit(1)
