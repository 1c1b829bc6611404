"""Size of a fresh installation of each extra: `python benchmarks/install_sizes.py [--only convert all]`.

Makes an environment per extra below the temporary folder (TMPDIR), installs this checkout with the versions of
requirements.lock, prints a row of the table of docs/install.md, and deletes the environment. uv must be installed.
The largest extra needs 6 GB.

Files are compiled to bytecode, because pip does that: the size is what `pip install` leaves on the disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = (
    *(
        "",
        "remote",
        "convert",
        "convert,aws",
        "convert,gcp",
        "convert,large",
        "convert,pictures",
        "convert,array-record",
        "convert,heic",
        "tf",
        "train",
    ),
    *("tpu", "cuda", "all", "convert,train", "test"),
)
"""Rows of the table, in its order; then what `./run demo` and `./run test` install."""
OLDER = ("cachetools", "google-cloud-dataflow-client")
"""Packages of which Beam's extra `gcp` needs older versions than those of requirements.lock."""


def main() -> None:
    """Print a row per extra."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=EXTRAS, metavar="EXTRA", help="such as convert,aws")
    for extras in parser.parse_args().only:
        mebibytes, packages = measure(extras)
        print(f"| {f'`{extras}`' if extras else 'none'} | {mebibytes:,} | {packages} |", flush=True)


def measure(extras: str) -> tuple[int, int]:
    """Return the MiB of site-packages after a fresh installation, and the number of packages in it."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/venv/bin/python"
        run("uv", "venv", "--quiet", "--python", sys.executable, f"{folder}/venv")
        constraints = write_constraints(Path(folder), OLDER if "gcp" in extras.split(",") else ())
        install = ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        run(*install, "--constraint", str(constraints), f"{ROOT}[{extras}]")
        (packages,) = Path(folder).glob("venv/lib/*/site-packages")
        return disk_mebibytes(packages), len([*packages.glob("*.dist-info")])


def write_constraints(folder: Path, without: tuple[str, ...]) -> Path:
    """Write the locked versions of all other packages, and return the file."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    file = folder / "constraints.txt"
    file.write_text("".join(f"{line}\n" for line in lines if line.partition("==")[0] not in without))
    return file


def run(*command: str) -> None:
    """Run a command; its error ends this program."""
    # Bytecode would go elsewhere, or nowhere, and would not be measured.
    unset = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k not in unset})


def disk_mebibytes(folder: Path) -> int:
    """Return the disk space of all files below a folder, as `du -sm` counts it, rounded up."""
    files = {(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in map(os.lstat, folder.rglob("*"))}
    return -(-sum(files.values()) // (1 << 20))


if __name__ == "__main__":
    main()
