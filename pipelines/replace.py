"""How a new version of a data set takes the place of the one that stands, which is there until then.

    out/cards/1.0.0                 the committed version, which readers have open
    out/cards/.1.0.0.replacement    the new one while it is made; then the two change places, and the old one is deleted

A run that was killed left a replacement that is not whole, and the same command goes on with it; or the old version
under that name, whose shards may serve again.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from halofeed.pipelines.storage import OutputFolder, is_remote
from halofeed.schemas.durable import exchange, sync
from halofeed.schemas.layout import MANIFEST, is_own_file


def real_folder(folder: str) -> str:
    """The folder that a path means, where the path may be a symbolic link to it."""
    return folder if is_remote(folder) else os.path.realpath(folder)


def replacement_of(folder: str) -> str:
    """Where the new version of a folder is made.

    >>> replacement_of("s3://bucket/cards/1.0.0")
    's3://bucket/cards/.1.0.0.replacement'
    """
    above, _, version = real_folder(folder).rpartition("/")
    return f"{above}/.{version}.replacement"


def take_place(new: OutputFolder, old: OutputFolder, name: str) -> None:
    """Have a committed new version stand where the old one does, in one step if the file system has it.

    Else, and on an object store, the files move one by one while there is no manifest: a run that is killed then
    leaves a folder with which the same command goes on.

    Args:
        name: of the data set.
    """
    if not is_remote(old.root):
        with contextlib.suppress(OSError):
            shutil.copymode(old.root, new.root)
            os.chown(new.root, -1, os.stat(old.root).st_gid)
        if exchange(new.root, old.root):
            sync([os.path.dirname(old.root)])
            discard(new, old, name)
            return
    old.delete([MANIFEST])
    files = [file for file in new.sizes() if is_own_file(file, name)]
    for file in files:
        if file != MANIFEST:
            old.take(file, new)
    old.delete([file for file in old.sizes() if is_own_file(file, name) and file not in files])
    old.commit(new.read(MANIFEST), after=[file for file in files if file != MANIFEST])
    discard(new, old, name)


def discard(replacement: OutputFolder, version: OutputFolder, name: str) -> None:
    """Delete a replacement, or what was replaced; files that no conversion wrote move to the version."""
    if is_remote(replacement.root):
        replacement.delete(list(replacement.sizes()))
        replacement.sweep()
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.listdir(replacement.root):
            moved = os.path.join(version.root, entry)
            if not is_own_file(entry, name) and not os.path.lexists(moved):
                os.rename(os.path.join(replacement.root, entry), moved)
        # The manifest first: half a version must not pass for a whole one.
        replacement.delete([MANIFEST])
        for entry in os.listdir(replacement.root):
            if is_own_file(entry, name) and os.path.isfile(os.path.join(replacement.root, entry)):
                os.remove(os.path.join(replacement.root, entry))
        replacement.sweep()
        with contextlib.suppress(OSError):
            os.rmdir(replacement.root)
