"""What an annotation layout yields: a reference to one source image and what is known about it.

Which file holds the voxels of a header that names it, such as .mhd with .raw?

The header is text, and of it no more than its first bytes is looked at.

Which listed files are images, and which files one image consists of, where that differs by the kind of image.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.sources.file_names import DATA_FILE_LINES, files_of, is_image_name, is_scan_name
from halofeed.prep.sources.files import BELOW, SourceFiles


@dataclass(frozen=True, kw_only=True)
class Keypoint:
    """One named point of an object, where a box has its coordinates; `visibility` is COCO's.

    0: not labeled, and then mostly at 0, 0; 1: labeled, but hidden; 2: labeled and visible.
    """

    name: str
    y: float = 0.0
    x: float = 0.0
    visibility: int = 0


@dataclass(frozen=True, kw_only=True)
class Box:
    """One annotated object.

    Coordinates are continuous source pixels with the origin at the corner of the first pixel, so that
    a box over a whole image of width 640 runs from 0 to 640. `label` is the class name. `area` is the
    annotated area in source pixels², if the layout gives one. `mask` is COCO's: a list of polygons
    [[x, y, x, y, ...], ...] or a run-length dict {"size": [height, width], "counts": ...}. `view` is VOC's pose,
    `category_id` COCO's own number of the class, `group_of` Open Images' flag of a group under one box; of `keypoints`
    each object of a data set has as many.
    """

    ymin: float
    xmin: float
    ymax: float
    xmax: float
    label: str
    is_crowd: bool = False
    difficult: bool = False
    truncated: bool = False
    occluded: bool = False
    group_of: bool = False
    view: str | None = None
    category_id: int | None = None
    area: float | None = None
    mask: Any = None
    keypoints: tuple[Keypoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceExample:
    """One source image or scan, before its pixels are read.

    Args:
        source: its path below the images' root, with '/'; of a .hdr/.img pair the header's; of a DICOM series
            its folder, with `#` and a hash where the folder holds several.
        key: the original id, kept in `image/key/source`: an integer of the annotations, or `source`.
        split: as the source names it; "train" where it names none.
        group: what must not be divided by a split (patient, scene); None: the image itself.
        label: the class name of a classification example.
        labels: the class names of one that may have several, or none; then `label` is None.
        boxes: the objects of a detection example (may be empty); None for classification.
        declared_size: (height, width) that the annotations claim, before any EXIF orientation is applied
            or after it: a converter compares both.
        grid: "stored" or "displayed" where other pictures prove on which of the two the annotations of all were drawn.
        normalized: whether boxes are shares of the picture's sides, on the grid that the annotations speak of.
        problem: (stage, reason, detail) of a fault found in the annotations; such an input is rejected.
        channels: segmentation: the files of the further channels on the same grid, in order.
        mask: segmentation: the file of the labels: a volume, a mask PNG, a DICOM SEG or RTSTRUCT; None without
            `class_masks` as well: an example for prediction only.
        more_masks: segmentation: further files of labels of the same image, to be merged with `mask`.
        class_masks: segmentation: (class name, file) where each class has a mask of its own.
        members: the files of a DICOM series, sorted; () for an image that `source` itself names.
        volume: of a DICOM series that holds several scans: the number of this one from 1, of how many, and what
            tells them apart; `members` are its own files, or those of all where one file holds slices of several.
        mask_members: segmentation: (path, files) of each mask of a clip that is a folder of frames, and of each further
            channel that is a folder of DICOM files.
        stored: of a DICOM series whose members the job keeps elsewhere: under which name, a digest of them, and one of
            their stamps, "" where they have none; the last is no part of what a reference says.
        slices: what is known of the members already; it travels with them, and is no part of what a reference says.
        bad_objects: (reason, detail) of each annotated object that cannot be used and is dropped.
        parts: the files with the voxels of those of its files that are headers and name them (.mhd, .nhdr).
        notes: what a person should know of how the annotations were read; counted, and shown as warnings.
    """

    source: str
    key: str | int
    split: str = "train"
    group: str | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    boxes: tuple[Box, ...] | None = None
    declared_size: tuple[int, int] | None = None
    grid: str | None = None
    normalized: bool = False
    problem: tuple[str, str, str] | None = None
    channels: tuple[str, ...] = ()
    mask: str | None = None
    more_masks: tuple[str, ...] = ()
    class_masks: tuple[tuple[str, str], ...] = ()
    members: tuple[str, ...] = ()
    mask_members: tuple[tuple[str, tuple[str, ...]], ...] = ()
    volume: tuple[int, int, str] | None = None
    stored: tuple[str, str, str] | None = None
    slices: Any = field(default=None, compare=False, repr=False)
    bad_objects: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that must be read for this example, each once: the image's first, then the labels'.

        >>> Reference(source="ct.hdr", key="ct.hdr", mask="seg.nii.gz").paths
        ('ct.hdr', 'ct.img', 'seg.nii.gz')
        """
        if not (self.members or self.stored or self.is_labelled or self.channels or self.parts):
            return files_of(self.source)
        image = self.members or (() if self.stored else files_of(self.source))
        folders = dict(self.mask_members)
        more = [
            file
            for path in (*self.channels, *self.mask_paths)
            for file in folders.get(path) or files_of(path)
        ]
        return tuple(dict.fromkeys([*image, *more, *self.parts]))

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of a classification example."""
        return self.labels or (() if self.label is None else (self.label,))

    @property
    def masks(self) -> tuple[str, ...]:
        """The files of labels that hold all classes."""
        return () if self.mask is None else (self.mask, *self.more_masks)

    @property
    def mask_paths(self) -> tuple[str, ...]:
        """Every mask: those of one class each, then those that hold all."""
        return (*(path for _, path in self.class_masks), *self.masks)

    @property
    def is_labelled(self) -> bool:
        """Whether a segmentation example has labels; one without is for prediction only."""
        return self.mask is not None or bool(self.class_masks)


LONGEST_HEADER = 1 << 20
"""Bytes; a header of 3D Slicer with a hundred segments has some 60,000."""
_ELSEWHERE = re.compile(r"/|\\\\|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://")
_SEVERAL = re.compile(r"LIST\b|.*%\d*d")
_ONE_FILE = "save it with all voxels in one file (.nrrd or .mha)"


def data_path(written: str, header: str) -> str | None:
    """The path below the root of the file that a header names; None where the voxels follow in the header's own file.

    Args:
        written: what stands in the header.
        header: its path.

    Raises:
        SourceError: it names several files, none, or one that does not lie below the images' folder.

    >>> data_path("ct.raw", "a/ct.mhd"), data_path("../raw/ct.raw", "a/ct.mhd"), data_path("LOCAL", "a/ct.mhd")
    ('a/ct.raw', 'raw/ct.raw', None)
    """
    if written.lower() == "local":
        return None
    if _SEVERAL.match(written):
        raise SourceError("decode", "voxels lie in several files", f"{written!r}; {_ONE_FILE}")
    if not written or "\0" in written:
        raise SourceError("decode", "header names no data file", f"{written!r}; {_ONE_FILE}")
    if _ELSEWHERE.match(written):
        detail = f"{written!r} is an absolute path; write it relative to the header, or {_ONE_FILE}"
        raise SourceError("read", "data file is named by an absolute path", detail)
    name = written if "/" in written else written.replace("\\", "/")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(header), name))
    if path.startswith("../") or path in ("..", "."):
        detail = f"{written!r} is not {BELOW}; name a folder that holds both, or {_ONE_FILE}"
        raise SourceError("read", "data file lies outside", detail)
    return path


def data_file_in(start: bytes, path: str) -> str | None:
    """The file with the voxels of a volume whose header names it; None for every other file.

    Args:
        start: the first bytes of the file.
        path: its name says whether it may be such a header.

    Raises:
        SourceError: as `data_path`.

    >>> data_file_in(b"NDims = 3\\nElementDataFile = ct.raw\\n", "a/ct.mhd")
    'a/ct.raw'
    """
    line = next((line for ending, line in DATA_FILE_LINES.items() if path.lower().endswith(ending)), None)
    if line is None:
        return None
    head = start[:LONGEST_HEADER]
    if head.startswith(b"NRRD"):  # whose voxels may follow an empty line
        head = re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0]
    text = head.decode("utf-8", "surrogateescape")
    found = re.search(rf"^[ \t]*{line}([^\n]*)", text, re.MULTILINE)
    return None if found is None else data_path(found[1].strip(" \t\r"), path)


def data_file(files: SourceFiles, path: str) -> str | None:
    """The same of a file among `files`, of which no more than a header's length is read.

    Raises:
        SourceError: as `data_path`; or the header cannot be read.
    """
    is_header = path.lower().endswith(tuple(DATA_FILE_LINES))
    return data_file_in(files.head(path, LONGEST_HEADER), path) if is_header else None


def data_files(files: SourceFiles, paths: Iterable[str]) -> set[str]:
    """The files that headers among `paths` name, as far as they can be told."""
    found = set()
    for path in paths:
        try:
            found.add(data_file(files, path))
        except SourceError:
            continue
    return found - {None}  # type: ignore[return-value]


def with_data_files(reference: SourceExample, files: SourceFiles) -> SourceExample:
    """The reference with the files that its headers name, or with a problem where one is not there."""
    headers = [path for path in reference.paths if path.lower().endswith(tuple(DATA_FILE_LINES))]
    if not headers or reference.problem is not None:
        return reference
    parts = []
    for header in headers:
        try:
            path = data_file(files, header)
            if path is not None and files.size(path) is None:
                raise SourceError("read", "data file is missing", f"{path!r} {BELOW}")
        except SourceError as error:
            return replace(reference, problem=(error.stage, error.reason, f"{header}: {error.detail}"))
        parts += [path] if path is not None else []
    return replace(reference, parts=tuple(parts))


@dataclass(frozen=True, kw_only=True)
class FileSelection:
    """The source files as annotation layouts are to see them.

    Args:
        files: that are listed.
        takes: whether a listed path is that of an image of a class or of boxes.
        takes_scan: whether one is that of an image that may have masks, or of a mask.
        complete: the reference of an image with those of its files that its name does not tell.
    """

    files: SourceFiles
    takes: Callable[[str], bool] = is_image_name
    takes_scan: Callable[[str], bool] = is_scan_name
    complete: Callable[[SourceExample], SourceExample] = lambda reference: reference
