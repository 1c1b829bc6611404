"""What listing has found, as it travels: of files what they say, so that nobody need read their headers again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from halofeed.prep.formats.dicom.facts import FileFacts, Frame, PixelFormat, Rescale
from halofeed.prep.formats.dicom.grouping import Apart, Images, Series
from halofeed.prep.formats.dicom.headers import PixelPlace
from halofeed.schemas import pickles
from halofeed.schemas.errors import Problem, SourceError
from halofeed.schemas.pickles import to_bytes

__all__ = ["CLASSES", "FoundFiles", "Listed", "from_bytes", "to_bytes"]


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


CLASSES = (Apart, FileFacts, Frame, Listed, PixelFormat, PixelPlace, Rescale, Series, SourceError)
"""What alone is believed of what was found."""


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

    @property
    def stamp(self) -> str:
        """Of all of them; "" where one of them has none."""
        stamps = [facts.stamp for _, facts in self.images]
        return "" if None in stamps else hashlib.sha256(repr(stamps).encode()).hexdigest()[:32]


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given; UnpicklingError where it is anything else."""
    return pickles.from_bytes(data, CLASSES)
