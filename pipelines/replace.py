"""Replacement of a committed version by a new one.

    out/cards/1.0.0                 the committed version, which readers have open
    out/cards/.1.0.0.replacement    the new version until it is complete; then the two folders are exchanged

A killed run leaves an incomplete replacement, which the same command resumes, or the old version under that name, whose
shards may be reused. Only files that a conversion is known to have written are deleted: those that the manifest names,
and those that an index proves. Other files move to the new version, or stay.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from halofeed.pipelines.output_folder import OutputFolder
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.croissant import MARK
from halofeed.schemas.file_layout import (
    BESIDE_SHARDS,
    CLASS_NAMES,
    CROISSANT,
    LABEL_MAP,
    MANIFEST,
    TEMPORARY_FOLDER,
    index_files,
    is_conversion_file,
    is_index_file,
)
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import MANIFEST_VALUES
from halofeed.schemas.manifest import Manifest, is_intact
from halofeed.schemas.tfds import metadata_files
from halofeed.storage.atomic_files import copy_modes, fsync_paths, swap_paths
from halofeed.storage.paths import names_in
from halofeed.system.addresses import is_remote
from halofeed.system.console import print_status
from halofeed.system.errors import CorruptFileError, UsageError

_SHOWN = 5


def real_version_folder(folder: str) -> str:
    """Return the folder of a path, which may be a symbolic link."""
    return folder if is_remote(folder) else os.path.realpath(folder)


def replacement_of(folder: str) -> str:
    """Return the folder in which the new version of a folder is made.

    >>> replacement_of("s3://bucket/cards/1.0.0")
    's3://bucket/cards/.1.0.0.replacement'
    """
    above, _, version = real_version_folder(folder).rpartition("/")
    return f"{above}/.{version}.replacement"


def check_own_version(output: OutputFolder, name: str, fix: str) -> None:
    """Refuse a folder whose files are named like a data set's but were written by no conversion.

    Args:
        name: name of the data set.
        fix: what the user can do instead, for the message.

    Raises:
        UsageError: lists the files; or the folder is a link, or its manifest is another program's.
    """
    if output.exists(MANIFEST):
        _check_named_files(output, fix)
    # The rest protects files that exchanged folders would carry along; in a store, files are written one by one.
    if is_remote(output.root) or not os.path.lexists(output.root):
        return
    if os.path.islink(output.root):  # exchanging folders would exchange the link, and not what it leads to
        raise UsageError(f"{output.root}: is a link, but a new version would be made there; remove the link")
    if output.exists(MANIFEST):
        if not _may_be_manifest(output.read(MANIFEST)):
            raise UsageError(
                f"{output.path(MANIFEST)}: is no manifest of halofeed and would be replaced; move it away, or {fix}"
            )
    elif not output.is_begun():
        _check_proven(output, name, fix)


def _check_proven(output: OutputFolder, name: str, fix: str) -> None:
    """Refuse files named like shards if no index proves that a conversion wrote them."""
    listed = sorted(file for file in output.sizes() if is_conversion_file(file, name))
    if listed and not proven(output, listed):
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        shown = f"{', '.join(listed[:_SHOWN])}{more}"
        raise UsageError(
            f"{output.root}: halofeed did not write these, and would replace them: {shown}; move them away, or {fix}"
        )


def _check_named_files(output: OutputFolder, fix: str) -> None:
    """Refuse files of a committed version's names that are not the version's, such as a label map of the user."""
    named = _files_in_manifest(output) or {LABEL_MAP, *CLASS_NAMES}
    others = {LABEL_MAP, *CLASS_NAMES} - named
    if output.exists(CROISSANT) and not _is_own_croissant(output.read(CROISSANT)):
        others.add(CROISSANT)  # versions of format 2 may be older than this file
    if foreign := sorted(others & output.sizes().keys()):
        raise UsageError(
            f"{output.path(foreign[0])}: halofeed did not write this file, and would replace it; move it away, or "
            f"{fix}"
        )


def check_replacement(replacement: OutputFolder, name: str) -> None:
    """Refuse to make a new version in a folder that no conversion made; raise UsageError as `check_own_version`."""
    check_own_version(replacement, name, "remove it")
    if is_remote(replacement.root) or not os.path.lexists(replacement.root) or replacement.is_begun():
        return
    inside = set(names_in(replacement.root))
    # A kill between the removal of the temporary folder's mark and of the folder leaves it empty: nothing to lose.
    temporary = replacement.path(TEMPORARY_FOLDER)
    if os.path.isdir(temporary) and not os.path.islink(temporary) and not names_in(temporary):
        inside.discard(TEMPORARY_FOLDER)
    if inside and not replacement.exists(MANIFEST) and not proven(replacement, replacement.sizes()):
        raise UsageError(
            f"{replacement.root}: a new version would be made there, and halofeed did not make the folder; move it away"
        )


def proven(output: OutputFolder, files: Iterable[str]) -> set[str]:
    """Return the files that a conversion is known to have written: indexes, and shards with the size in their index."""
    files = set(files)
    found = set()
    for file in files:
        if is_index_file(file):
            found |= {file} if _index_of(output, file) is not None else set()
        else:
            # Names of other shards are only likely; the size in a sealed index proves the file.
            read = [_index_of(output, index) for index in index_files(file) & files]
            found |= {file} if any(one and output.size(file) == one.file_bytes for one in read) else set()
    return found


def _index_of(output: OutputFolder, file: str) -> ShardIndex | None:
    try:
        return ShardIndex.from_bytes(output.read(file), file, columns_only=True)
    except (CorruptFileError, OSError):
        return None


def _may_be_manifest(data: bytes) -> bool:
    """Return whether a document is a manifest of halofeed, or too damaged to tell."""
    try:
        document = parse_json(data, MANIFEST_VALUES)
    except ValueError:
        return True
    return isinstance(document, dict) and "format_version" in document


def _is_own_croissant(data: bytes) -> bool:
    """Return whether a croissant.json is halofeed's, or empty."""
    return not data or MARK.encode() in data


def mode_of_new(old: OutputFolder) -> int:
    """Return the mode for the folder of a new version: it excludes everybody who cannot read the old manifest."""
    if is_remote(old.root):  # objects have no modes
        return 0o777
    mode, readable = (os.stat(path).st_mode for path in (old.root, old.path(MANIFEST)))
    for kind in (stat.S_IRGRP, stat.S_IROTH):
        if not readable & kind:
            # The bits for writing and executing follow that for reading (POSIX <sys/stat.h>).
            mode &= ~(kind | kind >> 1 | kind >> 2)
    return mode & 0o777


def take_place(new: OutputFolder, old: OutputFolder, name: str) -> None:
    """Exchange a committed new version with the old one, in one step if the file system supports it.

    Otherwise, and in an object store, the files move one by one while there is no manifest. After a crash in between,
    the same command resumes.

    Args:
        name: name of the data set.
    """
    if not is_remote(old.root):
        copy_modes(new.root, old.root)
        # renameat2 is Linux's, and not every file system has it; elsewhere the files move one by one, as below.
        if swap_paths(new.root, old.root):
            fsync_paths([os.path.dirname(old.root)])
            delete_replacement(new, old, name)
            return
    old.delete([MANIFEST])
    files = [file for file in new.sizes() if is_conversion_file(file, name)]
    for file in files:
        if file != MANIFEST:  # the commit below writes it last
            old.take(file, new)
    delete_unnamed(old, name, files)
    shards = [file for file in files if file != MANIFEST]
    old.commit(new.read(MANIFEST), after=shards, like="" if is_remote(new.root) else new.path(MANIFEST))
    old.sweep()
    delete_replacement(new, old, name)


def delete_unnamed(output: OutputFolder, name: str, files: Iterable[str]) -> None:
    """Delete the files of earlier conversions from a version's folder, and print a line for each other file that stays.

    Args:
        files: names of the version's files.
    """
    files = set(files)
    others = [file for file in output.sizes() if is_conversion_file(file, name) and file not in files]
    known = proven(output, others) | (BESIDE_SHARDS & set(others))
    output.delete(sorted(known))
    for file in sorted(set(others) - known):
        print_status(
            f"halofeed convert: {output.path(file)} does not belong to this version; it stays, because halofeed "
            "may not have written it"
        )


def delete_replacement(replacement: OutputFolder, version: OutputFolder, name: str) -> None:
    """Delete a replacement or a replaced version; files that no conversion wrote move to the version."""
    folder = replacement.root
    if is_remote(folder):
        replacement.delete(list(replacement.sizes()))
        replacement.sweep()
        return
    if not os.path.isdir(folder) or os.path.islink(folder):  # a link may lead to a folder of the user's
        return
    is_begun = replacement.is_begun()
    in_version, written = set(names_in(version.root)), proven(replacement, replacement.sizes())
    if not (is_begun or replacement.exists(MANIFEST) or written - in_version):
        return  # no conversion made this folder
    deletable = in_version | written | _files_in_manifest(replacement) | BESIDE_SHARDS
    replacement.begin()  # marks the folder as halofeed's during the deletion
    with contextlib.suppress(FileNotFoundError):
        entries = set(names_in(folder)) - {TEMPORARY_FOLDER}
        # In a folder that a conversion began, every file of these names is its own; elsewhere each needs a proof.
        own = {one for one in entries if is_conversion_file(one, name) and (is_begun or one in deletable)}
        _move_files(folder, version.root, entries - own)
        # The manifest goes first, so that a half-deleted version never looks complete.
        replacement.delete([MANIFEST, *own])
        replacement.sweep()
    _remove_empty_folder(folder)


def _move_files(source: str, target: str, entries: Iterable[str]) -> None:
    """Move files into another folder, except those of names that it has."""
    for entry in sorted(entries):
        path = os.path.join(target, entry)
        if not os.path.lexists(path):
            os.rename(os.path.join(source, entry), path)


def _remove_empty_folder(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        if os.path.lexists(folder):
            print_status(
                f"halofeed convert: {folder} stays, because it has files that halofeed did not write"
            )


def _files_in_manifest(output: OutputFolder) -> set[str]:
    """Return the files that belong to an intact manifest."""
    if not output.exists(MANIFEST) or not is_intact(data := output.read(MANIFEST)):
        return set()
    manifest = Manifest.from_json(data, output.path(MANIFEST))
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return {name for shard in shards for name in (shard.file, shard.index)} | metadata_files(manifest).keys()
