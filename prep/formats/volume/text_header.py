"""Parser of the text headers of NRRD and MetaImage: lines, fields, numbers, units and the file with the voxels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.volume_header import converted_unit_finding, damaged_header
from halofeed.prep.geometry.scan import Finding
from halofeed.prep.sources.example import MAX_HEADER_BYTES, parse_data_file, resolve_data_path
from halofeed.prep.sources.file_names import FormatExtensions
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName

MAX_HEADER_AXES = 16
TEXT_UNITS_MM = {
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre"), 1.0),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), 10.0),
    **dict.fromkeys(("m", "meter", "meters"), 1000.0),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", "micrometer", "micrometers"), 0.001),
}


def header_lines(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield each line of the first `MAX_HEADER_BYTES` bytes of a file, and the offset of the next line.

    The last line may be cut off, and it may be binary data.
    """
    start, limit = 0, min(len(data), MAX_HEADER_BYTES)
    while start < limit:
        end = data.find(b"\n", start, limit) + 1 or limit
        yield data[start:end].decode("utf-8", "surrogateescape").rstrip(), end
        start = end


class Fields(dict[str, str]):
    """Fields of a header by name, with their text."""

    def add(self, name: str, written: str) -> None:
        """Add a field; raise SourceError if the header has it already."""
        if name in self:
            raise damaged_header(f"{quote(name)} occurs twice")
        self[name] = written

    def first(self, *names: str) -> str | None:
        """Return the value of a field with several names, None if absent; raise SourceError if two names differ."""
        values = {self[name] for name in names if name in self}
        if len(values) > 1:
            raise damaged_header(
                f"{' and '.join(name for name in names if name in self)} have different values"
            )
        return next(iter(values), None)

    def needed(self, name: str) -> str:
        """Return the value of a required field; raise SourceError if it is absent."""
        if name not in self:
            raise damaged_header(f"{name} is missing")
        return self[name]


def quote(written: str) -> str:
    """Return the text of a header in quotation marks, shortened for a message."""
    return repr(written if len(written) <= 60 else written[:57] + "...")


def parse_integer(name: str, written: str, least: int, most: int) -> int:
    """Parse an integer within bounds; raise SourceError for any other text."""
    (value,) = parse_integers(name, written, 1, least, most)
    return value


def parse_integers(name: str, written: str, count: int, least: int, most: int) -> list[int]:
    """Parse `count` integers within bounds; raise SourceError for any other text."""
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
    """Parse `count` numbers; raise SourceError for any other text."""
    words = written.split()
    try:
        values = [float(word) for word in words[: count + 1] if "_" not in word]
    except ValueError:
        values = []
    if len(values) != count or (finite and not all(map(math.isfinite, values))):
        raise damaged_header(f"{name}: expected {count} numbers, got {quote(written)}")
    return values


def check_voxel_sides(name: str, sides: list[float]) -> list[float]:
    """Return the sides of a voxel; raise SourceError if one is negative, which may be a mistake or a flipped axis."""
    if min(sides) < 0:
        detail = f"{name} {' '.join(f'{side:g}' for side in sides)}; a direction says where an axis runs to"
        raise SourceError("decode", "voxel size is negative", detail)
    return sides


def unit_scale(units: list[str]) -> tuple[float, tuple[Finding, ...]]:
    """Return the size of the common unit in millimeters, and a finding if lengths are converted or it is unknown.

    Raises:
        SourceError: the axes of space have different units.
    """
    named = sorted({unit for unit in units if unit not in ("", "?", "??", "???")})
    if not named:
        return 1.0, ()
    scales = {TEXT_UNITS_MM.get(unit.lower()) for unit in named}
    if len(scales) > 1:
        raise SourceError("decode", "axes have several units", f"{' and '.join(map(quote, named))}")
    scale = scales.pop()
    if scale is None:
        detail = f"{quote(named[0])} is not a known unit; millimeters are assumed"
        return 1.0, (Finding.noted(FindingName.LENGTH_UNIT_UNKNOWN, detail),)
    return scale, (converted_unit_finding(named[0]),) * (scale != 1.0)


def find_voxel_file(
    files: SourceFiles, path: str, header: bytes, end: int, written: str | None, names: FormatExtensions
) -> tuple[tuple[str, ...], bytes, int]:
    """Find the file with the voxels: the file of the header or another one that the header names.

    Args:
        files: the source that holds the files.
        path: path of the file with the header.
        header: bytes of the file with the header.
        end: offset of the first byte after the header.
        written: name of the file with the voxels in the header; None if the header names none.
        names: file extensions of the format.

    Returns:
        The paths of all files of the volume, the bytes of the file with the voxels, and the offset of the data in it.

    Raises:
        SourceError: there is no such file; or the header names one although its own extension does not announce that,
            so the conversion did not list the file.
    """
    found = None if written is None else resolve_data_path(written, path)
    if written is not None and found != parse_data_file(header, path):
        cure = f"name it {' or '.join(names.headers)}, or save it with its voxels in one file"
        raise SourceError("read", "voxels lie in another file than the name says", cure)
    return ((path,), header, end) if found is None else ((path, found), files.read(found), 0)
