"""How numbers and words stand in the headers of NRRD and MetaImage, which are text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.volume_header import converted_unit_finding, damaged_header
from halofeed.prep.geometry.scan import Finding
from halofeed.prep.sources.file_names import Names
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import LONGEST_HEADER, data_file_in, data_path

MOST_AXES = 16
UNITS_MM = {
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre"), 1.0),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), 10.0),
    **dict.fromkeys(("m", "meter", "meters"), 1000.0),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", "micrometer", "micrometers"), 0.001),
}


def lines_of(data: bytes) -> Iterator[tuple[str, int]]:
    """Each line of the first bytes of a file, and where the next one begins.

    The last may be cut off where the file is longer than a header may be, or be no text at all.
    """
    at, last = 0, min(len(data), LONGEST_HEADER)
    while at < last:
        end = data.find(b"\n", at, last) + 1 or last
        yield data[at:end].decode("utf-8", "surrogateescape").rstrip(), end
        at = end


class Fields(dict[str, str]):
    """The fields of a header by name, as they are written."""

    def add(self, name: str, written: str) -> None:
        """Take a field; SourceError where it stands there twice."""
        if name in self:
            raise damaged_header(f"{quote(name)} stands there twice")
        self[name] = written

    def first(self, *names: str) -> str | None:
        """The first of several names of one field that is there; SourceError where two of them differ."""
        values = {self[name] for name in names if name in self}
        if len(values) > 1:
            raise damaged_header(
                f"{' and '.join(name for name in names if name in self)} say different things"
            )
        return next(iter(values), None)

    def needed(self, name: str) -> str:
        """What a field says that must be there."""
        if name not in self:
            raise damaged_header(f"{name} is missing")
        return self[name]


def quote(written: str) -> str:
    """What stands in a header, for a message."""
    return repr(written if len(written) <= 60 else written[:57] + "...")


def parse_integer(name: str, written: str, least: int, most: int) -> int:
    """A whole number within bounds; SourceError for anything else."""
    (value,) = parse_integers(name, written, 1, least, most)
    return value


def parse_integers(name: str, written: str, count: int, least: int, most: int) -> list[int]:
    """So many whole numbers within bounds; SourceError for anything else."""
    words = written.split()
    if len(words) != count or not all(re.fullmatch(r"[-+]?[0-9]{1,19}", word) for word in words):
        raise damaged_header(
            f"{name}: expected {count} whole number{'s' * (count > 1)}, got {quote(written)}"
        )
    values = [int(word) for word in words]
    if min(values) < least or max(values) > most:
        raise damaged_header(f"{name}: expected numbers from {least}, got {quote(written)}")
    return values


def parse_numbers(name: str, written: str, count: int, *, finite: bool = True) -> list[float]:
    """So many numbers; SourceError for anything else."""
    words = written.split()
    try:
        values = [float(word) for word in words[: count + 1] if "_" not in word]
    except ValueError:
        values = []
    if len(values) != count or (finite and not all(map(math.isfinite, values))):
        raise damaged_header(f"{name}: expected {count} numbers, got {quote(written)}")
    return values


def check_sides(name: str, sides: list[float]) -> list[float]:
    """Distances between voxels; SourceError where one is negative: a slip, or an axis that runs the other way?"""
    if min(sides) < 0:
        detail = f"{name} {' '.join(f'{side:g}' for side in sides)}; a direction says where an axis runs to"
        raise SourceError("decode", "voxel size is negative", detail)
    return sides


def unit_scale(units: list[str]) -> tuple[float, tuple[Finding, ...]]:
    """The millimeters of the unit that all lengths have, and what is said of it.

    Raises:
        SourceError: axes of space have several units.
    """
    named = sorted({unit for unit in units if unit not in ("", "?", "??", "???")})
    if not named:
        return 1.0, ()
    scales = {UNITS_MM.get(unit.lower()) for unit in named}
    if len(scales) > 1:
        raise SourceError("decode", "axes have several units", f"{' and '.join(map(quote, named))}")
    scale = scales.pop()
    if scale is None:
        detail = f"{quote(named[0])} is none that is known; taken to be millimeters"
        return 1.0, (Finding.noted("unit of length is unknown", detail),)
    return scale, (converted_unit_finding(named[0]),) * (scale != 1.0)


def find_voxel_file(
    files: SourceFiles, path: str, header: bytes, end: int, written: str | None, names: Names
) -> tuple[tuple[str, ...], bytes, int]:
    """The files of a volume, and of the one with the voxels the bytes, and where those after the header begin.

    Args:
        path: of the file with the header.
        header: its bytes.
        end: where those after the header begin.
        written: how the header names the file with the voxels; None where it does not.
        names: of its format.

    Raises:
        SourceError: there is no such file; or the name of the header does not say that it names one, so that the
            conversion did not know of that when it began.
    """
    found = None if written is None else data_path(written, path)
    if written is not None and found != data_file_in(header, path):
        cure = f"name it {' or '.join(names.headers)}, or save it with its voxels in one file"
        raise SourceError("read", "voxels lie in another file than the name says", cure)
    return ((path,), header, end) if found is None else ((path, found), files.read(found), 0)
