"""Values of single elements of DICOM files that hold masks, and the scan that a mask refers to."""

from __future__ import annotations

import contextlib
import io
import logging
import struct
import threading
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.charset import convert_encodings, decode_bytes, python_encoding
from pydicom.dataset import Dataset
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.valuerep import TEXT_VR_DELIMS

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import HeaderFields, linked
from halofeed.prep.formats.dicom.headers import damaged, named, read_file
from halofeed.prep.geometry.scan import Finding, Origin
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import OVERLAP_CURE
from halofeed.system.memory import Need, unlimited, with_margin

PARSE_FAILURES = (
    AttributeError,
    BytesLengthException,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What pydicom raises of damaged files."""
CHARACTER_SET = 0x00080005


class _Unheard(logging.Filter):
    """Drops what pydicom logs in a thread while `heard` is False there: its words may quote a damaged header."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(self.here, "heard", True)


_UNHEARD = _Unheard()
for _name in (
    "pydicom",
    "pydicom.pixels.decoders.base",
    "pydicom.pixels.utils",
    "openjpeg.utils",
    "openjpeg.decode",
):
    logging.getLogger(_name).addFilter(_UNHEARD)  # which is not asked for what the loggers below it log


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """pydicom warns and logs nothing; where threads race for the warning filters, its own stay off for longer."""
    before = getattr(_UNHEARD.here, "heard", True)
    _UNHEARD.here.heard = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"pydicom|halofeed\.prep\.formats\.dicom\.elements")
            yield
    finally:
        _UNHEARD.here.heard = before


class _Watched(io.BytesIO):
    """Bytes that remember whether more of them was asked for than there is: pydicom cuts such values silently."""

    missing = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if size is not None and 0 < len(data) < size:
            self.missing = max(self.missing, size - len(data))
        return data


ITEM_MARK = b"\xfe\xff\x00\xe0"
"""What begins an item of a sequence."""
ITEM_BYTES, READ_ITEM_BYTES = 1000, 3000
"""What pydicom makes of an item with a few elements, and once they are read."""
LONGEST_NUMBER, NUMBERS_AT_ONCE = 64, 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Parsed:
    """A DICOM file whose elements were distinguished, how many bytes and items of sequences it has, and what it took to
    tell the elements apart: the file's bytes twice, and its items."""

    dataset: Dataset
    file_bytes: int
    items: int
    parsed_bytes: int


def read_dataset(files: SourceFiles, path: str, need: Need = unlimited) -> Parsed:
    """One DICOM file, its values not yet converted; SourceError of stage `read` where it is none or is damaged.

    Args:
        need: told how many bytes this takes.
    """
    data = read_file(files, path)
    count = data.count(ITEM_MARK)
    parsed_bytes = 2 * len(data) + ITEM_BYTES * count
    need(with_margin(parsed_bytes))
    watched = _Watched(data)
    try:
        with unheard():
            dataset = pydicom.dcmread(watched)
    except InvalidDicomError as error:
        raise SourceError("read", "file is not DICOM", "it does not start as DICOM files do") from error
    except (*PARSE_FAILURES, Warning):
        raise damaged("its elements cannot be distinguished") from None
    if watched.missing:
        raise SourceError("read", "file is truncated", f"{watched.missing} bytes are missing")
    return Parsed(dataset=dataset, file_bytes=len(data), items=count, parsed_bytes=parsed_bytes)


def transfer_syntax(dataset: Dataset) -> str:
    """The UID of how the file is written; pydicom has converted it already."""
    return str(dataset.file_meta.get("TransferSyntaxUID", ""))


def raw_value(dataset: Dataset, tag: int) -> bytes:
    """The bytes of an element; empty where it is absent or has no value."""
    element = dataset.get_item(tag)
    value = None if element is None else element.value
    if value is None or value == "":
        return b""
    if not isinstance(value, bytes):
        raise damaged(f"element {named(tag)} is of another kind than expected")
    return value


def text(dataset: Dataset, tag: int) -> str:
    """A code string or UID, "" where absent."""
    return raw_value(dataset, tag).decode("ascii", "replace").strip(" \0")


def label(dataset: Dataset, tag: int, character_sets: Sequence[str]) -> str:
    """A name that people gave, in the file's own character set; without control characters."""
    value = raw_value(dataset, tag).rstrip(b" \0")
    known = [name for name in declared_character_sets(dataset) or character_sets if name in python_encoding]
    if len(known) > 1:
        decoded = decode_bytes(value, convert_encodings(known), TEXT_VR_DELIMS)
    else:
        decoded = value.decode(python_encoding[known[0]] if known else "iso8859", "replace")
    return "".join(character for character in decoded if character.isprintable()).strip()


def declared_character_sets(dataset: Dataset) -> Sequence[str]:
    """The character sets that a data set, or an item of its own, is written in; pydicom has converted them already."""
    element = dataset.get_item(CHARACTER_SET)
    value = None if element is None else element.value
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace").split("\\")
    names = [value] if isinstance(value, str) else list(value or ())
    return [str(name).strip(" \0") for name in names]


def decimals(dataset: Dataset, tag: int, count: int | None = None) -> NDArray[np.float64] | None:
    """Decimal strings as float64 [count]; None where absent; SourceError where not `count` finite numbers."""
    value = raw_value(dataset, tag).strip(b" \0")
    if not value:
        return None
    try:
        numbers = np.concatenate([np.array(some).astype(np.float64) for some in _parts(value)])
    except ValueError:
        raise damaged(f"element {named(tag)} holds what is not a number") from None
    if count is not None and len(numbers) != count:
        raise damaged(f"element {named(tag)} has {len(numbers)} values, expected {count}")
    if not np.isfinite(numbers).all():
        raise damaged(f"element {named(tag)} holds a number that is not finite")
    return numbers


def _parts(value: bytes) -> Iterator[list[bytes]]:
    """The numbers of a value, some at a time: NumPy gives each the room of the longest. ValueError: one is too long."""
    start = 0
    while start <= len(value):
        stop = value.find(b"\\", start + 16 * NUMBERS_AT_ONCE)
        stop = stop if stop >= 0 else len(value)
        some = value[start:stop].split(b"\\")
        if max(map(len, some)) > LONGEST_NUMBER:
            raise ValueError("a number of too many characters")
        yield some
        start = stop + 1


def decimal_integer(dataset: Dataset, tag: int, default: int | None = None) -> int:
    """An integer string."""
    value = raw_value(dataset, tag).strip(b" \0")
    if not value and default is not None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise damaged(f"element {named(tag)} holds no whole number") from None
    if abs(number) >= 2**31:
        raise damaged(f"element {named(tag)} is out of range")
    return number


def unsigned_short(dataset: Dataset, tag: int, default: int | None = None) -> int:
    """A 16-bit unsigned integer of a little-endian file."""
    value = raw_value(dataset, tag)
    if not value and default is not None:
        return default
    if len(value) != 2:
        raise damaged(f"element {named(tag)} has {len(value)} bytes, expected 2")
    return int.from_bytes(value, "little")


def items(dataset: Dataset, tag: int) -> Sequence[Dataset]:
    """The items of a sequence; none where it is absent."""
    if tag not in dataset:
        return ()
    try:
        with unheard():
            value: Any = dataset[tag].value
    except PARSE_FAILURES:
        raise damaged(f"sequence {named(tag)} cannot be read") from None
    if isinstance(value, bytes | str) or not isinstance(value, Sequence):
        raise damaged(f"element {named(tag)} is not a sequence")
    return value


def overlap_refused(what: str, numbers: Iterable[int], voxels: int) -> SourceError:
    """The error of a mask with voxels in several segments or structures."""
    listed = ", ".join(map(str, sorted(numbers)))
    detail = f"{voxels} voxels are in more than one of the {what} {listed}; {OVERLAP_CURE}"
    return SourceError("annotation", f"{what} overlap", detail)


def left_out(names: Mapping[int, str], kept: Mapping[int, str]) -> list[Finding]:
    """What is said of the classes that a user's choice leaves out of a mask."""
    others = [name for number, name in names.items() if number not in kept]
    return [Finding.noted("classes left out by choice", ", ".join(others[:20]))] if others else []


MaskDataset: TypeAlias = Any
"""pydicom's."""
FRAME_OF_STRUCTURE, STRUCTURES, STRUCTURE_CONTOURS, CONTOURS = 0x30060024, 0x30060020, 0x30060039, 0x30060040
DERIVATIONS, SOURCE_IMAGES = 0x00089124, 0x00082112
ANOTHER_SCAN = "label was drawn on another scan"
_CURE = (
    "pair it with the scan that it was drawn on, which --layout dicom finds, or say --mask-references ignore"
)


def origin_of(images: Iterable[HeaderFields]) -> Origin:
    """What masks of these images refer to."""
    some = list(images)
    return Origin(
        series=frozenset(facts.link[0] for facts in some) - {b""},
        frames=frozenset(facts.link[1] for facts in some) - {b""},
        images=frozenset(facts.uid for facts in some) - {b""},
    )


def check_drawn_on(dataset: MaskDataset, scan: Origin) -> None:
    """Refuse a mask that names another scan.

    Raises:
        SourceError: it names images, a series or a frame of reference, and these are not the scan's.
    """
    series = list(_referenced_series(dataset))
    images = {linked(uid) for uid in _images(dataset, series)} - {b""}
    if images and scan.images:
        if not images & scan.images:
            raise _refused(
                f"none of the {len(images)} images that it names (ReferencedSOPInstanceUID) is the scan's"
            )
        return
    uids = [uid for uid in (raw_value(item, headers.SERIES_UID) for item in series) if linked(uid)]
    if uids and scan.series and not scan.series & set(map(linked, uids)):
        raise _refused("the series that it names (SeriesInstanceUID) is not the scan's")
    frames = {linked(uid) for uid in _frames(dataset)} - {b""}
    if not uids and frames and scan.frames and not frames & scan.frames:
        raise _refused("its frame of reference (FrameOfReferenceUID) is not the scan's")


def _refused(detail: str) -> SourceError:
    return SourceError("annotation", ANOTHER_SCAN, f"{detail}; {_CURE}")


def _referenced_series(dataset: MaskDataset) -> Iterator[MaskDataset]:
    """What the file says of each series that it refers to."""
    yield from items(dataset, headers.REFERENCED_SERIES)
    for frame in items(dataset, headers.RT_FRAMES):
        for study in items(frame, headers.RT_STUDIES):
            yield from items(study, headers.RT_SERIES)


def _images(dataset: MaskDataset, series: Iterable[MaskDataset]) -> set[bytes]:
    """The UIDs of the images that the file names: beside the series, else in its frames or contours."""
    found = set(_named(series, (headers.REFERENCED_INSTANCES, headers.CONTOUR_IMAGES)))
    if found:
        return found
    groups = [*items(dataset, headers.SHARED_GROUPS), *items(dataset, headers.FRAME_GROUPS)]
    derivations = [item for group in (dataset, *groups) for item in items(group, DERIVATIONS)]
    found = set(_named((dataset, *derivations), (SOURCE_IMAGES,)))
    for structure in items(dataset, STRUCTURE_CONTOURS):
        found.update(_named(items(structure, CONTOURS), (headers.CONTOUR_IMAGES,)))
    return found


def _named(holders: Iterable[MaskDataset], tags: Iterable[int]) -> Iterator[bytes]:
    for holder in holders:
        for tag in tags:
            for image in items(holder, tag):
                yield raw_value(image, headers.REFERENCED_INSTANCE)


def _frames(dataset: MaskDataset) -> Iterator[bytes]:
    """The UIDs of the frames of reference in which the file's masks lie."""
    yield raw_value(dataset, headers.FRAME_OF_REFERENCE)
    for frame in items(dataset, headers.RT_FRAMES):
        yield raw_value(frame, headers.FRAME_OF_REFERENCE)
    for structure in items(dataset, STRUCTURES):
        yield raw_value(structure, FRAME_OF_STRUCTURE)
