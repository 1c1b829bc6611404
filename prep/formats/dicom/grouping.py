"""Which files make one stack of slices, by what their headers say, and what the other files are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from halofeed.errors import Problem, SourceError
from halofeed.prep.formats.dicom.header_fields import LOCALIZER_WORDS, MOSAIC, HeaderFields, header_fields
from halofeed.prep.formats.dicom.headers import (
    HeaderContinuesError,
    checksum_before,
    media_sop_class,
    read_file,
    read_header,
    read_start,
)
from halofeed.prep.formats.dicom.kinds import IMAGE, LOCALIZER, MASK_KINDS, SECONDARY_CAPTURE, sop_class_kind
from halofeed.prep.formats.dicom.pixels import split_mosaic
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
    ORIENTATION_TOLERANCE,
    SPACING_TOLERANCE,
    axes_of,
    count_missing_slices,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import DICOM_EXTENSIONS, common_folder, folder_of
from halofeed.prep.sources.files import SourceFiles, settled_stamp

HEAD_BYTES = 1 << 16
"""How much of a file is read for its header; all of it where the header is longer."""
Images = list[tuple[str, HeaderFields]]
"""Files, each with what it says."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The files of one scan.

    Args:
        key: a salted hash that is the same in every run; stacks of one series differ in what follows it.
        series: the hash of the series' UID, to which `Apart.refers_to` refers; None where it has none.
        study: that of the study's UID; None where there is none.
        group: that of the patient's id; None where there is none.
        frame_of_reference: that of the frame of reference.
        members: the files, sorted along the normal of the slices, then by path; all of the series where one of them
            holds slices of several scans; () where they are `stored`.
        stored: the name under which its slices are kept, a digest of the files' names and sizes, and one of their
            stamps; see `halofeed.prep.formats.dicom.series_listing`.
        first: the first of the files by name.
        folder: that holds all of them.
        folders: in which they lie.
        volume: which scan of the series it is, where there are several: its number from 1, of how many, and what
            tells them apart; None where it is the only one.
        masks: where it is one of several: the masks that name some of its images.
        modality: "CT", "MR" ..., or "".
        size: (rows, columns).
        slices: frames in all.
        places: positions at which they lie.
        lacking: how many more there have to be between those.
        chosen: whether it is of a modality and description that the policy wants.
        problem: stage, reason and detail of what refuses it by policy.
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
    """What becomes one scan: a volume, or several that become its channels.

    Args:
        parts: the slices of each volume.
        by: what tells the scans of the series, or the volumes of this one, apart; "" where there is one of each.
        problem: stage, reason and detail of why its files are no scan.
    """

    parts: tuple[tuple[Slice, ...], ...]
    by: str
    problem: Problem | None = None

    @property
    def paths(self) -> set[str]:
        """The files of its slices."""
        return {part.path for volume in self.parts for part in volume}


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A file that belongs to no stack of slices.

    Args:
        path: of the file.
        kind: what it is: "not DICOM", "DICOMDIR", "localizer", "image without position", "color image", "mosaic",
            "segmentation", "structure set", "report", "presentation state", "damaged" ...
        refers_to: the `Series.series` that a segmentation or a structure set was drawn on.
        series, group, frame_of_reference: as of a `Series`.
        error: why a damaged file cannot be read.
        file_bytes: of the file.
    """

    path: str
    kind: str
    refers_to: tuple[str, ...] = ()
    series: str | None = None
    group: str | None = None
    frame_of_reference: str | None = None
    error: SourceError | None = None
    file_bytes: int | None = None

    @property
    def is_mask(self) -> bool:
        """Whether it holds labels."""
        return self.kind in MASK_KINDS

    @property
    def may_be_slice(self) -> bool:
        """Whether it may be a slice of the stack beside it that cannot be read."""
        named = self.path.lower().endswith(DICOM_EXTENSIONS)
        return self.kind == "damaged" or (self.kind == "not DICOM" and named)


def _read_fields(
    files: SourceFiles, path: str, start: tuple[bytes, bool, bool], policy: SeriesPolicy
) -> HeaderFields:
    """What one file says, from its first bytes where they suffice; SourceError where it is no DICOM, or damaged."""
    head, complete, packed = start
    try:
        header, body = read_header(head, complete)
    except HeaderContinuesError:
        header, body = read_header(read_file(files, path))
    fields = replace(
        header_fields(header, policy),
        packed=packed,
        file_bytes=files.size(path),
        header_checksum=checksum_before(header.pixels, body),
    )
    if MOSAIC in fields.image_words:
        return split_mosaic(header.elements, fields) or fields
    return fields


def _kind_of(fields: HeaderFields) -> str:
    """ "image" for what may be a slice of a volume, else why it is none."""
    if fields.kind != IMAGE:
        return fields.kind
    if fields.stored.samples != 1 or fields.stored.photometric == "color":
        return "color image"
    if MOSAIC in fields.image_words and fields.tiles is None:
        return "mosaic"
    if "SCREEN SAVE" in fields.image_words:
        return SECONDARY_CAPTURE
    if LOCALIZER_WORDS.intersection(fields.image_words):
        return LOCALIZER
    if fields.is_survey:
        return "survey by its description"
    if any(frame.position_mm is None or frame.orientation is None for frame in fields.frames):
        return "nuclear medicine image" if fields.modality == "NM" else "image without position"
    return IMAGE


def _kind_of_damaged(head: bytes, policy: SeriesPolicy) -> str:
    """What a file is that cannot be read: "damaged", unless its first bytes say that it is no slice anyway."""
    kind = sop_class_kind(media_sop_class(head))
    if kind is None or kind in (IMAGE, *MASK_KINDS):
        return "damaged"
    return "damaged" if kind == SECONDARY_CAPTURE and policy.secondary_captures == "take" else kind


def read_headers(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy
) -> tuple[dict[str, Images], list[Apart]]:
    """Look at each file once.

    Returns:
        Of each series, by its key: the files that may be its slices and the masks that were drawn on it, with what they
        say; and the files that are no slices, masks among them; all in order of their path.
    """
    by_series: dict[str, Images] = {}
    apart = []
    for path in sorted(set(paths)):
        head = b""
        try:
            stamp = settled_stamp(files, path)
            start = read_start(files, path, HEAD_BYTES)
            head = start[0]
            fields = replace(_read_fields(files, path, start, policy), stamp=stamp)
        except SourceError as error:
            not_dicom = error.reason == "file is not DICOM"
            kind = "not DICOM" if not_dicom else _kind_of_damaged(head, policy)
            apart.append(Apart(path=path, kind=kind, error=error, file_bytes=files.size(path)))
            continue
        kind = _kind_of(fields)
        keys: Iterable[str] = fields.refers_to if kind in MASK_KINDS else ()
        if kind == IMAGE:
            folder = path.rpartition("/")[0].encode("utf-8", "surrogateescape")
            series = None if policy.identity == "folder" else fields.series
            keys = (series or policy.key(b"folder " + folder) or "",)
        else:
            apart.append(
                Apart(
                    path=path,
                    kind=kind,
                    refers_to=fields.refers_to,
                    series=fields.series,
                    group=fields.group,
                    frame_of_reference=fields.frame_of_reference,
                    file_bytes=fields.file_bytes,
                )
            )
        for key in keys:
            by_series.setdefault(key, []).append((path, fields))
    return by_series, apart


def select_images(found: Iterable[tuple[str, HeaderFields]]) -> Images:
    """Those of a series' files that may be its slices."""
    return [(path, fields) for path, fields in found if fields.kind == IMAGE]


def _alike(first: Slice, second: Slice) -> bool:
    """Whether two images can be slices of one stack: of one size, orientation and pixel spacing."""
    if first.fields.stored.size != second.fields.stored.size:
        return False
    pairs = zip(first.orientation, second.orientation, strict=True)
    if any(abs(one - other) > ORIENTATION_TOLERANCE for one, other in pairs):
        return False
    pairs = zip(first.frame.spacing_mm or (), second.frame.spacing_mm or (), strict=False)
    return all(abs(one - other) <= SPACING_TOLERANCE * abs(one) for one, other in pairs)


def _stacks(images: Sequence[tuple[str, HeaderFields]]) -> list[VolumeSplit]:
    """The images of one series, in stacks of one size, orientation and pixel spacing, and those in volumes."""
    stacks: list[list[Slice]] = []
    for path, fields in images:
        for index, frame in enumerate(fields.frames):
            part = Slice(path=path, fields=fields, index=index, frame=frame)
            # The last stack first: the frames of a file mostly go on as they began.
            stack = next((stack for stack in reversed(stacks) if _alike(stack[0], part)), None)
            if stack is None:
                stacks.append([part])
            else:
                stack.append(part)
    return [split_volumes(stack) for stack in stacks]


def find_scans(images: Sequence[tuple[str, HeaderFields]], policy: SeriesPolicy) -> list[FoundScan]:
    """The scans of one series."""
    found = []
    for group in split_contradictions(images, policy):
        if group.problem is not None:
            parts = tuple(part for stack in _stacks(group.images) for part in stack.parts)
            found.append(FoundScan(parts=(tuple(chain(*parts)),), by="", problem=group.problem))
            continue
        stacks = _stacks(group.images)
        for stack in stacks:
            by = " and ".join(
                (
                    *group.by,
                    *(stack.by or (("orientation, size or pixel spacing",) if len(stacks) > 1 else ())),
                )
            )
            scans = [(part,) for part in stack.parts] if policy.split == "volumes" else [stack.parts]
            found += [FoundScan(parts=parts, by=by, problem=_of_folders(parts, policy)) for parts in scans]
    return found


def _of_folders(parts: Sequence[Sequence[Slice]], policy: SeriesPolicy) -> Problem | None:
    """What is wrong with volumes whose folders hold different scans."""
    problems = (
        folders_disagree(tuple({one.path: one.fields for one in part}.items()), policy) for part in parts
    )
    return next(filter(None, problems), None)


def too_few_slices(places: int, policy: SeriesPolicy, beside: int = 1) -> Problem | None:
    """What is wrong with a stack of so many slices: stage, reason and detail; None where they suffice.

    Args:
        places: at which its slices lie.
        policy: how many are needed.
        beside: how many stacks of its folder have too few.
    """
    if places >= policy.min_slices:
        return None
    cure = f"--min-slices {places} takes it"
    if beside >= policy.min_slices and policy.identity != "folder":
        cure = (
            f"{beside} series of its folder are as small: if these are one scan, say --series-identity folder; if each "
            f"is a scan, --min-slices {places}"
        )
    detail = f"{places} of at least {policy.min_slices}; {cure}"
    return "selection", "series has too few slices", detail


def scan_problem(scan: FoundScan, policy: SeriesPolicy) -> tuple[str, str, str] | None:
    """What is wrong with a scan of several volumes, or of files that are no scan: stage, reason and detail; None where
    they are taken."""
    if scan.problem is not None:
        return scan.problem
    if len(scan.parts) == 1 or policy.split != "refuse":
        return None
    cure = "--series-split volumes takes each as a scan, channels all as one"
    detail = f"{len(scan.parts)}, distinguished by {scan.by}; {cure}"
    return "selection", "series holds several volumes", detail


def group_series(
    files: SourceFiles, paths: Iterable[str], policy: SeriesPolicy | None = None
) -> tuple[tuple[Series, ...], tuple[Apart, ...]]:
    """Group files into series by what their headers say, and series into scans.

    Images without a series UID are grouped by their folder. A scan is a stack of slices of one size, orientation
    and pixel spacing, or with `SeriesPolicy.split` "volumes" each volume of such a stack.

    Args:
        files: where the files are.
        paths: any files; those that are no DICOM slices come back apart.
        policy: what makes a scan; its salt goes into every hash.

    Returns:
        The scans in order of their first path, and the files that belong to none, in order of their path.
    """
    policy = policy or SeriesPolicy()
    by_series, apart = read_headers(files, paths, policy)
    found = [series for key, some in by_series.items() for series, _ in scans_of_series(key, some, policy)]
    return in_order_of_files(found), tuple(apart)


def in_order_of_files(series: Iterable[Series]) -> tuple[Series, ...]:
    """Scans in order of their first path."""
    return tuple(sorted(series, key=lambda one: (one.first, one.key)))


def scans_of_series(key: str, found: Images, policy: SeriesPolicy) -> list[tuple[Series, Images]]:
    """The scans of one series, each with the files of which `Series.members` consists, in order of their path.

    Args:
        key: of the series.
        found: its files and masks, in order of their path, as `read_headers` gives them.
        policy: what makes a scan.
    """
    images = select_images(found)
    scans = find_scans(images, policy)
    uses = Counter(path for scan in scans for path in scan.paths)
    described, of = [], len(scans)
    for number, scan in enumerate(scans, start=1):
        slices = [part for volume in scan.parts for part in volume]
        own = _in_order(slices)
        is_shared = any(uses[path] > 1 for path in own)
        members = tuple(path for path, _ in images) if is_shared else own
        first = slices[0].fields
        instances = {part.fields.instance for part in slices if of > 1}
        series = Series(
            key=key if of == 1 else f"{key}-{number}",
            series=first.series,
            study=first.study,
            group=next((part.fields.group for part in slices if part.fields.group), None),
            frame_of_reference=first.frame_of_reference,
            members=members,
            first=min(members),
            folder=common_folder(members),
            folders=tuple(sorted(set(map(folder_of, members)))),
            volume=(number, of, scan.by) if of > 1 and scan.by else None,
            masks=frozenset(path for path, fields in found if not instances.isdisjoint(fields.images)),
            modality=first.modality,
            size=first.stored.size,
            slices=len(slices),
            places=min(map(_places, scan.parts)),
            lacking=sum(map(_lacking, scan.parts)),
            chosen=first.chosen,
            problem=scan_problem(scan, policy),
        )
        described.append((series, [one for one in images if is_shared or one[0] in scan.paths]))
    return described


def _places(slices: Sequence[Slice]) -> int:
    """At how many places slices lie, to a thousandth of a millimeter."""
    return len({tuple(round(value, 3) for value in part.position_mm) for part in slices})


def _lacking(slices: Sequence[Slice]) -> int:
    """How many slices of a volume are missing between others; 0 where their places do not say."""
    try:
        return count_missing_slices(positions_of(slices), slices[0].orientation, thickness_of(slices))
    except SourceError:
        return 0  # Opening the series says why it is refused.


def _in_order(slices: Sequence[Slice]) -> tuple[str, ...]:
    """The files of slices, along the normal of the slices, then by path."""
    try:
        normal = axes_of(slices[0].orientation)[2]
    except SourceError:
        normal = np.zeros(3)  # Opening the series says why it is refused.
    places = {part.path: float(np.dot(part.position_mm, normal)) for part in slices}
    return tuple(sorted(places, key=lambda path: (places[path], path)))
