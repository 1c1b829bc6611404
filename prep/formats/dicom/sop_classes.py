"""Classification of DICOM objects by SOP class: images of volumes, masks, reports and other kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IMAGE = "image"
SECONDARY_CAPTURE = "secondary capture"
LOCALIZER = "localizer"
STRUCTURE_SET = "structure set"

_STORAGE = "1.2.840.10008.5.1.4.1.1."
VOLUME_CLASSES = frozenset(
    _STORAGE + number
    for number in (
        *("2", "2.1", "2.2"),  # CT: single slices, enhanced, legacy converted
        *("4", "4.1", "4.3", "4.4"),  # MR: single slices, enhanced, enhanced in color, legacy converted
        *("128", "128.1", "130"),  # PET: single slices, legacy converted, enhanced
        *("20", "5"),  # nuclear medicine, and its retired class
        *("13.1.1", "13.1.2", "13.1.3"),  # X-ray 3-D: angiographic, craniofacial, tomosynthesis
        *("77.1.5.4", "77.1.5.8"),  # ophthalmic tomography
        "6.2",  # enhanced ultrasound volume
        "30",  # parametric map
    )
)
"""The SOP classes whose images can be slices of a volume."""

SOP_CLASS_KINDS: Mapping[str, str] = {
    "1.2.840.10008.1.3.10": "DICOMDIR",
    **{
        _STORAGE + number: kind
        for number, kind in {
            "66": "raw data",
            "66.1": "registration",
            "66.2": "fiducials",
            "66.3": "registration",
            "66.4": "segmentation",
            "66.5": "surface segmentation",
            "66.7": "label map segmentation",
            "67": "value mapping",
            "77.1.6": "whole-slide image",
            "481.2": "dose",
            "481.3": STRUCTURE_SET,
            "481.5": "plan",
            **dict.fromkeys(("7", "7.1", "7.2", "7.3", "7.4"), SECONDARY_CAPTURE),
        }.items()
    },
}
SOP_CLASS_PREFIXES: Mapping[str, str] = {
    _STORAGE + "11.": "presentation state",
    _STORAGE + "88.": "report",
    _STORAGE + "104.": "document",
    _STORAGE + "9.": "waveform",
    _STORAGE + "4.2": "spectroscopy",
}
MODALITY_KINDS: Mapping[str, str] = {
    "SEG": "segmentation",
    "RTSTRUCT": STRUCTURE_SET,
    "RTDOSE": "dose",
    "RTPLAN": "plan",
    **dict.fromkeys(("SR", "KO"), "report"),
    "PR": "presentation state",
    "REG": "registration",
    "SC": SECONDARY_CAPTURE,
    "SM": "whole-slide image",
}
FLAT_MODALITIES: Mapping[str, str] = {
    **dict.fromkeys(("CR", "DX", "MG", "PX"), "radiograph"),
    **dict.fromkeys(("ES", "OP", "XC"), "photograph"),
    **dict.fromkeys(("IVUS", "US"), "ultrasound"),
    **dict.fromkeys(("RF", "XA"), "fluoroscopy"),
    "RTIMAGE": "radiotherapy image",
}
"""Modalities without slices; they count only if the SOP class is unknown."""

SLIDE_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
"""SOP class VL Whole Slide Microscopy Image Storage (PS3.4, B.5)."""
SINGLE_PICTURE_ADVICE = (
    "single DICOM pictures are read as pictures: leave --depth out, and take --layout folders, csv, coco, voc, yolo or "
    "pairs, by what their annotations are"
)
"""Advice for radiographs, photographs, ultrasound and other pictures without a position in the patient."""

MASK_KINDS = ("segmentation", "label map segmentation", STRUCTURE_SET)


def sop_class_kind(uid: str) -> str | None:
    """Return the kind of the objects of a SOP class; None if the standard does not list the class.

    >>> sop_class_kind("1.2.840.10008.5.1.4.1.1.2"), sop_class_kind("1.2.840.10008.5.1.4.1.1.7.2")
    ('image', 'secondary capture')
    >>> sop_class_kind("1.2.840.10008.5.1.4.1.1.1"), sop_class_kind("1.3.46.670589.11.0.0.12.1") is None
    ('computed radiography image', True)
    """
    if uid in VOLUME_CLASSES:
        return IMAGE
    if uid in SOP_CLASS_KINDS:
        return SOP_CLASS_KINDS[uid]
    for prefix, kind in SOP_CLASS_PREFIXES.items():
        if uid.startswith(prefix):
            return kind
    # pydicom's dictionary of PS3.6 names the classes that halofeed has no word for.
    known = _standard_uid(uid)
    if known.type != "SOP Class" or not known.name:
        return None
    return str(known.name).removesuffix(" (Retired)").removesuffix(" Storage").lower()


def uid_name(uid: str, otherwise: str) -> str:
    """Return the standard's name of a UID, or `otherwise`, because a message must not quote an unknown UID.

    >>> uid_name("1.2.840.10008.1.2.5", "another"), uid_name("1.2.3", "another")
    ('RLE Lossless', 'another')
    """
    known = _standard_uid(uid)
    return str(known.name) if known.type else otherwise


def _standard_uid(uid: str) -> Any:
    """Return a UID with the standard's name and type. The import takes 0.4 s, and few files need it."""
    from pydicom.uid import UID

    return UID(uid, validation_mode=0)


def object_kind(classes: tuple[str, ...], modality: str, has_pixels: bool) -> str:
    """Return the kind of an object, such as "image", "segmentation" or "report".

    Args:
        classes: SOP class in the data set, then in the file meta information; "" if absent.
        modality: modality in the header.
        has_pixels: whether the object has pixels.
    """
    # The SOP class decides (PS3.4 B.5). The modality decides about private classes, whose images may be slices too.
    known = next((kind for kind in map(sop_class_kind, classes) if kind is not None), None)
    if known is not None and known != IMAGE:
        return known
    if modality in MODALITY_KINDS:
        return MODALITY_KINDS[modality]
    if not has_pixels:
        return "no image"
    return known or FLAT_MODALITIES.get(modality, IMAGE)
