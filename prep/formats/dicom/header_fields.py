"""Fields of one DICOM file's header, with every identifier replaced by a salted hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import (
    Element,
    Elements,
    Header,
    PixelPlace,
    damaged,
    integer,
    items,
    number,
)
from halofeed.prep.formats.dicom.kinds import IMAGE, MASK_KINDS, SECONDARY_CAPTURE, kind_of
from halofeed.prep.formats.volume.reading_options import SeriesPolicy

VolumeAttribute = float | str | tuple[float, ...]
VolumeAttributes = Mapping[str, VolumeAttribute]

IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME = "image type", "acquisition number", "trigger time"
ACQUISITION_TIME, CONTENT_TIME, INSTANCE_NUMBER = "acquisition time", "content time", "instance number"

NUMBERS: Mapping[str, tuple[int, ...]] = {
    "temporal position": (headers.TEMPORAL_POSITION, headers.TEMPORAL_INDEX),
    "temporal offset": (headers.TEMPORAL_OFFSET,),
    "frame reference time": (headers.FRAME_REFERENCE_TIME,),
    "cardiac phase": (headers.CARDIAC_PHASE,),
    TRIGGER_TIME: (headers.TRIGGER_TIME, headers.TRIGGER_DELAY),
    "echo number": (headers.ECHO_NUMBERS,),
    "echo time": (headers.ECHO_TIME, headers.EFFECTIVE_ECHO_TIME),
    "inversion time": (headers.INVERSION_TIME,),
    "flip angle": (headers.FLIP_ANGLE,),
    "b-value": (headers.DIFFUSION_B_VALUE,),
    "gradient direction": (headers.GRADIENT_DIRECTION,),
    "tube voltage": (headers.TUBE_VOLTAGE,),
    ACQUISITION_NUMBER: (headers.FRAME_ACQUISITION_NUMBER, headers.ACQUISITION_NUMBER),
    INSTANCE_NUMBER: (headers.INSTANCE_NUMBER,),
}
"""By name: the elements that say it, the first that a file has."""
TEXTS: Mapping[str, tuple[int, ...]] = {
    IMAGE_TYPE: (headers.FRAME_TYPE, headers.IMAGE_TYPE),
    "complex component": (headers.COMPLEX_COMPONENT,),
    "reconstruction kernel": (headers.KERNEL,),
    "stack": (headers.STACK_ID,),
}
KINDS = (*(name for name in NUMBERS if name != INSTANCE_NUMBER), *TEXTS)
"""Marks whose values are the same for all images of one volume, in the order in which volumes are sorted."""
TIMES = (TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME)
"""Marks whose values may be of single images; then their order alone counts."""
PASSES = frozenset((IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME))
"""Marks that may differ between the passes in which one volume is taken, such as every other slice first."""

DIGITS = re.compile(r"(\d{2})(\d{2})?(\d{2})?(\.\d{1,6})?")


def volume_attributes(groups: Sequence[Elements]) -> VolumeAttributes:
    """The marks of the frame that these elements describe together; the first that has a value counts."""

    def find(tags: Sequence[int]) -> tuple[Elements, int] | None:
        return next(((part, tag) for tag in tags for part in groups if _has_value(part, tag)), None)

    found: dict[str, VolumeAttribute] = {}
    for name, tags in NUMBERS.items():
        if place := find(tags):
            values = _numbers(*place)
            if values is not None:
                found[name] = values if len(values) > 1 else values[0]
    for name, tags in TEXTS.items():
        if place := find(tags):
            found[name] = _sortable(headers.text(*place))
    if place := find((headers.DIMENSION_INDEX,)):
        for number, value in enumerate(_numbers(*place) or (), start=1):
            found[f"dimension {number}"] = value
    moments = {
        ACQUISITION_TIME: (headers.ACQUISITION_DATE, headers.ACQUISITION_TIME),
        CONTENT_TIME: (headers.CONTENT_DATE, headers.CONTENT_TIME),
    }
    for name, (day, time) in moments.items():
        if place := find((time,)):
            days = find((day,))
            seconds = _seconds(headers.text(*place), headers.text(*days) if days else "")
            if seconds is not None:
                found[name] = seconds
    if place := find((headers.FRAME_MOMENT, headers.FRAME_REFERENCE_MOMENT, headers.ACQUISITION_MOMENT)):
        text = headers.text(*place)
        seconds = _seconds(re.split(r"[+-]", text[8:])[0], text[:8])
        if seconds is not None:
            found[ACQUISITION_TIME] = seconds
    return found


def _sortable(text: str) -> str:
    """A text in the order of its words and numbers.

    >>> sorted(["Stack 10", "stack 2"], key=_sortable)
    ['stack 2', 'Stack 10']
    """
    return re.sub(r"\d+", lambda number: number[0].zfill(16), text.upper())


def _has_value(elements: Elements, tag: int) -> bool:
    element = elements.get(tag)
    return isinstance(element, Element) and bool(element.data.strip(b" \0") or element.vr in headers.NUMBERS)


def _numbers(elements: Elements, tag: int) -> tuple[float, ...] | None:
    """Numbers that matter only to tell images apart: None where they are none."""
    try:
        return headers.numbers(elements, tag, None)
    except SourceError:
        return None


def _seconds(time: str, day: str) -> float | None:
    """A time of day as DICOM writes it, with its date, in seconds; None where it is none.

    >>> _seconds("101530.5", ""), _seconds("1015", "00010102"), _seconds("noon", "")
    (36930.5, 123300.0, None)
    """
    parts = DIGITS.fullmatch(time.strip())
    if parts is None:
        return None
    hours, minutes, seconds, fraction = parts.groups()
    total = 3600 * int(hours) + 60 * int(minutes or 0) + int(seconds or 0) + float(fraction or 0)
    try:
        days = date(int(day[:4]), int(day[4:6]), int(day[6:8])).toordinal() - 1
    except ValueError:
        days = 0
    return total + 86400 * days


MODALITIES = frozenset(
    (
        *("BI", "CR", "CT", "DX", "ES", "IVUS", "MG", "MR", "NM", "OCT", "OP", "OT", "PT", "PX", "RF"),
        *("RTIMAGE", "SC", "SEG", "SM", "ST", "US", "XA", "XC"),
    )
)
"""The modalities that are passed on; any other word is not, as nothing says that it is one."""

FRAME_DESCRIPTIONS = (
    *(headers.PLANE_POSITION, headers.PLANE_ORIENTATION, headers.PIXEL_MEASURES),
    *(headers.VALUE_TRANSFORMATION, headers.FRAME_CONTENT, headers.TEMPORAL_GROUP, headers.CARDIAC),
    *(headers.MR_ECHO, headers.MR_DIFFUSION, headers.MR_TIMING),
    *(headers.MR_FRAME_TYPE, headers.CT_FRAME_TYPE, headers.PET_FRAME_TYPE),
)
"""The functional groups of a frame that are read."""
ALWAYS_LOSSY = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (50, 51))
MAYBE_LOSSY = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (81, 91, 203))
"""The transfer syntaxes whose pixels are changed by compression: JPEG; JPEG-LS near-lossless, JPEG 2000 and its
high-throughput form, which can be lossless as well."""
RESCALE_TYPES = frozenset(("OD", "HU", "US", "MGML", "Z_EFF", "ED", "EDW", "HU_MOD", "PCT"))
MOSAIC = "MOSAIC"
LOCALIZER_WORDS = frozenset(("LOCALIZER", "SCOUT", "TOPOGRAM", "SURVEY"))
IMAGE_TYPE_WORDS = LOCALIZER_WORDS | frozenset((MOSAIC, "SCREEN SAVE"))
SURVEY = re.compile(
    r"(?<![a-z])(locali[sz]ers?|scouts?|surveys?|topograms?|surviews?|scanograms?)(?![a-z])", re.IGNORECASE
)
"""What people call the images on which a scan is planned."""
IDENTITY = (
    ("PatientID", "patient", headers.PATIENT_ID),
    ("PatientName", "patient", headers.PATIENT_NAME),
    ("PatientBirthDate", "patient", headers.PATIENT_BIRTH_DATE),
    ("PatientSex", "patient", headers.PATIENT_SEX),
    ("StudyInstanceUID", "study", headers.STUDY_UID),
    ("StudyDate", "study", headers.STUDY_DATE),
    ("AccessionNumber", "study", headers.ACCESSION_NUMBER),
    ("Modality", "series", headers.MODALITY),
    ("SeriesNumber", "series", headers.SERIES_NUMBER),
    ("SeriesDescription", "series", headers.SERIES_DESCRIPTION),
    ("FrameOfReferenceUID", "frame of reference", headers.FRAME_OF_REFERENCE),
    ("Manufacturer", "equipment", headers.MANUFACTURER),
    ("ManufacturerModelName", "equipment", headers.MODEL),
    ("StationName", "equipment", headers.STATION),
    ("DeviceSerialNumber", "equipment", headers.SERIAL_NUMBER),
)
"""What all files of a series share: the name of each attribute, what it describes, and its tag."""
_IDENTITY_BYTES, _LINK_BYTES = 4, 8
_UNCHANGED_BY_SPELLING = re.compile(rb"[\s\0^=]+")
"""Blanks, and what separates the parts of a name, count once, and neither at the end nor in any case of letters."""


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """How stored values become real ones: `slope` * stored + `intercept`; `kind` "" where the file names none."""

    slope: float
    intercept: float
    kind: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where one frame lies in the patient, in DICOM's left, posterior, superior millimeters.

    Args:
        position_mm: of the first pixel's center; None where the file does not say.
        orientation: the directions along a row and along a column; None likewise.
        spacing_mm: between rows and between columns; None likewise.
        thickness_mm: of the slice; None likewise.
        rescale: None where the file has no slope and intercept.
        marks: what else tells frames apart: echo, time, b-value, acquisition.
    """

    position_mm: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing_mm: tuple[float, ...] | None
    thickness_mm: float | None
    rescale: Rescale | None
    marks: VolumeAttributes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PixelFormat:
    """How the pixels of a frame are stored.

    Args:
        padding: the bits of the padding value, and of the other end of its range; None where there is none.
    """

    size: tuple[int, int]
    samples: int
    photometric: str
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    padding: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class HeaderFields:
    """One DICOM file, de-identified.

    Args:
        kind: "image", or what else it is.
        modality: one of `MODALITIES`, or "".
        series, group, frame_of_reference: salted hashes of the series' UID, the patient's id, the frame of
            reference; None where the file has none.
        instance: the hash of its own UID.
        refers_to: the hashes of the series that it refers to.
        images: of a mask: the hashes of the images that it refers to.
        study: the hash of the study's UID.
        chosen: whether modality and description are those that the policy wants.
        image_words: those of `IMAGE_TYPE_WORDS` that its image type has.
        is_survey: whether its description is that of a survey and not one that the policy asks for.
        lookup_table: whether values go through a modality look-up table.
        format, pixels: None where it is no image.
        syntax: the transfer syntax.
        lossy: whether the pixels have ever been compressed in a way that changes them.
        frames: one or more.
        packed: whether the whole file is compressed by gzip.
        tiles: of a mosaic: how many of its frames lie side by side in the one image that is stored.
        file_bytes: of the file as it lies there; None where nobody knows.
        header_checksum: of the bytes before the pixels, see `halofeed.prep.formats.dicom.headers.body_of`.
        stamp: of the file before it was read, see `halofeed.prep.sources.files.settled_stamp`.
        identity: a short hash of each attribute of `IDENTITY`, which compares files of one series only; b"" where the
            file has no value.
        link: what stands for the UIDs of its series and its frame of reference, see `linked`.
        uid: what stands for its own UID.
    """

    kind: str
    modality: str
    series: str | None
    group: str | None
    frame_of_reference: str | None
    instance: str | None
    refers_to: tuple[str, ...]
    images: frozenset[str]
    study: str | None
    chosen: bool
    image_words: tuple[str, ...]
    is_survey: bool
    lookup_table: bool
    format: PixelFormat | None
    pixels: PixelPlace | None
    syntax: str
    lossy: bool
    frames: tuple[Frame, ...]
    packed: bool = False
    tiles: int | None = None
    file_bytes: int | None = None
    header_checksum: int = 0
    stamp: tuple[int, ...] | None = None
    identity: tuple[bytes, ...] = ()
    link: tuple[bytes, ...] = (b"", b"")
    uid: bytes = b""

    @property
    def stored(self) -> PixelFormat:
        """How the pixels of an image are stored."""
        assert self.format is not None
        return self.format


def _rescale(elements: Elements) -> Rescale | None:
    slope, intercept = number(elements, headers.SLOPE), number(elements, headers.INTERCEPT)
    if slope is None or intercept is None:
        return None
    kind = headers.text(elements, headers.RESCALE_TYPE).upper()
    known = kind in RESCALE_TYPES or not kind
    return Rescale(slope=slope, intercept=intercept, kind=kind if known else "other")


def _frame(groups: tuple[Elements, ...]) -> Frame:
    """The frame that these elements describe together; the first that has a value counts."""

    def first(tag: int) -> Elements:
        return next((elements for elements in groups if tag in elements), {})

    def numbers(tag: int, count: int) -> tuple[float, ...] | None:
        return headers.numbers(first(tag), tag, count)

    spacing = number(first(headers.SPACING_BETWEEN_SLICES), headers.SPACING_BETWEEN_SLICES)
    thickness = number(first(headers.SLICE_THICKNESS), headers.SLICE_THICKNESS)
    rescale_tag = headers.SLOPE if first(headers.SLOPE) else headers.INTERCEPT
    return Frame(
        position_mm=numbers(headers.POSITION, 3),
        orientation=numbers(headers.ORIENTATION, 6),
        spacing_mm=numbers(headers.PIXEL_SPACING, 2),
        thickness_mm=abs(thickness or spacing or 0.0) or None,
        rescale=_rescale(first(rescale_tag)),
        marks=volume_attributes(groups),
    )


def _flat(groups: Elements) -> tuple[Elements, ...]:
    """The functional groups of one item: each is a sequence of one item."""
    found = [item for tag in FRAME_DESCRIPTIONS for item in items(groups, tag)[:1]]
    directions = [part for item in found for part in items(item, headers.GRADIENT_DIRECTIONS)[:1]]
    return (*found, *directions)


def _frames(elements: Elements) -> tuple[Frame, ...]:
    count = integer(elements, headers.FRAMES, 1)
    per_frame = items(elements, headers.FRAME_GROUPS)
    shared = [group for item in items(elements, headers.SHARED_GROUPS)[:1] for group in _flat(item)]
    if not per_frame and count == 1:
        return (_frame((*shared, elements)),)
    if not per_frame and not shared:
        # Frames that nothing places: one stands for all, as the file is no volume anyway.
        return (replace(_frame((elements,)), position_mm=None),)
    if len(per_frame) != count:
        raise damaged(f"{count} frames, but {len(per_frame)} descriptions of frames")
    return tuple(_frame((*_flat(item), *shared, elements)) for item in per_frame)


def _format(elements: Elements) -> PixelFormat:
    allocated = integer(elements, headers.BITS_ALLOCATED)
    stored = integer(elements, headers.BITS_STORED, allocated)
    high = integer(elements, headers.HIGH_BIT, stored - 1)
    if not 1 <= stored <= high + 1 <= allocated <= 64:
        raise damaged(f"{stored} bits stored up to bit {high} of {allocated} allocated")
    padding, limit = (headers.bits(elements, tag) for tag in (headers.PADDING_VALUE, headers.PADDING_LIMIT))
    rows, columns = integer(elements, headers.ROWS), integer(elements, headers.COLUMNS)
    if rows < 1 or columns < 1:
        raise damaged(f"an image of {rows} x {columns} pixels")
    photometric = headers.text(elements, headers.PHOTOMETRIC)
    return PixelFormat(
        size=(rows, columns),
        samples=integer(elements, headers.SAMPLES, 1),
        photometric=photometric if photometric in ("MONOCHROME1", "MONOCHROME2") else "color",
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=high,
        signed=integer(elements, headers.SIGNED, 0) == 1,
        padding=None if padding is None else (padding, padding if limit is None else limit),
    )


def _references(elements: Elements) -> tuple[Elements, ...]:
    """What a segmentation or a structure set says of each series that it refers to."""
    series = list(items(elements, headers.REFERENCED_SERIES))
    for frame in items(elements, headers.RT_FRAMES):
        for study in items(frame, headers.RT_STUDIES):
            series.extend(items(study, headers.RT_SERIES))
    return tuple(series)


def _referenced_images(series: tuple[Elements, ...]) -> Iterator[bytes]:
    for item in series:
        for tag in (headers.REFERENCED_INSTANCES, headers.CONTOUR_IMAGES):
            for image in items(item, tag):
                yield headers.identifier(image, headers.REFERENCED_INSTANCE)


def _is_lossy(said: str, syntax: str) -> bool:
    """Whether pixels are not those of the scanner: the header says so, also of pixels that were unpacked since."""
    if syntax in ALWAYS_LOSSY or said == "01":
        return True
    return syntax in MAYBE_LOSSY and said != "00"


@lru_cache(maxsize=1024)
def _identity(series: bytes, values: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The hashes of the values of `IDENTITY`. The series' UID is mixed in, so that no list of likely dates or names
    finds a value. Files of one series share the result, as their facts are kept in memory."""
    found = []
    for (name, _, _), data in zip(IDENTITY, values, strict=False):
        value = _UNCHANGED_BY_SPELLING.sub(b" ", data).strip().upper()
        digest = hashlib.sha256(b"\0".join((series, name.encode(), value))).digest()
        found.append(digest[:_IDENTITY_BYTES] if value else b"")
    return tuple(found)


@lru_cache(maxsize=1024)
def linked(uid: bytes) -> bytes:
    """What stands for a UID where a mask is compared with its scan; b"" for none.

    >>> linked(b"1.2 ") == linked(b"1.2"), linked(b"")
    (True, b'')
    """
    stripped = uid.strip(b" \0")
    return hashlib.sha256(stripped).digest()[:_LINK_BYTES] if stripped else b""


def header_fields(header: Header, policy: SeriesPolicy) -> HeaderFields:
    """De-identify a header.

    Raises:
        SourceError: it contradicts itself, or lacks what an image must say.
    """
    elements = header.elements
    modality = headers.text(elements, headers.MODALITY)
    classes = (headers.text(elements, headers.SOP_CLASS), headers.text(elements, headers.MEDIA_SOP_CLASS))
    kind = kind_of(classes, modality, header.pixels is not None)
    image_type = headers.text(elements, headers.IMAGE_TYPE).upper()
    references = _references(elements)
    keys = (policy.key(headers.identifier(item, headers.SERIES_UID)) for item in references)
    images = map(policy.key, _referenced_images(references)) if kind in MASK_KINDS else ()
    if kind == SECONDARY_CAPTURE and policy.secondary_captures == "take" and header.pixels is not None:
        kind = IMAGE
    is_image = kind == IMAGE
    # Descriptions are compared here and not kept: people write names into them.
    description = headers.text(elements, headers.SERIES_DESCRIPTION)
    series = (
        b"" if policy.identity == "folder" else headers.identifier(elements, headers.SERIES_UID).strip(b" \0")
    )
    asked_for = policy.asks_for(description)
    return HeaderFields(
        kind=kind,
        modality=modality if modality in MODALITIES else "",
        series=policy.key(headers.identifier(elements, headers.SERIES_UID)),
        group=policy.key(headers.identifier(elements, headers.PATIENT_ID)),
        frame_of_reference=policy.key(headers.identifier(elements, headers.FRAME_OF_REFERENCE)),
        instance=policy.key(headers.identifier(elements, headers.SOP_INSTANCE)),
        refers_to=tuple(dict.fromkeys(key for key in keys if key)),
        images=frozenset(key for key in images if key),
        study=policy.key(headers.identifier(elements, headers.STUDY_UID)),
        chosen=(not policy.modalities or modality in policy.modalities)
        and (policy.description is None or asked_for),
        is_survey=not asked_for and SURVEY.search(description) is not None,
        image_words=tuple(sorted(IMAGE_TYPE_WORDS & {part.strip() for part in image_type.split("\\")})),
        lookup_table=bool(items(elements, headers.MODALITY_LUT)),
        format=_format(elements) if is_image else None,
        pixels=header.pixels if is_image else None,
        syntax=header.syntax,
        lossy=_is_lossy(headers.text(elements, headers.LOSSY_COMPRESSION), header.syntax),
        frames=_frames(elements) if is_image else (),
        identity=_identity(series, tuple(headers.identifier(elements, tag) for _, _, tag in IDENTITY)),
        link=tuple(
            linked(headers.identifier(elements, tag))
            for tag in (headers.SERIES_UID, headers.FRAME_OF_REFERENCE)
        ),
        uid=linked(headers.identifier(elements, headers.SOP_INSTANCE)),
    )
