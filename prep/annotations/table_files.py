"""Files of a folder that are tables, and the folder that each describes."""

from __future__ import annotations

from collections.abc import Sequence

from halofeed.prep.annotations.contract import is_split_name
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.table_forms import is_description, is_metadata
from halofeed.prep.sources.containers import check_shards, container_kind
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError

_EXTENSIONS: dict[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", "metadata.parquet"),
    "tfrecord": (),
    "webdataset": (),
    "croissant": (".json",),
}
"""Ends of the names of each form, the most usual first."""
_CROISSANT_BYTES = 1 << 16
"""Bytes of a document in which its context and its version are."""
_CONTAINER_FORMS = {"jsonl": ("parquet",), "tfrecord": ("tfrecord", "array_record"), "webdataset": ("tar",)}
"""Kinds of the container files that a form reads, in any folder, the most usual first."""


def table_files(annotations: SourceFiles, annotation_file: str | None, form: str) -> list[str]:
    """Return the named table, or the tables of a form in the folder of the annotations.

    Raises:
        AnnotationsError: there are none, or several of which it is unclear which belong together.
    """
    if annotation_file is not None:
        return [annotation_file]
    extensions = _EXTENSIONS[form]
    if form == "croissant":
        return _croissant_files(annotations)
    below = [path for path in annotations.sizes() if path.lower().endswith(extensions)]
    found = _topmost(below, extensions) or _metadata(below, extensions) or _of_splits(below)
    # Tables come before containers: metadata.parquet beside shards describes files.
    if found:
        return found
    if containers := container_files(form, annotations):
        check_shards(containers)
        return containers
    raise _no_table_error(annotations, form, below)


def _croissant_files(annotations: SourceFiles) -> list[str]:
    """Return the one Croissant document of a folder, straight in it or else below it."""
    documents = [path for path in annotations.sizes() if path.lower().endswith(".json")]
    near = [path for path in documents if "/" not in path] or documents
    found = [path for path in near if b"mlcommons.org/croissant" in annotations.head(path, _CROISSANT_BYTES)]
    if not found:
        raise AnnotationsError(
            f"{annotations.root}: no JSON file conforms to http://mlcommons.org/croissant/; name the file itself"
        )
    if len(found) > 1:
        raise AnnotationsError(
            f"{annotations.root}: several files of Croissant: {', '.join(found[:5])}; name the one to read with "
            "--source"
        )
    return found


def _topmost(below: Sequence[str], extensions: Sequence[str]) -> list[str]:
    """Return the tables straight in the folder, of the most usual extension that any has."""
    for extension in extensions:
        found = [path for path in below if "/" not in path and path.lower().endswith(extension)]
        if found:
            # The lists of class names of Open Images are read beside its tables.
            return [path for path in found if not is_description(path)] or found
    return []


def _metadata(below: Sequence[str], extensions: Sequence[str]) -> list[str]:
    """Return the tables of Hugging Face image folders; of one in two forms, those of the more usual form."""
    for extension in extensions:
        found = [path for path in below if is_metadata(path) and path.lower().endswith(extension)]
        if found:
            return found
    return []


def _of_splits(below: list[str]) -> list[str]:
    """Return the tables in folders of splits, as Roboflow exports them, if all of these have one name; else []."""
    are_described = bool(below) and all(map(described_folder, below))
    return below if are_described and len({path.split("/")[1] for path in below}) == 1 else []


def _no_table_error(annotations: SourceFiles, form: str, below: Sequence[str]) -> AnnotationsError:
    extensions = _EXTENSIONS[form]
    # Containers are found in any folder, so that "straight in it" does not matter.
    if not extensions:
        return AnnotationsError(
            f"{annotations.root}: no .{_CONTAINER_FORMS[form][0]} file lies below it; name the folder of such files"
            + layout_hint(annotations, form)
        )
    there = f" ({', '.join(below[:3])}{', ...' if len(below) > 3 else ''} lie below it)" if below else ""
    return AnnotationsError(
        f"{annotations.root}: no {' or '.join(extensions)} file lies straight in it{there}; name the table itself"
        + ("" if below else layout_hint(annotations, form))
    )


def container_files(form: str, annotations: SourceFiles, annotation_file: str | None = None) -> list[str]:
    """Return the container files of a form in any folder, or the named file if it is one."""
    paths = annotations.sizes() if annotation_file is None else [annotation_file]
    return [path for path in paths if container_kind(path) in _CONTAINER_FORMS.get(form, ())]


def is_container(table: str) -> bool:
    """Return whether the pictures of a table are inside it; metadata.parquet names files."""
    return container_kind(table) != "" and not is_metadata(table)


def described_folder(table: str) -> str:
    """Return the folder that a table describes: its own for metadata and in a split folder (Roboflow); else "".

    >>> described_folder("valid/_annotations.csv"), described_folder("tables/boxes.csv"), described_folder("boxes.csv")
    ('valid', '', '')
    >>> described_folder("data/test/metadata.csv")
    'data/test'
    """
    folder = table.rpartition("/")[0]
    return folder if is_metadata(table) or is_split_name(folder) else ""
