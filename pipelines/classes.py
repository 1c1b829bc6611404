"""Classes of a segmentation, chosen before any label is read: from the label map, the source, and the user's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from halofeed.prep.annotations.class_names import (
    BACKGROUND,
    ClassChoice,
    LabelCoding,
    is_whole_number,
    parse_color,
)
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.formats.volume.volume_file import LabelSegment, read_label_segments
from halofeed.prep.sources.file_names import VOLUME_FILE_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import MAX_CLASS
from halofeed.schemas.fields import MAX_CLASSES
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import did_you_mean

_MAX_WITHOUT_NAMES = 16
"""NIfTI files without names of a store after which no more NIfTI files are read for names."""


@dataclass(kw_only=True)
class NamesInLabels:
    """Names of classes in the label files of a data set, in the order of the files.

    Args:
        files: source files.
        named: by name, the first file of each (layer, value) of the name.
        codes: codes of these classes.
        without_names: first label file without names.
    """

    files: SourceFiles
    named: dict[str, dict[tuple[int, int], str]] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)
    without_names: str = ""
    _read: set[str] = field(default_factory=set)
    _count_without_names: int = 0

    def read(self, paths: Iterable[str]) -> None:
        """Read the names of some label files."""
        for path in paths:
            if (
                path in self._read
                or not path.lower().endswith(VOLUME_FILE_EXTENSIONS)
                or self._is_skipped(path)
            ):
                continue
            self._read.add(path)
            try:
                segments = read_label_segments(self.files, path)
            except (SourceError, MemoryError):  # the conversion rejects the file with its reason
                continue
            self._take(path, segments)

    def _is_skipped(self, path: str) -> bool:
        """Return whether a file is not read, because files like it have no names.

        NRRD has a field for names (3D Slicer writes it), and NIfTI names only in an extension, for which each file of a
        store costs a request.
        """
        may_skip = is_remote(self.files.root) and not _is_nrrd(path) and not self.named
        return may_skip and self._count_without_names >= _MAX_WITHOUT_NAMES

    def _take(self, path: str, segments: Collection[LabelSegment]) -> None:
        if not segments:
            self.without_names = self.without_names or path
            self._count_without_names += not _is_nrrd(path)
        for one in segments:
            self.named.setdefault(one.name, {}).setdefault((one.layer, one.value), path)
            self.codes.update(one.codes)

    def agree(self) -> bool:
        """Return whether each name has one value in all files, and each value one name."""
        values = [value for places in self.named.values() for _, value in places]
        return all(len(places) == 1 for places in self.named.values()) and len(values) == len(set(values))

    def ids(self) -> dict[int, str]:
        """Return the names by id: by their values where these agree, else the first name of a value gets it.

        Raises:
            AnnotationsError: the files disagree, and other files have no names.
        """
        if not self.agree() and self.without_names:
            raise AnnotationsError(
                f"label files disagree on the values of their classes ({self._example()}), and {self.without_names} "
                "names none; add --label-map with a file of all classes; its ids are the values of files without names"
            )
        ids: dict[int, str] = {}
        later = []
        for name, places in self.named.items():
            value = min(value for _, value in places)
            if value in ids:  # another name has this value in other files
                later.append(name)
            else:
                ids[value] = name
        free = (number for number in range(1, len(self.named) + len(ids) + 1) if number not in ids)
        return ids | dict(zip(free, later, strict=False))

    def check_numbers(self, chosen: Iterable[str]) -> None:
        """Refuse a value in the user's choice of classes where files disagree on its meaning."""
        numbers = [name for name in chosen if name.isdecimal() and name not in self.named]
        if numbers and not self.agree():
            raise AnnotationsError(
                f"--map-classes {numbers[0]}: label files disagree on the values of their classes ({self._example()}); "
                f"write their names, which are {', '.join(self.named)}"
            )

    def _example(self) -> str:
        by_value: dict[int, dict[str, str]] = {}
        for name, places in self.named.items():
            for (_, value), path in places.items():
                by_value.setdefault(value, {}).setdefault(name, path)
        for value, names in by_value.items():
            if len(names) > 1:
                return f"{value} is " + " and ".join(
                    f"{name!r} in {path}" for name, path in [*names.items()][:2]
                )
        name, places = next((name, places) for name, places in self.named.items() if len(places) > 1)
        return f"{name!r} is " + " and ".join(
            f"{value} in {path}" for (_, value), path in [*places.items()][:2]
        )


def _is_nrrd(path: str) -> bool:
    return path.lower().endswith((".nrrd", ".nhdr"))


_BACKGROUND = (0, BACKGROUND)


def segmentation_classes(given: LabelMap | None, named: Mapping[int, str], choice: ClassChoice) -> LabelMap:
    """Return the classes of a data set.

    Args:
        given: classes of the user's file.
        named: class name of each value of a label image, from the layout; empty where it names none.
        choice: the user's selection and renaming of classes.

    Raises:
        AnnotationsError: two of them contradict each other, or a record cannot store an id.
    """
    if given is not None:
        entries = given.entries if 0 in given.names else (_BACKGROUND, *given.entries)
        given = dataclasses.replace(given, entries=entries)
        return _storable(_chosen_of_file(given, named, choice) if choice else given)
    if named:
        return _storable(_chosen_of_source({0: BACKGROUND, **named}, choice))
    return _storable(_chosen_of_values(choice))


def region_classes(
    given: LabelMap | None, regions: Mapping[str, tuple[int, ...]], choice: ClassChoice
) -> LabelMap:
    """Return the classes of a data set whose classes are sets of values, which may overlap.

    Args:
        given: classes of the user's file, which give the ids.
        regions: values of each class of the source, whose order gives the ids without `given`.
        choice: the user's selection and renaming of classes, by name.

    Raises:
        AnnotationsError: the choice has an unknown name, or the user's file lacks one.
    """
    choice.check_known(regions, "the regions of dataset.json")
    choice = choice.with_names(regions)
    targets = {name: choice.target(name) for name in regions}
    kept = choice.keep or tuple(dict.fromkeys(target for target in targets.values() if target is not None))
    if not kept:
        raise AnnotationsError(f"--map-classes leaves out every class: {', '.join(regions)}")
    ids = _ids_of_regions(given, kept)
    where = "the regions of dataset.json" if given is None else given.where
    return _storable(_named_classes(ids, where, values=_values_of_regions(regions, targets, ids)))


def _ids_of_regions(given: LabelMap | None, kept: Sequence[str]) -> dict[str, int]:
    """Return the id of each class: of the user's file, else its place in the order of the regions."""
    if given is None:
        return {name: number for number, name in enumerate(kept, start=1)}
    if absent := [name for name in kept if not given.ids.get(name)]:
        raise AnnotationsError(
            f"{given.where}: {', '.join(absent)}: expected an id above 0 of each region; add them there"
        )
    return {name: given.ids[name] for name in kept}


def _values_of_regions(
    regions: Mapping[str, tuple[int, ...]], targets: Mapping[str, str | None], ids: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    """Return each value with the id of each class that holds it, or with 0 where all of its classes are left out."""
    pairs = {
        (value, ids[target])
        for name, target in targets.items()
        if target is not None
        for value in regions[name]
    }
    all_values = {value for values in regions.values() for value in values}
    left_out = all_values - {value for value, _ in pairs}
    return tuple(sorted([*pairs, *((value, 0) for value in left_out)]))


def _named_classes(ids: Mapping[str, int], where: str, **more: Any) -> LabelMap:
    entries = (_BACKGROUND, *((number, name) for name, number in ids.items()))
    return LabelMap(entries=entries, first_id=0, where=where, **more)


def check_channels(classes: LabelMap) -> LabelMap:
    """Return the label map; raise AnnotationsError where its classes cannot be stored as channels."""
    if classes.is_open:
        raise AnnotationsError(
            "--class-overlap channels: nothing names the classes, and each is a channel; list them with --classes, "
            "such as --classes 1,2, or in a file with --label-map"
        )
    if len(classes.channels) > MAX_CLASSES:
        raise AnnotationsError(
            f"--class-overlap channels: expected at most {MAX_CLASSES} classes, got {len(classes.channels)}; choose "
            "with --classes"
        )
    return classes


def _chosen_of_file(given: LabelMap, named: Mapping[int, str], choice: ClassChoice) -> LabelMap:
    """Return the selected classes of the user's file; values of label images are its ids or the layout's values."""
    _check_chosen_in_file(choice, given)
    # A renaming starts from the names of the source, where it has some; else the file's ids are the values.
    names = named if choice.renamed and named else given.names
    targets = {value: choice.target(name, value) for value, name in names.items() if value}
    _check_targets_in_file(names, targets, given)
    values = _ids_of_targets(targets, given.ids) | _numbered(choice, given.ids)
    named_targets = (given.ids[target] for _, target in choice.renamed if target != BACKGROUND)
    kept = {given.ids[name] for name in choice.keep} or {*values.values(), *named_targets}
    return dataclasses.replace(
        given,
        entries=tuple(entry for entry in given.entries if entry[0] in {0, *kept}),
        aliases=tuple(alias for alias in given.aliases if alias[1] in kept),
        values=tuple(sorted(values.items())),
    )


def _check_chosen_in_file(choice: ClassChoice, given: LabelMap) -> None:
    """Refuse a class of the data set that the user's file of classes lacks."""
    for name in choice.keep or (target for _, target in choice.renamed):
        if name not in given.ids and name != BACKGROUND:
            raise AnnotationsError(
                f"class {name!r} of --classes or --map-classes is not in {given.where}; "
                f"{did_you_mean(name, given.ids)}known: {', '.join(given.names.values())}"
            )


def _check_targets_in_file(
    names: Mapping[int, str], targets: Mapping[int, str | None], given: LabelMap
) -> None:
    """Refuse classes of the source that would be stored and that the user's file of classes lacks."""
    if lost := [names[value] for value, target in targets.items() if target not in (None, *given.ids)]:
        raise AnnotationsError(
            f"{', '.join(lost[:10])}: not in {given.where}; add them there, or leave them out with --map-classes "
            f"'{lost[0]}=background'"
        )


def _ids_of_targets(targets: Mapping[int, str | None], ids: Mapping[str, int]) -> dict[int, int]:
    """Return the id of each value's class; a class that is left out becomes the background, 0."""
    return {value: 0 if target is None else ids[target] for value, target in targets.items()}


def _chosen_of_source(named: Mapping[int, str], choice: ClassChoice) -> LabelMap:
    """Return the selected classes of the source; each keeps its value, and a new one gets its smallest source value."""
    where = "the classes of the data"
    if not choice:
        return LabelMap(entries=tuple(named.items()), first_id=0, where=where)
    named = _with_written_values(named, choice)
    targets = {value: choice.target(name, value) for value, name in sorted(named.items()) if value}
    ids = _ids_of_source(named, targets, choice.keep)
    return _named_classes(ids, where, values=tuple(_ids_of_targets(targets, ids).items()))


def _with_written_values(named: Mapping[int, str], choice: ClassChoice) -> Mapping[int, str]:
    """Return the names with the values that only the choice names, such as 7 of --map-classes 7=tumor."""
    written = sorted({int(name) for name, _ in choice.renamed if is_whole_number(name)} - named.keys())
    return {**named, **{value: str(value) for value in written if str(value) not in named.values()}}


def _ids_of_source(
    named: Mapping[int, str], targets: Mapping[int, str | None], keep: Sequence[str]
) -> dict[str, int]:
    """Return the id of each class: its place in --classes, else the value that it has in the source.

    Args:
        targets: class of each value, in the order of the values; None where it is left out.
    """
    own = {name: value for value, name in named.items()}
    ids: dict[str, int] = {name: number for number, name in enumerate(keep, start=1)}
    for value, target in targets.items():
        if target is None or target in ids:
            continue
        # A class of the source that other values join keeps its own value, unless that becomes another class.
        keeps_value = target in own and targets[own[target]] == target
        ids[target] = own[target] if keeps_value else value
        if ids[target] < 0:  # an id in records is positive
            ids[target] = 1 + max([*targets, *ids.values()])
    return ids


def _chosen_of_values(choice: ClassChoice) -> LabelMap:
    """Return the selected classes where nothing names the values of label images."""
    targets = [target for target in dict(choice.renamed).values() if target != BACKGROUND]
    # --map-classes 2=1 only renumbers, so all other values stay classes.
    if not choice.keep and all(map(is_whole_number, targets)):
        values = tuple(sorted(_numbered(choice, {target: int(target) for target in targets}).items()))
        return _named_classes({}, "the values of the masks", is_open=True, values=values or None)
    ids = {name: number for number, name in enumerate(choice.keep or dict.fromkeys(targets), start=1)}
    kept_values = {int(name): ids[name] for name in choice.keep if is_whole_number(name)}
    return _named_classes(
        ids,
        "--classes" if choice.keep else "--map-classes",
        values=tuple(sorted({**kept_values, **_numbered(choice, ids)}.items())),
        drops_others=bool(choice.keep),
    )


def _numbered(choice: ClassChoice, ids: Mapping[str, int]) -> dict[int, int]:
    """Return the ids of the values that the choice renames."""
    targets = {int(name): choice.target(name) for name, _ in choice.renamed if is_whole_number(name)}
    return _ids_of_targets(targets, ids)


def resolve_ignored(
    written: Iterable[str], named: Mapping[int, str], coding: LabelCoding, colors: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the values of label images that --ignore-label names: by name, value or color.

    Args:
        written: what the user wrote.
        named: class names by value.
        coding: classes of --label-colors or --label-channels.
        colors: values by color of a class table.

    Raises:
        AnnotationsError: a name is no class, or label images have no such color.

    >>> coding = LabelCoding(colors=("800000=plane",), ignored=("e0e0c0",))
    >>> resolve_ignored(["e0e0c0"], coding.names, coding, {})
    (2,)
    >>> resolve_ignored(["-1", "void"], {9: "void"}, LabelCoding(), {})
    (-1, 9)
    """
    values = {name: value for value, name in named.items()}
    shades = dict(colors) | coding.numbers
    found: dict[int, None] = {}
    for one in written:
        color = parse_color(one)
        # A name first: a class may be called 7, or like a color.
        if one in values:
            found[values[one]] = None
        elif color is not None and color in shades:
            found[shades[color]] = None
        elif is_whole_number(one):
            found[int(one)] = None
        elif color is not None:
            raise AnnotationsError(
                f"--ignore-label {one}: a color, and label images have values; name the classes of colors with "
                f"--label-colors, such as --label-colors ff0000=liver --ignore-label {one}"
            )
        else:
            known = f"known: {', '.join(values)}" if values else "nothing names the classes here"
            raise AnnotationsError(
                f"--ignore-label {one}: no such class; {did_you_mean(one, values)}{known}; or write the value, such "
                "as 255"
            )
    return tuple(found)


def check_choice(
    choice: ClassChoice,
    given: LabelMap | None,
    named: Mapping[int, str],
    masks: Collection[str],
    files: SourceFiles,
    holds_values: Callable[[str], bool],
    in_files: Iterable[str] = (),
) -> None:
    """Refuse a choice of classes that are nowhere in the source; read mask files until all classes are found.

    Args:
        holds_values: returns whether a mask of this path has numeric values; other masks have class names.
        in_files: names in files with numeric values.

    Raises:
        AnnotationsError: lists the unknown classes and the known ones.
    """
    if not masks and not named:
        return  # every input will be rejected with its own reason
    known = _names_and_values(named) | dict.fromkeys(in_files)
    label_images = [path for path in masks if holds_values(path)]
    if label_images:
        known |= _possible_values(choice, given, named)
    # Files are read only until every name is found: each may be a large volume in a store.
    for names in _names_in_files(sorted(set(masks) - set(label_images)), files, choice):
        if _is_known(choice, known):
            return
        known |= dict.fromkeys(names)
    values = "label images that hold values; write those, such as --classes 3,5 or --map-classes 3=liver"
    choice.check_known(known, "the labels" if known else values)


def _possible_values(
    choice: ClassChoice, given: LabelMap | None, named: Mapping[int, str]
) -> dict[str, None]:
    """Return the names and numbers that label images may hold: planning does not read the values of all of them."""
    if named:
        return {name: None for name, _ in choice.renamed if is_whole_number(name)}
    written = choice.written()
    in_file = _names_and_values({} if given is None else given.names)
    return in_file | {name: None for name in written if is_whole_number(name)}


def _names_and_values(named: Mapping[int, str]) -> dict[str, None]:
    return {text: None for value, name in named.items() if value for text in (name, str(value))}


def _is_known(choice: ClassChoice, known: Mapping[str, None]) -> bool:
    try:
        choice.check_known(known, "")
    except AnnotationsError:
        return False
    return True


def expand_patterns(
    choice: ClassChoice,
    names: Iterable[str],
    masks: Collection[str],
    files: SourceFiles,
    holds_values: Callable[[str], bool],
) -> ClassChoice:
    """Return the choice with the classes that its patterns keep; this reads the names in all masks that name classes.

    Args:
        names: names of classes that are known without masks.
        masks, files, holds_values: see `check_choice`.

    Raises:
        AnnotationsError: the masks hold values, and nothing names these.
    """
    if not any("*" in name for name in choice.keep):
        return choice
    found = dict.fromkeys(names)
    for of_file in _names_in_files(sorted(path for path in masks if not holds_values(path)), files, choice):
        found |= dict.fromkeys(of_file)
    choice.check_known(found, "the labels" if found else "label images, whose values have no names")
    return choice.with_names(found)


def _names_in_files(
    paths: Iterable[str], files: SourceFiles, choice: ClassChoice
) -> Iterable[Collection[str]]:
    """Yield the names of the classes in each file, and their codes where the choice has codes."""
    from halofeed.prep.formats.dicom.mask_codes import is_code
    from halofeed.prep.formats.dicom.mask_files import class_codes, class_names

    has_codes = any(map(is_code, choice.written()))
    for path in paths:
        try:
            codes = class_codes(files, path).values() if has_codes else ()
            yield [*class_names(files, path).values(), *chain.from_iterable(codes)]
        except (SourceError, MemoryError):  # the conversion rejects the file with its reason
            continue


def _storable(classes: LabelMap) -> LabelMap:
    """Return the label map; raise AnnotationsError where a record's label cannot store one of its ids."""
    largest = max(classes.names)
    if largest > MAX_CLASS:
        raise AnnotationsError(
            f"{classes.where}: id {largest} ({classes.names[largest]!r}): expected 0 to {MAX_CLASS} in segmentation"
        )
    return classes
