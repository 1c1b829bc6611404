"""Choice of a layout by the files of a source, for `--layout auto`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from posixpath import basename, splitext

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.advice import Suggestion, advise, suggest
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name
from halofeed.prep.annotations.layout_hints import Hint, read_heads
from halofeed.prep.annotations.suggest_layout import find_hints
from halofeed.prep.annotations.suggest_patterns import (
    LayoutError,
    find_drawings,
    no_pattern,
    several_labels,
    suggest_patterns,
)
from halofeed.prep.annotations.table_forms import METADATA_NAMES
from halofeed.prep.annotations.unknown_annotations import describe_annotations
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.layouts.folders import IMAGE_FOLDER, MASK_FOLDER, MAX_FOLDERS, MAY_SHOW_ONE_THING
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.wording import plural

_TABLES = frozenset(("csv", "jsonl"))
_SHARES = {"folders": 0.9}
"""Least share of inputs with labels; folders of pictures are in many projects, so nearly all files must be pictures."""
_BY_NAMES = ("folders", "pairs", "class-masks")
"""Layouts that are recognized by listing alone: their files have no content that shows the layout."""


@dataclass(frozen=True, kw_only=True)
class DetectedLayout:
    """A layout and the reason why it was chosen, as a clause."""

    name: str
    reason: str


def detect_layout(
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options_of: Callable[[str], LayoutOptions],
) -> DetectedLayout:
    """Return the only layout that fits a source.

    Contents of a few files decide first. Where only names can show the layout (volumes, class folders, masks), each
    candidate lists the source, and the one that finds images with labels is chosen.

    Args:
        options_of: maps the name of a layout to the user's options for it; raises UsageError if they do not fit it.

    Raises:
        AnnotationsError: no layout fits, or several do; names them and the option that chooses one.
    """
    hints = list(find_hints(annotations, annotation_file))
    certain = {hint.layouts[0]: hint for hint in reversed(hints) if len(hint.layouts) == 1}
    if not certain.keys() <= _TABLES:  # a table beside the files of a tool is usually made from them
        for name in _TABLES & certain.keys():
            hints.append(certain.pop(name))
    if len(certain) > 1:
        raise AnnotationsError(
            f"{annotations.root}: files of several layouts: {'; '.join(hint.what for hint in certain.values())}. "
            f"Choose {_choices(certain)}"
        )
    if certain:
        (name, hint), *_ = certain.items()
        others = [one for one in hints if one.layouts and set(one.layouts) <= _TABLES - {name}]
        beside = f"; {others[0].what} too: --layout {others[0].layouts[0]} reads that" if others else ""
        return DetectedLayout(name=name, reason=f"{hint.what}{beside}")
    if annotation_file is not None:
        extension = annotation_file.rpartition(".")[2].lower()
        if extension in _TABLES:
            return DetectedLayout(name=extension, reason=f"{annotation_file} is a table by its name")
    tables = {basename(path) for path in annotations.sizes()} & set(
        METADATA_NAMES
    )  # without classes, such as captions
    named = ("csv" if any(name.endswith(".csv") for name in tables) else "jsonl",) if tables else ()
    candidates = next((hint.layouts for hint in hints if hint.layouts), (*_BY_NAMES, *named))
    return _by_listing(annotations, images, annotation_file, options_of, candidates, hints)


def _by_listing(
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options_of: Callable[[str], LayoutOptions],
    candidates: Sequence[str],
    hints: Sequence[Hint],
) -> DetectedLayout:
    """Return the only one of some layouts whose listing has labels for most images."""
    fitting, tried = {}, list[str]()
    _check_options(options_of, candidates)
    for name in candidates:
        try:
            options = options_of(name)
            listed = list(LAYOUTS[name].list_references(annotations, images, annotation_file, options))
        except (AnnotationsError, UsageError) as error:
            why = error.brief if isinstance(error, LayoutError) else str(error)
            tried.append(f"  {name}: {why.removeprefix(f'{annotations.root}: ')}")
            continue
        good = [one for one in listed if one.problem is None]
        count = sum(one.has_annotation for one in good)
        labels = {one.label for one in good if one.label}
        is_guess = name == "folders" and len(labels) > 1 and not options.folders_are_classes
        doubt = (
            _doubt_classes(annotations, good) or _doubt_contents(images, good, options) if is_guess else None
        )
        if name == "folders" and len(labels) == 1:  # any folder with pictures would be a class
            tried.append(f"  {name}: all images have one class, {labels.pop()!r}")
        elif doubt:
            tried.append(f"  {name}: {doubt}; if each folder is a class: --layout folders")
        elif count >= _SHARES.get(name, 0.5) * len(listed) > 0:
            fitting[name] = f"it finds labels for {count:,} of {len(listed):,} inputs"
        else:
            tried.append(
                f"  {name}: labels for {count:,} of {len(listed):,} inputs; without labels: --layout {name}"
            )
    if len(fitting) > 1 and "folders" in fitting and _explains(annotations, images, options_of, fitting):
        del fitting["folders"]
    if len(fitting) == 1:
        (name, reason), *_ = fitting.items()
        return DetectedLayout(name=name, reason=reason)
    if fitting:
        found = "; ".join(f"{name}: {reason}" for name, reason in fitting.items())
        raise AnnotationsError(
            f"{annotations.root}: several layouts fit ({found}). Choose {_choices(fitting)}"
        )
    if hints and not hints[0].layouts:
        raise AnnotationsError(f"{annotations.root}: {hints[0]}")
    suggested: tuple[Suggestion, ...] = ()
    if not hints:
        suggested = _suggest_tables(annotations, images, annotation_file, options_of)
        if suggested and len(suggested[0].words) == 2:
            (_, name), reason = suggested[0].words, suggested[0].effect
            return DetectedLayout(name=name, reason=f"it {reason}")
    if not any(extension_of(path) for path in images.sizes()):
        raise AnnotationsError(
            f"{images.root}: no picture, volume or video lies below it{_others(images)}; name the folder "
            "that holds them"
        )
    suggested = suggested or _suggest_pairs(images, options_of)
    shown = describe_annotations(annotations, annotation_file)
    if suggested:
        head = f"its files show no layout; {advise(suggested, '')}"
    elif hints and len(hints[0].layouts) > 1:  # names of volumes show no layout, and each of these was tried
        head = f"{hints[0].what}, and no layout of volumes fits; {no_pattern(images)}"
    elif hints:
        head = str(hints[0])
    else:
        several = "" if shown else several_labels(images, list(images.sizes()))
        others = f"; {shown or several}" if shown or several else ""
        head = f"its files show no layout{others}; name one of {', '.join(LAYOUTS)} with --layout"
    said = [f"; {hint}" for hint in (*hints, shown) if hint]
    for text in said:  # once is enough
        tried = [line.replace(text, "") for line in tried]
    raise AnnotationsError("\n".join([f"{annotations.root}: {head}. Tried:", *tried]))


def _suggest_pairs(images: SourceFiles, options_of: Callable[[str], LayoutOptions]) -> tuple[Suggestion, ...]:
    """Return patterns that were tried, if the user's options leave room for label images."""
    try:
        options = options_of("pairs")
    except UsageError:
        return ()
    if options.task not in (None, "segmentation") or options.image_pattern or options.label_pattern:
        return ()
    return suggest_patterns(images, options)


def _explains(
    annotations: SourceFiles,
    images: SourceFiles,
    options_of: Callable[[str], LayoutOptions],
    fitting: Iterable[str],
) -> bool:
    """Return whether another layout takes all pictures of class folders for images and labels of others.

    Then class folders would make samples of label images.
    """
    pictures = sum(map(is_image_name, images.sizes()))
    for name in (name for name in ("pairs", "class-masks") if name in fitting):
        listed = LAYOUTS[name].list_references(annotations, images, None, options_of(name))
        taken = sum(1 + len(one.mask_paths) for one in listed if one.is_labelled)
        if 10 * taken >= 9 * pictures:
            return True
    return False


def _suggest_tables(
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options_of: Callable[[str], LayoutOptions],
) -> tuple[Suggestion, ...]:
    """Return the layout of a table, and the task if it needs one, with which a table beside the pictures is read."""
    endings = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
    paths = annotations.sizes() if annotation_file is None else [annotation_file]
    forms = [form for form, ends in endings.items() if any(path.lower().endswith(ends) for path in paths)]
    tasks: list[tuple[str, ...]] = [(), ("--task", "classification"), ("--task", "segmentation")]

    def try_words(words: Sequence[str]) -> str | None:
        given = dict(zip(words[::2], words[1::2], strict=True))
        options = options_of(given["--layout"])
        if "--task" in given:
            if options.task is not None:
                return None
            options = replace(options, task=given["--task"])
        found = LAYOUTS[given["--layout"]].list_references(annotations, images, annotation_file, options)
        listed = list(found)
        good = sum(one.problem is None and one.has_annotation for one in listed)
        return (
            f"finds labels for {good:,} of {plural(len(listed), 'input')}" if 2 * good > len(listed) else None
        )

    return suggest((("--layout", form, *task) for task in tasks for form in forms), try_words)


def _check_options(options_of: Callable[[str], LayoutOptions], layouts: Sequence[str]) -> None:
    """Raise UsageError if the options are wrong in the same way with every layout."""
    problems = []
    for name in layouts:
        try:
            options_of(name)
        except UsageError as error:
            problems.append(error)
    if len(problems) == len(layouts) and len(set(map(str, problems))) == 1:
        raise problems[0]


def _others(files: SourceFiles) -> str:
    """Return the most frequent extensions of files, as a part of a message."""
    found = Counter(splitext(path)[1].lower() for path in files.sizes())
    shown = ", ".join(f"{count:,} x {name or 'without extension'}" for name, count in found.most_common(3))
    return f" (found {shown})" if shown else ""


def _choices(names: Iterable[str]) -> str:
    return " or ".join(f"--layout {name}" for name in names)


# Reasons to doubt that folders of pictures are classes ----------------------------------------------------
#
# `--layout folders` takes the user's word. A guess must be right, so any of these reasons ends it: names of folders
# that usually hold all pictures, masks, views, domains or parts of a set; pictures whose numbers continue from folder
# to folder; and lists that say more of the pictures than their folders do.

_NO_CLASSES = (
    (IMAGE_FOLDER, "usually holds all pictures of a set"),
    (MASK_FOLDER, "usually holds masks or annotations"),
    (re.compile(r"data(_?sets?)?", re.I), "usually holds a data set"),
    (
        re.compile(r"anno(tation)?s?|bbox(es)?|meta(data)?|eval|thumb(nail)?s?|unlabell?ed", re.I),
        "is no class",
    ),
    (
        re.compile(
            r"docs?|assets?|static|media|screenshots?|figures?|plots?|results?|outputs?|predictions?|runs?|logs?"
            r"|notebooks?|src|scripts?|demos?|examples?|samples?|uploads?|templates?|public",
            re.I,
        ),
        "usually holds other pictures of a project",
    ),
)
"""Folders that are no classes in most sets, and what they are: one of them is a reason."""
_VIEWS = re.compile(
    r"((left|right|front|rear|back|cent(er|re))([-_]?(cam(era)?|view|image))?s?"
    r"|(rgb|gt|ir|infrared|thermal|nir|swir|visible|vis|depth|lidar|radar|sar|optical)[-_]?(left|right)?"
    r"|[hls][rq]|inputs?|outputs?|targets?|sources?|originals?|resized|(up|down)sampled|processed|augmented|raw)",
    re.I,
)
_PARTS = re.compile(
    r"(seq(uence)?|scene|video|clip|cam(era)?|patient|subject|session|run|batch|part|chunk|shard|subset|data_?set|data"
    r"|v|version|dir|folder|tile|trial|take|site|day|week|month)s?[-_ ]?\d+|(19|20)\d\d[-_.]?[01]\d([-_.]?[0-3]\d)?",
    re.I,
)
_LABEL_NUMBER = re.compile(r"(class|label)[-_ ]?\d+", re.I)
_SPLIT = re.compile(r"(?:^|.*[-_ ])(?i:(train|valid|val|test)(?:ing|ation)?)(?=[-_ A-Z\d]|$)")
_LISTS, _TEXTS = (".txt", ".csv", ".tsv", ".lst"), (".json", ".jsonl")
_MAX_ROWS = 200
_MAX_COMPARED = 16
"""Most pictures of a folder that are compared with those of the others."""
_NAME = re.compile(r'(?<![^"\s,;|])[^"\s,;|]{1,255}\.(?:jpe?g|png|bmp|tiff?|webp|gif)\b', re.I)
_SAYS_NOTHING = re.compile(r"[0-9a-f]{32,}|.*://.*|", re.I)
"""Values that are no annotation: digests, addresses, blanks."""


def _doubt_classes(files: SourceFiles, examples: Sequence[SourceExample]) -> str | None:
    """Return why the folders that a listing took for classes may be none, as a clause, or None."""
    by_class: dict[str, list[str]] = {}
    for one in examples:
        if one.label is not None:
            by_class.setdefault(one.label, []).append(one.source)
    reasons = (
        _doubtful_name(by_class),
        _kinds_inside(by_class),
        _continued_numbers(by_class),
        next((note for one in examples for note in one.notes if MAY_SHOW_ONE_THING in note), None),
    )
    return next(filter(None, reasons), None) or _telling_list(files, by_class)


def _doubt_contents(
    files: SourceFiles, examples: Sequence[SourceExample], options: LayoutOptions
) -> str | None:
    """Return why folders may be no classes if one holds drawings of few colors of the size of another's pictures."""
    by_class: dict[str, list[str]] = {}
    for one in examples:
        by_class.setdefault(one.label or "", []).append(one.source)
    if len(by_class) > MAX_FOLDERS or set(map(str.isdecimal, by_class)) == {True}:
        return None
    paths = sorted(path for found in by_class.values() for path in sorted(found)[:_MAX_COMPARED])
    found = find_drawings(files, options, paths)
    return (
        f"they may be images and label images by their content: a pattern {found[0].effect}"
        if found
        else None
    )


def _doubtful_name(names: Iterable[str]) -> str | None:
    """Return a reason if the name of one folder, or the names of all together, are none of classes.

    >>> _doubtful_name(["hat", "images"])
    'a folder named images usually holds all pictures of a set'
    >>> _doubtful_name(["trainA", "trainB", "testA"])
    'testA and trainB may be parts of a split, train or test'
    >>> _doubtful_name(["hat", "test_tube", "cam1"]) is None
    True
    """
    names = sorted(names)
    are_numbered = all(map(_LABEL_NUMBER.fullmatch, names))
    for name in names:
        for pattern, what in _NO_CLASSES:
            if pattern.fullmatch(name) and not are_numbered:
                return f"a folder named {name} {what}"
    begin = {found[1].lower(): name for name in names if (found := _SPLIT.match(name))}
    if len(begin) > 1:
        first, last = sorted(begin.values())[:: len(begin) - 1]
        return f"{first} and {last} may be parts of a split, train or test"
    for pattern, what in ((_VIEWS, "views, or kinds, of the same things"), (_PARTS, "parts of a set")):
        if all(map(pattern.fullmatch, names)):
            return f"{', '.join(names[:3])} may be {what}"
    return None


def _kinds_inside(by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if a folder divides its pictures into kinds, as scene1/rgb and scene1/depth do.

    >>> _kinds_inside({"scene1": ["train/scene1/rgb/1.png", "train/scene1/depth/1.png"]})
    'scene1 has the folders depth and rgb, which may be views, or kinds, of the same things'
    """
    for name, paths in by_class.items():
        below = [path.split("/")[path.split("/").index(name) + 1 : -1] for path in paths]
        inside = sorted({folders[0] for folders in below if folders})
        if len(inside) > 1 and all(
            any(pattern.fullmatch(one) for pattern in (_VIEWS, IMAGE_FOLDER, MASK_FOLDER)) for one in inside
        ):
            first, last = inside[:2]
            return (
                f"{name} has the folders {first} and {last}, which may be views, or kinds, of the same things"
            )
    return None


def _continued_numbers(by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if files are numbered from folder to folder, or folders are the beginnings of digests.

    >>> _continued_numbers({"000": ["000/01.jpg", "000/02.jpg"], "001": ["001/03.jpg"]})
    'the numbers of the files continue from 000 to 001'
    >>> _continued_numbers({"0": ["0/01.jpg", "0/02.jpg"], "1": ["1/01.jpg"]}) is None
    True
    """
    stems = {name: [splitext(basename(path))[0] for path in paths] for name, paths in by_class.items()}
    if all(re.fullmatch("[0-9a-f]{1,3}", name) for name in stems) and all(
        re.fullmatch(f"{name}[0-9a-f]{{8,}}", stem) for name, found in stems.items() for stem in found
    ):
        return f"the names of the files begin with those of their folders, as {next(iter(stems))} does"
    if len(stems) < 2 or not all(name.isdecimal() for name in stems):
        return None
    ordered = sorted(stems, key=int)
    numbers = [
        [int(found[-1]) for stem in stems[name] if (found := re.findall(r"\d+", stem))] for name in ordered
    ]
    sizes = {len(found) for found in numbers[:-1]}
    if not all(numbers) or len(sizes) > 1 or sizes == {1} or len(numbers[-1]) > max(sizes):
        return None
    if all(max(one) < min(following) for one, following in pairwise(numbers)):
        return f"the numbers of the files continue from {ordered[0]} to {ordered[1]}"
    return None


def _telling_list(files: SourceFiles, by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if a text file or a table says something of single pictures, unless it says their folders."""
    classes = {path: name for name, paths in by_class.items() for path in paths}
    by_name: dict[str, list[str]] = {}
    for path in classes:
        by_name.setdefault(basename(path), []).append(path)
    rows: dict[int, list[tuple[str, str, str, list[str]]]] = {}
    for file, text in read_heads(files, files.sizes(), *_LISTS):
        for line in text.splitlines()[:_MAX_ROWS]:
            cells, found = _split_row(line, file, by_name)
            if len(found) == 1:
                said = ["" if basename(cell) == basename(found[0]) else cell for cell in cells]
                rows.setdefault(len(cells), []).append((file, found[0], classes[found[0]], said))
    for same in rows.values():
        if (told := _columns_beside_classes(same)) and len(same) > 1:
            file, path, _, _ = same[0]
            return f"{file} says more of {path} than its folder: {told}"
    for file, text in read_heads(files, files.sizes(), *_TEXTS):
        named = {name: one for name in _NAME.findall(text) if (one := _picture(name, file, by_name))}
        plain = [path for name, path in named.items() if f"{classes[path]}/" not in name]
        if len(plain) > 1 and not all(f'"{classes[path]}"' in text for path in plain):
            return f"{file} names {plain[0]} and {plural(len(named) - 1, 'other picture')}"
    return None


def _split_row(line: str, file: str, by_name: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the cells of a row of a list, and the pictures among them.

    >>> _split_row("1,a hat/1.jpg,a hat", "list.csv", {"1.jpg": ["a hat/1.jpg"]})
    (['1', 'a hat/1.jpg', 'a hat'], ['a hat/1.jpg'])
    """
    separator = next((mark for mark in "\t,;|" if mark in line), None)
    for cells in (line.strip().split(separator), re.split(r"[\s,;|]+", line.strip())):
        cells = [cell.strip(" \"'") for cell in cells]
        if found := [one for cell in cells if (one := _picture(cell, file, by_name))]:
            return cells, found
    return [], []


def _picture(name: str, file: str, by_name: Mapping[str, Sequence[str]]) -> str | None:
    """Return the picture that a list means by a name: of several, the only one whose folder is nearest to the list."""
    named = by_name.get(basename(name.replace("\\", "/")), ())
    ends = [path for path in named if path.endswith(f"/{name}")] or named

    def shared(path: str) -> int:
        places = zip(path.split("/")[:-1], file.split("/")[:-1], strict=False)
        return next((n for n, (one, other) in enumerate(places) if one != other), path.count("/"))

    nearest = sorted(ends, key=shared)[-2:]
    return nearest[-1] if len(set(map(shared, nearest))) == len(nearest) > 0 else None


def _columns_beside_classes(rows: Sequence[tuple[str, str, str, list[str]]]) -> str:
    """Return the first values of rows in which no column is the class; "" if one is, or no column says anything."""
    telling = []
    for column in zip(*(said for *_, said in rows), strict=True):
        values: dict[str, set[str]] = {}
        for (_, _, label, _), value in zip(rows, column, strict=True):
            values.setdefault(label, set()).add(value)
        known = {next(iter(found)) for found in values.values()}
        if all(found == {label} for label, found in values.items()) or (
            len(values) == len(known) > 1 and all(len(found) == 1 for found in values.values())
        ):
            return ""
        counts = [int(value) for value in column if value.isdecimal() and len(value) < 10]
        is_counter = len(counts) == len(column) and all(b - a == 1 for a, b in pairwise(counts))
        if not is_counter and not all(
            _SAYS_NOTHING.fullmatch(value) or is_split_name(value) for value in column
        ):
            telling.append(column[0])
    return " ".join(telling[:4])
