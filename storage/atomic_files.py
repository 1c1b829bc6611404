"""Safe ways to open, write and replace files: regular files only, no followed links, atomic and durable."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from halofeed.storage import owned_files
from halofeed.system.console import human_bytes, print_status
from halofeed.system.errors import UsageError
from halofeed.system.resource_errors import error_context
from halofeed.system.signals import CleanupOnExit, DeferSignals

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_NAMES_ARE_UTF8 = sys.getfilesystemencoding().lower() == "utf-8"
_MAX_READ_BYTES = 1 << 30
_FILE_TYPES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Error numbers of file systems without fsync or without exchange."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_MAX_NAME_LENGTH = 60


def decode_name(name: str) -> str:
    """Return the text of a file name that Python got from the system: a listing, an argument, a working folder."""
    return name if _NAMES_ARE_UTF8 else os.fsencode(name).decode("utf-8", "surrogateescape")


def encode_name(text: str) -> str:
    """Return the text of a file name in the form that Python passes to the system.

    Raises:
        UnicodeEncodeError: no file can have this name.
    """
    return text if _NAMES_ARE_UTF8 else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def is_valid_name(text: str) -> bool:
    """Return True if a file can have this name: every text without a lone surrogate that stands for no byte.

    >>> is_valid_name("caf\\u00e9"), is_valid_name("caf\\udce9"), is_valid_name("caf\\ud800")
    (True, True, False)
    """
    if text.isascii():
        return True
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> FileIO:
    """Open a regular file of at most `max_bytes` without a buffer; follow links.

    Raises:
        OSError: the file is missing, unreadable or too large, or it is a folder, a pipe, a device or a socket. The
            call never waits for one of these.
    """
    descriptor, _ = _open_regular(path, max_bytes)
    return open(descriptor, "rb", buffering=0)


def read_regular(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`.

    Raises:
        OSError: as `open_regular`, and if the file changes while it is read.
    """
    descriptor, status = _open_regular(path, max_bytes)
    size = status.st_size
    try:
        if size > _MAX_READ_BYTES:
            # The stream fills one buffer in several reads. Joining the parts would take the memory twice.
            with open(descriptor, "rb", closefd=False) as stream:
                data = stream.read(size) or b""
        else:
            data = os.read(descriptor, size) if size else b""
            while len(data) < size and (piece := os.read(descriptor, size - len(data))):
                data += piece
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (size, status.st_mtime_ns):
            raise OSError(errno.EBUSY, "it was changed while it was read", os.fspath(path))
        return data
    finally:
        os.close(descriptor)


def _open_regular(path: str | os.PathLike[str], max_bytes: int | None) -> tuple[int, os.stat_result]:
    """Return the descriptor and the status of a regular file."""
    _check_regular(os.stat(path), path)  # before open, which may have an effect on a device
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check_regular(status, path)
        if max_bytes is not None and status.st_size > max_bytes:
            message = f"it holds {human_bytes(status.st_size)}, and at most {human_bytes(max_bytes)} are read"
            raise OSError(errno.EFBIG, message, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        message = f"it is {file_type(status.st_mode)}; expected a regular file"
        raise OSError(errno.EINVAL, message, os.fspath(path))


def file_type(mode: int) -> str:
    """Return the type of a path that is not a regular file, by its `st_mode`.

    >>> file_type(os.stat("/dev/null").st_mode)
    'a device'
    """
    return _FILE_TYPES.get(stat.S_IFMT(mode), "no file")


def fsync_paths(paths: Iterable[str]) -> None:
    """Flush the content of local files and folders to the disk, in this order.

    Raises:
        OSError: the disk refused, or a path cannot be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_descriptor(descriptor)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)


def _sync_descriptor(descriptor: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        # macOS's fsync stops at the drive's own cache.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full_sync)
            return
    os.fsync(descriptor)


def fsync_tree(folder: str | os.PathLike[str]) -> None:
    """Flush a local folder, everything below it and its name to the disk; OSError as `fsync_paths`."""
    for parent, _, names in os.walk(folder, topdown=False):
        fsync_paths([*(os.path.join(parent, name) for name in names), parent])
    fsync_paths([os.path.dirname(os.path.abspath(folder))])


def swap_paths(one: str, other: str) -> bool:
    """Swap two local paths of one file system atomically.

    Returns:
        False if the system or the file system has no such call (renameat2, Linux 3.15), or one of the paths is a mount
        point; nothing was changed.

    Raises:
        OSError: any other failure.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if not renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in (*_NOT_SUPPORTED, errno.EXDEV, errno.EBUSY, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), one, None, other)


def create_file(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Create a file and return its descriptor for writing.

    Raises:
        FileExistsError: the path exists; a link is not followed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags, mode)


def create_replacing(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Replace a file or link by a new file, see `create_file`; the target of a link stays unchanged."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return create_file(path, mode)


def open_owned_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file to which halofeed writes repeatedly, create it if it is missing, and return its descriptor.

    Raises:
        OSError: the path is a link, a folder, a pipe or a device.
    """
    refusal = "expected a regular file of halofeed's own; move away what is there"
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise OSError(error.errno, refusal, os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, refusal, os.fspath(path))
    return descriptor


def make_owned_folder(folder: Path) -> None:
    """Make a folder below a folder of halofeed's if it is missing, and record it in that folder's list.

    Raises:
        UsageError: the path is a link or a file.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: expected a folder of halofeed's own; move away what is there")
    owned_files.record_library_folder(folder.parent, folder.name, whole=True)
    folder.mkdir(exist_ok=True)


def copy_mode(descriptor: int, target: str | os.PathLike[str]) -> None:
    """Copy the group and permissions of `target`, if it exists, to the open file or folder that will replace it."""
    try:
        old = os.lstat(target)
    except OSError:
        return
    # The permissions of a folder or of a link mean something else.
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(os.fstat(descriptor).st_mode):
        return
    mode = old.st_mode & (0o3777 if stat.S_ISDIR(old.st_mode) else 0o777)
    try:
        os.fchown(descriptor, -1, old.st_gid)
    except OSError:  # another group does not get the old group's permissions
        mode &= ~0o070
    os.fchmod(descriptor, mode)


def copy_modes(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy groups and permissions from a folder `target` to the paths of the same names in the folder replacing it.

    A file without a counterpart gets those of the file with the fewest readers.
    """
    strictest = ""
    for parent, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        old_parent = os.path.join(target, os.path.relpath(parent, folder))
        existing = [path for name in files if os.path.isfile(path := os.path.join(old_parent, name))]
        strictest = min(existing, key=lambda path: os.stat(path).st_mode & 0o077, default=strictest)
        for name in files:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            try:
                old = os.path.join(old_parent, name)
                copy_mode(opened, old if os.path.lexists(old) else strictest)
            finally:
                os.close(opened)
        copy_mode(descriptor, old_parent)


@contextmanager
def temporary_path(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` for a file that is then renamed; delete what is there at the end of the block.

    A signal that ends this process deletes it too. Files of killed processes of this machine are deleted first.
    """
    import glob  # a help text, which imports this module, writes no file

    target = Path(os.path.abspath(target))
    prefix = f".{target.name[:_MAX_NAME_LENGTH]}.{platform.node()}"
    for leftover in target.parent.glob(f"{glob.escape(prefix)}.*.new"):
        process = owned_files.TEMPORARY.fullmatch(leftover.name)
        # Another machine may share the folder, so the name holds that of the machine; only files of dead
        # processes of this user are deleted.
        if process and not _is_alive(int(process[1])) and leftover.lstat().st_uid == os.geteuid():
            _delete(leftover)
    path = target.with_name(f"{prefix}.{os.getpid()}.{os.urandom(8).hex()}.new")
    with CleanupOnExit(lambda: _delete(path)):
        yield path


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that replaces `target` at the end of the block, or is deleted if the block raises.

    Files of the old folder that halofeed did not write move to the new one.
    """
    target = Path(os.path.abspath(target))
    with temporary_path(target) as new:
        new.mkdir(mode=0o700 if target.is_dir() else 0o777)
        owned_files.begin_list(new, whole=True)
        yield new
        owned_files.finish_list(new)
        copy_modes(new, target)
        fsync_tree(new)
        owned_files.record_files_below(target.parent, target.name, new)
        with DeferSignals():
            if not target.is_dir():
                new.rename(target)
            # Without such a call there is a moment in which the folder has no name; a signal does not end it there.
            elif not swap_paths(str(new), str(target)):
                old = new.with_suffix(".old")
                target.rename(old)
                new.rename(target)
                old.rename(new)
        fsync_paths([str(target.parent)])
        _delete(new)  # the old folder, if there was one
        _move_foreign_files(new, target)


def _move_foreign_files(old: Path, new: Path) -> None:
    """Move files that halofeed did not write from a replaced folder to the folder that replaced it."""
    if not old.is_dir():
        return
    for entry in old.iterdir():
        if entry.name != owned_files.LIST and not os.path.lexists(new / entry.name):
            entry.rename(new / entry.name)
    _delete(old)
    if old.exists():
        kept = old.with_suffix(".kept")
        old.rename(kept)
        print_status(f"{kept}: holds files of {new} that halofeed did not write")


@contextmanager
def restricted_umask(path: str | os.PathLike[str]) -> Iterator[None]:
    """Set the umask within a block so that new files have no group or other access that an existing path lacks."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        mode = 0o777
    denied = sum(0 if mode & bits else bits for bits in (0o070, 0o007))
    before = os.umask(denied)
    os.umask(before | denied)
    try:
        yield
    finally:
        os.umask(before)


def atomic_write(target: str | os.PathLike[str], data: bytes) -> None:
    """Write a complete file or none, whatever ends the process or the machine; OSError if that fails."""
    target = Path(os.path.abspath(target))
    with error_context("cannot write", target), temporary_path(target) as new:
        with open(create_file(new, 0o600 if os.path.lexists(target) else 0o666), "wb") as stream:
            copy_mode(stream.fileno(), target)  # before the file has content
            stream.write(data)
        fsync_paths([str(new)])
        owned_files.record_file(target.parent, target.name, data)
        new.replace(target)
        fsync_paths([str(target.parent)])


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            owned_files.delete_owned(path)
        else:
            path.unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # on Windows os.kill ends the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
