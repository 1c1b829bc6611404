"""Reader of the elements of DICOM masks with pydicom, and check that a mask refers to the given scan.

Scans need only the elements of `halofeed.prep.formats.dicom.headers`. Masks need all their elements, and pydicom
parses them here without converting their values.
"""

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
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.charset import convert_encodings, decode_bytes, python_encoding
from pydicom.dataset import Dataset
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.valuerep import TEXT_VR_DELIMS

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import HeaderFields, referenced_series, uid_digest
from halofeed.prep.formats.dicom.headers import damaged_file, format_tag, read_dicom_file
from halofeed.prep.geometry.scan import Finding, ScanIdentity
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import OVERLAP_HINT
from halofeed.schemas.findings import FindingName
from halofeed.system.memory import ReserveMemory, no_memory_limit, with_margin
from halofeed.system.wording import plural

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
"""Exceptions that pydicom raises for damaged files."""
CHARACTER_SET = 0x00080005
ITEM_START = b"\xfe\xff\x00\xe0"
"""First bytes of an item of a sequence."""
ITEM_BYTES, READ_ITEM_BYTES = 1000, 3000
"""Memory of an item with a few elements in pydicom: after parsing, and after its elements were read."""
MAX_NUMBER_CHARACTERS, NUMBERS_PER_BLOCK = 64, 1 << 16
STRUCTURES, STRUCTURE_CONTOURS, CONTOURS = 0x30060020, 0x30060039, 0x30060040
FRAME_OF_STRUCTURE, DERIVATIONS, SOURCE_IMAGES = 0x30060024, 0x00089124, 0x00082112
WRONG_SCAN = "label was drawn on another scan"
_WRONG_SCAN_FIX = (
    "pair it with the scan that it was drawn on, which --layout dicom finds, or say --mask-references ignore"
)


class _SilencedThreads(logging.Filter):
    """Filter that drops pydicom's log records in silenced threads, because they may quote a damaged header."""

    def __init__(self) -> None:
        super().__init__()
        self.state = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.state, "silenced", False)


_SILENCED_THREADS = _SilencedThreads()
for _name in (
    "pydicom",
    "pydicom.pixels.decoders.base",
    "pydicom.pixels.utils",
    "openjpeg.utils",
    "openjpeg.decode",
):
    # A logger's filter does not apply to the records of its child loggers.
    logging.getLogger(_name).addFilter(_SILENCED_THREADS)


@contextlib.contextmanager
def silence_pydicom() -> Iterator[None]:
    """Suppress pydicom's warnings and log records. Concurrent use may suppress warnings for longer."""
    state = _SILENCED_THREADS.state
    before = getattr(state, "silenced", False)
    state.silenced = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"pydicom|halofeed\.prep\.formats\.dicom\.elements")
            yield
    finally:
        state.silenced = before


class _ShortReadDetector(io.BytesIO):
    """Byte stream that records short reads, because pydicom cuts truncated values silently."""

    missing = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if size is not None and 0 < len(data) < size:
            self.missing = max(self.missing, size - len(data))
        return data


@dataclass(frozen=True, kw_only=True, eq=False)
class ParsedFile:
    """Parsed DICOM file.

    Args:
        dataset: the elements, whose values are not converted yet.
        file_bytes: size of the unpacked file.
        items: number of items in its sequences.
        parsed_bytes: memory that parsing took: twice the file, and its items.
    """

    dataset: Dataset
    file_bytes: int
    items: int
    parsed_bytes: int


def read_dataset(files: SourceFiles, path: str, reserve: ReserveMemory = no_memory_limit) -> ParsedFile:
    """Parse one DICOM file.

    Args:
        files: the source that holds the file.
        path: path of the file.
        reserve: called with the number of bytes that parsing takes.

    Raises:
        SourceError: the file is not DICOM, damaged or truncated (stage `read`).
    """
    data = read_dicom_file(files, path)
    count = data.count(ITEM_START)
    parsed_bytes = 2 * len(data) + ITEM_BYTES * count
    reserve(with_margin(parsed_bytes))
    stream = _ShortReadDetector(data)
    try:
        with silence_pydicom():
            dataset = pydicom.dcmread(stream)
    except InvalidDicomError as error:
        raise SourceError("read", "file is not DICOM", "its first bytes are not those of DICOM") from error
    except (*PARSE_FAILURES, Warning):
        raise damaged_file("its elements cannot be parsed") from None
    if stream.missing:
        raise SourceError(
            "read", "file is truncated", f"{plural(stream.missing, 'byte is', 'bytes are')} missing"
        )
    return ParsedFile(dataset=dataset, file_bytes=len(data), items=count, parsed_bytes=parsed_bytes)


def transfer_syntax(dataset: Dataset) -> str:
    """Return the UID of the file's transfer syntax."""
    return str(dataset.file_meta.get("TransferSyntaxUID", ""))


def element_bytes(dataset: Dataset, tag: int) -> bytes:
    """Return the bytes of an element; b"" if it is absent or has no value."""
    element = dataset.get_item(tag)
    value = None if element is None else element.value
    if value is None or value == "":
        return b""
    if not isinstance(value, bytes):
        raise damaged_file(f"element {format_tag(tag)} has an unexpected type")
    return value


def code_text(dataset: Dataset, tag: int) -> str:
    """Return a code string or a UID; "" if absent."""
    return element_bytes(dataset, tag).decode("ascii", "replace").strip(" \0")


def segment_name(dataset: Dataset, tag: int, character_sets: Sequence[str]) -> str:
    """Return a user-defined name without control characters, decoded with the item's or the file's character sets."""
    value = element_bytes(dataset, tag).rstrip(b" \0")
    known = [name for name in declared_character_sets(dataset) or character_sets if name in python_encoding]
    if len(known) > 1:
        decoded = decode_bytes(value, convert_encodings(known), TEXT_VR_DELIMS)
    else:
        decoded = value.decode(python_encoding[known[0]] if known else "iso8859", "replace")
    return "".join(character for character in decoded if character.isprintable()).strip()


def declared_character_sets(dataset: Dataset) -> Sequence[str]:
    """Return the names of the character sets that a data set or an item declares."""
    element = dataset.get_item(CHARACTER_SET)  # pydicom has converted its value already
    value = None if element is None else element.value
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace").split("\\")
    names = [value] if isinstance(value, str) else list(value or ())
    return [str(name).strip(" \0") for name in names]


def decimals(dataset: Dataset, tag: int, count: int | None = None) -> NDArray[np.float64] | None:
    """Return decimal strings as float64 [count], or None if absent.

    Raises:
        SourceError: the values are not finite numbers, or not `count` of them.
    """
    value = element_bytes(dataset, tag).strip(b" \0")
    if not value:
        return None
    try:
        numbers = np.concatenate([np.array(block).astype(np.float64) for block in _split_numbers(value)])
    except ValueError:
        raise damaged_file(f"element {format_tag(tag)} holds a value that is not a number") from None
    if count is not None and len(numbers) != count:
        raise damaged_file(f"element {format_tag(tag)} has {plural(len(numbers), 'value')}, expected {count}")
    if not np.isfinite(numbers).all():
        raise damaged_file(f"element {format_tag(tag)} holds a number that is not finite")
    return numbers


def _split_numbers(value: bytes) -> Iterator[list[bytes]]:
    """Yield the numbers of a value in blocks: NumPy's fixed-width strings are as long as the longest of a block.

    Raises:
        ValueError: a number is longer than `MAX_NUMBER_CHARACTERS`.
    """
    start = 0
    while start <= len(value):
        stop = value.find(b"\\", start + 16 * NUMBERS_PER_BLOCK)
        stop = stop if stop >= 0 else len(value)
        block = value[start:stop].split(b"\\")
        if max(map(len, block)) > MAX_NUMBER_CHARACTERS:
            raise ValueError("a number has too many characters")
        yield block
        start = stop + 1


def decimal_integer(dataset: Dataset, tag: int, default: int | None = None) -> int:
    """Return the value of an integer string."""
    value = element_bytes(dataset, tag).strip(b" \0")
    if not value and default is not None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise damaged_file(f"element {format_tag(tag)} is not an integer") from None
    if abs(number) >= 2**31:
        raise damaged_file(f"element {format_tag(tag)} is out of range")
    return number


def unsigned_short(dataset: Dataset, tag: int, default: int | None = None) -> int:
    """Return a 16-bit unsigned integer of a little-endian file."""
    value = element_bytes(dataset, tag)
    if not value and default is not None:
        return default
    if len(value) != 2:
        raise damaged_file(f"element {format_tag(tag)} has {plural(len(value), 'byte')}, expected 2")
    return int.from_bytes(value, "little")


def sequence_items(dataset: Dataset, tag: int) -> Sequence[Dataset]:
    """Return the items of a sequence; () if it is absent."""
    if tag not in dataset:
        return ()
    try:
        with silence_pydicom():
            value: Any = dataset[tag].value
    except PARSE_FAILURES:
        raise damaged_file(f"sequence {format_tag(tag)} cannot be read") from None
    if isinstance(value, bytes | str) or not isinstance(value, Sequence):
        raise damaged_file(f"element {format_tag(tag)} is not a sequence")
    return value


def overlap_error(what: str, numbers: Iterable[int], voxels: int) -> SourceError:
    """Return the error for a mask with voxels in several segments or structures."""
    listed = ", ".join(map(str, sorted(numbers)))
    detail = (
        f"{plural(voxels, 'voxel is', 'voxels are')} in more than one of the {what} {listed}; {OVERLAP_HINT}"
    )
    return SourceError("annotation", f"{what} overlap", detail)


def left_out_findings(names: Mapping[int, str], kept: Mapping[int, str]) -> list[Finding]:
    """Return the finding that lists the classes which the user's choice leaves out of a mask, if there are any."""
    others = [name for number, name in names.items() if number not in kept]
    return [Finding.noted(FindingName.CLASSES_LEFT_OUT, ", ".join(others[:20]))] if others else []


def scan_origin(images: Iterable[HeaderFields]) -> ScanIdentity:
    """Return the identity of the scan of some images, for the comparison with the references of a mask."""
    listed = list(images)
    return ScanIdentity(
        series=frozenset(fields.series_digest for fields in listed) - {b""},
        frames=frozenset(fields.frame_digest for fields in listed) - {b""},
        images=frozenset(fields.instance_digest for fields in listed) - {b""},
    )


def check_references(dataset: Dataset, scan: ScanIdentity) -> None:
    """Refuse a mask that refers to another scan.

    Raises:
        SourceError: the mask names images, a series or a frame of reference that the scan does not have.
    """
    series = referenced_series(dataset, sequence_items)
    images = set(map(uid_digest, _image_uids(dataset, series))) - {b""}
    if images and scan.images:
        if not images & scan.images:
            detail = (
                f"none of the {plural(len(images), 'image')} that it names (ReferencedSOPInstanceUID) "
                "is the scan's"
            )
            raise _wrong_scan(detail)
        return
    named_series = {uid_digest(element_bytes(item, headers.SERIES_UID)) for item in series} - {b""}
    if named_series and scan.series and not scan.series & named_series:
        raise _wrong_scan("the series that it names (SeriesInstanceUID) is not the scan's")
    frames = set(map(uid_digest, _frame_uids(dataset))) - {b""}
    if not named_series and frames and scan.frames and not frames & scan.frames:
        raise _wrong_scan("its frame of reference (FrameOfReferenceUID) is not the scan's")


def _wrong_scan(detail: str) -> SourceError:
    return SourceError("annotation", WRONG_SCAN, f"{detail}; {_WRONG_SCAN_FIX}")


def _image_uids(dataset: Dataset, series: Iterable[Dataset]) -> set[bytes]:
    """Return the UIDs of the images that the file names: with the series, else in its frames or contours."""
    uids = set(_instance_uids(series, headers.REFERENCED_INSTANCES, headers.CONTOUR_IMAGES))
    if uids:
        return uids
    groups = [*sequence_items(dataset, headers.SHARED_GROUPS), *sequence_items(dataset, headers.FRAME_GROUPS)]
    derivations = [item for group in (dataset, *groups) for item in sequence_items(group, DERIVATIONS)]
    uids.update(_instance_uids((dataset, *derivations), SOURCE_IMAGES))
    for structure in sequence_items(dataset, STRUCTURE_CONTOURS):
        uids.update(_instance_uids(sequence_items(structure, CONTOURS), headers.CONTOUR_IMAGES))
    return uids


def _instance_uids(parents: Iterable[Dataset], *tags: int) -> Iterator[bytes]:
    for parent in parents:
        for tag in tags:
            for image in sequence_items(parent, tag):
                yield element_bytes(image, headers.REFERENCED_INSTANCE)


def _frame_uids(dataset: Dataset) -> Iterator[bytes]:
    """Yield the UIDs of the frames of reference that the file names."""
    yield element_bytes(dataset, headers.FRAME_OF_REFERENCE)
    for frame in sequence_items(dataset, headers.RT_FRAMES):
        yield element_bytes(frame, headers.FRAME_OF_REFERENCE)
    for structure in sequence_items(dataset, STRUCTURES):
        yield element_bytes(structure, FRAME_OF_STRUCTURE)
