"""Choice of a layout by the files of a source, for `--layout auto`."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from posixpath import basename

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.suggest_layout import Hint, find_hints
from halofeed.prep.annotations.table_forms import METADATA_NAMES
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.layouts.doubtful_folders import doubt_classes
from halofeed.prep.sources.file_names import extension_of, is_volume_name
from halofeed.prep.sources.files import SourceFiles

AUTO = "auto"
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
            tried.append(f"  {name}: {str(error).removeprefix(f'{annotations.root}: ')}")
            continue
        good = [one for one in listed if one.problem is None]
        count = sum(bool(one.label or one.labels or one.boxes or one.mask or one.class_masks) for one in good)
        labels = {one.label for one in good if one.label}
        is_guess = name == "folders" and len(labels) > 1 and not options.folders_are_classes
        doubt = doubt_classes(annotations, good) if is_guess else None
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
    if not any(extension_of(path) for path in images.sizes()):
        raise AnnotationsError(
            f"{images.root}: no picture, volume or video lies below it{_others(images)}; name the folder "
            "that holds them"
        )
    head = f"{annotations.root}: its files show no layout; name one of {', '.join(LAYOUTS)} with --layout. Tried:"
    if hints:
        head = f"{annotations.root}: {hints[0]}. Tried:"
    elif candidates is _BY_NAMES and not any(map(is_volume_name, images.sizes())):
        first, *tried = tried
        others = ", ".join(name for name in LAYOUTS if name not in _BY_NAMES)
        head = (
            f"{annotations.root}:{first.partition(':')[2]}. If it has no class folders, name its layout with --layout: "
            f"pairs (pictures with label images), {others}. Tried:"
        )
    raise AnnotationsError("\n".join([head, *tried]))


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
    found = Counter(posixpath.splitext(path)[1].lower() for path in files.sizes())
    shown = ", ".join(f"{count:,} x {name or 'without extension'}" for name, count in found.most_common(3))
    return f" (found {shown})" if shown else ""


def _choices(names: Iterable[str]) -> str:
    return " or ".join(f"--layout {name}" for name in names)
