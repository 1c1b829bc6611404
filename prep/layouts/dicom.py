"""Reader of folders with DICOM series, with assignment of masks to series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    refuse_annotation_file,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.pairing import (
    NEITHER,
    NO_IMAGE,
    LabelFiles,
    PairKey,
    class_values,
    find_split_folder,
    join_class_masks,
    pair_up,
    single_file_label,
    split_at,
    target_classes,
)
from halofeed.prep.annotations.patterns import Pattern, compile_pattern
from halofeed.prep.formats.dicom.sop_classes import SECONDARY_CAPTURE, SINGLE_PICTURE_ADVICE
from halofeed.prep.layouts.dicom_masks import describe_choice, fits_pattern, series_near
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import (
    ARCHIVE_EXTENSIONS,
    ARRAY_EXTENSIONS,
    extension_of,
    folder_of,
    is_scan_name,
    is_volume_name,
    iterate_scans,
    missing_part,
    stem_of,
)
from halofeed.prep.sources.files import UNREADABLE_FILE, SourceFiles, unlisted_folders
from halofeed.system.errors import AnnotationsError, Problem, SourceError

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.grouping import DicomSeries, OtherFile
    from halofeed.prep.formats.dicom.series_listing import SeriesListing
    from halofeed.prep.formats.volume.reading_options import SeriesPolicy

_DAMAGED = ("read", "damaged file among the slices")
_DAMAGED_FIX = "copy it again, or take it out of the folder"
_SEVERAL = ("annotation", "label fits several series")
_SEVERAL_FIX = "choose one by --series-description, or name both in a table (--layout csv)"
_NOT_IN_FOLDER = "no series lies in its folder; --label-pattern says which it belongs to"
_NOT_BELOW = "the series that it was drawn on is not below the folder"
_NOT_CHOSEN: Problem = ("selection", "mask is not chosen by --label-pattern", "")
_UNREAD: Problem = ("read", "not a volume format that is read", "store the label as NIfTI, SEG or RTSTRUCT")
_WITHOUT_POSITION = "image without position"
_FLAT_KINDS = (SECONDARY_CAPTURE, _WITHOUT_POSITION)
_FIXES: Mapping[str, str] = {
    SECONDARY_CAPTURE: "--secondary-captures take takes such images where they are slices",
    "survey by its description": "--series-description takes a series by its description",
    "mosaic": "Siemens' many slices in one image: make NIfTI of them with dcm2niix, then --layout pairs",
    _WITHOUT_POSITION: "a slice must say where it lies: export the original series",
    "nuclear medicine image": "its header places no slice: save it as NIfTI with 3D Slicer, then --layout pairs or csv",
    "nuclear medicine projections": "projections are no slices: export the reconstructed series (RECON TOMO)",
    "nuclear medicine planar image": "it has no slices: leave it out, or export a reconstructed series (RECON TOMO)",
    "nuclear medicine planar time series": "its frames are times of one view: leave it out, or export RECON TOMO",
    "dose": "a dose is no scan: save it as NIfTI (plastimatch convert --input-dose-img FILE --output-dose-img "
    "dose.nii.gz), then name it in a table as an image or a further channel (--layout csv)",
    "segmentation": "masks need the series that they were drawn on below the same folder",
    "structure set": "contours need the series that they were drawn on below the same folder",
    "whole-slide image": "whole slides are not read: save tiles of them as PNG (e.g. with OpenSlide)",
    "DICOMDIR": "it lists files that must lie beside it",
}
"""Advice for files of a kind that contains no slices."""


@dataclass(frozen=True, kw_only=True)
class FoundSeries:
    """One series of a folder.

    Args:
        source: name in the data set: the folder of its files ("." is the root), with `#` and a hash if that holds
            several.
        scan: facts from the headers of its files.
        problem: reason for not taking it, such as too few slices or a damaged file in its folder that may be a slice.
        damaged: damaged file in its folder.
    """

    source: str
    scan: DicomSeries
    problem: Problem | None
    damaged: str | None

    @property
    def example(self) -> SourceExample:
        """Return the example of its image without a label, in split "train"."""
        return SourceExample(
            source=self.source,
            key=self.source,
            group=self.scan.group,
            members=tuple(sorted(self.scan.members)),
            stored=self.scan.stored,
            volume=self.scan.volume,
            problem=self.problem,
        )

    @property
    def folders(self) -> list[str]:
        """Return the folders that contain it, outermost first."""
        return self.scan.folder.split("/") if self.scan.folder != "." else []

    @property
    def description(self) -> str:
        """Return a short description for messages."""
        rows, columns = self.scan.size
        return f"{self.scan.modality or 'DICOM'}, {self.scan.slices} of {rows} x {columns}"

    @property
    def voxels(self) -> int:
        """Return the number of its voxels."""
        rows, columns = self.scan.size
        return self.scan.slices * rows * columns

    @property
    def is_left_out(self) -> bool:
        """Return whether it is complete but not selected."""
        return self.problem is not None and self.problem[0] == "selection"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every DICOM series below the folder with its mask, and one for every other file.

    Headers alone define the series; names do not. A group is the salted hash of the patient's id. The mask of a
    series is

    1. a SEG or RTSTRUCT that refers to the series, or to its images if the series contains several volumes. One that
       refers to no series belongs to the only series in its frame of reference. A label pattern takes those that it
       fits.
    2. with a label pattern: the NIfTI file, the series of label slices, or the pictures of one folder that match it
       with {id} as the series' folder, or as the part of the folder that the image pattern defines; without {id}, as
       in 3. With {class}, each of them is the mask of one class.
    3. without a label pattern: a NIfTI file in the series' folder or its parent, if that leaves only one series;
       otherwise one with the name of the series' folder.

    If no file could be a mask, all series are for prediction only. A mask that fits no series leaves all unlabeled
    series without a label, see `LayoutOptions.missing_masks`. A folder called train, val, test, ... is the split.

    Raises:
        AnnotationsError: there is no DICOM series.
    """
    refuse_annotation_file(
        annotation_file,
        "series are found in a folder, not in a file; use --source FOLDER, or for a table --layout csv",
    )
    pattern = _label_pattern(options)
    content = _sort_content(images, series_below(images, (), options)["."], pattern, options)
    place = find_split_folder(
        [series.folders for series in content.taken], options.split_folders, images.root
    )
    listed = [
        ((series.source,), replace(series.example, split=split_at(series.folders, place)))
        for series in content.found
    ]
    labels, left_out = _find_labels(content, pattern, options)
    fitting, unfit = _sort_labels(labels)
    # {class}: one mask for each class and series, which are one label together.
    if pattern is not None and "class" in pattern.names:
        fitting = join_class_masks(fitting, images.root, options)
    # Where nothing could be a label, the source is a set of scans for prediction; a folder that could not be listed
    # may hold the labels.
    expected = bool(labels) or pattern is not None or bool(unlisted_folders(images))
    pairs = pair_up(
        listed,
        fitting,
        options.missing_masks,
        lambda key: not expected,
        options.several_masks,
        _several_fix(fitting, {one.path: one.kind for one in content.masks}),
    )
    yield from sort_examples(
        [*(_with_stacks(one, content.stacks) for one in pairs), *unfit, *left_out, *_other_files(content)]
    )


def list_scans(
    images: SourceFiles, options: LayoutOptions
) -> tuple[Sequence[FoundSeries], list[SourceExample]]:
    """Return the series of a source, and an example for every other file; no file is a label.

    Raises:
        AnnotationsError: there is no DICOM series.
    """
    content = _sort_content(images, series_below(images, (), options)["."], None, options)
    return content.found, list(_other_files(content))


@dataclass(frozen=True, kw_only=True)
class _Content:
    """Series and other files of a source, sorted into images and labels.

    Args:
        listing: series and files as they were found.
        scans: paths of volumes in files and of pictures, by their names.
        found: series that are images.
        drawn: series whose slices are labels.
        stacks: files of each label of several files: a series of label slices, or a folder of pictures.
    """

    listing: SeriesListing
    scans: Sequence[str]
    found: Sequence[FoundSeries]
    drawn: Sequence[FoundSeries]
    stacks: Mapping[str, tuple[str, ...]]

    @property
    def taken(self) -> Sequence[FoundSeries]:
        """Images that the options choose; all if they choose none, so that messages can name them."""
        return [series for series in self.found if not series.is_left_out] or self.found

    @property
    def masks(self) -> list[OtherFile]:
        """SEG and RTSTRUCT files."""
        return [one for one in self.listing.apart if one.is_mask]

    @property
    def volumes(self) -> list[str]:
        """NIfTI files and other volumes, which can only be labels beside DICOM series."""
        return [path for path in self.scans if is_volume_name(path)]

    @property
    def pictures(self) -> list[str]:
        """Pictures, which are labels if the label pattern takes them."""
        return [path for path in self.scans if not is_volume_name(path)]


def _sort_content(
    images: SourceFiles, listing: SeriesListing, pattern: Pattern | None, options: LayoutOptions
) -> _Content:
    """Return the sorted content of a source; raise AnnotationsError if no series is an image."""
    scans = list(iterate_scans(listing.named))
    series = _find_series(images, listing, options)
    # Files of other kinds may be why: the message counts them.
    if not series:
        raise AnnotationsError(_no_series_message(images.root, listing.apart, scans))
    drawn = [one for one in series if _is_label(one, pattern, options)]
    # A pattern such as ** takes the images for labels too.
    if len(drawn) == len(series):
        raise AnnotationsError(
            f"--label-pattern {options.label_pattern}: every series fits it, such as {drawn[0].source!r}; state with "
            "--image-pattern which folders hold the images"
        )
    pictures = [path for path in scans if not is_volume_name(path)]
    return _Content(
        listing=listing,
        scans=scans,
        found=[one for one in series if one not in drawn],
        drawn=drawn,
        stacks=_label_stacks(pictures, drawn, pattern, images),
    )


def _find_labels(
    content: _Content, pattern: Pattern | None, options: LayoutOptions
) -> tuple[list[tuple[list[str], LabelFiles]], list[SourceExample]]:
    """Return each label with the series that it may belong to, and an example for each mask that is not chosen."""
    chosen = [one for one in content.masks if fits_pattern(pattern, one.path)]
    labels = [_label_of_mask(one, content, pattern, options) for one in chosen]
    # The user's pattern decides before places.
    if pattern is not None:
        labels += _labels_by_pattern(content, pattern, options, is_needed=not chosen)
    # Alone, a pattern for images has no effect: series are found by their headers, in any folder.
    elif options.image_pattern is not None:
        raise AnnotationsError(
            f"--image-pattern {options.image_pattern}: series are found by their headers; with --label-pattern it says "
            "what of a series' folder {id} is"
        )
    else:
        labels += _labels_by_place(content)
    damaged = {one.source: one.problem for one in content.drawn if not one.is_left_out}
    labels = [
        (fits, replace(label, problem=label.problem or damaged.get(label.path))) for fits, label in labels
    ]
    labels += [([], single_file_label(one.path, _UNREAD)) for one in content.listing.apart if _is_array(one)]
    left_out = [rejected_example(one.path, _NOT_CHOSEN) for one in content.masks if one not in chosen]
    return labels, left_out


def _with_stacks(example: SourceExample, stacks: Mapping[str, tuple[str, ...]]) -> SourceExample:
    """Return the example with the files of each of its labels that has several."""
    of_example = tuple((path, stacks[path]) for path in example.mask_paths if path in stacks)
    return replace(example, mask_members=of_example)


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class of each value if the label pattern contains {class}; else {}."""
    pattern = _label_pattern(options)
    if pattern is None or "class" not in pattern.names:
        return {}
    found = (pattern.match(path) or pattern.match(folder_of(path)) for path in images.sizes())
    return class_values(target_classes({one["class"] for one in found if one}, images.root, options), options)


def _label_pattern(options: LayoutOptions) -> Pattern | None:
    if options.label_pattern is None:
        return None
    return compile_pattern(options.label_pattern, "label_pattern", ("id", "class", "reader"))


def _is_label(series: FoundSeries, pattern: Pattern | None, options: LayoutOptions) -> bool:
    """Return whether the slices of a series are labels: the label pattern, and not the image pattern, fits it.

    Tools that save label maps as CT or MR slices do not mark it in the header, so only the user can state it.
    """
    if pattern is None or _match_series(pattern, series) is None:
        return False
    return options.image_pattern is None or not _identities([series], options.image_pattern, needed=False)


def _match_series(pattern: Pattern, series: FoundSeries) -> dict[str, str] | None:
    return _match_any(pattern, (series.scan.folder, series.scan.first))


def _match_any(pattern: Pattern, paths: Iterable[str]) -> dict[str, str] | None:
    """Return the values of the first path that fits, {} for a pattern without placeholders; None if none fits."""
    return next((values for path in paths if (values := pattern.match(path)) is not None), None)


def _label_stacks(
    pictures: Iterable[str], drawn: Iterable[FoundSeries], pattern: Pattern | None, images: SourceFiles
) -> dict[str, tuple[str, ...]]:
    """Return the files of each label of several files: a series of label slices, or a folder of pictures."""
    if pattern is None:
        return {}
    # A series without members has all files of its folder.
    stacks = {one.source: one.scan.members or tuple(images.files_in(one.scan.folder)) for one in drawn}
    folders = grouped((folder_of(path), path) for path in pictures if pattern.match(path) is not None)
    return stacks | {folder: tuple(sorted(files)) for folder, files in folders.items()}


def series_below(
    images: SourceFiles, folders: Sequence[str], options: LayoutOptions
) -> Mapping[str, SeriesListing]:
    """Return the series below each folder; for () those of the complete source, ".", possibly without members."""
    from halofeed.prep.formats.dicom.series_listing import list_series

    return (options.list_series or list_series)(images, options.series, folders)


def find_series(
    images: SourceFiles, source: str, listings: Mapping[str, SeriesListing], options: LayoutOptions
) -> SourceExample:
    """Return the series that a table names by its folder, or by a folder with `#` and the hash of one series.

    Args:
        source: folder of the series from the table.
        listings: series below that folder and others.

    Raises:
        SourceError: there is no such series, there are several, or a file in its folder is damaged.
    """
    is_folder = source in listings
    listing = listings[source if is_folder else source.rpartition("#")[0]]
    found = _find_series(images, listing, options)
    if is_folder:
        chosen = [series for series in found if not series.is_left_out] or found
    else:
        chosen = [series for series in found if series.source == source]
    # A row of a table is one image.
    if len(chosen) != 1:
        raise _several_series(chosen) if chosen else _no_such_series(source, found, listing)
    if chosen[0].problem is not None:
        raise SourceError(*chosen[0].problem)
    return chosen[0].example


def _no_such_series(source: str, found: Sequence[FoundSeries], listing: SeriesListing) -> SourceError:
    """Return the error for a folder of a table without the series, with what it holds."""
    there = [series.source for series in found[:8]] or _count_kinds(one.kind for one in listing.apart)
    detail = f"{source}: found {', '.join(there) or 'no file'}"
    return SourceError("annotation", "folder holds no such DICOM series", detail)


def _several_series(chosen: Sequence[FoundSeries]) -> SourceError:
    """Return the error for a folder of a table with several series: no option takes any of them, or several do."""
    # The options that leave all of them out are the reason to name.
    if all(series.is_left_out for series in chosen):
        left_out = [f"{one.source}: {one.problem[1]} ({one.problem[2]})" for one in chosen if one.problem]
        return SourceError("selection", "no series of the folder is taken", ", ".join(left_out[:8]))
    listed = ", ".join(f"{series.source} ({series.description})" for series in chosen[:8])
    return SourceError("annotation", "folder holds several DICOM series", f"write one of {listed}")


def _find_series(images: SourceFiles, listing: SeriesListing, options: LayoutOptions) -> list[FoundSeries]:
    """Return the series of a listing, each with its name in the data set and the reason for not taking it."""
    from halofeed.prep.formats.dicom.grouping import too_few_slices

    policy = options.series
    beside_all = _damaged_beside(listing.series, _possible_slices(images, listing))
    faults = _read_faults(images, listing)
    counts = Counter(scan.folder for scan in listing.series)
    small = Counter(scan.folder for scan in listing.series if scan.places < policy.min_slices)
    found = []
    for scan, beside in zip(listing.series, beside_all, strict=True):
        problem = _selection_problem(scan, policy) or scan.problem
        problem = problem or too_few_slices(scan.places, policy, small[scan.folder])
        # A slice that cannot be read leaves a gap, which interpolation would hide.
        if beside is not None:
            problem = (*_DAMAGED, f"{faults.get(beside, beside)}; {_DAMAGED_FIX}")
        # A folder is a stable name; the hash of the series' UID is needed only beside others.
        source = scan.folder if counts[scan.folder] == 1 else f"{scan.folder}#{scan.key}"
        found.append(FoundSeries(source=source, scan=scan, problem=problem, damaged=beside))
    found = _largest_of_studies(found) if policy.series == "largest" else found
    return sorted(found, key=lambda one: one.source)


def _possible_slices(images: SourceFiles, listing: SeriesListing) -> dict[str, list[str]]:
    """Return, for each folder, the damaged files and unlisted folders in it that may be or hold slices."""
    unlisted = ((folder_of(folder), folder) for folder in unlisted_folders(images))
    return grouped(
        [*((folder_of(one.path), one.path) for one in listing.apart if one.may_be_slice), *unlisted]
    )


def _read_faults(images: SourceFiles, listing: SeriesListing) -> dict[str, str]:
    """Return the message of the operating system for each file and folder that could not be read."""
    files = {
        one.path: f"{one.path}: {one.error.detail}"
        for one in listing.apart
        if one.may_be_slice and one.error is not None and one.error.reason == UNREADABLE_FILE
    }
    return files | {folder: f"{folder}: {images.faults()[folder][1]}" for folder in unlisted_folders(images)}


def _damaged_beside(series: Sequence[DicomSeries], damaged: Mapping[str, Sequence[str]]) -> list[str | None]:
    """Return for each series the damaged file that may be one of its slices, or None.

    A damaged file may belong to any series with files in its folder. If the series lack as many slices as files are
    damaged, it belongs to one that lacks slices.
    """
    series_in = grouped((name, index) for index, one in enumerate(series) for name in one.folders)
    found: list[str | None] = [None] * len(series)
    for name in sorted(damaged.keys() & series_in.keys()):
        lacking = [index for index in series_in[name] if series[index].lacking]
        is_proven = sum(series[index].lacking for index in lacking) >= len(damaged[name])
        for index in lacking if is_proven else series_in[name]:
            found[index] = found[index] or damaged[name][0]
    return found


def _largest_of_studies(found: Sequence[FoundSeries]) -> list[FoundSeries]:
    """Return the series, with a problem for all except the largest of each study, and for several of equal size.

    A study has a scout, reconstructions with other kernels and so on; the most voxels are the usual choice.
    """
    studies = grouped(
        (one.scan.study, one) for one in found if one.problem is None and one.scan.study is not None
    )
    return [
        replace(one, problem=_size_problem(one, studies[one.scan.study]))
        if one.problem is None and one.scan.study in studies
        else one
        for one in found
    ]


def _size_problem(one: FoundSeries, study: Sequence[FoundSeries]) -> Problem | None:
    """Return the problem of a series that is not the only largest of its study; else None."""
    most = max(other.voxels for other in study)
    best = [other for other in study if other.voxels == most]
    # By voxels, since thin slices and large matrices both matter.
    if one.voxels < most:
        detail = f"{one.description}; {best[0].description} is"
        return ("selection", "series is not the largest of its study", detail)
    # Several volumes of one series, such as the phases of a cardiac CT, are taken together.
    if len({other.scan.series for other in best}) > 1:
        listed = ", ".join(other.source for other in best[:8])
        fix = "choose by --series-modality or --series-description"
        return ("selection", "several series of a study are the largest", f"{listed}; {fix}")
    return None


def _is_array(one: OtherFile) -> bool:
    """Return whether a file is an array without a position; with DICOM series it is probably a label."""
    return one.kind == "not DICOM" and one.path.lower().endswith(ARRAY_EXTENSIONS)


def _selection_problem(series: DicomSeries, policy: SeriesPolicy) -> Problem | None:
    # Headers decided this where they were read, see `SeriesPolicy`.
    if series.chosen:
        return None
    asked = [f"--series-modality {','.join(policy.modalities)}"] if policy.modalities else []
    asked += [f"--series-description {policy.description!r}"] if policy.description is not None else []
    return "selection", "series is not chosen", f"{series.modality or 'no modality'}; {' and '.join(asked)}"


def _referenced_series(one: OtherFile, found: Sequence[FoundSeries]) -> list[str]:
    """Return the series that a SEG or RTSTRUCT refers to.

    Source: DICOM PS3.3 C.12.2 (a SEG's Referenced Series Sequence) and C.8.8.5 (an RTSTRUCT's RT Referenced Series
    Sequence). Without either, PS3.3 C.7.4.1: images in one frame of reference share their coordinates.
    """
    if not one.refers_to:
        return _in_frame_of_reference(one, found)
    fits = [series for series in found if series.scan.series in one.refers_to]
    if one.group is not None and len({series.scan.group for series in fits}) > 1:
        # Two patients can have the same series UID.
        fits = [series for series in fits if series.scan.group in (None, one.group)]
    # If a series contains several volumes, the mask belongs to the one whose images it references.
    named = [series for series in fits if one.path in series.scan.masks]
    return [series.source for series in (named if len(fits) > 1 and named else fits)]


def _in_frame_of_reference(one: OtherFile, found: Sequence[FoundSeries]) -> list[str]:
    """Return the series in the frame of reference of a mask; none if it names no frame."""
    # An RTSTRUCT may leave its Referenced Frame of Reference Sequence out (PS3.3 C.8.8.5).
    if one.frame_of_reference is None:
        return []
    return [series.source for series in found if series.scan.frame_of_reference == one.frame_of_reference]


def _label_of_mask(
    one: OtherFile, content: _Content, pattern: Pattern | None, options: LayoutOptions
) -> tuple[list[str], LabelFiles]:
    """Return a SEG or RTSTRUCT with the series that it may belong to.

    The series that it refers to comes first. If none of them is there, --mask-references ignore takes the series that
    a pattern with {id} names, else the nearest one, of the same patient if there are several. The conversion
    checks its position.
    """
    values = (pattern.match(one.path) if pattern else None) or {}
    label = single_file_label(one.path, None, values)
    # A mask of a series that is left out is no error, and names that series.
    fits = _referenced_series(one, content.taken) or _referenced_series(one, content.found)
    # A Series Instance UID (PS3.3 C.7.3.1) is proof, so neither place nor pattern counts.
    if fits:
        return fits, label
    near = _nearest_series(one, content.taken)
    if options.mask_references == "ignore":
        # Anonymizers give series new UIDs and leave those within masks as they were.
        if "id" in values:
            identities = _identities(content.taken, options.image_pattern)
            near = [source for source, identity in identities.items() if identity == values["id"]]
        return near, replace(label, problem=None if near else (*NO_IMAGE[:2], _NOT_IN_FOLDER))
    cure = (
        f"; --mask-references ignore uses it for {near[0]}, which lies nearest, at its position"
        if len(near) == 1
        else "; --mask-references ignore with --label-pattern, or a table (--layout csv), says which it belongs to"
    )
    return [], replace(label, problem=(*NO_IMAGE[:2], f"{_NOT_BELOW}{cure}"))


def _nearest_series(one: OtherFile, taken: Sequence[FoundSeries]) -> list[str]:
    near = series_near(one.path, {series.source: series.scan.folder for series in taken})
    # Without a patient's id nothing distinguishes the near series.
    if len(near) < 2 or one.group is None:
        return near
    of_patient = [
        series.source for series in taken if series.source in near and series.scan.group == one.group
    ]
    return of_patient if len(of_patient) == 1 else near


def _several_fix(fitting: Sequence[tuple[PairKey, LabelFiles]], kinds: Mapping[str, str]) -> str:
    """Return the advice for series with several labels; "" if there is none."""
    paths = grouped((key, label.path) for key, label in fitting).values()
    several = [found for found in paths if len(found) > 1]
    return (
        describe_choice(several, [found[0] for found in paths if len(found) == 1], kinds) if several else ""
    )


def _labels_by_pattern(
    content: _Content, pattern: Pattern, options: LayoutOptions, *, is_needed: bool
) -> list[tuple[list[str], LabelFiles]]:
    """Return each NIfTI file and each label of several files, with the series that it may belong to.

    Args:
        is_needed: whether the pattern must fit one of them, since no SEG or RTSTRUCT fits it.
    """
    match = {path: pattern.match(path) for path in content.volumes}
    # A stack is known by its folder, or by its first file where the pattern names files.
    match |= {path: _match_any(pattern, (path, files[0])) for path, files in content.stacks.items()}
    identities = _identities(content.taken, options.image_pattern)
    # A pattern that takes nothing is a typing error, not a set without labels.
    if is_needed and all(values is None for values in match.values()):
        known = next(iter(identities.values()), ".")
        raise AnnotationsError(
            f"--label-pattern {options.label_pattern}: no volume file fits it, and no SEG, RTSTRUCT, series or "
            f"picture; {{id}} is a series' folder, such as {known!r}; found {', '.join(content.volumes[:3]) or 'none'}"
        )
    paths, labels = set(content.listing.named), []
    for path, values in match.items():
        # A pattern such as **/*_seg.nii.gz selects the labels but does not name their series.
        if values is not None and "id" not in values and options.image_pattern is None:
            fits, problem = _by_place(path, content.taken), None
        else:
            fits, problem = _by_identity(values, identities)
        labels.append((fits, single_file_label(path, missing_part(path, paths) or problem, values)))
    return labels


def _by_identity(
    values: Mapping[str, str] | None, identities: Mapping[str, str]
) -> tuple[list[str], Problem | None]:
    """Return the series with the {id} of a label, and the problem if there is none; no series without values."""
    if values is None:
        return [], None
    wanted = values.get("id", ".")
    fits = [source for source, identity in identities.items() if identity == wanted]
    if fits:
        return fits, None
    known = ", ".join(repr(identity) for identity in list(identities.values())[:3])
    detail = (
        f"{{id}} is {wanted!r}, and that of a series {known}; --image-pattern '{{id}}/**' says which part"
    )
    return [], (*NO_IMAGE[:2], f"{detail} of a series' folder it is")


def _identities(
    found: Sequence[FoundSeries], image_pattern: str | None, *, needed: bool = True
) -> Mapping[str, str]:
    """Return the value of {id} for each series: its folder, or the part that --image-pattern defines."""
    # Exports usually put each series into a folder, whose path then identifies it.
    if image_pattern is None:
        return {series.source: series.scan.folder for series in found}
    pattern = compile_pattern(image_pattern, "image_pattern", ("id",))
    identities = {}
    for series in found:
        values = _match_series(pattern, series)
        if values is not None:
            identities[series.source] = values.get("id", ".")
    if not identities and needed:
        folders = ", ".join(repr(series.scan.folder) for series in found[:3])
        raise AnnotationsError(f"--image-pattern {image_pattern}: no series' folder fits it; found {folders}")
    return identities


def _labels_by_place(content: _Content) -> list[tuple[list[str], LabelFiles]]:
    """Return each NIfTI file with the series that it may belong to by its place, without a pattern."""
    paths = set(content.listing.named)
    return [
        (_by_place(path, content.taken), single_file_label(path, missing_part(path, paths)))
        for path in content.volumes
    ]


def _by_place(path: str, found: Sequence[FoundSeries]) -> list[str]:
    """Return the series that match a NIfTI file by folder, otherwise by name."""
    folders = {series.source: series.scan.folder for series in found}
    place = folder_of(path)
    beside = [source for source, folder in folders.items() if folder == place]
    beside = beside or [
        source for source, folder in folders.items() if folder != "." and folder_of(folder) == place
    ]
    # One series in its folder or in the folders beside it: nothing else can be meant.
    if len(beside) == 1:
        return beside
    # Several series share a parent: masks/p1.nii.gz belongs to the series in .../p1.
    named = [source for source, folder in folders.items() if folder.rpartition("/")[2] == stem_of(path)]
    return named or beside


def _sort_labels(
    labels: Iterable[tuple[list[str], LabelFiles]],
) -> tuple[list[tuple[PairKey, LabelFiles]], list[SourceExample]]:
    """Return the labels with exactly one series, and an example with a problem for each of the others."""
    fitting: list[tuple[PairKey, LabelFiles]] = []
    unfit = []
    for sources, label in labels:
        # A label for two series would train one of them on another's anatomy.
        if len(sources) == 1:
            fitting.append(((sources[0],), label))
        else:
            problem = (*_SEVERAL, f"{', '.join(sources[:3])}; {_SEVERAL_FIX}")
            if not sources:
                detail = _NOT_IN_FOLDER if is_scan_name(label.path) else _NOT_BELOW
                problem = (*NO_IMAGE[:2], detail)
            unfit.append(rejected_example(label.path, label.problem or problem))
    return fitting, unfit


def _other_files(content: _Content) -> Iterator[SourceExample]:
    """Yield an example for each file that is neither slice nor mask, unless a series already names it as damaged."""
    series = (*content.found, *content.drawn)
    folders = {folder_of(one.damaged) for one in series if one.damaged is not None}
    for one in content.listing.apart:
        accounted = one.is_mask or _is_array(one)
        # The series' own problem names its damaged files.
        if accounted or (one.may_be_slice and folder_of(one.path) in folders):
            continue
        kind = describe_kind(one.kind, is_flat=one.is_flat)
        problem: Problem = ("selection", "file is no slice of a volume", kind)
        # A file that might be a slice was read, so its own error is reported.
        if one.may_be_slice and one.error is not None:
            problem = one.error.args
        yield rejected_example(one.path, problem)
    used = set(chain(*content.stacks.values()))
    yield from (rejected_example(path, NEITHER) for path in content.pictures if path not in used)


def describe_kind(kind: str, *, is_flat: bool = False) -> str:
    """Return a kind of file, with advice if there is any.

    Args:
        kind: kind of the file.
        is_flat: whether it holds pixels without a position, so that no option makes slices of them.

    >>> describe_kind("report"), describe_kind("survey by its description")
    ('report', 'survey by its description; --series-description takes a series by its description')
    >>> describe_kind("secondary capture", is_flat=True)
    'secondary capture; it has no position'
    """
    fix = "it has no position" if is_flat and kind == SECONDARY_CAPTURE else _FIXES.get(kind)
    return f"{kind}; {fix}" if fix else kind


def _fix(kind: str, *, is_flat: bool) -> str:
    """Return the advice for a folder without a series, in which files of a kind are; "" if there is none.

    A secondary capture without a position is no slice, whatever option is given; a CT, MR or PET image without one is a
    slice that has lost it, or a picture. Their types require a position (DICOM PS3.3 C.7.6.2, Image Plane Module); a
    secondary capture has none by its type (PS3.3 A.8.1).
    """
    if not is_flat or (kind in _FIXES and kind not in _FLAT_KINDS):
        return _FIXES.get(kind, "")
    lost = f"{_FIXES[kind]}; else: " if kind == _WITHOUT_POSITION else ""
    return f"{lost}{SINGLE_PICTURE_ADVICE}"


def _count_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the count and the name of each kind."""
    return [f"{count} x {kind}" for kind, count in sorted(Counter(kinds).items())]


def _no_series_message(root: str, apart: Sequence[OtherFile], named: Sequence[str]) -> str:
    """Return a message with the reason why a folder has no series, and a fix.

    Args:
        apart: files that are no slices.
        named: paths of volumes and pictures, detected by their names.
    """
    found = [
        *_count_kinds(one.kind for one in apart),
        *_count_kinds(extension_of(path).lower() for path in named),
    ]
    fixes = [*_fixes_of_kinds(apart), *_other_layouts(named)]
    archive = next((one.path for one in apart if one.path.lower().endswith(ARCHIVE_EXTENSIONS)), None)
    # Archives are not searched: a download of TCIA or Kaggle must be unpacked first.
    if archive is not None:
        fixes.append(f"{archive} is an archive: unpack it, and name the folder of its files")
    cure = "; ".join(fixes) or "name with --source the folder that holds the series' files"
    return f"{root}: no DICOM series lies below it; found {', '.join(found) or 'no file'}; {cure}"


def _fixes_of_kinds(apart: Sequence[OtherFile]) -> list[str]:
    """Return the advice for each kind of file that is no slice, and for the first damaged file."""
    flat = {(one.kind, one.is_flat) for one in apart}
    fixes = [f"{kind}: {fix}" for kind, is_flat in sorted(flat) if (fix := _fix(kind, is_flat=is_flat))]
    damaged = [(one.path, one.error) for one in apart if one.kind == "damaged" and one.error is not None]
    return fixes + [f"damaged: {path}: {error.reason}; copy it again" for path, error in damaged[:1]]


def _other_layouts(named: Sequence[str]) -> list[str]:
    """Return the layouts that read a folder's volumes, else those that read its pictures."""
    # --layout dicom on NIfTI files, by habit.
    if any(map(is_volume_name, named)):
        return ["NIfTI, NRRD or MetaImage volumes: take --layout pairs, msd, nnunet, bids or class-masks"]
    return ["pictures: take --layout folders, coco, voc or csv, without --depth"] if named else []
