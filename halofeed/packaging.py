"""How an installed halofeed becomes an sdist again, for Beam's --extra_package.

Workers of a remote runner need the package; those who installed it with pip have no checkout to build from.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from importlib import metadata
from pathlib import Path

from halofeed import __version__
from halofeed.schemas.errors import UsageError

_SETUP = """\
from setuptools import find_packages, setup

setup(
    name="halofeed",
    version={version!r},
    packages=find_packages(),
    package_data={{"": ["py.typed", "*.css", "*.js", "*.html"]}},
    python_requires=">=3.11",
    install_requires={requires!r},
)
"""


def write_sdist(folder: str) -> Path:
    """Write halofeed-VERSION.tar.gz, holding this very code, and return its path; equal code gives equal bytes.

    Raises:
        UsageError: the folder is not there.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"--output {folder}: no such folder; make it first")
    package = Path(__file__).resolve().parent
    base = f"halofeed-{__version__}"
    requires = [line for line in metadata.requires("halofeed") or () if "extra ==" not in line]
    files = {
        f"{base}/setup.py": _SETUP.format(version=__version__, requires=requires).encode(),
        f"{base}/PKG-INFO": f"Metadata-Version: 2.1\nName: halofeed\nVersion: {__version__}\n".encode(),
    }
    for path in sorted(_walk(package)):
        files[f"{base}/halofeed/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    target = Path(folder) / f"{base}.tar.gz"
    with (
        target.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return target


def _walk(folder: Path) -> list[Path]:
    """The package's files; its parts may be symbolic links to folders, as in a checkout."""
    found = []
    for path in folder.iterdir():
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        if path.is_dir():
            found += _walk(path)
        elif path.suffix in (".py", ".css", ".js", ".html") or path.name == "py.typed":
            found.append(path)
    return found
