"""A Flink session cluster: a job manager, two task managers, a worker pool for each, and Beam's job server.

The two task managers stand for two machines: each finds the pool `pool` at an address of its own, by its own list of
hosts, and the pools' environment installed only the sdist of halofeed and Beam.
"""

from __future__ import annotations

import signal
import socket
import zipfile
from pathlib import Path

from tests.engines.java import BEAM, jars, java
from tests.engines.processes import (
    born,
    free_port,
    pid_of,
    start_process,
    stop_all,
    stop_process,
    wait_for_port,
)
from tests.engines.worker_environment import worker_python

FLINK = "1.19.0"
MACHINES = (1, 2)
_SETTINGS = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.memory.process.size": "1024m",
    "jobmanager.execution.failover-strategy": "region",
    "rest.address": "localhost",
    "rest.bind-address": "localhost",
    "taskmanager.host": "localhost",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "256m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "128m",
    "taskmanager.memory.jvm-overhead.max": "128m",
    "parallelism.default": "2",
    "heartbeat.interval": "2000",
    "heartbeat.timeout": "10000",
    # Retries come from here alone: Beam's --number_of_execution_retries is ignored.
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "5",
    "restart-strategy.fixed-delay.delay": "1 s",
}


def start(home: Path) -> dict[str, str]:
    """Bring the cluster up; Beam's options for it are in HALOFEED_BEAM_OPTIONS, the cluster's page in FLINK_REST."""
    folder = _jars()
    rpc, rest, pool, jobs = (free_port() for _ in range(4))
    settings = {
        **_SETTINGS,
        "jobmanager.rpc.port": str(rpc),
        "rest.port": str(rest),
        "io.tmp.dirs": str(home / "temporary"),
        "web.tmpdir": str(home / "temporary"),
    }
    for name in ("conf", "temporary", "artifacts"):
        (home / name).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(home / "nothing.jar", "w") as nothing:
        nothing.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    conf = home / "conf"
    (conf / "flink-conf.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    start_process(home, "jobmanager", java(folder, entry, "--configDir", str(conf), mebibytes=512))
    python = worker_python()
    for machine in MACHINES:
        (conf / f"hosts-{machine}").write_text(
            f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n127.0.0.{machine} pool\n"
        )
        (home / f"pool-{machine}.address").write_text(f"127.0.0.{machine}:{pool}")
        start_pool(home, machine, python)
    wait_for_port(home, "jobmanager", rest)
    for machine in MACHINES:
        start_task_manager(home, machine)
        wait_for_port(home, f"pool-{machine}", pool, f"127.0.0.{machine}")
    server = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    arguments = [f"--flink-master=localhost:{rest}", f"--job-port={jobs}", "--job-host=localhost"]
    arguments += ["--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={home / 'artifacts'}"]
    start_process(home, "jobserver", java(folder, server, *arguments, mebibytes=512))
    wait_for_port(home, "jobserver", jobs)
    options = [
        "--runner=PortableRunner",
        f"--job_endpoint=localhost:{jobs}",
        "--environment_type=EXTERNAL",
        f"--environment_config=pool:{pool}",
        f"--parallelism={len(MACHINES)}",
        f"--files_to_stage={home / 'nothing.jar'}",  # as the cluster has the runner's jars on its class path
    ]
    return {"HALOFEED_BEAM_OPTIONS": " ".join(options), "FLINK_REST": f"http://localhost:{rest}"}


def stop(home: Path) -> None:
    """End the cluster."""
    stop_all(home)


def start_task_manager(home: Path, machine: int) -> None:
    """Start the task manager of a machine, again after it was killed."""
    flags = [f"-Djdk.net.hosts.file={home / 'conf' / f'hosts-{machine}'}"]
    entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
    command = java(_jars(), entry, "--configDir", str(home / "conf"), mebibytes=512, flags=flags)
    start_process(home, f"taskmanager-{machine}", command)


def start_pool(home: Path, machine: int, python: Path) -> None:
    """Start the worker pool of a machine."""
    address = (home / f"pool-{machine}.address").read_text()
    path = {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": ""}
    program = Path(__file__).with_name("worker_pool.py")
    start_process(home, f"pool-{machine}", [python, program, address], path)


def kill_task_manager(home: Path, machine: int) -> None:
    """Kill a task manager as a failing machine would, and have it come back, as a supervisor would."""
    stop_process(home, f"taskmanager-{machine}", signal.SIGKILL)
    start_task_manager(home, machine)


def worker_pids(home: Path) -> list[int]:
    """The Python workers that the pools have running."""
    found = []
    for machine in MACHINES:
        pool = pid_of(home, f"pool-{machine}")
        if pool is not None:
            for thread in Path(f"/proc/{pool}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return [pid for pid in found if born(pid)]


def _jars() -> Path:
    runner = f"org.apache.beam:beam-runners-flink-{FLINK.rpartition('.')[0]}:{BEAM}"
    return jars("flink", [runner, "org.slf4j:slf4j-simple:1.7.30"])
