"""Detection of the layout of a folder from its files, for hints in error messages."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from posixpath import basename, splitext
from typing import Protocol

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.table_forms import GOOGLE_SETS, METADATA_NAMES, WHEAT_COLUMNS
from halofeed.prep.formats.volume.reading_options import ARRAY_ADVICE
from halofeed.prep.sources.containers import UNPACK_COMMANDS, container_kind, unpack_command
from halofeed.prep.sources.file_names import (
    ARRAY_EXTENSIONS,
    DICOM_EXTENSIONS,
    VOLUME_FILE_EXTENSIONS,
    extension_of,
    is_image_name,
)
from halofeed.prep.sources.files import SourceFiles, pointer_kind

_HEAD_BYTES = 1 << 16
_MAX_OPENED = 8
"""Most files of each kind to open; reading all files would take as long as the conversion."""
_NUMBER = r"\s+[-+.\deE]+"
_TEXT_LABELS = {
    "a YOLO label": (
        "yolo",
        re.compile(rf"(?=.*\.)\s*\d+({_NUMBER}){{4,}}\s*"),
    ),  # a grid of classes has no shares
    "a KITTI label": ("kitti", re.compile(rf"\s*[A-Za-z_]+({_NUMBER}){{14,15}}\s*")),
    "a VisDrone label": (None, re.compile(r"\s*-?\d+(\s*,\s*-?\d+){7}\s*,?\s*")),
    "a DOTA label": (None, re.compile(rf"\s*[-+.\deE]+({_NUMBER}){{7}}\s+\S+\s+[0-2]\s*")),
}
"""Layout that reads a text file that accompanies an image, None if there is none, and the form of each line."""
_COCO_KEYS = frozenset(
    ("images[].file_name", "images[].coco_url", "annotations[].image_id", "annotations[].segments_info")
)
"""Keys of which each shows COCO; "images" or "annotations" alone are in the files of other tools too."""
_JSON_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\],]')
_JSON_LEVELS = 3
_YAML_NAMES, _YAML_FOLDERS = (re.compile(rf"^({keys})\s*:", re.MULTILINE) for keys in ("names", "train|val"))
_MARKS: Mapping[str, tuple[tuple[str, str | None, tuple[str, ...]], ...]] = {
    ".json": (
        ("labelme's", "labelme", ('"imagePath"', '"shapes"')),
        ("VIA's (VGG Image Annotator)", "via", ('"shape_attributes"|"_via_img_metadata"',)),
        ("CreateML's", "createml", (r'^\s*\[.*"coordinates"\s*:\s*\{',)),
        ("Supervisely's", "supervisely", ('"classTitle"',)),
        (
            "Label Studio's",
            "label-studio",
            (
                # Without regions, its results have names of the setup for their question and their picture.
                r'"(rectangle|polygon|keypoint|brush|ellipse)labels"|"completions"\s*:'
                r'|"result"\s*:\s*\[.*"(from|to)_name"\s*:',
            ),
        ),
        ("BDD100K's", None, ('"box2d"',)),
        ("COCO's, panoptic", "coco", (r'"segments_info"\s*:',)),
    ),
    ".xml": (
        (
            "of the LabelMe web tool, in XML",
            None,
            (r"<annotation[\s>]", "<polygon>", "^(?!.*<bndbox>)"),
        ),
        ("a Pascal VOC annotation", "voc", (r"<annotation[\s>]",)),
        ("CVAT's", "cvat", (r"<annotations[\s>].*?<(image|track)\s",)),
    ),
}
"""By extension: what a file is, the layout that reads it or None, and marks that its content has, all of them."""
_SAVE = "save each picture as a PNG file in a folder for its class, and name the folder above these"
_CONVERT = "convert it to PNG or JPEG first"
_FOREIGN_FILES = tuple(
    (what, fix, re.compile(form))
    for what, fix, form in (
        (
            "an archive",
            "unpack it, and name the folder that comes out of it",
            r".*\.(zip|7z|rar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst))",
        ),
        (
            "a picture of a format that is not read",
            _CONVERT,
            r".*\.(heic|heif|avif|jxl|jp2|j2k|svg|psd|xcf|tga|exr|hdr|ico|eps)",
        ),
        ("a raw picture of a camera", _CONVERT, r".*\.(cr[23w]|nef|nrw|arw|srf|dng|raf|orf|rw2|pef|raw)"),
        (
            "a workbook",
            "save its table as CSV in UTF-8, and name that file",
            r".*\.(xlsx?|xlsm|ods)",
        ),
        (
            "an Arrow file, as save_to_disk of Hugging Face writes",
            'write it as Parquet, datasets.load_from_disk(FOLDER)["train"].to_parquet("train.parquet"), and name that',
            r".*\.arrow",
        ),
        ("an IDX file of MNIST", _SAVE, r".*[-.]idx\d-ubyte|.*\.idx"),
        ("an HDF5 file", _SAVE, r".*\.(h5|hdf5?)"),
        ("a pickle of Python", _SAVE, r".*\.(pkl|pickle)|(data|test)_batch(_\d)?"),
        ("a file of MATLAB", _SAVE, r".*\.mat"),
        ("a database", _SAVE, r".*\.(l?mdb|sqlite3?|db)"),
        ("a file of tensors", _SAVE, r".*\.(pth?|safetensors)"),
        ("MXNet's RecordIO", _SAVE, r".*\.rec"),
    )
)
"""Files that are not read: what they are, what to do, and their names in lower case."""
_FOREIGN_BYTES = {
    b"PK\x03\x04": "it is a ZIP file, such as a workbook: save the table as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "it is a workbook: save the table as CSV in UTF-8",
    b"PAR1": "it is Parquet: give its name the ending .parquet",
    b"\x89PNG": "it is a picture: name the table",
    b"\xff\xd8\xff": "it is a picture: name the table",
}
"""First bytes of files that are no tables, and what to do about each."""
_STATIC_SHAPE = " with --depth, --height and --width"
_TOOL_LAYOUTS = frozenset(
    ("labelme", "cvat", "createml", "kitti", "via", "label-studio", "supervisely", "wider")
)
"""Layouts of annotation tools: their files belong to no other layout, so that each error of another names them."""
_BOX_TABLE = (
    "write its boxes into a table with the columns filename,class,xmin,ymin,xmax,ymax, in pixels, then name that table "
    "with --source and take --layout csv"
)
_OTHER_TABLE = (
    "write what it says into a table with the columns filename,class for classes of pictures, or filename,class,xmin,"
    "ymin,xmax,ymax for boxes in pixels, then name that table with --source and take --layout csv"
)
_OTHER_TOOLS = (
    (
        "dm_format_version",
        "JSON of Datumaro",
        "convert it with datum convert -i FOLDER -if datumaro -f coco -o COCO_FOLDER, then name COCO_FOLDER with "
        "--source and the pictures with --images",
    ),
)
"""Key of a document, the tool that writes it, and a way to convert it. Other documents are described by their keys."""
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
_TABLE_EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".xml", ".yaml", ".parquet")
_MAX_ROWS = 20
_LEAST_NUMBERS = 4
_MASK_FOLDER = re.compile(
    r"(labels?|masks?|segmentations?|segs?|annotations?|SegmentationClass)(tr|ts)?", re.IGNORECASE
)
_MASK_SUFFIX = re.compile(r"[-_.](d?seg|segmentation|masks?|labels?|gt|groundtruth)$", re.IGNORECASE)
_OBJECT_FOLDER = re.compile("SegmentationObject")
_FIRST_CHANNEL = re.compile(r"(?:^|/)imagesTr/[^/]+_0000\.nii\.gz$")
_BIDS_IMAGE = re.compile(
    r"(?:(?!derivatives/)[^/]+/)*(sub-[A-Za-z0-9+]+)/(?:ses-[^/]+/)?anat/\1_[^/]*[A-Za-z0-9]\.nii(?:\.gz)?"
)
_CONTAINERS = {
    "tar": ("a tar file, as WebDataset has them", "webdataset"),
    "parquet": ("a Parquet file, as Hugging Face publishes pictures", "jsonl"),
    "tfrecord": ("a TFRecord file", "tfrecord"),
}
"""Description of each kind of container file, and the layout that reads it."""
_IMAGE_FOLDER = re.compile(r"((?:JPEG)?images?|imgs?)(tr|ts)?", re.IGNORECASE)


class _Files(Protocol):
    def sizes(self) -> Mapping[str, int]: ...
    def head(self, path: str, size: int) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Format of a file, and the way to convert it.

    Args:
        what: the file and its format.
        layouts: layouts that read it and do not need the hint; () if no layout reads it.
        fix: advice as one clause. The default suits formats of boxes, since a table can hold the same content.
    """

    what: str
    layouts: tuple[str, ...] = ()
    fix: str = _BOX_TABLE

    def __str__(self) -> str:
        unread = "" if self.layouts else ", which halofeed does not read"
        return f"{self.what}{unread}: {self.fix}"


def _hint(what: str, layout: str | None, more: str = "") -> Hint:
    """Return the hint to take a layout; with None, that no layout reads the file."""
    if layout is None:
        return Hint(what=what)
    return Hint(what=what, layouts=(layout,), fix=f"take --layout {layout}{more}")


def suggest_layout(files: _Files) -> Hint | None:
    """Return a hint with the layout that fits the files, or None if nothing indicates one.

    The function reads only names and the beginnings of a few files, so None proves nothing.
    """
    return next(find_hints(files), None)


def advice_for_bytes(head: bytes, path: str) -> str:
    """Return what to do about a file at `path` that is named as a table and is no UTF-8 text, by its first bytes."""
    if command := unpack_command(head):
        return f"it is compressed: unpack it with {command} {shlex.quote(path)}"
    if kind := next((what for start, what in _FOREIGN_BYTES.items() if head.startswith(start)), None):
        return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        stem, extension = splitext(path)
        words = ["iconv", "-f", "UTF-16", "-t", "UTF-8", path, "-o", f"{stem}_utf8{extension}"]
        return f"it is UTF-16: save it as UTF-8, with {shlex.join(words)}"
    return "save it as UTF-8"


def find_hints(files: _Files, named: str | None = None) -> Iterator[Hint]:
    """Yield a hint of each kind that the files show, or that the annotation file `named` alone shows."""
    if named is not None:
        files = _FileSubset(files, [named])  # the folder may contain any number of other files
    others = [path for path in files.sizes() if not is_image_name(path)]
    return filter(None, (detect(files, others) for detect in _DETECTORS))


def may_suggest_layout(files: SourceFiles, others: Iterable[str], images: Iterable[str]) -> bool:
    """Return whether `suggest_layout` could find another layout, judged by one image per folder.

    A True result may be a false alarm; a False result is certain.

    Args:
        others: paths of all files except images.
        images: path of one image per folder.
    """
    others, images = list(others), list(images)
    beside_texts = [f"{splitext(path)[0]}.jpg" for path in others if path.lower().endswith(".txt")]
    of_masks = [f"images/{basename(path)}" for path in images if _lies_in(_MASK_FOLDER, path)]
    known = _FileSubset(files, [*others, *images, *of_masks])
    return bool(
        suggest_layout(known) or _detect_text_labels(_FileSubset(files, [*others, *beside_texts]), others)
    )


class _FileSubset:
    """View of some of a folder's files."""

    def __init__(self, files: _Files, paths: Iterable[str]) -> None:
        self.head = files.head
        self._sizes = dict.fromkeys(sorted(paths), 0)

    def sizes(self) -> Mapping[str, int]:
        return self._sizes


def layout_hint(files: SourceFiles, own: str, named: str | None = None) -> str:
    """Return text to add to a message that a folder contains nothing of the layout `own`; "" if nothing is known.

    Args:
        own: layout that the user chose.
        named: annotation file that the user named, if any; no other file is examined.
    """
    found = list(find_hints(files, named))
    if any(one.layouts == (own,) for one in found):
        return ""
    if others := [one for one in found if own not in one.layouts]:
        return f"; {others[0]}"
    if own != "voc" and (
        unknown := describe_annotations(files, named)
    ):  # it lists each XML file with its fault
        return f"; {unknown}"
    if named is None and own != "folders" and _holds_several_classes(files) and not _share_names(files):
        return "; its images lie in several folders: for a class each, take --layout folders"
    return ""


def describe_annotations(files: _Files, named: str | None = None) -> Hint | None:
    """Return the content of a file of no known format that names pictures of the source; None without such a file.

    Args:
        named: annotation file that the user named, if any; no other file is examined.
    """
    pictures = {name for path in _images(files) for name in (basename(path), splitext(basename(path))[0])}
    paths = [named] if named is not None else [path for path in files.sizes() if not is_image_name(path)]
    for path, text in read_heads(files, paths, ".json", ".ndjson", ".jsonl", ".geojson"):
        keys = json_keys(text)
        top = dict.fromkeys(key for key in _JSON_KEY.findall(text) if {key, f"[].{key}"} & keys)
        strings = {basename(one) for one in _JSON_STRING.findall(text)}
        if named is None and pictures.isdisjoint(strings) and splitext(basename(path))[0] not in pictures:
            continue
        tool, fix = next((found for key, *found in _OTHER_TOOLS if key in keys), ("JSON", _OTHER_TABLE))
        if top:
            return Hint(what=f"{path} is {tool} with the keys {shorten_list(list(top)[:12])}", fix=fix)
    for path, text in read_heads(files, paths, ".csv", ".tsv"):
        if found := _describe_table(path, text, pictures):
            return found
    for path, text in read_heads(files, paths, ".txt", ".xml"):
        if (splitext(basename(path))[0] in pictures or path.endswith(".txt")) and (
            found := _describe_text(path, text)
        ):
            return found
    packed = (path for path in paths if splitext(path)[1].lower() in UNPACK_COMMANDS)
    path = next((path for path in packed if splitext(path)[0].lower().endswith(_TABLE_EXTENSIONS)), "")
    command = UNPACK_COMMANDS.get(splitext(path)[1].lower(), "")
    return Hint(what=f"{path} is a compressed file", fix=_unpack(command, path)) if path else None


def _describe_table(path: str, text: str, pictures: Collection[str]) -> Hint | None:
    """Return which column of a table names pictures, if its header does not say so."""
    lines = [line for line in text.splitlines()[:_MAX_ROWS] if line.strip()]
    mark = max("\t,;|", key=lines[0].count) if lines else ","
    header, *rows = [[cell.strip(" \"'") for cell in line.split(mark)] for line in lines] or [[]]
    for number, column in enumerate(header):
        cells = [basename(row[number].replace("\\", "/")) for row in rows if len(row) > number]
        if cells and all(cell in pictures for cell in cells):
            fix = (
                "rename it to filename, and that of the classes to class; corners of boxes in pixels are xmin, ymin, "
                "xmax, ymax; then take --layout csv"
            )
            return Hint(what=f"{path} is a table whose column {column!r} names pictures", fix=fix)
    return None


def _describe_text(path: str, text: str) -> Hint | None:
    """Return what a text file beside a picture has: rows of numbers, or XML."""
    if path.lower().endswith(".xml"):
        root = re.search(r"<([A-Za-z][\w:.-]*)[\s>]", text)
        return Hint(what=f"{path} is XML with the root {root[1]}", fix=_OTHER_TABLE) if root else None
    rows = [re.split(r"[\s,;]+", line.strip(" ,;")) for line in text.splitlines()[:_MAX_ROWS] if line.strip()]
    counts = {len(row) for row in rows}
    numbers = [row for row in rows if sum(map(_is_number, row)) >= _LEAST_NUMBERS]
    if not rows or len(counts) > 1 or len(numbers) < len(rows):
        return None
    return Hint(
        what=f"{path} has rows of {counts.pop()} values, such as {' '.join(rows[0][:12])}", fix=_OTHER_TABLE
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def add_hint(error: AnnotationsError, files: SourceFiles, own: str, named: str | None) -> AnnotationsError:
    """Return the error of a layout, with the format of the files if a tool wrote them, or if no layout reads them."""
    found = list(find_hints(files, named))
    if not found or found[0].what in str(error) or any(own in one.layouts for one in found):
        return error
    if found[0].layouts and not _TOOL_LAYOUTS.issuperset(found[0].layouts):
        return error
    return AnnotationsError(f"{error}; {found[0]}")


def _images(files: _Files) -> Iterator[str]:
    return filter(is_image_name, files.sizes())


def _holds_several_classes(files: _Files) -> bool:
    """Return whether images are in more than one folder, so that folders can be classes."""
    folders = (path.rpartition("/")[0] for path in _images(files))
    first = next(folders, None)
    return any(folder != first for folder in folders)


def _share_names(files: _Files) -> bool:
    """Return whether most image names occur in several folders, as with masks or views."""
    stems = Counter(splitext(basename(path))[0] for path in _images(files))
    return 2 * sum(count > 1 for count in stems.values()) >= len(stems)


def read_heads(files: _Files, paths: Iterable[str], *extensions: str) -> Iterator[tuple[str, str]]:
    """Yield (path, first bytes as text) of a few files with one of these extensions, the topmost first."""
    chosen = sorted((path for path in paths if path.lower().endswith(extensions)), key=lambda p: p.count("/"))
    for path in islice(chosen, _MAX_OPENED):
        try:
            yield path, files.head(path, _HEAD_BYTES).decode("utf-8", "replace")
        except SourceError:
            continue


def _detect_dataset_json(files: _Files, paths: Sequence[str]) -> Hint | None:
    for path, text in read_heads(
        files, [path for path in paths if basename(path) == "dataset.json"], ".json"
    ):
        try:
            keys = set(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            keys = set(re.findall(r'"(channel_names|modality|training)"\s*:', text))
        if "channel_names" in keys:
            return _hint(f"{path} is nnU-Net's", "nnunet")
        if keys & {"modality", "training"} and any(_FIRST_CHANNEL.search(one) for one in files.sizes()):
            return _hint(f"{path} is that of nnU-Net's version 1", "nnunet")
        if keys & {"modality", "training"}:
            return _hint(f"{path} is that of the Medical Segmentation Decathlon", "msd")
    return None


def _detect_marks(files: _Files, paths: Sequence[str], extension: str) -> Hint | None:
    for path, text in read_heads(files, paths, extension):
        for what, layout, marks in _MARKS[extension]:
            if all(re.search(mark, text, re.DOTALL) for mark in marks):
                return _hint(f"{path} is {what}", layout)
    return None


def _detect_coco(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect JSON whose lists are COCO's: images with file names, or annotations with the ids of images."""
    for path, text in read_heads(files, paths, ".json"):
        if _COCO_KEYS & json_keys(text):
            return _hint(f"{path} is COCO's", "coco")
    return None


def json_keys(text: str) -> set[str]:
    """Return the paths of the keys in the beginning of a JSON document, such as "images[].id", three levels deep.

    >>> sorted(json_keys('{"images": [{"id": 1}, {"id": 2}], "a": {"b": {"c": {"d'))
    ['a', 'a.b', 'a.b.c', 'images', 'images[].id']
    """
    found: set[str] = set()
    frames: list[tuple[str, str]] = []  # the kind of each open list or object, and the path of what it holds
    path = ""
    for token in _JSON_TOKEN.finditer(text):
        mark, name, colon = token[0], token[1], token[2]
        kind, above = frames[-1] if frames else ("", "")
        if mark == "{":
            frames.append(("{", path))
        elif mark == "[":
            path = f"{path}[]"
            frames.append(("[", path))
        elif mark in ("}", "]"):
            frames = frames[:-1]
        elif mark == ",":
            path = above if kind == "[" else ""
        elif colon and kind == "{":
            path = f"{above}.{name}".removeprefix(".")
            if len(frames) <= _JSON_LEVELS:
                found.add(path)
    return found


def _detect_text_labels(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect text files with the stems of images and one object per line."""
    texts = {path: splitext(basename(path))[0] for path in paths if path.lower().endswith(".txt")}
    named = set(texts.values())
    stems = named.intersection(splitext(basename(path))[0] for path in _images(files)) if named else ()
    beside = [path for path, stem in texts.items() if stem in stems]
    for path, text in read_heads(files, beside, ".txt"):
        lines = [
            line for line in text.splitlines() if line.strip() and not line.startswith(("imagesource", "gsd"))
        ]
        for kind, (layout, form) in _TEXT_LABELS.items():
            if lines and all(form.fullmatch(line) for line in lines[:5]):
                return _hint(f"{path} is {kind}", layout)
    return None


def _detect_yolo_yaml(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect data.yaml with the classes and the folders of YOLO, also where the labels are elsewhere or missing."""
    named = [path for path in paths if basename(path).lower() in ("data.yaml", "dataset.yaml")]
    for path, text in read_heads(files, named, ".yaml"):
        if _YAML_NAMES.search(text) and _YAML_FOLDERS.search(text):
            return _hint(f"{path} is YOLO's", "yolo")
    return None


def _detect_wider_face(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect text files with an image path, a count, and as many boxes."""
    for path, text in read_heads(files, [path for path in paths if "bbx" in basename(path)], ".txt"):
        lines = [line.strip() for line in text.splitlines()[:2]]
        if len(lines) == 2 and is_image_name(lines[0]) and lines[1].isdigit():
            return _hint(f"{path} is WIDER FACE's", "wider")
    return None


def _detect_foreign_table(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect tables of boxes or classes without the columns filename and class."""
    for path, text in read_heads(files, paths, ".csv", ".jsonl"):
        lines = [line for line in text.splitlines() if line.strip()][:2]
        cells = [cell.strip().strip('"').lower() for cell in lines[0].split(",")] if lines else []
        if len(cells) > 1 and cells[0] in GOOGLE_SETS and (cells[1].startswith("gs://") or len(cells) == 11):
            return _hint(f"{path} is that of Google's AutoML, without a header", "csv")
        if lines and '"imageGcsUri"' in lines[0]:
            return _hint(f"{path} is Vertex AI's", "jsonl")
        if "region_shape_attributes" in cells:
            return _hint(f"{path} is VIA's (VGG Image Annotator)", "via")
        if set(cells) == WHEAT_COLUMNS:
            return _hint(f"{path} is that of Kaggle's wheat", "csv")
        if "image_id" in cells and "bbox" in cells and "class" not in cells:
            what = f"{path} is a table of image_id and bbox without classes"
            fix = "add a column class to it, then take --layout csv and --box-form corner-size"
            return Hint(what=what, layouts=("csv",), fix=fix)
        if len(lines) == 2 and len(cells) > 1 and cells[0] == "filename":
            marks = [cell.strip() for cell in lines[1].split(",")][1:]
            if len(marks) == len(cells) - 1 and set(marks) <= {"0", "1"} and "class" not in cells:
                return _hint(f"{path} is a table with a column of 0 and 1 for each class", "csv")
    return None


def _detect_dicom(files: _Files, paths: Sequence[str]) -> Hint | None:
    named = [path for path in paths if path.lower().endswith(DICOM_EXTENSIONS)]
    # Names may end in a UID, whose last part is a number.
    unnamed = [path for path in paths if re.search(r"(^|/)[^./]+$|\.(\d+|img)$", path, re.IGNORECASE)]
    for path in islice((*named[:2], *unnamed), _MAX_OPENED):
        try:
            if files.head(path, 132)[128:] == b"DICM":
                return hint_of_dicom(files, path)
        except SourceError:
            continue
    return None


def hint_of_dicom(files: _Files, path: str) -> Hint:
    """Return the hint for a DICOM file: the layout dicom reads series, and single pictures are to be saved as PNG."""
    from halofeed.prep.formats.dicom.header_fields import is_single_picture  # takes 0.1 s
    from halofeed.prep.formats.dicom.kinds import SINGLE_PICTURE_ADVICE

    if is_single_picture(files.head(path, _HEAD_BYTES)):
        return Hint(
            what=f"{path} is a DICOM picture, no slice", layouts=("dicom",), fix=SINGLE_PICTURE_ADVICE
        )
    return _hint(f"{path} is DICOM", "dicom", more=_STATIC_SHAPE)


def _detect_bids(files: _Files, paths: Sequence[str]) -> Hint | None:
    named = next((path for path in paths if _BIDS_IMAGE.fullmatch(path)), None)
    return None if named is None else _hint(f"{named} is named as in BIDS", "bids", _STATIC_SHAPE)


def _detect_volume(files: _Files, paths: Sequence[str]) -> Hint | None:
    volume = next((path for path in paths if path.lower().endswith(VOLUME_FILE_EXTENSIONS)), None)
    if volume is None or any(_images(files)):
        return None
    return Hint(
        what=f"{volume} is a volume",
        layouts=("pairs", "class-masks", "lits", "msd", "nnunet"),
        fix="take --layout pairs, class-masks, lits, msd or nnunet, with --depth, --height and --width",
    )


def _detect_pointer(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect annotation files that were not downloaded."""
    for path, text in read_heads(files, paths, ".json", ".xml", ".csv", ".jsonl", ".txt", ".yaml"):
        if pointer := pointer_kind(text.encode()):
            what, _, fix = pointer.partition("; ")
            return Hint(what=f"{path} is {what}", fix=fix)
    return None


def _detect_array(files: _Files, paths: Sequence[str]) -> Hint | None:
    for path in paths:
        if path.lower().endswith(ARRAY_EXTENSIONS):
            what = f"{path} is a NumPy array, without a voxel size"
            return Hint(what=what, layouts=("csv", "jsonl"), fix=f"{ARRAY_ADVICE}; of pictures, {_SAVE}")
    return None


def _detect_packed_file(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect a volume or picture that is compressed as a whole; gzip of NIfTI is read as it is."""
    for path in paths:
        stem, extension = splitext(path)
        command = UNPACK_COMMANDS.get(extension.lower())
        if command and extension_of(stem) and not extension_of(path):
            return Hint(what=f"{path} is a compressed file", fix=_unpack(command, path))
    return None


def _unpack(command: str, path: str) -> str:
    return f"unpack it, and others like it, with {command} {shlex.quote(path)}"


def _detect_foreign_files(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect files that are no pictures, volumes or tables, where there are none of these."""
    if any(extension_of(path) for path in files.sizes()):
        return None
    for path in paths:
        name = basename(path).lower()
        command = UNPACK_COMMANDS.get(splitext(name)[1])
        if command and not splitext(name)[0].endswith(".tar"):
            return Hint(what=f"{path} is a compressed file", fix=_unpack(command, path))
        for what, fix, form in _FOREIGN_FILES:
            if form.fullmatch(name):
                return Hint(what=f"{path} is {what}", fix=fix)
    return None


def _lies_in(folders: re.Pattern[str], path: str) -> bool:
    return any(folders.fullmatch(folder) for folder in path.split("/")[:-1])


def _detect_masks(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect images/a.jpg with masks/a.png: a label image per image."""
    by_kind: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for path in _images(files):
        if _lies_in(_OBJECT_FOLDER, path):  # VOC's, beside SegmentationClass
            continue
        is_mask = _lies_in(_MASK_FOLDER, path)
        if not is_mask and not _lies_in(_IMAGE_FOLDER, path):
            return None
        stem = splitext(basename(path))[0]
        by_kind[is_mask].setdefault(_MASK_SUFFIX.sub("", stem) if is_mask else stem, path)
    shared = next((stem for stem in by_kind[False] if stem in by_kind[True]), None)
    if shared is None or f"{by_kind[True][shared].rpartition('/')[0]}.json" in paths:  # COCO's panoptic
        return None
    return _hint(f"{by_kind[True][shared]} is the mask of {by_kind[False][shared]} by its name", "pairs")


def _detect_table(files: _Files, paths: Sequence[str]) -> Hint | None:
    near = [path for path in paths if "/" not in path]
    metadata = [path for path in paths if basename(path) in METADATA_NAMES]
    for path, text in read_heads(files, metadata, ".jsonl", ".csv", ".parquet"):
        words = set(re.findall(r"\w+", next(iter(text.splitlines()), "")))
        named = "file_name" in words and words & {"label", "class", "category", "objects"}
        if named or path.endswith(".parquet"):
            layout = "csv" if path.endswith(".csv") else "jsonl"
            return _hint(f"{path} is metadata of Hugging Face", layout)
    for layout, extensions in (("csv", (".csv", ".tsv")), ("jsonl", (".jsonl", ".ndjson"))):
        for path, text in read_heads(files, near, *extensions):
            first = next((line for line in text.splitlines() if line.strip()), "")
            words = {word.lower() for word in re.findall(r"[\w-]+", first)}
            boxed = {"xmin", "ymin", "xmax", "ymax"} <= words
            if "filename" in words and (boxed or ("class" in words and not _holds_several_classes(files))):
                return _hint(f"{path} is a table of {'boxes' if boxed else 'classes'}", layout)
    return None


def _detect_container(files: _Files, paths: Sequence[str]) -> Hint | None:
    """Detect files that hold pictures: tar files, TFRecord files and Parquet files."""
    if any(_images(files)):
        return None
    for path in paths:
        if (kind := container_kind(path)) and basename(path) not in METADATA_NAMES:
            what, layout = _CONTAINERS[kind]
            return _hint(f"{path} is {what}", layout)
    return None


# Each takes the files and the paths of all files except images, which are numerous.
_DETECTORS: tuple[Callable[[_Files, Sequence[str]], Hint | None], ...] = (
    _detect_dataset_json,
    partial(_detect_marks, extension=".json"),
    _detect_coco,
    partial(_detect_marks, extension=".xml"),
    _detect_text_labels,
    _detect_yolo_yaml,
    _detect_wider_face,
    _detect_dicom,
    _detect_bids,
    _detect_volume,
    _detect_array,
    _detect_masks,
    _detect_table,
    _detect_container,
    _detect_packed_file,
    _detect_foreign_files,
    _detect_foreign_table,
    _detect_pointer,
)
