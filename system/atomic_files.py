"""Open, write and replace files safely: regular files only, no followed links, atomic and durable."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import platform
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from halofeed.errors import UsageError
from halofeed.system import owned_files
from halofeed.system.console import human_bytes, print_status
from halofeed.system.resource_errors import during
from halofeed.system.signals import CleanupOnExit, DeferSignals

_IS_SYSTEMS_FORM = sys.getfilesystemencoding().lower() == "utf-8"


def text_of_name(name: str) -> str:
    """The text of a name as Python got it from the system: of a folder's listing, an argument, a working folder."""
    return name if _IS_SYSTEMS_FORM else os.fsencode(name).decode("utf-8", "surrogateescape")


def system_name(text: str) -> str:
    """A name's text in the form that Python hands to the system.

    Raises:
        UnicodeEncodeError: no file can be called so.
    """
    return text if _IS_SYSTEMS_FORM else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def can_be_named(text: str) -> bool:
    """Whether a text has bytes: that of every name has, and of others all but those with a lone surrogate that is none.

    >>> can_be_named("caf\\u00e9"), can_be_named("caf\\udce9"), can_be_named("caf\\ud800")
    (True, True, False)
    """
    if text.isascii():
        return True
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


_MOST_AT_ONCE = 1 << 30
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> FileIO:
    """A regular file, of at most `most_bytes`, as a stream of bytes without a buffer; links to one are followed.

    Raises:
        OSError: there is none, it may not be read, or it is a folder, a pipe, a device or a socket, as `strerror` says;
            none of them is waited for, or opened if it can be helped.
    """
    descriptor, _ = _opened(path, most_bytes)
    return open(descriptor, "rb", buffering=0)


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The bytes of a regular file of at most `most_bytes`, as many as its size says.

    Raises:
        OSError: as `open_regular`, and where it is larger, or somebody writes into it meanwhile.
    """
    descriptor, found = _opened(path, most_bytes)
    size = found.st_size
    try:
        if size > _MOST_AT_ONCE:
            # Filled piece by piece in one place: pieces put together would take the memory twice.
            with open(descriptor, "rb", closefd=False) as stream:
                data = stream.read(size) or b""
        else:
            data = os.read(descriptor, size) if size else b""
            while len(data) < size and (piece := os.read(descriptor, size - len(data))):
                data += piece
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (size, found.st_mtime_ns):
            raise OSError(errno.EBUSY, "it was changed while it was read", os.fspath(path))
        return data
    finally:
        os.close(descriptor)


def _opened(path: str | os.PathLike[str], most_bytes: int | None) -> tuple[int, os.stat_result]:
    """The descriptor of a regular file, and what is known of it."""
    _check_regular(os.stat(path), path)  # before it is opened: opening a device may do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        _check_regular(found, path)
        if most_bytes is not None and found.st_size > most_bytes:
            message = f"it holds {human_bytes(found.st_size)}, and at most {human_bytes(most_bytes)} are read"
            raise OSError(errno.EFBIG, message, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def _check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        message = f"it is {file_type(found.st_mode)}; expected a regular file"
        raise OSError(errno.EINVAL, message, os.fspath(path))


def file_type(mode: int) -> str:
    """What is no regular file, by its `st_mode`.

    >>> kind_of(os.stat("/dev/null").st_mode)
    'a device'
    """
    return _KINDS.get(stat.S_IFMT(mode), "no file")


try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_NOT_KNOWN_HERE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What file systems answer that know no syncing, and no exchange."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def sync(paths: Iterable[str]) -> None:
    """Return once the content of these local files and folders is on the disk, in this order.

    Raises:
        OSError: the disk refused, or one of them cannot be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_descriptor(descriptor)
        except OSError as error:
            if error.errno not in _NOT_KNOWN_HERE:
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


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Return once all below a local folder, itself and its name are on the disk; OSError as `sync`."""
    for above, _, names in os.walk(folder, topdown=False):
        sync([*(os.path.join(above, name) for name in names), above])
    sync([os.path.dirname(os.path.abspath(folder))])


def exchange(one: str, other: str) -> bool:
    """Have two local paths of one file system change places, so that each is there at every moment.

    Returns:
        False where the system or the file system knows no such step (renameat2, Linux 3.15), or one of the two is a
        mount point; nothing was changed.

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
    if number in (*_NOT_KNOWN_HERE, errno.EXDEV, errno.EBUSY, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), one, None, other)


_LONGEST_NAME = 60


def create(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """The descriptor of a new file, to be written to.

    Raises:
        FileExistsError: something has its name already; a link is not followed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags, mode)


def create_anew(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """As `create`, in the place of a file or link that has the name; what a link leads to stays as it is."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return create(path, mode)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """The descriptor of a file that halofeed goes on writing to, made where there is none.

    Raises:
        OSError: a link, a folder, a pipe or a device has its name.
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


def make_own_folder(folder: Path) -> None:
    """Make a folder in one of halofeed's where it is not there; the list of that one says so.

    Raises:
        UsageError: a link or a file has its name.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: expected a folder of halofeed's own; move away what is there")
    owned_files.note_below(folder.parent, folder.name, whole=True)
    folder.mkdir(exist_ok=True)


def keep_mode(descriptor: int, target: str | os.PathLike[str]) -> None:
    """Give an open file or folder the group and permissions of the one whose place it is to take, if there is one."""
    try:
        found = os.lstat(target)
    except OSError:
        return
    if stat.S_IFMT(found.st_mode) != stat.S_IFMT(os.fstat(descriptor).st_mode):
        return
    mode = found.st_mode & (0o3777 if stat.S_ISDIR(found.st_mode) else 0o777)
    try:
        os.fchown(descriptor, -1, found.st_gid)
    except OSError:  # what its group may do, another one need not
        mode &= ~0o070
    os.fchmod(descriptor, mode)


def keep_modes(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a folder and all below it the groups and permissions of what has the same names in another.

    A file of another name has those of the file that fewest may read.
    """
    usual = ""
    for above, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        below = os.path.join(target, os.path.relpath(above, folder))
        known = [path for name in files if os.path.isfile(path := os.path.join(below, name))]
        usual = min(known, key=lambda path: os.stat(path).st_mode & 0o077, default=usual)
        for name in files:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            try:
                own = os.path.join(below, name)
                keep_mode(opened, own if os.path.lexists(own) else usual)
            finally:
                os.close(opened)
        keep_mode(descriptor, below)


@contextmanager
def temporary_path(target: Path) -> Iterator[Path]:
    """A path beside `target` to write a file to and then to rename; what is there at the end of the block is deleted.

    So it is where a signal ends this process; what processes of this machine left there that were killed goes too.
    """
    target = Path(os.path.abspath(target))
    here = f".{target.name[:_LONGEST_NAME]}.{platform.node()}"
    for left in target.parent.glob(f"{glob.escape(here)}.*.new"):
        delete_temporary_files(left)
    path = target.with_name(f"{here}.{os.getpid()}.{secrets.token_hex(8)}.new")
    with CleanupOnExit(lambda: _delete(path)):
        yield path


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of `target` at the end, and is gone if anything is raised.

    Of an old one what halofeed did not write moves to the new one.
    """
    target = Path(os.path.abspath(target))
    with temporary_path(target) as made:
        made.mkdir(mode=0o700 if target.is_dir() else 0o777)
        owned_files.begin(made, whole=True)
        yield made
        owned_files.finish(made)
        keep_modes(made, target)
        sync_tree(made)
        owned_files.note_files(target.parent, target.name, made)
        with DeferSignals():
            if not target.is_dir():
                made.rename(target)
            elif not exchange(str(made), str(target)):
                old = made.with_suffix(".old")
                target.rename(old)
                made.rename(target)
                old.rename(made)
        sync([str(target.parent)])
        _delete(made)
        _move_rest(made, target)


def _move_rest(old: Path, new: Path) -> None:
    """Move what halofeed did not write from a folder that was replaced to the one that has its place."""
    if not old.is_dir():
        return
    for entry in old.iterdir():
        if entry.name != owned_files.LIST and not os.path.lexists(new / entry.name):
            entry.rename(new / entry.name)
    _delete(old)
    if old.exists():
        kept = old.with_suffix(".kept")
        old.rename(kept)
        print_status(f"{kept}: holds what halofeed did not write in {new}")


@contextmanager
def no_wider_than(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have this process make no file within a block that more people may read or write than a file that is there."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        mode = 0o777
    closed = sum(0 if mode & person else person for person in (0o070, 0o007))
    before = os.umask(closed)
    os.umask(before | closed)
    try:
        yield
    finally:
        os.umask(before)


def delete_temporary_files(path: Path) -> None:
    """Delete what a killed process left of a file or folder that it was making beside its place."""
    maker = owned_files.TEMPORARY.fullmatch(path.name)
    if maker is not None and not _is_alive(int(maker[1])) and path.lstat().st_uid == os.geteuid():
        _delete(path)


def atomic_write(target: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, whatever ends the process or the machine; OSError where it cannot be."""
    target = Path(os.path.abspath(target))
    with during("cannot write", target), temporary_path(target) as made:
        with open(create(made, 0o600 if os.path.lexists(target) else 0o666), "wb") as stream:
            keep_mode(stream.fileno(), target)  # before anything is in it
            stream.write(data)
        sync([str(made)])
        owned_files.note(target.parent, target.name, data)
        made.replace(target)
        sync([str(target.parent)])


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            owned_files.delete(path)
        else:
            path.unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere the question may end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
