"""The wheel and sdist of `halofeed package` hold the code, the command, the extras and what workers need."""

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

from halofeed import __version__
from halofeed.errors import UsageError
from halofeed.packaging import write_packages

ROOT = Path(__file__).parents[1]
BASE = f"halofeed-{__version__}"
OF_CONVERT = re.compile('(; | and )extra == "convert"$')
FOR_WORKERS = {*metadata.requires("halofeed")} | {
    OF_CONVERT.sub("", line)
    for line in metadata.requires("halofeed")
    if OF_CONVERT.search(line) and not line.startswith("apache-beam")
}
"""Beam they have; what reads volumes they would lack."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(write_packages(str(folder))[1]) as archive:
        # Python before 3.11.4 has no filters.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / BASE


@pytest.fixture(scope="module")
def built(unpacked) -> Path:
    """What setuptools makes of the sdist's setup.py."""
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info"], cwd=unpacked, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return unpacked / "halofeed.egg-info"


def test_an_installed_sdist_gives_the_command(built):
    scripts = configparser.ConfigParser()
    scripts.read(built / "entry_points.txt")
    (command,) = metadata.entry_points(group="console_scripts", name="halofeed")
    assert dict(scripts["console_scripts"]) == {"halofeed": command.value}


def test_an_installed_sdist_has_the_same_requirements_and_extras(built, unpacked):
    ours = Parser().parsestr((built / "PKG-INFO").read_text())
    theirs = metadata.metadata("halofeed")
    assert set(ours.get_all("Provides-Extra")) == {*theirs.get_all("Provides-Extra")} >= {"convert", "train"}
    assert set(ours["Requires-Python"].split(",")) == set(theirs["Requires-Python"].split(","))
    sections: dict[str, set[str]] = {"": set()}
    name = ""
    for line in filter(None, (built / "requires.txt").read_text().splitlines()):
        if line.startswith("["):
            name = line.strip("[]")
            sections[name] = set()
        else:
            sections[name].add(line)
    found = set()
    for section, lines in sections.items():
        extra, _, marker = section.partition(":")
        conditions = " and ".join(filter(None, (marker, f'extra == "{extra}"' * bool(extra))))
        found |= {f"{line}; {conditions}".removesuffix("; ") for line in lines}
    assert found == FOR_WORKERS
    before_it_is_built = Parser().parsestr((unpacked / "PKG-INFO").read_text())
    assert before_it_is_built["Version"] == __version__
    assert set(before_it_is_built.get_all("Requires-Dist")) == FOR_WORKERS


def test_it_holds_every_file_of_the_package_and_the_same_bytes_each_time(unpacked, tmp_path):
    ours = {p.relative_to(unpacked / "halofeed") for p in (unpacked / "halofeed").rglob("*") if p.is_file()}
    parts = [path for path in (ROOT / "halofeed").iterdir() if path.is_dir() and path.name != "__pycache__"]
    theirs = {Path(p.name) for p in (ROOT / "halofeed").iterdir() if p.suffix in (".py", ".typed", ".json")}
    for part in parts:
        files = [p for p in part.resolve().rglob("*") if p.suffix in (".py", ".css", ".js", ".html", ".toml")]
        theirs |= {Path(part.name) / p.relative_to(part.resolve()) for p in files}
    assert ours == theirs
    (tmp_path / "again").mkdir()
    first, second = write_packages(str(tmp_path)), write_packages(str(tmp_path / "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.long
def test_a_tree_that_lost_its_links_builds_the_same_package(unpacked, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "halofeed", tree / "halofeed", symlinks=True)
    for link in [path for path in (tree / "halofeed").iterdir() if path.is_symlink()]:
        shutil.copytree(ROOT / link.name, tree / link.name)
        target, _ = str(link.readlink()), link.unlink()
        link.write_text(target)  # as Python's zipfile unpacks a link
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    words = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(tmp_path / "built")]
    subprocess.run(words, cwd=tree, check=True, capture_output=True)
    for path in (unpacked / "halofeed").rglob("*.*"):
        assert (tmp_path / "built" / path.relative_to(unpacked)).read_bytes() == path.read_bytes()
    assert list((tmp_path / "built").rglob("_kernel*"))


def test_the_wheel_installs_without_building_and_has_the_same_files_and_metadata(unpacked, tmp_path):
    wheel, _ = write_packages(str(tmp_path))
    # With an import system that refuses setuptools and wheel, as on a worker that has neither.
    script = (
        "import sys; sys.modules['setuptools'] = sys.modules['wheel'] = None; "
        "from pip._internal.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    install = [sys.executable, "-c", script, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(tmp_path / "there"), str(wheel)], check=True, timeout=100)
    there = tmp_path / "there"
    for path in (unpacked / "halofeed").rglob("*.*"):
        assert (there / path.relative_to(unpacked)).read_bytes() == path.read_bytes()
    (info,) = there.glob("*.dist-info")
    assert (info / "METADATA").read_text() == (unpacked / "PKG-INFO").read_text()
    assert (there / "bin" / "halofeed").is_file()


def test_a_checkout_that_is_not_installed_and_a_folder_that_is_not_there_are_told(tmp_path, monkeypatch):
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    monkeypatch.setattr(metadata, "metadata", absent)
    monkeypatch.setattr(metadata, "requires", absent)
    with pytest.raises(UsageError, match="pip install"):
        write_packages(str(tmp_path))
    with pytest.raises(UsageError, match="no such folder"):
        write_packages(str(tmp_path / "absent"))
