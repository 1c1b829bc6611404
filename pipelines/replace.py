"""How a new version of a data set takes the place of the one that stands, which is there until then.

    out/cards/1.0.0                 the committed version, which readers have open
    out/cards/.1.0.0.replacement    the new one while it is made; then the two change places, and the old one is deleted

A run that was killed left a replacement that is not whole, and the same command goes on with it; or the old version
under that name, whose shards may serve again. Only what a conversion is known to have written is deleted: what the
manifest names, and what an index proves. The rest moves to the new version, or stays.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from halofeed.errors import CorruptFileError, UsageError
from halofeed.pipelines.storage import OutputFolder, is_remote
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.files import (
    DATASET_INFO,
    FEATURES,
    MANIFEST,
    REJECTED,
    TEMPORARY_FOLDER,
    UNCOMMITTED_MANIFEST,
    index_file,
    is_own_file,
)
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import MANIFEST_VALUES
from halofeed.schemas.manifest import Manifest, is_intact
from halofeed.system.atomic_files import exchange, keep_modes, sync
from halofeed.system.console import print_status

_BESIDE_SHARDS = {MANIFEST, REJECTED, FEATURES, DATASET_INFO, UNCOMMITTED_MANIFEST}
_SHOWN = 5


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


def check_own(output: OutputFolder, name: str, flag: str) -> None:
    """Refuse a local folder with files that are called as those of a data set and that no conversion has written.

    Args:
        name: of the data set.
        flag: what to choose otherwise, for the message.

    Raises:
        UsageError: it lists them; or the folder or its manifest is something else.
    """
    if is_remote(output.root) or not os.path.lexists(output.root):
        return
    if os.path.islink(output.root):
        raise UsageError(f"{output.root}: is a link, and a new version is made there; remove the link")
    if output.exists(MANIFEST) and not _may_be_manifest(output.read(MANIFEST)):
        raise UsageError(
            f"{output.path(MANIFEST)}: is no manifest of halofeed and would be replaced; move it away, or {flag}"
        )
    if output.exists(MANIFEST) or output.is_begun():
        return
    listed = sorted(file for file in output.sizes() if is_own_file(file, name))
    if listed and not proven(output, listed):
        shown = ", ".join(listed[:_SHOWN]) + (
            f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        )
        raise UsageError(
            f"{output.root}: halofeed did not write these, and would replace them: {shown}; move them away, or {flag}"
        )


def check_replacement(replacement: OutputFolder, name: str) -> None:
    """Refuse to make a new version in a folder that no conversion made; UsageError as `check_own`."""
    check_own(replacement, name, "remove it")
    if is_remote(replacement.root) or not os.path.lexists(replacement.root) or replacement.is_begun():
        return
    inside = os.listdir(replacement.root)
    if inside and not replacement.exists(MANIFEST) and not proven(replacement, replacement.sizes()):
        raise UsageError(
            f"{replacement.root}: a new version is made there, and halofeed did not make that folder; move it away"
        )


def proven(output: OutputFolder, files: Iterable[str]) -> set[str]:
    """Those of a folder's files that a conversion is known to have written: indexes, and shards of their sizes."""
    files = set(files)
    found = set()
    for file in files:
        index = index_file(file)
        if file.endswith(".index") and _index_of(output, file) is not None:
            found.add(file)
        elif index in files and (read := _index_of(output, index)) is not None:
            found |= {file} if output.size(file) == read.file_bytes else set()
    return found


def _index_of(output: OutputFolder, file: str) -> ShardIndex | None:
    try:
        return ShardIndex.from_bytes(output.read(file), file, columns_only=True)
    except (CorruptFileError, OSError):
        return None


def _may_be_manifest(data: bytes) -> bool:
    """Whether a manifest is one of halofeed's, or too damaged to say; not somebody else's document of that name."""
    try:
        document = parse_json(data, MANIFEST_VALUES)
    except ValueError:
        return True
    return isinstance(document, dict) and "format_version" in document


def mode_of_new(old: OutputFolder) -> int:
    """The mode of the folder in which a new version is made: who may not read the old files cannot read in it."""
    if is_remote(old.root):
        return 0o777
    mode, readable = (os.stat(path).st_mode for path in (old.root, old.path(MANIFEST)))
    for kind in (stat.S_IRGRP, stat.S_IROTH):
        if not readable & kind:
            mode &= ~(kind | kind >> 1 | kind >> 2)
    return mode & 0o777


def take_place(new: OutputFolder, old: OutputFolder, name: str) -> None:
    """Have a committed new version stand where the old one does, in one step if the file system has it.

    Else, and on an object store, the files move one by one while there is no manifest: a run that is killed then
    leaves a folder with which the same command goes on.

    Args:
        name: of the data set.
    """
    if not is_remote(old.root):
        keep_modes(new.root, old.root)
        if exchange(new.root, old.root):
            sync([os.path.dirname(old.root)])
            discard(new, old, name)
            return
    old.delete([MANIFEST])
    files = [file for file in new.sizes() if is_own_file(file, name)]
    for file in files:
        if file != MANIFEST:
            old.take(file, new)
    delete_unnamed(old, name, files)
    whole = [file for file in files if file != MANIFEST]
    old.commit(new.read(MANIFEST), after=whole, like="" if is_remote(new.root) else new.path(MANIFEST))
    old.sweep()
    discard(new, old, name)


def delete_unnamed(output: OutputFolder, name: str, files: Iterable[str]) -> None:
    """Delete what earlier conversions left in a version's folder, beside its files; say what stays."""
    files = set(files)
    others = [file for file in output.sizes() if is_own_file(file, name) and file not in files]
    known = proven(output, others) | (_BESIDE_SHARDS & set(others))
    output.delete(sorted(known))
    for file in sorted(set(others) - known):
        print_status(
            f"halofeed convert: {output.path(file)} is no file of this version and stays: nobody knows who wrote it"
        )


def discard(replacement: OutputFolder, version: OutputFolder, name: str) -> None:
    """Delete a replacement, or what was replaced; files that no conversion wrote move to the version."""
    if is_remote(replacement.root):
        replacement.delete(list(replacement.sizes()))
        replacement.sweep()
        return
    if not os.path.isdir(replacement.root) or os.path.islink(replacement.root):
        return
    begun = replacement.is_begun()
    known = set(os.listdir(version.root)) | (proven(replacement, replacement.sizes()))
    if replacement.exists(MANIFEST) and is_intact(data := replacement.read(MANIFEST)):
        splits = Manifest.from_json(data, replacement.path(MANIFEST)).splits.values()
        shards = {shard.file for split in splits for shard in split.shards}
        known |= shards | set(map(index_file, shards))
    elif not (begun or replacement.exists(MANIFEST) or known - set(os.listdir(version.root))):
        return
    replacement.begin()  # so that it is known for halofeed's while it is deleted
    with contextlib.suppress(FileNotFoundError):
        own = {
            entry
            for entry in os.listdir(replacement.root)
            if is_own_file(entry, name) and (begun or entry in known | _BESIDE_SHARDS)
        }
        for entry in sorted(set(os.listdir(replacement.root)) - own - {TEMPORARY_FOLDER}):
            moved = os.path.join(version.root, entry)
            if not os.path.lexists(moved):
                os.rename(os.path.join(replacement.root, entry), moved)
        # The manifest first: half a version must not pass for a whole one.
        replacement.delete([MANIFEST])
        for entry in own - {TEMPORARY_FOLDER}:
            if os.path.isfile(os.path.join(replacement.root, entry)):
                os.remove(os.path.join(replacement.root, entry))
        replacement.sweep()
    try:
        os.rmdir(replacement.root)
    except OSError:
        if os.path.lexists(replacement.root):
            print_status(
                f"halofeed convert: {replacement.root} stays, as halofeed did not write all that is in it"
            )
