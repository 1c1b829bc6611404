"""Reader of the elements of DICOM files: those that a volume or a mask needs, as bytes, and the location of the pixels.

A header may hold any text, so nothing here decodes more than `HEADER_VRS` and `MASK_VRS` list. Parsing stops at the
pixels, and `HeaderContinuesError` asks the caller for more bytes of the file. The functions at the end are the only way
to a value: `text`, `name_text`, `raw_value`, `items`, `numbers`, `number_array`, `finite_number`, `integer` and
`unsigned_bits`. Each refuses a value of another type or count.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.streams import (
    GZIP_MAGIC,
    MAX_DEFLATE_RATIO,
    OUTPUT_BYTES,
    open_stream,
    unpack_head,
)
from halofeed.prep.sources.files import CHANGED_FILE, SourceFiles
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory, no_memory_limit
from halofeed.system.wording import plural

MAX_UNPACKED_BYTES = 1 << 31
Elements = Mapping[int, Union["Element", "tuple[Elements, ...]"]]
"""Elements by tag; a sequence is the tuple of its items."""

MAX_DEPTH, MAX_VALUE_BYTES, MAX_INFLATED_BYTES = 24, 1 << 16, 1 << 30
MAX_ELEMENTS = 4_000_000
"""Limit on the elements and items that are kept; a time series of 30,000 frames has a million."""
_INFLATE_BLOCK_BYTES = 1 << 20
UNDEFINED = 0xFFFFFFFF
ITEM_START = b"\xfe\xff\x00\xe0"
"""First bytes of an item of a sequence."""
ITEM_BYTES = 2000
"""Memory of an item with a few elements."""
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
PIXEL_KINDS = {0x7FE00008: "float", 0x7FE00009: "double", 0x7FE00010: "integer"}
LONG_VRS = frozenset(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
SHORT_VRS = frozenset(b"AE AS AT CS DA DS DT FD FL IS LO LT PN SH SL SS ST TM UI UL US".split())
BINARY_NUMBERS = {"US": "H", "SS": "h", "UL": "I", "SL": "i", "FL": "f", "FD": "d"}
"""The VRs of binary numbers, each with its code for `struct`."""
DECIMAL = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MAX_NUMBER_CHARACTERS, _NUMBERS_BLOCK_BYTES = 64, 1 << 18

IMPLICIT_LITTLE, EXPLICIT_LITTLE = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
EXPLICIT_BIG, DEFLATED = "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.1.99"

HEADER_VRS: dict[int, str] = {}
"""The tags of the elements that are read, each with its VR, which files of implicit VR leave out."""


def _tags(vr: str, *tags: int, table: dict[int, str] = HEADER_VRS) -> tuple[int, ...]:
    """Add tags of one VR to a table and return them."""
    table.update(dict.fromkeys(tags, vr))
    return tags


TRANSFER_SYNTAX, MEDIA_SOP_CLASS, SOP_CLASS = _tags("UI", 0x00020010, 0x00020002, 0x00080016)
SOP_INSTANCE, STUDY_UID, SERIES_UID = _tags("UI", 0x00080018, 0x0020000D, 0x0020000E)
FRAME_OF_REFERENCE, REFERENCED_INSTANCE = _tags("UI", 0x00200052, 0x00081155)
IMAGE_TYPE, MODALITY, FRAME_TYPE = _tags("CS", 0x00080008, 0x00080060, 0x00089007)
COMPLEX_COMPONENT, PHOTOMETRIC, LOSSY_COMPRESSION = _tags("CS", 0x00089208, 0x00280004, 0x00282110)
PATIENT_ID, SERIES_DESCRIPTION, RESCALE_TYPE = _tags("LO", 0x00100020, 0x0008103E, 0x00281054)
PATIENT_NAME, PATIENT_BIRTH_DATE, PATIENT_SEX = (
    *_tags("PN", 0x00100010),
    *_tags("DA", 0x00100030),
    *_tags("CS", 0x00100040),
)
STUDY_DATE, ACCESSION_NUMBER, SERIES_NUMBER = (
    *_tags("DA", 0x00080020),
    *_tags("SH", 0x00080050),
    *_tags("IS", 0x00200011),
)
MANUFACTURER, MODEL, SERIAL_NUMBER = _tags("LO", 0x00080070, 0x00081090, 0x00181000)
(STATION,) = _tags("SH", 0x00081010)
(CSA_CREATOR,) = _tags("LO", 0x00290010)
(CSA_IMAGE_HEADER,) = _tags("OB", 0x00291010)
KERNEL, STACK_ID = _tags("SH", 0x00181210, 0x00209056)
FRAMES, ECHO_NUMBERS, TEMPORAL_POSITION = _tags("IS", 0x00280008, 0x00180086, 0x00200100)
ACQUISITION_NUMBER, INSTANCE_NUMBER = _tags("IS", 0x00200012, 0x00200013)
SAMPLES, ROWS, COLUMNS, BITS_ALLOCATED = _tags("US", 0x00280002, 0x00280010, 0x00280011, 0x00280100)
BITS_STORED, HIGH_BIT, SIGNED, PADDING_VALUE = _tags("US", 0x00280101, 0x00280102, 0x00280103, 0x00280120)
PADDING_LIMIT, FRAME_ACQUISITION_NUMBER = _tags("US", 0x00280121, 0x00209156)
POSITION, ORIENTATION, PIXEL_SPACING = _tags("DS", 0x00200032, 0x00200037, 0x00280030)
SLICE_THICKNESS, SPACING_BETWEEN_SLICES, INTERCEPT = _tags("DS", 0x00180050, 0x00180088, 0x00281052)
SLOPE, ECHO_TIME, TRIGGER_TIME, INVERSION_TIME = _tags("DS", 0x00281053, 0x00180081, 0x00181060, 0x00180082)
FLIP_ANGLE, TUBE_VOLTAGE, FRAME_REFERENCE_TIME = _tags("DS", 0x00181314, 0x00180060, 0x00541300)
DIFFUSION_B_VALUE, GRADIENT_DIRECTION, EFFECTIVE_ECHO_TIME = _tags("FD", 0x00189087, 0x00189089, 0x00189082)
TRIGGER_DELAY, TEMPORAL_OFFSET = _tags("FD", 0x00209153, 0x0020930D)
CARDIAC_PHASE, FLOAT_PADDING_VALUE = _tags("FL", 0x00209241, 0x00280122)
TEMPORAL_INDEX, DIMENSION_INDEX = _tags("UL", 0x00209128, 0x00209157)
ACQUISITION_DATE, CONTENT_DATE = _tags("DA", 0x00080022, 0x00080023)
ACQUISITION_TIME, CONTENT_TIME = _tags("TM", 0x00080032, 0x00080033)
ACQUISITION_MOMENT, FRAME_MOMENT, FRAME_REFERENCE_MOMENT = _tags("DT", 0x0008002A, 0x00189074, 0x00189151)
SHARED_GROUPS, FRAME_GROUPS, FRAME_CONTENT = _tags("SQ", 0x52009229, 0x52009230, 0x00209111)
VALUE_TRANSFORMATION, PLANE_POSITION, PLANE_ORIENTATION = _tags("SQ", 0x00289145, 0x00209113, 0x00209116)
PIXEL_MEASURES, TEMPORAL_GROUP, CARDIAC = _tags("SQ", 0x00289110, 0x00209310, 0x00189118)
GRADIENT_DIRECTIONS, MR_ECHO, MR_DIFFUSION = _tags("SQ", 0x00189076, 0x00189114, 0x00189117)
MR_TIMING, MR_FRAME_TYPE, CT_FRAME_TYPE = _tags("SQ", 0x00189112, 0x00189226, 0x00189329)
PET_FRAME_TYPE, MODALITY_LUT, REFERENCED_SERIES = _tags("SQ", 0x00189751, 0x00283000, 0x00081115)
REFERENCED_INSTANCES, CONTOUR_IMAGES, RT_FRAMES = _tags("SQ", 0x0008114A, 0x30060016, 0x30060010)
RT_STUDIES, RT_SERIES = _tags("SQ", 0x30060012, 0x30060014)
ENERGY_WINDOW_VECTOR, RR_INTERVAL_VECTOR, TIME_SLOT_VECTOR = _tags("US", 0x00540010, 0x00540060, 0x00540070)
(SLICE_VECTOR,), (DETECTOR_INFORMATION,) = _tags("US", 0x00540080), _tags("SQ", 0x00540022)
(DOUBLE_PADDING_VALUE,) = _tags("FD", 0x00280123)
REAL_WORLD_MAPPINGS, MEASUREMENT_UNITS = _tags("SQ", 0x00409096, 0x004008EA)
REAL_WORLD_INTERCEPT, REAL_WORLD_SLOPE, REAL_WORLD_TABLE = _tags("FD", 0x00409224, 0x00409225, 0x00409212)
FIRST_MAPPED = (*_tags("US", 0x00409216), *_tags("FD", 0x00409214))
LAST_MAPPED = (*_tags("US", 0x00409211), *_tags("FD", 0x00409213))
(CODE_VALUE,) = _tags("SH", 0x00080100)

MASK_VRS: dict[int, str] = dict(HEADER_VRS)
"""The elements that are read of a mask: those of `HEADER_VRS`, and the segments, structures and contours."""


def _mask_tags(vr: str, *tags: int) -> tuple[int, ...]:
    """Add tags of one VR to `MASK_VRS` and return them."""
    return _tags(vr, *tags, table=MASK_VRS)


CHARACTER_SET, SEGMENTATION_TYPE, FRACTION_TYPE = _mask_tags("CS", 0x00080005, 0x00620001, 0x00620010)
SEGMENTS, SEGMENT_GROUP = _mask_tags("SQ", 0x00620002, 0x0062000A)
SEGMENT_NUMBER, SEGMENT_REFERENCE, MAXIMUM_FRACTION = _mask_tags("US", 0x00620004, 0x0062000B, 0x0062000E)
SEGMENT_LABEL, STRUCTURE_NAME = _mask_tags("LO", 0x00620005, 0x30060026)
STRUCTURES, STRUCTURE_CONTOURS, CONTOURS = _mask_tags("SQ", 0x30060020, 0x30060039, 0x30060040)
DERIVATIONS, SOURCE_IMAGES = _mask_tags("SQ", 0x00089124, 0x00082112)
(FRAME_OF_STRUCTURE,), (CONTOUR_KIND,) = _mask_tags("UI", 0x30060024), _mask_tags("CS", 0x30060042)
STRUCTURE_NUMBER, CONTOURS_OF, POINT_COUNT = _mask_tags("IS", 0x30060022, 0x30060084, 0x30060046)
(CONTOUR_DATA,) = _mask_tags("DS", 0x30060050)
(CODING_SCHEME,), (OBSERVATIONS,) = _mask_tags("SH", 0x00080102), _mask_tags("SQ", 0x30060080)
STRUCTURE_CODES, PROPERTY_CODES, MODIFIER_CODES = _mask_tags("SQ", 0x30060086, 0x0062000F, 0x00620011)

PICTURE_VRS: dict[int, str] = dict(HEADER_VRS)
"""The elements that are read of a single picture: those of `HEADER_VRS`, and what its display needs."""


def _picture_tags(vr: str, *tags: int) -> tuple[int, ...]:
    """Add tags of one VR to `PICTURE_VRS` and return them."""
    return _tags(vr, *tags, table=PICTURE_VRS)


WINDOW_CENTER, WINDOW_WIDTH = _picture_tags("DS", 0x00281050, 0x00281051)
IMAGER_SPACING, NOMINAL_SPACING = _picture_tags("DS", 0x00181164, 0x00182010)
WINDOW_FUNCTION, PRESENTATION_SHAPE, BURNED_IN = _picture_tags("CS", 0x00281056, 0x20500020, 0x00280301)
LATERALITY, IMAGE_LATERALITY, VIEW_POSITION = _picture_tags("CS", 0x00200060, 0x00200062, 0x00185101)
CALIBRATION_TYPE, BODY_PART = _picture_tags("CS", 0x00280A02, 0x00180015)
MAGNIFICATION, OBJECT_SPACING = _picture_tags("DS", 0x00181114, 0x00189404)
FRAME_PIXEL_DATA, RAY_GEOMETRY, VIEW_CODES = _picture_tags("SQ", 0x00289443, 0x00189476, 0x00540220)
(ULTRASOUND_REGIONS,), (REGION_FORMAT,) = _picture_tags("SQ", 0x00186011), _picture_tags("US", 0x00186012)
REGION_UNITS, REGION_DELTAS = (
    _picture_tags("US", 0x00186024, 0x00186026),
    _picture_tags("FD", 0x0018602C, 0x0018602E),
)
"""Units and deltas of an ultrasound region, each of x and y."""
REGION_CORNERS = _picture_tags("UL", 0x00186018, 0x0018601A, 0x0018601C, 0x0018601E)
"""First x and y, and last x and y, of an ultrasound region."""
(WINDOW_NAMES,), (PLANAR,) = _picture_tags("LO", 0x00281055), _picture_tags("US", 0x00280006)
VOI_TABLES, FRAME_VOI = _picture_tags("SQ", 0x00283010, 0x00289132)
# A table of values is a US or a SS by the sign of the pixels, and its entries are US or OW (PS3.6).
(TABLE_DESCRIPTOR,), (TABLE_DATA,) = _picture_tags("US", 0x00283002), _picture_tags("OW", 0x00283006)
PALETTE_DESCRIPTORS = _picture_tags("US", 0x00281101, 0x00281102, 0x00281103)
PALETTES = _picture_tags("OW", 0x00281201, 0x00281202, 0x00281203)
PALETTE_SEGMENTS = _picture_tags("OW", 0x00281221, 0x00281222, 0x00281223)
OVERLAY_ROWS = _picture_tags("US", *range(0x60000010, 0x60200010, 0x00020000))
"""Rows of each of the 16 overlays that a picture may have (PS3.3 C.9.2)."""
_LONGER = {
    CONTOUR_DATA: 1 << 32,
    REAL_WORLD_TABLE: 8,
    **dict.fromkeys((TABLE_DATA, *PALETTES, *PALETTE_SEGMENTS), 4),
}
"""Elements that may be longer than others: a table has 2 to 8 bytes for each of 16 bits' values."""


class HeaderContinuesError(Exception):
    """Exception for a header that is longer than the given bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Element:
    """Value of one element, as the file stores it."""

    vr: str
    data: bytes
    little: bool


@dataclass(frozen=True, kw_only=True)
class PixelLocation:
    """Location of the pixels in the file, or in the inflated bytes of a deflated file.

    Args:
        kind: "integer", "float" or "double".
        offset: offset of the first byte of the value.
        length: bytes of the value; None if the pixels are in fragments.
        words: whether the VR is OW, which decides how big-endian bytes are swapped.
    """

    kind: str
    offset: int
    length: int | None
    words: bool


@dataclass(frozen=True, kw_only=True)
class DicomHeader:
    """Header of a file: its elements that a table lists.

    Args:
        elements: the elements of the file meta information and of the data set.
        syntax: UID of the transfer syntax.
        pixels: location of the pixels; None if the file has none.
    """

    elements: Elements
    syntax: str
    pixels: PixelLocation | None


def max_unpacked_bytes(byte_count: int) -> int:
    """Return the most bytes that a gzip file of `byte_count` bytes can unpack to."""
    return min(MAX_DEFLATE_RATIO * byte_count, MAX_UNPACKED_BYTES)


def read_dicom_file(files: SourceFiles, path: str) -> bytes:
    """Read a DICOM file completely, and unpack it if it is a gzip file.

    Raises:
        SourceError: the file cannot be read, is damaged gzip, or unpacks to more than `MAX_UNPACKED_BYTES`.
    """
    data = files.read(path)
    if not data.startswith(GZIP_MAGIC):
        return data
    stream, unpacked = open_stream(data), io.BytesIO()  # `getvalue` makes no copy
    block = memoryview(bytearray(OUTPUT_BYTES))
    while filled := stream.read_into(block):
        unpacked.write(block[:filled])
        if unpacked.tell() > MAX_UNPACKED_BYTES:
            raise SourceError("read", "DICOM file is too large", f"over {MAX_UNPACKED_BYTES} bytes unpacked")
    return unpacked.getvalue()


def read_dicom_start(files: SourceFiles, path: str, size: int) -> tuple[bytes, bool, bool]:
    """Read the first bytes of a DICOM file.

    Returns:
        At most `size` bytes, unpacked; whether they are the complete file; and whether the file is gzip.

    Raises:
        SourceError: the file cannot be read, or is damaged gzip.
    """
    head = files.head(path, size)
    start, complete = unpack_head(head, size)
    packed = head.startswith(GZIP_MAGIC)
    return start, complete if packed else len(head) < size, packed


def damaged_file(detail: str) -> SourceError:
    """Return the error for a file whose bytes violate the DICOM standard."""
    return SourceError("read", "DICOM file is damaged", detail)


def is_dicom(head: bytes) -> bool:
    """Return whether the first bytes are those of a DICOM file: with a preamble, or from group 2 or 8 on."""
    # PS3.10 7.1: a preamble of 128 bytes and the prefix. ACR-NEMA files, and data sets that a program saved without
    # both, begin with group 2 or 8, in little-endian order.
    if head[128:132] == b"DICM":
        return True
    if len(head) < 16 or head[:2] not in (b"\x02\x00", b"\x08\x00") or head[3] != 0 or head[2] > 0x70:
        return False
    # An explicit VR, or the length of a first short value in implicit VR.
    return head[4:6] in SHORT_VRS | LONG_VRS or 0 < struct.unpack_from("<I", head, 4)[0] <= 64


def format_tag(tag: int) -> str:
    """Return a tag in the notation of the standard, such as (0028,0010)."""
    return f"({tag >> 16:04X},{tag & 0xFFFF:04X})"


class _ElementParser:
    """Parser of consecutive elements in one byte order, with explicit or implicit VRs.

    Args:
        data: the file, or its first bytes.
        complete: whether `data` is the complete file.
        explicit: whether the elements state their VR.
        little: whether numbers are little-endian.
        vrs: the elements that are kept, with their VRs.
        kept: counter that parsers of one file share.
    """

    def __init__(
        self,
        data: bytes,
        complete: bool,
        explicit: bool,
        little: bool,
        vrs: Mapping[int, str] = HEADER_VRS,
        kept: Counter[str] | None = None,
    ) -> None:
        self.data, self.complete, self.explicit, self.little, self.vrs = data, complete, explicit, little, vrs
        order = "<" if little else ">"
        self.tag, self.short, self.long = (struct.Struct(order + form) for form in ("HH", "H", "I"))
        self.pixels: PixelLocation | None = None
        self.kept = Counter[str]() if kept is None else kept

    def count_kept(self) -> None:
        """Count one more element or item that is kept; raise SourceError beyond `MAX_ELEMENTS`."""
        self.kept["all"] += 1
        if self.kept["all"] > MAX_ELEMENTS:
            raise SourceError("read", "DICOM header is too long", f"more than {MAX_ELEMENTS} elements")

    def require(self, end: int) -> None:
        """Raise an error if the data ends before the offset `end`."""
        if end > len(self.data):
            if not self.complete:
                raise HeaderContinuesError
            detail = f"the header continues to byte {end} of {len(self.data)}"
            raise SourceError("read", "file is truncated", detail)

    def element(self, offset: int) -> tuple[int, str, int, int]:
        """Return the tag, the VR ("" if implicit), the length, and the offset of the value."""
        self.require(offset + 8)
        group, number = self.tag.unpack_from(self.data, offset)
        tag = int(group) << 16 | int(number)
        # PS3.5 7.5: items and delimiters have no VR, whatever the transfer syntax is.
        if not self.explicit or tag >> 16 == 0xFFFE:
            return tag, "", self.long.unpack_from(self.data, offset + 4)[0], offset + 8
        vr = self.data[offset + 4 : offset + 6]
        if vr in SHORT_VRS:
            return tag, vr.decode(), self.short.unpack_from(self.data, offset + 6)[0], offset + 8
        # PS3.5 6.2: new VRs have the element structure of OB (7.1.2), with a length of 4 bytes.
        if not (vr in LONG_VRS or (vr.isalpha() and vr.isupper())):
            raise damaged_file(f"element {format_tag(tag)} has no value representation")
        self.require(offset + 12)
        return tag, vr.decode(), self.long.unpack_from(self.data, offset + 8)[0], offset + 12

    # One loop, because it takes most of the time of a listing (see "DICOM headers by our parser" in docs/decisions.md).
    # Its branches are the forms of an element: end of an item, pixels, fragments, sequence, listed value, other value.
    def data_set(self, offset: int, end: int | None, depth: int) -> tuple[Elements, int]:
        """Return the kept elements up to `end`, or to the item delimiter, and the offset after them."""
        if depth > MAX_DEPTH:
            raise damaged_file(f"sequences nested more than {MAX_DEPTH} deep")
        elements: dict[int, Element | tuple[Elements, ...]] = {}
        while end is None or offset < end:
            tag, vr, length, value = self.element(offset)
            # PS3.5 7.5.1: only an item of undefined length has a delimiter.
            if tag == ITEM_END and end is None:
                return elements, value
            # Pixels in a sequence are those of an icon (PS3.3 C.7.6.1.1.6). In the data set they end the header.
            if depth == 0 and tag in PIXEL_KINDS:
                stated, words = None if length == UNDEFINED else length, vr in ("", "OW")
                self.pixels = PixelLocation(kind=PIXEL_KINDS[tag], offset=value, length=stated, words=words)
                return elements, value
            listed_vr = self.vrs.get(tag, "")
            # PS3.5 A.4: encapsulated pixels; any other value of undefined length is a sequence.
            if length == UNDEFINED and vr in ("OB", "OW"):
                offset = self.fragments_end(value)
            elif length == UNDEFINED or listed_vr == "SQ":
                items, offset = self.sequence(value, length, depth, vr)
                if listed_vr == "SQ":
                    elements[tag] = items
            else:
                offset = value + length
                # The first of several elements with one tag counts; the standard allows one (PS3.5 7.1).
                if listed_vr and tag not in elements:
                    self.keep_value(elements, tag, vr or listed_vr, value, length)
                # A sequence needs its next element; at the top, this may be the last one before the pixels.
                elif depth:
                    self.require(offset)
        return elements, offset

    def keep_value(
        self, elements: dict[int, Element | tuple[Elements, ...]], tag: int, vr: str, value: int, length: int
    ) -> None:
        """Add the element of a value at an offset."""
        # It is a private element of another creator: see `CSA_CREATOR`.
        if tag == CSA_IMAGE_HEADER and length > MAX_VALUE_BYTES:
            return
        # The listed values are short texts and numbers; a longer one is damage that would fill the memory.
        if length > MAX_VALUE_BYTES * _LONGER.get(tag, 1):
            raise damaged_file(f"element {format_tag(tag)} has {plural(length, 'byte')}")
        self.require(value + length)
        self.count_kept()
        # PS3.5 6.2.2: a program writes UN for an element that it does not know, and we do.
        known_vr = self.vrs[tag] if vr == "UN" else vr
        elements[tag] = Element(vr=known_vr, data=self.data[value : value + length], little=self.little)

    def sequence(self, value: int, length: int, depth: int, vr: str) -> tuple[tuple[Elements, ...], int]:
        """Return the items of the sequence at an offset, and the offset after it."""
        if length == UNDEFINED:
            return self.items(value, None, depth, vr)
        self.require(value + length)
        return self.items(value, value + length, depth, vr)

    def items(self, offset: int, end: int | None, depth: int, vr: str) -> tuple[tuple[Elements, ...], int]:
        """Return the items of a sequence, and the offset after it."""
        parser = self
        if vr == "UN":
            # PS3.5 6.2.2: the content of a sequence with an unknown VR is implicit little endian.
            parser = _ElementParser(self.data, self.complete, False, True, self.vrs, self.kept)
        items: list[Elements] = []
        while end is None or offset < end:
            tag, _, length, value = parser.element(offset)
            if tag == SEQUENCE_END and end is None:
                return tuple(items), value
            if tag != ITEM:
                raise damaged_file("a sequence contains elements other than items")
            self.count_kept()
            stop = None if length == UNDEFINED else value + length
            item, offset = parser.data_set(value, stop, depth + 1)
            if stop is not None and offset != stop:
                raise damaged_file("an item of a sequence is shorter than its elements")
            items.append(item)
        return tuple(items), offset

    def fragments_end(self, offset: int) -> int:
        """Return the offset after pixels in fragments, such as those of an icon."""
        while True:
            tag, _, length, value = self.element(offset)
            if tag == SEQUENCE_END:
                return value
            if tag != ITEM or length == UNDEFINED:
                raise damaged_file("pixels in fragments contain elements other than fragments")
            offset = value + length


def _file_meta(data: bytes, complete: bool) -> tuple[Elements, int]:
    """Return the elements of the file meta information (group 2), and the offset of the data set."""
    offset = 132 if data[128:132] == b"DICM" else 0
    parser = _ElementParser(data, complete, True, True)
    elements: dict[int, Element] = {}
    # PS3.10 7.1: group 2 is explicit little-endian, whatever the data set is. Its length in (0002,0000) is not used:
    # the elements may have been changed without it.
    while offset + 8 <= len(data) and data[offset : offset + 2] == b"\x02\x00":
        tag, vr, length, value = parser.element(offset)
        offset = value + length
        parser.require(offset)
        if tag in HEADER_VRS and length <= 256:
            elements[tag] = Element(vr=vr, data=data[value:offset], little=True)
    return elements, offset


def media_sop_class(data: bytes) -> str:
    """Return the SOP class from a file's first bytes, even if the rest is damaged; "" if they name none."""
    if not is_dicom(data):
        return ""
    try:
        return text(_file_meta(data, True)[0], MEDIA_SOP_CLASS)
    except SourceError:
        return ""


def inflate(data: bytes) -> bytes:
    """Inflate a deflated data set, which may be cut off.

    Raises:
        SourceError: the data is not deflated, or inflates to more than `MAX_INFLATED_BYTES`.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    inflated, view = io.BytesIO(), memoryview(data)
    try:
        for start in range(0, len(view), _INFLATE_BLOCK_BYTES):
            block: bytes | memoryview = view[start : start + _INFLATE_BLOCK_BYTES]
            while block and not stream.eof:
                inflated.write(stream.decompress(block, _INFLATE_BLOCK_BYTES))
                block = stream.unconsumed_tail
                if inflated.tell() > MAX_INFLATED_BYTES:
                    detail = f"more than {MAX_INFLATED_BYTES} bytes when inflated"
                    raise SourceError("read", "DICOM file is too large", detail)
        while not stream.eof and (rest := stream.decompress(b"", _INFLATE_BLOCK_BYTES)):
            inflated.write(rest)
    except zlib.error as error:
        raise damaged_file("its deflated part cannot be inflated") from error
    return inflated.getvalue()


def read_dicom_body(
    files: SourceFiles, path: str, syntax: str, pixels: PixelLocation | None, checksum: int
) -> bytes:
    """Read the bytes that hold the pixels of a file: the file's own, or its inflated data set.

    Args:
        files: the source that holds the file.
        path: path of the file.
        syntax: UID of its transfer syntax.
        pixels: location of its pixels.
        checksum: checksum of the bytes before the pixels when the header was read.

    Raises:
        SourceError: the file changed since then; or see `read_dicom_file` and `inflate`.
    """
    data = read_dicom_file(files, path)
    # The header was read earlier, maybe by another process: its offsets are right for these bytes alone.
    body = inflate(data[_file_meta(data, True)[1] :]) if syntax == DEFLATED else data
    if checksum_before(pixels, body) != checksum:
        raise SourceError("read", CHANGED_FILE, "")
    return body


def checksum_before(pixels: PixelLocation | None, body: bytes) -> int:
    """Return a checksum of the bytes before the pixels; 0 if there are no pixels."""
    return 0 if pixels is None else zlib.crc32(memoryview(body)[: pixels.offset])


def parse_dicom_header(
    data: bytes, complete: bool = True, vrs: Mapping[int, str] = HEADER_VRS
) -> tuple[DicomHeader, bytes]:
    """Read the header of a DICOM file.

    Args:
        data: the file, or its first bytes.
        complete: whether `data` is the complete file.
        vrs: the elements that are kept, `HEADER_VRS` or `MASK_VRS`.

    Returns:
        The header, and the bytes that hold the pixels: `data`, or the inflated data set.

    Raises:
        HeaderContinuesError: the header is longer than `data`, which is not the complete file.
        SourceError: the file is not DICOM, damaged, or truncated.
    """
    if not is_dicom(data):
        raise SourceError("read", "file is not DICOM")
    meta, offset = _file_meta(data, complete)
    syntax = text(meta, TRANSFER_SYNTAX)
    # PS3.5 A.5: deflated bytes have no start that could be inflated alone and be known to hold the header.
    if not complete and (syntax == DEFLATED or offset + 8 > len(data)):
        raise HeaderContinuesError
    if syntax == DEFLATED:
        data, offset = inflate(data[offset:]), 0
    vr = data[offset + 4 : offset + 6]
    # The first element decides, because a file may state another transfer syntax than that of its data set.
    explicit = vr in SHORT_VRS or vr in LONG_VRS
    parser = _ElementParser(data, complete, explicit, syntax != EXPLICIT_BIG, vrs)
    elements: Elements = {}
    if data[offset:] or not complete:
        elements, end = parser.data_set(offset, len(data) if complete else UNDEFINED, 0)
        if parser.pixels is None:
            parser.require(end)
    # A file without meta information names no transfer syntax.
    syntax = syntax or (EXPLICIT_LITTLE if explicit else IMPLICIT_LITTLE)
    return DicomHeader(elements={**meta, **elements}, syntax=syntax, pixels=parser.pixels), data


HEAD_BYTES = 1 << 16
"""First read of a file for its header; a longer header causes a read of the complete file."""
FileStart = tuple[bytes, bool, bool]
"""First bytes of a file, see `read_dicom_start`."""


def parse_file_header(
    files: SourceFiles, path: str, start: FileStart, vrs: Mapping[int, str] = HEADER_VRS
) -> tuple[DicomHeader, bytes]:
    """Read the header of a file from its first bytes, or from the complete file if the header is longer.

    Args:
        files: the source that holds the file.
        path: path of the file.
        start: its first bytes.
        vrs: the elements that are kept, `HEADER_VRS` or `MASK_VRS`.

    Returns:
        As `parse_dicom_header`; the bytes may end before the pixels do.

    Raises:
        SourceError: the file is not DICOM, damaged, or truncated.
    """
    head, complete, _ = start
    try:
        return parse_dicom_header(head, complete, vrs)
    except HeaderContinuesError:
        return parse_dicom_header(read_dicom_file(files, path), vrs=vrs)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskFile(DicomHeader):
    """Header of the file of a mask: its elements that `MASK_VRS` lists.

    Args:
        body: the file, or its inflated data set.
        item_count: number of items in its sequences.
    """

    body: bytes
    item_count: int

    @property
    def parsed_bytes(self) -> int:
        """Memory of the file, of its elements and of its items."""
        return 2 * len(self.body) + ITEM_BYTES * self.item_count


def read_mask_file(files: SourceFiles, path: str, reserve: ReserveMemory = no_memory_limit) -> MaskFile:
    """Parse the file of a mask.

    Args:
        files: the source that holds the file.
        path: path of the file.
        reserve: called with the number of bytes that parsing takes.

    Raises:
        SourceError: the file is not DICOM, damaged or truncated (stage `read`).
    """
    data = read_dicom_file(files, path)
    reserve(2 * len(data) + ITEM_BYTES * data.count(ITEM_START))
    header, body = parse_dicom_header(data, vrs=MASK_VRS)
    return MaskFile(**vars(header), body=body, item_count=body.count(ITEM_START))


def text(elements: Elements, tag: int) -> str:
    """Return a value as text without its padding, "" if absent. Keep it out of messages: it may name a patient."""
    return raw_value(elements, tag).decode("latin-1").strip(" \0")


def raw_value(elements: Elements, tag: int) -> bytes:
    """Return the bytes of an element; b"" if the element is absent."""
    element = elements.get(tag)
    return element.data if isinstance(element, Element) else b""


def has_value(elements: Elements, tag: int) -> bool:
    """Return whether an element is there and not empty."""
    element = elements.get(tag)
    if not isinstance(element, Element):
        return False
    # Texts are padded to an even length (PS3.5 6.2), so that a blank is an empty value. A binary 0 is a number.
    return bool(element.data if element.vr in BINARY_NUMBERS else element.data.strip(b" \0"))


def items(elements: Elements, tag: int) -> tuple[Elements, ...]:
    """Return the items of a sequence; () if the sequence is absent."""
    sequence = elements.get(tag)
    return sequence if isinstance(sequence, tuple) else ()


def declared_character_sets(elements: Elements) -> Sequence[str]:
    """Return the names of the character sets that a data set or an item declares."""
    return [name.strip() for name in text(elements, CHARACTER_SET).split("\\")]


def name_text(elements: Elements, tag: int, character_sets: Sequence[str]) -> str:
    """Return a user-defined name without control characters, decoded with the item's or the file's character sets."""
    from pydicom.charset import convert_encodings, decode_bytes, python_encoding
    from pydicom.valuerep import TEXT_VR_DELIMS

    value = raw_value(elements, tag).rstrip(b" \0")
    declared = declared_character_sets(elements) if CHARACTER_SET in elements else character_sets
    known = [name for name in declared if name in python_encoding]
    # PS3.5 6.1.2.5: with several character sets, escape sequences switch between them.
    if len(known) > 1:
        decoded = decode_bytes(value, convert_encodings(known), TEXT_VR_DELIMS)
    else:
        decoded = value.decode(python_encoding[known[0]] if known else "iso8859", "replace")
    return "".join(character for character in decoded if character.isprintable()).strip()


def numbers(elements: Elements, tag: int, count: int | None) -> tuple[float, ...] | None:
    """Return the values of an element as finite numbers; None if the element is absent or empty.

    Args:
        elements: the elements of a data set or of an item.
        tag: tag of the element.
        count: required number of values; None allows any number.

    Raises:
        SourceError: the values are not finite numbers, or not `count` of them.
    """
    if not has_value(elements, tag):
        return None
    values = [value for block in _number_blocks(elements, tag) for value in block]
    if (count is not None and len(values) != count) or not all(map(math.isfinite, values)):
        expected = "finite numbers" if count is None else f"{count} finite numbers"
        raise damaged_file(f"element {format_tag(tag)} is not {expected}")
    return tuple(values)


def number_array(elements: Elements, tag: int) -> NDArray[np.float64]:
    """Return the values of an element, which may be millions, as finite numbers [count].

    Raises:
        SourceError: the values are not finite numbers.
    """
    values = np.concatenate([np.empty(0), *map(np.array, _number_blocks(elements, tag))])
    if not np.isfinite(values).all():
        raise damaged_file(f"element {format_tag(tag)} is not finite numbers")
    return values


def _number_blocks(elements: Elements, tag: int) -> Iterator[list[float]]:
    """Yield the values of an element in blocks, because Python's numbers take more memory than an array."""
    element = elements.get(tag)
    if not isinstance(element, Element) or not has_value(elements, tag):
        return
    value, start = element.data, 0
    if element.vr in BINARY_NUMBERS:
        form = struct.Struct(("<" if element.little else ">") + BINARY_NUMBERS[element.vr])
        yield [float(one) for (one,) in form.iter_unpack(value[: len(value) // form.size * form.size])]
        return
    while start <= len(value):
        stop = value.find(b"\\", start + _NUMBERS_BLOCK_BYTES)
        stop = stop if stop >= 0 else len(value)
        yield [_decimal(part.strip(b" \0")) for part in value[start:stop].split(b"\\")]
        start = stop + 1


def _decimal(part: bytes) -> float:
    """Return the number of a DS or IS; NaN for other text.

    PS3.5 6.2 allows 16 characters; longer numbers are read too. `float` alone would accept "nan", "1_000" and
    text of any length.
    """
    return float(part) if len(part) <= MAX_NUMBER_CHARACTERS and DECIMAL.fullmatch(part) else math.nan


def finite_number(elements: Elements, tag: int) -> float | None:
    """Return the value of an element as a finite number; None if the element is absent or empty."""
    values = numbers(elements, tag, 1)
    return values[0] if values else None


def integer(elements: Elements, tag: int, default: int | None = None) -> int:
    """Return the value of an element as an integer.

    Raises:
        SourceError: the value is not an integer, or is absent and has no default.
    """
    value = finite_number(elements, tag)
    if value is None:
        if default is None:
            raise damaged_file(f"element {format_tag(tag)} is missing")
        return default
    if not value.is_integer():
        raise damaged_file(f"element {format_tag(tag)} is not an integer")
    return int(value)


def unsigned_bits(elements: Elements, tag: int) -> int | None:
    """Return the first 16 bits of an element as an unsigned number, whatever its VR; None if absent."""
    element = elements.get(tag)
    if not isinstance(element, Element) or len(element.data) < 2:
        return None
    # With implicit VR, US or SS follows from the sign of the pixels (PS3.6). Padding may also be text (DS or IS).
    if element.vr in ("DS", "IS"):
        value = finite_number(elements, tag)
        return None if value is None else int(value) & 0xFFFF
    return int.from_bytes(element.data[:2], "little" if element.little else "big")
