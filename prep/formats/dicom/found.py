"""What listing has found, as it travels: of files what they say, so that nobody need read their headers again.

It is written as a pickle, in which the classes below alone are believed: nothing in such a file is executed.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from typing import Any

from halofeed.prep.formats.dicom.facts import FileFacts, Frame, PixelFormat, Rescale
from halofeed.prep.formats.dicom.grouping import Apart, Images, Series
from halofeed.prep.formats.dicom.headers import PixelPlace
from halofeed.schemas.errors import Problem, SourceError


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What listing found beside the files whose headers are to be read.

    Args:
        named: by folder, the files with names of volumes and pictures, and their sizes.
        faults: the folders that were left out.
        refusal: why nothing could be listed, or "".
    """

    named: dict[str, dict[str, int]]
    faults: dict[str, Problem]
    refusal: str = ""


_CLASSES: dict[tuple[str, str], type] = {
    (one.__module__, one.__name__): one
    for one in (Apart, FileFacts, Frame, Listed, PixelFormat, PixelPlace, Rescale, Series, SourceError)
}


@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """The files of a scan in order of their path, each with what it says."""

    images: Images

    @property
    def members(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(path for path, _ in self.images)

    @property
    def digest(self) -> str:
        """Of their paths and sizes."""
        listed = "\n".join(f"{facts.file_bytes} {path}" for path, facts in self.images)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def to_bytes(found: object) -> bytes:
    """Plain values and the classes of this file, to be read by `from_bytes`."""
    return pickle.dumps(found, protocol=5)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of what a DICOM file says")
        return _CLASSES[module, name]


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given; UnpicklingError where it is anything else."""
    return _Unpickler(io.BytesIO(data)).load()
