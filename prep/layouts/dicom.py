"""How folders of DICOM series are read, and which mask belongs to which series."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halofeed.prep.annotations.contract import LayoutOptions, in_order
from halofeed.prep.annotations.pairing import (
    NEITHER,
    NO_IMAGE,
    Key,
    Label,
    find_split_folder,
    label_of,
    pair_up,
    split_at,
)
from halofeed.prep.annotations.patterns import compile_pattern
from halofeed.prep.layouts.dicom_reasons import kind_and_cure, nothing_found
from halofeed.prep.sources.files import UNREAD, SourceFiles, unlisted_folders
from halofeed.prep.sources.reference import Reference
from halofeed.prep.sources.volume_files import (
    folder_of,
    is_scan_name,
    is_volume_name,
    missing_part,
    stem_of,
    whole_scans,
)
from halofeed.schemas.errors import AnnotationsError, Problem, SourceError

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.grouping import Apart, Series
    from halofeed.prep.formats.dicom.listing import SeriesListing
    from halofeed.prep.formats.volume.series_policy import SeriesPolicy

_DAMAGED = ("read", "damaged file among the slices")
_DAMAGED_CURE = "copy it again, or take it out of the folder"
_SEVERAL: Problem = ("annotation", "label fits several series", "")
_SEVERAL_CURE = "choose one by --series-description, or name both in a table (--layout csv)"
_NOT_BELOW = " is not below the folder"
_UNREAD: Problem = ("read", "not a volume format that is read", "store the label as NIfTI, SEG or RTSTRUCT")


@dataclass(frozen=True, kw_only=True)
class FoundSeries:
    """One series of a folder, by the name under which a data set knows it.

    Args:
        source: the folder that holds its files ("." is the root), with `#` and a hash where that holds several.
        folder: that folder.
        members: the files, sorted as paths; () where they are stored alone.
        group: the hash of the patient.
        stored: see `Series.stored`.
        first: the first of the files by name.
        key: the hash of its UID, and the hash of its frame of reference.
        volume: which scan of its series it is; see `Reference.volume`.
        masks: where it is one of several: the masks that name some of its images.
        what: a few words for messages.
        problem: why it is not taken: a damaged file in its folder may be one of its slices, or it has too few.
        damaged: the damaged file in its folder.
    """

    source: str
    folder: str
    members: tuple[str, ...]
    stored: tuple[str, str] | None
    first: str
    group: str | None
    key: str | None
    frame_of_reference: str | None
    volume: tuple[int, int, str] | None
    masks: frozenset[str]
    what: str
    problem: Problem | None = None
    damaged: tuple[str, ...] = ()

    @property
    def folders(self) -> list[str]:
        """The folders that lead to it, outermost first."""
        return self.folder.split("/") if self.folder != "." else []

    @property
    def is_left_out(self) -> bool:
        """Whether it is whole, and not chosen."""
        return self.problem is not None and self.problem[0] == "selection"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[Reference]:
    """Every DICOM series below the folder with its mask, and every other file that is no document.

    Series are distinguished by what the headers say, never by names. A group is the salted hash of the patient's id.
    The mask of a series is

    1. a SEG or RTSTRUCT that refers to it, or to its images where a series holds several volumes; one that refers to
       no series is that of the only series in its frame of reference;
    2. with a label pattern, the NIfTI file that it gives with {id} for the series' folder, or for the part of it that
       the image pattern says; without one, a NIfTI
       file in the series' folder or the one above it, if that leaves only one series; else one whose name, without
       extension, is that of the series' folder.

    Where there is no file that could be a mask, all are for prediction only; one that fits no series leaves every
    series without its label, see `LayoutOptions.missing_masks`. A folder called train, val, test, ... is the split.

    Raises:
        AnnotationsError: if there is no DICOM series.
    """
    if annotation_file is not None:
        raise AnnotationsError(
            f"{annotation_file}: series are found in a folder, not in a file; say --source FOLDER, or for a table "
            "--layout csv"
        )
    policy = replace(options.series, salt=options.salt)
    listing = series_below(images, (), options)["."]
    scans = list(whole_scans(listing.named))
    found, apart = _found(images, listing.series, listing.apart, policy), listing.apart
    if not found:
        raise AnnotationsError(nothing_found(images.root, apart, scans))
    taken = [series for series in found if not series.is_left_out] or found
    place = find_split_folder([series.folders for series in taken], options.split_folders, images.root)
    listed = [((series.source,), _reference(series, split_at(series.folders, place))) for series in found]
    masks = [path for path in scans if is_volume_name(path)]
    labels = [
        (_series_of(one, taken) or _series_of(one, found), label_of(one.path)) for one in apart if one.is_mask
    ]
    labels += _nifti_labels(masks, listing.named, taken, options)
    labels += [([], label_of(one.path, _UNREAD)) for one in apart if _is_unread_volume(one)]
    fitting, unfit = _sort_labels(labels)
    expected = bool(labels) or options.label_pattern is not None or bool(unlisted_folders(images))
    yield from in_order(
        [
            *pair_up(listed, fitting, options.missing_masks, lambda key: not expected, options.several_masks),
            *unfit,
            *_others(apart, found),
            *(
                Reference(source=path, key=path, problem=NEITHER)
                for path in scans
                if not is_volume_name(path)
            ),
        ]
    )


def series_below(
    images: SourceFiles, folders: Sequence[str], options: LayoutOptions
) -> Mapping[str, SeriesListing]:
    """The series below each of some folders; of () those of the whole source, ".", which may lack members."""
    from halofeed.prep.formats.dicom.listing import list_series

    return (options.list_series or list_series)(images, replace(options.series, salt=options.salt), folders)


def find_series(
    images: SourceFiles, source: str, listings: Mapping[str, SeriesListing], options: LayoutOptions
) -> FoundSeries:
    """The series that a table means by a folder, or by a folder with `#` and the hash of one of its series.

    Args:
        listings: the series below that folder, and below others.

    Raises:
        SourceError: there is none, there are several, or a file beside it is damaged.
    """
    listing = listings[source if source in listings else source.rpartition("#")[0]]
    apart = listing.apart
    found = _found(images, listing.series, apart, replace(options.series, salt=options.salt))
    if source not in listings:
        chosen = [series for series in found if series.source == source]
    else:
        chosen = [series for series in found if not series.is_left_out] or found
    if not chosen:
        kinds = ", ".join(
            f"{count} x {kind}" for kind, count in sorted(Counter(one.kind for one in apart).items())
        )
        kinds = ", ".join(series.source for series in found[:8]) or kinds
        raise SourceError(
            "annotation", "folder holds no such DICOM series", f"{source}: found {kinds or 'no file'}"
        )
    left_out = [f"{one.source}: {one.problem[1]} ({one.problem[2]})" for one in chosen if one.problem]
    if len(chosen) > 1 and all(series.is_left_out for series in chosen):
        raise SourceError("selection", "no series of the folder is taken", ", ".join(left_out[:8]))
    if len(chosen) > 1:
        listed = ", ".join(f"{series.source} ({series.what})" for series in chosen[:8])
        raise SourceError("annotation", "folder holds several DICOM series", f"write one of {listed}")
    if chosen[0].problem is not None:
        raise SourceError(*chosen[0].problem)
    return chosen[0]


def _found(
    images: SourceFiles, series: Sequence[Series], apart: Sequence[Apart], policy: SeriesPolicy
) -> list[FoundSeries]:
    from halofeed.prep.formats.dicom.grouping import too_few_slices

    damaged: dict[str, list[str]] = defaultdict(list)
    unread = {}
    for one in apart:
        if one.may_be_slice:
            damaged[folder_of(one.path)].append(one.path)
            if one.error is not None and one.error.reason == UNREAD:
                unread[one.path] = f"{one.path}: {one.error.detail}"
    for folder in unlisted_folders(images):
        damaged[folder_of(folder)].append(folder)
        unread[folder] = f"{folder}: {images.faults()[folder][1]}"
    beside_all = _damaged_beside(series, damaged)
    counts = Counter(stack.folder for stack in series)
    found = []
    for stack, beside in zip(series, beside_all, strict=True):
        folder, (rows, columns) = stack.folder, stack.size
        problem: Problem | None = (
            None if beside is None else (*_DAMAGED, f"{unread.get(beside, beside)}; {_DAMAGED_CURE}")
        )
        found.append(
            FoundSeries(
                source=folder if counts[folder] == 1 else f"{folder}#{stack.key}",
                folder=folder,
                members=tuple(sorted(stack.members)),
                stored=stack.stored,
                first=stack.first,
                group=stack.group,
                key=stack.series,
                frame_of_reference=stack.frame_of_reference,
                what=f"{stack.modality or 'DICOM'}, {stack.slices} of {rows} x {columns}",
                volume=stack.volume,
                masks=stack.masks,
                damaged=() if beside is None else (beside,),
                problem=problem
                or _not_chosen(stack, policy)
                or stack.problem
                or too_few_slices(stack.places, policy),
            )
        )
    found = _largest_of_studies(found, series) if policy.series == "largest" else found
    return sorted(found, key=lambda one: one.source)


def _damaged_beside(series: Sequence[Series], damaged: Mapping[str, Sequence[str]]) -> list[str | None]:
    """For each scan the damaged file that may be one of its slices.

    It may be one of any scan with files in its folder; but where as many slices are missing between others as files are
    damaged, it belongs to a scan that lacks some.
    """
    stacks_in: dict[str, list[int]] = defaultdict(list)
    for index, stack in enumerate(series):
        for name in stack.folders:
            stacks_in[name].append(index)
    found: list[str | None] = [None] * len(series)
    for name in sorted(damaged.keys() & stacks_in.keys()):
        lacking = [index for index in stacks_in[name] if series[index].lacking]
        proven = sum(series[index].lacking for index in lacking) >= len(damaged[name])
        for index in lacking if proven else stacks_in[name]:
            found[index] = found[index] or damaged[name][0]
    return found


def _largest_of_studies(found: Sequence[FoundSeries], stacks: Sequence[Series]) -> list[FoundSeries]:
    """The series with a problem for all but the largest of each study, and for those that share that place."""
    voxels = [stack.slices * stack.size[0] * stack.size[1] for stack in stacks]
    best: dict[str | None, list[int]] = {}
    for index, (one, stack) in enumerate(zip(found, stacks, strict=True)):
        if one.problem is None and stack.study is not None:
            largest = best.setdefault(stack.study, [])
            if not largest or voxels[index] >= voxels[largest[0]]:
                best[stack.study] = [at for at in largest if voxels[at] == voxels[index]] + [index]
    result = []
    for index, (one, stack) in enumerate(zip(found, stacks, strict=True)):
        largest = best.get(stack.study, [index])
        problem = one.problem
        if problem is None and index not in largest:
            first = found[largest[0]]
            problem = ("selection", "series is not the largest of its study", f"{one.what}; {first.what} is")
        elif problem is None and len({found[at].key for at in largest}) > 1:
            listed = ", ".join(found[at].source for at in largest[:8])
            cure = "choose by --series-modality or --series-description"
            problem = ("selection", "several series of a study are the largest", f"{listed}; {cure}")
        result.append(replace(one, problem=problem))
    return result


def _is_unread_volume(one: Apart) -> bool:
    """Whether a file is a volume of a kind that is not read: beside DICOM series most likely a label."""
    from halofeed.prep.formats.volumes import RECOGNIZED

    return one.kind == "not DICOM" and one.path.lower().endswith(tuple(RECOGNIZED))


def _not_chosen(stack: Series, policy: SeriesPolicy) -> Problem | None:
    if stack.chosen:
        return None
    asked = [f"--series-modality {','.join(policy.modalities)}"] if policy.modalities else []
    asked += [f"--series-description {policy.description!r}"] if policy.description is not None else []
    return "selection", "series is not chosen", f"{stack.modality or 'no modality'}; {' and '.join(asked)}"


def _reference(series: FoundSeries, split: str) -> Reference:
    return Reference(
        source=series.source,
        key=series.source,
        split=split,
        group=series.group,
        members=series.members,
        stored=series.stored,
        volume=series.volume,
        problem=series.problem,
    )


def _fitting(found: Iterable[FoundSeries], fits: Callable[[FoundSeries], bool]) -> list[str]:
    return [series.source for series in found if fits(series)]


def _series_of(one: Apart, found: Sequence[FoundSeries]) -> list[str]:
    """The series that a SEG or RTSTRUCT was drawn on."""
    if one.refers_to:
        fits = [series for series in found if series.key in one.refers_to]
        # Of several volumes in a series it is the one whose images are named.
        named = [series for series in fits if one.path in series.masks]
        return [series.source for series in (named if len(fits) > 1 and named else fits)]
    if one.frame_of_reference is None:
        return []
    return _fitting(found, lambda series: series.frame_of_reference == one.frame_of_reference)


def _nifti_labels(
    masks: Sequence[str], named: Sequence[str], found: Sequence[FoundSeries], options: LayoutOptions
) -> list[tuple[list[str], Label]]:
    """Each NIfTI file as a label, with the series that it may belong to."""
    paths = set(named)
    pattern = None
    identities: Mapping[str, str] = {}
    if options.image_pattern is not None and options.label_pattern is None:
        raise AnnotationsError(
            f"--image-pattern {options.image_pattern}: series are found by their headers; with --label-pattern it says "
            "what of a series' folder {id} is"
        )
    if options.label_pattern is not None:
        identities = _identities(found, options.image_pattern)
        pattern = compile_pattern(options.label_pattern, "label_pattern", ("id",))
        if not any(pattern.match(path) for path in masks):
            known = next(iter(identities.values()), ".")
            raise AnnotationsError(
                f"--label-pattern {options.label_pattern}: no volume file fits it; {{id}} is a series' folder, such as "
                f"{known!r}; found {', '.join(masks[:3]) or 'none'}"
            )
    labels = []
    for path in masks:
        problem = missing_part(path, paths)
        if pattern is None:
            labels.append((_by_place(path, found), label_of(path, problem)))
            continue
        values = pattern.match(path)
        wanted = None if values is None else values.get("id", ".")
        fits = [source for source, identity in identities.items() if identity == wanted]
        if not fits and wanted is not None:
            known = ", ".join(repr(identity) for identity in list(identities.values())[:3])
            detail = f"{{id}} is {wanted!r}, and that of a series {known}; --image-pattern '{{id}}/...' says which part"
            problem = problem or (*NO_IMAGE[:2], f"{detail} of a series' folder it is")
        labels.append((fits, label_of(path, problem)))
    return labels


def _identities(found: Sequence[FoundSeries], image_pattern: str | None) -> Mapping[str, str]:
    """What {id} stands for, by the series: its folder, or what --image-pattern finds in that.

    Raises:
        AnnotationsError: no folder fits the pattern.
    """
    if image_pattern is None:
        return {series.source: series.folder for series in found}
    pattern = compile_pattern(image_pattern, "image_pattern", ("id",))
    identities = {}
    for series in found:
        values = pattern.match(series.folder) or pattern.match(series.first)
        if values is not None:
            identities[series.source] = values.get("id", ".")
    if not identities:
        folders = ", ".join(repr(series.folder) for series in found[:3])
        raise AnnotationsError(f"--image-pattern {image_pattern}: no series' folder fits it; found {folders}")
    return identities


def _is_in(folder: str) -> Callable[[FoundSeries], bool]:
    return lambda series: series.folder == folder


def _by_place(path: str, found: Sequence[FoundSeries]) -> list[str]:
    """The series that a NIfTI file belongs to by its folder, then by its name."""
    beside = _fitting(found, _is_in(folder_of(path)))
    beside = beside or _fitting(
        found, lambda series: series.folder != "." and folder_of(series.folder) == folder_of(path)
    )
    if len(beside) == 1:
        return beside
    named = _fitting(found, lambda series: series.folder.rpartition("/")[2] == stem_of(path))
    return named or beside


def _sort_labels(
    labels: Iterable[tuple[list[str], Label]],
) -> tuple[list[tuple[Key, Label]], list[Reference]]:
    """The labels of one series each, and a problem for each of the others."""
    fitting: list[tuple[Key, Label]] = []
    unfit = []
    for sources, label in labels:
        if len(sources) == 1:
            fitting.append(((sources[0],), label))
        else:
            stage, reason, _ = _SEVERAL if sources else NO_IMAGE
            listed = ", ".join(sources[:3])
            lost = (
                "no series lies in its folder"
                if is_scan_name(label.path)
                else "the series that it was drawn on"
            )
            lost += "; --label-pattern says which it belongs to" if is_scan_name(label.path) else _NOT_BELOW
            detail = f"{listed}; {_SEVERAL_CURE}" if sources else lost
            problem = label.problem or (stage, reason, detail)
            unfit.append(Reference(source=label.path, key=label.path, problem=problem))
    return fitting, unfit


def _others(apart: Iterable[Apart], found: Iterable[FoundSeries]) -> Iterator[Reference]:
    """What is said of files that are neither slices nor masks; a damaged one is named by the series beside it."""
    folders = {folder_of(path) for series in found for path in series.damaged}
    for one in apart:
        accounted = one.is_mask or _is_unread_volume(one)
        if accounted or (one.may_be_slice and folder_of(one.path) in folders):
            continue
        problem = ("selection", "file is no slice of a volume", kind_and_cure(one.kind))
        if one.may_be_slice and one.error is not None:
            problem = (one.error.stage, one.error.reason, one.error.detail)
        yield Reference(source=one.path, key=one.path, problem=problem)
