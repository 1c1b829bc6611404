"""Reader of Cityscapes: leftImg8bit/SPLIT/CITY/a_leftImg8bit.png with gtFine/SPLIT/CITY/a_gtFine_*.

The files of a picture are label images (labelIds, labelTrainIds), polygons (polygons.json), and drawings for other uses
(color, instanceIds). Data sets of the same form have other words for `leftImg8bit` and `gtFine`. Classes and rules are
those of the scripts of Cityscapes (github.com/mcordts/cityscapesScripts): `helpers/labels.py`, and `preparation/`
for groups and deleted polygons.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import splitext
from typing import Any

from halofeed.prep.annotations.class_names import note_similar_classes, shorten_list
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    is_split_name,
    refuse_annotation_file,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.documents import parse_json_document, read_limited
from halofeed.prep.annotations.pairing import NO_IMAGE, NO_LABEL
from halofeed.prep.annotations.resolve_boxes import resolve_boxes, resolve_grid
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import (
    class_of,
    declared_size,
    points_of,
    polygon_of,
    usable_boxes,
)
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

TRUTH_NAME = re.compile(
    r"(?P<base>.+)_(?P<tag>[A-Za-z0-9]+)_"
    r"(?P<kind>labelTrainIds|labelIds|instanceTrainIds|instanceIds|color|polygons)\.(?:png|json)"
)
"""Name of a file of the ground truth: the name of the picture, its folder's, and what it holds."""
_LABEL_KINDS = ("labelTrainIds", "labelIds")
"""Label images; those that a user had drawn by the training ids come first."""
_POLYGONS = "polygons"
_FINE = "gtFine"
_TRAINED = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
"""Classes in the order of their training ids, from 0; these alone are evaluated."""
_IDS = (
    *(
        "unlabeled",
        "ego vehicle",
        "rectification border",
        "out of roi",
        "static",
        "dynamic",
        "ground",
        "road",
    ),
    *(
        "sidewalk",
        "parking",
        "rail track",
        "building",
        "wall",
        "fence",
        "guard rail",
        "bridge",
        "tunnel",
        "pole",
    ),
    *("polegroup", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider", "car"),
    *("truck", "bus", "caravan", "trailer", "train", "motorcycle", "bicycle"),
)
"""Classes in the order of their ids, from 0."""
_UNTRAINED = 255
"""Training id of pixels that are ignored."""
_COUNTED = frozenset(
    ("person", "rider", "car", "truck", "bus", "caravan", "trailer", "train", "motorcycle", "bicycle")
)
"""Classes with single objects; an area of another class is no object."""
_VOID = frozenset((*_IDS[:7], "license plate"))
"""Labels of areas without a class; files of pictures without published labels have no others."""
_AREAS = frozenset((*_IDS, "license plate")) - _COUNTED
_GROUP = "group"
_OUTLINE_BYTES = 64 << 20
"""Largest file of polygons (estimate): one of Cityscapes has 100 kB."""


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every picture, with its label image, or with the objects of its polygons.

    The first folder with the name of a split is the split, and the folder of the file below it is the city, which is
    the group. A picture and its ground truth have equal names up to their last words, and equal folders below the
    split. Pictures of a split without any ground truth are for prediction.

    Objects are the polygons of classes with single objects, and of classes that Cityscapes does not have. `cargroup` is
    a crowd of cars.

    Raises:
        AnnotationsError: no file of the ground truth belongs to a picture, or none is of the kind that the task needs.
    """
    refuse_annotation_file(
        annotation_file, "Cityscapes has a file for each picture; name the folder above them"
    )
    wants_objects = options.wants_boxes is True
    scene = _find_pictures(annotations if wants_objects else images, images, options)
    if wants_objects:
        yield from sort_examples(note_similar_classes(_with_objects(scene, annotations, images, options)))
    else:
        yield from sort_examples(resolve_grid(_with_label_images(scene, images, options), images, options))


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> dict[int, str]:
    """Return the classes of the values of label images: training ids, or ids where no label image has those."""
    if _label_kind(_truth_files(images)) == _LABEL_KINDS[0]:
        return {**dict(enumerate(_TRAINED)), _UNTRAINED: "unlabeled"}
    return dict(enumerate(_IDS))


def ignored_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> frozenset[int]:
    """Return the values of label images that Cityscapes leaves out of training and evaluation."""
    named = label_values(annotations, images, annotation_file, options)
    return frozenset(value for value, name in named.items() if name not in _TRAINED)


# Pictures and their files of ground truth ------------------------------------------------------------------


_Place = tuple[str, ...]
"""Folders from the split on, without those that are named for a kind of file."""


@dataclass(frozen=True, kw_only=True)
class _Truth:
    """Files of the ground truth of one picture, of one kind of annotation, such as gtFine."""

    tag: str
    files: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """Return the file that names them all in messages."""
        return next((self.files[kind] for kind in (*_LABEL_KINDS, _POLYGONS) if kind in self.files), "")


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """Pictures of a source with their ground truth, as far as there is any, and ground truth without a picture."""

    pictures: Sequence[tuple[SourceExample, _Truth | None]]
    alone: Sequence[_Truth]
    kind: str | None

    def has_truth(self, split: str) -> bool:
        return any(truth is not None for one, truth in self.pictures if one.split == split)


def _truth_files(files: SourceFiles) -> list[re.Match[str]]:
    """Return the files of the ground truth, by their names."""
    paths = (path for path in files.sizes() if path.endswith((".png", ".json")))
    return [match for path in paths if (match := TRUTH_NAME.fullmatch(path))]


def _label_kind(found: Iterable[re.Match[str]]) -> str | None:
    kinds = {match["kind"] for match in found}
    return next((kind for kind in _LABEL_KINDS if kind in kinds), None)


def _find_pictures(truths: SourceFiles, images: SourceFiles, options: LayoutOptions) -> _Scene:
    """Return the pictures and their ground truth; raise AnnotationsError if none has any."""
    found = _truth_files(truths)
    index: dict[tuple[_Place, str], dict[str, _Truth]] = {}
    for match in found:
        folders, _, base = match["base"].rpartition("/")
        key = (_place_of(folders, match["tag"]), base)
        truth = index.setdefault(key, {}).setdefault(match["tag"], _Truth(tag=match["tag"]))
        truth.files[match["kind"]] = match[0]
    pictures, used = [], set()
    for path in images.sizes():
        if not options.takes(path) or TRUTH_NAME.fullmatch(path):
            continue
        found_key, place = _match(path, index)
        used.add(found_key)
        pictures.append((_example(path, place), _best(index[found_key]) if found_key else None))
    if not used - {None}:
        raise AnnotationsError(
            f"{images.root}: expected leftImg8bit/SPLIT/CITY/a_leftImg8bit.png with gtFine/SPLIT/CITY/"
            f"a_gtFine_labelIds.png or a_gtFine_polygons.json, and no picture has such a file"
            f"{layout_hint(images, 'cityscapes')}"
        )
    alone = [_best(by_tag) for key, by_tag in index.items() if key not in used]
    return _Scene(
        pictures=_with_groups(pictures, options),
        alone=[truth for truth in alone if truth.main],
        kind=_label_kind(found),
    )


def _match(path: str, index: Mapping[tuple[_Place, str], Any]) -> tuple[tuple[_Place, str] | None, _Place]:
    """Return the key of the ground truth of a picture, or None, and the folders of the picture."""
    folders, _, name = path.rpartition("/")
    base, words = splitext(name)[0], ""
    while True:
        place = _place_of(folders, words)
        if (place, base) in index:
            return (place, base), place
        if "_" not in base:
            return None, _place_of(folders, splitext(name)[0].rpartition("_")[2])
        # leftImg8bit, rgb_anon or leftImg8bit_foggy_beta_0.02: words that the ground truth does not have.
        base, _, last = base.rpartition("_")
        words = f"{last}_{words}" if words else last


def _place_of(folders: str, words: str) -> _Place:
    """Return the folders from that of the split on, else the last one, without those that begin the words of a name.

    >>> _place_of("leftImg8bit/train/aachen", "leftImg8bit"), _place_of("train/gtFine/aachen", "gtFine")
    (('train', 'aachen'), ('train', 'aachen'))
    """
    parts = [one for one in folders.split("/") if one and not (words and words.startswith(one))]
    start = next((at for at, one in enumerate(parts) if _is_split(one)), None)
    return tuple(parts[-1:] if start is None else parts[start:])


def _is_split(folder: str) -> bool:
    # Pictures with coarse labels alone are in train_extra.
    return is_split_name(folder) or is_split_name(folder.removesuffix("_extra"))


def _best(by_tag: Mapping[str, _Truth]) -> _Truth:
    """Return the ground truth of one picture; fine polygons are more exact than coarse ones."""
    return by_tag.get(_FINE) or by_tag[min(by_tag)]


def _example(path: str, place: _Place) -> SourceExample:
    has_split = bool(place) and _is_split(place[0])
    split = place[0] if has_split else "train"
    group = "/".join(place[1:] if has_split else place) or None
    return SourceExample(source=path, key=path, split=split, group=group)


def _with_groups(
    pictures: Sequence[tuple[SourceExample, _Truth | None]], options: LayoutOptions
) -> list[tuple[SourceExample, _Truth | None]]:
    """Return the pictures; a folder that several splits of the source have is a group in each of them.

    Other data sets number the folders of each split from 0.
    """
    if not options.source_splits:
        return list(pictures)
    splits: dict[str | None, set[str]] = {}
    for one, _ in pictures:
        splits.setdefault(one.group, set()).add(one.split)
    return [
        (replace(one, group=f"{one.split}/{one.group}") if len(splits[one.group]) > 1 else one, truth)
        for one, truth in pictures
    ]


# Label images ----------------------------------------------------------------------------------------------


def _with_label_images(scene: _Scene, images: SourceFiles, options: LayoutOptions) -> list[SourceExample]:
    """Return the pictures with their label images; raise AnnotationsError if there is none."""
    if scene.kind is None:
        raise AnnotationsError(
            f"{images.root}: no file ends in _labelIds.png or _labelTrainIds.png; draw label images of the polygons "
            "(cityscapesscripts.preparation.createTrainIdLabelImgs), or take --task detection, which reads the polygons"
        )
    listed = []
    for one, truth in scene.pictures:
        mask = None if truth is None else truth.files.get(scene.kind)
        lacks = mask is None and scene.has_truth(one.split) and options.missing_masks != "prediction"
        listed.append(replace(one, mask=mask, problem=NO_LABEL if lacks else None))
    alone = (truth.files[scene.kind] for truth in scene.alone if scene.kind in truth.files)
    return [*listed, *(rejected_example(path, NO_IMAGE) for path in alone)]


# Objects ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Outlines:
    """Polygons of one picture: (label, points) of each, and the size of the picture."""

    size: tuple[Any, Any]
    polygons: Sequence[tuple[Any, Any]]

    @classmethod
    def of(cls, files: SourceFiles, path: str) -> _Outlines:
        document = parse_json_document(read_limited(files, path, "file of polygons", _OUTLINE_BYTES))
        written = document.get("objects") if isinstance(document, dict) else None
        if not isinstance(written, list) or not all(isinstance(one, dict) for one in written):
            detail = "expected imgHeight, imgWidth and objects, a list with label and polygon"
            raise SourceError("annotation", "not the polygons of Cityscapes", detail)
        # `deleted` marks polygons that annotators removed (helpers/annotation.py); older files lack it.
        kept = [(one.get("label"), one.get("polygon")) for one in written if not one.get("deleted")]
        return cls(size=(document.get("imgHeight"), document.get("imgWidth")), polygons=kept)

    def check(self) -> None:
        """Raise SourceError if nothing but the borders of the picture is labeled, as in the published test set."""
        if self.polygons and all(label in _VOID for label, _ in self.polygons):
            labels = shorten_list(sorted({str(label) for label, _ in self.polygons}))
            raise SourceError("selection", "image has no annotation", f"only {labels}")


def _with_objects(
    scene: _Scene, annotations: SourceFiles, images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the pictures with the objects of their polygons; raise AnnotationsError if there are no polygons."""
    if not any(truth and _POLYGONS in truth.files for _, truth in scene.pictures):
        raise AnnotationsError(
            f"{annotations.root}: no file ends in _polygons.json, which has the objects; take --task segmentation for "
            "the label images"
        )
    left_out: Counter[str] = Counter()
    listed = [
        _picture_with_objects(one, truth, annotations, left_out, options) for one, truth in scene.pictures
    ]
    if left_out:
        names = shorten_list([f"{name} {count:,}" for name, count in left_out.most_common(9)])
        note = (
            f"{plural(sum(left_out.values()), 'polygon')} of areas left out, whose classes have no single objects in "
            f"Cityscapes ({names}); --classes takes those that it names"
        )
        listed = [replace(one, notes=(*one.notes, note)) if one.boxes is not None else one for one in listed]
    alone = (truth.files[_POLYGONS] for truth in scene.alone if _POLYGONS in truth.files)
    resolved = resolve_boxes(listed, images, replace(options, box_units="pixels"), annotations.root)
    return [*resolved, *(rejected_example(path, NO_IMAGE) for path in alone)]


def _picture_with_objects(
    example: SourceExample,
    truth: _Truth | None,
    files: SourceFiles,
    left_out: Counter[str],
    options: LayoutOptions,
) -> SourceExample:
    """Return the example with its objects; the labels of other polygons are counted."""
    path = "" if truth is None else truth.files.get(_POLYGONS, "")
    if not path:
        return replace(example, problem=("selection", "image has no annotation", ""))
    try:
        outlines = _Outlines.of(files, path)
        outlines.check()
        size = declared_size(*outlines.size)
        objects = [one for one in outlines.polygons if _is_object(one[0], options)]
        left_out.update(str(label) for label, _ in outlines.polygons if not _is_object(label, options))
        boxes, bad = usable_boxes(
            enumerate(objects, start=1),
            lambda numbered: _box_of(*numbered[1], f"object {numbered[0]}", options),
            options,
            path,
        )
    except SourceError as error:
        return replace(example, problem=error.at(path).args)
    return replace(example, boxes=boxes, declared_size=size, bad_objects=bad)


def _is_object(label: Any, options: LayoutOptions) -> bool:
    return label not in _AREAS or label in options.classes


def _box_of(label: Any, polygon: Any, what: str, options: LayoutOptions) -> Box:
    name, is_group = _single_name(class_of(label, what))
    return polygon_of(name, points_of(polygon, what), f"{what} {name!r}", options, is_crowd=is_group)


def _single_name(label: str) -> tuple[str, bool]:
    """Return the class of a label, and whether it is a group whose objects nobody could separate.

    >>> _single_name("cargroup"), _single_name("polegroup"), _single_name("car")
    (('car', True), ('polegroup', False), ('car', False))
    """
    single = label.removesuffix(_GROUP)
    # helpers/labels.py, assureSingleInstanceName: a group is one of a class with single objects.
    return (single, True) if label not in _IDS and single in _COUNTED else (label, False)
