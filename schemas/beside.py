"""How halofeed writes files: new ones that no link leads elsewhere, and that appear whole or not at all.

A file is made under a name beside its own that nobody can guess, is opened only if nothing has that name, and keeps
the mode of the file whose place it takes. A folder with a list of what halofeed wrote (halofeed.schemas.ownership)
lists it too.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import platform
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.schemas import ownership
from halofeed.schemas.durable import exchange, sync, sync_tree
from halofeed.schemas.errors import UsageError
from halofeed.schemas.stopping import Undone, Whole
from halofeed.schemas.system_errors import during
from halofeed.schemas.telling import tell

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
    ownership.note_below(folder.parent, folder.name, whole=True)
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
def beside(target: Path) -> Iterator[Path]:
    """A path beside `target` to write a file to and then to rename; what is there at the end of the block is deleted.

    So it is where a signal ends this process; what processes of this machine left there that were killed goes too.
    """
    target = Path(os.path.abspath(target))
    here = f".{target.name[:_LONGEST_NAME]}.{platform.node()}"
    for left in target.parent.glob(f"{glob.escape(here)}.*.new"):
        delete_left(left)
    path = target.with_name(f"{here}.{os.getpid()}.{secrets.token_hex(8)}.new")
    with Undone(lambda: _delete(path)):
        yield path


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of `target` at the end, and is gone if anything is raised.

    Of an old one what halofeed did not write moves to the new one.
    """
    target = Path(os.path.abspath(target))
    with beside(target) as made:
        made.mkdir(mode=0o700 if target.is_dir() else 0o777)
        ownership.begin(made, whole=True)
        yield made
        ownership.finish(made)
        keep_modes(made, target)
        sync_tree(made)
        ownership.note_files(target.parent, target.name, made)
        with Whole():
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
        if entry.name != ownership.LIST and not os.path.lexists(new / entry.name):
            entry.rename(new / entry.name)
    _delete(old)
    if old.exists():
        kept = old.with_suffix(".kept")
        old.rename(kept)
        tell(f"{kept}: holds what halofeed did not write in {new}")


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


def delete_left(path: Path) -> None:
    """Delete what a killed process left of a file or folder that it was making beside its place."""
    maker = ownership.TEMPORARY.fullmatch(path.name)
    if maker is not None and not _is_alive(int(maker[1])) and path.lstat().st_uid == os.geteuid():
        _delete(path)


def write_whole(target: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, whatever ends the process or the machine; OSError where it cannot be."""
    target = Path(os.path.abspath(target))
    with during("cannot write", target), beside(target) as made:
        with open(create(made, 0o600 if os.path.lexists(target) else 0o666), "wb") as stream:
            keep_mode(stream.fileno(), target)  # before anything is in it
            stream.write(data)
        sync([str(made)])
        ownership.note(target.parent, target.name, data)
        made.replace(target)
        sync([str(target.parent)])


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            ownership.delete(path)
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
