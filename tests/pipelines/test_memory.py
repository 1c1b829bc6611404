"""Does a conversion's memory stay the same however many pictures there are?"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.support import CLASSES, draw_folders

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc for the peak")
PROGRAM = r"""
import re, sys
from halofeed.cli import main
code = main(sys.argv[1:])
# ru_maxrss would count the process that started this one, too.
print("peak", 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]))
sys.exit(code)
"""


def peak_bytes(source: Path, out: Path) -> int:
    given = ["--layout", "folders", "--source", source, "--out", out, "--name", "set", "--workers", 1]
    # 200 pictures are 118 MB of records: what is not written away at once shows.
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "convert",
        *given,
        "--threads",
        2,
        "--height",
        448,
        "--width",
        448,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.split("peak ")[1])


def test_eight_times_the_pictures_take_no_more_memory(tmp_path):
    draw_folders(tmp_path / "few", 100, side=64)
    shutil.copytree(tmp_path / "few", tmp_path / "many")
    for label in CLASSES:
        for copy in range(1, 8):
            for path in sorted((tmp_path / "few" / label).iterdir()):
                shutil.copy(path, tmp_path / "many" / label / f"{copy}-{path.name}")
    few = peak_bytes(tmp_path / "few", tmp_path / "out few")
    many = peak_bytes(tmp_path / "many", tmp_path / "out many")
    shutil.rmtree(tmp_path / "out many")
    assert abs(many - few) < 25e6, f"{few / 1e6:.0f} MB for 100 pictures, {many / 1e6:.0f} MB for 800"


@pytest.mark.long
def test_twenty_thousand_references_take_their_own_size_only(tmp_path):
    """Kilobytes cross the shuffle: references, a few hundred bytes each."""
    draw_folders(tmp_path / "few", 10, side=24)
    for label in CLASSES:
        (tmp_path / "many" / label).mkdir(parents=True)
        paths = sorted((tmp_path / "few" / label).iterdir())
        for number in range(10_000):
            (tmp_path / "many" / label / f"{number}.jpg").hardlink_to(paths[number % len(paths)])
    few = peak_bytes_small(tmp_path / "few", tmp_path / "out few")
    many = peak_bytes_small(tmp_path / "many", tmp_path / "out many")
    assert many - few < 20_000 * 8_000, f"{(many - few) / 20_000:.0f} bytes a reference"


def peak_bytes_small(source: Path, out: Path) -> int:
    given = ["--layout", "folders", "--source", source, "--out", out, "--name", "set", "--workers", 1]
    command = [sys.executable, "-c", PROGRAM, "convert", *given, "--height", 8, "--width", 8]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=True)
    return int(done.stdout.split("peak ")[1])
