"""Choice of a layout by the files of a source, for `--layout auto`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from posixpath import basename, splitext

from halofeed.prep.annotations.advice import Suggestion, advise, option_values, suggest
from halofeed.prep.annotations.class_marks import OptionsNeededError
from halofeed.prep.annotations.contract import LayoutOptions, grouped, is_split_name
from halofeed.prep.annotations.dicom_evidence import holds_pictures, one_patient_each
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
from halofeed.prep.layouts.separate_sets import refuse_two_sets, suggest_folders
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, is_dicom_name, is_image_name, is_volume_name
from halofeed.prep.sources.files import SourceFiles, source_files
from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import plural

_TABLES = frozenset(("csv", "jsonl"))
_COLUMN_LAYOUTS = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".parquet"),
    "tfrecord": (".tfrecord",),
    "webdataset": (".tar",),
    "croissant": (),
}
"""Layouts of tables, whose columns the user may name, and usual ends of their files' names."""
_SERIES = "dicom"
_SHARES = {"folders": 0.9}
"""Least share of inputs with labels; folders of pictures are in many projects, so nearly all files must be pictures."""
_SCANS_OF = {"lidc": "dicom"}
"""Layouts whose scans are those of another one, which therefore fits them too."""
_BY_NAMES = ("folders", "pairs", "class-masks")
"""Layouts that are recognized by listing alone: their files have no content that shows the layout."""


@dataclass(frozen=True, kw_only=True)
class DetectedLayout:
    """A layout and the reason why it was chosen, as a clause."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Source of a conversion; `options_of` maps the name of a layout to the user's options for it."""

    annotations: SourceFiles
    images: SourceFiles
    annotation_file: str | None
    options_of: Callable[[str], LayoutOptions]

    def list_by(self, name: str, options: LayoutOptions) -> list[SourceExample]:
        """Return the examples that a layout finds."""
        found = LAYOUTS[name].list_references(self.annotations, self.images, self.annotation_file, options)
        return list(found)


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
    source = _Source(
        annotations=annotations, images=images, annotation_file=annotation_file, options_of=options_of
    )
    hints = list(find_hints(annotations, annotation_file))
    if (table := _by_columns(source, hints)) is not None:
        return table
    if _names_each_slice(source, hints):
        hints = [hint for hint in hints if hint.layouts != (_SERIES,)]
    if (shown := _by_content(hints, source)) is not None:
        if shown.name == _SERIES and _is_one_folder(source):
            refuse_two_sets(images, partial(_used_volumes, source), partial(_try_folder, source))
        return shown
    extension = (annotation_file or "").rpartition(".")[2].lower()
    # Its header gave no hint, as that of a table of masks; the layout's own message tells what it lacks.
    if extension in _TABLES:
        return DetectedLayout(name=extension, reason=f"{annotation_file} is a table by its name")
    candidates = next((hint.layouts for hint in hints if hint.layouts), None)
    return _by_listing(source, candidates or (*_BY_NAMES, *_metadata_layout(annotations)), hints)


def _by_columns(source: _Source, hints: Sequence[Hint]) -> DetectedLayout | None:
    """Return the layout of the tables of a source whose columns the user names; None where none are named.

    Raises:
        AnnotationsError: the source has several kinds of tables.
    """
    if not any(_options_or_none(source, name).column for name in _COLUMN_LAYOUTS):
        return None
    shown = {hint.layouts[0]: hint for hint in reversed(hints) if len(hint.layouts) == 1}
    certain = {name: hint.what for name, hint in shown.items() if name in _COLUMN_LAYOUTS}
    found = certain or _tables_by_names(source)
    if not found:
        raise AnnotationsError(
            f"{source.annotations.root}: --column names columns of a table, and the source has none in CSV, JSONL, "
            "Parquet, TFRecord or tar files; leave it out"
        )
    if len(found) > 1:
        listed = "; ".join(found.values())
        raise AnnotationsError(
            f"{source.annotations.root}: tables of several kinds: {listed}. Choose {_choices(found)}"
        )
    ((name, what),) = found.items()
    return DetectedLayout(name=name, reason=f"{what}, whose columns are named")


def _options_or_none(source: _Source, name: str) -> LayoutOptions:
    """Return the user's options for a layout, or the defaults where they do not fit it."""
    try:
        return source.options_of(name)
    except UsageError:
        return LayoutOptions()


def _tables_by_names(source: _Source) -> dict[str, str]:
    """Return the layout of each kind of table in a source with a description, by the names of its files."""
    named = source.annotation_file
    found: dict[str, str] = {}
    for path in [named] if named else source.annotations.sizes():
        for name, endings in _COLUMN_LAYOUTS.items():
            if endings and path.lower().endswith(endings):
                found.setdefault(name, f"{path} is a table by its name")
    return found


def _names_each_slice(source: _Source, hints: Sequence[Hint]) -> bool:
    """Return whether a table has a row for most DICOM files, so that each of them is a picture and no slice of a scan.

    With --depth the source is one of volumes.
    """
    tables = [hint.layouts[0] for hint in hints if len(hint.layouts) == 1 and hint.layouts[0] in _TABLES]
    if not tables or not any(hint.layouts == (_SERIES,) for hint in hints):
        return False
    try:
        source.options_of("folders")
        listed = source.list_by(tables[0], source.options_of(tables[0]))
    except (AnnotationsError, UsageError):
        return False
    named = sum(one.problem is None and is_dicom_name(one.source) for one in listed)
    return 2 * named > sum(map(is_dicom_name, source.images.sizes()))


def _is_one_folder(source: _Source) -> bool:
    """Return whether a folder below the source can be converted by itself, with the other options unchanged."""
    return source.annotation_file is None and source.annotations.root == source.images.root


def _used_volumes(source: _Source) -> int:
    """Return how many volume files the layout of DICOM series takes as masks."""
    listed = source.list_by(_SERIES, source.options_of(_SERIES))
    masks = (path for one in listed if one.problem is None for path in one.mask_paths)
    return len({path for path in masks if is_volume_name(path)})


def _try_folder(source: _Source, folder: str) -> tuple[str, str] | None:
    """Return the layout that is recognized in a folder below the source, and a verb phrase with the reason; or None."""
    files = source_files(f"{source.images.root.rstrip('/')}/{folder}")
    try:
        found = detect_layout(files, files, None, source.options_of)
    except (AnnotationsError, UsageError):
        return None
    return found.name, f"fits, because {found.reason}"


def _by_content(hints: Sequence[Hint], source: _Source) -> DetectedLayout | None:
    """Return the layout that the contents of files show; None if they show none or leave a choice."""
    certain = _certain_layouts(hints)
    # One folder with the exports of two tools: either would be a guess.
    if len(certain) > 1:
        raise _several_layouts(certain, source)
    if not certain:
        return None
    ((name, hint),) = certain.items()
    tables = (one for one in hints if one.layouts and set(one.layouts) <= _TABLES - {name})
    other = next(tables, None)
    beside = f"; {other.what} too: --layout {other.layouts[0]} reads that" if other else ""
    return DetectedLayout(name=name, reason=f"{hint.what}{beside}")


def _certain_layouts(hints: Sequence[Hint]) -> dict[str, Hint]:
    """Return the first hint of each layout that the content of a file shows, without those that others include."""
    certain = {hint.layouts[0]: hint for hint in reversed(hints) if len(hint.layouts) == 1}
    # A table beside the files of a tool is usually made from them.
    certain = {name: hint for name, hint in certain.items() if name not in _TABLES} or certain
    # A description in Croissant is often beside the files that it describes.
    if len(certain) > 1:
        certain.pop("croissant", None)
    beneath = {_SCANS_OF[name] for name in certain if name in _SCANS_OF}
    return {name: hint for name, hint in certain.items() if name not in beneath}


def _several_layouts(certain: Mapping[str, Hint], source: _Source) -> AnnotationsError:
    """Return the error of a source with files of several layouts, with the command for each folder that has one."""
    apart = suggest_folders(source.images, partial(_try_folder, source)) if _is_one_folder(source) else ()
    by_folders = f"; or convert each folder by itself: {advise(apart, '')}" if apart else ""
    found = "; ".join(hint.what for hint in certain.values())
    return AnnotationsError(
        f"{source.annotations.root}: files of several layouts: {found}. Choose {_choices(certain)}{by_folders}"
    )


def _metadata_layout(annotations: SourceFiles) -> tuple[str, ...]:
    """Return the layout of Hugging Face's metadata.csv or metadata.jsonl; () without one.

    Their contents gave no hint, so they have no classes: captions, such as those of ImageFolder's documentation.
    """
    tables = {basename(path) for path in annotations.sizes()} & set(METADATA_NAMES)
    # Without them no table is a candidate: any folder may hold a CSV file of something else.
    if not tables:
        return ()
    return ("csv" if any(name.endswith(".csv") for name in tables) else "jsonl",)


def _by_listing(source: _Source, candidates: Sequence[str], hints: Sequence[Hint]) -> DetectedLayout:
    """Return the only one of some layouts whose listing has labels for most images."""
    _check_options(source.options_of, candidates)
    trials = [_try_layout(source, name) for name in candidates]
    fitting = {trial.name: trial for trial in trials if trial.fits}
    # images/ and labels/ are two class folders too, by their names.
    if len(fitting) > 1 and "folders" in fitting and _explains(source, fitting):
        del fitting["folders"]
    # Two readings of the names that both give labels: either would be a guess.
    if len(fitting) > 1:
        found = "; ".join(f"{name}: {trial.reason}" for name, trial in fitting.items())
        raise AnnotationsError(
            f"{source.annotations.root}: several layouts fit ({found}). Choose {_choices(fitting)}"
        )
    if fitting:
        ((name, trial),) = fitting.items()
        return DetectedLayout(name=name, reason=trial.reason)
    # A hint without a layout names a format that no layout reads; listings would only tell that they failed.
    if hints and not hints[0].layouts:
        raise AnnotationsError(f"{source.annotations.root}: {hints[0]}")
    # A table without a usual header may still be read by its layout, which tries more spellings.
    tables = () if hints else _suggest_tables(source)
    if tables and "--task" not in tables[0].words:
        name = option_values(tables[0].words)["--layout"]
        return DetectedLayout(name=name, reason=f"it {tables[0].effect}")
    raise AnnotationsError(_no_layout_message(source, hints, tables, trials))


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Result of listing a source by a layout, with the reason why it fits or not.

    Args:
        name: name of the layout.
        fits: whether it fits.
        reason: why, in words.
        needs_options: whether it fits with the options that the reason names.
    """

    name: str
    fits: bool
    reason: str
    needs_options: bool = False


def _try_layout(source: _Source, name: str) -> _Trial:
    """List the source by a layout; it fits if most of its inputs have labels."""
    try:
        options = source.options_of(name)
        listed = source.list_by(name, options)
    except (AnnotationsError, UsageError) as error:
        why = error.brief if isinstance(error, LayoutError) else str(error)
        reason = why.removeprefix(f"{source.annotations.root}: ")
        needs_options = isinstance(error, OptionsNeededError) or isinstance(
            error.__cause__, OptionsNeededError
        )
        return _Trial(name=name, fits=False, reason=reason, needs_options=needs_options)
    good = [one for one in listed if one.problem is None]
    if name == "folders" and (doubt := _doubt_folders(source, good, options)) is not None:
        return _Trial(name=name, fits=False, reason=doubt)
    count = sum(one.has_annotation for one in good)
    # Half, since sets have images without labels; see _SHARES for folders.
    if count >= _SHARES.get(name, 0.5) * len(listed) > 0:
        return _Trial(name=name, fits=True, reason=f"it finds labels for {count:,} of {len(listed):,} inputs")
    reason = f"labels for {count:,} of {len(listed):,} inputs; without labels: --layout {name}"
    return _Trial(name=name, fits=False, reason=reason)


def _doubt_folders(source: _Source, good: Sequence[SourceExample], options: LayoutOptions) -> str | None:
    """Return why the folders of pictures may be no classes; None if they may be guessed to be."""
    by_class = grouped((one.label, one.source) for one in good if one.label is not None)
    # Any folder with pictures would be a class, so one class shows nothing.
    if len(by_class) == 1:
        return f"all images have one class, {next(iter(by_class))!r}"
    # --folders-are-classes decides.
    if not by_class or options.folders_are_classes:
        return None
    notes = [note for one in good for note in one.notes if MAY_SHOW_ONE_THING in note]
    doubt = _doubt_classes(source.annotations, by_class, notes)
    if doubt is None and one_patient_each(source.images, by_class):
        doubt = "each folder holds the DICOM pictures of one patient"
    doubt = doubt or _doubt_contents(source.images, by_class, options)
    return f"{doubt}; if each folder is a class: --layout folders" if doubt else None


def _no_layout_message(
    source: _Source, hints: Sequence[Hint], tables: Sequence[Suggestion], trials: Sequence[_Trial]
) -> str:
    """Return the message for a source that no layout fits, with what was tried and what to say."""
    images, root = source.images, source.annotations.root
    # Names without an extension are no pictures, and DICOM files would have given a hint.
    if not any(extension_of(path) for path in images.sizes()) and not holds_pictures(images):
        return (
            f"{images.root}: no picture, volume or video lies below it{_others(images)}; name the folder that holds "
            "them"
        )
    shown = describe_annotations(source.annotations, source.annotation_file)
    head = _what_to_say(source, hints, tables, shown)
    # A table that names pictures may lack one word, which its layout's own message tells.
    if not tables and shown:
        trials = [*_try_tables(source, {trial.name for trial in trials}), *trials]
    if asked := next((trial for trial in trials if trial.needs_options), None):
        return f"{root}: {asked.reason}"
    lines = [f"  {trial.name}: {trial.reason}" for trial in trials if not trial.fits]
    for text in [f"; {hint}" for hint in (*hints, shown) if hint]:  # once is enough
        lines = [line.replace(text, "") for line in lines]
    return "\n".join([f"{root}: {head}. Tried:", *lines])


def _what_to_say(
    source: _Source, hints: Sequence[Hint], tables: Sequence[Suggestion], shown: Hint | None
) -> str:
    """Return the clause with what to type for a source that no layout fits.

    Args:
        shown: annotation files that no layout reads; None without any.
    """
    images = source.images
    if suggested := tables or _suggest_pairs(source):
        return f"its files show no layout; {advise(suggested, '')}"
    # Names of volumes show no layout, and each of these was tried.
    if hints and len(hints[0].layouts) > 1 and not hints[0].is_certain:
        return f"{hints[0].what}, and no layout of volumes fits; {no_pattern(images)}"
    if hints:
        return str(hints[0])
    found = shown or several_labels(images, list(images.sizes()))
    others = f"; {found}" if found else ""
    return f"its files show no layout{others}; name one of {', '.join(LAYOUTS)} with --layout"


def _try_tables(source: _Source, tried: Collection[str]) -> list[_Trial]:
    """List the source by the layouts of its tables that were not tried."""
    names = (name for name in _tables_by_names(source) if name in _TABLES and name not in tried)
    return [_try_layout(source, name) for name in names]


def _suggest_pairs(source: _Source) -> tuple[Suggestion, ...]:
    """Return patterns that were tried, if the user's options leave room for label images."""
    try:
        options = source.options_of("pairs")
    except UsageError:
        return ()
    # The user has said what the source is for, or has patterns, which failed.
    if options.task not in (None, "segmentation") or options.image_pattern or options.label_pattern:
        return ()
    return suggest_patterns(source.images, options)


def _explains(source: _Source, fitting: Iterable[str]) -> bool:
    """Return whether another layout takes all pictures of class folders for images and labels of others.

    Then class folders would make samples of label images.
    """
    pictures = sum(map(is_image_name, source.images.sizes()))
    for name in (name for name in ("pairs", "class-masks") if name in fitting):
        listed = LAYOUTS[name].list_references(
            source.annotations, source.images, None, source.options_of(name)
        )
        taken = sum(1 + len(one.mask_paths) for one in listed if one.is_labelled)
        # A tenth may be other pictures, such as previews.
        if 10 * taken >= 9 * pictures:
            return True
    return False


def _suggest_tables(source: _Source) -> tuple[Suggestion, ...]:
    """Return the layout of a table, and the task if it needs one, with which a table beside the pictures is read."""
    endings = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
    paths = [source.annotation_file] if source.annotation_file else source.annotations.sizes()
    forms = [form for form, ends in endings.items() if any(path.lower().endswith(ends) for path in paths)]
    tasks: list[tuple[str, ...]] = [(), ("--task", "segmentation"), ("--task", "classification")]
    return suggest(
        (("--layout", form, *task) for task in tasks for form in forms), partial(_try_table, source)
    )


def _try_table(source: _Source, words: Sequence[str]) -> str | None:
    """Return how many labels a table gives with the words of a suggestion; None if it is not most of them."""
    given = option_values(words)
    options = source.options_of(given["--layout"])
    if "--task" in given:
        if options.task is not None:  # the user has named the task
            return None
        options = replace(options, task=given["--task"])
    listed = source.list_by(given["--layout"], options)
    good = sum(one.problem is None and one.has_annotation for one in listed)
    return f"finds labels for {good:,} of {plural(len(listed), 'input')}" if 2 * good > len(listed) else None


def _check_options(options_of: Callable[[str], LayoutOptions], layouts: Sequence[str]) -> None:
    """Raise UsageError if the options are wrong in the same way with every layout."""
    problems = []
    for name in layouts:
        try:
            options_of(name)
        except UsageError as error:
            problems.append(error)
    # Otherwise the option fits one layout, and its message belongs to the others only.
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


def _doubt_classes(
    files: SourceFiles, by_class: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> str | None:
    """Return why the folders that a listing took for classes may be none, as a clause, or None.

    Args:
        by_class: pictures of each folder.
        notes: notes of the listing on folders that may show one thing.
    """
    reasons = (_doubtful_name(by_class), _kinds_inside(by_class), _continued_numbers(by_class), *notes[:1])
    return next(filter(None, reasons), None) or _telling_list(files, by_class)


def _doubt_contents(
    files: SourceFiles, by_class: Mapping[str, Sequence[str]], options: LayoutOptions
) -> str | None:
    """Return why folders may be no classes if one holds drawings of few colors of the size of another's pictures."""
    # Numbers are classes, as in MNIST, or chunks, which `_continued_numbers` finds.
    if len(by_class) > MAX_FOLDERS or all(map(str.isdecimal, by_class)):
        return None
    paths = sorted(path for found in by_class.values() for path in sorted(found)[:_MAX_COMPARED])
    found = find_drawings(files, options, paths)
    return (
        f"they may be images and label images by their content: a pattern {found[0].effect}"
        if found
        else None
    )


def _doubtful_name(names: Iterable[str]) -> str | None:
    """Return a reason if the name of one folder, or all names together, show that folders are not classes.

    >>> _doubtful_name(["hat", "images"])
    'a folder named images usually holds all pictures of a set'
    >>> _doubtful_name(["trainA", "trainB", "testA"])
    'testA and trainB may be parts of a split, train or test'
    >>> _doubtful_name(["hat", "test_tube", "cam1"]) is None
    True
    """
    names = sorted(names)
    # label_0 and label_1 are classes; one folder called label beside images is not.
    are_numbered = all(map(_LABEL_NUMBER.fullmatch, names))
    for name in () if are_numbered else names:
        what = next((what for pattern, what in _NO_CLASSES if pattern.fullmatch(name)), None)
        if what is not None:
            return f"a folder named {name} {what}"
    # CycleGAN's folders trainA, trainB and testA are splits of two domains and not classes.
    begin = {found[1].lower(): name for name in names if (found := _SPLIT.match(name))}
    if len(begin) > 1:
        first, last = sorted(begin.values())[:: len(begin) - 1]
        return f"{first} and {last} may be parts of a split, train or test"
    # One such name may be a class (a video, a left shoe); all of them together are no classes.
    for pattern, what in ((_VIEWS, "show the same objects in other views"), (_PARTS, "be parts of a set")):
        if all(map(pattern.fullmatch, names)):
            return f"{', '.join(names[:3])} may {what}"
    return None


def _kinds_inside(by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if a folder divides its pictures into kinds, as scene1/rgb and scene1/depth do.

    >>> _kinds_inside({"scene1": ["train/scene1/rgb/1.png", "train/scene1/depth/1.png"]})
    'scene1 has the folders depth and rgb, which may show the same objects in other views'
    """
    for name, paths in by_class.items():
        below = [path.split("/")[path.split("/").index(name) + 1 : -1] for path in paths]
        inside = sorted({folders[0] for folders in below if folders})
        # Kinds of a class, such as cat/black and cat/white, are no such names.
        if len(inside) > 1 and all(map(_is_kind, inside)):
            first, last = inside[:2]
            return (
                f"{name} has the folders {first} and {last}, which may show the same objects in other views"
            )
    return None


def _is_kind(folder: str) -> bool:
    return any(pattern.fullmatch(folder) for pattern in (_VIEWS, IMAGE_FOLDER, MASK_FOLDER))


def _continued_numbers(by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if files are numbered from folder to folder, or folders are the beginnings of digests.

    >>> _continued_numbers({"000": ["000/01.jpg", "000/02.jpg"], "001": ["001/03.jpg"]})
    'the numbers of the files continue from 000 to 001'
    >>> _continued_numbers({"0": ["0/01.jpg", "0/02.jpg"], "1": ["1/01.jpg"]}) is None
    True
    """
    stems = {name: [splitext(basename(path))[0] for path in paths] for name, paths in by_class.items()}
    if all(_are_digests(name, found) for name, found in stems.items()):
        return f"the names of the files begin with those of their folders, as {next(iter(stems))} does"
    # Names of classes are words, so numbers in their files mean nothing.
    if not all(map(str.isdecimal, stems)):
        return None
    ordered = sorted(stems, key=int)
    if not _are_chunks([_last_numbers(stems[name]) for name in ordered]):
        return None
    return f"the numbers of the files continue from {ordered[0]} to {ordered[1]}"


def _are_digests(folder: str, stems: Iterable[str]) -> bool:
    """Return whether files are named by hexadecimal digests that begin with the name of their folder.

    Sets are stored so to keep folders small: 0/0000059611c7d079.jpg.
    """
    # More digits would be a class, such as the year 2019.
    if not re.fullmatch("[0-9a-f]{1,3}", folder):
        return False
    return all(re.fullmatch(f"{folder}[0-9a-f]{{8,}}", stem) for stem in stems)


def _last_numbers(stems: Iterable[str]) -> list[int]:
    """Return the last number in each name that has one."""
    return [int(found[-1]) for stem in stems if (found := re.findall(r"\d+", stem))]


def _are_chunks(numbers: Sequence[Sequence[int]]) -> bool:
    """Return whether folders hold the chunks of one list: equally many files, the last at most so, numbers that rise.

    Folders of one file each show nothing: 0/1.jpg and 1/2.jpg may be classes.
    """
    if len(numbers) < 2:
        return False
    *full, last = map(len, numbers)
    if len(set(full)) > 1 or full[0] < 2 or not 0 < last <= full[0]:
        return False
    return all(max(one) < min(following) for one, following in pairwise(numbers))


def _telling_list(files: SourceFiles, by_class: Mapping[str, Sequence[str]]) -> str | None:
    """Return a reason if a text file or a table says something of single pictures, unless it says their folders."""
    classes = {path: name for name, paths in by_class.items() for path in paths}
    by_name = grouped((basename(path), path) for path in classes)
    return _telling_table(files, classes, by_name) or _telling_text(files, classes, by_name)


def _telling_table(
    files: SourceFiles, classes: Mapping[str, str], by_name: Mapping[str, Sequence[str]]
) -> str | None:
    """Return a reason if the rows of lists have columns beside the pictures and their folders.

    Rows of equally many cells are one table, whichever file they are in: lists of splits are.
    """
    rows: dict[int, list[_Row]] = {}
    for file, text in read_heads(files, files.sizes(), *_LISTS):
        for line in text.splitlines()[:_MAX_ROWS]:
            cells, found = _split_row(line, file, by_name)
            # A row of two pictures is a pair, and not a class of either.
            if len(found) == 1:
                said = ["" if basename(cell) == basename(found[0]) else cell for cell in cells]
                rows.setdefault(len(cells), []).append((file, found[0], classes[found[0]], said))
    for same in rows.values():
        # One row may be a sentence.
        if (told := _columns_beside_classes(same)) and len(same) > 1:
            file, path, _, _ = same[0]
            return f"{file} says more of {path} than its folder: {told}"
    return None


def _telling_text(
    files: SourceFiles, classes: Mapping[str, str], by_name: Mapping[str, Sequence[str]]
) -> str | None:
    """Return a reason if a JSON document names several pictures, and neither their folders nor their classes."""
    for file, text in read_heads(files, files.sizes(), *_TEXTS):
        named = {name: one for name in _NAME.findall(text) if (one := _picture(name, file, by_name))}
        plain = [path for name, path in named.items() if f"{classes[path]}/" not in name]
        # A list of classes with an example of each names their folders.
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


_Row = tuple[str, str, str, list[str]]
"""A file, a picture that it names, the folder of that, and the cells of the row; the cell of the picture is empty."""


def _columns_beside_classes(rows: Sequence[_Row]) -> str:
    """Return the first values of rows in which no column is the class; "" if one is, or no column says anything."""
    labels = [label for _, _, label, _ in rows]
    columns = list(zip(*(said for *_, said in rows), strict=True))
    if any(_is_class_column(labels, column) for column in columns):
        return ""
    return " ".join([column[0] for column in columns if not _says_nothing(column)][:4])


def _is_class_column(labels: Sequence[str], column: Sequence[str]) -> bool:
    """Return whether a column is the class of each picture, by its name or by its number."""
    values = {label: set(found) for label, found in grouped(zip(labels, column, strict=True)).items()}
    # The list repeats the folders, as ImageNet's lists do.
    if all(found == {label} for label, found in values.items()):
        return True
    known = set().union(*values.values())
    return len(values) == len(known) > 1 and all(len(found) == 1 for found in values.values())


def _says_nothing(column: Sequence[str]) -> bool:
    """Return whether a column only counts its rows, or has only splits, digests, addresses or blanks."""
    counts = [int(value) for value in column if value.isdecimal() and len(value) < 10]
    # A column of row numbers, which pandas writes first.
    if len(counts) == len(column) and all(b - a == 1 for a, b in pairwise(counts)):
        return True
    return all(_SAYS_NOTHING.fullmatch(value) or is_split_name(value) for value in column)
