"""Words of the standard for what a single DICOM picture shows: laterality, view and body part.

Only words of the standard are returned. Another text in these elements might identify someone.
"""

from __future__ import annotations

from typing import Final

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, items
from halofeed.schemas.kinds import BODY_PART, LATERALITY, VIEW

_LATERALITIES = ("L", "R", "B", "U")
"""Left, right, both, unpaired (PS3.3 C.8.11.2)."""
_VIEWS = frozenset(
    ("AP", "PA", "LL", "RL", "LLO", "RLO", "CC", "MLO", "ML", "LM", "XCCL", "XCCM", "AT", "SIO")
)
_CODES_OF_VIEW: Final = {
    "AP": ("399348003", "R-10206"),
    "PA": ("272479007", "R-40888"),
    "LL": ("399173006", "R-10236"),
    "RL": ("399198007", "R-10232"),
    "CC": ("399162004", "R-10242"),
    "MLO": ("399368009", "R-10226"),
    "ML": ("399260004", "R-10224"),
    "LM": ("399352003", "R-10228"),
    "SIO": ("399188001", "R-102D0"),
    "XCCL": ("399192008", "R-1024A"),
    "XCCM": ("399101009", "R-1024B"),
}
"""SNOMED codes of a view, of today's and of the retired scheme (PS3.16 CID 4010 and CID 4014)."""
_VIEW_OF_CODE = {code: view for view, codes in _CODES_OF_VIEW.items() for code in codes}
_BODY_PARTS = frozenset(
    (
        *("ABDOMEN", "ABDOMENPELVIS", "ADRENAL", "ANKLE", "AORTA", "ARM", "AXILLA", "BACK", "BLADDER"),
        *("BRAIN", "BREAST", "BRONCHUS", "BUTTOCK", "CALCANEUS", "CALF", "CAROTID", "CEREBELLUM"),
        *("CHEST", "CHESTABDOMEN", "CHESTABDPELVIS", "CIRCLEOFWILLIS", "CLAVICLE", "COCCYX", "COLON"),
        *("CORNEA", "CORONARYARTERY", "CSPINE", "CTSPINE", "DUODENUM", "EAR", "ELBOW", "ESOPHAGUS"),
        *("EXTREMITY", "EYE", "EYELID", "FACE", "FEMUR", "FINGER", "FOOT", "FOREARM", "GALLBLADDER"),
        *("HAND", "HEAD", "HEADNECK", "HEART", "HIP", "HUMERUS", "IAC", "ILEUM", "ILIUM", "JAW"),
        *("JEJUNUM", "KIDNEY", "KNEE", "LARYNX", "LEG", "LIVER", "LSPINE", "LSSPINE", "LUNG", "MAXILLA"),
        *("MEDIASTINUM", "MOUTH", "NECK", "NECKCHEST", "NECKCHESTABDOMEN", "NECKCHESTABDPELV", "NOSE"),
        *("OPTICCANAL", "ORBIT", "OVARY", "PANCREAS", "PAROTID", "PATELLA", "PELVIS", "PENIS"),
        *("PHARYNX", "PROSTATE", "RECTUM", "RIB", "SACRUM", "SCALP", "SCAPULA", "SCLERA", "SCROTUM"),
        *("SELLA", "SHOULDER", "SIJOINT", "SKULL", "SPINE", "SPLEEN", "SSPINE", "STERNUM", "STOMACH"),
        *("SUBMANDIBULAR", "TESTIS", "THIGH", "THUMB", "THYMUS", "THYROID", "TLSPINE", "TMJ", "TOE"),
        *("TONGUE", "TRACHEA", "TSPINE", "URETER", "URETHRA", "UTERUS", "VAGINA", "VULVA", "WHOLEBODY"),
        *("WRIST", "ZYGOMA"),
    )
)
"""Defined terms of Body Part Examined (PS3.16 Annex L)."""


def picture_words(elements: Elements) -> dict[str, str]:
    """Return what a picture shows, by the name of its field, as far as the file states it in words of the standard."""
    laterality = headers.text(elements, headers.IMAGE_LATERALITY) or headers.text(
        elements, headers.LATERALITY
    )
    body_part = headers.text(elements, headers.BODY_PART).upper()
    found = {
        LATERALITY: laterality if laterality in _LATERALITIES else "",
        VIEW: _view(elements),
        BODY_PART: body_part if body_part in _BODY_PARTS else "",
    }
    return {name: value for name, value in found.items() if value}


def _view(elements: Elements) -> str:
    view = headers.text(elements, headers.VIEW_POSITION).upper()
    if view in _VIEWS:
        return view
    # Mammograms and DX need a code, and may leave out View Position (PS3.3 C.8.11.5, C.8.11.7).
    for item in items(elements, headers.VIEW_CODES)[:1]:
        return _VIEW_OF_CODE.get(headers.text(item, headers.CODE_VALUE), "")
    return ""
