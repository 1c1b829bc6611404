"""Grouping of DICOM files into series and scans by their headers: the one place that finds series.

files --(read_headers)--> images and masks by series, and other files
series --(find_scans)--> scans: stacks of slices, or the volumes of a stack
scans --(scans_of_series)--> `DicomSeries`, the description of a scan in a listing

`find_image_series` and `find_scans` open files that a user names. `series_listing` lists folders: `list_series` in
one process, and in several the same steps on parts of the files, which `halofeed.pipelines.run_distributed`
distributes. Layouts only choose among listed scans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from halofeed.prep.formats.dicom.header_fields import (
    LOCALIZER_WORDS,
    MOSAIC,
    NUCLEAR_KINDS,
    HeaderFields,
    header_fields,
)
from halofeed.prep.formats.dicom.headers import (
    HEAD_BYTES,
    FileStart,
    checksum_before,
    media_sop_class,
    parse_file_header,
    read_dicom_start,
)
from halofeed.prep.formats.dicom.series_splitting import (
    Slice,
    VolumeSplit,
    folders_disagree,
    positions_of,
    split_contradictions,
    split_volumes,
    thickness_of,
)
from halofeed.prep.formats.dicom.slice_geometry import (
    SPACING_TOLERANCE,
    axes_of,
    count_missing_slices,
    is_same_orientation,
    split_mosaic,
)
from halofeed.prep.formats.dicom.sop_classes import (
    IMAGE,
    LOCALIZER,
    MASK_KINDS,
    SECONDARY_CAPTURE,
    sop_class_kind,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import DICOM_EXTENSIONS, common_folder, folder_of
from halofeed.prep.sources.files import SourceFiles, settled_stamp
from halofeed.system.errors import Problem, SourceError

Images = list[tuple[str, HeaderFields]]
"""Paths of files, each with its header fields."""


@dataclass(frozen=True, kw_only=True)
class DicomSeries:
    """Description of one scan of a DICOM series, without its slices.

    Args:
        key: salted hash that is the same in every run; scans of one series differ in its suffix.
        series: hash of the series' UID, to which `Apart.refers_to` refers; None if absent.
        study: hash of the study's UID; None if absent.
        group: hash of the patient's id; None if absent.
        frame_of_reference: hash of the frame of reference's UID; None if absent.
        members: paths of the files, sorted along the normal of the slices, then by path. If one file holds slices of
            several scans, these are all files of the series. () if the files are `stored`.
        stored: name under which the listing stores the files, a digest of their paths and sizes, and a digest of their
            stamps; see `halofeed.prep.formats.dicom.series_listing`.
        first: first path in alphabetical order.
        folder: common folder of all files.
        folders: folders that hold the files.
        volume: (number from 1, count, distinguishing attributes) of this scan among the scans of the series; None if
            the series is one scan.
        masks: paths of the masks that name images of this scan, if the series has several scans.
        modality: "CT", "MR" ..., or "".
        size: (rows, columns).
        slices: number of frames.
        places: number of different positions of the frames.
        lacking: number of slices that are missing between those.
        chosen: whether the policy selects the modality and the description.
        problem: stage, reason and detail of why the policy refuses the scan.
    """

    key: str
    series: str | None
    study: str | None
    group: str | None
    frame_of_reference: str | None
    members: tuple[str, ...]
    first: str
    folder: str
    folders: tuple[str, ...]
    volume: tuple[int, int, str] | None
    masks: frozenset[str]
    modality: str
    size: tuple[int, int]
    slices: int
    places: int
    lacking: int
    chosen: bool
    problem: tuple[str, str, str] | None
    stored: tuple[str, str, str] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundScan:
    """Slices of one scan: a volume, or several volumes that become its channels.

    Args:
        parts: slices of each volume.
        by: attributes that distinguish the scans of the series, or the volumes of this one; "" if there is one.
        problem: stage, reason and detail of why the files are not a scan.
    """

    parts: tuple[tuple[Slice, ...], ...]
    by: str
    problem: Problem | None = None

    @property
    def slices(self) -> list[Slice]:
        """Slices of all volumes."""
        return list(chain(*self.parts))

    @property
    def paths(self) -> set[str]:
        """Paths of the files."""
        return {part.path for part in self.slices}


@dataclass(frozen=True, kw_only=True)
class OtherFile:
    """A file that is not a slice of a scan.

    Args:
        path: path of the file.
        kind: "not DICOM", "DICOMDIR", "localizer", "image without position", "color image", "mosaic",
            "segmentation", "structure set", "report", "presentation state", "damaged" ...
        refers_to: the `Series.series` that a segmentation or a structure set was drawn on.
        series, group, frame_of_reference: see `DicomSeries`.
        error: the reason why a damaged file cannot be read.
        file_bytes: size of the file.
        is_flat: see `HeaderFields`.
    """

    path: str
    kind: str
    refers_to: tuple[str, ...] = ()
    series: str | None = None
    group: str | None = None
    frame_of_reference: str | None = None
    error: SourceError | None = None
    file_bytes: int | None = None
    is_flat: bool = False

    @property
    def is_mask(self) -> bool:
        """True if the file holds labels."""
        return self.kind in MASK_KINDS

    @property
    def may_be_slice(self) -> bool:
        """True if the file may be an unreadable slice of a scan in the same folder."""
        has_dicom_name = self.path.lower().endswith(DICOM_EXTENSIONS)
        return self.kind == "damaged" or (self.kind == "not DICOM" and has_dicom_name)


def _read_fields(files: SourceFiles, path: str, start: FileStart, policy: SeriesPolicy) -> HeaderFields:
    """Return the header fields of one file, from its first bytes if they contain the header.

    Raises:
        SourceError: the file is not DICOM, or damaged.
    """
    header, body = parse_file_header(files, path, start)
    fields = replace(
        header_fields(header, policy),
        packed=start[2],
        file_bytes=files.size(path),
        header_checksum=checksum_before(header.pixels, body),
    )
    # The elements that place the slices of a mosaic are Siemens' own, and not kept in the header fields.
    if MOSAIC in fields.image_words:
        return split_mosaic(header.elements, fields) or fields
    return fields


def _kind_of(fields: HeaderFields) -> str:
    """Return "image" if the file may be a slice of a volume, else the kind of file that it is."""
    if fields.kind != IMAGE:
        return fields.kind
    if fields.stored.samples != 1 or fields.stored.photometric == "color":
        return "color image"
    # `split_mosaic` found no positions for its slices.
    if MOSAIC in fields.image_words and fields.tiles is None:
        return "mosaic"
    # Screenshots of the scanner's console, beside the scan and with the class of a scan, have this word in their type.
    if "SCREEN SAVE" in fields.image_words:
        return SECONDARY_CAPTURE
    # PS3.3 C.8.2.1.1.1: value 3 of the image type tells localizers from axial images.
    if LOCALIZER_WORDS.intersection(fields.image_words):
        return LOCALIZER
    if fields.is_survey:
        return "survey by its description"
    if any(frame.position_mm is None or frame.orientation is None for frame in fields.frames):
        return _kind_without_position(fields)
    return IMAGE


def _kind_without_position(fields: HeaderFields) -> str:
    """Return the kind of an image that has no position in the patient."""
    if fields.modality != "NM":
        return "image without position"
    # PS3.3 C.8.4.9: the image type tells projections from planar images.
    kinds = (NUCLEAR_KINDS[word] for word in fields.image_words if word in NUCLEAR_KINDS)
    return next(kinds, "nuclear medicine image")


def _kind_of_damaged(head: bytes, policy: SeriesPolicy) -> str:
    """Return the kind of an unreadable file: "damaged", unless its first bytes show that it is not a slice."""
    kind = sop_class_kind(media_sop_class(head))
    # A damaged slice or mask must not disappear; a damaged report, for example, is not part of the scan.
    if kind is None or kind in (IMAGE, *MASK_KINDS):
        return "damaged"
    return "damaged" if kind == SECONDARY_CAPTURE and policy.secondary_captures == "take" else kind


def read_headers(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy
) -> tuple[dict[str, Images], list[OtherFile]]:
    """Read the header of each file once.

    Returns:
        For each series, by its key, the images and the masks that were drawn on it, with their header fields; and the
        files that are not slices, including the masks. All are sorted by path.
    """
    by_series: dict[str, Images] = {}
    apart = []
    for path in sorted(set(paths)):
        read = _read_file(files, path, policy)
        if isinstance(read, OtherFile):
            apart.append(read)
            continue
        kind = _kind_of(read)
        if kind != IMAGE:
            apart.append(_other_file(path, kind, read))
        for key in _series_keys(path, kind, read, policy):
            by_series.setdefault(key, []).append((path, read))
    return by_series, apart


def _read_file(files: SourceFiles, path: str, policy: SeriesPolicy) -> HeaderFields | OtherFile:
    """Return the header fields of a file; or the file as another one if it is not DICOM, or damaged."""
    head = b""
    try:
        # The stamp comes first, so that a change while the file is read does not match it.
        stamp = settled_stamp(files, path)
        start = read_dicom_start(files, path, HEAD_BYTES)
        head = start[0]
        return replace(_read_fields(files, path, start, policy), stamp=stamp)
    except SourceError as error:
        not_dicom = error.reason == "file is not DICOM"
        kind = "not DICOM" if not_dicom else _kind_of_damaged(head, policy)
        return OtherFile(path=path, kind=kind, error=error, file_bytes=files.size(path))


def _series_keys(path: str, kind: str, fields: HeaderFields, policy: SeriesPolicy) -> tuple[str, ...]:
    """Return the keys of the series to which a file belongs: those on which a mask was drawn, or that of an image."""
    if kind in MASK_KINDS:
        return fields.refers_to
    if kind != IMAGE:
        return ()
    folder = path.rpartition("/")[0].encode("utf-8", "surrogateescape")
    # Files that lost their UIDs, or whose UIDs the user distrusts, are a series by their folder.
    series = None if policy.identity == "folder" else fields.series
    return (series or policy.key(b"folder " + folder) or "",)


def _other_file(path: str, kind: str, fields: HeaderFields) -> OtherFile:
    """Return a file that is not a slice, with what pairs a mask with its scan."""
    return OtherFile(
        path=path,
        kind=kind,
        refers_to=fields.refers_to,
        series=fields.series,
        group=fields.group,
        frame_of_reference=fields.frame_of_reference,
        file_bytes=fields.file_bytes,
        is_flat=fields.is_flat,
    )


def find_image_series(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy
) -> tuple[list[Images], list[OtherFile]]:
    """Return the images of each series among some files, sorted by their first path, and the other files."""
    by_series, apart = read_headers(files, paths, policy)
    series = filter(None, map(select_images, by_series.values()))
    return sorted(series, key=lambda images: images[0][0]), apart


def select_images(found: Iterable[tuple[str, HeaderFields]]) -> Images:
    """Return the files of a series that may be slices; the others are masks."""
    return [(path, fields) for path, fields in found if fields.kind == IMAGE]


def _can_stack(first: Slice, second: Slice) -> bool:
    """Return whether two images have the same size, orientation and pixel spacing."""
    # A series may hold several stacks, such as the three directions of a survey, or reformats beside the slices.
    if first.fields.stored.size != second.fields.stored.size:
        return False
    if not is_same_orientation(first.orientation, second.orientation):
        return False
    pairs = zip(first.frame.spacing_mm or (), second.frame.spacing_mm or (), strict=False)
    return all(abs(one - other) <= SPACING_TOLERANCE * abs(one) for one, other in pairs)


def _stacks(images: Sequence[tuple[str, HeaderFields]]) -> list[VolumeSplit]:
    """Group the images of one series by size, orientation and pixel spacing, and split each stack into volumes."""
    stacks: list[list[Slice]] = []
    for path, fields in images:
        for index, frame in enumerate(fields.frames):
            part = Slice(path=path, fields=fields, index=index, frame=frame)
            # The last stack first, because the frames of a file usually belong together.
            stack = next((stack for stack in reversed(stacks) if _can_stack(stack[0], part)), None)
            if stack is None:
                stacks.append([part])
            else:
                stack.append(part)
    return [split_volumes(stack) for stack in stacks]


def find_scans(images: Sequence[tuple[str, HeaderFields]], policy: SeriesPolicy) -> list[FoundScan]:
    """Split the images of one series into scans."""
    scans = []
    for group in split_contradictions(images, policy):
        stacks = _stacks(group.images)
        # Refused files are one scan, so that the listing has one entry for them.
        if group.problem is not None:
            slices = tuple(chain.from_iterable(part for stack in stacks for part in stack.parts))
            scans.append(FoundScan(parts=(slices,), by="", problem=group.problem))
            continue
        # The scans of a series need something that distinguishes them, by which a person can name one.
        otherwise = ("orientation, size or pixel spacing",) if len(stacks) > 1 else ()
        for stack in stacks:
            scans += _scans_of_stack(stack, (*group.by, *(stack.by or otherwise)), policy)
    return scans


def _scans_of_stack(stack: VolumeSplit, by: Sequence[str], policy: SeriesPolicy) -> list[FoundScan]:
    """Return a scan of each volume of a stack, or one of all, as the policy says; `by` distinguishes them."""
    scans = [(part,) for part in stack.parts] if policy.split == "volumes" else [stack.parts]
    return [
        FoundScan(parts=parts, by=" and ".join(by), problem=_folder_problem(parts, policy)) for parts in scans
    ]


def _folder_problem(parts: Sequence[Sequence[Slice]], policy: SeriesPolicy) -> Problem | None:
    """Return the problem of the first volume whose folders hold different scans, or None."""
    problems = (
        folders_disagree(tuple({one.path: one.fields for one in part}.items()), policy) for part in parts
    )
    return next(filter(None, problems), None)


def too_few_slices(places: int, policy: SeriesPolicy, beside: int = 1) -> Problem | None:
    """Return the problem (stage, reason, detail) of a scan with too few slices, or None.

    Args:
        places: number of different positions of its slices.
        policy: policy that states the required number.
        beside: number of scans in the same folder that have too few slices.
    """
    if places >= policy.min_slices:
        return None
    cure = f"--min-slices {places} takes it"
    # If each file has another series UID, the folder shows what belongs together.
    if beside >= policy.min_slices and policy.identity != "folder":
        cure = (
            f"{beside} series of its folder are as small: if these are one scan, use --series-identity folder; if each "
            f"is a scan, --min-slices {places}"
        )
    detail = f"{places} of at least {policy.min_slices}; {cure}"
    return "selection", "series has too few slices", detail


def scan_problem(scan: FoundScan, policy: SeriesPolicy) -> tuple[str, str, str] | None:
    """Return the problem (stage, reason, detail) of files that are not one scan under the policy, or None."""
    if scan.problem is not None:
        return scan.problem
    if len(scan.parts) == 1 or policy.split != "refuse":
        return None
    cure = "--series-split volumes takes each as a scan, channels all as one"
    detail = f"{len(scan.parts)}, distinguished by {scan.by}; {cure}"
    return "selection", "series holds several volumes", detail


def group_series(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy | None = None
) -> tuple[tuple[DicomSeries, ...], tuple[OtherFile, ...]]:
    """Group files into series by their headers, and split the series into scans.

    Images without a series UID are grouped by folder. A scan is a stack of slices with one size, orientation and pixel
    spacing. With `SeriesPolicy.split` "volumes", each volume of such a stack is a scan.

    Args:
        files: the source that holds the files.
        paths: paths of any files, which need not be DICOM.
        policy: rules that define a scan; its salt is part of every hash.

    Returns:
        The scans sorted by their first path, and the other files sorted by path.
    """
    policy = policy or SeriesPolicy()
    by_series, apart = read_headers(files, paths, policy)
    scans = [scan for key, found in by_series.items() for scan, _ in scans_of_series(key, found, policy)]
    return sort_by_first_path(scans), tuple(apart)


def sort_by_first_path(series: Iterable[DicomSeries]) -> tuple[DicomSeries, ...]:
    """Sort scans by their first path."""
    return tuple(sorted(series, key=lambda one: (one.first, one.key)))


def scans_of_series(key: str, found: Images, policy: SeriesPolicy) -> list[tuple[DicomSeries, Images]]:
    """Return the scans of one series, each with its files sorted by path.

    Args:
        key: key of the series.
        found: images and masks of the series, sorted by path, as `read_headers` returns them.
        policy: rules that define a scan.
    """
    images = select_images(found)
    scans = find_scans(images, policy)
    uses = Counter(chain.from_iterable(scan.paths for scan in scans))
    described, count = [], len(scans)
    for number, scan in enumerate(scans, start=1):
        # A file with slices of several scans belongs to each of them; then each gets all files of the series.
        is_shared = any(uses[path] > 1 for path in scan.paths)
        files = images if is_shared else [one for one in images if one[0] in scan.paths]
        members = tuple(path for path, _ in files) if is_shared else _sort_paths(scan.slices)
        series = _describe_scan(key, scan, members, policy)
        if count > 1:
            # A series that is one scan keeps its key, whatever the number of its files is.
            volume = (number, count, scan.by) if scan.by else None
            masks = _masks_of(scan, found)
            series = replace(series, key=f"{key}-{number}", volume=volume, masks=masks)
        described.append((series, files))
    return described


def _describe_scan(key: str, scan: FoundScan, members: tuple[str, ...], policy: SeriesPolicy) -> DicomSeries:
    """Return the description of the only scan of a series.

    Args:
        key: key of the series.
        scan: the scan.
        members: paths of its files, in order.
        policy: rules that define a scan.
    """
    slices = scan.slices
    first = slices[0].fields
    return DicomSeries(
        key=key,
        series=first.series,
        study=first.study,
        group=next((part.fields.group for part in slices if part.fields.group), None),
        frame_of_reference=first.frame_of_reference,
        members=members,
        first=min(members),
        folder=common_folder(members),
        folders=tuple(sorted(set(map(folder_of, members)))),
        volume=None,
        masks=frozenset(),
        modality=first.modality,
        size=first.stored.size,
        slices=len(slices),
        places=min(map(_places, scan.parts)),
        lacking=sum(map(_count_missing, scan.parts)),
        chosen=first.chosen,
        problem=scan_problem(scan, policy),
    )


def _masks_of(scan: FoundScan, found: Images) -> frozenset[str]:
    """Return the paths of the masks among the files of a series that name images of a scan."""
    instances = {part.fields.instance for part in scan.slices}
    return frozenset(path for path, fields in found if not instances.isdisjoint(fields.images))


def _places(slices: Sequence[Slice]) -> int:
    """Return the number of different positions of slices, rounded to a thousandth of a millimeter."""
    return len({tuple(round(value, 3) for value in part.position_mm) for part in slices})


def _count_missing(slices: Sequence[Slice]) -> int:
    """Return the number of missing slices of a volume; 0 if the orientation is invalid."""
    try:
        return count_missing_slices(positions_of(slices), slices[0].orientation, thickness_of(slices))
    except SourceError:
        return 0  # `open_series` raises the error.


def _sort_paths(slices: Sequence[Slice]) -> tuple[str, ...]:
    """Return the paths of slices, sorted along the normal of the slices, then by path."""
    try:
        normal = axes_of(slices[0].orientation)[2]
    except SourceError:
        normal = np.zeros(3)  # `open_series` raises the error.
    places = {part.path: float(np.dot(part.position_mm, normal)) for part in slices}
    return tuple(sorted(places, key=lambda path: (places[path], path)))
