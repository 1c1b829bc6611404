"""Plain access to local files and folders, for code that has no other reason to open them.

Only `halofeed.storage` opens anything outside the process (tests/test_import_rules.py). Files that must appear complete
are written by `atomic_write`, and files that may come from a stranger are opened by `open_regular`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

StrPath = str | os.PathLike[str]


def load_bytes(path: StrPath) -> bytes:
    """Return all bytes of a file."""
    return Path(path).read_bytes()


def load_text(path: StrPath, encoding: str | None = None, errors: str | None = None) -> str:
    """Return the text of a file."""
    return Path(path).read_text(encoding, errors)


def save_bytes(path: StrPath, data: bytes) -> None:
    """Write all bytes of a file."""
    Path(path).write_bytes(data)


def save_text(path: StrPath, text: str, encoding: str | None = None) -> None:
    """Write the text of a file."""
    Path(path).write_text(text, encoding)


def open_path(path: StrPath | int, mode: str, **options: Any) -> Any:
    """Open a path or a descriptor as `open` does; mode `x` refuses a path that exists."""
    return open(path, mode, **options)


def temporary_stream(mode: str = "w+b", **options: Any) -> Any:
    """Open a temporary file without a name, see `tempfile.TemporaryFile`."""
    import tempfile  # takes 4 ms with what it imports, and every command imports this module

    return tempfile.TemporaryFile(mode, **options)


def create_private_file(folder: StrPath) -> tuple[int, str]:
    """Create a file with a random name that only its owner may read; return its descriptor and path."""
    import tempfile

    return tempfile.mkstemp(dir=folder)


def user_cache_folder(name: str) -> Path | None:
    """Return the folder `halofeed/NAME` in the user's cache folder; None if the user has no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG Base Directory Specification, a relative path does not count.
    if os.path.isabs(cache):
        return Path(cache) / "halofeed" / name
    try:
        return Path.home() / ".cache" / "halofeed" / name
    except RuntimeError:  # in a container whose user has no name and no HOME
        return None


def names_in(folder: StrPath) -> list[str]:
    """Return the names of what is in a folder, in the order of the system."""
    return os.listdir(folder)


def paths_in(folder: Path) -> Iterator[Path]:
    """Yield the paths of what is in a folder, in the order of the system."""
    return folder.iterdir()


def find_paths(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the paths below a folder that match a pattern, see `Path.glob`."""
    return folder.glob(pattern)


def scan_folder(folder: StrPath) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Return the entries of a folder, with what the listing knows of them, within a block."""
    return os.scandir(folder)


def walk_folders(folder: StrPath) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below a folder with the names of its folders and files, as `os.walk` does."""
    return os.walk(os.fspath(folder))


def advise_reads(path: StrPath, ranges: Iterable[tuple[int, int]]) -> None:
    """Ask the system to read byte ranges of a file into its page cache; it may ignore that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for start, stop in ranges:
            os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
