"""On which grid annotations were drawn: that of the pixels as the file stores them, or of the picture as displayed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.reference import Reference
from halofeed.schemas.errors import AnnotationsError, SourceError

_HEADS = (1 << 12, 1 << 16)
"""Bytes that are read of a picture to find its orientation; in most files the first few hundred say it."""
_THREADS = 16
_PNG_HEAD = 24
NEITHER = "neither"
Size = tuple[int, int]


def settle_grid(listed: Sequence[Reference], images: SourceFiles, options: LayoutOptions) -> list[Reference]:
    """The references of one annotation file, each with the grid that the others prove for it.

    A tool draws either on the stored pixels or on the upright picture, for all pictures alike. Where an EXIF
    orientation swaps the sides, the declared size of a picture (or the size of its label image) shows which. Those
    of which both grids have one size, or no size is declared, follow the others of their file; where the others
    do not agree, or there are none, the grid stays open: see `prep.picture`.
    """
    if options.annotation_grid != "auto":
        return list(listed)
    sized = [reference for reference in listed if _can_prove(reference)]
    with ThreadPoolExecutor(_THREADS) as threads:
        proofs = list(threads.map(lambda reference: _proof(reference, images), sized))
    if len(sized) == sum(reference.problem is None for reference in listed):
        _refuse_other_sizes(sized, proofs)
    proven = {proof for proof in proofs if proof not in (None, NEITHER)}
    if len(proven) != 1:
        return list(listed)
    (grid,) = proven
    return [replace(reference, grid=grid) if reference.problem is None else reference for reference in listed]


def _refuse_other_sizes(sized: Sequence[Reference], proofs: Sequence[str | None]) -> None:
    """Refuse annotations of which not one declared size is that of its picture: sides swapped, or other pictures."""
    if sized and all(proof == NEITHER for proof in proofs):
        height, width = sized[0].declared_size or (0, 0)
        raise AnnotationsError(
            f"{sized[0].source}: annotations say {width} wide and {height} high, and the picture has other sides, as "
            f"have all {len(sized)} pictures: exchange width and height if they are swapped, or name the folder of the "
            "pictures that were annotated with --images"
        )


def _can_prove(reference: Reference) -> bool:
    if reference.problem is not None or not is_image_name(reference.source):
        return False
    if reference.mask is not None:
        return reference.mask.lower().endswith(".png")
    size = reference.declared_size
    return reference.boxes is not None and size is not None and size[0] != size[1]


def _proof(reference: Reference, images: SourceFiles) -> str | None:
    """The grid that a picture's own declared size proves: "stored" or "displayed", or NEITHER; None: either of them."""
    try:
        sizes, declared = _sizes(reference.source, images), reference.declared_size
        if sizes and reference.mask is None and declared not in sizes:
            return NEITHER
        if len(set(sizes)) < 2:
            return None
        if reference.mask is not None:
            header = images.head(reference.mask, _PNG_HEAD)
            declared = (int.from_bytes(header[20:24], "big"), int.from_bytes(header[16:20], "big"))
    except SourceError:
        return None
    return dict(zip(sizes, ("stored", "displayed"), strict=True)).get(declared or (0, 0))


def stored_sizes(paths: Sequence[str], images: SourceFiles) -> list[tuple[Size, ...]]:
    """The sizes that annotations of each picture may speak of, () where the beginning of the file does not show it."""

    def sizes(path: str) -> tuple[Size, ...]:
        try:
            return _sizes(path, images)
        except SourceError:
            return ()

    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(sizes, paths))


def _sizes(path: str, images: SourceFiles) -> tuple[Size, ...]:
    """The size of a picture as stored, and as displayed where that swaps the sides; () where it does not say one."""
    # The command line's help imports the layouts, and is not to wait for the decoders.
    from halofeed.prep.formats.picture import size_and_orientation

    for size in _HEADS:  # as few bytes as show it
        head = images.head(path, size)
        found = size_and_orientation(head)
        if found is not None or len(head) < size:
            break
    else:
        found = size_and_orientation(images.read(path))
    if found is None or not all(found[0]):
        return ()
    (height, width), orientation = found
    return ((height, width), (width, height)) if orientation >= 5 else ((height, width),)
