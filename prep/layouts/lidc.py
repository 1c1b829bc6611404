"""Reader of LIDC-IDRI: DICOM series of the chest with XML documents, in which up to four readers outline nodules.

The rules are those of the collection (Armato et al., "The Lung Image Database Consortium (LIDC) and Image Database
Resource Initiative (IDRI)", Medical Physics 38, 2011; wiki.cancerimagingarchive.net, LIDC-IDRI):

- A document has a reading session for each reader. Its `SeriesInstanceUid` names the series.
- A nodule of at least 3 mm has an outline on each slice, `edgeMap` with the column and row of each point. The outline
  itself is outside of the nodule, so that the box is the one around the pixels inside.
- `imageZposition` is the last number of the slice's Image Position (Patient).
- A nodule below 3 mm has one point, and no characteristics. It becomes a box of one voxel that is flagged as ignored
  (is_crowd), as LUNA16 takes such findings for neither right nor wrong. `nonNodule` marks are counted and left out.

Readers number their nodules on their own. Two readings are of one nodule if their boxes share a part of their volume;
so are all that are connected so. Its box is what at least half of the readings hold along each axis. A nodule with
fewer readers than --min-readers is flagged as ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.contract import LayoutOptions, rejected_example, sort_examples
from halofeed.prep.annotations.documents import parse_xml_document, read_limited
from halofeed.prep.layouts.dicom import list_scans
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

ROOT: Final = "LidcReadMessage"
NODULE: Final = "nodule"
_RADIOGRAPHS: Final = "IdriReadMessage"
_MAX_BYTES: Final = 64 << 20
_MAX_SIDE: Final = 4096
_SLICE_MM: Final = 0.01
"""Positions of one slice in two readings differ by rounding at most."""


@dataclass(frozen=True, kw_only=True)
class NoduleReading:
    """Outline of one nodule by one reader.

    Args:
        reader: number of the reading session.
        low, high: ends along z in millimeters, positions of slices; and along y and x in continuous pixels.
        is_small: whether the reader marked it as smaller than 3 mm.
    """

    reader: int
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    is_small: bool

    def shares_volume(self, other: NoduleReading) -> bool:
        """Return whether the boxes of two readings share a part; one slice in common is enough along z."""
        (z1, y1, x1), (z2, y2, x2) = self.low, self.high
        (a1, b1, c1), (a2, b2, c2) = other.low, other.high
        return (
            max(z1, a1) <= min(z2, a2) + _SLICE_MM and max(y1, b1) < min(y2, b2) and max(x1, c1) < min(x2, c2)
        )


@dataclass(frozen=True, kw_only=True)
class Document:
    """Readings of one scan.

    Args:
        path: path of the document.
        series: UID of the series.
        readings: outlines of nodules.
        readers: number of reading sessions.
        others: number of marks that are no nodules.
    """

    path: str
    series: str
    readings: tuple[NoduleReading, ...]
    readers: int
    others: int


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every DICOM series with its nodules, and one for every document without a series.

    A series without a document is left out. A group is the salted hash of the patient's id.

    Raises:
        AnnotationsError: there is no document, or no series.
    """
    documents, faults = _read_documents(annotations, annotation_file)
    if not documents and not faults:
        raise AnnotationsError(
            f"{annotations.root}: expected XML documents with <{ROOT}>, as LIDC-IDRI has them; series without them: "
            "--layout dicom"
        )
    by_series: dict[str | None, list[Document]] = {}
    for document in documents:
        by_series.setdefault(options.series.key(document.series.encode()), []).append(document)
    examples = list(faults)
    found, others = list_scans(images, options)
    for series in found:
        examples.append(_with_nodules(series.example, by_series.pop(series.scan.series, []), options))
    known = {document.path for document in documents}
    examples += [one for one in others if one.source not in known]
    for unpaired in by_series.values():
        problem = ("selection", "series of a document is not there", "it may not have been downloaded")
        examples += [rejected_example(document.path, problem) for document in unpaired]
    yield from sort_examples(examples)


def _with_nodules(
    example: SourceExample, documents: Sequence[Document], options: LayoutOptions
) -> SourceExample:
    """Return the example of a series with the nodules of its document."""
    if example.problem is not None:
        return example
    if not documents:
        return replace(example, problem=("selection", "series has no LIDC document", ""))
    # Some scans of the collection have two documents, of two rounds of readings.
    if len(documents) > 1:
        listed = ", ".join(one.path for one in documents)
        return replace(
            example, problem=("annotation", "series has several documents", f"{listed}; keep one of them")
        )
    (document,) = documents
    notes = ("marks that are no nodules (nonNodule) are left out",) if document.others else ()
    boxes = tuple(merge_readings(document.readings, options.min_readers))
    if options.min_readers > document.readers:
        detail = f"{document.path}; take --min-readers {document.readers} or less"
        return replace(example, problem=("annotation", "document has too few readers", detail))
    return replace(example, boxes=boxes, notes=notes)


def merge_readings(readings: Sequence[NoduleReading], min_readers: int) -> Iterator[Box]:
    """Yield the box of each nodule: along each axis, what at least half of the readings of it hold.

    pylidc's `consensus` takes the voxels of at least half of the readers (`clevel=0.5`). Of 149 nodules with 2 to 4
    readers, 103 of these boxes were those of its mask (mean IoU 0.969), and 35 boxes of median sides (0.923).

    Args:
        readings: outlines of all readers.
        min_readers: nodules with fewer readers are flagged as ignored, and so are those that most readers take for
            smaller than 3 mm.
    """
    for group in _connected(readings):
        large = [one for one in group if not one.is_small] or group
        half = (len(large) + 1) // 2
        low = [sorted(one.low[axis] for one in large)[half - 1] for axis in range(3)]
        high = [sorted(one.high[axis] for one in large)[-half] for axis in range(3)]
        yield Box(
            zmin=low[0],
            ymin=low[1],
            xmin=low[2],
            zmax=high[0],
            ymax=high[1],
            xmax=high[2],
            label=NODULE,
            is_crowd=_is_ignored(group, min_readers),
            space="slices",
        )


def _is_ignored(group: Sequence[NoduleReading], min_readers: int) -> bool:
    """Return whether too few readers outlined a nodule, or most of them took it for smaller than 3 mm."""
    is_small = 2 * sum(one.is_small for one in group) > len(group)
    return is_small or len({one.reader for one in group}) < min_readers


def _connected(readings: Sequence[NoduleReading]) -> list[list[NoduleReading]]:
    """Return the readings in groups that share volume, directly or by others, in the order of their first ones."""
    groups: list[list[NoduleReading]] = []
    for one in readings:
        touching = [group for group in groups if any(one.shares_volume(other) for other in group)]
        merged = [reading for group in touching for reading in group] + [one]
        groups = [group for group in groups if group not in touching] + [merged]
    return sorted(groups, key=lambda group: (group[0].low, group[0].high))


def _read_documents(
    annotations: SourceFiles, annotation_file: str | None
) -> tuple[list[Document], list[SourceExample]]:
    """Return the readings of scans, and an example for each document that cannot be read."""
    paths = [annotation_file] if annotation_file else sorted(annotations.sizes())
    documents, faults = [], []
    for path in paths:
        if not path.lower().endswith(".xml"):
            continue
        try:
            root = parse_xml_document(read_limited(annotations, path, "document", _MAX_BYTES))
            name = _plain(root.tag)
            if name == ROOT:
                documents.append(read_document(path, root))
            elif name == _RADIOGRAPHS:
                problem = ("selection", "document is of radiographs, not of a scan", "")
                faults.append(rejected_example(path, problem))
        except SourceError as error:
            faults.append(rejected_example(path, (error.stage, error.reason, error.detail)))
    return documents, faults


def read_document(path: str, root: ElementTree.Element) -> Document:
    """Return the readings of a document.

    Raises:
        SourceError: it names no series, or a nodule has no outline or a number that is none.
    """
    series = _text(root, "SeriesInstanceUid") or _text(root, "SeriesInstanceUID")
    if not series:
        raise SourceError(
            "annotation", "document names no series", "expected SeriesInstanceUid in ResponseHeader"
        )
    readings, others = [], 0
    sessions = [one for one in root.iter() if _plain(one.tag) == "readingSession"]
    for reader, session in enumerate(sessions):
        for element in session:
            name = _plain(element.tag)
            others += name == "nonNodule"
            if name == "unblindedReadNodule" and (reading := _reading(element, reader)) is not None:
                readings.append(reading)
    return Document(path=path, series=series, readings=tuple(readings), readers=len(sessions), others=others)


def _reading(nodule: ElementTree.Element, reader: int) -> NoduleReading | None:
    """Return the outline of a nodule; None for one whose outlines are all holes."""
    found = [(_number(one, "imageZposition"), _edge(one)) for one in nodule if _is_outline(one)]
    outlines = [(position, edge) for position, edge in found if len(edge)]
    if not outlines:
        return None
    ends = [_inside(edge) for _, edge in outlines]
    low = np.min([first for first, _ in ends], axis=0).tolist()
    high = np.max([last for _, last in ends], axis=0).tolist()
    positions = [position for position, _ in outlines]
    return NoduleReading(
        reader=reader,
        low=(min(positions), low[0], low[1]),
        high=(max(positions), high[0], high[1]),
        is_small=sum(len(edge) for _, edge in outlines) == 1,
    )


def _is_outline(element: ElementTree.Element) -> bool:
    """Return whether an element is an outline; one with inclusion FALSE is a hole in a nodule."""
    return _plain(element.tag) == "roi" and (_text(element, "inclusion") or "TRUE").upper() == "TRUE"


def _edge(roi: ElementTree.Element) -> NDArray[np.float64]:
    """Return the points of an outline, [n, 2] of y and x."""
    points = [(_number(one, "yCoord"), _number(one, "xCoord")) for one in roi if _plain(one.tag) == "edgeMap"]
    return np.array(points, np.float64).reshape(-1, 2)


def _inside(outline: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends of what an outline encloses, (y, x) in continuous pixels.

    The pixels of the outline do not count, so that a spike of the outline that is one pixel wide encloses nothing. An
    outline without a pixel inside is taken as it is, as the point of a nodule below 3 mm.

    >>> square = [[10, 20], [10, 21], [10, 22], [11, 22], [12, 22], [12, 21], [12, 20], [11, 20]]
    >>> low, high = _inside(np.array(square))
    >>> low.tolist(), high.tolist()
    ([11.0, 21.0], [12.0, 22.0])
    >>> low, high = _inside(np.array([[7, 9]]))
    >>> low.tolist(), high.tolist()
    ([7.0, 9.0], [8.0, 10.0])
    """
    import cv2  # --help does without it

    points = np.rint(outline).astype(np.int32)
    first, last = points.min(axis=0), points.max(axis=0)
    height, width = (last - first + 1).tolist()
    # A damaged number must not ask for gigabytes.
    if max(height, width) > _MAX_SIDE:
        raise SourceError("annotation", "outline is larger than a slice", f"{height} x {width} pixels")
    inner = np.zeros((height, width), np.uint8)
    within = (points - first)[:, ::-1]
    cv2.fillPoly(inner, [within], 1)
    cv2.polylines(inner, [within], isClosed=True, color=0)
    filled = np.argwhere(inner)
    if len(filled):
        first, last = first + filled.min(axis=0), first + filled.max(axis=0)
    return first.astype(np.float64), (last + 1).astype(np.float64)


def _plain(tag: object) -> str:
    """Return the name of an element without its namespace."""
    return str(tag).rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str | None:
    found = next((one for one in element.iter() if _plain(one.tag) == name), None)
    return None if found is None or found.text is None else found.text.strip()


def _number(element: ElementTree.Element, name: str) -> float:
    """Return the number in a child of an element; raise SourceError if it is none."""
    written = _text(element, name)
    try:
        number = float(written or "")
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise SourceError("annotation", "outline has a number that is none", f"{name}: {written!r:.60}")
    return number
