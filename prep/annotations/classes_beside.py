"""Class names in a file beside the data, where the data's own format has no place for them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.prep.annotations.contract import read_required
from halofeed.prep.annotations.labels import from_file, shared_names
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError

_ENDINGS = (".json", ".txt", ".csv")


def classes_beside(files: SourceFiles, paths: Iterable[str]) -> Mapping[int, str]:
    """Return the class names by number of the class tables in the folders of some files; {} without a table.

    Writers choose the file's name freely (classes.json, labelmap.txt), so a file is a class table if its name speaks of
    classes or labels and its content is one. Another such file is not read: it may describe something else.

    Raises:
        AnnotationsError: the tables of two files differ.
    """
    found = {}
    for folder in sorted({posixpath.dirname(path) for path in paths}):
        for path in files.files_in(folder):
            stem, ending = posixpath.splitext(posixpath.basename(path).lower())
            if ending in _ENDINGS and ("class" in stem or "label" in stem):
                try:
                    found[path] = from_file(path, read_required(files, path), 0).names
                except AnnotationsError:
                    continue
    return shared_names(found)


def ordered_classes(names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names in the order of their numbers, without the background.

    >>> ordered_classes({2: "dog", 0: "background", 1: "cat"})
    ('cat', 'dog')
    """
    return tuple(name for number, name in sorted(names.items()) if number or name.lower() != BACKGROUND)
