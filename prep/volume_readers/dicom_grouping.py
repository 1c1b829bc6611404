"""Which files make one stack of slices, by what their headers say, and what the other files are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halofeed.prep.sources import SourceFiles
from halofeed.prep.volume_readers.dicom_facts import LOCALIZER_WORDS, FileFacts, Frame, facts_of
from halofeed.prep.volume_readers.dicom_headers import HeaderContinuesError, media_class, read_header
from halofeed.prep.volume_readers.dicom_kinds import (
    IMAGE,
    LOCALIZER,
    MASK_KINDS,
    SECONDARY_CAPTURE,
    kind_of_class,
)
from halofeed.prep.volume_readers.dicom_slices import ORIENTATION_TOLERANCE, axes_of
from halofeed.prep.volume_readers.series_policy import SeriesPolicy
from halofeed.schemas.errors import SourceError

DICOM_NAMES = (".dcm", ".dicom", ".ima")
HEAD_BYTES = 1 << 16
"""How much of a file is read for its header; all of it where the header is longer."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The files of one stack of slices.

    Args:
        key: a salted hash that is the same in every run; stacks of one series differ in what follows it.
        series: the hash of the series' UID, to which `Apart.refers_to` refers; None where it has none.
        group: that of the patient's id; None where there is none.
        frame_of_reference: that of the frame of reference.
        members: the files, sorted along the normal of the slices, then by path.
        modality: "CT", "MR" ..., or "".
        size: (rows, columns).
        slices: frames in all.
        places: positions at which they lie.
    """

    key: str
    series: str | None
    group: str | None
    frame_of_reference: str | None
    members: tuple[str, ...]
    modality: str
    size: tuple[int, int]
    slices: int
    places: int


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A file that belongs to no stack of slices.

    Args:
        path: of the file.
        kind: what it is: "not DICOM", "DICOMDIR", "localizer", "image without position", "colour image", "mosaic",
            "segmentation", "structure set", "report", "presentation state", "damaged" ...
        refers_to: the `Series.series` that a segmentation or a structure set was drawn on.
        series, group, frame_of_reference: as of a `Series`.
        error: why a damaged file cannot be read.
    """

    path: str
    kind: str
    refers_to: tuple[str, ...] = ()
    series: str | None = None
    group: str | None = None
    frame_of_reference: str | None = None
    error: SourceError | None = None

    @property
    def is_mask(self) -> bool:
        """Whether it holds labels."""
        return self.kind in MASK_KINDS

    @property
    def may_be_slice(self) -> bool:
        """Whether it may be a slice of the stack beside it that cannot be read."""
        named = self.path.lower().endswith(DICOM_NAMES)
        return self.kind == "damaged" or (self.kind == "not DICOM" and named)


def read_facts(files: SourceFiles, path: str, policy: SeriesPolicy) -> FileFacts:
    """What one file says, from its first bytes where they suffice.

    Raises:
        SourceError: it is not DICOM, damaged, or cut off within the header.
    """
    head = files.head(path, HEAD_BYTES)
    try:
        header, _ = read_header(head, complete=len(head) < HEAD_BYTES)
    except HeaderContinuesError:
        header, _ = read_header(files.read(path))
    return facts_of(header, policy)


def _kind_of(facts: FileFacts) -> str:
    """ "image" for what may be a slice of a volume, else why it is none."""
    if facts.kind != IMAGE:
        return facts.kind
    assert facts.format is not None
    if facts.format.samples != 1 or facts.format.photometric == "colour":
        return "colour image"
    if "MOSAIC" in facts.image_words:
        return "mosaic"
    if "SCREEN SAVE" in facts.image_words:
        return SECONDARY_CAPTURE
    if LOCALIZER_WORDS.intersection(facts.image_words):
        return LOCALIZER
    if facts.is_survey:
        return "survey by its description"
    if any(frame.position_mm is None or frame.orientation is None for frame in facts.frames):
        return "image without position"
    return IMAGE


def _kind_of_damaged(files: SourceFiles, path: str, policy: SeriesPolicy) -> str:
    """What a file is that cannot be read: "damaged", unless its first bytes say that it is no slice anyway."""
    kind = kind_of_class(media_class(files.head(path, HEAD_BYTES)))
    if kind is None or kind in (IMAGE, *MASK_KINDS):
        return "damaged"
    return "damaged" if kind == SECONDARY_CAPTURE and policy.secondary_captures == "take" else kind


def sort_out(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy
) -> tuple[list[tuple[str, FileFacts]], list[Apart]]:
    """The files that may be slices, with what they say, and the others; both in order of their path."""
    images, apart = [], []
    for path in sorted(set(paths)):
        try:
            facts = read_facts(files, path, policy)
        except SourceError as error:
            kind = (
                "not DICOM" if error.reason == "file is not DICOM" else _kind_of_damaged(files, path, policy)
            )
            apart.append(Apart(path=path, kind=kind, error=error))
            continue
        kind = _kind_of(facts)
        if kind == IMAGE:
            images.append((path, facts))
        else:
            apart.append(
                Apart(
                    path=path,
                    kind=kind,
                    refers_to=facts.refers_to,
                    series=facts.series,
                    group=facts.group,
                    frame_of_reference=facts.frame_of_reference,
                )
            )
    return images, apart


def _alike(first: FileFacts, second: FileFacts) -> bool:
    """Whether two images can be slices of one stack: of one size and orientation."""
    assert first.format is not None and second.format is not None
    one, other = first.frames[0].orientation, second.frames[0].orientation
    assert one is not None and other is not None
    close = all(abs(a - b) <= ORIENTATION_TOLERANCE for a, b in zip(one, other, strict=True))
    return close and first.format.size == second.format.size


def _stacks(images: Sequence[tuple[str, FileFacts]]) -> list[list[tuple[str, FileFacts]]]:
    """The images of one series, in stacks of one size and orientation."""
    stacks: list[list[tuple[str, FileFacts]]] = []
    for image in images:
        for stack in stacks:
            if _alike(stack[0][1], image[1]):
                stack.append(image)
                break
        else:
            stacks.append([image])
    return [part for stack in stacks for part in _variants(stack)]


def _variants(stack: list[tuple[str, FileFacts]]) -> list[list[tuple[str, FileFacts]]]:
    """A stack with several images at one position, as one stack for each echo, time, b-value and image type."""
    if len(stack) != sum(len(facts.frames) for _, facts in stack):
        return [stack]
    if len({_position(facts) for _, facts in stack}) == len(stack):
        return [stack]
    parts: dict[Any, list[tuple[str, FileFacts]]] = {}
    for path, facts in stack:
        parts.setdefault((facts.frames[0].variant, facts.image_type), []).append((path, facts))
    # Parts that share no position with each other are halves of one stack, not variants of it.
    places = [{_position(facts) for _, facts in part} for part in parts.values()]
    overlap = any(places[0] & other for other in places[1:])
    return list(parts.values()) if overlap else [stack]


def _position(facts: FileFacts) -> tuple[float, ...] | None:
    return _place(facts.frames[0])


def _place(frame: Frame) -> tuple[float, ...] | None:
    position = frame.position_mm
    return None if position is None else tuple(round(value, 3) for value in position)


def too_few_slices(places: int, policy: SeriesPolicy) -> tuple[str, str, str] | None:
    """What is wrong with a stack of so many slices: stage, reason and detail; None where they suffice."""
    if places >= policy.min_slices:
        return None
    detail = f"{places} of at least {policy.min_slices}; --min-slices {places} takes it"
    return "selection", "series has too few slices", detail


def group_series(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy | None = None
) -> tuple[tuple[Series, ...], tuple[Apart, ...]]:
    """Group files into series by what their headers say, and series into stacks of one size and orientation.

    Images without a series UID are grouped by their folder.

    Args:
        files: where the files are.
        paths: any files; those that are no DICOM slices come back apart.
        policy: its salt goes into every hash.

    Returns:
        The stacks in order of their first path, and the files that belong to none, in order of their path.
    """
    policy = policy or SeriesPolicy()
    images, apart = sort_out(files, paths, policy)
    found = [series for series, _ in group_images(images, policy)]
    return tuple(sorted(found, key=lambda series: min(series.members))), tuple(apart)


def group_images(
    images: list[tuple[str, FileFacts]], policy: SeriesPolicy
) -> list[tuple[Series, list[tuple[str, FileFacts]]]]:
    """The stacks among images, each with its files and what they say."""
    by_series: dict[str, list[tuple[str, FileFacts]]] = {}
    for path, facts in images:
        folder = path.rpartition("/")[0]
        key = facts.series or policy.key(b"folder " + folder.encode()) or ""
        by_series.setdefault(key, []).append((path, facts))
    found = []
    for key, members in by_series.items():
        stacks = _stacks(members)
        for number, stack in enumerate(stacks):
            first = stack[0][1]
            assert first.format is not None and first.frames[0].orientation is not None
            try:
                normal = axes_of(first.frames[0].orientation)[2]
            except SourceError:
                normal = np.zeros(3)  # Opening the series says why it is refused.
            places = {
                path: float(np.dot(facts.frames[0].position_mm or (0, 0, 0), normal)) for path, facts in stack
            }
            series = Series(
                key=key if len(stacks) == 1 else f"{key}-{number + 1}",
                series=first.series,
                group=first.group,
                frame_of_reference=first.frame_of_reference,
                members=tuple(sorted(places, key=lambda path: (places[path], path))),
                modality=first.modality,
                size=first.format.size,
                slices=sum(len(facts.frames) for _, facts in stack),
                places=len({_place(frame) for _, facts in stack for frame in facts.frames}),
            )
            found.append((series, stack))
    return found
