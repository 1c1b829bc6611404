"""Reader of MONAI's datalists: JSON with the images and labels of each split, and the folds of the training set.

    {"labels": {"0": "background", "1": "tumor"},
     "training": [{"image": ["a_t1.nii.gz", "a_t2.nii.gz"], "label": "a_seg.nii.gz", "fold": 0}, ...],
     "testing": [{"image": ["z_t1.nii.gz", "z_t2.nii.gz"]}, ...]}

The form is that of the Medical Segmentation Decathlon, with a list of channels in place of one file, `fold`, and any
file name. Paths are relative to the folder of the file or, as MONAI takes them from its `dataroot`, to the root of the
source.

Source: `load_decathlon_datalist` in monai/data/decathlon_datalist.py; `datafold_read` in MONAI's
tutorial 3d_segmentation/swin_unetr_brats21_segmentation_3d.ipynb, which validates with the entries of one fold and
trains on all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from halofeed.prep.annotations.contract import LayoutOptions, rejected_example, sort_examples
from halofeed.prep.annotations.layout_hints import is_datalist, read_heads
from halofeed.prep.layouts.msd import (
    DatasetJson,
    is_mac_metadata,
    named_values,
    read_json_object,
    refuse_exchanged,
    refuse_repeated,
)
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import find_annotated_file, iterate_scans
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, Problem, SourceError

SPLITS = {"training": "train", "validation": "validation", "testing": "test", "test": "test"}
"""Lists of a datalist and their splits."""
_EXPECTED = 'a list of {"image": "a.nii.gz" or a list of channels, "label": "b.nii.gz", "fold": 0}'


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every entry, and one for every scan that no entry names.

    Entries of `training` with a fold are in the split fold0, fold1, ... of their fold, and `Loader(fold=)` trains on
    all but one. If some have a fold, one without it has a problem. An entry of `testing` without a label is for
    prediction.

    Raises:
        AnnotationsError: there is no such file, or there are several.
    """
    document = _read(annotations, annotation_file)
    entries = [*_entries(document)]
    has_folds = any("fold" in one.content for one in entries)
    listed = [_example(one, document, images, options, has_folds=has_folds) for one in entries]
    listed = refuse_exchanged(refuse_repeated(listed), document.path)
    used = {path for example in listed for path in example.paths} | _named_paths(document, images)
    listed += [
        rejected_example(path, ("selection", f"file is not in {document.path}", ""))
        for path in iterate_scans(images.sizes())
        if path not in used
    ]
    yield from sort_examples(listed)


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class names by value, from `labels`, {"0": "background", ...}; {} where the file names none."""
    document = _read(annotations, annotation_file)
    return named_values(document) if document.content.get("labels") else {}


def _read(annotations: SourceFiles, annotation_file: str | None) -> DatasetJson:
    return read_json_object(annotations, annotation_file or _find(annotations))


def _find(annotations: SourceFiles) -> str:
    paths = [path for path in annotations.sizes() if path.count("/") <= 1]
    found = [path for path, text in read_heads(annotations, paths, ".json") if is_datalist(text)]
    if len(found) == 1:
        return found[0]
    listed = f"found {', '.join(found[:5])}; name one with --source, and its folder with --images"
    listed = listed if found else "found none"
    raise AnnotationsError(
        f'{annotations.root}: expected one JSON file with "training": {_EXPECTED}; {listed}'
    )


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Entry of a list.

    Args:
        part: name of the list.
        place: file, list and number, for messages.
        content: the entry; {"image": PATH} for a plain path.
    """

    part: str
    place: str
    content: Mapping[str, Any]

    @property
    def images(self) -> list[Any]:
        """Channels as they are written."""
        image = self.content.get("image")
        return image if isinstance(image, list) else [image]

    @property
    def label(self) -> Any:
        """Label as it is written."""
        return self.content.get("label")

    @property
    def form_problem(self) -> Problem | None:
        """Problem of an entry whose paths cannot be read."""
        if not self.images or not all(isinstance(one, str) and one for one in self.images):
            return ("annotation", "entry names no image", f"{self.place}: expected {_EXPECTED}")
        if isinstance(self.label, str | None):
            return None
        detail = f"{self.place}: label: expected one file, got {str(self.label)[:80]}; store the classes in one file"
        return ("annotation", "entry has several labels", detail)


def _entries(document: DatasetJson) -> Iterator[_Entry]:
    """Yield each entry, except metadata of macOS."""
    document.part("training", list, _EXPECTED)
    for part in filter(document.content.get, SPLITS):
        for number, written in enumerate(document.part(part, list, _EXPECTED)):
            content = written if isinstance(written, dict) else {"image": written}
            entry = _Entry(part=part, place=f"{document.path}#{part}[{number}]", content=content)
            if not any(map(is_mac_metadata, entry.images)):
                yield entry


def _example(
    entry: _Entry, document: DatasetJson, images: SourceFiles, options: LayoutOptions, *, has_folds: bool
) -> SourceExample:
    split, problem = _split_of(entry, has_folds=has_folds)
    if entry.form_problem is not None:
        return rejected_example(entry.place, entry.form_problem, split)
    source = entry.images[0]
    try:
        source, *channels = (_file(one, "image", document, images) for one in entry.images)
        mask = _file(entry.label, "label", document, images) if entry.label else None
    except SourceError as error:
        return rejected_example(source, error.at(entry.place).args, split)
    needs_label = SPLITS[entry.part] != "test" and options.missing_masks == "refuse"
    # A copied line of the list.
    if mask is not None and mask in (source, *channels):
        problem = ("annotation", "image and label are one file", entry.place)
    elif mask is None and needs_label and problem is None:
        problem = ("annotation", "image has no label", entry.place)
    return SourceExample(
        source=source,
        key=source,
        split=split,
        channels=tuple(channels),
        mask=None if problem else mask,
        problem=problem,
    )


def _split_of(entry: _Entry, *, has_folds: bool) -> tuple[str, Problem | None]:
    """Return the split of an entry, and its problem if its fold is missing or no number."""
    if entry.part != "training" or not has_folds:
        return SPLITS[entry.part], None
    fold = entry.content.get("fold")
    if type(fold) is int and fold >= 0:
        return f"fold{fold}", None
    # MONAI trains on it in every fold, which a data set of folds cannot say.
    detail = f"{entry.place}: fold: expected a number from 0, as other entries have, got {fold!r}"
    return SPLITS[entry.part], ("annotation", "entry has no fold", detail)


def _file(written: str, what: str, document: DatasetJson, images: SourceFiles) -> str:
    """Return the path that an entry means: relative to the file's folder, else to the root."""
    if document.folder:
        with suppress(SourceError):
            return find_annotated_file(written, what, images, document.folder)
    return find_annotated_file(written, what, images)


def _named_paths(document: DatasetJson, images: SourceFiles) -> set[str]:
    """Return the paths that any entry names, including entries with a problem."""
    found = set()
    for entry in _entries(document):
        labels = entry.label if isinstance(entry.label, list) else [entry.label]
        for written in (*entry.images, *labels):
            with suppress(SourceError):  # the example of the entry has this error
                found.add(_file(str(written), "image", document, images))
    return found
