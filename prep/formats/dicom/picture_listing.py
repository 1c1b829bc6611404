"""Facts of DICOM pictures that a listing needs, from their headers: patient, pixel size, laterality and view.

A layout lists DICOM pictures as it lists others. `describe_pictures` then adds what the headers say, before images are
divided into splits, so that no patient is in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import HEAD_BYTES, HeaderContinuesError
from halofeed.prep.formats.dicom.picture_header import (
    PictureHeader,
    read_picture_header,
)
from halofeed.prep.formats.dicom.picture_words import picture_words
from halofeed.prep.formats.region.slide_headers import SLIDE_HEAD_BYTES, is_slide_head
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, is_dicom_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.members import parse_member
from halofeed.system.errors import Problem, SourceError, UsageError

_AT_ONCE, _THREADS = 1024, 16
_SQUARE = 0.01
"""Largest difference of the sides of a pixel, as a share, with which it counts as a square."""
NO_PATIENT_ID = (
    "no DICOM picture has a patient id, so that pictures of one patient may be in several splits; use --group-pattern "
    "if the paths name the patient"
)


@dataclass(frozen=True, kw_only=True)
class PictureListing:
    """Reading of the headers of DICOM pictures for a listing.

    Args:
        files: files of the images.
        policy: rules with the salt of the hashes that replace patients' ids.
        window: choice of a window by the user, which needs DICOM pictures.
        divides: whether images are divided into splits by groups that nothing else names.
        warn: receives a sentence about pictures without a patient.
        leaves_slides: whether whole-slide images, which tiles are cut from, stay as they are.
    """

    files: SourceFiles
    policy: SeriesPolicy
    window: str | None = None
    divides: bool = False
    warn: Callable[[str], None] = lambda _: None
    leaves_slides: bool = False

    def described(self, references: Iterable[SourceExample]) -> Iterator[SourceExample]:
        """Yield the references; those of DICOM pictures with the patient as their group, or with a problem.

        Raises:
            UsageError: the user chose a window, and there is no DICOM picture.
        """
        count = patients = 0
        stream = iter(references)
        with ThreadPoolExecutor(_THREADS) as threads:
            while some := list(islice(stream, _AT_ONCE)):
                is_dicom = [_may_be_dicom(one) for one in some]
                # A source may have millions of other pictures.
                if not any(is_dicom):
                    yield from some
                    continue
                described = threads.map(
                    lambda one, is_one: self._described(one) if is_one else one, some, is_dicom
                )
                for one, given, is_one in zip(described, some, is_dicom, strict=True):
                    # A slide is returned as it was given.
                    is_picture = is_one and one is not given
                    count += is_picture
                    patients += is_picture and one.group is not None
                    yield one
        if self.window is not None and not count:
            raise UsageError(
                f"--window {self.window}: no source is a DICOM picture, which alone have windows; leave --window out"
            )
        if self.divides and count > 1 and not patients:
            self.warn(NO_PATIENT_ID)

    def _described(self, reference: SourceExample) -> SourceExample:
        try:
            # First, because the header of a slide may be longer than is read here.
            if self.leaves_slides and is_slide_head(self.files.head(reference.source, SLIDE_HEAD_BYTES)):
                return reference
            header = self._header(reference.source)
        except SourceError as error:
            return replace(reference, problem=error.args)
        elements = header.elements
        words = picture_words(elements)
        return replace(
            reference,
            group=reference.group or self.policy.key(headers.raw_value(elements, headers.PATIENT_ID)),
            gsd_m=reference.gsd_m or _square_size_m(header),
            attributes=(
                *reference.attributes,
                *((name, words[name]) for name in ("laterality", "view") if name in words),
            ),
            frames=len(header.frames) if len(header.frames) > 1 else None,
            problem=_frame_problem(reference, len(header.frames)),
        )

    def _header(self, path: str) -> PictureHeader:
        head = self.files.head(path, HEAD_BYTES)
        try:
            return read_picture_header(head, complete=len(head) < HEAD_BYTES)[0]
        except HeaderContinuesError:
            return read_picture_header(self.files.read(path))[0]


def _square_size_m(header: PictureHeader) -> float | None:
    """Return the side of a pixel in meters; None if it is not stated, or no square."""
    if (spacing := header.spacing(0)) is None:
        return None
    height, width = spacing.sides_mm
    return height / 1000 if abs(height - width) <= _SQUARE * height else None


def _may_be_dicom(reference: SourceExample) -> bool:
    """Return whether a reference is a DICOM picture by its name, which may lack an extension."""
    if reference.problem is not None or reference.members or reference.stored is not None:
        return False
    source = reference.source
    return is_dicom_name(source) or (not extension_of(source) and parse_member(source) is None)


def _frame_problem(reference: SourceExample, frames: int) -> Problem | None:
    """Return the problem of objects or masks of a file of several frames, any of which may be meant."""
    if frames == 1 or not (reference.boxes or reference.is_labelled):
        return reference.problem
    detail = f"{frames} frames; save the annotated frame as a file of its own"
    return "annotation", "objects or masks of a file of several frames", detail
