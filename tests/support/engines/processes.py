"""How the processes of an engine are started, found again by another command, and ended."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class MissingError(Exception):
    """This machine lacks a program that an engine needs, or could not be given what a registry holds."""


def cache() -> Path:
    """The folder that keeps what was downloaded and built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "halofeed" / "engines"


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Keep other processes from making the same thing in the cache meanwhile."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def need(program: str, package: str) -> str:
    """The path of a program; MissingError where this machine has none."""
    found = shutil.which(program)
    if found is None:
        raise MissingError(f"{program} is not installed here (Debian: apt-get install {package})")
    return found


def prepare(command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command that downloads or builds; MissingError with the end of what it said where it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        given = {"stdout": stream, "stderr": stream, "env": {**os.environ, **(environment or {})}}
        done = subprocess.run([str(word) for word in command], check=False, **given)
    if done.returncode:
        raise MissingError(f"{command[0]} failed:\n{log.read_text(errors='replace')[-2000:]}")


def go_program(name: str, module: str, version: str) -> Path:
    """A program of Go's, which is built at the first time; MissingError where it cannot be."""
    folder = cache() / f"{name}-{version}"
    with alone(name):
        if not (folder / name).is_file():
            command = [need("go", "golang"), "install", f"{module}@{version}"]
            prepare(command, cache() / f"{name}.log", {"GOBIN": str(folder)})
    return folder / name


def free_port() -> int:
    """A port of the loopback that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_process(home: Path, name: str, command: Sequence[str | Path], environment=None) -> int:
    """Start a process and return its id; it outlives this one, leads a group, and writes into NAME.log."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.log").open("ab") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        own = {"start_new_session": True, "cwd": home, "env": {**os.environ, **(environment or {})}}
        process = subprocess.Popen([str(word) for word in command], **streams, **own)
    (home / f"{name}.pid").write_text(f"{process.pid} {born(process.pid)}")
    process.returncode = 0  # else Python warns that it still runs when the object goes
    return process.pid


def wait_for_port(home: Path, name: str, port: int, address: str = "127.0.0.1", seconds: float = 120) -> None:
    """Return once the process of this name serves a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        if pid_of(home, name) is None:
            break
        time.sleep(0.1)
    log = (home / f"{name}.log").read_text(errors="replace")
    raise RuntimeError(f"{name} does not serve port {port}:\n{log[-3000:]}")


def pid_of(home: Path, name: str) -> int | None:
    """The id of a process that was started under this name; None where it has ended."""
    try:
        pid, at = (home / f"{name}.pid").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if born(int(pid)) == at else None


def children_of(home: Path, name: str) -> list[int]:
    """The ids of the processes that one started and that run."""
    found: list[int] = []
    parent = pid_of(home, name)
    if parent is not None:
        for thread in Path(f"/proc/{parent}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return sorted(pid for pid in found if born(pid))


def stop_process(home: Path, name: str, how: signal.Signals = signal.SIGTERM) -> None:
    """End a process with all that it started, by force where it does not within ten seconds."""
    for number in (how, signal.SIGKILL):
        pid = pid_of(home, name)
        if pid is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        end = time.monotonic() + 10
        while pid_of(home, name) is not None and time.monotonic() < end:
            time.sleep(0.05)
    (home / f"{name}.pid").unlink(missing_ok=True)


def stop_all(home: Path) -> None:
    """End every process of this folder and delete the folder."""
    for file in sorted(home.glob("*.pid")):
        stop_process(home, file.stem)
    shutil.rmtree(home, ignore_errors=True)


def born(pid: int) -> str:
    """When a process began, as /proc tells it, so that another one of its id is not taken for it; "" once it ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else rest[18]
