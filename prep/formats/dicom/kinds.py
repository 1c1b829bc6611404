"""What a DICOM object is, by its SOP class: a slice of a volume, or what else."""

from __future__ import annotations

from collections.abc import Mapping

from pydicom.uid import UID

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

KINDS: Mapping[str, str] = {
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
KIND_FAMILIES: Mapping[str, str] = {
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
"""Modalities that have no slices; they count where the SOP class says nothing."""

MASK_KINDS = ("segmentation", "label map segmentation", STRUCTURE_SET)


def kind_of_class(uid: str) -> str | None:
    """What objects of a SOP class are; None where the standard does not know it.

    >>> kind_of_class("1.2.840.10008.5.1.4.1.1.2"), kind_of_class("1.2.840.10008.5.1.4.1.1.7.2")
    ('image', 'secondary capture')
    >>> kind_of_class("1.2.840.10008.5.1.4.1.1.1"), kind_of_class("1.3.46.670589.11.0.0.12.1") is None
    ('computed radiography image', True)
    """
    if uid in VOLUME_CLASSES:
        return IMAGE
    if uid in KINDS:
        return KINDS[uid]
    for family, kind in KIND_FAMILIES.items():
        if uid.startswith(family):
            return kind
    known = UID(uid, validation_mode=0)
    if known.type != "SOP Class" or not known.name:
        return None
    return str(known.name).removesuffix(" (Retired)").removesuffix(" Storage").lower()


def name_of(uid: str, otherwise: str) -> str:
    """What the standard calls a UID; `otherwise` where it does not know it, so that no UID is told.

    >>> name_of("1.2.840.10008.1.2.5", "another"), name_of("1.2.3", "another")
    ('RLE Lossless', 'another')
    """
    known = UID(uid, validation_mode=0)
    return str(known.name) if known.type else otherwise


def kind_of(classes: tuple[str, ...], modality: str, has_pixels: bool) -> str:
    """What an object is.

    Args:
        classes: its SOP class, as its data set and as its file says it; "" where that says nothing.
        modality: as the header has it.
        has_pixels: whether it has an image at all.
    """
    known = next((kind for kind in map(kind_of_class, classes) if kind is not None), None)
    if known is not None and known != IMAGE:
        return known
    if modality in MODALITY_KINDS:
        return MODALITY_KINDS[modality]
    if not has_pixels:
        return "no image"
    return known or FLAT_MODALITIES.get(modality, IMAGE)
