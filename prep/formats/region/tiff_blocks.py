"""Decoding of the tiles or strips of one TIFF page, as far as a window needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import Size, damaged_error, decode_error, truncated_error
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.prep.formats.region.tiff_pages import page_size
from halofeed.prep.sources.files import SourceRanges
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from tifffile import TiffPage

    from halofeed.system.threads import OrderedThreads

_GAP_BYTES = 64 << 10
"""Bytes between two blocks that are read with them, because a further request takes longer."""
GROUP_BYTES = 4 << 20
"""Bytes of neighboring blocks that are read at once, unless one block is larger."""
APERIO_YCBCR = 33003
"""JPEG 2000 of Aperio, whose decoder returns luma and chroma as they are stored."""
_JPEG = (6, 7, 33007, 34892)
_OLD_JPEG = 6
_MAX_SIDE = 4096
"""A tile may be larger than the picture up to this side; its complete buffer is allocated."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rows and columns of a page: the first of each, and their numbers."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def right(self) -> int:
        return self.left + self.width


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Bytes of a block in the file, and where its pixels are in the page."""

    number: int
    start: int
    stop: int
    top: int
    left: int
    sample: int


class HasBytes(Protocol):
    """Anything at a place in a file."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


Placed = TypeVar("Placed", bound=HasBytes)


class PageBlocks:
    """Blocks of one page.

    Args:
        page: page whose samples are decoded.
        source: the file.
        name: name of the page in messages.

    Raises:
        SourceError: the page has another compression than those read here, or lacks the places of its blocks.
    """

    def __init__(self, page: TiffPage, source: SourceRanges, name: str) -> None:
        self._page, self._source, self._name = page, source, name
        self.size: Size = page_size(page)
        self.samples = page.samplesperpixel
        self._is_planar = page.planarconfig == 2 and self.samples > 1
        assert page.dtype is not None
        self.dtype = np.dtype(np.uint8) if page.dtype == np.bool_ else page.dtype.newbyteorder("=")
        self._check()
        rows = page.tilelength if page.is_tiled else min(page.rowsperstrip, self.size[0])
        self._block: Size = (rows, page.tilewidth if page.is_tiled else self.size[1])
        self._offsets, self._counts = page.dataoffsets, page.databytecounts
        self._grid = tuple(-(-side // step) for side, step in zip(self.size, self._block, strict=True))
        needed = self._grid[0] * self._grid[1] * (self.samples if self._is_planar else 1)
        if min(len(self._offsets), len(self._counts)) < needed:
            found = min(len(self._offsets), len(self._counts))
            raise damaged_error(f"{name} has {plural(found, 'block')} of pixels, expected {needed}")
        self._row_bytes = self._plain_row_bytes()
        # A cached property that threads must not be the first to ask for (tifffile, `TiffPage.init_decode`).
        self._decode_block = page.decode

    def _check(self) -> None:
        page = self._page
        compression = int(page.compression)
        from tifffile import TIFF

        is_read = compression == 1 or compression in TIFF.DECOMPRESSORS
        if not is_read or compression == _OLD_JPEG:
            raise decode_error(
                "TIFF of this compression is not supported",
                f"compression {compression}; `gdal_translate -co COMPRESS=DEFLATE -co TILED=YES a.tif b.tif` writes it "
                "anew",
            )
        if page.imagedepth != 1:
            raise decode_error("TIFF of volumes is not supported", f"{page.imagedepth} slices in one page")
        if page.is_tiled:
            for tile, pixels in zip((page.tilelength, page.tilewidth), self.size, strict=True):
                if not 1 <= tile <= max(4 * pixels, _MAX_SIDE):
                    raise damaged_error(f"a tile side of {tile} for {plural(pixels, 'pixel')}")
        elif page.rowsperstrip < 1:
            raise damaged_error(f"{page.rowsperstrip} rows per strip")

    def _plain_row_bytes(self) -> int:
        """Return the bytes of a row in strips without compression, of which any rows can be read; 0 for others."""
        page = self._page
        if page.is_tiled or int(page.compression) != 1 or page.predictor != 1 or page.fillorder != 1:
            return 0
        bits = int(page.bitspersample)
        if bits % 8 and self.dtype.kind != "u":
            return 0
        return -(-self.size[1] * (1 if self._is_planar else self.samples) * bits // 8)

    @property
    def row_step(self) -> int:
        """Rows that are decoded together."""
        return 1 if self._row_bytes else self._block[0]

    @property
    def column_step(self) -> int:
        """Columns that are decoded together."""
        return self._block[1]

    @property
    def block_bytes(self) -> int:
        """Bytes that are decoded together."""
        if self._row_bytes:
            return self._row_bytes
        samples = 1 if self._is_planar else self.samples
        return self._block[0] * self._block[1] * samples * self.dtype.itemsize

    def read_bytes(self, height: int, width: int, threads: int) -> int:
        """Return the maximum memory of `read` beside the returned array."""
        decoded = self.block_bytes
        if self._row_bytes:
            return 2 * threads * max(decoded, GROUP_BYTES)
        encoded = max(GROUP_BYTES, max(self._counts, default=0)) + _GAP_BYTES
        # The decoder's output, and its copy where the bytes are reordered or the predictor is undone.
        return threads * (encoded + 3 * decoded)

    def read(self, window: Window, threads: OrderedThreads, fill: float) -> NDArray[Any]:
        """Return the decoded samples [height, width, sample] of a window.

        Args:
            window: window inside the page.
            threads: threads that decode blocks.
            fill: value of pixels whose block is not in the file.

        Raises:
            SourceError: a block is damaged, or beyond the end of the file; the message names it.
        """
        samples = np.empty((window.height, window.width, self.samples), self.dtype)
        if self._row_bytes:
            pieces = list(self._plain_pieces(window))
            if any(block.stop == block.start for block, _ in pieces):
                samples[:] = fill
            for _ in threads.map(lambda piece: self._copy_rows(piece, window, samples), pieces):
                pass
            return samples
        present = [block for block in self._blocks(window) if block.stop > block.start]
        if len(present) < sum(1 for _ in self._blocks(window)):
            samples[:] = fill
        groups = list(neighbors(present))
        for _ in threads.map(lambda group: self._copy_blocks(group, window, samples), groups):
            pass
        return samples

    def missing(self, window: Window) -> NDArray[np.bool_] | None:
        """Return where a window has no pixels because their block is not in the file; None if there are all.

        GDAL writes such sparse files, with 0 for the offset or the bytes of a block.
        """
        found = None
        for block in self._blocks(window):
            if block.stop == block.start and block.sample == 0:
                found = np.zeros((window.height, window.width), np.bool_) if found is None else found
                rows, columns = self._target(block, window, self._block)
                found[rows, columns] = True
        return found

    def _blocks(self, window: Window) -> Iterator[_Block]:
        """Yield the blocks that a window overlaps, by samples, rows and columns."""
        (height, width), (down, across) = self._block, self._grid
        for sample in range(self.samples if self._is_planar else 1):
            for row in range(window.top // height, -(-window.bottom // height)):
                for column in range(window.left // width, -(-window.right // width)):
                    number = (sample * down + row) * across + column
                    start, count = int(self._offsets[number]), int(self._counts[number])
                    stop = start + count if start else start
                    yield _Block(
                        number=number,
                        start=start,
                        stop=stop,
                        top=row * height,
                        left=column * width,
                        sample=sample,
                    )

    @staticmethod
    def _target(block: _Block, window: Window, size: Size) -> tuple[slice, slice]:
        """Return the rows and columns of a window that a block of this size covers."""
        top, left = max(block.top, window.top), max(block.left, window.left)
        bottom = min(block.top + size[0], window.bottom)
        right = min(block.left + size[1], window.right)
        return slice(top - window.top, bottom - window.top), slice(left - window.left, right - window.left)

    def _copy_blocks(self, group: list[_Block], window: Window, samples: NDArray[Any]) -> None:
        """Read neighboring blocks at once, and copy the part of each that the window shows."""
        start, stop = group[0].start, max(block.stop for block in group)
        data = memoryview(self._source.read(start, stop))
        for block in group:
            part = data[block.start - start : block.stop - start]
            with self._named(block):
                if len(part) < block.stop - block.start:
                    raise truncated_error(f"it ends at byte {block.stop} of {self._source.size}")
                pixels = self._decode(bytes(part), block)
                rows, columns = self._target(block, window, pixels.shape[:2])
                self._check_covered(block, window, pixels.shape[:2])
                top, left = max(window.top - block.top, 0), max(window.left - block.left, 0)
                shown = pixels[top : top + rows.stop - rows.start, left : left + columns.stop - columns.start]
                last = block.sample + (1 if self._is_planar else self.samples)
                samples[rows, columns, block.sample : last] = shown

    def _check_covered(self, block: _Block, window: Window, size: Size) -> None:
        """Check that a decoded block has all its pixels inside the picture; tiles at the rim may lack the others."""
        expected = [
            min(step, side - first)
            for step, side, first in zip(self._block, self.size, (block.top, block.left), strict=True)
        ]
        if size[0] < expected[0] or size[1] < expected[1]:
            raise damaged_error(
                f"it holds {size[0]} x {size[1]} pixels, expected {expected[0]} x {expected[1]}"
            )

    def _decode(self, data: bytes, block: _Block) -> NDArray[Any]:
        """Decode a block to [height, width, sample]."""
        page = self._page
        is_jpeg = int(page.compression) in _JPEG
        # libjpeg fills in the missing end of a JPEG and reports success. Hamamatsu's blocks are the parts of one JPEG
        # between restart markers, as OpenSlide decodes them: decoded as one JPEG, chroma at their borders differs by
        # a few levels.
        if is_jpeg and not page.jpegheader and not data.rstrip(b"\0").endswith(b"\xff\xd9"):
            raise truncated_error("its JPEG data have no end")
        if int(page.compression) == APERIO_YCBCR:
            # tifffile refuses the subsampling that the tag 530 states by default, though the codestream has none.
            from imagecodecs import jpeg2k_decode

            whole: NDArray[Any] = jpeg2k_decode(data)
            return whole
        tables = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader} if is_jpeg else {}
        decoded = self._decode_block(data, block.number, **tables)[0]
        if decoded is None:
            raise damaged_error("it has no pixels")
        pixels: NDArray[Any] = decoded[0]
        if pixels.dtype.newbyteorder("=") not in (self.dtype, np.dtype(np.bool_)):
            raise damaged_error(f"it holds {pixels.dtype}, expected {self.dtype}")
        return pixels

    @contextmanager
    def _named(self, block: _Block) -> Iterator[None]:
        """Name the block in errors about it."""
        try:
            with decoder_failures():
                yield
        except SourceError as error:
            kind = "tile" if self._page.is_tiled else "strip"
            place = f"rows from {block.top}, columns from {block.left}"
            raise error.at(f"{kind} {block.number} of {self._name} ({place})") from error

    def _plain_pieces(self, window: Window) -> Iterator[tuple[_Block, int]]:
        """Yield ranges of rows in strips without compression, and the number of rows of each."""
        most = max(1, GROUP_BYTES // self._row_bytes)
        for block in self._blocks(Window(top=window.top, left=0, height=window.height, width=1)):
            top = max(block.top, window.top)
            bottom = min(block.top + self._block[0], window.bottom)
            for first in range(top, bottom, most):
                count = min(most, bottom - first)
                start = block.start + (first - block.top) * self._row_bytes
                stop = start + count * self._row_bytes if block.stop > block.start else start
                piece = _Block(
                    number=block.number, start=start, stop=stop, top=first, left=0, sample=block.sample
                )
                if stop > block.stop and block.stop > block.start:
                    with self._named(piece):
                        raise truncated_error(f"{block.stop - block.start} bytes of pixels")
                yield piece, count

    def _copy_rows(self, piece: tuple[_Block, int], window: Window, samples: NDArray[Any]) -> None:
        """Read rows of a strip without compression."""
        block, count = piece
        rows = slice(block.top - window.top, block.top - window.top + count)
        last = block.sample + (1 if self._is_planar else self.samples)
        if block.stop == block.start:
            return
        data = self._source.read(block.start, block.stop)
        with self._named(block):
            if len(data) < block.stop - block.start:
                raise truncated_error(f"it ends at byte {block.stop} of {self._source.size}")
            values = self._unpack(data).reshape(count, self.size[1], last - block.sample)
            samples[rows, :, block.sample : last] = values[:, window.left : window.right]

    def _unpack(self, data: bytes) -> NDArray[Any]:
        page = self._page
        bits = int(page.bitspersample)
        if bits % 8 or bits == 24:
            from imagecodecs import packints_decode

            run = self.size[1] * (1 if self._is_planar else self.samples)
            unpacked: NDArray[Any] = packints_decode(data, self.dtype, bits, runlen=run)
            return unpacked
        return np.frombuffer(data, self.dtype.newbyteorder(page.parent.byteorder))


def neighbors(blocks: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Yield blocks in groups that are read at once."""
    group: list[Placed] = []
    for block in sorted(blocks, key=lambda one: one.start):
        if group:
            gap, size = block.start - max(one.stop for one in group[-1:]), block.stop - group[0].start
            if gap > _GAP_BYTES or size > GROUP_BYTES:
                yield group
                group = []
        group.append(block)
    if group:
        yield group
