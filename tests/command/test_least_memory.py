"""Does a command that may have too little memory end in one line, wherever its memory ends, and never by a crash?"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from halofeed.least_memory import check_least_memory
from halofeed.schemas.errors import HalofeedError
from tests.support.conversions import convert_words, draw_folders, run_convert


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("source")
    draw_folders(root, 12)
    return root


def limited(words: Sequence[object], option: str, limit_mib: int) -> subprocess.CompletedProcess[str]:
    """Run the command line where the shell has set a limit, such as -v, of so many MiB."""
    shell = ["sh", "-c", 'ulimit "$0" "$1" && shift && exec "$@"', option, limit_mib << 10]
    command = map(str, [*shell, sys.executable, "-m", "halofeed", *words])
    return subprocess.run(list(command), capture_output=True, text=True, check=False)


# From below what NumPy alone takes to above what the job needs, libraries that crash where memory ends in between.
@pytest.mark.parametrize(
    ("option", "limits_mib", "workers"),
    [
        ("-v", (580,), 2),
        pytest.param("-v", (390, 780, 880), 1, marks=pytest.mark.long),
        pytest.param("-d", (190, 290, 390), 2, marks=pytest.mark.long),
        pytest.param("-v", (390, 580, 780, 840, 880), 2, marks=pytest.mark.exhaustive),
        pytest.param("-d", (190, 290, 390), 1, marks=pytest.mark.exhaustive),
    ],
)
def test_a_conversion_ends_in_one_line(source, tmp_path, option, limits_mib, workers):
    for limit_mib in limits_mib:
        words = convert_words(source, tmp_path / str(limit_mib), workers=workers, shards=2)
        done = limited(words, option, limit_mib)
        if done.returncode:
            assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, (limit_mib, done.stderr)
            assert "too little memory" in done.stderr or "no further thread" in done.stderr
            assert f"ulimit {option}" in done.stderr and "raise the limit" in done.stderr


def test_what_has_just_enough_works(source, tmp_path):
    folder = run_convert(source, tmp_path, layout="folders").folder
    for command in ("verify", "inspect"):
        assert limited((command, folder), "-v", 390).returncode == 0
    done = limited(("verify", folder), "-v", 370)
    assert done.returncode == 1 and "too little memory: ulimit -v is 370 MiB" in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "export", "demo"])
def test_training_asks_for_what_xla_takes(command, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 << 30, 2 << 30))
    with pytest.raises(HalofeedError, match=r"ulimit -v is 2,048 MiB.* up to 3,072 MiB; raise the limit"):
        check_least_memory(command)
