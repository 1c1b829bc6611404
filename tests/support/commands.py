"""What the tests of the command's surroundings share: every entry, run with a temporary folder of its own."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.conversions import convert_words
from tests.support.conversions import start as start_in_foreground
from tests.support.conversions import wait_until as wait

SETTINGS = {"layout": "folders", "shards": 8, "interpolation": "tf2-lanczos5", "height": 96, "width": 96}
STOPPED = "stopped ("


def convert(source: Path, out: Path, workers: int, *more: str) -> list[str]:
    return [*convert_words(source, out, workers=workers, **SETTINGS), *more]


def light_entries(data: Path, out: Path) -> dict[str, list[str]]:
    """Commands that need no accelerator's libraries, by name; they write below `out` alone."""
    entries = {"help": ["--help"], "help of convert": ["convert", "--help"], "verify": ["verify", str(data)]}
    entries |= {
        "inspect": ["inspect", str(data)],
        "inspect a record": ["inspect", str(data), "--record", "train:1"],
    }
    entries["report"] = ["report", str(data), "--output", str(out / "report.html")]
    return entries | {"package": ["package", "--output", str(out)]}


def start(words: Sequence[str], temporary: Path, **more: Any) -> subprocess.Popen[str]:
    """Start the command line with TMPDIR at `temporary`, which is made."""
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), **more.pop("environment", {})}
    return start_in_foreground(words, env=environment, **more)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Wait for the condition, or for the process to end."""
    wait(lambda: condition() or process.poll() is not None, seconds, process.args)


def living(temporary: Path) -> list[str]:
    """The running processes that were started with this temporary folder, by number and name."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                given = (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if f"TMPDIR={temporary}".encode() in given and state not in "ZX":
                found.append(f"{folder.name} {name}")
    return found


def left_of(temporary: Path, out: Path) -> list[str]:
    """What should be gone with a process: temporary files, its own and beside what it writes."""
    beside = [str(path) for path in out.rglob(".*.new")] if out.exists() else []
    return [str(path) for path in temporary.iterdir()] + beside


def is_pythons_own(errors: str) -> bool:
    """Whether a traceback ends before halofeed's first line: of Python's start, which nobody can change."""
    return "KeyboardInterrupt" in errors and f"halofeed{os.sep}__main__.py" not in errors
