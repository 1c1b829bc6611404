"""Reader of YOLO data sets: data.yaml, images/ and labels/, with boxes, polygons or keypoints.

The rules are those of Ultralytics (docs.ultralytics.com/datasets, `ultralytics/data/utils.py`). Deviations:

- A row of five numbers is a box also in a file with polygons.
- Equal rows are all kept, with a note, as in the other layouts.
- A picture without a label file has no objects, as in YOLO. Without any label file the source is refused.
- A label file may also be beside its picture, below a folder `images` too.
- A box may exceed the picture, as --boxes-outside decides; only values below -0.5 or above 1.5 are no fractions.
- Oriented boxes (four corners) become upright boxes; `--oriented-boxes drop` leaves them out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from halofeed.prep.annotations.class_names import note_similar_classes
from halofeed.prep.annotations.class_tables import read_class_table
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    Listing,
    read_required,
    rejected_example,
    sort_examples,
    splits_by_folders,
)
from halofeed.prep.annotations.documents import MAX_YAML_BYTES, parse_yaml, read_limited
from halofeed.prep.annotations.image_index import ImageIndex, ImageQuery
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import (
    BOX_IS_ORIENTED,
    parse_number,
    polygon_of,
    rectangle_of,
    usable_boxes,
    with_filled_share,
)
from halofeed.prep.sources.example import Box, Keypoint, SourceExample
from halofeed.prep.sources.files import SourceFiles, path_below
from halofeed.system.errors import AnnotationsError, SourceError, UsageError
from halofeed.system.wording import plural

_SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""Keys of data.yaml that name images, and their splits."""
_DARKNET_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}
"""Keys of obj.data that name lists of images, and their splits."""
_NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels", "classes.names")
_YAML = (".yaml", ".yml")
_DESCRIPTIONS = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_MAX_LABEL_BYTES = 64 << 20
_FIX_NAMES = "write a data.yaml into it with the line `names: [first class, second class]`"
_BY_ITS_END = "folder of a split found by the end of its path, because data.yaml names one of another machine"
_SIXTH = (
    "; a sixth number is the confidence of a prediction, or an angle: remove a confidence, and write four corners "
    "(class x1 y1 x2 y2 x3 y3 x4 y4, as shares) for an angle"
)
_MAX_NUMBER = 99_999
"""Limit for nc, class ids and the number of keypoints."""
_NO_LABEL_FILE = "picture has no label file: taken as one without objects, as in YOLO"
_UNKNOWN_ID = "class id is not in names"
_OBB_NUMBERS = 9
"""Class and four corners, the rows of oriented boxes (`yolo obb`)."""
_NO_IMAGE = ("annotation", "label file has no image", "delete it, or add the image")
_IN_NO_SPLIT = ("selection", "image is in no split of data.yaml", "")


@dataclass(frozen=True, kw_only=True)
class YoloDescription:
    """Content of data.yaml, or of a file with class names.

    Args:
        file: its path.
        names: class names by class id.
        splits: paths of each split's images, as written: folders or lists of images.
        root: folder that these paths may be relative to, as written; "" for the file's folder.
        keypoints: names of the keypoints of each object.
        dimensions: 3 if keypoints have a visibility, 2 if not, 0 without keypoints.
    """

    file: str
    names: Mapping[int, str]
    splits: Mapping[str, tuple[str, ...]]
    root: str = ""
    keypoints: tuple[str, ...] = ()
    dimensions: int = 0

    @property
    def is_yaml(self) -> bool:
        """Return whether its paths are those of a data.yaml; Darknet's begin with data/, the folder of its program."""
        return self.file.lower().endswith(_YAML)


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every image of data.yaml's splits, every other image, and every label file without one.

    Without splits in data.yaml, a folder with a split's name (`images/val` or `val/images`) is the split of its
    images if every image is in such a folder; otherwise all images belong to `train`. Label files are read beside
    the images: the last folder `images` of a path becomes `labels`.

    Returns:
        The class names in the order of their ids, including unused ones.

    Raises:
        AnnotationsError: class names are missing or contradictory, data.yaml is damaged, an image is in two splits,
            or no image has a label file.
        UsageError: an option contradicts the format.
    """
    described = _read_description(annotations, annotation_file)
    # Ultralytics: kpt_shape in data.yaml makes a set one of keypoints; rows alone do not tell.
    if "keypoints" in options.keep and not described.keypoints:
        raise UsageError(f"{described.file}: it has no kpt_shape, so its objects have no keypoints to keep")
    index = ImageIndex(images, annotations.root, options.takes)
    index.check_any_image(f"{annotations.root} ({described.file})")
    listed = list(_list_images(described, annotations, images, index, options))
    _refuse_lists_of_nothing(described, listed)
    labels = {
        example.source: _label_file(example.source, images) for example in listed if not example.problem
    }
    # Class folders for `yolo classify` look alike, without any label file.
    if not any(labels.values()):
        first = next(iter(labels), "images/a.jpg")
        raise AnnotationsError(
            f"{annotations.root}: none of its {plural(len(labels), 'image')} has a label file; expected "
            f"{_label_paths(first)[0]} for {first}. For a folder per class, as in YOLO's classification, take --layout "
            f"folders --folders-are-classes{layout_hint(annotations, 'yolo', annotation_file)}"
        )
    listed = _read_objects(listed, labels, described, images, options)
    _check_first_number(listed, described)
    listed = resolve_boxes(listed, images, replace(options, box_units="normalized"), described.file)
    if options.annotation_grid == "auto":  # Ultralytics reads pictures as displayed, so people label them so
        listed = [replace(one, grid="displayed") for one in listed]
    used = {example.source: example.split for example in listed}
    others = list(index.without_annotation(used.items, only_used_folders=False))
    listed += (replace(one, problem=_IN_NO_SPLIT) for one in others)
    # An image of no split has a label file too, which is no label without an image.
    of_others = (_label_file(one.source, images) for one in others)
    listed += _labels_without_image(filter(None, (*labels.values(), *of_others)), images)
    yield from sort_examples(note_similar_classes(listed))
    return lambda: dict(sorted(described.names.items()))


def _read_objects(
    listed: Sequence[SourceExample],
    labels: Mapping[str, str | None],
    described: YoloDescription,
    images: SourceFiles,
    options: LayoutOptions,
) -> list[SourceExample]:
    """Return the examples with the objects of their label files; `labels` has the file of each image."""
    read = [
        (one, frozenset[int]())
        if one.problem
        else _with_objects(one, labels[one.source], described, images, options)
        for one in listed
    ]
    lengths = frozenset[int]().union(*(lengths for _, lengths in read))
    # Ultralytics' oriented boxes and polygons have one form. A set whose rows all have four corners is of oriented
    # boxes; with --masks they are polygons.
    if lengths == {_OBB_NUMBERS} and not options.masks:
        return [_with_oriented_boxes(one, options) for one, _ in read]
    return [one for one, _ in read]


def _refuse_lists_of_nothing(described: YoloDescription, listed: Sequence[SourceExample]) -> None:
    """Raise AnnotationsError if lists of images were read and none of their lines means an image."""
    faulty = [one for one in listed if one.problem]
    # Single lines are problems of their images.
    if not faulty or len(faulty) < len(listed):
        return
    first, lists = faulty[0], [path for paths in described.splits.values() for path in paths]
    why = ": ".join(filter(None, first.problem[1:])) if first.problem else ""
    raise AnnotationsError(
        f"{described.file}: no line of {' and '.join(lists[:3])} is an image: {first.source}: {why}; write the paths "
        f"of the images into the lists, or leave the lists out of {described.file}, which makes all images one split"
    )


# The description ------------------------------------------------------------------------------------------


def _read_description(annotations: SourceFiles, annotation_file: str | None) -> YoloDescription:
    """Return the content of the named file, or of the only one below the folder."""
    if annotation_file is not None:
        # A named list of classes would lack the splits, and a label file the classes.
        if not annotation_file.lower().endswith(_YAML):
            raise AnnotationsError(
                f"{annotation_file}: expected YOLO's data.yaml; name that, or the folder of the data set"
            )
        return _parse_description(annotation_file, _read_yaml(annotations, annotation_file))
    documents = _topmost_documents(annotations)
    described = [path for path, document in documents.items() if _describes(document)]
    # data.yaml beside a copy for another machine: their classes or splits may differ.
    if len(described) > 1:
        raise AnnotationsError(
            f"{annotations.root}: {' and '.join(described[:3])} each describe a data set; name one of them: "
            f"--source {annotations.root.rstrip('/')}/{described[0]}"
        )
    # A file of names alone describes the classes; folders then say what the splits are.
    named = [path for path, one in documents.items() if isinstance(one, dict) and "names" in one]
    for chosen in (described, named):
        if len(chosen) == 1:
            return _parse_description(chosen[0], documents[chosen[0]])
    return _read_name_file(annotations)


def _topmost_documents(annotations: SourceFiles) -> dict[str, Any]:
    """Return the YAML documents down to the topmost folder that has one of a data set: copies may be below it."""
    paths = [path for path in annotations.sizes() if path.lower().endswith(_YAML)]
    documents: dict[str, Any] = {}
    while paths and not any(map(_describes, documents.values())):
        nearest = _nearest(paths)
        paths = [path for path in paths if path not in nearest]
        documents |= {path: _read_any_yaml(annotations, path) for path in nearest}
    return documents


def _read_name_file(annotations: SourceFiles) -> YoloDescription:
    """Return the class names of a text file, such as labelImg's classes.txt or Darknet's obj.names."""
    found = _nearest([path for path in annotations.sizes() if posixpath.basename(path) in _NAME_FILES])
    texts = {read_required(annotations, path).decode("utf-8-sig", "replace") for path in found}
    # Copies in the folder of each split are equal; others number classes differently.
    if len(texts) != 1:
        what = f"{' and '.join(found[:3])} differ" if texts else "nothing below it names the classes"
        raise AnnotationsError(f"{annotations.root}: {what}; {_FIX_NAMES}{layout_hint(annotations, 'yolo')}")
    names = check_names(found[0], read_class_table(found[0], texts.pop(), way=_FIX_NAMES).names)
    return YoloDescription(file=found[0], names=names, splits=_darknet_splits(annotations))


def _darknet_splits(annotations: SourceFiles) -> dict[str, tuple[str, ...]]:
    """Return the lists of images that Darknet's obj.data names, as in CVAT's YOLO 1.1; {} without such a file.

    Its lines are `train = data/train.txt`, `valid = data/valid.txt`, `names = data/obj.names` and others. Source:
    github.com/AlexeyAB/darknet, "How to train (to detect your custom objects)".
    """
    found = _nearest([path for path in annotations.sizes() if path.lower().endswith(".data")])
    # Without a single obj.data the folders say what the splits are.
    if len(found) != 1 or (annotations.size(found[0]) or 0) > MAX_YAML_BYTES:
        return {}
    text = read_required(annotations, found[0]).decode("utf-8-sig", "replace")
    pairs = (line.partition("=") for line in text.splitlines())
    written = {key.strip().lower(): value.strip() for key, _, value in pairs}
    named = {split: (written[key],) for key, split in _DARKNET_SPLITS.items() if written.get(key)}
    # Darknet's own files often name a list that was never written.
    ends = {path.rpartition("/")[2] for path in annotations.sizes()}
    return {split: paths for split, paths in named.items() if paths[0].rpartition("/")[2] in ends}


def _nearest(paths: Sequence[str]) -> list[str]:
    """Return the paths in the topmost folder that has any."""
    depth = min((path.count("/") for path in paths), default=0)
    return [path for path in paths if path.count("/") == depth]


def _describes(document: Any) -> bool:
    """Return whether a document is a data.yaml: it has classes, and a split or a root.

    Ultralytics' files of models, such as yolov8.yaml, have nc too, and neither split nor root.
    """
    if not isinstance(document, dict):
        return False
    return bool({"names", "nc"} & document.keys()) and bool({*_SPLITS, "path"} & document.keys())


def _read_any_yaml(annotations: SourceFiles, path: str) -> Any:
    """Return a YAML document as `_read_yaml`; None for a damaged one, unless its name says that it is YOLO's."""
    try:
        return _read_yaml(annotations, path)
    except AnnotationsError:
        # Other YAML files, such as an environment's, need not be readable.
        if posixpath.basename(path) in _DESCRIPTIONS:
            raise
        return None


def _read_yaml(annotations: SourceFiles, path: str) -> Any:
    """Return a YAML document of dicts, lists and texts; every scalar as it is written, such as `no`.

    YAML 1.1 makes booleans of the class names yes, no, on and off, and a number of 1_000.
    """
    try:
        if (annotations.size(path) or 0) > MAX_YAML_BYTES:
            raise ValueError(f"expected at most {MAX_YAML_BYTES:,} bytes of YAML; shorten it")
        return parse_yaml(read_required(annotations, path), as_text=True)
    except ValueError as error:
        raise AnnotationsError(f"{path}: {error}") from error


def _parse_description(file: str, document: Any) -> YoloDescription:
    if not isinstance(document, dict) or not {"names", "nc"} & document.keys():
        raise AnnotationsError(f"{file}: expected YOLO's keys names (or nc), train and val; {_FIX_NAMES}")
    splits: dict[str, tuple[str, ...]] = {}
    for key, split in _SPLITS.items():
        if named := _paths_of_split(file, key, document.get(key)):
            splits.setdefault(split, named)
    root = document.get("path") or ""
    if not isinstance(root, str):
        raise AnnotationsError(f"{file}: path: expected one path, got {root!r:.80}")
    keypoints, dimensions = parse_keypoints(file, document)
    return YoloDescription(
        file=file,
        names=_parse_names(file, document),
        splits=splits,
        root=root,
        keypoints=keypoints,
        dimensions=dimensions,
    )


def _paths_of_split(file: str, key: str, value: Any) -> tuple[str, ...]:
    """Return the paths of a split: a folder, a list of images, or several of them; () for a key without a value."""
    written = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(written, list) or not all(isinstance(one, str) for one in written):
        raise AnnotationsError(f"{file}: {key}: expected a path or a list of paths, got {value!r:.80}")
    return tuple(one for one in written if one not in ("", "~", "null"))


def _whole(file: str, key: str, text: Any) -> int:
    # The YAML reader returns texts. A huge number would make a list of as many names.
    if not isinstance(text, str) or not text.strip().isdecimal() or len(text) > len(str(_MAX_NUMBER)):
        raise AnnotationsError(
            f"{file}: {key}: expected a whole number of at most {_MAX_NUMBER:,}, got {text!r:.80}; correct it"
        )
    return int(text)


def _parse_names(file: str, document: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the class names by id: a list, a mapping of ids, or `nc` alone, as Ultralytics names them."""
    count = None if "nc" not in document else _whole(file, "nc", document["nc"])
    written = document.get("names")
    if written is None:
        # `check_det_dataset` in ultralytics/data/utils.py calls them class_0, class_1, ... too.
        return check_names(file, {identity: f"class_{identity}" for identity in range(count or 0)})
    # Ultralytics takes {0: person, 1: bicycle} and [person, bicycle].
    if isinstance(written, dict):
        names = {_whole(file, "names", key): name for key, name in written.items()}
    else:
        names = dict(enumerate(written)) if isinstance(written, list) else {}
    # `check_det_dataset` in ultralytics/data/utils.py refuses this too.
    if count is not None and count != len(names):
        raise AnnotationsError(
            f"{file}: nc is {count}, and names has {len(names)} entries; correct one of them"
        )
    return check_names(file, names)


def check_names(file: str, names: Mapping[int, Any]) -> Mapping[int, str]:
    if not names or not all(isinstance(name, str) and name.strip() for name in names.values()):
        raise AnnotationsError(f"{file}: names: expected a text for each class; correct it")
    stripped = {identity: name.strip() for identity, name in names.items()}
    known: dict[str, int] = {}
    for identity, name in stripped.items():
        # One name would merge two classes; Ultralytics keeps them apart by number.
        if known.setdefault(name, identity) != identity:
            raise AnnotationsError(
                f"{file}: classes {known[name]} and {identity} are both called {name!r}; give each its own name"
            )
    return stripped


def parse_keypoints(file: str, document: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the names of the keypoints and the numbers of each: 3 with a visibility, else 2; ((), 0) without any."""
    shape = document.get("kpt_shape")
    if shape is None:
        return (), 0
    numbers = [_whole(file, "kpt_shape", one) for one in shape] if isinstance(shape, list) else []
    # Ultralytics: kpt_shape is [number of keypoints, number of dims], 2 for x,y or 3 for x,y,visible.
    if len(numbers) != 2 or numbers[1] not in (2, 3):
        raise AnnotationsError(f"{file}: kpt_shape: expected [number, 2 or 3], got {shape!r:.80}; correct it")
    names = _common_keypoints(document.get("kpt_names"))
    # Other numbers of names, or repeated ones, cannot name the points.
    if len(set(names)) == numbers[0]:
        return names, numbers[1]
    return tuple(f"keypoint_{number}" for number in range(1, numbers[0] + 1)), numbers[1]


def _common_keypoints(written: Any) -> tuple[str, ...]:
    """Return the names in kpt_names if all classes have the same; () otherwise.

    Ultralytics' kpt_names has a list for each class id; kpt_shape is one for all classes.
    """
    lists = [one for one in written.values() if isinstance(one, list)] if isinstance(written, dict) else []
    if not lists or any(one != lists[0] for one in lists):
        return ()
    return tuple(lists[0])


# The images -----------------------------------------------------------------------------------------------


def _list_images(
    described: YoloDescription,
    annotations: SourceFiles,
    images: SourceFiles,
    index: ImageIndex,
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield the images of all splits, each once, without their objects."""
    # Class lists without data.yaml, as labelImg writes them, have no splits.
    if not described.splits:
        yield from _images_by_folders(images, index)
        return
    places = [
        _find_place(split, written, described, annotations, images)
        for split, paths in described.splits.items()
        for written in paths
    ]
    listed = [image for place in places for image in _images_at(place, described, images, index)]
    # A path typed wrong, or one of another machine whose end is not here either.
    if not listed:
        missing = ", ".join(_missing(places)) or "its paths"
        raise AnnotationsError(
            f"{described.file}: no image lies at {missing}; correct the paths, which are relative to "
            f"path: or to the file's own folder, below {images.root}"
        )
    notes = _notes_on_places(places, described)
    for image in _each_once(listed, described, options):
        yield replace(image, notes=(*notes, *image.notes)) if image.problem is None else image


def _each_once(
    listed: Sequence[SourceExample], described: YoloDescription, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield each image once, and all lines without an image; raise AnnotationsError for an image of two splits."""
    found: dict[str, SourceExample] = {}
    for image in listed:
        other = image if image.problem is not None else found.setdefault(image.source, image)
        # An image in two splits would be evaluated on what it was trained on.
        if other.split != image.split and options.source_splits:
            raise AnnotationsError(
                f"{described.file}: {image.source} is in the splits {other.split} and {image.split}; leave one of "
                "them out, or divide the images anew: --split-shares train=0.8,val=0.2"
            )
    yield from found.values()
    yield from (image for image in listed if image.problem is not None)


def _missing(places: Sequence[_Place]) -> list[str]:
    """Return the split and the path of each place at which nothing is."""
    return [f"{one.split}: {one.written}" for one in places if one.path is None]


def _notes_on_places(places: Sequence[_Place], described: YoloDescription) -> tuple[str, ...]:
    """Return notes on paths of data.yaml that were found by their ends, and on those that were not found."""
    notes = (_BY_ITS_END,) if described.is_yaml and any(one.by_end for one in places) else ()
    missing = _missing(places)
    if not missing:
        return notes
    return (
        *notes,
        f"data.yaml names images that are missing ({'; '.join(missing)}); the other splits are taken",
    )


def _images_by_folders(images: SourceFiles, index: ImageIndex) -> Iterator[SourceExample]:
    paths = [path for path in images.sizes() if index.takes(path)]
    for path, split in zip(paths, splits_by_folders(paths), strict=True):
        yield SourceExample(source=path, key=path, split=split)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Path of a split in data.yaml.

    Args:
        split: the split.
        written: path as written.
        path: path below the images' root; None if nothing is there.
        by_end: whether only the end of the written path was found.
    """

    split: str
    written: str
    path: str | None
    by_end: bool = False


def _find_place(
    split: str, written: str, described: YoloDescription, annotations: SourceFiles, images: SourceFiles
) -> _Place:
    """Return the folder, list or image that data.yaml names for a split.

    Paths are relative to `path`, then to the file's folder. Roboflow writes ../train/images for train/images, which
    Ultralytics accepts too. A path of another machine is found by its end.
    """
    plain, root = (text.strip().replace("\\", "/") for text in (written, described.root))
    candidates = [path_below(images.root, plain)]
    # With --images elsewhere, paths relative to data.yaml lead into the wrong tree.
    if annotations.root == images.root:
        candidates = [*_relative_paths(plain, root, described.file, images.root), *candidates]
    for path in (posixpath.normpath(one) for one in candidates if one):
        # Nothing outside the source is read, even if a file of the source names it.
        if not path.startswith(("../", "/")) and _exists(path, images):
            return _Place(split=split, written=written, path=path)
    folder = posixpath.dirname(described.file)
    parts = [part for part in f"{root}/{plain}".split("/") if part not in ("", ".", "..")]
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    below = (path for end in ends for path in dict.fromkeys((posixpath.join(folder, end), end)))
    found = next((path for path in below if _exists(path, images)), None)
    return _Place(split=split, written=written, path=found, by_end=found is not None)


def _relative_paths(written: str, root: str, file: str, images_root: str) -> list[str]:
    """Return the paths that a relative one may mean: below `path` of data.yaml, or below the folder of that file."""
    below = path_below(images_root, root)
    above = [root, "", ""] if root and below is None else ["", below or ""]
    # `check_det_dataset` in ultralytics/data/utils.py takes "../train/images" without "../" if that exists.
    names = [written, written.removeprefix("../")] if written.startswith("../") else [written]
    return [posixpath.join(posixpath.dirname(file), one, name) for name in names for one in above]


def _exists(path: str, images: SourceFiles) -> bool:
    return path == "." or images.has_folder(path) or images.size(path) is not None


def _images_at(
    place: _Place, described: YoloDescription, images: SourceFiles, index: ImageIndex
) -> Iterator[SourceExample]:
    """Yield the images in a folder or a list; an example with a problem for a line of a list that names none."""
    path = place.path
    if path is None:
        return
    # Ultralytics: a path is a folder, a list of images (.txt), or a list of either.
    if images.size(path) is None:
        start = "" if path == "." else f"{path}/"
        found = [one for one in images.sizes() if one.startswith(start) and index.takes(one)]
    # A list in data.yaml may name pictures themselves.
    elif index.takes(path):
        found = [path]
    else:
        yield from _images_in_list(path, place.split, described, images, index)
        return
    yield from (SourceExample(source=one, key=one, split=place.split) for one in found)


def _images_in_list(
    path: str, split: str, described: YoloDescription, images: SourceFiles, index: ImageIndex
) -> Iterator[SourceExample]:
    """Yield the image of each line of a list, relative to the list, to data.yaml or to the root."""
    text = read_required(images, path).decode("utf-8-sig", "surrogateescape")
    lines = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    places = tuple(dict.fromkeys((posixpath.dirname(path), posixpath.dirname(described.file), "")))
    queries = {
        line: ImageQuery(name=line.removeprefix("./"), places=tuple((place,) for place in places))
        for line in lines
    }
    for line, match in index.match(queries).items():
        if isinstance(match, SourceError):
            yield rejected_example(line, match.at(path).args, split)
        else:
            notes = (match.note,) if match.note and described.is_yaml else ()
            yield SourceExample(source=match.path, key=match.path, split=split, notes=notes)


# The objects ----------------------------------------------------------------------------------------------


def _label_paths(image: str) -> list[str]:
    """Return where an image's label file may be, by preference.

    Source: `img2label_paths` in ultralytics/data/utils.py, which replaces the last folder `images`.

    >>> _label_paths("a/images/train/1.jpg")
    ['a/labels/train/1.txt', 'a/images/train/1.txt']
    """
    beside = f"{posixpath.splitext(image)[0]}.txt"
    above, mark, below = f"/{beside}".rpartition("/images/")
    return [f"{above}/labels/{below}".lstrip("/"), beside] if mark else [beside]


def _label_file(image: str, images: SourceFiles) -> str | None:
    return next((path for path in _label_paths(image) if images.size(path) is not None), None)


def _labels_without_image(used: Iterator[str], images: SourceFiles) -> Iterator[SourceExample]:
    """Yield an example with a problem for each label file in the folders of the used ones that no image has."""
    known = set(used)
    for folder in sorted({posixpath.dirname(path) for path in known}):
        for path in images.files_in(folder):
            # labelImg writes classes.txt among its label files.
            if path.endswith(".txt") and path not in known and posixpath.basename(path) not in _NAME_FILES:
                yield rejected_example(path, _NO_IMAGE)


def _with_objects(
    example: SourceExample,
    file: str | None,
    described: YoloDescription,
    images: SourceFiles,
    options: LayoutOptions,
) -> tuple[SourceExample, frozenset[int]]:
    """Return the example with the boxes of its label file, and the numbers of values in its rows."""
    lengths = frozenset[int]()
    # Ultralytics: background pictures need no label file, so a missing one cannot be told from a forgotten one.
    if file is None:
        return replace(example, boxes=(), notes=(*example.notes, _NO_LABEL_FILE)), lengths
    try:
        text = read_limited(images, file, "label file", _MAX_LABEL_BYTES).decode("utf-8-sig")
        rows = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        lengths = frozenset(len(row) for _, row in rows)
        boxes, bad = usable_boxes(rows, partial(_box_of_line, described, options), options, file)
    except UnicodeDecodeError as error:
        return replace(example, problem=("annotation", "label file is no text", f"{file}: {error}")), lengths
    except SourceError as error:
        return replace(example, problem=error.at(file).args), lengths
    return replace(example, boxes=boxes, bad_objects=bad), lengths


def _with_oriented_boxes(example: SourceExample, options: LayoutOptions) -> SourceExample:
    """Return the example of a set in which each row has four corners: an object that does not fill its box is oriented.

    Corners that people drew, as in DOTA, are no exact rectangles, which `polygon_of` recognizes.
    """
    if not example.boxes:
        return example
    boxes = tuple(map(with_filled_share, example.boxes))
    if example.problem or options.oriented_boxes == "upright":
        return replace(example, boxes=boxes)
    bad = [(BOX_IS_ORIENTED, f"{box.label!r}: four corners") for box in boxes if box.turned_share]
    # The same choice as for other unusable objects.
    if bad and options.on_bad_object == "reject":
        return replace(example, boxes=None, problem=("annotation", *bad[0]))
    kept = tuple(box for box in boxes if not box.turned_share)
    return replace(example, boxes=kept, bad_objects=(*example.bad_objects, *bad))


def _box_of_line(described: YoloDescription, options: LayoutOptions, row: tuple[int, list[str]]) -> Box:
    return box_of_row(described, row[1], f"line {row[0]}", options)


def box_of_row(described: YoloDescription, row: Sequence[object], what: str, options: LayoutOptions) -> Box:
    """Return the object of one row: `class x y width height`, the same with keypoints, or `class x1 y1 x2 y2 ...`."""
    numbers = [parse_number(value, what) for value in row]
    # A class without a name would be another class's in the data set.
    if numbers[0] not in described.names:
        known = f"{min(described.names)} to {max(described.names)}"
        detail = f"{what}: {row[0]}; {described.file} has {known}: correct one of them"
        raise SourceError("annotation", _UNKNOWN_ID, detail)
    label, values = described.names[int(numbers[0])], numbers[1:]
    posed = 4 + len(described.keypoints) * described.dimensions
    # The number of values tells the form: posed is 4 without keypoints, and a polygon has at least three points.
    if len(values) in (4, posed):
        kept = "keypoints" in options.keep
        flags: dict[str, Any] = {"keypoints": _keypoints(described, values[4:])} if kept else {}
        return rectangle_of(label, values[:4], what, options, form="center-size", **flags)
    # Ultralytics: segment rows are class x1 y1 x2 y2 ...; with keypoints, other lengths are damaged poses.
    if len(values) >= 6 and len(values) % 2 == 0 and not described.keypoints:
        return polygon_of(label, values, what, options)
    expected = f"{posed + 1} for keypoints" if described.keypoints else "7 or more for a polygon"
    more = _SIXTH if len(values) == 5 else ""
    detail = f"{what}: {len(numbers)} numbers; expected 5 for a box, or {expected}{more}"
    raise SourceError("annotation", "row is no object", detail)


def _check_first_number(listed: Sequence[SourceExample], described: YoloDescription) -> None:
    """Raise AnnotationsError if labels count classes from 1, and names from 0: each box would get another's class."""
    names, used = described.names, {box.label for one in listed for box in one.boxes or ()}
    unknown = {
        detail.split(": ")[-2].split(";")[0]
        for one in listed
        for why, detail in one.bad_objects
        if why == _UNKNOWN_ID
    }
    # The last class of a numbering from 1 is unknown, and nothing uses the first of one from 0.
    if (
        unknown == {str(len(names))}
        and [*names] == [*range(len(names))]
        and used == {*names.values()} - {names[0]}
    ):
        counted = ", ".join(f"{number + 1}: {name}" for number, name in names.items())
        raise AnnotationsError(
            f"{described.file}: names are numbered from 0, and labels use 1 to {len(names)}: if labels count from 1, "
            f"write names: {{{counted}}} in data.yaml; else correct the labels"
        )


def _keypoints(described: YoloDescription, values: Sequence[float]) -> tuple[Keypoint, ...]:
    """Return the keypoints of a row; without a visibility, a point with a negative side is not labeled."""
    size = described.dimensions
    points = [values[start : start + size] for start in range(0, len(values), size)]
    # A box without its points in a set of keypoints: all are unlabeled.
    if not points:
        return tuple(Keypoint(name=name) for name in described.keypoints)
    found = []
    for name, (x, y, *seen) in zip(described.keypoints, points, strict=True):
        # `verify_image_label` in ultralytics/data/utils.py masks points with a negative side where rows have no
        # visibility.
        visibility = seen[0] if seen else 2 * (x >= 0 and y >= 0)
        # Ultralytics masks keypoints by visibility 0; COCO, from which its sets are made, has 0, 1 and 2.
        if visibility not in (0, 1, 2):
            detail = f"{name}: {visibility:g}; expected 0, 1 or 2"
            raise SourceError("annotation", "visibility of a keypoint is unknown", detail)
        found.append(Keypoint(name=name, x=x, y=y, visibility=int(visibility)))
    return tuple(found)
