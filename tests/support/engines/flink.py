"""A Flink session cluster: a job manager, two task managers that start workers themselves, and Beam's job server."""

import json
import signal
import urllib.request
import zipfile
from pathlib import Path

from tests.support.engines.java import BEAM, jars, java
from tests.support.engines.processes import (
    children_of,
    free_port,
    start_process,
    stop_all,
    stop_process,
    wait_for_port,
)
from tests.support.engines.worker_environment import worker_options

FLINK = "1.19.0"
MACHINES = (1, 2)
_MEMORY = {"framework.heap.size": 128, "task.heap.size": 256, "framework.off-heap.size": 128}
_MEMORY |= {"task.off-heap.size": 0, "network.min": 64, "network.max": 64, "managed.size": 256}
_MEMORY |= {"jvm-metaspace.size": 256, "jvm-overhead.min": 128, "jvm-overhead.max": 128}
_SETTINGS = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.memory.process.size": "1024m",
    "jobmanager.execution.failover-strategy": "region",
    "rest.address": "localhost",
    "rest.bind-address": "localhost",
    "taskmanager.host": "localhost",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.cpu.cores": "1",
    **{f"taskmanager.memory.{part}": f"{mebibytes}m" for part, mebibytes in _MEMORY.items()},
    "parallelism.default": "2",
    "heartbeat.interval": "2000",
    "heartbeat.timeout": "10000",
    # Retries come from here alone: Beam's --number_of_execution_retries is ignored. After a delay of 1 s a lost task
    # manager took three of them, until its heartbeat was missed, and a killed worker two.
    "restart-strategy.type": "failure-rate",
    "restart-strategy.failure-rate.max-failures-per-interval": "6",
    "restart-strategy.failure-rate.failure-rate-interval": "1 h",
    "restart-strategy.failure-rate.delay": "5 s",
}


def start(home: Path) -> dict[str, str]:
    """Bring the cluster up; Beam's options for it are in HALOFEED_BEAM_OPTIONS, the cluster's page in FLINK_REST."""
    folder = _jars()
    rpc, rest, jobs = (free_port() for _ in range(3))
    settings = {**_SETTINGS, "jobmanager.rpc.port": str(rpc), "rest.port": str(rest)}
    settings |= dict.fromkeys(("io.tmp.dirs", "web.tmpdir"), str(home / "temporary"))
    for name in ("conf", "temporary", "artifacts"):
        (home / name).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(home / "nothing.jar", "w") as nothing:
        nothing.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    conf = home / "conf"
    (conf / "flink-conf.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    start_process(home, "jobmanager", java(folder, entry, "--configDir", str(conf), mebibytes=512))
    wait_for_port(home, "jobmanager", rest)
    for machine in MACHINES:
        start_task_manager(home, machine)
    server = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    arguments = [f"--flink-master=localhost:{rest}", f"--job-port={jobs}", "--job-host=localhost"]
    arguments += ["--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={home / 'artifacts'}"]
    start_process(home, "jobserver", java(folder, server, *arguments, mebibytes=512))
    wait_for_port(home, "jobserver", jobs)
    options = [
        "--runner=PortableRunner",
        f"--job_endpoint=localhost:{jobs}",
        *worker_options(home),
        f"--parallelism={len(MACHINES)}",
        f"--files_to_stage={home / 'nothing.jar'}",  # as the cluster has the runner's jars on its class path
    ]
    (home / "rest").write_text(f"http://localhost:{rest}")
    return {"HALOFEED_BEAM_OPTIONS": " ".join(options), "FLINK_REST": (home / "rest").read_text()}


def states(home: Path) -> set[str]:
    with urllib.request.urlopen(f"{(home / 'rest').read_text()}/jobs") as answer:
        return {job["status"] for job in json.load(answer)["jobs"]}


stop = stop_all
"""To end the cluster."""


def start_task_manager(home: Path, machine: int) -> None:
    """Start the task manager of a machine, again after it was killed."""
    entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
    command = java(_jars(), entry, "--configDir", str(home / "conf"), mebibytes=512)
    start_process(home, f"taskmanager-{machine}", command)


def kill_task_manager(home: Path, machine: int) -> None:
    """Kill a task manager with its workers, as a machine would that fails, and have it come back."""
    stop_process(home, f"taskmanager-{machine}", signal.SIGKILL)
    start_task_manager(home, machine)


def worker_pids(home: Path) -> list[int]:
    return [pid for machine in MACHINES for pid in children_of(home, f"taskmanager-{machine}")]


def _jars() -> Path:
    runner = f"org.apache.beam:beam-runners-flink-{FLINK.rpartition('.')[0]}:{BEAM}"
    return jars("flink", [runner, "org.slf4j:slf4j-simple:1.7.30"])
