"""Reader of pictures whose objects are drawn: a mask file for each, or a label image whose values number them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from halofeed.prep.annotations.contract import (
    LayoutOptions,
    refuse_annotation_file,
    rejected_example,
    sort_examples,
    splits_by_folders,
)
from halofeed.prep.annotations.object_folders import FolderedMasks, find_masks
from halofeed.prep.annotations.pairing import NEITHER
from halofeed.prep.annotations.resolve_boxes import possible_sizes, resolve_boxes, resolve_grid
from halofeed.prep.annotations.written_boxes import make_box
from halofeed.prep.layouts import pairs
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_THREADS = 8
"""Label images that are read at once."""
_CLASS = "object"
"""Class of all objects, since their masks name none."""
_NO_MASKS = ("selection", "image has no annotation", "no mask lies beside it")


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every picture with the objects that are drawn beside it.

    Masks are in ID/masks beside the only picture of ID/images (DSB 2018), or in masks/a for images/a.png, one file for
    each object. Otherwise a picture and its label image are paired as in the layout `pairs`, by names or by patterns
    (Penn-Fudan), and each value but 0 is an object. All objects have one class, `options.one_class`.

    Raises:
        AnnotationsError: no picture has masks.
    """
    refuse_annotation_file(annotation_file, "masks of objects need no annotation file; name the folder")
    has_patterns = bool(options.image_pattern or options.label_pattern)
    found = find_masks(() if has_patterns else filter(options.takes, images.sizes()))
    if found.masks:
        yield from sort_examples(resolve_grid(_by_folders(found, images, options), images, options))
        return
    listed = _by_label_images(annotations, images, options)
    reader = _Reader(images=images, options=options)
    with ThreadPoolExecutor(_THREADS) as threads:
        read = list(threads.map(reader.with_objects, listed))
    yield from sort_examples(resolve_boxes(read, images, replace(options, box_units="pixels"), images.root))


def _by_label_images(
    annotations: SourceFiles, images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the pictures with their label images; raise AnnotationsError if there are no pairs."""
    of_labels = replace(options, task="segmentation")
    try:
        return list(pairs.list_references(annotations, images, None, of_labels))
    except AnnotationsError as error:
        raise AnnotationsError(
            f"{images.root}: expected a mask for each object, in ID/masks beside the only picture of ID/images or in "
            f"masks/a for images/a.png, or a label image for each picture: {error}"
        ) from error


def _by_folders(found: FolderedMasks, images: SourceFiles, options: LayoutOptions) -> list[SourceExample]:
    """Return the pictures with the files of their objects, which the workers read together with the picture.

    Only the header of the first mask of each picture is read, because its size may prove the grid of the annotations.
    Reading the 29,000 masks of DSB 2018 here took 55 s, and a dry run lists twice.
    """
    paths = [*found.pictures]
    firsts = {path: found.masks[path][0] for path in paths if path in found.masks}
    sizes = dict(zip(firsts, possible_sizes([*firsts.values()], images), strict=True))
    label = options.one_class or _CLASS
    listed = []
    for path, split in zip(paths, splits_by_folders(paths), strict=True):
        example = SourceExample(source=path, key=path, split=split)
        if path not in firsts:
            listed.append(replace(example, problem=_NO_MASKS))
            continue
        boxes = tuple(
            Box(ymin=0, xmin=0, ymax=0, xmax=0, label=label, drawing=mask) for mask in found.masks[path]
        )
        size = next(iter(sizes[path]), None)
        listed.append(replace(example, boxes=boxes, declared_size=size))
    return [*listed, *(rejected_example(path, NEITHER) for path in found.others)]


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reader of label images whose values number the objects of a picture."""

    images: SourceFiles
    options: LayoutOptions

    def with_objects(self, example: SourceExample) -> SourceExample:
        """Return the example with the objects of its label image in place of this."""
        plain = replace(example, mask=None)
        if example.problem is not None:
            return plain
        if example.mask is None:
            return replace(plain, problem=_NO_MASKS)
        try:
            size, boxes = self._read(example.mask)
        except SourceError as error:
            if self.options.on_bad_object == "reject":
                return replace(plain, problem=error.args)
            return replace(plain, boxes=(), bad_objects=((error.reason, error.detail),))
        return replace(plain, boxes=tuple(boxes), declared_size=size)

    def _read(self, path: str) -> tuple[tuple[int, int], Sequence[Box]]:
        """Return the height and width of a label image, and its objects; raise SourceError if it is unusable."""
        from halofeed.prep.annotations.drawn_objects import drawn_objects, read_drawing

        try:
            values = read_drawing(self.images, path)
        except SourceError as error:
            raise error.at(path) from error
        label = self.options.one_class or _CLASS
        boxes = [
            make_box(label, one.box, path, area=float(one.area), mask=one.mask)
            for one in drawn_objects(values, has_masks=self.options.masks)
        ]
        return (values.shape[0], values.shape[1]), boxes
