"""Reader of the labels of a scan: class indices on its canonical grid, from one or several mask files.

mask file ──> canonical grid ──> the scan's grid ──> ids of the label map

With --class-overlap channels, every class is a set with one member from the first step on, and sets are merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.annotations.class_names import normalize_class_name
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.label_image import (
    MOST_SINGLE,
    check_drawn,
    decoder_of,
    read_label_image,
    renumbered,
)
from halofeed.prep.convert.tallies import NOTED_SHARE, count_labels, measure_coverage
from halofeed.prep.formats.clip.frame_folder import natural_order
from halofeed.prep.formats.volumes import ScanOptions, open_mask
from halofeed.prep.geometry.orientation import check_same_space, plan_canonical, plan_onto
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule
from halofeed.prep.geometry.volume import VolumePlan
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_image_name, stem_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import MAX_CLASS, merge_class_masks, merge_labels
from halofeed.prep.voxels.resample import apply_mask, view_of
from halofeed.schemas.fields import MOST_CLASSES, count_overlaps
from halofeed.schemas.findings import FindingName
from halofeed.system.wording import plural

Voxels = NDArray[Any]
_HIGHEST_BIT = 30
"""Highest usable bit of int32. Unknown classes get the bits from 16 on, and share this one at the end."""
_SAMPLED_PLANES = 16
_NOTED_VOXELS = 0.01
"""Offset from the scan's grid in voxels above which a mask gets a finding."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Class indices, or sets of classes, of a scan on its canonical grid, and findings about the mask."""

    values: Voxels
    findings: tuple[Finding, ...]


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the label's file in the errors of a block, which are listed under the scan."""
    try:
        yield
    except SourceError as error:
        if path in error.detail:
            raise
        raise error.at(f"label {path}") from error


@dataclass(frozen=True, kw_only=True)
class LabelReader:
    """Reader of the classes of one scan.

    Args:
        grid: grid of the scan as stored.
        canonical: the same grid in canonical order.
        reserve_mask: called with a mask and the bytes of the merged masks before it, before it is read; may raise.
        slices: see `Scan`.
    """

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    files: SourceFiles
    grid: Grid
    canonical: Grid
    reserve_mask: Callable[[MaskScan, int], None]
    options: ScanOptions
    slices: tuple[str, ...] = ()

    def read(self) -> Labels | None:
        """Return the classes; None where the scan has no label.

        Raises:
            SourceError: the label cannot be read, has another position than the scan, or has unknown classes.
        """
        found = self._of_class_masks() if self.reference.class_masks else self._of_files()
        if found is None or not self._as_sets:
            return found
        sets = found.values.astype(self.labels.stored_dtype(sets=True), copy=False)
        shared = count_overlaps(count_labels(sets))
        finding = Finding.noted(FindingName.VOXELS_OF_SEVERAL_CLASSES, plural(shared, "voxel"))
        return Labels(values=sets, findings=(*found.findings, finding) if shared else found.findings)

    @property
    def _as_sets(self) -> bool:
        return self.recipe.holds_class_sets()

    @property
    def _overlap(self) -> OverlapRule:
        return self.recipe.class_overlap  # type: ignore[return-value]

    def _open(self, path: str) -> MaskScan:
        members = dict(self.reference.mask_members).get(path, ())
        if members and is_image_name(members[0]):
            return self._open_pictures(path, members)
        return open_mask(self.files, path, self.grid, self.options, members)

    def _open_pictures(self, path: str, members: Sequence[str]) -> MaskScan:
        """Open the label of a DICOM series that has a picture for each slice.

        A picture belongs to the slice of the same name. Without such names, both are taken in order of their names if
        the slices lie in that order.
        """
        if len(members) != len(self.slices):
            detail = (
                f"{plural(len(members), 'picture')} in {path}, {plural(len(self.slices), 'slice')} in "
                "files of their own"
            )
            raise SourceError("annotation", "label pictures and slices differ in number", detail)
        pictures, slices = natural_order(members), natural_order(self.slices)
        by_name = {stem_of(member): member for member in members}
        pairs = dict(zip(slices, pictures, strict=True))
        findings: tuple[Finding, ...] = ()
        if by_name.keys() == {stem_of(one) for one in slices}:
            pairs = {one: by_name[stem_of(one)] for one in slices}
        elif tuple(slices) in (self.slices, self.slices[::-1]):
            detail = f"{pictures[0]} is the label of {slices[0]}, and so on"
            findings = (Finding.noted(FindingName.LABEL_PICTURES_BY_NAME, detail),)
        else:
            detail = f"{pictures[0]} and {slices[0]}; give each picture the name of its slice"
            raise SourceError("annotation", "label pictures have other names than the slices", detail)

        def read() -> Voxels:
            planes = []
            for one in self.slices:
                plane = read_label_image(
                    self.files.read(pairs[one]),
                    self.recipe.max_pixels,
                    self.options.reserve,
                    decoder_of(self.recipe.label_coding()),
                )
                if plane.shape != self.grid.shape[1:]:
                    detail = f"{pairs[one]}: {plane.shape}, the slice has {self.grid.shape[1:]}"
                    raise SourceError("annotation", "label picture has another size than its slice", detail)
                planes.append(plane)
            return np.stack(planes)

        size = 2 * 4 * math.prod(self.grid.shape)
        return MaskScan(
            grid=self.grid, names={}, findings=findings, files=tuple(members), read=read, read_bytes=size
        )

    def _of_files(self) -> Labels | None:
        """Return the classes of a scan with files of all classes; None where it has none."""
        merged: Voxels | None = None
        found: list[Finding] = []
        overlapped = 0
        named: list[Iterable[str] | None] = []
        for path in self.reference.masks:
            with _naming(path):
                mask = self._open(path)
                self.reserve_mask(mask, 0 if merged is None else merged.nbytes)
                values, findings, shared, names = self._of_file(mask, path)
            del mask  # frees the bytes of its file
            found += findings
            named.append(names)
            overlapped += shared
            if merged is not None:
                values, shared = merge_labels(merged, values, self._overlap)
                overlapped += shared
            merged = values
        if merged is None:
            return None
        if overlapped:
            found.append(Finding.corrected(FindingName.CLASSES_OVERLAP, plural(overlapped, "voxel")))
        found += _unnamed_findings(self.recipe, self.labels, named)
        return Labels(values=merged, findings=tuple(found))

    def _of_class_masks(self) -> Labels:
        """Return the classes of a scan with a mask file for each class."""
        found: list[Finding] = []

        def each() -> Iterator[tuple[int, Voxels]]:
            for name, path in self.reference.class_masks:
                with _naming(path):
                    mask = self._open(path)
                    self.reserve_mask(mask, 2 * math.prod(mask.grid.shape))
                    self._check_name(mask, name)
                    values, findings = self._aligned(mask, mask.read())
                found.extend(findings)
                del mask
                identity = self.labels.id_of(name)
                yield self.labels.set_of(identity) if self._as_sets else identity, values

        repeats = bool(self.recipe.map_classes)
        merged, overlapped = merge_class_masks(each(), self._overlap, may_repeat=repeats)
        if overlapped:
            found.append(Finding.corrected(FindingName.CLASS_MASKS_OVERLAP, plural(overlapped, "voxel")))
        return Labels(values=merged, findings=tuple(found))

    def _check_name(self, mask: MaskScan, name: str) -> None:
        """Refuse a class mask whose file contains the name of another class of the data set."""
        own = {normalize_class_name(one) for one in mask.names.values()} if mask.values else set()
        others = {normalize_class_name(one) for one in self.labels.ids} - {normalize_class_name(name)}
        if own and own <= others:
            listed = ", ".join(map(repr, mask.names.values()))
            detail = f"it is the mask of {name!r} by its file's name, and names {listed} itself; rename one of them"
            raise SourceError("annotation", "names of the mask disagree", detail)

    def _of_file(self, mask: MaskScan, path: str) -> tuple[Voxels, list[Finding], int, Iterable[str] | None]:
        """Return a file's ids, findings, number of voxels of several classes, and names of classes or None."""
        choice, labels = self.recipe.class_choice(), self.labels
        if mask.read_classes is None:
            values, findings = self._aligned(mask, mask.read())
            present = _present(values)
            if labels.is_open and labels.ignore is None and len(present) > MOST_SINGLE:
                check_drawn(_sampled(values), path)
            ids = labels.sets_of_values(present) if self._as_sets else labels.ids_of_values(present)
            found = [*mask.findings, *findings]
            if lost := [value for value, identity in ids.items() if value and not identity]:
                listed = f"values {', '.join(map(str, lost[:20]))}"
                found.append(Finding.noted(FindingName.CLASSES_LEFT_OUT, listed))
            return renumbered(values, ids, labels.stored_dtype(sets=self._as_sets)), found, 0, None
        targets = {
            number: choice.target(name, mask.values.get(number)) or name
            for number, name in mask.names.items()
        }
        if mask.values:
            ids = self._ids_of_named_values(mask, targets)
        else:
            ids = _ids_of_names(targets, labels, sets=self._as_sets)
        more = {0: labels.ignore[1]} if labels.ignore is not None and mask.values else {}
        stored, overlapped = mask.read_classes({**ids, **more}, self._overlap)
        values, findings = self._aligned(mask, stored)
        present = [identity for identity in _present(values) if identity != labels.stored_ignore]
        if self._as_sets:
            present = [one for one in dict.fromkeys(ids.values()) if any(one & values for values in present)]
        _check_known({ids[number]: name for number, name in targets.items()}, present, labels)
        names = targets.values() if labels.by_names or not mask.values else None
        return values, [*mask.findings, *findings], overlapped, names

    def _ids_of_named_values(self, mask: MaskScan, targets: Mapping[int, str]) -> dict[int, int]:
        """Return the id or set of each named value: by its name, or by the value where only the value is known."""
        labels = self.labels
        ids = _ids_of_names(targets, labels, sets=self._as_sets)
        known = {normalize_class_name(name): identity for name, identity in labels.ids.items() if identity}
        for number, name in targets.items():
            value = mask.values[number]
            if labels.ignore is not None and value == labels.ignore[0]:
                ids[number] = labels.ignore[1]
                continue
            by_value = labels.id_of_value(value)
            by_name = labels.ids.get(name, known.get(normalize_class_name(name)))
            if (by_name == by_value and by_value) or (by_name is None and by_value and not labels.by_names):
                ids[number] = labels.set_of(by_value) if self._as_sets else by_value
            elif by_name != by_value and not labels.by_names:
                detail = (
                    f"value {value} is {name!r} in the file, and {labels.names.get(by_value or -1, 'no class')!r} in "
                    "the data set; --label-map with a file of the names reads this one by its names"
                )
                raise SourceError("annotation", "names and values of the label disagree", detail)
        return ids

    def _aligned(self, mask: MaskScan, stored: Voxels) -> tuple[Voxels, tuple[Finding, ...]]:
        """Return a mask's values on the scan's canonical grid, and findings."""
        turned = plan_canonical(mask.grid)
        values = view_of(turned, stored)
        try:
            offset = check_same_space(self.canonical, turned.target, self.recipe.mask_grid_tolerance)
        except SourceError as error:
            same_shape = mask.grid.shape == self.grid.shape
            fix = "--mask-grid voxels takes it voxel for voxel, if its affine was lost" if same_shape else ""
            if same_shape and not _may_be_taken_by_voxels(mask.grid, self.grid):
                fix = "its axes run otherwise than the image's; --mask-grid resample takes it where its affine puts it"
            if self.recipe.mask_grid == "resample":
                return _resampled(turned.target, values, self.canonical, fix)
            if self.recipe.mask_grid == "voxels" and same_shape:
                finding = Finding.corrected(FindingName.MASK_AFFINE_DIFFERS, "taken voxel for voxel")
                return view_of(plan_canonical(self.grid), stored), (finding,)
            if not same_shape:
                raise
            raise SourceError(error.stage, error.reason, f"{error.detail}; {fix}") from None
        if offset <= _NOTED_VOXELS:
            return values, ()
        detail = f"up to {offset:.2g} voxels, taken as it lies"
        return values, (Finding.noted(FindingName.MASK_SLIGHTLY_OFF, detail),)


def _unnamed_findings(
    recipe: Recipe, labels: LabelMap, named: Iterable[Iterable[str] | None]
) -> list[Finding]:
    """Return a finding for classes that a scan's files do not name; none where a file has no names."""
    found: set[str] = set()
    for names in named:
        if names is None:
            return []
        found.update(names)
    wanted = [name for identity, name in sorted(labels.names.items()) if identity]
    absent = [name for name in wanted if name not in found]
    listed = ", ".join(absent[:20]) + (" ..." if len(absent) > 20 else "")
    if absent and len(absent) == len(wanted) and recipe.missing_classes == "refuse":
        fix = "--missing-classes empty takes the scan as one without them"
        raise SourceError("annotation", "label has none of the classes", f"{listed}; {fix}")
    finding = Finding.noted(FindingName.CLASSES_NOT_IN_LABEL, listed)
    return [finding] if absent else []


def _ids_of_names(names: Mapping[int, str], labels: LabelMap, *, sets: bool) -> dict[int, int]:
    """Return the id or set of each number of a file; an unknown class gets a number beyond the known ones."""
    if labels.is_open and names and not labels.by_names:
        raise SourceError(
            "annotation",
            "mask names its classes and no label map gives their ids",
            f"{', '.join(map(repr, names.values()))}; list them with --classes, or in a file with --label-map",
        )
    ids: dict[int, int] = {}
    beyond = MOST_CLASSES
    for place, (number, name) in enumerate(names.items(), start=1):
        identity = labels.ids.get(name)
        if identity is None or (identity == 0 and name.lower() != "background"):
            ids[number] = 1 << min(beyond, _HIGHEST_BIT) if sets else MAX_CLASS + place
            beyond += 1
        else:
            ids[number] = labels.set_of(identity) if sets else identity
    return ids


def _check_known(names: Mapping[int, str], present: Iterable[int], labels: LabelMap) -> None:
    """Refuse voxels of classes without an id, or with the background's id."""
    lost = [names[identity] for identity in present if identity > MAX_CLASS]
    if unknown := [name for name in lost if name not in labels.ids]:
        known = ", ".join(map(repr, labels.names.values()))
        raise SourceError(
            "annotation",
            "mask has unknown labels",
            f"{', '.join(map(repr, unknown))}; known are {known}; --map-classes '{unknown[0]}=background' leaves it "
            "out",
        )
    if lost:
        detail = f"{', '.join(map(repr, lost))} is 0"
        raise SourceError("annotation", "class of the mask has the background's id", detail)


def _may_be_taken_by_voxels(mask: Grid, image: Grid) -> bool:
    """Return whether voxels correspond by index without mirroring: the axes agree, or the mask's affine was lost."""
    of_mask, of_image = (
        grid.affine[:3, :3] / np.linalg.norm(grid.affine[:3, :3], axis=0) for grid in (mask, image)
    )
    is_lost = np.allclose(np.abs(mask.affine[:3, :3]), np.eye(3)[:, ::-1]) and not mask.affine[:3, 3].any()
    return bool(is_lost) or bool((np.sum(of_mask * of_image, axis=0) > 0.5).all())


def _resampled(source: Grid, values: Voxels, target: Grid, fix: str) -> tuple[Voxels, tuple[Finding, ...]]:
    """Resample a mask to its scan's grid; refuse one that lies completely outside, with the given fix."""
    onto = plan_onto(source, target)
    on_scan = apply_mask(onto, values)
    if values.any() and not on_scan.any():
        raise SourceError("geometry", "mask lies outside of its image", fix)
    finding = Finding.corrected(FindingName.MASK_ON_ANOTHER_GRID, "resampled, nearest voxel")
    return on_scan, (finding, *_outside_findings(source, onto, values))


def _outside_findings(grid: Grid, onto: VolumePlan, values: Voxels) -> tuple[Finding, ...]:
    """Return a finding where a part of the mask lies outside its scan and is lost."""
    coverage = measure_coverage(grid, [onto], values)
    share = sum(coverage.class_cut_mm3.values()) / max(1, sum(coverage.class_mm3.values()))
    if share <= NOTED_SHARE:
        return ()
    return (Finding.noted(FindingName.MASK_BEYOND_IMAGE, f"{share:.1%} of it"),)


def _sampled(values: Voxels) -> Voxels:
    """Return some evenly spaced planes that contain classes."""
    planes = np.flatnonzero(values.any(axis=(1, 2)))
    chosen = np.linspace(0, max(len(planes) - 1, 0), min(len(planes), _SAMPLED_PLANES)).astype(np.int64)
    return values[planes[chosen]]


def _present(values: Voxels) -> list[int]:
    if values.dtype.itemsize <= 2:
        return list(count_labels(values))
    return sorted({int(value) for plane in values for value in np.unique(plane)})
