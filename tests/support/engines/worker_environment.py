"""The environment of workers on another machine: Beam, and the sdist of halofeed, and nothing else."""

import hashlib
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tests.support.engines.processes import alone, cache, free_port, prepare, start_process, wait_for_port

_ROOT = Path(__file__).parents[3]


def worker_options(home: Path) -> list[str]:
    """Beam's options with which an engine starts workers of this environment itself."""
    script = home / "worker"
    worker = f"{worker_python()} -m halofeed.pipelines.beam_worker"
    script.write_text(f'#!/bin/sh\nPYTHONPATH= exec {worker} "$@"\n')
    script.chmod(0o755)
    command = json.dumps({"command": str(script)}, separators=(",", ":"))
    return ["--environment_type=PROCESS", f"--environment_config={command}"]


def pool_options(home: Path) -> list[str]:
    """Beam's options for a pool of such workers, a server that is started here; its workers are its children."""
    port, python = free_port(), worker_python()
    program = [python, "-m", "apache_beam.runners.worker.worker_pool_main", "--service_port", str(port)]
    # Which starts whatever is called python there.
    start_process(home, "pool", program, {"PYTHONPATH": "", "PATH": f"{python.parent}:{os.environ['PATH']}"})
    wait_for_port(home, "pool", port)
    return ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]


def worker_python() -> Path:
    """The interpreter of the environment, which is made once, and has the sdist of this very code."""
    from halofeed.packaging import write_packages

    with tempfile.TemporaryDirectory() as folder, alone("workers"):
        _, sdist = write_packages(folder)
        lock = _ROOT / "requirements.lock"
        key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
        base = cache() / f"workers-{key}"
        python, log = base / "bin" / "python", cache() / "workers.log"
        made = base / "made-from"
        digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
        if made.is_file() and made.read_text() == digest:
            return python
        if not made.is_file():
            prepare([sys.executable, "-m", "venv", "--clear", base], log)
        made.unlink(missing_ok=True)
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", lock]
        prepare([*install, f"apache-beam=={metadata.version('apache-beam')}", sdist], log)
        prepare([*install, "--force-reinstall", "--no-deps", sdist], log)
        made.write_text(digest)
    return python
