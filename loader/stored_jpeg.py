"""Reader of a stored JPEG picture, which decodes only the part that a view shows, when the view is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import ImageShape, Ranges, View, slices_within
from halofeed.loader.decode import JPEG_COLORS, check_picture_size, decoding_failures
from halofeed.loader.jpeg_intervals import cut, read_layout
from halofeed.loader.record import StoredRecord
from halofeed.schemas.fields import Field

_SMALLEST_SIDE = 16
"""Below this, several scales of libjpeg give one size, so the scale of a requested size is ambiguous."""


class StoredJpeg:
    """A JPEG picture of a record; see `halofeed.loader.augment.view.DecodedSource`.

    Args:
        record: the record, for messages.
        field: the image's field.
        file: the JPEG file, which must outlive this object.
        fast: decode as `DECODE["fast"]` describes.

    Raises:
        CorruptFileError: the header is damaged, or the picture is larger than the field.
    """

    __slots__ = ("_fast", "_field", "_file", "_record", "dtype", "shape")

    def __init__(self, record: StoredRecord, field: Field, file: memoryview, *, fast: bool) -> None:
        self._record, self._field, self._file, self._fast = record, field, file, fast
        self.shape: ImageShape = (*check_picture_size(file, field, record), field.shape[2])
        self.dtype = np.dtype(np.uint8)

    @property
    def place(self) -> str:
        """Return the record's place, for messages."""
        return self._record.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""
        box = view.box
        # Decoding into the batch saves a copy.
        is_direct = view.is_as_stored and out.dtype == self.dtype and out.strides[1:] == (self.shape[2], 1)
        pixels, shown = self._decode_part(box, out if is_direct else None)
        if pixels is not out:
            view.part(shown)[0].copy(pixels, out)

    def decoded(self, view: View, most: int) -> tuple[NDArray[Any], ImageShape, int]:
        """Return what the view shows, at a fraction of the size with "fast"; see `DecodedSource`."""
        factor = most if self._fast and min(self.shape[:2]) >= _SMALLEST_SIDE else 1
        if factor == 1:
            pixels, shown = self._decode_part(view.box, None)
            return view.part(shown)[0].shown(pixels), (0,) * len(view.shape), 1
        file, shown = self._part(view.box, factor)
        # Only the view's pixels are returned, so the result does not depend on what else the intervals show.
        held = tuple((low // factor, -(-high // factor)) for low, high in view.box)
        origin = tuple((low // factor, high) for low, high in shown)
        pixels = self._decode(file, shown, factor)[slices_within(held, origin)]
        starts = []
        for start, size, axis, back in zip(view.start, view.shape, view.order, view.backwards, strict=True):
            low, high = (factor * side for side in held[axis])
            starts.append(start + size - high if back else low - start)
        sides = tuple(pixels.shape[axis] for axis in view.order)
        turned = View(start=(0, 0), shape=sides, order=view.order, backwards=view.backwards)
        return turned.shown(pixels), tuple(starts), factor

    def _decode_part(self, box: Ranges, out: NDArray[Any] | None) -> tuple[NDArray[Any], Ranges]:
        """Decode at least a box; return the pixels and what they show.

        Args:
            box: rows and columns.
            out: memory of the box's shape, which is used if exactly the box is decoded; None is the scratch.
        """
        file, shown = self._part(box, 1)
        fits = out is not None and shown == box and out.flags.c_contiguous
        return self._decode(file, shown, 1, out if fits else None), shown

    def _part(self, box: Ranges, factor: int) -> tuple[memoryview, Ranges]:
        """Return a JPEG file that shows at least a box, and the rows and columns that it shows."""
        complete = tuple((0, size) for size in self.shape[:2])
        layout = read_layout(self._file)
        # The decoder may take another of several frame headers.
        if layout is None or layout.size != self.shape[:2]:
            return self._file, complete
        # "accurate" decoders compute a pixel's color from the next sample too, which may be in the next unit.
        reach = factor if layout.has_subsampled_colors and not self._fast else 0
        part = cut(self._file, layout, tuple((max(0, low - reach), high + reach) for low, high in box))
        return (self._file, complete) if part is None else (memoryview(part[0]), part[1])

    def _decode(
        self, file: memoryview, shown: Ranges, factor: int, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Decode a JPEG file of the pixels `shown` at a fraction of its size, into `out` or this thread's scratch."""
        import simplejpeg  # raw records do not need it

        height, width = (-(-(high - low) // factor) for low, high in shown)
        if out is None:
            out = self._record.scratch(height * width * self.shape[2]).reshape(height, width, self.shape[2])
        options = {} if factor == 1 else {"min_height": height, "min_width": width}
        with decoding_failures(self._field, self._record):
            simplejpeg.decode_jpeg(
                file,
                JPEG_COLORS[self.shape[2]],
                fastdct=self._fast,
                fastupsample=self._fast,
                buffer=out,
                **options,
            )
        return out
