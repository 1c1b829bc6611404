"""Which file holds the voxels of a header that names it, such as .mhd with .raw?

The header is text, and of it no more than its first bytes is looked at.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import replace

from halofeed.prep.sources.files import BELOW, SourceFiles
from halofeed.prep.sources.reference import Reference
from halofeed.prep.sources.volume_names import DATA_FILE_LINES
from halofeed.schemas.errors import SourceError

LONGEST_HEADER = 1 << 20
"""Bytes; a header of 3D Slicer with a hundred segments has some 60,000."""
_ELSEWHERE = re.compile(r"/|\\\\|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://")
_SEVERAL = re.compile(r"LIST\b|.*%\d*d")
_ONE_FILE = "save it with all voxels in one file (.nrrd or .mha)"


def data_path(written: str, header: str) -> str | None:
    """The path below the root of the file that a header names; None where the voxels follow in the header's own file.

    Args:
        written: what stands in the header.
        header: its path.

    Raises:
        SourceError: it names several files, none, or one that does not lie below the images' folder.

    >>> data_path("ct.raw", "a/ct.mhd"), data_path("../raw/ct.raw", "a/ct.mhd"), data_path("LOCAL", "a/ct.mhd")
    ('a/ct.raw', 'raw/ct.raw', None)
    """
    if written.lower() == "local":
        return None
    if _SEVERAL.match(written):
        raise SourceError("decode", "voxels lie in several files", f"{written!r}; {_ONE_FILE}")
    if not written or "\0" in written:
        raise SourceError("decode", "header names no data file", f"{written!r}; {_ONE_FILE}")
    if _ELSEWHERE.match(written):
        detail = f"{written!r} is an absolute path; write it relative to the header, or {_ONE_FILE}"
        raise SourceError("read", "data file is named by an absolute path", detail)
    name = written if "/" in written else written.replace("\\", "/")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(header), name))
    if path.startswith("../") or path in ("..", "."):
        detail = f"{written!r} is not {BELOW}; name a folder that holds both, or {_ONE_FILE}"
        raise SourceError("read", "data file lies outside", detail)
    return path


def data_file_in(start: bytes, path: str) -> str | None:
    """The file with the voxels of a volume whose header names it; None for every other file.

    Args:
        start: the first bytes of the file.
        path: its name says whether it may be such a header.

    Raises:
        SourceError: as `data_path`.

    >>> data_file_in(b"NDims = 3\\nElementDataFile = ct.raw\\n", "a/ct.mhd")
    'a/ct.raw'
    """
    line = next((line for ending, line in DATA_FILE_LINES.items() if path.lower().endswith(ending)), None)
    if line is None:
        return None
    head = start[:LONGEST_HEADER]
    if head.startswith(b"NRRD"):  # whose voxels may follow an empty line
        head = re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0]
    text = head.decode("utf-8", "surrogateescape")
    found = re.search(rf"^[ \t]*{line}([^\n]*)", text, re.MULTILINE)
    return None if found is None else data_path(found[1].strip(" \t\r"), path)


def data_file(files: SourceFiles, path: str) -> str | None:
    """The same of a file among `files`, of which no more than a header's length is read.

    Raises:
        SourceError: as `data_path`; or the header cannot be read.
    """
    is_header = path.lower().endswith(tuple(DATA_FILE_LINES))
    return data_file_in(files.head(path, LONGEST_HEADER), path) if is_header else None


def data_files(files: SourceFiles, paths: Iterable[str]) -> set[str]:
    """The files that headers among `paths` name, as far as they can be told."""
    found = set()
    for path in paths:
        try:
            found.add(data_file(files, path))
        except SourceError:
            continue
    return found - {None}  # type: ignore[return-value]


def with_data_files(reference: Reference, files: SourceFiles) -> Reference:
    """The reference with the files that its headers name, or with a problem where one is not there."""
    headers = [path for path in reference.paths if path.lower().endswith(tuple(DATA_FILE_LINES))]
    if not headers or reference.problem is not None:
        return reference
    parts = []
    for header in headers:
        try:
            path = data_file(files, header)
            if path is not None and files.size(path) is None:
                raise SourceError("read", "data file is missing", f"{path!r} {BELOW}")
        except SourceError as error:
            return replace(reference, problem=(error.stage, error.reason, f"{header}: {error.detail}"))
        parts += [path] if path is not None else []
    return replace(reference, parts=tuple(parts))
