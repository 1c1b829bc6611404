"""Reader of BIDS data sets: sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz, with segmentations beside them or derived.

    sub-01_ses-1_acq-tse_run-2_T2w.nii.gz        subject, session, entities, suffix
    sub-01_ses-1_space-orig_label-L_mask.nii.gz  the mask of class L
    sub-01_ses-1_T2w_dseg.nii.gz                 a label volume, named after its image (usual, outside the standard)

Source: https://bids-specification.readthedocs.io, "Entities", "Imaging data types" and "The Inheritance Principle".
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from halofeed.prep.annotations.advice import advise, option_values, suggest
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    read_required,
    refuse_annotation_file,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.labels import from_file, shared_names
from halofeed.prep.annotations.pairing import (
    NEITHER,
    NO_IMAGE,
    LabelFiles,
    PairKey,
    class_values,
    join_channels,
    join_masks,
    pair_up,
    single_file_label,
    target_classes,
)
from halofeed.prep.annotations.patterns import Pattern, compile_pattern
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.layouts.pairs import list_references as list_pairs
from halofeed.prep.layouts.pairs import other_scans
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, iterate_scans, missing_part, stem_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, Problem
from halofeed.system.wording import plural

# BIDS, "Filesystem structure" and "Entities": sub-<label>[_ses-<label>][_<key>-<value>]..._<suffix>. `drawn_on` is
# outside the standard: the suffix of the image within the name of its label, as in sub-01_T1w_dseg.
_VALUE = "[A-Za-z0-9+]+"
_NAME = re.compile(
    rf"(?P<subject>sub-{_VALUE})(?:_(?P<session>ses-{_VALUE}))?(?P<entities>(?:_[A-Za-z]+-{_VALUE})*)"
    rf"(?:_(?P<drawn_on>[A-Za-z0-9]+))?(?P<more>(?:_[A-Za-z]+-{_VALUE})*)_(?P<suffix>[A-Za-z0-9]+)"
)
_OF_DERIVATIVES = frozenset(("space", "atlas", "seg", "scale", "res", "den", "label", "desc", "hemi"))
"""Entities that a derivative adds to those of the image from which it is made."""
_NO_IMAGES = frozenset(("dseg", "mask", "probseg", "defacemask"))
"""Suffixes of segmentations and masks."""
_OTHER_FOLDERS = frozenset(("sourcedata", "code", "stimuli", "phenotype"))
"""Folders of a data set whose files have no standard names."""
_IN_DATA_SET = re.compile("(?:sub|ses)-.+|anat")
"""Folders within a data set."""
_MAX_LISTED = 4
_MAX_ADVISED = 2
_NOT_CHOSEN: Problem = ("selection", "file is not chosen by its pattern", "")
_NOT_IN_CHANNELS = "image is of a suffix that is no channel"


@dataclass(frozen=True, kw_only=True)
class _BidsFile:
    """File with a name in BIDS.

    Args:
        path: path below the root.
        place: folder that holds the folders of the subjects, such as derivatives/manual.
        case: subject and session, such as ("sub-01", "ses-1"); the session may be "".
        entities: further entities by key, in the order of the name.
        drawn_on: suffix of the image after which a derivative is named; "" if it names none.
        suffix: last part of the name.
    """

    path: str
    place: str
    case: PairKey
    entities: Mapping[str, str]
    drawn_on: str
    suffix: str

    @property
    def name(self) -> str:
        """Name without subject, session and extension: acq-tse_T2w."""
        return stem_of(self.path)[len("_".join(filter(None, self.case))) + 1 :]

    @property
    def of_source(self) -> frozenset[tuple[str, str]]:
        """Entities that an image and its derivatives share, except subject and session."""
        return frozenset(item for item in self.entities.items() if item[0] not in _OF_DERIVATIVES)

    @property
    def class_name(self) -> str | None:
        """Class of a mask of one class, which is its entity `label`; None for other files."""
        return self.entities.get("label") if self.suffix == "mask" else None

    @property
    def has_label_name(self) -> bool:
        """Return whether it is a label volume or the mask of a class (BIDS Derivatives, "Imaging", "Segmentations")."""
        return self.suffix == "dseg" or self.class_name is not None

    @property
    def has_image_name(self) -> bool:
        """Return whether it is an image as acquired; preprocessed images in derivatives are taken by a pattern only."""
        return not self.is_derived and self.suffix not in _NO_IMAGES

    @property
    def is_derived(self) -> bool:
        return "derivatives" in self.place.split("/")

    @property
    def data_set(self) -> str:
        """Folder of the data set; it may contain both rawdata and derivatives."""
        folders = self.place.split("/") if self.place else []
        # BIDS, "Source vs. raw vs. derived data": ds/rawdata/sub-01 and ds/derivatives/x/sub-01 are one data set.
        end = folders.index("derivatives") if self.is_derived else len(folders)
        return "/".join(folders[: end - 1 if end and folders[end - 1] == "rawdata" else end])

    def like(self, name: str) -> str:
        """Return a pattern for the files of all subjects and sessions below `place` with this name."""
        return f"{self.place or 'sub-*'}/**/{{id}}_{name}{extension_of(self.path)}"


class _Role(Enum):
    """Use of a file with a BIDS name in a conversion."""

    IMAGE = "image"
    LABEL = "label"
    ELSEWHERE = "image outside the folders `anat`"
    OTHER_IMAGE = "image that a pattern leaves out"
    OTHER_LABEL = "label that a pattern leaves out"
    OTHER = "neither image nor label"


_PROBLEMS_OF_ROLES = {
    _Role.OTHER_IMAGE: _NOT_CHOSEN,
    _Role.OTHER_LABEL: _NOT_CHOSEN,
    _Role.OTHER: NEITHER,
}


@dataclass(kw_only=True)
class _Found:
    """Images and labels of a data set, and the files that are neither.

    Args:
        images: (subject and session, example) of each image with its channels.
        labels: labels of each subject and session that fit its image.
        problems: problem of the labels of a subject and session.
        passed_over: images of each subject and session that are in another folder or that a pattern leaves out.
        derived: other derived files of each subject and session, which may be labels of a name unknown here.
        left_out: examples of files that are not taken.
    """

    images: list[tuple[PairKey, SourceExample]] = field(default_factory=list)
    labels: dict[PairKey, list[_BidsFile]] = field(default_factory=dict)
    problems: dict[PairKey, Problem] = field(default_factory=dict)
    passed_over: dict[PairKey, list[_BidsFile]] = field(default_factory=dict)
    derived: dict[PairKey, list[_BidsFile]] = field(default_factory=dict)
    left_out: list[SourceExample] = field(default_factory=list)

    @property
    def masks(self) -> list[_BidsFile]:
        return [label for found in self.labels.values() for label in found]

    def leave_out(self, path: str, problem: Problem) -> None:
        self.left_out.append(rejected_example(path, problem))


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every session of a subject, with its channels and its label.

    - Images are in the folders `anat`, outside of `derivatives`, or where --image-pattern says. Channels are the
      suffixes that labels are named after, if all are, else those that all sessions have, else --channel-order. Its
      names are a suffix, or entities with a suffix (run-1_T1w); a name that is exactly the file's comes first.
    - Labels are *_dseg, or *_label-CLASS_mask for each class. --label-pattern chooses among several, or takes others.
      In patterns, {id} is the subject with the session. A label belongs to the image of its session whose entities
      include its own, except those of derivatives. `space` is that of the image, absent or "orig".
    - A subject is a group. A column `split` of participants.tsv assigns splits, and no other column does.

    Raises:
        AnnotationsError: there are several data sets, or no image, or no common channel; labels are in several
            pipelines, or are of two kinds.
    """
    found = _find(images, annotation_file, options)
    labels = _labels_of_cases(found, images.root, options)
    # Without labels a scan is for prediction, which the user must ask for.
    if (
        not labels
        and options.missing_masks == "refuse"
        and (advice := _advise_on_labels(found, images, options))
    ):
        raise AnnotationsError(
            f"{images.root}: no file is a label by its name (*_dseg, or *_label-CLASS_mask); {advice}; without labels: "
            "--missing-masks prediction"
        )
    cases = found.images
    # --split-shares and --split-lists replace the table's splits.
    if options.source_splits:
        cases = _split_by_participants(cases, images)
    yield from sort_examples([*pair_up(cases, labels, options.missing_masks), *found.left_out])


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return values for the classes of the masks, or the names of the values in dseg.tsv files; {} if there are none.

    A table applies to the files in its folder and below whose names contain its parts; the nearest one counts. Without
    a table values have no names: the standard's own (1: gray matter) are not what a mask of lesions means.

    Raises:
        AnnotationsError: tables of two labels differ.
    """
    found = _find(images, annotation_file, options)
    # A mask of one class stores 0 and 1, so the numbers of the classes are chosen here.
    if names := [label.class_name for label in found.masks if label.class_name]:
        return class_values(target_classes(names, images.root, options), options)
    named: dict[str, Mapping[int, str]] = {}
    tables = _tables_of_names(images.sizes())
    for label in found.masks:
        table = _table_of(label, tables)
        if table is None:
            named[label.path] = {}
        elif table not in named:
            named[table] = from_file(table, read_required(images, table), 0).names
    return {value: name for value, name in shared_names(named).items() if value}


def _tables_of_names(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the tables of the names of values in each folder: dseg.tsv, or one that is named after its labels.

    Source: BIDS Derivatives, "Imaging data types", "Common image-derived labels".
    """
    parts = (path.rpartition("/") for path in paths)
    return grouped(
        (folder, f"{folder}{slash}{name}")
        for folder, slash, name in parts
        if f"_{name}".endswith("_dseg.tsv")
    )


def _table_of(label: _BidsFile, tables: Mapping[str, Sequence[str]]) -> str | None:
    """Return the dseg.tsv that applies to a label by the inheritance principle, or None."""
    parts, folder = set(stem_of(label.path).split("_")), label.path
    while folder != label.place:
        folder = folder.rpartition("/")[0]
        fitting = [path for path in tables.get(folder, ()) if parts.issuperset(_parts_of_table(path))]
        if fitting:
            return max(fitting, key=lambda path: (len(_parts_of_table(path)), path))
    return None


def _parts_of_table(path: str) -> list[str]:
    return path.rpartition("/")[2].removesuffix(".tsv").split("_")


def _find(images: SourceFiles, annotation_file: str | None, options: LayoutOptions) -> _Found:
    """Sort the files into images and labels, select the channels, and assign labels to the images that they fit."""
    refuse_annotation_file(annotation_file, "BIDS has no annotation file; name the folder of the data set")
    found = _Found()
    by_role = _sort(images, found, options)
    labels, elsewhere = by_role[_Role.LABEL], by_role[_Role.ELSEWHERE]
    _check_one_data_set([*labels, *elsewhere, *by_role[_Role.IMAGE]], images.root)
    # The folder of a subject, or a set of func and dwi alone.
    if not by_role[_Role.IMAGE]:
        raise AnnotationsError(_no_image_message(images, elsewhere, options.image_pattern))
    scans = _by_case(by_role[_Role.IMAGE])
    chosen = _join(scans, labels, found, images.root, options)
    for label in labels:
        _assign(label, scans.get(label.case, []), chosen.get(label.case, []), found, options)
    _check_one_kind(found.masks, images.root)
    return found


def _role_of(file: _BidsFile, image_pattern: Pattern | None, label_pattern: Pattern | None) -> _Role:
    """Return the role of a file: the user's patterns decide before its name."""
    # Labels first: with a pattern for each, a file that fits both is a label, or its image would be one.
    if file.has_label_name if label_pattern is None else _matches(label_pattern, file):
        return _Role.LABEL
    if file.has_image_name if image_pattern is None else _matches(image_pattern, file):
        # BIDS, "Magnetic Resonance Imaging": structural images are in anat. Those of func or dwi are no inputs for a
        # segmentation unless the user's pattern takes them.
        is_structural = image_pattern is not None or file.path.split("/")[-2] == "anat"
        return _Role.IMAGE if is_structural else _Role.ELSEWHERE
    if file.has_image_name:
        return _Role.OTHER_IMAGE
    return _Role.OTHER_LABEL if file.has_label_name else _Role.OTHER


def _by_case(files: Iterable[_BidsFile]) -> dict[PairKey, list[_BidsFile]]:
    """Return the files of each subject and session."""
    return grouped((file.case, file) for file in files)


def _sort(images: SourceFiles, found: _Found, options: LayoutOptions) -> dict[_Role, list[_BidsFile]]:
    """Return the files with valid BIDS names by role; `found` gets the examples of the files that are not taken."""
    image_pattern = _compiled("image_pattern", options.image_pattern)
    label_pattern = _compiled("label_pattern", options.label_pattern)
    by_role: dict[_Role, list[_BidsFile]] = {role: [] for role in _Role}
    paths, unnamed = images.sizes(), list[str]()
    for path in iterate_scans(paths, options.takes_scan):
        file, problem = _read_name(path)
        if file is None:
            unnamed.append(path)
        elif problem := problem or missing_part(path, paths):
            found.leave_out(path, problem)
        else:
            role = _role_of(file, image_pattern, label_pattern)
            by_role[role].append(file)
            if role in _PROBLEMS_OF_ROLES:
                found.leave_out(path, _PROBLEMS_OF_ROLES[role])
    found.passed_over = _by_case([*by_role[_Role.ELSEWHERE], *by_role[_Role.OTHER_IMAGE]])
    # With a pattern the user has named the labels; without one, any other derived file may be one.
    found.derived = _by_case(by_role[_Role.OTHER]) if label_pattern is None else {}
    stems = {stem_of(one.path): one.path for one in by_role[_Role.IMAGE]}
    for path in unnamed:
        found.leave_out(path, _named_after(path, stems))
    for path in other_scans(images, options):
        found.leave_out(path, NEITHER)
    for file in by_role[_Role.ELSEWHERE]:
        found.leave_out(file.path, ("selection", "image is not in a folder anat", _image_advice(file)))
    return by_role


def _compiled(option: str, text: str | None) -> Pattern | None:
    return None if text is None else compile_pattern(text, option, ("id",))


def _no_image_message(images: SourceFiles, elsewhere: Sequence[_BidsFile], image_pattern: str | None) -> str:
    """Return the message for a source without an image, with what is there instead."""
    expected = image_pattern or "sub-LABEL/[ses-LABEL/]anat/sub-LABEL_[ses-LABEL_]SUFFIX.nii.gz"
    folder = Path(images.root).absolute()
    # Names are read from the folder of the subject on, so the source must be the data set, not a part of it.
    if _IN_DATA_SET.fullmatch(folder.name):
        data_set = next(
            one.parent for one in (folder, *folder.parents) if not _IN_DATA_SET.fullmatch(one.parent.name)
        )
        there = f"; it is a part of a data set, whose folder is --source {data_set}"
    elif elsewhere:
        there = f"; there is {elsewhere[0].path}; {_image_advice(elsewhere[0])}"
    else:
        there = layout_hint(images, "bids")
    return f"{images.root}: no image {expected} lies below it{there}"


def _read_name(path: str) -> tuple[_BidsFile | None, Problem | None]:
    """Return the parts of a path, or None if it is not a file of a subject in BIDS; and a contradiction in it."""
    match = _NAME.fullmatch(stem_of(path))
    folders = path.split("/")[:-1]
    at = next((at for at, folder in enumerate(folders) if folder.startswith("sub-")), None)
    # BIDS, "Source vs. raw vs. derived data": names in sourcedata are free, even if they look like BIDS.
    if match is None or at is None or _OTHER_FOLDERS.intersection(folders[:at]):
        return None, None
    entities = [part.split("-") for part in (match["entities"] + match["more"]).split("_") if part]
    file = _BidsFile(
        path=path,
        place="/".join(folders[:at]),
        case=(match["subject"], match["session"] or ""),
        entities=dict(entities),
        drawn_on=match["drawn_on"] or "",
        suffix=match["suffix"],
    )
    return file, _misplaced(file, folders[at:])


def _misplaced(file: _BidsFile, folders: Sequence[str]) -> Problem | None:
    """Return the problem of a file whose folders name another subject or session; None if they agree.

    BIDS repeats both in every file name ("Filesystem structure"), so a difference means a moved or renamed file.
    """
    named = (folder for folder in folders if folder.startswith(("sub-", "ses-")))
    wrong = next((folder for folder in named if folder not in file.case), None)
    if wrong is None:
        return None
    detail = f"the folder {wrong} holds a file of {'_'.join(filter(None, file.case))}; move or rename it"
    return ("annotation", "folder and file name differ in subject or session", detail)


def _matches(pattern: Pattern, file: _BidsFile) -> bool:
    values, case = pattern.match(file.path), "_".join(filter(None, file.case))
    return values is not None and values.get("id", case) == case


def _named_after(path: str, stems: Mapping[str, str]) -> Problem:
    """Return the problem of a file whose name is not BIDS, such as sub-01_T1w_seg-manual, with a way to pair it."""
    words, image = _patterns_of_pair(path, stems)
    if not words:
        return NEITHER
    detail = f"named after {image}; if it is a label, take {shlex.join(words)}; names of BIDS end in _dseg"
    return *NEITHER[:2], detail


def _patterns_of_pair(path: str, stems: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the options that pair a file with the image after which it is named, and that image; () if there is none.

    Args:
        path: file whose name is not BIDS.
        stems: image by stem.
    """
    name = stem_of(path)
    while name and name not in stems:
        name = name.rpartition("_")[0]
    image, extension = stems.get(name, ""), extension_of(path)
    whole = image.removesuffix(extension)
    # A pattern needs one text that the paths of both files contain.
    if not image or whole == image or whole not in path:
        return (), ""
    patterns = ("--image-pattern", f"{{id}}{extension}", "--label-pattern", path.replace(whole, "{id}"))
    return ("--layout", "pairs", *patterns), image


def _advise_on_labels(found: _Found, images: SourceFiles, options: LayoutOptions) -> str:
    """Return options that find labels where no name is a label's, each tried on the files; "" if none does.

    Candidates are the masks without a class (desc-lesion_mask) and files that are named after an image.
    """

    def try_words(words: Sequence[str]) -> str | None:
        given = option_values(words)
        tried = replace(
            options,
            image_pattern=given.get("--image-pattern", options.image_pattern),
            label_pattern=given["--label-pattern"],
        )
        listing = list_pairs if "--layout" in given else list_references
        count = sum(one.problem is None and one.is_labelled for one in listing(images, images, None, tried))
        return f"pairs {plural(count, 'image')} with labels" if count else None

    return advise(suggest(_label_candidates(found), try_words, most=_MAX_ADVISED), "")


def _label_candidates(found: _Found) -> list[tuple[str, ...]]:
    """Return options that may take labels, the best first: patterns of masks, then pairs by the names of images."""
    passed_over = (one.path for files in found.passed_over.values() for one in files)
    stems = {stem_of(path): path for path in [*(one.source for _, one in found.images), *passed_over]}
    of_masks, of_pairs = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for example in found.left_out:
        file, problem = _read_name(example.source)
        if file is None:
            of_pairs.append(_patterns_of_pair(example.source, stems)[0])
        elif problem is None and file.suffix == "mask":
            of_masks.append(("--label-pattern", file.like(file.name)))
    return list(dict.fromkeys(filter(None, [*of_masks, *of_pairs])))


def _image_advice(file: _BidsFile) -> str:
    return f"--image-pattern '{file.like(file.name)}' takes such images"


def _label_advice(pattern: str) -> str:
    return f"--label-pattern '{pattern}' takes one"


def _check_one_data_set(files: Sequence[_BidsFile], root: str) -> None:
    folders = sorted({file.data_set for file in files})
    # sub-01 of two data sets are two people, who would be one group.
    if len(folders) > 1:
        listed = ", ".join(folder or "." for folder in folders[:_MAX_LISTED])
        outermost = "" if folders[0] else "; for that of ., move the others out of it"
        raise AnnotationsError(
            f"{root}: it holds {len(folders)} data sets in BIDS, whose subjects may share their names: {listed}; name "
            f"the folder of one with --source{outermost}"
        )


def _join(
    scans: Mapping[PairKey, Sequence[_BidsFile]],
    labels: Sequence[_BidsFile],
    found: _Found,
    root: str,
    options: LayoutOptions,
) -> dict[PairKey, list[_BidsFile]]:
    """Add the images with their channels to `found`; return the files of the channels of each case."""
    order = options.channel_order or _common_suffixes(scans, labels, root)
    may_be_labels = {} if labels else found.derived
    other: Problem = ("selection", _NOT_IN_CHANNELS, f"channels are {', '.join(order)}")
    chosen: dict[PairKey, list[_BidsFile]] = {}
    joined: list[tuple[PairKey, Mapping[str, str], SourceExample]] = []
    ambiguous: dict[PairKey, Problem | None] = {}
    for case, files in scans.items():
        channels = {name: _files_of(name, files, bool(options.channel_order)) for name in order}
        channel_of = {file.path: name for name, taken in channels.items() for file in taken}
        chosen[case] = [file for file in files if file.path in channel_of]
        ambiguous[case] = _several_images(channels, may_be_labels.get(case, ()))
        for file in files:
            # Sessions often have FLAIR and others beside the channels.
            if file.path not in channel_of and not options.channel_order:
                found.leave_out(file.path, other)
                continue
            # join_channels reports the files that --channel-order leaves out, under their own names.
            values = {"case": "/".join(case), "channel": channel_of.get(file.path, file.name)}
            example = SourceExample(source=file.path, key=file.path, group=case[0])
            joined.append((case, values, example))
    examples, left_out = join_channels(joined, options.channel_order, root)
    found.left_out += left_out
    found.images = [(case, replace(one, problem=ambiguous[case] or one.problem)) for case, one in examples]
    return chosen


def _several_images(
    channels: Mapping[str, Sequence[_BidsFile]], derived: Sequence[_BidsFile]
) -> Problem | None:
    """Return the problem of a session with several images for one channel, with options that take one; else None.

    Args:
        derived: files of the session that may be labels, if the data set has no other labels.
    """
    several = next((taken for taken in channels.values() if len(taken) > 1), None)
    if several is None:
        return None
    names = ",".join(taken[0].name if len(taken) > 1 else name for name, taken in channels.items())
    listed = ", ".join(file.path for file in several[:_MAX_LISTED])
    advice = f"--channel-order {names} takes one" if len(channels) > 1 else _image_advice(several[0])
    if derived:
        # The first option alone would lead to images without labels.
        advice = advice.partition(" takes ")[0]
        pattern = derived[0].like(derived[0].name)
        advice += f" --label-pattern '{pattern}' takes one with its label, if that is one"
    return ("annotation", "several images of one suffix in a session", f"{listed}; {advice}")


def _common_suffixes(
    scans: Mapping[PairKey, Sequence[_BidsFile]], labels: Sequence[_BidsFile], root: str
) -> tuple[str, ...]:
    """Return the suffixes after which all labels are named, else those that all subjects and sessions have."""
    drawn_on = {label.drawn_on for label in labels if label.case in scans}
    counts = Counter(suffix for files in scans.values() for suffix in {file.suffix for file in files})
    # The grid of a label is that of the image in its name, so other suffixes would need to be resampled.
    if drawn_on and drawn_on <= counts.keys():
        return tuple(sorted(drawn_on))
    # Every image has the same channels, so a suffix that some sessions lack is not a channel.
    if common := [suffix for suffix, count in counts.items() if count == len(scans)]:
        return tuple(sorted(common))
    listed = ", ".join(f"{suffix} in {count}" for suffix, count in counts.most_common(20))
    raise AnnotationsError(
        f"{root}: no suffix is in all {len(scans)} sessions: {listed}; --channel-order {counts.most_common(1)[0][0]} "
        "takes the sessions that have it"
    )


def _files_of(name: str, files: Sequence[_BidsFile], exact_first: bool) -> list[_BidsFile]:
    """Return the files of a channel: those with its suffix and entities, or the one that has exactly this name."""
    exact = [file for file in files if exact_first and file.name == name]
    *entities, suffix = name.split("_")
    return exact or [
        file for file in files if suffix == file.suffix and set(entities).issubset(file.name.split("_"))
    ]


def _assign(
    label: _BidsFile,
    scans: Sequence[_BidsFile],
    chosen: Sequence[_BidsFile],
    found: _Found,
    options: LayoutOptions,
) -> None:
    """Add a label to its subject and session, or leave it out if it fits none of the chosen images.

    Args:
        scans: all images of the subject and session.
        chosen: those among them that are channels.
        found: result, which is changed.
        options: options; with a pattern for labels, `space` is not compared.
    """
    related = [image for image in scans if _is_made_from(label, image)]
    in_space = [image for image in related if options.label_pattern or _is_same_space(label, image)]
    fitting = [image for image in in_space if image in chosen]
    if not fitting:
        passed_over = found.passed_over.get(label.case, ())
        found.leave_out(label.path, _unfit_label(label, related, in_space, passed_over))
        return
    found.labels.setdefault(label.case, []).append(label)
    suffixes = {image.suffix for image in fitting}
    several = [image for image in in_space if image not in fitting and image.suffix in suffixes]
    # The image with exactly the label's entities is meant, even if run-2 of it was not chosen.
    is_exact = any(image.of_source == label.of_source for image in fitting)
    if several and not is_exact:
        detail = f"{label.path}: {fitting[0].path} or {several[0].path}; {_image_advice(fitting[0])} alone"
        found.problems[label.case] = ("annotation", "label may be of several images", detail)


def _unfit_label(
    label: _BidsFile,
    related: Sequence[_BidsFile],
    in_space: Sequence[_BidsFile],
    passed_over: Sequence[_BidsFile],
) -> Problem:
    """Return why a label fits no chosen image: its space, its image was not taken, or it has none.

    Args:
        related: images of its session with its entities.
        in_space: those among them in the label's space.
        passed_over: images of its session that are in another folder or that a pattern leaves out.
    """
    if related and not in_space:
        # BIDS Derivatives: `space` names the grid. A label of a template's grid does not fit the image's voxels.
        space, image = label.entities.get("space"), related[0]
        detail = f"space {space or 'not named'}; {image.path}: {image.entities.get('space') or 'not named'}"
        advice = f"{_label_advice(label.like(label.name))} if its grid is that of the image"
        return ("selection", "label lies in another space than its image", f"{detail}; {advice}")
    not_taken = in_space or [image for image in passed_over if _is_made_from(label, image)]
    if not_taken:
        return ("selection", "label is of an image that is not taken", not_taken[0].path)
    return NO_IMAGE


def _is_made_from(label: _BidsFile, image: _BidsFile) -> bool:
    # BIDS Derivatives, "File naming conventions": a derivative keeps the entities of its source. A label without some
    # of them is taken too.
    return label.drawn_on in ("", image.suffix) and label.of_source <= image.of_source


def _is_same_space(label: _BidsFile, image: _BidsFile) -> bool:
    """Return whether `space` shows no other space: that of the image, none, "orig", or the suffix of the image.

    Source: BIDS Derivatives, "Spatial references": `orig` is the space of the image itself; fMRIPrep and others write
    the suffix of the image, as in space-T1w.
    """
    space, of_image = label.entities.get("space"), image.entities.get("space")
    return space == of_image or (of_image is None and space in ("orig", image.suffix))


def _check_one_kind(labels: Sequence[_BidsFile], root: str) -> None:
    """Refuse labels of several pipelines, and label volumes beside masks of classes."""
    for label in labels:
        first = labels[0]
        # Values of two pipelines may have other meanings, and masks have none.
        if label.place != first.place or bool(label.class_name) != bool(first.class_name):
            what = "lie in several folders" if label.place != first.place else "are of two kinds"
            name = "label-*_mask" if first.class_name else first.suffix
            pattern = f"{first.place or 'sub-*'}/**_{name}{extension_of(first.path)}"
            raise AnnotationsError(
                f"{root}: labels {what}, and may mean different classes: {first.path}, {label.path}; "
                f"{_label_advice(pattern)}"
            )


def _labels_of_cases(found: _Found, root: str, options: LayoutOptions) -> list[tuple[PairKey, LabelFiles]]:
    """Return the label of each subject and session: one file, or one for each class."""
    names = [label.class_name for label in found.masks if label.class_name]
    classes = target_classes(names, root, options) if names else {}
    labels = []
    for case, files in found.labels.items():
        by_class = grouped((file.class_name, file) for file in files)
        problem = found.problems.get(case) or _several_labels(by_class, bool(classes))
        if problem is not None or not classes:
            labels.append((case, single_file_label(files[0].path, problem)))
        else:
            masks = {name or "": [single_file_label(file.path)] for name, (file,) in by_class.items()}
            labels.append((case, join_masks(masks, classes, options)))
    return labels


def _several_labels(by_class: Mapping[str | None, Sequence[_BidsFile]], are_masks: bool) -> Problem | None:
    """Return the problem of a session with several labels of one class, or several label volumes; else None."""
    several = next((same for same in by_class.values() if len(same) > 1), None)
    if several is None:
        return None
    listed = ", ".join(file.path for file in several[:_MAX_LISTED])
    # One pattern must take the masks of all classes.
    name = re.sub(r"(?<=label-)[^_]+", "*", several[0].name) if are_masks else several[0].name
    advice = _label_advice(several[0].like(name))
    return ("annotation", "several labels for one image", f"{listed}; {advice}")


def _split_by_participants(
    cases: Sequence[tuple[PairKey, SourceExample]], images: SourceFiles
) -> list[tuple[PairKey, SourceExample]]:
    """Return the images with the splits of the column `split` in participants.tsv, if it has one."""
    first, _ = _read_name(cases[0][1].source)
    # BIDS, "Participants file": it is in the folder of the subjects. Images from derivatives have that of their raw
    # data set, which may be in rawdata/ ("Source vs. raw vs. derived data").
    folders = (first.place, f"{first.data_set}/rawdata", first.data_set) if first else ()
    paths = [f"{folder}/participants.tsv".lstrip("/") for folder in folders]
    path = next((path for path in paths if images.size(path) is not None), None)
    splits = {} if path is None else _splits_of_subjects(path, images)
    if not splits:
        return list(cases)
    detail = f"{path} has the column split; fill it for this subject"
    absent: Problem = ("annotation", "subject has no split", detail)
    return [
        (case, replace(example, split=splits[case[0]]))
        # BIDS, "Tabular files": a missing value is n/a.
        if splits.get(case[0], "") not in ("", "n/a")
        else (case, replace(example, problem=example.problem or absent))
        for case, example in cases
    ]


def _splits_of_subjects(path: str, images: SourceFiles) -> dict[str, str]:
    """Return the split of each subject, "" for a subject without one; {} if the table has no column `split`."""
    text = read_required(images, path).decode("utf-8-sig", "replace")
    splits: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
        if "split" not in row:
            return {}
        split = (row["split"] or "").strip()
        subject = f"sub-{(row.get('participant_id') or '').strip().removeprefix('sub-')}"
        # A subject with several rows, such as one a session, must be in one split.
        if splits.setdefault(subject, split) != split:
            raise AnnotationsError(
                f"{path}: {subject} has the splits {splits[subject]!r} and {split!r}; keep one"
            )
    return splits
