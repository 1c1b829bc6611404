"""Cache of compiled programs on disk: the second command on the same model compiles nothing.

JAX's persistent compilation cache (https://docs.jax.dev/en/latest/persistent_compilation_cache.html) makes the keys: a
hash of the program, the options of the compiler, the version of jaxlib, and the kind of the devices, for a CPU with
its instruction sets. It also turns programs into bytes. `ProgramFiles` stores the bytes in place of JAX's own files,
which have three weaknesses (jax 0.10.2, jax/_src/lru_cache.py):

- With zstandard installed an entry has no checksum. Of 800 flipped bits in two entries, 495 gave other machine code.
- An entry is written in place, so another process may read a part of it.
- A size limit needs the package filelock, and an entry without its time file ends all writing
  (https://github.com/jax-ml/jax/issues/39880).

FOLDER/NAME.program    mark, SHA-256 of name and bytes, bytes
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from halofeed.storage.atomic_files import create_file
from halofeed.storage.paths import load_bytes, open_path, scan_folder, user_cache_folder
from halofeed.system.console import print_status

NO_CACHE = "none"
"""Value of --compile-cache, and of the variable, that turns the cache off."""
VARIABLE = "HALOFEED_COMPILE_CACHE"
MAX_BYTES = 1 << 30
"""Size above which the least recently used programs are deleted; those of a small RetinaNet have 0.8 MB."""
MAX_FILES = 4000
"""Number of programs above which the least recently used are deleted; a training run has about 40."""
_KEPT_SHARE = 0.9
"""Share of both limits that a deletion keeps, so that it is rare."""
_MARK = b"halofeed program 1\n"
_ENDING, _NEW_ENDING = ".program", ".new"
_ABANDONED_SECONDS = 3600.0
_SETTINGS: dict[str, Any] = {
    # Compiling the 35 small programs of a training run takes a second too.
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # XLA's files of autotuning have no limit, and their folder is part of the key.
    "jax_persistent_cache_enable_xla_caches": "none",
}
_LIBRARIES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas"),
)
"""Libraries whose versions are part of a program's name; JAX's key has that of jaxlib and what a platform states."""


def chosen_folder(option: str | None, *, processes: int = 1) -> Path | None:
    """Return the folder of the cache; None to leave JAX as it is.

    Args:
        option: folder, or "none"; by default the value of `$HALOFEED_COMPILE_CACHE`, else `halofeed/compiled` in the
            user's cache folder.
        processes: number of processes of the run.

    >>> chosen_folder("none") is None, chosen_folder("programs")
    (True, PosixPath('programs'))
    """
    named = option or os.environ.get(VARIABLE)
    if named:
        return None if named == NO_CACHE else Path(named)
    # A user who has configured JAX's own cache keeps it.
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return None
    # Only process 0 writes (JAX's documentation), and GPUs tune their programs together while they compile: a process
    # that finds its program would leave the others waiting. A folder that is named is one that all hosts see.
    return user_cache_folder("compiled") if processes == 1 else None


@contextlib.contextmanager
def compile_cache(folder: Path | None) -> Iterator[ProgramFiles | None]:
    """Store the programs that JAX compiles within a block in a folder, and load those that the folder holds.

    Other threads that compile in the block use the folder too. Without a folder, or with a JAX that does not have the
    functions behind its cache, the block changes nothing.

    Args:
        folder: folder of the cache, created if missing; None for no cache.
    """
    try:
        # The public module cannot replace JAX's files by others.
        from jax._src import compilation_cache as of_jax
        from jax.experimental.compilation_cache.compilation_cache import reset_cache

        make_jax_store = of_jax.get_file_cache
    except (ImportError, AttributeError):
        folder = None
    if folder is None:
        yield None
        return
    files = ProgramFiles(folder)
    settings = {**_SETTINGS, "jax_compilation_cache_dir": os.fspath(folder)}
    before = {name: getattr(jax.config, name) for name in settings}

    def store_of_path(path: str) -> Any:
        return files, path

    of_jax.get_file_cache = store_of_path
    try:
        _configure(settings)
        reset_cache()  # JAX asks for its store once
        yield files
    finally:
        of_jax.get_file_cache = make_jax_store
        _configure(before)
        reset_cache()


@contextlib.contextmanager
def cache_events() -> Iterator[Counter[str]]:
    """Count what JAX's compilation cache reports of this thread's programs within a block, such as `cache_hits`."""
    found: Counter[str] = Counter()
    thread = threading.get_ident()

    def count(event: str, **_: Any) -> None:
        # Threads that make batches compile programs of their own.
        if threading.get_ident() == thread:
            found[event.rpartition("/")[2]] += 1

    jax.monitoring.register_event_listener(count)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_listener(count)


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


class ProgramFiles:
    """Compiled programs as files: each is written atomically, checked when it is read, and deleted if it is damaged.

    No error of the file system reaches the caller: a program that cannot be read is compiled, and the first one that
    cannot be written prints a line.

    Args:
        folder: folder of the files, created by the first program.

    Attributes:
        found: number of programs that were read.
        stored: number of programs that were written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder  # JAX prints this attribute
        self.found = self.stored = 0
        self._can_write = True

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a program; None if they are missing or damaged."""
        file = self._file(key)
        try:
            data = load_bytes(file)
        except OSError:
            return None
        head = len(_MARK) + hashlib.sha256().digest_size
        value = data[head:]
        if data[:head] != _MARK + _digest(file.name, value):
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # most recently used
        self.found += 1
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store the bytes of a program."""
        if not self._can_write:
            return
        file = self._file(key)
        try:
            if not self.stored:
                # The files are executed, so other users may not write here.
                self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
                _delete_oldest(self._path)
            _replace(file, _MARK + _digest(file.name, value) + value)
        except OSError as error:
            self._can_write = False
            print_status(
                f"{self._path}: cannot store compiled programs ({error.strerror or error}), so the next command "
                "compiles them again; name another folder with --compile-cache, or none"
            )
        else:
            self.stored += 1

    def _file(self, key: str) -> Path:
        name = hashlib.sha256(repr([key, *_environment()]).encode()).hexdigest()[:40]
        return self._path / f"{name}{_ENDING}"


def _digest(name: str, value: bytes) -> bytes:
    # With its name, so that a file that was renamed counts as damaged.
    return hashlib.sha256(b"\n".join((name.encode(), value))).digest()


def _replace(file: Path, data: bytes) -> None:
    """Write a file atomically. It is not synced, so its checksum may be wrong after a loss of power."""
    new = file.with_name(f"{file.stem}.{os.urandom(8).hex()}{_NEW_ENDING}")
    try:
        with open_path(create_file(new), "wb") as stream:
            stream.write(data)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _delete_oldest(folder: Path) -> None:
    """Delete the least recently used programs above the limits, and what killed processes left."""
    found, total, now = [], 0, time.time()
    with scan_folder(folder) as entries:
        for entry in entries:
            if not entry.name.endswith((_ENDING, _NEW_ENDING)):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_ENDING):
                    found.append((status.st_mtime, status.st_size, entry.path))
                    total += status.st_size
                elif now - status.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)
    if total <= MAX_BYTES and len(found) <= MAX_FILES:
        return
    count = len(found)
    for _, size, path in sorted(found):
        if total <= _KEPT_SHARE * MAX_BYTES and count <= _KEPT_SHARE * MAX_FILES:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total, count = total - size, count - 1


@functools.cache
def _environment() -> tuple[str, ...]:
    """Return what determines a program besides JAX's key: versions of libraries and, for a CPU, its model."""
    versions = []
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    # A folder may be shared by machines. XLA tunes programs for the model, and JAX's key has the instruction sets.
    return (*versions, *(_processor() if jax.default_backend() == "cpu" else ()))


def _processor() -> tuple[str, ...]:
    """Return the model of the processor."""
    # Many platforms have no model in `platform.processor` (Python's documentation).
    with contextlib.suppress(OSError), open_path("/proc/cpuinfo", "r") as stream:
        lines = []
        for line in stream:
            if not line.strip():  # the lines after it describe another core
                break
            # Other lines, such as the clock rate, change.
            if line.startswith(("vendor_id", "cpu family", "model", "flags", "CPU ", "Features")):
                lines.append(" ".join(line.split()))
        return tuple(lines)
    return platform.machine(), platform.processor()
