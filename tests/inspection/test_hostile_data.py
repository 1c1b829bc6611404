"""Reading a hostile data set ends in an answer or a HalofeedError, soon and in little memory.

Everything that reads one (manifest, verify, inspect, report, loader) is tried on sound data sets of each kind of which
one thing is changed and every checksum is right again, in a process with a limit of memory and of time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_sets import write_sound_sets
from tests.support.hostile_writer import KINDS


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    write_sound_sets(root)
    return root


def read(sound: Path, scratch: Path, kinds: str, first: int, count: int) -> list[dict[str, Any]]:
    """What went wrong with so many hostile copies of each data set."""
    command = [sys.executable, "-m", "tests.support.hostile_reader", sound, scratch, kinds, first, count]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines and lines[-1]["read"] >= count, done.stderr[-3000:]
    return lines[:-1]


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 1),
        pytest.param(1, 3, marks=pytest.mark.long),
        pytest.param(4, 20, marks=pytest.mark.exhaustive),
    ],
)
def test_what_strangers_made_is_read_or_refused_in_words(
    sound: Path, tmp_path: Path, first: int, count: int
) -> None:
    assert read(sound, tmp_path / "scratch", ",".join(KINDS), first, count) == []
