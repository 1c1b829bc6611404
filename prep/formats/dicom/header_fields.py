"""De-identified header of one DICOM file: every identifier is replaced by a salted hash.

`header_fields` is the entry point. `DicomFrame.attributes` holds what distinguishes the images of one series, such as
echo, b-value and time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache

import numpy as np

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import (
    DicomHeader,
    Elements,
    PixelLocation,
    damaged_file,
    finite_number,
    integer,
    items,
    parse_dicom_header,
)
from halofeed.prep.formats.dicom.real_world_values import Rescale, read_mappings
from halofeed.prep.formats.dicom.sop_classes import (
    IMAGE,
    MASK_KINDS,
    SECONDARY_CAPTURE,
    VOLUME_CLASSES,
    object_kind,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

VolumeAttribute = float | str | tuple[float, ...]
VolumeAttributes = Mapping[str, VolumeAttribute]
SlicePlace = tuple[tuple[float, ...], tuple[float, ...], Mapping[str, float]]
"""Position in mm, orientation, and what distinguishes the volume of a slice from others."""

RECONSTRUCTED = ("RECON TOMO", "RECON GATED TOMO")
NUCLEAR_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("TOMO", "GATED TOMO"), "nuclear medicine projections"),
    **dict.fromkeys(("STATIC", "WHOLE BODY"), "nuclear medicine planar image"),
    **dict.fromkeys(("DYNAMIC", "GATED"), "nuclear medicine planar time series"),
}
"""Kinds of the images that hold no slices, by the third word of the image type."""
NUCLEAR_VECTORS: Mapping[str, int] = {
    "energy window": headers.ENERGY_WINDOW_VECTOR,
    "R-R interval": headers.RR_INTERVAL_VECTOR,
    "time slot": headers.TIME_SLOT_VECTOR,
}
"""What distinguishes the volumes of one image: the elements with a number per frame."""

IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME = "image type", "acquisition number", "trigger time"
ACQUISITION_TIME, CONTENT_TIME, INSTANCE_NUMBER = "acquisition time", "content time", "instance number"

NUMERIC_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {
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
"""Numeric attributes: for each name the elements that may hold it; the first with a value counts."""
TEXT_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {
    IMAGE_TYPE: (headers.FRAME_TYPE, headers.IMAGE_TYPE),
    "complex component": (headers.COMPLEX_COMPONENT,),
    "reconstruction kernel": (headers.KERNEL,),
    "stack": (headers.STACK_ID,),
}
VOLUME_ATTRIBUTES = (
    *(name for name in NUMERIC_ATTRIBUTES if name != INSTANCE_NUMBER),
    *(*TEXT_ATTRIBUTES, *NUCLEAR_VECTORS),
)
"""Attributes whose values are the same for all images of one volume, in the order in which volumes are sorted."""
TIMES = (TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME)
"""Attributes whose values may differ between the images of one volume; then only their order counts."""
PASSES = frozenset((IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME))
"""Attributes that may differ between the passes of one acquisition, such as first all odd and then all even slices."""

MOMENTS = (headers.FRAME_MOMENT, headers.FRAME_REFERENCE_MOMENT, headers.ACQUISITION_MOMENT)
"""Elements that hold the date and time of a frame, the first with a value counts."""
TIME_OF_DAY = re.compile(r"(\d{2})(\d{2})?(\d{2})?(\.\d{1,6})?")

SLICE_MODALITIES = frozenset(("CT", "MR", "PT"))
"""Modalities whose images are slices at a position in the patient."""
MODALITIES = frozenset(
    (
        *("BI", "CR", "CT", "DX", "ES", "IVUS", "MG", "MR", "NM", "OCT", "OP", "OT", "PT", "PX", "RF"),
        *("RTIMAGE", "SC", "SEG", "SM", "ST", "US", "XA", "XC"),
    )
)
"""The modalities that are kept; another word might not be a modality but text that identifies someone."""

FRAME_DESCRIPTIONS = (
    *(headers.PLANE_POSITION, headers.PLANE_ORIENTATION, headers.PIXEL_MEASURES),
    *(headers.VALUE_TRANSFORMATION, headers.FRAME_CONTENT, headers.TEMPORAL_GROUP, headers.CARDIAC),
    *(headers.MR_ECHO, headers.MR_DIFFUSION, headers.MR_TIMING),
    *(headers.MR_FRAME_TYPE, headers.CT_FRAME_TYPE, headers.PET_FRAME_TYPE),
)
"""The functional groups of a frame that are read."""
ALWAYS_LOSSY = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (50, 51))
MAYBE_LOSSY = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (81, 91, 203))
"""Transfer syntaxes of lossy compression: JPEG always; JPEG-LS near-lossless, JPEG 2000 and HTJ2K maybe."""
RESCALE_TYPES = frozenset(("OD", "HU", "US", "MGML", "Z_EFF", "ED", "EDW", "HU_MOD", "PCT"))
MOSAIC = "MOSAIC"
LOCALIZER_WORDS = frozenset(("LOCALIZER", "SCOUT", "TOPOGRAM", "SURVEY"))
IMAGE_TYPE_WORDS = LOCALIZER_WORDS | NUCLEAR_KINDS.keys() | {MOSAIC, "SCREEN SAVE"}
SURVEY = re.compile(
    r"(?<![a-z])(locali[sz]ers?|scouts?|surveys?|topograms?|surviews?|scanograms?)(?![a-z])", re.IGNORECASE
)
"""Words for the images on which a scan is planned."""
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
"""The attributes that all files of a series share: name, the entity that it describes, and tag."""
_IDENTITY_BYTES, _UID_BYTES = 4, 8
_SEPARATORS = re.compile(rb"[\s\0^=]+")
"""Whitespace and the separators of name components, of which `_identity` ignores repetitions."""


@dataclass(frozen=True, kw_only=True)
class DicomFrame:
    """Geometry and attributes of one frame, in DICOM's millimeters to the left, posterior, superior.

    Every field except `attributes` is None if the file does not state it.

    Args:
        position_mm: center of the first pixel.
        orientation: unit vectors along a row and along a column.
        spacing_mm: distance between rows and distance between columns.
        thickness_mm: thickness of the slice.
        rescale: slope and intercept.
        mappings: real world value mappings.
        attributes: values that distinguish frames, such as echo, time, b-value and acquisition.
    """

    position_mm: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing_mm: tuple[float, ...] | None
    thickness_mm: float | None
    rescale: Rescale | None
    attributes: VolumeAttributes = field(default_factory=dict)
    mappings: tuple[Rescale, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PixelFormat:
    """Storage format of the pixels of a frame.

    Args:
        size: (rows, columns).
        samples: values per pixel.
        photometric: "MONOCHROME1", "MONOCHROME2" or "color".
        bits_allocated: bits of the word that holds a value.
        bits_stored: bits of the word that the value uses.
        high_bit: index of the highest bit that the value uses.
        signed: whether the values are signed.
        padding: bits of the padding value and of the other end of its range; None if the file has no padding.
        is_float: whether the words are floating-point numbers of 32 or 64 bits, as in parametric maps.
    """

    size: tuple[int, int]
    samples: int
    photometric: str
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    padding: tuple[int, int] | None
    is_float: bool = False

    @property
    def word_bytes(self) -> int:
        """Bytes of a decoded word; words of one bit take a byte."""
        return (self.bits_allocated + 7) // 8


@dataclass(frozen=True, kw_only=True)
class HeaderFields:
    """De-identified header of one DICOM file.

    Hashes are salted by the policy, and None if the file lacks the identifier.

    Args:
        kind: "image", or the kind of another object, see `halofeed.prep.formats.dicom.sop_classes`.
        modality: one of `MODALITIES`, or "".
        series: hash of the series' UID.
        group: hash of the patient's id.
        frame_of_reference: hash of the frame of reference's UID.
        instance: hash of the file's own UID.
        refers_to: hashes of the series that the file refers to.
        images: hashes of the images that a mask refers to.
        study: hash of the study's UID.
        chosen: whether the policy selects the modality and the description.
        image_words: the words of `IMAGE_TYPE_WORDS` in the image type.
        is_survey: whether the description names a survey that the policy does not ask for.
        lookup_table: whether the file has a modality look-up table.
        format: storage format of the pixels; None if the file is not an image.
        pixels: location of the pixels; None if the file is not an image.
        syntax: UID of the transfer syntax.
        lossy: whether the pixels have ever been compressed lossily.
        frames: one or more frames; () if the file is not an image.
        packed: whether the file is compressed with gzip.
        tiles: frames per row and per column of a mosaic; None if the image is not a mosaic.
        file_bytes: size of the stored file; None if unknown.
        header_checksum: checksum of the bytes before the pixels, see `headers.checksum_before`.
        stamp: stamp of the file before it was read, see `halofeed.prep.sources.files.settled_stamp`.
        is_flat: whether the file holds pixels, none of them at a position in the patient, and is no mask.
        identity: short hash of each attribute of `IDENTITY`, b"" if absent. It compares files of one series only.
        series_digest, frame_digest, instance_digest: digests of the UIDs of the series, the frame of reference and
            the file, see `uid_digest`.
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
    pixels: PixelLocation | None
    syntax: str
    lossy: bool
    frames: tuple[DicomFrame, ...]
    packed: bool = False
    tiles: int | None = None
    file_bytes: int | None = None
    header_checksum: int = 0
    stamp: tuple[int, ...] | None = None
    is_flat: bool = False
    identity: tuple[bytes, ...] = ()
    series_digest: bytes = b""
    frame_digest: bytes = b""
    instance_digest: bytes = b""

    @property
    def stored(self) -> PixelFormat:
        """Storage format of the pixels of an image."""
        assert self.format is not None
        return self.format


def header_fields(header: DicomHeader, policy: SeriesPolicy) -> HeaderFields:
    """De-identify a header.

    Raises:
        SourceError: the header contradicts itself, or lacks an element that an image needs.
    """
    elements = header.elements

    def hashed(tag: int) -> str | None:
        return policy.key(headers.raw_value(elements, tag))

    def digest(tag: int) -> bytes:
        return uid_digest(headers.raw_value(elements, tag))

    modality = headers.text(elements, headers.MODALITY)
    kind = _kind_of_object(header, modality, policy)
    refers_to, images = _references(elements, kind, policy)
    # Descriptions are compared here and not kept: people write names into them.
    description = headers.text(elements, headers.SERIES_DESCRIPTION)
    asked_for = policy.asks_for(description)
    stored, pixels, frames = _image(header) if kind == IMAGE else (None, None, ())
    return HeaderFields(
        kind=kind,
        modality=modality if modality in MODALITIES else "",
        series=hashed(headers.SERIES_UID),
        group=hashed(headers.PATIENT_ID),
        frame_of_reference=hashed(headers.FRAME_OF_REFERENCE),
        instance=hashed(headers.SOP_INSTANCE),
        refers_to=refers_to,
        images=images,
        study=hashed(headers.STUDY_UID),
        chosen=_is_chosen(modality, asked_for, policy),
        is_survey=not asked_for and SURVEY.search(description) is not None,
        image_words=_image_words(elements),
        lookup_table=bool(items(elements, headers.MODALITY_LUT)),
        format=stored,
        pixels=pixels,
        syntax=header.syntax,
        lossy=_is_lossy(headers.text(elements, headers.LOSSY_COMPRESSION), header.syntax),
        frames=frames,
        is_flat=header.pixels is not None and kind not in MASK_KINDS and _is_flat(elements),
        identity=_identity_of(elements, policy),
        series_digest=digest(headers.SERIES_UID),
        frame_digest=digest(headers.FRAME_OF_REFERENCE),
        instance_digest=digest(headers.SOP_INSTANCE),
    )


def _kind_of_object(header: DicomHeader, modality: str, policy: SeriesPolicy) -> str:
    """Return "image", or the kind of another object; a secondary capture is an image if the policy takes these."""
    elements, has_pixels = header.elements, header.pixels is not None
    classes = (headers.text(elements, headers.SOP_CLASS), headers.text(elements, headers.MEDIA_SOP_CLASS))
    kind = object_kind(classes, modality, has_pixels)
    # A volume may be stored as secondary captures, but these are usually screenshots, so the user decides.
    is_taken = kind == SECONDARY_CAPTURE and policy.secondary_captures == "take" and has_pixels
    return IMAGE if is_taken else kind


def _references(
    elements: Elements, kind: str, policy: SeriesPolicy
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the hashes of the series that a file refers to, and of the images that a mask refers to."""
    described = referenced_series(elements)
    series = (policy.key(headers.raw_value(item, headers.SERIES_UID)) for item in described)
    # Other objects, such as reports, may list thousands of images, which nothing here needs.
    images = map(policy.key, referenced_images(described)) if kind in MASK_KINDS else ()
    return tuple(dict.fromkeys(key for key in series if key)), frozenset(key for key in images if key)


def _is_chosen(modality: str, asked_for: bool, policy: SeriesPolicy) -> bool:
    """Return whether the policy selects the modality and the description."""
    if policy.modalities and modality not in policy.modalities:
        return False
    return policy.description is None or asked_for


def _image_words(elements: Elements) -> tuple[str, ...]:
    """Return the words of `IMAGE_TYPE_WORDS` in the image type, whose values a backslash separates (PS3.5 6.2)."""
    words = headers.text(elements, headers.IMAGE_TYPE).upper().split("\\")
    return tuple(sorted(IMAGE_TYPE_WORDS & {word.strip() for word in words}))


def _image(header: DicomHeader) -> tuple[PixelFormat, PixelLocation | None, tuple[DicomFrame, ...]]:
    """Return the storage format of an image's pixels, their location, and the frames."""
    return pixel_format(header.elements, header.pixels), header.pixels, _frames(header.elements)


def _identity_of(elements: Elements, policy: SeriesPolicy) -> tuple[bytes, ...]:
    """Return the hashes of the attributes of `IDENTITY`; files that one folder makes a series share no series' UID."""
    series = headers.raw_value(elements, headers.SERIES_UID).strip(b" \0")
    salt = b"" if policy.identity == "folder" else series
    return _identity(salt, tuple(headers.raw_value(elements, tag) for _, _, tag in IDENTITY))


def place_of_pixels(head: bytes) -> bool | None:
    """Return whether a file holds pixels that belong at a position in the patient; None if it holds none.

    A CT, MR or PET image without a position has lost it: their types require one (PS3.3 C.7.6.2).

    Args:
        head: first bytes of the file.

    Raises:
        HeaderContinuesError: the header is longer.
        SourceError: the file is damaged.
    """
    elements = parse_dicom_header(head, False)[0].elements
    # Reports and structure sets have no rows of pixels.
    if headers.ROWS not in elements:
        return None
    classes = {headers.text(elements, tag) for tag in (headers.SOP_CLASS, headers.MEDIA_SOP_CLASS)}
    has_slices = headers.text(elements, headers.MODALITY) in SLICE_MODALITIES or bool(
        classes & VOLUME_CLASSES
    )
    return has_slices or not _is_flat(elements)


def _is_flat(elements: Elements) -> bool:
    """Return whether no frame of an object has a position.

    Source: PS3.3 C.7.6.2 (slices), C.7.6.16 (frames), C.8.4.11 (detectors).
    """
    placed = (headers.SHARED_GROUPS, headers.FRAME_GROUPS, headers.DETECTOR_INFORMATION)
    has_groups = any(items(elements, tag) for tag in placed)
    return not has_groups and headers.numbers(elements, headers.POSITION, 3) is None


def _rescale(elements: Elements) -> Rescale | None:
    slope, intercept = finite_number(elements, headers.SLOPE), finite_number(elements, headers.INTERCEPT)
    # PS3.3 C.11.1: slope and intercept come together; one alone is no equation.
    if slope is None or intercept is None:
        return None
    # A type that the standard does not define (C.11.1.1.2) might be text that identifies someone.
    kind = headers.text(elements, headers.RESCALE_TYPE).upper()
    known = kind in RESCALE_TYPES or not kind
    return Rescale(slope=slope, intercept=intercept, kind=kind if known else "other")


def _frame(groups: tuple[Elements, ...]) -> DicomFrame:
    """Return the frame that the groups describe together; the first group with a value counts."""

    def first(tag: int) -> Elements:
        return next((elements for elements in groups if tag in elements), {})

    def numbers(tag: int, count: int) -> tuple[float, ...] | None:
        return headers.numbers(first(tag), tag, count)

    # Only single slices and overlaps need the thickness. The spacing replaces a missing one; in NM it may be negative.
    spacing = finite_number(first(headers.SPACING_BETWEEN_SLICES), headers.SPACING_BETWEEN_SLICES)
    thickness = finite_number(first(headers.SLICE_THICKNESS), headers.SLICE_THICKNESS)
    rescale_tag = headers.SLOPE if first(headers.SLOPE) else headers.INTERCEPT
    return DicomFrame(
        position_mm=numbers(headers.POSITION, 3),
        orientation=numbers(headers.ORIENTATION, 6),
        spacing_mm=numbers(headers.PIXEL_SPACING, 2),
        thickness_mm=abs(thickness or spacing or 0.0) or None,
        rescale=_rescale(first(rescale_tag)),
        attributes=volume_attributes(groups),
    )


def _flatten(groups: Elements) -> tuple[Elements, ...]:
    """Return the functional groups of one frame, each of which is a sequence of one item."""
    described = [item for tag in FRAME_DESCRIPTIONS for item in items(groups, tag)[:1]]
    directions = [part for item in described for part in items(item, headers.GRADIENT_DIRECTIONS)[:1]]
    return (*described, *directions)


def _frames(elements: Elements) -> tuple[DicomFrame, ...]:
    """Return the frames, each with its real world value mappings, which equal ones share."""
    is_signed = integer(elements, headers.SIGNED, 0) == 1
    per_frame, shared = items(elements, headers.FRAME_GROUPS), items(elements, headers.SHARED_GROUPS)[:1]
    # The mappings are a group of a frame or of all frames (PS3.3 C.7.6.16.2.11), or at the top (C.7.6.1, C.8.4.9).
    common = read_mappings((*shared, elements), is_signed)
    frames = _placed_frames(elements)
    if not common and not any(headers.REAL_WORLD_MAPPINGS in item for item in per_frame):
        return frames
    own = [read_mappings((item,), is_signed) or common for item in per_frame]
    known: dict[tuple[Rescale, ...], tuple[Rescale, ...]] = {}
    # Thousands of frames mostly have equal mappings; shared tuples keep the listing small.
    own = [known.setdefault(one, one) for one in own]
    mappings = own if len(own) == len(frames) else [common] * len(frames)
    return tuple(replace(frame, mappings=one) for frame, one in zip(frames, mappings, strict=True))


def _placed_frames(elements: Elements) -> tuple[DicomFrame, ...]:
    count = integer(elements, headers.FRAMES, 1)
    per_frame = items(elements, headers.FRAME_GROUPS)
    shared = [group for item in items(elements, headers.SHARED_GROUPS)[:1] for group in _flatten(item)]
    if not per_frame and not shared:
        return _frames_without_groups(elements, count)
    if not per_frame and count == 1:
        return (_frame((*shared, elements)),)
    # PS3.3 C.7.6.16: one item per frame, also if all items are empty.
    if len(per_frame) != count:
        raise damaged_file(f"{plural(count, 'frame')}, but {plural(len(per_frame), 'description')} of frames")
    return tuple(_frame((*_flatten(item), *shared, elements)) for item in per_frame)


def _frames_without_groups(elements: Elements, count: int) -> tuple[DicomFrame, ...]:
    """Return the frames of a file without functional groups: a single slice, SPECT, or frames without positions."""
    places, frame = _place_nuclear_slices(elements, count), _frame((elements,))
    if places is not None:
        return tuple(
            replace(frame, position_mm=at, orientation=to, attributes={**frame.attributes, **volume})
            for at, to, volume in places
        )
    if count == 1:
        return (frame,)
    # The frames have no positions, so the file is not a volume: one frame is enough to describe it.
    return (replace(frame, position_mm=None),)


def _place_nuclear_slices(elements: Elements, count: int) -> list[SlicePlace] | None:
    """Return the place of each frame of a reconstructed image of Nuclear Medicine (SPECT); None if it has none.

        slice 1 ── Spacing Between Slices ──> slice 2 ──> ...    along row direction x column direction

    A positive spacing runs along the cross product of the directions, a negative one against it. Source: DICOM PS3.3
    C.8.4.8 (multi-frame), C.8.4.9 (image type), C.8.4.11 (detector), C.8.4.15 (reconstruction).

    Args:
        elements: the elements of the file.
        count: number of frames.

    Raises:
        SourceError: an element is damaged, or a vector has not one number per frame.
    """
    image_type = headers.text(elements, headers.IMAGE_TYPE).upper().split("\\")
    detectors = headers.items(elements, headers.DETECTOR_INFORMATION)
    # Other images show projections. Several detectors would place the first slice several times.
    if set(map(str.strip, image_type)).isdisjoint(RECONSTRUCTED) or len(detectors) > 1:
        return None
    # The position is that of the detector (PS3.3 C.8.4.11), or else at the top of the file.
    position = _first_numbers((*detectors, elements), headers.POSITION, 3)
    orientation = _first_numbers((*detectors, elements), headers.ORIENTATION, 6)
    step_mm = headers.finite_number(elements, headers.SPACING_BETWEEN_SLICES)
    numbers = headers.numbers(elements, headers.SLICE_VECTOR, None) or tuple(map(float, range(1, count + 1)))
    if len(numbers) != count:
        raise damaged_file(f"a slice vector of {len(numbers)} numbers for {count} frames")
    # The position is that of the first frame, so that this has to be slice 1.
    if position is None or orientation is None or not step_mm or numbers[0] != 1:
        return None
    normal = np.cross(orientation[:3], orientation[3:])
    volumes = _nuclear_volumes(elements, count)
    return [
        (tuple((np.array(position) + (number - 1) * step_mm * normal).tolist()), orientation, volume)
        for number, volume in zip(numbers, volumes, strict=True)
    ]


def _first_numbers(groups: Iterable[Elements], tag: int, count: int) -> tuple[float, ...] | None:
    """Return the numbers of an element from the first of `groups` that has it; None if none has it."""
    return next((found for one in groups if (found := headers.numbers(one, tag, count))), None)


def _nuclear_volumes(elements: Elements, count: int) -> list[Mapping[str, float]]:
    """Return for each frame its number in each vector of `NUCLEAR_VECTORS` that has several values."""
    several: dict[str, tuple[float, ...]] = {}
    for name, tag in NUCLEAR_VECTORS.items():
        values = headers.numbers(elements, tag, None) or ()
        # Equal numbers distinguish nothing, however many of them a program writes.
        if len(set(values)) <= 1:
            continue
        if len(values) != count:
            raise damaged_file(f"a vector of {len(values)} {name} numbers for {count} frames")
        several[name] = values
    return [{name: values[at] for name, values in several.items()} for at in range(count)]


def pixel_format(elements: Elements, pixels: headers.PixelLocation | None) -> PixelFormat:
    """Return the storage format of the pixels that a header states.

    Raises:
        SourceError: an element is missing, or contradicts another.
    """
    allocated = integer(elements, headers.BITS_ALLOCATED)
    stored = integer(elements, headers.BITS_STORED, allocated)
    high = integer(elements, headers.HIGH_BIT, stored - 1)
    # PS3.5 8.1.1: the value ends at High Bit, within the word.
    if not 1 <= stored <= high + 1 <= allocated <= 64:
        raise damaged_file(f"{stored} bits stored up to bit {high} of {allocated} allocated")
    padding = _padding(elements)
    rows, columns = integer(elements, headers.ROWS), integer(elements, headers.COLUMNS)
    if rows < 1 or columns < 1:
        raise damaged_file(f"an image of {rows} x {columns} pixels")
    photometric = headers.text(elements, headers.PHOTOMETRIC)
    # PS3.3 C.7.6.24 and C.7.6.25: Float Pixel Data has 32 bits, Double Float Pixel Data has 64.
    is_float = pixels is not None and (pixels.kind, allocated) in (("float", 32), ("double", 64))
    return PixelFormat(
        size=(rows, columns),
        samples=integer(elements, headers.SAMPLES, 1),
        photometric=photometric if photometric in ("MONOCHROME1", "MONOCHROME2") else "color",
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=high,
        signed=integer(elements, headers.SIGNED, 0) == 1,
        padding=None if is_float else padding,
        # `check_pixels` refuses a map with padding, which is a float value that nothing here compares.
        is_float=is_float
        and not elements.keys() & {headers.FLOAT_PADDING_VALUE, headers.DOUBLE_PADDING_VALUE},
    )


def _padding(elements: Elements) -> tuple[int, int] | None:
    """Return the bits of both ends of the range of padding values (PS3.3 C.7.5.1.1.2); None without padding."""
    padding, limit = (
        headers.unsigned_bits(elements, tag) for tag in (headers.PADDING_VALUE, headers.PADDING_LIMIT)
    )
    return None if padding is None else (padding, padding if limit is None else limit)


def referenced_series(elements: Elements) -> list[Elements]:
    """Return the descriptions of the series that a segmentation or a structure set refers to."""
    series = list(items(elements, headers.REFERENCED_SERIES))
    for frame in items(elements, headers.RT_FRAMES):
        for study in items(frame, headers.RT_STUDIES):
            series.extend(items(study, headers.RT_SERIES))
    return series


def referenced_images(parents: Iterable[Elements], *tags: int) -> Iterator[bytes]:
    """Yield the UIDs of the images that items refer to in sequences, by default in those of a series."""
    for parent in parents:
        for tag in tags or (headers.REFERENCED_INSTANCES, headers.CONTOUR_IMAGES):
            for image in items(parent, tag):
                yield headers.raw_value(image, headers.REFERENCED_INSTANCE)


def _is_lossy(said: str, syntax: str) -> bool:
    """Return whether the pixels were ever compressed lossily; `said` also covers files that were unpacked since."""
    # PS3.3 C.7.6.1.1.5: once 01, the flag stays, also in a copy that was decompressed.
    if syntax in ALWAYS_LOSSY or said == "01":
        return True
    # Only 00 tells that a syntax that may be lossy was used without loss; an absent flag does not.
    return syntax in MAYBE_LOSSY and said != "00"


@lru_cache(maxsize=1024)
def _identity(series: bytes, values: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the hashes of the values of `IDENTITY`.

    The series' UID acts as a salt, so that a list of likely dates or names does not reveal a value. The cache lets the
    files of one series share one tuple, because all header fields of a series are in memory together.
    """
    hashes = []
    for (name, _, _), data in zip(IDENTITY, values, strict=False):
        value = _SEPARATORS.sub(b" ", data).strip().upper()
        digest = hashlib.sha256(b"\0".join((series, name.encode(), value))).digest()
        hashes.append(digest[:_IDENTITY_BYTES] if value else b"")
    return tuple(hashes)


@lru_cache(maxsize=1024)
def uid_digest(uid: bytes) -> bytes:
    """Return the digest of a UID with which a mask is compared with its scan; b"" for an empty UID.

    >>> uid_digest(b"1.2 ") == uid_digest(b"1.2"), uid_digest(b"")
    (True, b'')
    """
    stripped = uid.strip(b" \0")
    return hashlib.sha256(stripped).digest()[:_UID_BYTES] if stripped else b""


def volume_attributes(groups: Sequence[Elements]) -> VolumeAttributes:
    """Return the attributes of a frame. `groups` describe it together; the first group with a value counts."""
    attributes: dict[str, VolumeAttribute] = {}
    for name, tags in NUMERIC_ATTRIBUTES.items():
        if (element := _find(groups, tags)) and (values := _numbers(*element)) is not None:
            attributes[name] = values if len(values) > 1 else values[0]
    for name, tags in TEXT_ATTRIBUTES.items():
        if element := _find(groups, tags):
            attributes[name] = _sort_key(headers.text(*element))
    # PS3.3 C.7.6.17: the position of a frame along each dimension that the writer chose, such as stack or phase.
    if element := _find(groups, (headers.DIMENSION_INDEX,)):
        for number, value in enumerate(_numbers(*element) or (), start=1):
            attributes[f"dimension {number}"] = value
    attributes.update(_times(groups))
    return attributes


def _find(groups: Sequence[Elements], tags: Sequence[int]) -> tuple[Elements, int] | None:
    """Return the first of `tags` that has a value in any group, with the first group that has it; None if none has."""
    return next(((group, tag) for tag in tags for group in groups if headers.has_value(group, tag)), None)


def _times(groups: Sequence[Elements]) -> dict[str, float]:
    """Return the acquisition time and the content time of a frame in seconds, as far as the file states them."""
    moments = {
        ACQUISITION_TIME: (headers.ACQUISITION_DATE, headers.ACQUISITION_TIME),
        CONTENT_TIME: (headers.CONTENT_DATE, headers.CONTENT_TIME),
    }
    times: dict[str, float | None] = {}
    for name, (day, time) in moments.items():
        if element := _find(groups, (time,)):
            date_element = _find(groups, (day,))
            times[name] = _seconds(
                headers.text(*element), headers.text(*date_element) if date_element else ""
            )
    # Frames of an enhanced file have one date and time together (PS3.3 C.7.6.16.2.2), more exact than the file's.
    if element := _find(groups, MOMENTS):
        text = headers.text(*element)
        # A DT may end with an offset from UTC (PS3.5 6.2). It is taken to be the same for all frames of a file.
        seconds = _seconds(re.split(r"[+-]", text[8:])[0], text[:8])
        times[ACQUISITION_TIME] = times.get(ACQUISITION_TIME) if seconds is None else seconds
    return {name: seconds for name, seconds in times.items() if seconds is not None}


def _sort_key(text: str) -> str:
    """Return a text that sorts by its words and by the values of its numbers.

    >>> sorted(["Stack 10", "stack 2"], key=_sort_key)
    ['stack 2', 'Stack 10']
    """
    return re.sub(r"\d+", lambda number: number[0].zfill(16), text.upper())


def _numbers(elements: Elements, tag: int) -> tuple[float, ...] | None:
    """Return numbers that only distinguish images; None if the values are not numbers."""
    try:
        return headers.numbers(elements, tag, None)
    except SourceError:
        return None


def _seconds(time: str, day: str) -> float | None:
    """Return a DICOM time and date in seconds; None if `time` is not a time of day.

    >>> _seconds("101530.5", ""), _seconds("1015", "00010102"), _seconds("noon", "")
    (36930.5, 123300.0, None)
    """
    parts = TIME_OF_DAY.fullmatch(time.strip())
    if parts is None:
        return None
    hours, minutes, seconds, fraction = parts.groups()
    total = 3600 * int(hours) + 60 * int(minutes or 0) + int(seconds or 0) + float(fraction or 0)
    try:
        days = date(int(day[:4]), int(day[4:6]), int(day[6:8])).toordinal() - 1
    except ValueError:
        # Removal of identifiers empties dates, or sets them to a day that does not exist.
        days = 0
    return total + 86400 * days
