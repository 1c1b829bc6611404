"""Wheel and sdist of the installed halofeed, for Beam's --extra_package.

Workers of a remote runner need the package, and a user who installed it with pip has no checkout to build from. The
sdist is for workers that can build a package, and the wheel for workers that cannot.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from pathlib import Path

from halofeed import __version__
from halofeed.storage.atomic_files import atomic_write
from halofeed.storage.paths import load_bytes, paths_in
from halofeed.system.errors import UsageError

_SETUP = """\
from setuptools import find_packages, setup

setup(
    name="halofeed",
    version={version!r},
    packages=find_packages(),
    package_data={{"": ["py.typed", "*.css", "*.js", "*.html", "configs/*.toml", "*.json"]}},
    python_requires={python!r},
    install_requires={requires!r},
    extras_require={extras!r},
    entry_points={{"console_scripts": {scripts!r}}},
)
"""
PARTS = ("inspection", "loader", "pipelines", "prep", "schemas", "storage", "system", "trainer")
_SUFFIXES = (".py", ".css", ".js", ".html", ".toml", ".json")
_EXTRA = re.compile(r"""\s*(?:;|\band\b)\s*extra\s*==\s*["']([^"']+)["']""")


def write_packages(folder: str) -> tuple[Path, Path]:
    """Write the wheel and the sdist of this code, and return their paths; equal code gives equal bytes.

    Each has the command, requirements and extras of the installed halofeed. It also requires the libraries of the extra
    `convert` except Beam, which workers have, so that workers can read volumes.

    Args:
        folder: existing output folder.

    Raises:
        UsageError: the folder is missing, or halofeed is not installed, so that its requirements are unknown.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"--output {folder}: no such folder; make it first")
    files = {
        f"{inside}/{path.relative_to(place).as_posix()}": load_bytes(path)
        for inside, place in _places()
        for path in sorted(_walk(place))
    }
    installed = _Installed()
    wheel = Path(folder) / f"halofeed-{__version__}-py3-none-any.whl"
    sdist = Path(folder) / f"halofeed-{__version__}.tar.gz"
    try:
        atomic_write(wheel, _wheel(installed, files))
        atomic_write(sdist, _sdist(installed, files))
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {error.strerror or error}") from error
    return wheel, sdist


class _Installed:
    """Metadata of the installed package."""

    def __init__(self) -> None:
        try:
            installed = metadata.distribution("halofeed")
        except metadata.PackageNotFoundError as error:
            raise UsageError(
                "halofeed is not installed here, so nothing says what it requires; `pip install .` in its checkout "
                "first"
            ) from error
        self.python = installed.metadata["Requires-Python"]
        # An extra without requirements has no line in Requires-Dist.
        self.extras: dict[str, list[str]] = {
            name: [] for name in installed.metadata.get_all("Provides-Extra") or ()
        }
        self.requires = _sort_requirements(installed.requires or (), self.extras)
        # Beam's workers have Beam, in the version of their image.
        self.requires += [
            line for line in self.extras.get("convert", ()) if not line.startswith("apache-beam")
        ]
        scripts = installed.entry_points.select(group="console_scripts")
        self.scripts = [f"{script.name} = {script.value}" for script in scripts]

    def headers(self) -> str:
        """Return the text of METADATA and PKG-INFO (core metadata, version 2.1)."""
        lines = [
            "Metadata-Version: 2.1",
            "Name: halofeed",
            f"Version: {__version__}",
            f"Requires-Python: {self.python}",
            *(f"Provides-Extra: {name}" for name in self.extras),
            *(f"Requires-Dist: {line}" for line in self.requires),
            *(
                f'Requires-Dist: {line}{" and" if ";" in line else ";"} extra == "{name}"'
                for name, lines in self.extras.items()
                for line in lines
            ),
        ]
        return "\n".join(lines) + "\n"


def _sort_requirements(requires: Iterable[str], extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of no extra; add the others to their extra, without the marker that names it."""
    always = []
    for line in requires:
        found = _EXTRA.search(line)
        if found is None:
            always.append(line)
        else:
            extras.setdefault(found.group(1), []).append(line[: found.start()] + line[found.end() :])
    return always


def _sdist(installed: _Installed, files: dict[str, bytes]) -> bytes:
    setup = _SETUP.format(
        version=__version__,
        python=installed.python,
        requires=installed.requires,
        extras=installed.extras,
        scripts=installed.scripts,
    )
    files = {"setup.py": setup.encode(), "PKG-INFO": installed.headers().encode(), **files}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(f"halofeed-{__version__}/{name}")
            entry.size, entry.mode = len(data), 0o644  # its time stamp is always 1970
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _wheel(installed: _Installed, files: dict[str, bytes]) -> bytes:
    info = f"halofeed-{__version__}.dist-info"
    scripts = "\n".join(["[console_scripts]", *installed.scripts, ""])
    wheel = "Wheel-Version: 1.0\nGenerator: halofeed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts = {"METADATA": installed.headers(), "WHEEL": wheel, "entry_points.txt": scripts}
    files = files | {f"{info}/{name}": text.encode() for name, text in texts.items()}
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # its time stamp is always 1980
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return packed.getvalue()


def _places() -> Iterator[tuple[str, Path]]:
    """Yield the path of the package and of each part inside an archive, and the folder that holds it."""
    package = Path(__file__).resolve().parent
    yield "halofeed", package
    for part in PARTS:
        # setup.py installs a part of such a tree from the top level.
        if not (package / part).is_dir():  # a checkout without symbolic links
            yield f"halofeed/{part}", Path(str(import_module(f"halofeed.{part}").__file__)).parent


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the package's files; subpackages may be symbolic links to folders, as in a checkout."""
    for path in paths_in(folder):
        # Compiled files and editors' files differ from one machine to the next.
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix in _SUFFIXES or path.name == "py.typed":
            yield path
