"""JSON documents that state their own CRC32C, so that no reader believes one that was changed.

Documents of earlier versions state none and are read without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from halofeed.schemas.checksum import crc32c

CHECKSUM = "crc32c"


def checksum_of(document: Mapping[str, Any]) -> int:
    """CRC32C of the document's members but `crc32c`, in one fixed form."""
    members = {name: value for name, value in document.items() if name != CHECKSUM}
    return crc32c(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum, which is that of what JSON makes of it: names that are numbers become text.

    >>> sealed({"step": 10})
    {'step': 10, 'crc32c': 538019656}
    """
    return {**document, CHECKSUM: checksum_of(json.loads(json.dumps(document)))}


def unsealed(document: Any, *, required: bool = False) -> Any:
    """The document without its checksum; whatever is no object, or states none, as it is.

    Args:
        required: refuse a document without a checksum.

    Raises:
        ValueError: the checksum is another than that of the document.

    >>> unsealed({"step": 11, "crc32c": 538019656})
    Traceback (most recent call last):
        ...
    ValueError: its checksum is wrong, so it was changed after it was written
    """
    if not isinstance(document, dict) or (CHECKSUM not in document and not required):
        return document
    if document.get(CHECKSUM) != checksum_of(document):
        raise ValueError("its checksum is wrong, so it was changed after it was written")
    return {name: value for name, value in document.items() if name != CHECKSUM}
