"""Which texts of annotations can be written into records: all but those with a lone surrogate.

JSON can hold "\\ud800", half of a pair of code units, which has no bytes in UTF-8. Names of files that are not UTF-8
have lone surrogates too, U+DC80 to U+DCFF; those stand for bytes (see `halofeed.schemas.file_names`) and pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from halofeed.prep.sources.reference import Reference
from halofeed.schemas.file_names import can_be_named

REASON = "text holds a lone surrogate"


def with_written_texts(references: Iterable[Reference]) -> Iterator[Reference]:
    """The references; one of which a text cannot be written has that for its problem, and escapes in its place.

    >>> (found,) = with_written_texts([Reference(source="a.jpg", key="a\\ud800")])
    >>> print(*found.problem, sep="; ")
    annotation; text holds a lone surrogate; id 'a\\ud800' is no Unicode text: correct it
    """
    for reference in references:
        if _is_plain(reference):
            yield reference
            continue
        fault = next((one for one in _texts(reference) if not can_be_named(one[1])), None)
        fault = fault or next((one for one in _kept_texts(reference) if not can_be_encoded(one[1])), None)
        if fault is None:
            yield _with_written_remarks(reference)
            continue
        what, text = fault
        yield Reference(
            source=escaped(reference.source),
            key=escaped(reference.key) if isinstance(reference.key, str) else reference.key,
            split=escaped(reference.split),
            problem=("annotation", REASON, f"{what} {text!r} is no Unicode text: correct it"),
        )


def _is_plain(reference: Reference) -> bool:
    """Whether a reference is that of an image with at most its class, and is written in ASCII, as most are."""
    return (
        reference.source.isascii()
        and str(reference.key).isascii()
        and reference.split.isascii()
        and (reference.label or "").isascii()
        and (reference.group or "").isascii()
        and not (reference.boxes or reference.labels or reference.mask or reference.class_masks)
        and not (reference.members or reference.channels or reference.more_masks)
        and not (reference.problem or reference.notes or reference.bad_objects)
    )


def can_be_encoded(text: str) -> bool:
    """Whether a text is Unicode, without the lone surrogates of file names as well."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """A text that can be written, in which escapes stand for lone surrogates.

    >>> escaped("hat"), escaped("a\\ud800")
    ('hat', 'a\\\\ud800')
    """
    return text if can_be_named(text) else text.encode("utf-8", "backslashreplace").decode()


def _texts(reference: Reference) -> Iterator[tuple[str, str]]:
    """What each text of a reference is, and the text, of those that stand for bytes where they are no UTF-8."""
    yield "file name", reference.source
    yield "id", str(reference.key)
    yield "split", reference.split
    if reference.group is not None:
        yield "group", reference.group
    for label in (*reference.classes, *(box.label for box in reference.boxes or ())):
        yield "class", label
    for name, path in reference.class_masks:
        yield "class", name
        yield "file name", path
    frames = (file for _, files in reference.mask_members for file in files)
    for path in (*reference.members, *reference.channels, *reference.masks, *frames):
        yield "file name", path


def _kept_texts(reference: Reference) -> Iterator[tuple[str, str]]:
    """The same of texts that are written as they stand."""
    for box in reference.boxes or ():
        if box.view is not None:
            yield "view", box.view
        for point in box.keypoints:
            yield "keypoint", point.name


def _with_written_remarks(reference: Reference) -> Reference:
    """The reference with escapes in what is said of it, which often repeats what the annotations hold."""
    remarks = [
        *(reference.problem or ()),
        *reference.notes,
        *(part for bad in reference.bad_objects for part in bad),
    ]
    if all(map(can_be_named, remarks)):
        return reference
    stage, reason, detail = map(escaped, reference.problem or ("", "", ""))
    return replace(
        reference,
        problem=(stage, reason, detail) if reference.problem else None,
        notes=tuple(map(escaped, reference.notes)),
        bad_objects=tuple((escaped(reason), escaped(detail)) for reason, detail in reference.bad_objects),
    )
