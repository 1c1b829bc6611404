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
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.written_boxes import make_box
from halofeed.prep.layouts import pairs
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_THREADS = 8
"""Pictures whose masks are read at once."""
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
    listed = _by_folders(found) if found.masks else _by_label_images(annotations, images, options)
    reader = _Reader(images=images, options=options, is_numbered=not found.masks)
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


def _by_folders(found: FolderedMasks) -> list[SourceExample]:
    """Return the pictures with the files of their objects."""
    paths = [*found.pictures]
    listed = []
    for path, split in zip(paths, splits_by_folders(paths), strict=True):
        masks = found.masks.get(path, ())
        first, more = next(iter(masks), None), tuple(masks[1:])
        example = SourceExample(source=path, key=path, split=split, mask=first, more_masks=more)
        listed.append(example if first else replace(example, problem=_NO_MASKS))
    return [*listed, *(rejected_example(path, NEITHER) for path in found.others)]


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reader of the masks of pictures.

    Args:
        is_numbered: whether each value of a mask is an object, and not all of its pixels together.
    """

    images: SourceFiles
    options: LayoutOptions
    is_numbered: bool

    def with_objects(self, example: SourceExample) -> SourceExample:
        """Return the example with the objects of its masks in place of these."""
        plain = replace(example, mask=None, more_masks=())
        if example.problem is not None:
            return plain
        if not example.masks:
            return replace(plain, problem=_NO_MASKS)
        boxes: list[Box] = []
        bad: list[tuple[str, str]] = []
        sizes: list[tuple[int, int]] = []
        for path in example.masks:
            try:
                size, found = self._read(path)
                # Masks of other sizes are those of another picture, or of a scaled copy.
                if sizes and size != sizes[0]:
                    detail = f"{path}: {size[1]} x {size[0]}, and others of {sizes[0][1]} x {sizes[0][0]}"
                    raise SourceError("annotation", "masks have several sizes", detail)
            except SourceError as error:
                if self.options.on_bad_object == "reject":
                    return replace(plain, problem=error.args)
                bad.append((error.reason, error.detail))
            else:
                sizes.append(size)
                boxes += found
        size_of_all = sizes[0] if sizes else None
        return replace(plain, boxes=tuple(boxes), bad_objects=tuple(bad), declared_size=size_of_all)

    def _read(self, path: str) -> tuple[tuple[int, int], Sequence[Box]]:
        """Return the height and width of a mask, and its objects; raise SourceError if it is unusable."""
        from halofeed.prep.annotations.drawn_objects import drawn_objects, object_of_pixels, read_drawing

        try:
            values = read_drawing(self.images, path)
        except SourceError as error:
            raise error.at(path) from error
        if self.is_numbered:
            found = list(drawn_objects(values))
        elif values.any():
            found = [object_of_pixels(values != 0)]
        else:
            raise SourceError("annotation", "mask is empty", f"{path}: no pixel is set; delete it")
        label = self.options.one_class or _CLASS
        boxes = [
            make_box(
                label, one.box, path, area=float(one.area), mask=one.mask if self.options.masks else None
            )
            for one in found
        ]
        return (values.shape[0], values.shape[1]), boxes
