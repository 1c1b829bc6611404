"""Which scan a DICOM SEG or RTSTRUCT was drawn on, by the UIDs that it names.

    the images that it names       one of the scan's
      or else the series           the scan's
        or else the frame          the scan's, or unknown

Each is compared as hashes; a message never holds a UID.

Source: DICOM PS3.3, sections C.8.20.2 Segmentation Image, C.8.8.5 Structure Set and C.8.8.6 ROI Contour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.elements import items, raw_value
from halofeed.prep.formats.dicom.facts import FileFacts, linked
from halofeed.prep.geometry.scan import Origin
from halofeed.schemas.errors import SourceError

Dataset: TypeAlias = Any
"""pydicom's."""
FRAME_OF_STRUCTURE, STRUCTURES, STRUCTURE_CONTOURS, CONTOURS = 0x30060024, 0x30060020, 0x30060039, 0x30060040
DERIVATIONS, SOURCE_IMAGES = 0x00089124, 0x00082112
ANOTHER_SCAN = "label was drawn on another scan"
_CURE = (
    "pair it with the scan that it was drawn on, which --layout dicom finds, or say --mask-references ignore"
)


def origin_of(images: Iterable[FileFacts]) -> Origin:
    """What masks of these images refer to."""
    some = list(images)
    return Origin(
        series=frozenset(facts.link[0] for facts in some) - {b""},
        frames=frozenset(facts.link[1] for facts in some) - {b""},
        images=frozenset(facts.uid for facts in some) - {b""},
    )


def check_drawn_on(dataset: Dataset, scan: Origin) -> None:
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


def _referenced_series(dataset: Dataset) -> Iterator[Dataset]:
    """What the file says of each series that it refers to."""
    yield from items(dataset, headers.REFERENCED_SERIES)
    for frame in items(dataset, headers.RT_FRAMES):
        for study in items(frame, headers.RT_STUDIES):
            yield from items(study, headers.RT_SERIES)


def _images(dataset: Dataset, series: Iterable[Dataset]) -> set[bytes]:
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


def _named(holders: Iterable[Dataset], tags: Iterable[int]) -> Iterator[bytes]:
    for holder in holders:
        for tag in tags:
            for image in items(holder, tag):
                yield raw_value(image, headers.REFERENCED_INSTANCE)


def _frames(dataset: Dataset) -> Iterator[bytes]:
    """The UIDs of the frames of reference in which the file's masks lie."""
    yield raw_value(dataset, headers.FRAME_OF_REFERENCE)
    for frame in items(dataset, headers.RT_FRAMES):
        yield raw_value(frame, headers.FRAME_OF_REFERENCE)
    for structure in items(dataset, STRUCTURES):
        yield raw_value(structure, FRAME_OF_STRUCTURE)
