"""Where a process keeps what is of no use after it: in one folder that it holds, so that it can be told from dead ones.

A process that ends, whether it fails or is stopped, deletes its folder. Those of processes that were killed are deleted
by the next one that needs a folder, or by the killed one's fork server (pipelines/workers.py), as nobody holds them. A
folder that is only called so, without the list that says whose it is (halofeed.system.owned_files), stays.
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

from halofeed.system import owned_files
from halofeed.system.locks import try_lock
from halofeed.system.signals import CleanupOnExit, DeferSignals

_BEGUN, _HELD = ".halofeed-scratch-", "halofeed-scratch-"
"""A folder has its name once it is held; before that it has the other."""
_YOUNG_SECONDS = 60.0
"""How long one may be on its way from one name to the other."""


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A new temporary folder, gone at the end; where a signal ends this process within the block, too."""
    delete_dead_folders()
    with contextlib.ExitStack() as stack:
        with DeferSignals():
            begun = tempfile.mkdtemp(prefix=_BEGUN)
            folder = os.path.join(
                os.path.dirname(begun), _HELD + os.path.basename(begun).removeprefix(_BEGUN)
            )
            owned_files.begin(begun, whole=True)
            descriptor = try_lock(begun)
            os.rename(begun, folder)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
            stack.enter_context(CleanupOnExit(lambda: owned_files.delete(folder)))
        yield folder


@contextmanager
def temporary_files_in_scratch() -> Iterator[None]:
    """Have all temporary files of this process, its libraries' too, in a scratch folder.

    For a process that does nothing else: in a program the setting would be every thread's.
    """
    before = tempfile.tempdir
    with scratch_folder() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def delete_dead_folders() -> None:
    """Delete the scratch folders that no process holds."""
    parent = Path(tempfile.gettempdir())
    for folder in [*parent.glob(f"{_HELD}*"), *parent.glob(f"{_BEGUN}*")]:
        try:
            found = folder.lstat()
            begun = folder.name.startswith(_BEGUN)
            young = begun and time.time() - found.st_mtime < _YOUNG_SECONDS
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or young:
                continue
            if not owned_files.has_list(folder) and not (begun and not os.listdir(folder)):
                continue
            descriptor = try_lock(folder)
        except OSError:  # held, another user's, or gone by now
            continue
        if descriptor is not None:
            owned_files.delete(folder)
            os.close(descriptor)
