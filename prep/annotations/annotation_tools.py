"""Skeleton of the layouts whose annotation files name pictures and their objects: labelme, CVAT and others.

A layout of this kind is a `DocumentFormat`: a parser of one file, and a function from one written object to a box.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from halofeed.prep.annotations.class_names import note_similar_classes
from halofeed.prep.annotations.class_rows import ClassRow
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    Listing,
    attributes_of,
    rejected_example,
    sort_examples,
    split_in_file_name,
    splits_by_folders,
)
from halofeed.prep.annotations.documents import read_limited
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.picture_classes import gives_classes, settle_classes, with_classes
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import check_ignored_columns, declared_size, usable_boxes
from halofeed.prep.sources.example import Box, SourceExample, frame_key
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_MAX_BYTES = 256 << 20
"""Largest annotation file (estimate): the parsed document takes several times as much memory."""
_OTHER_NAME = "annotations name another picture than their own file's name; the named one was taken"
_SAME_TWICE = "several files have the same objects of one picture; one of them was taken"
_MISSING_NAME = "the picture that annotations name is missing; the one with the expected stem was taken"


@dataclass(frozen=True, kw_only=True)
class FilePicture:
    """One picture and its objects, as an annotation file writes them.

    Args:
        name: path of the picture as written; "" if the file writes none.
        stem: path without extension of the picture to take if `name` is not found, from the root or from `folders`.
        folders: folders of the pictures relative to the file, beside its own folder and `images`.
        size: height and width as written.
        split: split that the file gives; "" without one, where the name of a file of many pictures may contain it.
        group: pictures that must not be divided between splits, such as the frames of a video.
        objects: objects as `DocumentFormat.box_of` takes them.
        classes: classes of the complete picture: tags, choices or flags.
        fault: error that makes the picture unusable.
        gsd_m: ground sample distance in meters per pixel; None without one.
        frame: (name of a video, number of a frame from 0) to take if there is no file of the picture.
        optional: whether the picture is ignored if there is no such file.
        companions: files that belong to the picture and are no pictures, such as masks.
        label_image: path of its label image as written; "" without one.
        label_runs: (class, run lengths in COCO's form) of each class that its annotations hold as pixels; None without.
        notes: remarks on how the file was read.
        late_notes: function that returns remarks which depend on other files; it is called when all are read.
        attributes: keys of the picture's entry; some of them may name its group.
    """

    name: str
    stem: str = ""
    folders: tuple[str, ...] = ()
    size: tuple[Any, Any] = (None, None)
    split: str = ""
    group: str | None = None
    objects: Sequence[Any] = ()
    classes: Sequence[str] = ()
    fault: SourceError | None = None
    gsd_m: float | None = None
    frame: tuple[str, int] | None = None
    optional: bool = False
    companions: tuple[str, ...] = ()
    label_image: str = ""
    label_runs: tuple[tuple[str, Any], ...] | None = None
    notes: tuple[str, ...] = ()
    late_notes: Callable[[], tuple[str, ...]] = tuple
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DocumentContent:
    """Pictures of one annotation file, and the classes that it lists in their order.

    Args:
        pictures: the pictures.
        classes: classes of objects and pictures.
        label_rows: classes of label images, with their values and colors.
    """

    pictures: Iterable[FilePicture]
    classes: Sequence[str] = ()
    label_rows: Sequence[ClassRow] = ()


Read: TypeAlias = Callable[[str, bytes], Iterable[FilePicture] | DocumentContent | None]
"""Function that maps (path, content) to the pictures of one file; None if the file has another format.

It raises SourceError for a damaged file.
"""


@dataclass(frozen=True, kw_only=True)
class DocumentFormat:
    """Format of annotation files.

    Args:
        layout: name of the layout.
        summary: one line for the help text.
        extensions: extensions of its files.
        expected: what a file of this format has, for messages.
        read: reads one file.
        read_with: maps (annotations, options) to the function that reads one file, in place of `read`, for formats that
            need other files of the source.
        box_of: maps (object, description, options) to a box, or None for an entry that means no object; it raises
            SourceError for an unusable object.
        of_one_picture: whether a file describes only one picture, so that a damaged file is a fault of that picture.
        grid: "displayed" if the tool shows pictures with their EXIF orientation applied; None if that is unknown.
        is_normalized: whether boxes are shares of the sides of the picture.
        has_masks: whether objects can be polygons.
        has_classes: whether a picture can have classes without a place: tags, choices or flags.
        has_label_images: whether a picture can have a label image, for segmentation.
        keeps: additional object fields that it can read.
    """

    layout: str
    summary: str
    extensions: tuple[str, ...]
    expected: str
    read: Read = lambda path, data: None
    read_with: Callable[[SourceFiles, LayoutOptions], Read] | None = None
    box_of: Callable[[Any, str, LayoutOptions], Box | None]
    of_one_picture: bool = False
    grid: str | None = None
    is_normalized: bool = False
    has_masks: bool = True
    has_classes: bool = False
    has_label_images: bool = False
    keeps: tuple[str, ...] = ()


DocumentEntry = tuple[str, FilePicture]
"""A file and one of its pictures."""


def list_documents(
    form: DocumentFormat,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Listing:
    """Yield an example for every picture of the annotation files, every damaged file, and every other picture.

    Without splits in the files, a folder with a split's name is the split of its pictures if every annotated picture
    is in such a folder; otherwise all belong to `train`.

    Returns:
        The classes in the order of the files; None if no file lists them.

    Raises:
        AnnotationsError: no file has this format, or the only file is damaged.
    """
    check_ignored_columns(options, form.layout)
    index = ImageIndex(images, annotations.root)
    where = annotation_file or annotations.root
    entries, faulty, contents = read_documents(form, annotations, annotation_file, options)
    classes = tuple(dict.fromkeys(name for content in contents for name in content.classes))
    if not entries:
        raise no_entries_error(form, annotations, annotation_file, faulty)
    listed = _list_entries(form, entries, index, options, where)
    # If every picture is missing, the likely fault is the folder, and a list of rejects would hide it.
    if all(one.problem is not None for one in listed):
        index.check_any_image(f"{where} ({len(entries):,} annotated pictures)")
    listed = _resolve(form, listed, images, options, where)
    # A named file of one picture does not describe the others. A named file of many does, in the folders that it uses.
    if annotation_file is None or not form.of_one_picture:
        used = {one.source: one.split for one in listed}
        companions = {path for _, picture in entries for path in picture.companions}
        others = index.without_annotation(used.items, only_used_folders=annotation_file is not None)
        listed += (one for one in others if one.source not in companions)
    yield from sort_examples(note_similar_classes([*listed, *faulty]))
    return (lambda: dict(enumerate(classes))) if classes else None


def no_entries_error(
    form: DocumentFormat,
    annotations: SourceFiles,
    annotation_file: str | None,
    faulty: Sequence[SourceExample],
) -> AnnotationsError:
    """Return the error of a source without a file of this format: the first damaged one, or what it holds instead."""
    why = "" if annotation_file else "no file below it is one"
    # A damaged file is more likely the one that was meant than no file at all.
    if faulty and faulty[0].problem:
        why = f"{faulty[0].problem[1]} ({faulty[0].problem[2]})"
    where = annotation_file or annotations.root
    hint = layout_hint(annotations, form.layout, annotation_file)
    return AnnotationsError(": ".join(filter(None, (where, f"expected {form.expected}", why))) + hint)


def _list_entries(
    form: DocumentFormat,
    entries: Sequence[DocumentEntry],
    index: ImageIndex,
    options: LayoutOptions,
    where: str,
) -> list[SourceExample]:
    """Return the example of each entry; those of several entries that name one image have a problem."""
    of_classes = gives_classes(
        where,
        options,
        has_objects=any(one.objects for _, one in entries),
        has_classes=any(one.classes for _, one in entries),
    )
    found = _with_images(form, entries, index, options, of_classes=of_classes)
    # Two files of one picture each that name the same picture are a fault; exports of one project in JSON and CSV
    # are copies.
    if not form.of_one_picture:
        found = _without_copies(found)
    return refuse_shared_images([one for _, one in found], [file for file, _ in found])


def _resolve(
    form: DocumentFormat,
    listed: Sequence[SourceExample],
    images: SourceFiles,
    options: LayoutOptions,
    where: str,
) -> list[SourceExample]:
    """Return the examples with boxes in pixels, on the grid that the tool shows if nothing proves another."""
    units = replace(options, box_units="normalized") if form.is_normalized else options
    resolved = resolve_boxes(listed, images, units, where)
    # A proof by declared sizes counts more than what the tool usually does.
    if options.annotation_grid == "auto" and form.grid is not None:
        return [replace(one, grid=one.grid or form.grid) for one in resolved]
    return resolved


def read_documents(
    form: DocumentFormat, annotations: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> tuple[list[DocumentEntry], list[SourceExample], list[DocumentContent]]:
    """Return the pictures of all files, an example for each damaged file, and the contents of the others."""
    read = form.read if form.read_with is None else form.read_with(annotations, options)
    if annotation_file is not None:  # the user's word counts more than an extension
        paths = [annotation_file]
    else:
        paths = [path for path in annotations.sizes() if path.lower().endswith(form.extensions)]
    entries: list[DocumentEntry] = []
    faulty: list[SourceExample] = []
    contents: list[DocumentContent] = []
    for path in paths:
        try:
            content = _read_file(form, read, annotations, path)
            entries += ((path, one) for one in content.pictures)
            contents.append(content)
        except SourceError as error:
            split = splits_by_folders([path])[0]
            faulty.append(rejected_example(path, error.at(path).args, split))
    return entries, faulty, contents


def _read_file(form: DocumentFormat, read: Read, annotations: SourceFiles, path: str) -> DocumentContent:
    """Return the pictures of one file with their splits; raise SourceError if it is damaged."""
    found = read(path, read_limited(annotations, path, "annotation file", _MAX_BYTES))
    content = found if isinstance(found, DocumentContent) else DocumentContent(pictures=found or ())
    # The file of one picture has the picture's name, in which a word such as test does not mean a split.
    split = "" if form.of_one_picture else split_in_file_name(path) or ""
    return replace(content, pictures=[replace(one, split=one.split or split) for one in content.pictures])


def _with_images(
    form: DocumentFormat,
    entries: Sequence[DocumentEntry],
    index: ImageIndex,
    options: LayoutOptions,
    *,
    of_classes: bool,
) -> list[tuple[str, SourceExample]]:
    """Return the annotation file and the example of each picture, with its classes or with its objects."""
    listed = list(find_images(form, entries, index, options))
    if of_classes:
        return [(file, with_classes(one, picture.classes, file, options)) for file, one, picture in listed]
    read = [
        one if one.problem else _with_objects(one, form, (file, picture), options)
        for file, one, picture in listed
    ]
    given = [(one, picture.classes, file) for one, (file, _, picture) in zip(read, listed, strict=True)]
    settled = settle_classes(given, options, are_objects=False)
    return [(file, one) for (file, *_), one in zip(listed, settled, strict=True)]


def find_images(
    form: DocumentFormat, entries: Sequence[DocumentEntry], index: ImageIndex, options: LayoutOptions
) -> Iterator[tuple[str, SourceExample, FilePicture]]:
    """Yield the annotation file and the example of each picture, with the image that it names, and the picture."""
    stems: dict[str, list[str]] = {}
    for path in filter(is_image_name, index.paths):
        stems.setdefault(posixpath.splitext(path)[0], []).append(path)
    # All names together: a name that is right for one entry is wrong for another, see `ImageIndex`.
    found = index.match({place: _query(one, stems) for place, one in enumerate(entries)})
    paths = [one.path for one in found.values() if isinstance(one, ImageMatch)]
    splits = dict(zip(paths, splits_by_folders(paths), strict=True))
    videos = _videos(entries, found, index)
    for place, (file, picture) in enumerate(entries):
        image = found[place]
        if isinstance(image, SourceError) and picture.frame is not None:
            video = videos.get((file, picture.frame[0]))
            if isinstance(video, ImageMatch):
                yield file, _frame_example(file, picture, video.path, options), picture
                continue
        if isinstance(image, ImageMatch):
            notes = _notes(form, picture, image, stems.get(picture.stem, ()))
            yield file, _example(file, picture, image.path, splits[image.path], notes, options), picture
        elif not picture.optional:
            # Frames of a CVAT track without an object are in the file by their numbers only, and may not be exported.
            yield file, _rejected(file, picture, image), picture


def _videos(
    entries: Sequence[DocumentEntry], found: Mapping[int, ImageMatch | SourceError], index: ImageIndex
) -> Mapping[tuple[str, str], ImageMatch | SourceError]:
    """Return the videos of frames without a file, by the annotation file and the name that it writes."""
    folders = {
        (file, picture.frame[0]): picture.folders
        for place, (file, picture) in enumerate(entries)
        if picture.frame is not None and isinstance(found[place], SourceError)
    }
    queries = {}
    for (file, name), named in folders.items():
        folder = posixpath.dirname(file)
        own = tuple(posixpath.normpath(posixpath.join(folder, one)) for one in named)
        places = tuple(filter(None, (own, (folder,), (posixpath.join(folder, "images"), ""))))
        queries[file, name] = ImageQuery(name=name, places=places, beside=(folder,))
    return index.match(queries)


def _frame_example(file: str, picture: FilePicture, video: str, options: LayoutOptions) -> SourceExample:
    """Return the example of a picture that is a frame of a video."""
    assert picture.frame is not None
    number = picture.frame[1]
    split = picture.split or splits_by_folders([video])[0]
    source = f"{video}//frame_{number:06d}.bmp"
    example = _example(file, picture, source, split, picture.notes, options)
    return replace(example, key=frame_key(video, number), video_frame=(video, number))


def _rejected(file: str, picture: FilePicture, error: SourceError) -> SourceExample:
    """Return the example of a picture without its image, under the name that the file writes, or its place in it."""
    source = picture.name or "#".join(filter(None, (file, posixpath.basename(picture.stem))))
    split = picture.split or splits_by_folders([file])[0]
    return rejected_example(source, (picture.fault or error).at(file).args, split)


def _example(
    file: str,
    picture: FilePicture,
    path: str,
    split: str,
    notes: tuple[str, ...],
    options: LayoutOptions,
) -> SourceExample:
    """Return the example of a picture and its image."""
    return SourceExample(
        source=path,
        key=path,
        split=picture.split or split,
        group=picture.group,
        gsd_m=picture.gsd_m,
        notes=notes,
        attributes=attributes_of(picture.attributes, ()) if options.needs_groups else (),
        problem=None if picture.fault is None else picture.fault.at(file).args,
    )


def _notes(
    form: DocumentFormat, picture: FilePicture, image: ImageMatch, own: Sequence[str]
) -> tuple[str, ...]:
    """Return remarks on the image of a picture, of which `own` are the images with the stem of its file."""
    name = posixpath.basename(picture.name.replace("\\", "/"))
    unusual = ""
    # A file that was renamed with its picture keeps the old name inside; copied files do as well.
    if form.of_one_picture and own and image.path not in own:
        unusual = _OTHER_NAME
    elif name and name.casefold() != posixpath.basename(image.path).casefold():
        # Case is ignored, since Windows and macOS ignore it.
        unusual = _MISSING_NAME
    return tuple(filter(None, (*picture.notes, *picture.late_notes(), image.note, unusual)))


def _query(entry: DocumentEntry, stems: Mapping[str, Sequence[str]]) -> ImageQuery:
    """Return where the picture of an entry may be: in the folders that it names, beside its file, or in `images`."""
    file, picture = entry
    folder = posixpath.dirname(file)
    # labels/a.json beside images/a.jpg, and a.json above images/a.jpg, are what the tools' exports look like.
    usual = (posixpath.join(folder, "images"), posixpath.join(posixpath.dirname(folder), "images"))
    own = tuple(posixpath.normpath(posixpath.join(folder, one)) for one in picture.folders)
    ranks = tuple(filter(None, (own, (folder,), tuple(dict.fromkeys(usual)), ("",))))
    # Without a name only the stem is known; several extensions of one stem leave it open.
    if not picture.name:
        places = (posixpath.join(place, picture.stem) for place in chain(*ranks))
        stem = next(filter(stems.get, places), picture.stem)
        paths = stems.get(stem, ())
        return ImageQuery(name=paths[0] if len(paths) == 1 else "", stem=stem)
    name = picture.name
    # labelme writes paths relative to the JSON file, such as ..\images\a.jpg; one out of the source stays as it is.
    if (plain := name.replace("\\", "/")).startswith("../"):
        joined = posixpath.normpath(posixpath.join(folder, plain))
        name = name if joined.startswith("../") else joined
    return ImageQuery(name=name, places=ranks, beside=(folder,), stem=picture.stem)


def _with_objects(
    example: SourceExample, form: DocumentFormat, entry: DocumentEntry, options: LayoutOptions
) -> SourceExample:
    """Return the example with the boxes of its objects."""
    file, picture = entry
    try:
        size = declared_size(*picture.size)
        boxes, bad = usable_boxes(
            enumerate(picture.objects, start=1),
            lambda numbered: form.box_of(numbered[1], f"object {numbered[0]}", options),
            options,
            file,
        )
    except SourceError as error:
        return replace(example, problem=error.at(file).args)
    return replace(example, boxes=boxes, declared_size=size, bad_objects=bad)


def _without_copies(found: Sequence[tuple[str, SourceExample]]) -> list[tuple[str, SourceExample]]:
    """Return the examples, each picture once if all its files have the same objects, as JSON and CSV of VIA have."""
    by_source: dict[str, list[SourceExample]] = {}
    for _, one in found:
        by_source.setdefault(one.source, []).append(one)
    used = []
    for file, one in found:
        first, *others = by_source[one.source]
        are_copies = first.problem is None and all(
            (other.boxes, other.problem) == (first.boxes, None) for other in others
        )
        # Entries that differ are a fault, which `refuse_shared_images` names.
        if not others or not are_copies:
            used.append((file, one))
        elif one is first:
            used.append((file, replace(one, notes=(*one.notes, _SAME_TWICE))))
    return used


def refuse_shared_images(listed: Sequence[SourceExample], files: Sequence[str]) -> list[SourceExample]:
    """Return the examples with a problem for each of several annotations that name one image."""
    counts = Counter(one.source for one in listed)
    fault = ("annotation", "several annotations name one image")
    return [
        replace(one, boxes=None, declared_size=None, problem=(*fault, file))
        if counts[one.source] > 1 and one.problem is None
        else one
        for one, file in zip(listed, files, strict=True)
    ]
