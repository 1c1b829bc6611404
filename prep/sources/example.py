"""SourceExample: one source image and its annotations; FileSelection: the files that a layout may use.

The functions below them find the files with the voxels of headers that name them, such as .mhd with .raw. They read
at most the first bytes of a header.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from halofeed.prep.sources.file_names import DATA_FILE_LINES, is_image_name, is_scan_name, volume_files
from halofeed.prep.sources.files import BELOW_IMAGES_FOLDER, SourceFiles
from halofeed.system.errors import SourceError

MAX_HEADER_BYTES = 1 << 20
"""Bytes; a header of 3D Slicer with a hundred segments has about 60,000."""
_ELSEWHERE = re.compile(r"/|\\\\|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://")
_SEVERAL = re.compile(r"LIST\b|.*%\d*d")
_ONE_FILE = "save it with all voxels in one file (.nrrd or .mha)"


@dataclass(frozen=True, kw_only=True)
class Keypoint:
    """Named point of an object, in the coordinates of its box.

    `visibility` is that of COCO. 0: not labeled, usually at 0, 0; 1: labeled but hidden; 2: labeled and visible.
    """

    name: str
    y: float = 0.0
    x: float = 0.0
    visibility: int = 0


@dataclass(frozen=True, kw_only=True)
class Box:
    """One annotated object.

    Coordinates are continuous source pixels with the origin at the corner of the first pixel: a box over an image
    of width 640 extends from 0 to 640.

    Args:
        ymin, xmin, ymax, xmax: edges of the box.
        label: class name.
        group_of: Open Images' flag of a box around a group of objects.
        view: pose in VOC.
        category_id: number of the class in COCO.
        area: annotated area in source pixels², if the layout has one.
        mask: mask in COCO's form: polygons [[x, y, x, y, ...], ...] or run lengths
            {"size": [height, width], "counts": ...}.
        keypoints: points of the object; each object of a data set has the same number.
        turned_share: for an oriented box, the share of this upright box that it fills; None for every other object.
        lost_parts: number of parts of the object that are left out, because they have no area.
        corners: x, y, x, y, ... of its four corners in the order of the annotation, if the options keep them; () for an
            object without other corners than those of its box. `box_corners` gives those of both.
        is_region: an ignored region, whose label says nothing. Layouts write one like an object, so that it gets the
            units and the origin of the others, and `with_regions_apart` moves it to `SourceExample.ignored_regions`.
        zmin, zmax: the same along the third axis of a volume; None for an object of a picture.
        space: for a volume, what the coordinates are, see `halofeed.prep.geometry.volume_boxes.SPACES`.
        instance: value of the object's voxels in `SourceExample.mask`, which then gives its box; None without one.
        drawing: picture whose pixels other than 0 are the object. Its box, area and mask are unknown, with 0 for each
            edge, until `with_drawn_boxes` reads it together with the annotated picture; None for an object with a box.
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
    turned_share: float | None = None
    lost_parts: int = 0
    corners: tuple[float, ...] = ()
    zmin: float | None = None
    zmax: float | None = None
    space: str | None = None
    instance: int | None = None
    is_region: bool = False
    drawing: str | None = None


IgnoredRegion = tuple[float, float, float, float]
"""Edges ymin, xmin, ymax, xmax of a rectangle in the coordinates of boxes, which belongs to no class.

Objects of any class inside of it may be missing from the annotations. Training and evaluation leave it out for every
class, unlike an object with `is_crowd`, which is left out for its own class.
"""


@dataclass(frozen=True, kw_only=True)
class SourceExample:
    """Source image or scan and its annotations, before its pixels are read.

    Args:
        source: path below the images' root, with '/'. For a .hdr/.img pair it is the header; for a DICOM series
            the folder, with `#` and a hash if the folder holds several series.
        key: original id, stored in `image/key/source`: an integer of the annotations, or `source`.
        split: split of the source; "train" if it has none.
        group: patient or scene that must not be divided between splits; None: the image itself.
        joint: name that all examples share which copies join, with their groups; they go to one split. None without a
            copy.
        label: class name of a classification example.
        labels: class names of an example that may have several or none; `label` is then None.
        boxes: objects of a detection example, possibly empty; None for classification.
        ignored_regions: rectangles of a detection example in which objects of any class may lack annotation.
        video_frame: (path of a video, number of a frame from 0) of a picture that is a frame; `source` then names it,
            and is no file.
        declared_size: (height, width) in the annotations, either before or after the EXIF orientation is
            applied: the converter compares both.
        grid: "stored" or "displayed" if other pictures prove which of them the annotations of all pictures use.
        normalized: whether boxes are fractions of the sides of the picture.
        problem: (stage, reason, detail) of a fault in the annotations; such an example is rejected.
        channels: segmentation: files of the further channels on the same grid, in order.
        grid_channel: segmentation: number from 0 of the channel whose grid the records get, if the annotations name it;
            None: the paths of the channels show which one --channel-grid names.
        mask: segmentation: file of the labels: a volume, a mask PNG, a DICOM SEG or RTSTRUCT. If `class_masks` is empty
            too, None means an example for prediction only.
        more_masks: segmentation: further label files of the same image, to be merged with `mask`.
        class_masks: segmentation: (class name, file) if each class has its own mask.
        mask_readers: segmentation: (path of a label file, reader who drew it) where the paths name readers; the files
            of one reader are one reading of the scan.
        class_runs: segmentation: (class name, run lengths in COCO's form) of each mask that the annotations hold; a
            class may have several. () if the picture shows no class, and None if it has no such annotation.
        segments: segmentation: (id, value of its class) of each segment of `mask`, a picture whose colors are the ids
            R + 256 G + 65536 B, or a volume that numbers objects; () if the values of `mask` are classes.
        members: sorted files of a DICOM series; () for an image that is the file `source`.
        volume: for a DICOM series with several scans: number of this scan from 1, number of scans, and
            the difference between them. `members` are the files of this scan, or of all scans if they share a file.
        mask_members: segmentation: (path, files) of each mask and further channel that is a folder: of a clip's
            frames, of DICOM files, or of pictures of a DICOM series' slices.
        stored: for a DICOM series whose members the job stores elsewhere: name, digest of the members, and digest
            of their stamps or "". The last one does not affect the example.
        slices: known facts about the members, which are passed along and do not affect the example.
        bad_objects: (reason, detail) of each annotated object that is unusable and dropped.
        parts: files with the voxels of headers that name them (.mhd, .nhdr).
        gsd_m: ground sample distance in meters per source pixel that the annotations state; None without one.
        frames: number of frames of the file, each of which is a picture of its own; None for other files, and after
            `split_frames`.
        frame: number of the frame of the file, from 0, if the file has several.
        notes: remarks on how the annotations were read; they are counted and printed as warnings.
        attributes: (name, value) of columns and keys that the layout does not read. They show groups, are only there
            where splits are made, and are never written.
    """

    source: str
    key: str | int
    split: str = "train"
    group: str | None = None
    joint: str | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    boxes: tuple[Box, ...] | None = None
    ignored_regions: tuple[IgnoredRegion, ...] = ()
    video_frame: tuple[str, int] | None = None
    declared_size: tuple[int, int] | None = None
    grid: str | None = None
    normalized: bool = False
    problem: tuple[str, str, str] | None = None
    channels: tuple[str, ...] = ()
    grid_channel: int | None = None
    mask: str | None = None
    more_masks: tuple[str, ...] = ()
    class_masks: tuple[tuple[str, str], ...] = ()
    mask_readers: tuple[tuple[str, str], ...] = ()
    class_runs: tuple[tuple[str, Any], ...] | None = None
    segments: tuple[tuple[int, int], ...] = ()
    members: tuple[str, ...] = ()
    mask_members: tuple[tuple[str, tuple[str, ...]], ...] = ()
    volume: tuple[int, int, str] | None = None
    stored: tuple[str, str, str] | None = None
    slices: Any = field(default=None, compare=False, repr=False)
    bad_objects: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    gsd_m: float | None = None
    frames: int | None = None
    frame: int | None = None
    notes: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """Files to read for this example, each once: first those of the image, then those of the labels.

        >>> SourceExample(source="ct.hdr", key="ct.hdr", mask="seg.nii.gz").paths
        ('ct.hdr', 'ct.img', 'seg.nii.gz')
        """
        # A shortcut for examples of one file, because a plan calls this for millions of examples.
        drawings = self.drawings
        if not (
            self.members
            or self.stored
            or self.is_labelled
            or self.channels
            or self.parts
            or self.video_frame
            or drawings
        ):
            return volume_files(self.source)
        folders = dict(self.mask_members)
        others = (*self.channels, *self.mask_paths, *drawings)
        named = (folders.get(path) or volume_files(path) for path in others)
        return tuple(dict.fromkeys([*self._image_paths, *chain.from_iterable(named), *self.parts]))

    @property
    def origin(self) -> str:
        """Path that all pages of a file share, and all frames of a video."""
        return self.source if self.video_frame is None else self.video_frame[0]

    @property
    def _image_paths(self) -> tuple[str, ...]:
        if self.video_frame is not None:
            return (self.video_frame[0],)
        # The members of a stored series are in a file of the job, which adds them when it converts the series.
        return self.members or (() if self.stored else volume_files(self.source))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of a classification example."""
        return self.labels or (() if self.label is None else (self.label,))

    @property
    def masks(self) -> tuple[str, ...]:
        """Label files that hold all classes."""
        return () if self.mask is None else (self.mask, *self.more_masks)

    @property
    def mask_paths(self) -> tuple[str, ...]:
        """All masks: first those of one class, then those of all classes."""
        return (*(path for _, path in self.class_masks), *self.masks)

    @property
    def drawings(self) -> tuple[str, ...]:
        """Files in which objects are drawn, see `Box.drawing`."""
        return tuple(box.drawing for box in self.boxes or () if box.drawing is not None)

    @property
    def has_annotation(self) -> bool:
        """True if an example has a class, objects or label files."""
        return bool(self.classes or self.boxes) or self.is_labelled

    @property
    def is_labelled(self) -> bool:
        """True if a segmentation example has labels; an example without labels is for prediction only."""
        return self.mask is not None or bool(self.class_masks) or self.class_runs is not None


def split_frames(example: SourceExample) -> Iterator[SourceExample]:
    """Yield an example for each frame of a file; its key ends in the number of the frame, from 1.

    DICOM counts frames from 1 (PS3.3 C.7.6.6.1). A class is that of all frames.

    >>> [one.key for one in split_frames(SourceExample(source="a.dcm", key="a.dcm", frames=2))]
    ['a.dcm#1', 'a.dcm#2']
    """
    if example.frames is None or example.problem is not None:
        yield replace(example, frames=None) if example.frames is not None else example
        return
    for number in range(example.frames):
        yield replace(example, key=f"{example.key}#{number + 1}", frames=None, frame=number)


@dataclass(frozen=True, kw_only=True)
class FileSelection:
    """Source files that an annotation layout may use.

    Args:
        files: source files.
        takes: function that returns whether a path is an image with a class or boxes.
        takes_scan: function that returns whether a path is an image that may have masks, or a mask.
        complete: function that adds files to an example that its name does not show.
    """

    files: SourceFiles
    takes: Callable[[str], bool] = is_image_name
    takes_scan: Callable[[str], bool] = is_scan_name
    complete: Callable[[SourceExample], SourceExample] = lambda example: example


def frame_key(video: str, number: int) -> int:
    """Return the key of a frame of a video: 43 bits of a hash of the path, and 20 bits of the number.

    The keys of a video ascend, and a shard has its records by rising key. So its frames are decoded in their order.

    >>> frame_key("a.mp4", 7) - frame_key("a.mp4", 5)
    2
    """
    digest = hashlib.blake2b(video.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 21 << 20) | (number & 0xFFFFF)


def resolve_data_path(written: str, header: str) -> str | None:
    """Return the path below the root of the file that a header names; None if the header file holds the voxels.

    Args:
        written: name of the file in the header.
        header: path of the header.

    Raises:
        SourceError: the header names several files or none, or the file is outside the images' folder.

    >>> resolve_data_path("ct.raw", "a/ct.mhd"), resolve_data_path("../raw/ct.raw", "a/ct.mhd")
    ('a/ct.raw', 'raw/ct.raw')
    >>> resolve_data_path("LOCAL", "a/ct.mhd") is None
    True
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
        detail = f"{written!r} is not {BELOW_IMAGES_FOLDER}; name a folder that holds both, or {_ONE_FILE}"
        raise SourceError("read", "data file lies outside", detail)
    return path


def parse_data_file(start: bytes, path: str) -> str | None:
    """Return the file with the voxels of a header that names it; None for every other file.

    Args:
        start: first bytes of the file.
        path: path of the file; its extension shows whether it may be such a header.

    Raises:
        SourceError: see `resolve_data_path`.

    >>> parse_data_file(b"NDims = 3\\nElementDataFile = ct.raw\\n", "a/ct.mhd")
    'a/ct.raw'
    """
    line = next((line for ending, line in DATA_FILE_LINES.items() if path.lower().endswith(ending)), None)
    if line is None:
        return None
    head = start[:MAX_HEADER_BYTES]
    if head.startswith(b"NRRD"):  # the voxels may follow an empty line
        head = re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0]
    text = head.decode("utf-8", "surrogateescape")
    found = re.search(rf"^[ \t]*{line}([^\n]*)", text, re.MULTILINE)
    return None if found is None else resolve_data_path(found[1].strip(" \t\r"), path)


def data_file(files: SourceFiles, path: str) -> str | None:
    """Return the file with the voxels of a header among `files`; None for every other file.

    Raises:
        SourceError: see `resolve_data_path`; or the header cannot be read.
    """
    is_header = path.lower().endswith(tuple(DATA_FILE_LINES))
    return parse_data_file(files.head(path, MAX_HEADER_BYTES), path) if is_header else None


def data_files(files: SourceFiles, paths: Iterable[str]) -> set[str]:
    """Return the files that the headers among `paths` name; unreadable headers are skipped."""
    found = set()
    for path in paths:
        try:
            found.add(data_file(files, path))
        except SourceError:
            continue
    return found - {None}  # type: ignore[return-value]


def with_data_files(example: SourceExample, files: SourceFiles) -> SourceExample:
    """Return the example with the files that its headers name, or with a problem if one is missing."""
    headers = [path for path in example.paths if path.lower().endswith(tuple(DATA_FILE_LINES))]
    if not headers or example.problem is not None:
        return example
    parts = []
    for header in headers:
        try:
            path = data_file(files, header)
            if path is not None and files.size(path) is None:
                raise SourceError("read", "data file is missing", f"{path!r} {BELOW_IMAGES_FOLDER}")
        except SourceError as error:
            return replace(example, problem=(error.stage, error.reason, f"{header}: {error.detail}"))
        parts += [path] if path is not None else []
    return replace(example, parts=tuple(parts))
