"""Which layout the files of a folder give away, for a message where another one was said."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from posixpath import basename, splitext
from typing import Protocol

from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.volume_names import DICOM_EXTENSIONS, VOLUME_EXTENSIONS
from halofeed.schemas.errors import SourceError

_HEAD_BYTES = 1 << 16
_MOST_LOOKED_AT = 8
"""How many files of a kind are opened: reading them all would be the conversion itself."""
_YOLO_LINE = re.compile(r"\d+(\s+[-+.\deE]+){4,}\s*")
_COCO_LIST = re.compile(r'"(images|annotations)"\s*:\s*\[')
_COCO_KEY = re.compile(r'"(file_name|bbox|image_id)"\s*:')
_VOC_ROOT = re.compile(r"<annotation[\s>]")
_MASK_FOLDER = re.compile(r"(labels?|masks?|segmentations?|segs?|annotations?)(tr|ts)?", re.IGNORECASE)
_FIRST_CHANNEL = re.compile(r"(?:^|/)imagesTr/[^/]+_0000\.nii\.gz$")
_IMAGE_FOLDER = re.compile(r"(images?|imgs?)(tr|ts)?", re.IGNORECASE)


class _Files(Protocol):
    def sizes(self) -> Mapping[str, int]: ...
    def head(self, path: str, size: int) -> bytes: ...


def other_layout(files: _Files) -> str | None:
    """What the files are, and the layout that fits, as one clause of a message; None where nothing gives it away.

    Only names and the heads of a few files are looked at, so that it is a hint and no proof of its absence.
    """
    others = [path for path in files.sizes() if not is_image_name(path)]
    return next((found for sign in _SIGNS if (found := sign(files, others)) is not None), None)


def may_be_other_layout(files: SourceFiles, others: Iterable[str], images: Iterable[str]) -> bool:
    """Whether another layout may be given away, where not all images are known; rather once too often.

    Args:
        files: opens them.
        others: the paths of all files but images.
        images: one of each folder.
    """
    others, images = list(others), list(images)
    beside_texts = [f"{splitext(path)[0]}.jpg" for path in others if path.lower().endswith(".txt")]
    of_masks = [f"images/{basename(path)}" for path in images if _lies_in(_MASK_FOLDER, path)]
    known = _Known(files, [*others, *images, *of_masks])
    return bool(other_layout(known) or _yolo(_Known(files, [*others, *beside_texts]), others))


class _Known:
    """Some of a folder's files."""

    def __init__(self, files: SourceFiles, paths: Iterable[str]) -> None:
        self.head = files.head
        self._sizes = dict.fromkeys(sorted(paths), 0)

    def sizes(self) -> Mapping[str, int]:
        return self._sizes


def hint(files: SourceFiles, own: str) -> str:
    """What to add to a message that a folder holds nothing of the layout `own`; "" where nothing is known."""
    found = other_layout(files)
    if found is None and _holds_several_classes(files) and not _share_names(files):
        found = "its images lie in several folders: for a class each, take --layout folders"
    return "" if found is None or f"--layout {own}" in found else f"; {found}"


def _images(files: _Files) -> Iterator[str]:
    return filter(is_image_name, files.sizes())


def _holds_several_classes(files: _Files) -> bool:
    """Whether images lie in more than one folder, so that folders can be classes."""
    folders = (path.rpartition("/")[0] for path in _images(files))
    first = next(folders, None)
    return any(folder != first for folder in folders)


def _share_names(files: _Files) -> bool:
    """Whether most names of images come in several folders, as of images and their masks or views."""
    stems = Counter(splitext(basename(path))[0] for path in _images(files))
    return 2 * sum(count > 1 for count in stems.values()) >= len(stems)


def _heads(files: _Files, paths: Sequence[str], *extensions: str) -> Iterator[tuple[str, str]]:
    """The path and the first bytes, as text, of a few files with one of these extensions, the topmost first."""
    chosen = sorted((path for path in paths if path.lower().endswith(extensions)), key=lambda p: p.count("/"))
    for path in islice(chosen, _MOST_LOOKED_AT):
        try:
            yield path, files.head(path, _HEAD_BYTES).decode("utf-8", "replace")
        except SourceError:
            continue


def _dataset_json(files: _Files, paths: Sequence[str]) -> str | None:
    for path, text in _heads(files, [path for path in paths if basename(path) == "dataset.json"], ".json"):
        try:
            keys = set(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            keys = set(re.findall(r'"(channel_names|modality|training)"\s*:', text))
        if "channel_names" in keys:
            return f"{path} is nnU-Net's: take --layout nnunet"
        if keys & {"modality", "training"} and any(_FIRST_CHANNEL.search(one) for one in files.sizes()):
            return f"{path} is that of nnU-Net's version 1: take --layout nnunet"
        if keys & {"modality", "training"}:
            return f"{path} is that of the Medical Segmentation Decathlon: take --layout msd"
    return None


def _coco(files: _Files, paths: Sequence[str]) -> str | None:
    for path, text in _heads(files, paths, ".json"):
        if _COCO_LIST.search(text) and _COCO_KEY.search(text):
            return f"{path} is COCO's: take --layout coco"
        if '"imagePath"' in text and '"shapes"' in text:
            return f"{path} is labelme's, which halofeed does not read: export it as COCO, then take --layout coco"
    return None


def _voc(files: _Files, paths: Sequence[str]) -> str | None:
    for path, text in _heads(files, paths, ".xml"):
        if _VOC_ROOT.search(text):
            return f"{path} is a Pascal VOC annotation: take --layout voc"
    return None


def _yolo(files: _Files, paths: Sequence[str]) -> str | None:
    texts = {path: splitext(basename(path))[0] for path in paths if path.lower().endswith(".txt")}
    named = set(texts.values())
    stems = named.intersection(splitext(basename(path))[0] for path in _images(files)) if named else ()
    beside = [path for path, stem in texts.items() if stem in stems]
    for path, text in _heads(files, beside, ".txt"):
        lines = [line for line in text.splitlines() if line.strip()]
        if lines and all(_YOLO_LINE.fullmatch(line) for line in lines[:5]):
            return (
                f"{path} is a YOLO label, which halofeed does not read: export the set as COCO or Pascal VOC, then "
                "take --layout coco or voc"
            )
    return None


def _dicom(files: _Files, paths: Sequence[str]) -> str | None:
    named = [path for path in paths if path.lower().endswith(DICOM_EXTENSIONS)]
    unnamed = [path for path in paths if "." not in basename(path) or path.lower().endswith(".img")]
    for path in islice((*named[:2], *unnamed), _MOST_LOOKED_AT):
        try:
            if files.head(path, 132)[128:] == b"DICM":
                return f"{path} is DICOM: take --layout dicom and --depth"
        except SourceError:
            continue
    return None


def _volumes(files: _Files, paths: Sequence[str]) -> str | None:
    volume = next((path for path in paths if path.lower().endswith(VOLUME_EXTENSIONS)), None)
    if volume is None or any(_images(files)):
        return None
    return f"{volume} is a volume: take --layout pairs, class-masks, lits, msd or nnunet, and --depth"


def _unread(files: _Files, paths: Sequence[str]) -> str | None:
    from halofeed.prep.formats.volumes import RECOGNIZED

    for path in paths:
        for extension, kind in RECOGNIZED.items():
            if path.lower().endswith(extension):
                return f"{path} is {kind}, which halofeed does not read: store it as NIfTI"
    return None


def _lies_in(folders: re.Pattern[str], path: str) -> bool:
    return any(folders.fullmatch(folder) for folder in path.split("/")[:-1])


def _masks(files: _Files, paths: Sequence[str]) -> str | None:
    """images/a.jpg with masks/a.png: a label image each."""
    by_kind: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for path in _images(files):
        is_mask = _lies_in(_MASK_FOLDER, path)
        if not is_mask and not _lies_in(_IMAGE_FOLDER, path):
            return None
        by_kind[is_mask].setdefault(splitext(basename(path))[0], path)
    shared = next((stem for stem in by_kind[False] if stem in by_kind[True]), None)
    if shared is None:
        return None
    return f"{by_kind[True][shared]} is the mask of {by_kind[False][shared]} by its name: take --layout pairs"


def _table(files: _Files, paths: Sequence[str]) -> str | None:
    near = [path for path in paths if "/" not in path]
    of_splits = [path for path in paths if basename(path) in ("metadata.jsonl", "metadata.csv")]
    for path, text in _heads(files, of_splits, ".jsonl", ".csv"):
        words = set(re.findall(r"\w+", next(iter(text.splitlines()), "")))
        if "file_name" in words and "objects" in words:
            return (
                f"{path} is metadata of Hugging Face with objects, which halofeed does not read: export the set as "
                "COCO, then take --layout coco"
            )
        if "file_name" in words and words & {"label", "class", "category"}:
            layout = "jsonl" if path.endswith("jsonl") else "csv"
            return f"{path} is metadata of Hugging Face: take --layout {layout}"
    for layout, extensions in (("csv", (".csv", ".tsv")), ("jsonl", (".jsonl", ".ndjson"))):
        for path, text in _heads(files, near, *extensions):
            first = next((line for line in text.splitlines() if line.strip()), "")
            words = {word.lower() for word in re.findall(r"[\w-]+", first)}
            boxed = {"xmin", "ymin", "xmax", "ymax"} <= words
            if "filename" in words and (boxed or ("class" in words and not _holds_several_classes(files))):
                return f"{path} is a table of {'boxes' if boxed else 'classes'}: take --layout {layout}"
    return None


# Each is given the paths of all files but images, of which there are many.
_SIGNS: tuple[Callable[[_Files, Sequence[str]], str | None], ...] = (
    *(_dataset_json, _coco, _voc, _yolo, _dicom, _volumes, _unread, _masks, _table),
)
