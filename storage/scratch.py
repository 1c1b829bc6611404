"""Scratch folders: temporary folders that a process locks, so that those of killed processes can be deleted.

A process deletes its folder when it ends, fails or is stopped. The folder of a killed process is not locked. The next
process that needs a scratch folder deletes it, or the fork server of the killed process does (pipelines/workers.py).
A folder with such a name but without halofeed's list (halofeed.storage.owned_files) is kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.storage import owned_files
from halofeed.storage.locks import try_lock
from halofeed.system.signals import CleanupOnExit, DeferSignals

_NEW_PREFIX, _LOCKED_PREFIX = ".halofeed-scratch-", "halofeed-scratch-"
"""Name prefixes of a scratch folder before and after it is locked."""
_SECONDS_UNTIL_LOCKED = 60.0
"""Longest time that a process may need between making and locking a folder."""


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a temporary folder and delete it at the end of the block, also if a signal ends this process."""
    delete_dead_folders()
    with contextlib.ExitStack() as stack:
        with DeferSignals():
            new = tempfile.mkdtemp(prefix=_NEW_PREFIX)
            parent, name = os.path.split(new)
            folder = os.path.join(parent, _LOCKED_PREFIX + name.removeprefix(_NEW_PREFIX))
            owned_files.begin_list(new, whole=True)
            descriptor = try_lock(new)
            os.rename(new, folder)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
            stack.enter_context(CleanupOnExit(lambda: owned_files.delete_owned(folder)))
        yield folder


@contextmanager
def temporary_files_in_scratch() -> Iterator[None]:
    """Put all temporary files of this process and its libraries into a scratch folder.

    The setting applies to all threads, so only a process that does nothing else may use it.
    """
    before = tempfile.tempdir
    with scratch_folder() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def delete_dead_folders() -> None:
    """Delete the scratch folders that no process has locked."""
    parent = Path(tempfile.gettempdir())
    for folder in [*parent.glob(f"{_LOCKED_PREFIX}*"), *parent.glob(f"{_NEW_PREFIX}*")]:
        try:
            descriptor = try_lock(folder) if _is_old_scratch(folder) else None
        except OSError:  # locked, another user's, or deleted meanwhile
            continue
        if descriptor is not None:
            owned_files.delete_owned(folder)
            os.close(descriptor)


def _is_old_scratch(folder: Path) -> bool:
    """Return whether a folder is a scratch folder of this user that its process has made some time ago."""
    status = folder.lstat()
    is_new = folder.name.startswith(_NEW_PREFIX)
    may_be_locked_soon = is_new and time.time() - status.st_mtime < _SECONDS_UNTIL_LOCKED
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or may_be_locked_soon:
        return False
    # A process that was killed before it began the list leaves an empty folder.
    return owned_files.has_list(folder) or (is_new and not os.listdir(folder))
