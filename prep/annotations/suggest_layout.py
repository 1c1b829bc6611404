"""Detection of the layout of a folder from its files, for hints in error messages."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from posixpath import basename, splitext

from halofeed.prep.annotations.box_lists import is_list_of_boxes
from halofeed.prep.annotations.columns import (
    CORNERS,
    FILE_NAMES,
    LABEL_NAMES,
    SPELLINGS,
    has_columns,
    normalize_name,
)
from halofeed.prep.annotations.contract import is_split_name
from halofeed.prep.annotations.dicom_evidence import PICTURE, find_dicom, hint_of_dicom, images_of
from halofeed.prep.annotations.flagged_boxes import may_hold_flagged_boxes
from halofeed.prep.annotations.layout_hints import (
    Hint,
    ListedFiles,
    hint_of_layout,
    is_datalist,
    json_keys,
    name_stem,
    read_heads,
    unpack_advice,
)
from halofeed.prep.annotations.object_folders import find_masks, holds_masks
from halofeed.prep.annotations.run_length_columns import holds_run_lengths
from halofeed.prep.annotations.scan_box_columns import (
    find_box_form,
    find_scan_column,
    is_luna16,
    listed_boxes_form,
)
from halofeed.prep.annotations.sequence_hints import detect_sequences
from halofeed.prep.annotations.table_forms import GOOGLE_SETS, METADATA_NAMES, WHEAT_COLUMNS
from halofeed.prep.annotations.unknown_annotations import describe_annotations
from halofeed.prep.formats.volume.reading_options import ARRAY_ADVICE
from halofeed.prep.sources.containers import UNPACK_COMMANDS, container_kind, unpack_command
from halofeed.prep.sources.file_names import (
    ARRAY_EXTENSIONS,
    VOLUME_FILE_EXTENSIONS,
    extension_of,
    is_image_name,
    is_still_name,
)
from halofeed.prep.sources.files import SourceFiles, pointer_kind
from halofeed.system.errors import AnnotationsError

_NUMBER = r"\s+[-+.\deE]+"
_TEXT_LABELS = {
    "a YOLO label": (
        "yolo",
        re.compile(rf"(?=.*\.)\s*\d+({_NUMBER}){{4,}}\s*"),
    ),  # a grid of classes has no shares
    "a KITTI label": ("kitti", re.compile(rf"\s*[A-Za-z_]+({_NUMBER}){{14,15}}\s*")),
    "a VisDrone label": ("visdrone", re.compile(r"\s*-?\d+(\s*,\s*-?\d+){7}\s*,?\s*")),
    "a DOTA label": ("dota", re.compile(rf"\s*[-+.\deE]+({_NUMBER}){{7}}\s+(\S+\s+[0-2]|[A-Za-z]\S*)\s*")),
}
"""Layout that reads a text file that accompanies an image, None if there is none, and the form of each line."""
_DOTA_HEADER = ("acquisition dates:", "imagesource:", "gsd:")
"""Beginnings of the lines about the picture in DOTA's files."""
_COCO_KEYS = frozenset(
    ("images[].file_name", "images[].coco_url", "annotations[].image_id", "annotations[].segments_info")
)
"""Keys of which each shows COCO; "images" or "annotations" alone are in the files of other tools too."""
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
        # Exports of halofeed describe files that another layout reads as they are.
        (
            "Croissant",
            "croissant",
            (r'"(dct:)?conformsTo"\s*:[^}]*mlcommons\.org/croissant/', "^(?!.*written by halofeed)"),
        ),
        ("BDD100K's, or Scalabel's", "bdd100k", (r'"(box2d|poly2d)"\s*:',)),
        ("SageMaker's", "sagemaker", ('"class_id"', '"image_size"', '"left"')),
        ("Datumaro's", "datumaro", (r'"dm_format_version"\s*:|"categories"\s*:.*"items"\s*:\s*\[',)),
        ("FiftyOne's", "fiftyone", (r'"samples"\s*:\s*\[', r'"filepath"\s*:')),
        ("FiftyOne's", "fiftyone", (r'^\s*\{\s*"classes"\s*:\s*(\[|null)', r'"labels"\s*:\s*\{')),
        ("Cityscapes'", "cityscapes", ('"imgHeight"', '"imgWidth"', '"objects"')),
        ("COCO's, panoptic", "coco", (r'"segments_info"\s*:',)),
        ("GeoJSON", "geojson", (r'"type"\s*:\s*"Feature(Collection)?"', '"(geometry|features)"')),
    ),
    **dict.fromkeys(
        (".jsonl", ".ndjson", ".manifest"),
        (
            ("a manifest of SageMaker", "sagemaker", ('"source-ref"',)),
            (
                "NDJSON of Ultralytics",
                "yolo-ndjson",
                (r'^[^\n]*"type"\s*:\s*"(dataset|image)"', r'"type"\s*:\s*"image"', r'"file"\s*:'),
            ),
        ),
    ),
    ".odgt": (("CrowdHuman's", "crowdhuman", ('"gtboxes"',)),),
    ".geojson": (("GeoJSON", "geojson", ('"(features|geometry)"',)),),
    ".txt": (("PASCAL's text of version 1.00", "pascal-text", (r"^#.*PASCAL Annotation Version 1\.",)),),
    ".xml": (
        ("of LIDC-IDRI's readers", "lidc", (r"<LidcReadMessage[\s>]",)),
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
            r".*\.(jp2|j2k|svg|psd|xcf|tga|exr|hdr|ico|eps)",
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
_VECTOR_FILE = re.compile(r".*\.(gpkg|shp|kml|kmz|gml|fgb)")
"""Outlines of a geographic information system in other formats than GeoJSON."""
_FOREIGN_BYTES = {
    b"PK\x03\x04": "it is a ZIP file, such as a workbook: save the table as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "it is a workbook: save the table as CSV in UTF-8",
    b"PAR1": "it is Parquet: give its name the ending .parquet",
    b"\x89PNG": "it is a picture: name the table",
    b"\xff\xd8\xff": "it is a picture: name the table",
}
"""First bytes of files that are no tables, and what to do about each."""
_STATIC_SHAPE = " with --depth, --height and --width"
_MASK_FOLDER = re.compile(
    r"(labels?|masks?|segmentations?|segs?|annotations?|SegmentationClass)(tr|ts)?", re.IGNORECASE
)
_MASK_SUFFIX = re.compile(r"[-_.](d?seg|segmentation|masks?|labels?|gt|groundtruth)$", re.IGNORECASE)
_OBJECT_FOLDER = re.compile("SegmentationObject")
_INSTANCES = re.compile(r"(?:^|/)labelsTr/[^/]+\.json$")
_FIRST_CHANNEL = re.compile(r"(?:^|/)imagesTr/[^/]+_0000\.nii\.gz$")
_DATALIST_MARKS = re.compile(r'"fold"\s*:\s*\d|"image"\s*:\s*\[')
_BIDS_IMAGE = re.compile(
    r"(?:(?!derivatives/)[^/]+/)*(sub-[A-Za-z0-9+]+)/(?:ses-[^/]+/)?anat/\1_[^/]*[A-Za-z0-9]\.nii(?:\.gz)?"
)
_CONTAINERS = {
    "tar": ("a tar file, as WebDataset has them", "webdataset"),
    "parquet": ("a Parquet file, as Hugging Face publishes pictures", "jsonl"),
    "tfrecord": ("a TFRecord file", "tfrecord"),
    "array_record": ("an ArrayRecord file, as TFDS and Grain write them", "tfrecord"),
}
"""Description of each kind of container file, and the layout that reads it."""
_MARKS_OF_CLASSES = frozenset(("", "0", "0.0", "1", "1.0", "-1", "-1.0", "true", "false"))
"""Cells of columns that are a class each, see `class_marks`."""
_LABEL_IDS = ("_labelIds.png", "_labelTrainIds.png", "_instanceIds.png")
"""Ends of the names of label images that the scripts of Cityscapes draw."""
_IMAGE_FOLDER = re.compile(r"((?:JPEG)?images?|imgs?)(tr|ts)?", re.IGNORECASE)


def suggest_layout(files: ListedFiles) -> Hint | None:
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
    # Excel's "Unicode text" is UTF-16 with a byte order mark.
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        stem, extension = splitext(path)
        words = ["iconv", "-f", "UTF-16", "-t", "UTF-8", path, "-o", f"{stem}_utf8{extension}"]
        return f"it is UTF-16: save it as UTF-8, with {shlex.join(words)}"
    return "save it as UTF-8"


def find_hints(files: ListedFiles, named: str | None = None) -> Iterator[Hint]:
    """Yield a hint of each kind that the files show, or that the annotation file `named` alone shows."""
    # The user's file is the question; others may belong to another set.
    if named is not None:
        files = _FileSubset(files, [named])  # the folder may contain any number of other files
    others = [path for path in files.sizes() if not is_still_name(path)]
    return filter(None, (detect(files, others) for detect in _DETECTORS))


def may_suggest_layout(files: SourceFiles, others: Iterable[str], images: Iterable[str]) -> bool:
    """Return whether `suggest_layout` could find another layout, judged by one image per folder.

    A True result may be a false alarm; a False result is certain.

    Args:
        others: paths of all files except images.
        images: path of one image per folder.
    """
    others, images = list(others), list(images)
    # A text or mask represents its image, which may be any of the images that are not listed here.
    beside_texts = [f"{splitext(path)[0]}.jpg" for path in others if path.lower().endswith(".txt")]
    of_masks = [f"images/{basename(path)}" for path in images if _lies_in(_MASK_FOLDER, path)]
    known = _FileSubset(files, [*others, *images, *of_masks])
    return bool(
        suggest_layout(known) or _detect_text_labels(_FileSubset(files, [*others, *beside_texts]), others)
    )


class _FileSubset:
    """View of some of a folder's files."""

    def __init__(self, files: ListedFiles, paths: Iterable[str]) -> None:
        self.head = files.head
        self._sizes = dict.fromkeys(sorted(paths), 0)

    def sizes(self) -> Mapping[str, int]:
        return self._sizes


def layout_hint(
    files: SourceFiles, own: str, named: str | None = None, *, may_be_classes: bool = True
) -> str:
    """Return text to add to a message that a folder contains nothing of the layout `own`; "" if nothing is known.

    Args:
        own: layout that the user chose.
        named: annotation file that the user named, if any; no other file is examined.
        may_be_classes: whether several folders of images can be classes.
    """
    found = list(find_hints(files, named))
    # The layout is right, and its reader reports what is wrong.
    if any(one.layouts == (own,) for one in found):
        return ""
    # The files show one layout, and the user named another.
    if others := [one for one in found if own not in one.layouts or one.is_certain]:
        return f"; {others[0]}"
    # VOC lists each XML file with its fault.
    unknown = None if own == "voc" else describe_annotations(files, named)
    if unknown is not None:
        return f"; {unknown}"
    if may_be_classes and named is None and own != "folders" and _may_be_class_folders(files):
        return "; its images lie in several folders: for a class each, take --layout folders"
    return ""


def _may_be_class_folders(files: ListedFiles) -> bool:
    """Return whether images are in several folders that do not share their names, as images and masks do."""
    return _holds_several_classes(files) and not _share_names(files)


def add_hint(
    error: AnnotationsError, files: SourceFiles, own: str, named: str | None, with_own_files: Collection[str]
) -> AnnotationsError:
    """Return the error of a layout, with the format of the files if a tool wrote them, or if no layout reads them.

    Args:
        error: error of the layout.
        files: files of the annotations.
        own: layout that the user chose.
        named: annotation file that the user named, if any.
        with_own_files: layouts with `Layout.has_own_files`.
    """
    found = list(find_hints(files, named))
    if not found or found[0].what in str(error) or any(own in one.layouts for one in found):
        return error
    # A table or a folder of masks can belong to any layout, so it does not contradict the user's choice.
    if found[0].layouts and not all(one in with_own_files for one in found[0].layouts):
        return error
    return AnnotationsError(f"{error}; {found[0]}")


def _images(files: ListedFiles) -> Iterator[str]:
    return iter(images_of(files))


def _holds_several_classes(files: ListedFiles) -> bool:
    """Return whether images are in more than one of the topmost folders, or of those below splits."""
    folders = (path.split("/")[:-1] for path in _images(files))
    names = (next((name for name in above if not is_split_name(name)), "") for above in folders)
    first = next(names, "")
    return bool(first) and any(name not in ("", first) for name in names)


def _share_names(files: ListedFiles) -> bool:
    """Return whether most image names occur in several folders, as with masks or views."""
    stems = Counter(map(name_stem, _images(files)))
    return 2 * sum(count > 1 for count in stems.values()) >= len(stems)


def _detect_dataset_json(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect dataset.json of nnU-Net and of the Medical Segmentation Decathlon, whose keys nnU-Net 1 shares."""
    named = [path for path in paths if basename(path) == "dataset.json"]
    for path, text in read_heads(files, named, ".json"):
        keys = _keys_of_dataset_json(text)
        # nnU-Net version 2 renamed `modality` to `channel_names`.
        if "channel_names" in keys:
            return hint_of_layout(f"{path} is nnU-Net's", "nnunet")
        # nnU-Net numbers the channel files of an image, the Decathlon has one file with all channels.
        if keys & {"modality", "training"} and any(_FIRST_CHANNEL.search(one) for one in files.sizes()):
            return hint_of_layout(f"{path} is that of nnU-Net's version 1", "nnunet")
        # Datalists of MONAI have the Decathlon's keys, and folds or lists of channels besides.
        if keys & {"modality", "training"} and not _DATALIST_MARKS.search(text):
            return hint_of_layout(f"{path} is a file of the Medical Segmentation Decathlon", "msd")
    return None


def _detect_datalist(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect a datalist of MONAI, JSON of any name; dataset.json of the Decathlon and nnU-Net 1 has such lists too."""
    known = _detect_dataset_json(files, paths)
    for path, text in read_heads(files, paths, ".json"):
        if is_datalist(text) and (known is None or basename(path) != "dataset.json"):
            return hint_of_layout(f"{path} is a datalist of MONAI", "monai")
    return None


def _keys_of_dataset_json(text: str) -> set[str]:
    try:
        return set(json.loads(text))
    except (ValueError, TypeError, RecursionError):  # a list of many files is longer than the beginning
        return set(re.findall(r'"(channel_names|modality|training)"\s*:', text))


def _detect_marks(files: ListedFiles, paths: Sequence[str], extension: str) -> Hint | None:
    for path, text in read_heads(files, paths, extension):
        for what, layout, marks in _MARKS[extension]:
            # Keys of other tools may appear in comments and texts, so each tool has specific marks.
            if all(re.search(mark, text, re.DOTALL) for mark in marks):
                return hint_of_layout(f"{path} is {what}", layout)
    return None


def _detect_coco(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect JSON whose lists are COCO's: images with file names, or annotations with the ids of images."""
    for path, text in read_heads(files, paths, ".json"):
        if _COCO_KEYS & json_keys(text):
            return hint_of_layout(f"{path} is COCO's", "coco")
    return None


def _detect_text_labels(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect text files with the stems of images and one object per line."""
    texts = {path: name_stem(path) for path in paths if path.lower().endswith(".txt")}
    if not texts:  # a folder may have millions of images
        return None
    stems = set(texts.values()).intersection(map(name_stem, _images(files)))
    beside = [path for path, stem in texts.items() if stem in stems]
    for path, text in read_heads(files, beside, ".txt"):
        if (found := _text_label(text)) is not None:
            kind, layout = found
            return hint_of_layout(f"{path} is {kind}", layout)
    return None


def _text_label(text: str) -> tuple[str, str | None] | None:
    """Return the kind of a text file of labels by the form of its first lines, and the layout that reads it."""
    # DOTA's files begin with lines about the picture, which are all of the file of one without objects.
    written = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in written if not line.startswith(_DOTA_HEADER)]
    if written and not lines:
        return "a DOTA label", "dota"
    for kind, (layout, form) in _TEXT_LABELS.items():
        # Five lines: a file may have thousands.
        if lines and all(form.fullmatch(line) for line in lines[:5]):
            return kind, layout
    return None


def _detect_yolo_yaml(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect data.yaml with the classes and the folders of YOLO, also where the labels are elsewhere or missing."""
    named = [path for path in paths if basename(path).lower() in ("data.yaml", "dataset.yaml")]
    for path, text in read_heads(files, named, ".yaml"):
        # data.yaml is a usual name; Ultralytics' has names and folders.
        if _YAML_NAMES.search(text) and _YAML_FOLDERS.search(text):
            return hint_of_layout(f"{path} is YOLO's", "yolo")
    return None


def _detect_wider_face(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect text files with an image path, a count, and as many boxes."""
    for path, text in read_heads(files, [path for path in paths if "bbx" in basename(path)], ".txt"):
        lines = [line.strip() for line in text.splitlines()[:2]]
        # A path, and the number of boxes that follow.
        if len(lines) == 2 and is_image_name(lines[0]) and lines[1].isdigit():
            return hint_of_layout(f"{path} is WIDER FACE's", "wider")
    return None


def _detect_box_lists(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect text files with an image path and its boxes in each line."""
    for path, text in read_heads(files, paths, ".txt"):
        # The last line may be cut off.
        if is_list_of_boxes(text):
            return hint_of_layout(f"{path} is a list of keras-yolo3", "keras-yolo")
    return None


@dataclass(frozen=True, kw_only=True)
class _TableHead:
    """First lines of a table.

    Args:
        line: the first line.
        columns: its cells, in lower case.
        second: cells of the second line; () without one.
    """

    line: str
    columns: Sequence[str]
    second: Sequence[str]

    @classmethod
    def of(cls, text: str) -> _TableHead | None:
        """Return the head of a table; None if it is empty."""
        lines = [line for line in text.splitlines() if line.strip()][:2]
        if not lines:
            return None
        columns = [cell.strip().strip('"').lower() for cell in lines[0].split(",")]
        second = [cell.strip().lower() for line in lines[1:] for cell in line.split(",")]
        return cls(line=lines[0], columns=columns, second=second)

    @property
    def is_automl(self) -> bool:
        """Return whether it has a set, a path, and maybe a class and eight numbers, in place of a header."""
        is_boxed = len(self.columns) == 11
        starts = len(self.columns) > 1 and self.columns[0] in GOOGLE_SETS
        return starts and (is_boxed or self.columns[1].startswith("gs://"))

    @property
    def is_one_hot(self) -> bool:
        """Return whether columns of 0 and 1 follow the file's name, as in the files of Roboflow."""
        marks = self.second[1:]
        titles = {normalize_name(column) for column in self.columns}
        is_beside_name = (
            normalize_name(self.columns[0]) in FILE_NAMES and len(marks) == len(self.columns) - 1 > 1
        )
        # Nothing alone may be a column of masks, and one mark decides nothing about a table with a class.
        return (
            is_beside_name and _MARKS_OF_CLASSES.issuperset(marks) and any(marks) and not titles & LABEL_NAMES
        )

    @property
    def lacks_classes(self) -> bool:
        """Return whether it has boxes by the ids of images, and no class."""
        return {"image_id", "bbox"} <= set(self.columns) and "class" not in self.columns


def _detect_foreign_table(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect tables of boxes or classes without the columns filename and class."""
    for path, text in read_heads(files, paths, ".csv", ".jsonl"):
        head = _TableHead.of(text)
        if head is not None and (found := _foreign_table(path, head)):
            return found
    return None


def _foreign_table(path: str, head: _TableHead) -> Hint | None:
    if head.is_automl:
        return hint_of_layout(f"{path} is that of Google's AutoML, without a header", "csv")
    if '"imageGcsUri"' in head.line:
        return hint_of_layout(f"{path} is Vertex AI's", "jsonl")
    # A cell of VIA's CSV holds the shape as JSON.
    if "region_shape_attributes" in head.columns:
        return hint_of_layout(f"{path} is VIA's (VGG Image Annotator)", "via")
    if set(head.columns) == WHEAT_COLUMNS:
        return hint_of_layout(f"{path} is that of Kaggle's wheat", "csv")
    if may_hold_flagged_boxes(head.columns):
        return hint_of_layout(f"{path} is a table of boxes with a column of 0 and 1", "csv")
    # Without a class the boxes cannot be read; no guess of one is made.
    if head.lacks_classes:
        what = f"{path} is a table of image_id and bbox without classes"
        fix = "add a column class to it, then take --layout csv and --box-form corner-size"
        return Hint(what=what, layouts=("csv",), fix=fix)
    if head.is_one_hot:
        return hint_of_layout(f"{path} is a table with a column of 0 and 1 for each class", "csv")
    return None


def _detect_dicom(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect series and slides; single pictures are images like others, and show no layout."""
    found = find_dicom(files)
    return None if found is None or found[1] == PICTURE else hint_of_dicom(files, found[0])


def _detect_bids(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    named = next((path for path in paths if _BIDS_IMAGE.fullmatch(path)), None)
    return None if named is None else hint_of_layout(f"{named} is named as in BIDS", "bids", _STATIC_SHAPE)


def _detect_volume(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    volume = next((path for path in paths if path.lower().endswith(VOLUME_FILE_EXTENSIONS)), None)

    if volume is None or any(_images(files)):  # volumes and pictures together may be anything
        return None
    return Hint(
        what=f"{volume} is a volume",
        layouts=("pairs", "class-masks", "lits", "msd", "nnunet"),
        fix="take --layout pairs, class-masks, lits, msd or nnunet, with --depth, --height and --width",
    )


def _detect_pointer(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect annotation files that were not downloaded."""
    for path, text in read_heads(files, paths, ".json", ".xml", ".csv", ".jsonl", ".txt", ".yaml"):
        if pointer := pointer_kind(text.encode()):
            what, _, fix = pointer.partition("; ")
            return Hint(what=f"{path} is {what}", fix=fix)
    return None


def _detect_array(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    for path in paths:
        if path.lower().endswith(ARRAY_EXTENSIONS):
            return Hint(
                what=f"{path} is a NumPy array, without a voxel size",
                layouts=("pairs", "csv", "jsonl"),
                fix=f"{ARRAY_ADVICE}; of pictures, {_SAVE}",
                is_certain=True,
            )
    return None


def _detect_packed_file(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect a volume or picture that is compressed as a whole; gzip of NIfTI is read as it is."""
    for path in paths:
        stem, extension = splitext(path)
        command = UNPACK_COMMANDS.get(extension.lower())
        # gzip of a picture; .nii.gz counts as one extension.
        if command and extension_of(stem) and not extension_of(path):
            return Hint(what=f"{path} is a compressed file", fix=unpack_advice(command, path))
    return None


def _detect_foreign_files(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect files that are no pictures, volumes or tables, where there are none of these."""
    # Beside pictures or volumes, other files are what projects hold.
    if any(extension_of(path) for path in files.sizes()):
        return None
    for path in paths:
        name = basename(path).lower()
        command = UNPACK_COMMANDS.get(splitext(name)[1])
        # A packed tar file is an archive, which other words describe.
        if command and not splitext(name)[0].endswith(".tar"):
            return Hint(what=f"{path} is a compressed file", fix=unpack_advice(command, path))
        for what, fix, form in _FOREIGN_FILES:
            if form.fullmatch(name):
                return Hint(what=f"{path} is {what}", fix=fix)
    return None


def _detect_vector_file(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect GeoPackage, Shapefile and other files with outlines on the map, also beside pictures."""
    path = next((path for path in paths if _VECTOR_FILE.fullmatch(path.lower())), None)
    if path is None:
        return None
    # RFC 7946, section 4: GeoJSON has longitude and latitude.
    command = f"ogr2ogr -t_srs EPSG:4326 {shlex.quote(splitext(path)[0])}.geojson {shlex.quote(path)}"
    return Hint(
        what=f"{path} has outlines on the map", fix=f"convert it with {command}, and take --layout geojson"
    )


def _lies_in(folders: re.Pattern[str], path: str) -> bool:
    return any(folders.fullmatch(folder) for folder in path.split("/")[:-1])


def _detect_cityscapes(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect label images that are named as those of Cityscapes' scripts."""
    named = next((path for path in _images(files) if path.endswith(_LABEL_IDS)), None)
    return None if named is None else hint_of_layout(f"{named} is named as in Cityscapes", "cityscapes")


def _detect_object_masks(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect folders with a mask for each object beside their picture."""
    # Folders first: there may be millions of pictures.
    if not any(map(holds_masks, {path.rpartition("/")[0] for path in _images(files)})):
        return None
    masks = find_masks(_images(files)).masks
    # One mask for each picture may be a label image.
    first = next((path for path, found in masks.items() if len(found) > 1), None)
    if first is None or sum(map(len, masks.values())) <= len(masks):
        return None
    return hint_of_layout(
        f"{masks[first][0]} is a mask of an object of {first} by its folder", "object-masks"
    )


def _detect_nndetection(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect labelsTr/CASE.json with the classes of the objects that labelsTr/CASE.nii.gz numbers."""
    beside = [
        path for path in paths if _INSTANCES.search(path) and f"{splitext(path)[0]}.nii.gz" in files.sizes()
    ]
    for path, text in read_heads(files, beside, ".json"):
        if re.search(r'"instances"\s*:\s*\{', text):
            return hint_of_layout(f"{path} is nnDetection's", "nndetection", _STATIC_SHAPE)
    return None


def _detect_scan_boxes(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect tables of boxes along three axes, where no pictures are; LUNA16's in any folder."""
    # The volumes may be in another folder, but boxes beside pictures are of a camera's world.
    if any(_images(files)) and not any(path.lower().endswith(VOLUME_FILE_EXTENSIONS) for path in paths):
        return None
    for path, text in read_heads(files, paths, ".csv", ".tsv", ".jsonl", ".ndjson"):
        is_json = path.lower().endswith((".jsonl", ".ndjson"))
        header = [] if is_json else _header_of(text)
        if is_luna16(header):
            return hint_of_layout(f"{path} has the columns of LUNA16", "luna16", _STATIC_SHAPE)
        has_boxes = _has_scan_boxes(text) if is_json else find_box_form(header) and find_scan_column(header)
        if has_boxes and ("/" not in path or len(files.sizes()) == 1):
            return hint_of_layout(f"{path} is a table of boxes in volumes", "scan-boxes", _STATIC_SHAPE)
    return None


def _has_scan_boxes(text: str) -> bool:
    """Return whether one of the first lines of JSONL has a scan and a box along three axes, or objects with such boxes.

    The first scans may have no object.
    """
    for line in text.splitlines():
        # The last line of the head of a file may be a part of one.
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and find_scan_column([*row]):
                listed = listed_boxes_form([row])
                if find_box_form([*row]) or listed is not None:
                    return True
    return False


def _header_of(text: str) -> list[str]:
    """Return the cells of the first line of a table."""
    first = next((line for line in text.splitlines() if line.strip()), "").lstrip("\ufeff")
    delimiter = max(",;\t", key=first.count)
    return [cell.strip().strip('"') for cell in first.split(delimiter)]


def _detect_masks(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect images/a.jpg with masks/a.png: a label image per image."""
    by_kind: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for path in _images(files):
        if _lies_in(_OBJECT_FOLDER, path):  # VOC's, beside SegmentationClass
            continue
        is_mask = _lies_in(_MASK_FOLDER, path)
        # A folder of another name may be a class, a video or anything else.
        if not is_mask and not _lies_in(_IMAGE_FOLDER, path):
            return None
        stem = name_stem(path)
        by_kind[is_mask].setdefault(_MASK_SUFFIX.sub("", stem) if is_mask else stem, path)
    shared = next((stem for stem in by_kind[False] if stem in by_kind[True]), None)
    if shared is None or f"{by_kind[True][shared].rpartition('/')[0]}.json" in paths:  # COCO's panoptic
        return None
    return hint_of_layout(
        f"{by_kind[True][shared]} is the mask of {by_kind[False][shared]} by its name", "pairs"
    )


def _detect_table(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    return _detect_metadata(files, paths) or _detect_plain_table(files, paths)


def _detect_run_lengths(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect tables with a column of run lengths."""
    for path, text in read_heads(files, paths, ".csv", ".tsv"):
        if holds_run_lengths(text):
            return hint_of_layout(f"{path} is a table of run lengths", "run-lengths")
    return None


def _detect_metadata(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect the tables of Hugging Face image folders, in any folder."""
    metadata = [path for path in paths if basename(path) in METADATA_NAMES]
    for path, text in read_heads(files, metadata, ".jsonl", ".csv", ".parquet"):
        words = set(re.findall(r"\w+", next(iter(text.splitlines()), "")))
        named = "file_name" in words and words & {"label", "class", "category", "objects"}
        if named or path.endswith(".parquet"):  # a Parquet file has its schema at its end
            layout = "csv" if path.endswith(".csv") else "jsonl"
            return hint_of_layout(f"{path} is metadata of Hugging Face", layout)
    return None


def _detect_plain_table(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect tables with the columns filename and class, or with boxes, straight in the folder."""
    near = [path for path in paths if "/" not in path]
    for layout, extensions in (("csv", (".csv", ".tsv")), ("jsonl", (".jsonl", ".ndjson"))):
        for path, text in read_heads(files, near, *extensions):
            if content := _content_of_table(files, text):
                return hint_of_layout(f"{path} is a table of {content}", layout)
    return None


def _content_of_table(files: ListedFiles, text: str) -> str:
    """Return what a table of this beginning says of pictures: "boxes" or "classes"; "" for another table."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    words = {word.lower() for word in re.findall(r"[\w-]+", first)}
    # Other spellings, such as image_id and x_min, with all columns of a box.
    if has_columns(first.split(","), ("filename", "class", *CORNERS), SPELLINGS):
        return "boxes"
    if "filename" not in words:
        return ""
    # Boxes along three axes are those of volumes.
    if find_box_form(_header_of(text)):
        return ""
    # Folders with class names do not exclude boxes.
    if {"xmin", "ymin", "xmax", "ymax"} <= words:
        return "boxes"
    # Class folders may have a list of their files beside them, which says the same.
    return "classes" if "class" in words and not _holds_several_classes(files) else ""


def _detect_container(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect files that hold pictures: tar files, TFRecord files and Parquet files."""
    if any(_images(files)):  # an archive may contain the same pictures
        return None
    for path in paths:
        # metadata.parquet names files, and another detector knows it.
        if (kind := container_kind(path)) and basename(path) not in METADATA_NAMES:
            what, layout = _CONTAINERS[kind]
            return hint_of_layout(f"{path} is {what}", layout)
    return None


# Each takes the files and the paths of all files except images, which are numerous.
_DETECTORS: tuple[Callable[[ListedFiles, Sequence[str]], Hint | None], ...] = (
    _detect_nndetection,
    _detect_dataset_json,
    _detect_datalist,
    partial(_detect_marks, extension=".json"),
    _detect_coco,
    *(partial(_detect_marks, extension=one) for one in (".jsonl", ".ndjson", ".manifest", ".geojson")),
    partial(_detect_marks, extension=".xml"),
    partial(_detect_marks, extension=".txt"),
    partial(_detect_marks, extension=".odgt"),
    detect_sequences,
    _detect_text_labels,
    _detect_yolo_yaml,
    _detect_wider_face,
    _detect_box_lists,
    _detect_dicom,
    _detect_scan_boxes,
    _detect_bids,
    _detect_volume,
    _detect_array,
    _detect_cityscapes,
    _detect_object_masks,
    _detect_run_lengths,
    _detect_masks,
    _detect_table,
    _detect_container,
    _detect_packed_file,
    _detect_foreign_files,
    _detect_foreign_table,
    _detect_pointer,
    _detect_vector_file,
)
