"""How an installed halofeed becomes an sdist again, for Beam's --extra_package.

Workers of a remote runner need the package; those who installed it with pip have no checkout to build from.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from importlib import metadata
from pathlib import Path

from halofeed import __version__
from halofeed.schemas.beside import write_whole
from halofeed.schemas.errors import UsageError

_SETUP = """\
from setuptools import find_packages, setup

setup(
    name="halofeed",
    version={version!r},
    packages=find_packages(),
    package_data={{"": ["py.typed", "*.css", "*.js", "*.html", "configs/*.toml"]}},
    python_requires={python!r},
    install_requires={requires!r},
    extras_require={extras!r},
    entry_points={{"console_scripts": {scripts!r}}},
)
"""
_EXTRA = re.compile(r"""\s*(?:;|\band\b)\s*extra\s*==\s*["']([^"']+)["']""")


def write_sdist(folder: str) -> Path:
    """Write halofeed-VERSION.tar.gz, holding this very code, and return its path; equal code gives equal bytes.

    Installing it gives what installing halofeed itself gave: the command, the requirements and the extras.

    Raises:
        UsageError: the folder is not there, or halofeed is not installed, so that nothing says what it requires.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"--output {folder}: no such folder; make it first")
    package = Path(__file__).resolve().parent
    base = f"halofeed-{__version__}"
    files = {f"{base}/{name}": text.encode() for name, text in _metadata().items()}
    for path in sorted(_walk(package)):
        files[f"{base}/halofeed/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    target = Path(folder) / f"{base}.tar.gz"
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    try:
        write_whole(target, packed.getvalue())
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {error.strerror or error}") from error
    return target


def _metadata() -> dict[str, str]:
    """The texts of setup.py and PKG-INFO, from what was written down when halofeed was installed."""
    try:
        installed = metadata.distribution("halofeed")
    except metadata.PackageNotFoundError as error:
        raise UsageError(
            "halofeed is not installed here, so nothing says what it requires; `pip install .` in its checkout first"
        ) from error
    python, lines = installed.metadata["Requires-Python"], installed.requires or []
    requires: list[str] = []
    extras: dict[str, list[str]] = {name: [] for name in installed.metadata.get_all("Provides-Extra") or ()}
    for line in lines:
        found = _EXTRA.search(line)
        if found is None:
            requires.append(line)
        else:
            extras.setdefault(found.group(1), []).append(line[: found.start()] + line[found.end() :])
    scripts = [
        f"{script.name} = {script.value}"
        for script in installed.entry_points
        if script.group == "console_scripts"
    ]
    headers = [
        "Metadata-Version: 2.1",
        "Name: halofeed",
        f"Version: {__version__}",
        f"Requires-Python: {python}",
        *(f"Provides-Extra: {name}" for name in extras),
        *(f"Requires-Dist: {line}" for line in lines),
    ]
    setup = _SETUP.format(
        version=__version__, python=python, requires=requires, extras=extras, scripts=scripts
    )
    return {"setup.py": setup, "PKG-INFO": "\n".join(headers) + "\n"}


def _walk(folder: Path) -> list[Path]:
    """The package's files; its parts may be symbolic links to folders, as in a checkout."""
    found = []
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        if path.is_dir():
            found += _walk(path)
        elif path.suffix in (".py", ".css", ".js", ".html", ".toml") or path.name == "py.typed":
            found.append(path)
    return found
