"""The kernel's windows of color planes at all edges, with sanitizers and on other processors."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "schemas" / "native"
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.parametrize(
    ("compiler", "options", "runner"),
    [
        ("gcc", SANITIZED, []),
        ("gcc", ["-O3", "-Wall", "-Werror"], []),
        ("clang", ["-O3"], []),
        ("aarch64-linux-gnu-gcc", ["-O3", "-static"], ["qemu-aarch64-static"]),
    ],
    ids=["sanitized", "gcc", "clang", "aarch64"],
)
def test_every_window_has_its_pixels_reads_inside_the_value_and_verifies_what_it_shows(
    tmp_path, compiler, options, runner
):
    if missing := [name for name in (compiler, *runner) if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    program = tmp_path / "windows"
    command = [compiler, *options, f"-I{NATIVE}", str(HERE / "color_windows.c"), "-o", str(program)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in found.stderr:
        pytest.skip(f"{compiler} {' '.join(options)}: {found.stderr}")
    assert (found.returncode, found.stderr) == (0, "")
    done = subprocess.run([*runner, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")
