"""What an annotation layout yields: a reference to one source image and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from halofeed.prep.sources.volume_files import files_of


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
class Reference:
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
