"""Reader of the labels of a scan: class ids on its canonical grid, from one or several mask files.

file without names     values ──> canonical grid of the scan ──> ids of the label map ──┐
file that names them   values ──> ids of the label map ──> canonical grid of the scan ──┴──> merged with other files
one file per class     values ──> canonical grid of the scan ──> merged under the id of each class

A value is what a file stores for a voxel, a number is a key of `MaskScan.names`, and an id is what records store. With
--class-overlap channels, sets of classes (`LabelMap.set_of`) take the place of ids, and merged sets are unions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.class_names import normalize_class_name
from halofeed.prep.annotations.documents import parse_json_document, read_limited
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.label_image import MAX_SINGLE, check_drawn, decoder_of, read_label_image, renumber
from halofeed.prep.convert.tallies import NOTED_SHARE, count_labels, measure_coverage
from halofeed.prep.formats.clip.frame_folder import natural_order
from halofeed.prep.formats.volume.voxel_values import NEGATIVE_LABELS
from halofeed.prep.formats.volume_formats import ScanOptions, open_mask
from halofeed.prep.geometry.orientation import check_same_space, plan_canonical, plan_onto, plan_part
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import VOLUME_FILE_EXTENSIONS, extension_of, is_still_name, stem_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import MAX_CLASS, merge_class_masks, merge_labels
from halofeed.prep.voxels.resample import apply_mask, view_of
from halofeed.prep.voxels.votes import RULES, combine_readings
from halofeed.schemas.fields import MAX_CLASSES, count_overlaps
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

Voxels = NDArray[Any]
"""Integers [depth, height, width]."""
_HIGHEST_BIT = 30
"""Highest bit of a positive int32. Classes without an id get the bits from 16 on, and share this one at the end."""
_MAX_BYTES = 1 << 20
_SAMPLED_PLANES = 16
_NOTED_OFFSET_VOXELS = 0.01
"""Offset from the scan's grid, as a fraction of a voxel, above which a mask gets a finding."""


@dataclass(frozen=True, kw_only=True)
class ScanLabels:
    """Class ids, or sets of classes, of a scan on its canonical grid, and findings about its masks."""

    values: Voxels
    findings: tuple[Finding, ...]


@contextmanager
def _name_file_in_errors(path: str, kind: str) -> Iterator[None]:
    """Add the mask's path to errors of a block, because a rejected scan is listed under the path of its image.

    Args:
        path: the mask.
        kind: "classes", "sets" or "one class", which decides what can be done with negative values.
    """
    try:
        yield
    except SourceError as error:
        found = error
        if error.reason == NEGATIVE_LABELS and re.fullmatch(r"[-0-9,]+", error.detail):
            found = SourceError(
                error.stage, error.reason, f"{error.detail}; {_fix_of_negative(error.detail, kind)}"
            )
        if path in found.detail:
            raise
        raise found.at(f"label {path}") from error


def _fix_of_negative(listed: str, kind: str) -> str:
    """Return what to do with negative values, written -2,-1, of a label of all classes, of sets, or of one class.

    >>> _fix_of_negative("-1", "classes")
    '--ignore-label=-1 ignores these voxels, --map-classes=-1=background makes them background'
    """
    if kind == "one class":
        return "a mask of one class holds 0 and one other value; write 0 into these voxels"
    mapped = "--map-classes=" + ",".join(f"{value}=background" for value in listed.split(","))
    if kind == "sets":
        return f"{mapped} makes these voxels background"
    return f"--ignore-label={listed} ignores these voxels, {mapped} makes them background"


@dataclass(frozen=True, kw_only=True)
class LabelReader:
    """Reader of the classes of one scan.

    Args:
        reference: source example of the scan, with the paths of its masks.
        grid: grid of the scan as stored.
        canonical: the same grid in canonical order.
        reserve_mask: called before a mask is read, with the mask and the bytes of the merged masks before it; it may
            raise to stop the reading.
        slices: see `halofeed.prep.geometry.scan.Scan`.
    """

    recipe: Recipe
    label_map: LabelMap
    reference: SourceExample
    files: SourceFiles
    grid: Grid
    canonical: Grid
    reserve_mask: Callable[[MaskScan, int], None]
    options: ScanOptions
    slices: tuple[str, ...] = ()

    def read(self) -> ScanLabels | None:
        """Return the classes; None where the scan has no label.

        Raises:
            SourceError: the label cannot be read, has another position than the scan, or has unknown classes.
        """
        found = self._read_class_masks() if self.reference.class_masks else self._read_files()
        if found is None or not self._as_sets:
            return found
        sets = found.values.astype(self.label_map.stored_dtype(sets=True), copy=False)
        overlapped = count_overlaps(count_labels(sets))
        finding = Finding.noted(FindingName.VOXELS_OF_SEVERAL_CLASSES, plural(overlapped, "voxel"))
        return ScanLabels(values=sets, findings=(*found.findings, finding) if overlapped else found.findings)

    @property
    def _as_sets(self) -> bool:
        return self.recipe.holds_class_sets()

    @property
    def _overlap(self) -> OverlapRule:
        return self.recipe.class_overlap  # type: ignore[return-value]  # a recipe checks its options

    def _open(self, path: str) -> MaskScan:
        members = dict(self.reference.mask_members).get(path, ())
        # A label of several files: a picture for each slice (CHAOS), or DICOM slices (3D-IRCADb).
        if members and is_still_name(members[0]):
            return self._open_pictures(path, members)
        return open_mask(self.files, path, self.grid, self.options, members)

    def _open_pictures(self, path: str, members: Sequence[str]) -> MaskScan:
        """Open the label of a DICOM series that has a picture for each slice.

        A picture belongs to the slice of the same name. Without such names, both are taken in order of their names if
        the slices have that order.
        """
        # Pictures are paired with slices in order, so one more or less would shift all that follow.
        if len(members) != len(self.slices):
            detail = (
                f"{plural(len(members), 'picture')} in {path}, {plural(len(self.slices), 'slice')} in "
                "files of their own"
            )
            raise SourceError("annotation", "label pictures and slices differ in number", detail)
        pictures, slices = natural_order(members), natural_order(self.slices)
        by_name = {stem_of(member): member for member in members}
        picture_of = dict(zip(slices, pictures, strict=True))
        findings: tuple[Finding, ...] = ()
        # Names are a better proof than the order, which sorting by name may not give.
        if by_name.keys() == {stem_of(one) for one in slices}:
            picture_of = {one: by_name[stem_of(one)] for one in slices}
        elif tuple(slices) in (self.slices, self.slices[::-1]):
            detail = f"{pictures[0]} is the label of {slices[0]}, and so on"
            findings = (Finding.noted(FindingName.LABEL_PICTURES_BY_NAME, detail),)
        else:
            detail = f"{pictures[0]} and {slices[0]}; give each picture the name of its slice"
            raise SourceError("annotation", "label pictures have other names than the slices", detail)

        def read() -> Voxels:
            planes = []
            for path in self.slices:
                plane = read_label_image(
                    self.files.read(picture_of[path]),
                    self.recipe.max_pixels,
                    self.options.reserve,
                    decoder_of(self.recipe.label_coding()),
                    self.label_map,
                )
                # Resizing a label picture would be a guess about its origin.
                if plane.shape != self.grid.shape[1:]:
                    detail = f"{picture_of[path]}: {plane.shape}, the slice has {self.grid.shape[1:]}"
                    raise SourceError("annotation", "label picture has another size than its slice", detail)
                planes.append(plane)
            return np.stack(planes)

        size = 2 * 4 * math.prod(self.grid.shape)  # the planes and their stack, at most int32
        return MaskScan(
            grid=self.grid, names={}, findings=findings, files=tuple(members), read=read, read_bytes=size
        )

    def _readings_of(self, paths: Sequence[str], without_reader: Callable[[str], str]) -> list[list[str]]:
        """Return the files of each reading of the scan: one with all files, unless --several-masks is a vote.

        Args:
            without_reader: maps a path whose reader is unknown to a name that the files of one reading share.
        """
        if self.recipe.several_masks not in RULES:
            return [[*paths]] if paths else []
        readers = dict(self.reference.mask_readers)
        found: dict[str, list[str]] = {}
        for path in paths:
            found.setdefault(readers[path] if path in readers else without_reader(path), []).append(path)
        return [*found.values()]

    def _read_files(self) -> ScanLabels | None:
        """Return the classes of a scan with files of all classes; None where it has no file."""
        readings: list[Voxels] = []
        findings: list[Finding] = []
        overlapped = 0
        named: list[Iterable[str] | None] = []
        for paths in self._readings_of(self.reference.masks, lambda path: path):
            merged: Voxels | None = None
            held = sum(one.nbytes for one in readings)
            for path in paths:
                with _name_file_in_errors(path, "sets" if self._as_sets else "classes"):
                    mask = self._open(path)
                    self.reserve_mask(mask, held + (0 if merged is None else merged.nbytes))
                    values, found, overlapped_in_file, names = self._read_file(mask, path)
                del mask  # frees the bytes of its file
                findings += found
                named.append(names)
                overlapped += overlapped_in_file
                if merged is not None:
                    values, overlapped_by_file = merge_labels(merged, values, self._overlap)
                    overlapped += overlapped_by_file
                merged = values
            if merged is not None:
                readings.append(merged)
        if not readings:
            return None
        label, voted = self._combine(readings)
        findings += voted
        if overlapped:
            findings.append(Finding.corrected(FindingName.CLASSES_OVERLAP, plural(overlapped, "voxel")))
        findings += _find_unnamed_classes(self.recipe, self.label_map, named)
        return ScanLabels(values=label, findings=tuple(findings))

    def _combine(self, readings: Sequence[Voxels]) -> tuple[Voxels, list[Finding]]:
        """Return the label of the readings of one scan by --several-masks, and findings about what it changed."""
        if len(readings) == 1:
            return readings[0], []
        rule = self.recipe.several_masks
        dtype = np.result_type(*readings)
        combined, undecided = combine_readings([one.astype(dtype, copy=False) for one in readings], rule)
        differing = np.zeros(combined.shape, np.bool_)
        for one in readings:
            differing |= one != combined
        what = "readers" if self.reference.mask_readers else "masks"
        voxels = plural(int(differing.sum()), "voxel")
        detail = f"{rule} of {len(readings)} {what}; {voxels} in which one differs"
        if undecided:
            detail += f", {undecided:,} of them undecided and background"
        findings = [Finding.corrected(FindingName.MASKS_COMBINED, detail)]
        drawn = {identity for one in readings for identity in _distinct_values(one)} - {
            *_distinct_values(combined)
        }
        # A structure that most readers did not draw is gone, and files of different structures are no readings.
        if lost := [
            self.label_map.names.get(identity, str(identity)) for identity in sorted(drawn) if identity
        ]:
            findings.append(Finding.noted(FindingName.CLASSES_OUTVOTED, ", ".join(lost[:20])))
        return combined, findings

    def _read_class_masks(self) -> ScanLabels:
        """Return the classes of a scan with a mask file for each class, or for each class and reader."""
        findings: list[Finding] = []
        readings: list[Voxels] = []
        overlapped = 0
        names = {path: name for name, path in self.reference.class_masks}
        # --map-classes may join the masks of several classes, and --several-masks those of one class.
        repeats = bool(self.recipe.map_classes) or self.recipe.several_masks != "refuse"

        def masks(paths: Sequence[str]) -> Iterator[tuple[int, Voxels]]:
            held = sum(one.nbytes for one in readings)
            for path in paths:
                name = names[path]
                with _name_file_in_errors(path, "one class"):
                    mask = self._open(path)
                    # Merged masks are at most uint16.
                    self.reserve_mask(mask, held + 2 * math.prod(mask.grid.shape))
                    self._check_name(mask, name)
                    values, found = self._align(mask, mask.read())
                findings.extend(found)
                del mask
                identity = self.label_map.id_of(name)
                yield self.label_map.set_of(identity) if self._as_sets else identity, values

        for paths in self._readings_of([*names], lambda _: ""):
            merged, count = merge_class_masks(masks(paths), self._overlap, may_repeat=repeats)
            readings.append(merged)
            overlapped += count
        label, voted = self._combine(readings)
        if overlapped:
            findings.append(Finding.corrected(FindingName.CLASS_MASKS_OVERLAP, plural(overlapped, "voxel")))
        return ScanLabels(values=label, findings=(*findings, *voted))

    def _check_name(self, mask: MaskScan, name: str) -> None:
        """Refuse a class mask whose file contains the name of another class of the data set."""
        own = {normalize_class_name(one) for one in mask.names.values()} if mask.values else set()
        others = {normalize_class_name(one) for one in self.label_map.ids} - {normalize_class_name(name)}
        # NRRD and NIfTI may name the class themselves; the file's name says another one.
        if own and own <= others:
            listed = ", ".join(map(repr, mask.names.values()))
            detail = f"it is the mask of {name!r} by its file's name, and names {listed} itself; rename one of them"
            raise SourceError("annotation", "names of the mask disagree", detail)

    def _read_file(
        self, mask: MaskScan, path: str
    ) -> tuple[Voxels, list[Finding], int, Iterable[str] | None]:
        """Return a file's ids, findings, number of voxels of several classes, and names of classes or None.

        The names are those that the data set uses; None where voxels have the values of the label map's classes.
        """
        if mask.read_classes is None:
            values, found = self._read_values(mask, path)
            return values, found, 0, None
        choice, label_map = self.recipe.class_choice(), self.label_map
        targets = {
            number: choice.target(name, mask.values.get(number), mask.codes.get(number, ())) or name
            for number, name in mask.names.items()
        }
        ids = self._ids_of_targets(mask, targets)
        # `MaskScan.read_classes` takes the id of voxels to ignore under the number 0.
        stored_ignore = label_map.stored_ignore
        ignored = {0: stored_ignore} if stored_ignore is not None and mask.values else {}
        stored, overlapped = mask.read_classes({**ids, **ignored}, self._overlap)
        values, findings = self._align(mask, stored)
        present = self._present_ids(values, ids)
        _check_known({ids[number]: name for number, name in targets.items()}, present, label_map)
        names = targets.values() if label_map.by_names or not mask.values else None
        return values, [*mask.findings, *findings], overlapped, names

    def _ids_of_targets(self, mask: MaskScan, targets: Mapping[int, str]) -> dict[int, int]:
        """Return the id or set of each number of a file: by value too if the file has values beside its names."""
        if mask.values:
            return self._ids_of_named_values(mask, targets)
        return _ids_of_names(targets, self.label_map, sets=self._as_sets)

    def _present_ids(self, values: Voxels, ids: Mapping[int, int]) -> list[int]:
        """Return the ids or sets of single classes in a label, without the one to ignore."""
        present = [one for one in _distinct_values(values) if one != self.label_map.stored_ignore]
        if not self._as_sets:
            return present
        return [one for one in dict.fromkeys(ids.values()) if any(one & union for union in present)]

    def _read_values(self, mask: MaskScan, path: str) -> tuple[Voxels, list[Finding]]:
        """Return the ids and findings of a file whose values have no names."""
        values, findings = self._align(mask, mask.read())
        label_map, present = self.label_map, _distinct_values(values)
        if classes := self._classes_of_objects(path, present):
            values = renumber(values, classes, "uint16")
            present = sorted({*classes.values()})
            findings = (
                *findings,
                Finding.corrected(FindingName.OBJECTS_BY_CLASS, f"{len(classes) - 1} objects"),
            )
        # With a label map, unknown values are refused one by one; an ignore label is often drawn as a thin border.
        if label_map.is_open and label_map.ignore is None and len(present) > MAX_SINGLE:
            check_drawn(_sample_planes(values), path)
        ids = label_map.sets_of_values(present) if self._as_sets else label_map.ids_of_values(present)
        found = [*mask.findings, *findings]
        # --classes and --map-classes remove classes on purpose; the report names them, in case one was forgotten.
        if left_out := [value for value, identity in ids.items() if value and not identity]:
            listed = f"values {', '.join(map(str, left_out[:20]))}"
            found.append(Finding.noted(FindingName.CLASSES_LEFT_OUT, listed))
        return renumber(values, ids, label_map.stored_dtype(sets=self._as_sets)), found

    def _classes_of_objects(self, path: str, present: Sequence[int]) -> dict[int, int]:
        """Return the value of each object's class by the object's number; {} if values are not numbers of objects.

        nnDetection writes CASE.json beside CASE.nii.gz with {"instances": {"1": 0}}: the class, counted from 0, of each
        number in the label. Here value 0 is the background, so class 0 is value 1.

        Source: nnDetection, README, "Adding New Data Sets".

        Raises:
            SourceError: stage `annotation`: the label holds a number that the document lacks.
        """
        document_path = f"{path.removesuffix(extension_of(path))}.json"
        if not path.lower().endswith(VOLUME_FILE_EXTENSIONS) or self.files.size(document_path) is None:
            return {}
        instances = _instances_of(read_limited(self.files, document_path, "document of a label", _MAX_BYTES))
        # dcm2niix writes CASE.json too, with fields of the header.
        if instances is None:
            return {}
        classes = {0: 0, **{int(key): one + 1 for key, one in instances.items() if key.isdecimal()}}
        if unknown := [value for value in present if value not in classes]:
            listed = ", ".join(map(str, unknown[:10]))
            known = ", ".join([*instances][:10])
            detail = f"{listed}; {document_path} gives the classes of {known}; correct one of them"
            raise SourceError("annotation", "object of the label has no class", detail)
        return {value: classes[value] for value in (0, *present)}

    def _ids_of_named_values(self, mask: MaskScan, targets: Mapping[int, str]) -> dict[int, int]:
        """Return the id or set of each named value, by its name or else its value; refuse those that disagree."""
        label_map = self.label_map
        ids = _ids_of_names(targets, label_map, sets=self._as_sets)
        known = {normalize_class_name(name): identity for name, identity in label_map.ids.items() if identity}
        for number, name in targets.items():
            value = mask.values[number]
            if label_map.stored_ignore is not None and value in label_map.ignored_values:
                ids[number] = label_map.stored_ignore
                continue
            by_value = label_map.id_of_value(value)
            by_name = label_map.ids.get(name, known.get(normalize_class_name(name)))
            # Of a data set with classes by value, a name in the file is a second statement about the value.
            is_confirmed = by_name == by_value or (by_name is None and not label_map.by_names)
            if by_value and is_confirmed:
                ids[number] = label_map.set_of(by_value) if self._as_sets else by_value
            elif by_name != by_value and not label_map.by_names:
                raise _names_disagree(label_map, name, value, by_value)
        return ids

    def _align(self, mask: MaskScan, stored: Voxels) -> tuple[Voxels, tuple[Finding, ...]]:
        """Return a mask's values on the scan's canonical grid, and findings; --mask-grid rules masks on other grids."""
        turned = plan_canonical(mask.grid)
        values = view_of(turned, stored)
        try:
            offset = check_same_space(self.canonical, turned.target, self.recipe.mask_grid_tolerance)
        except SourceError as error:
            part = plan_part(self.canonical, turned.target, self.recipe.mask_grid_tolerance)
            # Programs crop a label to what is drawn; its voxels are still those of the scan.
            if part is not None:
                return apply_mask(part, values), (Finding.noted(FindingName.MASK_IS_PART, ""),)
            same_shape = mask.grid.shape == self.grid.shape
            fix = "--mask-grid voxels takes it voxel for voxel, if its affine was lost" if same_shape else ""
            if same_shape and not _may_be_taken_by_voxels(mask.grid, self.grid):
                fix = "its axes run otherwise than the image's; --mask-grid resample takes it where its affine puts it"
            if self.recipe.mask_grid == "resample":
                return _resample(turned.target, values, self.canonical, fix)
            # A mask of the scan's shape may have lost its affine; one of another shape was drawn on another grid.
            if self.recipe.mask_grid == "voxels" and same_shape:
                finding = Finding.corrected(FindingName.MASK_AFFINE_DIFFERS, "taken voxel for voxel")
                return view_of(plan_canonical(self.grid), stored), (finding,)
            if not same_shape:
                raise
            raise SourceError(error.stage, error.reason, f"{error.detail}; {fix}") from None
        if offset <= _NOTED_OFFSET_VOXELS:
            return values, ()
        detail = f"up to {offset:.2g} voxels, taken as it lies"
        return values, (Finding.noted(FindingName.MASK_SLIGHTLY_OFF, detail),)


def _names_disagree(label_map: LabelMap, name: str, value: int, by_value: int | None) -> SourceError:
    """Return the error for a value with another name in the file than in the data set."""
    known_as = label_map.names.get(by_value or -1, "no class")
    detail = (
        f"value {value} is {name!r} in the file, and {known_as!r} in the data set; --label-map with a file "
        "of the names reads this one by its names"
    )
    return SourceError("annotation", "names and values of the label disagree", detail)


def _instances_of(data: bytes) -> dict[str, int] | None:
    """Return the class of each object in a document of nnDetection; None if it is another document."""
    document = parse_json_document(data)
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, dict):
        return None
    return instances if all(type(one) is int and one >= 0 for one in instances.values()) else None


def _find_unnamed_classes(
    recipe: Recipe, label_map: LabelMap, named: Iterable[Iterable[str] | None]
) -> list[Finding]:
    """Return a finding for classes that no file names, if all files have names; --missing-classes may refuse them."""
    found: set[str] = set()
    for names in named:
        # A file without names does not say which classes it lacks.
        if names is None:
            return []
        found.update(names)
    wanted = [name for identity, name in sorted(label_map.names.items()) if identity]
    absent = [name for name in wanted if name not in found]
    listed = ", ".join(absent[:20]) + (" ..." if len(absent) > 20 else "")
    # A scan without some organs is usual; one without any class is mostly paired with a wrong label.
    if absent and len(absent) == len(wanted) and recipe.missing_classes == "refuse":
        fix = "--missing-classes empty takes the scan as one without them"
        raise SourceError("annotation", "label has none of the classes", f"{listed}; {fix}")
    finding = Finding.noted(FindingName.CLASSES_NOT_IN_LABEL, listed)
    return [finding] if absent else []


def _ids_of_names(names: Mapping[int, str], label_map: LabelMap, *, sets: bool) -> dict[int, int]:
    """Return the id or set of each number of a file; an unknown class gets a number above `MAX_CLASS`."""
    if label_map.is_open and names and not label_map.by_names:
        raise SourceError(
            "annotation",
            "mask names its classes and no label map gives their ids",
            f"{', '.join(map(repr, names.values()))}; list them with --classes, or in a file with --label-map",
        )
    ids: dict[int, int] = {}
    bit = MAX_CLASSES
    for place, (number, name) in enumerate(names.items(), start=1):
        identity = label_map.ids.get(name)
        if identity is None or (identity == 0 and name.lower() != "background"):
            ids[number] = 1 << min(bit, _HIGHEST_BIT) if sets else MAX_CLASS + place
            bit += 1
        else:
            ids[number] = label_map.set_of(identity) if sets else identity
    return ids


def _check_known(names: Mapping[int, str], present: Iterable[int], label_map: LabelMap) -> None:
    """Refuse voxels of classes without an id, or with the background's id: those with a number above `MAX_CLASS`."""
    lost = [names[identity] for identity in present if identity > MAX_CLASS]
    if unknown := [name for name in lost if name not in label_map.ids]:
        known = ", ".join(map(repr, label_map.names.values()))
        raise SourceError(
            "annotation",
            "mask has unknown labels",
            f"{', '.join(map(repr, unknown))}; known are {known}; --map-classes '{unknown[0]}=background' leaves it "
            "out",
        )
    # A class with the id 0 would silently become background.
    if lost:
        detail = f"{', '.join(map(repr, lost))} is 0"
        raise SourceError("annotation", "class of the mask has the background's id", detail)


def _may_be_taken_by_voxels(mask: Grid, image: Grid) -> bool:
    """Return whether voxels correspond by index without mirroring: the axes agree, or the mask's affine was lost."""
    of_mask, of_image = (
        grid.affine[:3, :3] / np.linalg.norm(grid.affine[:3, :3], axis=0) for grid in (mask, image)
    )
    # The identity of the order (width, height, depth) in files; formats differ in the signs of patient axes.
    is_lost = np.allclose(np.abs(mask.affine[:3, :3]), np.eye(3)[:, ::-1]) and not mask.affine[:3, 3].any()
    return bool(is_lost) or bool((np.sum(of_mask * of_image, axis=0) > 0.5).all())  # within 60 degrees


def _resample(source: Grid, values: Voxels, target: Grid, fix: str) -> tuple[Voxels, tuple[Finding, ...]]:
    """Resample a mask to its scan's grid; refuse one that is completely outside, with `fix` as the detail."""
    onto = plan_onto(source, target)
    on_scan = apply_mask(onto, values)
    # A label that leaves nothing on its scan belongs to another one, or its affine was lost.
    if values.any() and not on_scan.any():
        raise SourceError("geometry", "mask lies outside of its image", fix)
    finding = Finding.corrected(FindingName.MASK_ON_ANOTHER_GRID, "resampled, nearest voxel")
    coverage = measure_coverage(source, [onto], values)
    lost_share = sum(coverage.class_cut_voxels.values()) / max(1, sum(coverage.class_voxels.values()))
    if lost_share <= NOTED_SHARE:
        return on_scan, (finding,)
    return on_scan, (finding, Finding.noted(FindingName.MASK_BEYOND_IMAGE, f"{lost_share:.1%} of it"))


def _sample_planes(values: Voxels) -> Voxels:
    """Return `_SAMPLED_PLANES` evenly spaced planes that contain classes, or all such planes if they are fewer."""
    planes = np.flatnonzero(values.any(axis=(1, 2)))
    chosen = np.linspace(0, max(len(planes) - 1, 0), min(len(planes), _SAMPLED_PLANES)).astype(np.int64)
    return values[planes[chosen]]


def _distinct_values(values: Voxels) -> list[int]:
    """Return the distinct values in ascending order; int32 by planes, because sorting a volume would copy it."""
    if values.dtype.itemsize <= 2:
        return list(count_labels(values))
    return sorted({int(value) for plane in values for value in np.unique(plane)})
