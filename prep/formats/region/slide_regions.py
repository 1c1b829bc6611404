"""Reader of regions of DICOM whole-slide images, whose frames are decoded as far as a window needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import damaged_error, decode_error, truncated_error
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.prep.formats.region.region_reader import RegionFacts, check_window
from halofeed.prep.formats.region.slide_headers import SlideHeader, frame_places, read_levels
from halofeed.prep.formats.region.tiff_blocks import GROUP_BYTES, Window, neighbors
from halofeed.prep.formats.region.tiff_samples import ycbcr_to_rgb
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError, require_extra
from halofeed.system.threads import OrderedThreads

Decode = Callable[[bytes, SlideHeader], NDArray[Any]]

_WHITE = 255
"""Value of places without a tile: slides are bright where there is no tissue."""
_ITEM, _END = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0"
"""Tags of an item and of the end of a sequence (PS3.5, A.4)."""


def _decode_jpeg(data: bytes, header: SlideHeader) -> NDArray[Any]:
    """Decode a JPEG frame. The photometric interpretation states the color, whatever markers say (PS3.5, 8.2.1)."""
    from imagecodecs import jpeg8_decode

    # libjpeg fills in the missing end of a JPEG and reports success.
    if not data.rstrip(b"\0").endswith(b"\xff\xd9"):
        raise truncated_error("its JPEG data have no end")
    if header.samples == 1:
        return np.asarray(jpeg8_decode(data))
    stored = "RGB" if header.color == "RGB" else "YCBCR"
    return np.asarray(jpeg8_decode(data, colorspace=stored, outcolorspace="RGB"))


def _decode_jpeg_2000(data: bytes, header: SlideHeader) -> NDArray[Any]:
    """Decode a JPEG 2000 frame, whose own header states whether the decoder converts luma and chroma (PS3.5, 8.2.4).

    Slides of Aperio with compression 33003 have luma and chroma without that conversion, and were wrapped as YBR_ICT,
    which OpenSlide, pydicom and wsidicom show as red and green (openslide/openslide#772).
    """
    from imagecodecs import jpeg2k_decode

    frame = np.asarray(jpeg2k_decode(data))
    is_luma = header.color.startswith("YBR_") and not _converts_colors(data)
    if is_luma and frame.dtype != np.uint8:
        raise decode_error("slide of these samples is not supported", f"{header.color} of {header.bits} bits")
    return ycbcr_to_rgb(frame) if is_luma else frame


def _converts_colors(data: bytes) -> bool:
    """Return the multiple component transformation of a JPEG 2000 codestream (ITU-T T.800, A.6.1)."""
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1] not in (0x90, 0xD9):
        if data[at + 1] == 0x52:
            return data[at + 8] != 0
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise damaged_error("its JPEG 2000 data have no coding style")


def _decode_jpeg_ls(data: bytes, header: SlideHeader) -> NDArray[Any]:
    from imagecodecs import jpegls_decode

    return np.asarray(jpegls_decode(data))


def _decode_plain(data: bytes, header: SlideHeader) -> NDArray[Any]:
    """Return the samples of a frame without compression."""
    values = np.frombuffer(data, f"<u{header.bits // 8}")
    (height, width), samples = header.tile, header.samples
    if header.is_planar and samples > 1:
        return np.moveaxis(values.reshape(samples, height, width), 0, 2)
    return values.reshape(height, width, samples)


DECODERS: Mapping[str, Decode] = {
    "1.2.840.10008.1.2.1": _decode_plain,
    "1.2.840.10008.1.2.4.50": _decode_jpeg,
    "1.2.840.10008.1.2.4.80": _decode_jpeg_ls,
    "1.2.840.10008.1.2.4.81": _decode_jpeg_ls,
    "1.2.840.10008.1.2.4.90": _decode_jpeg_2000,
    "1.2.840.10008.1.2.4.91": _decode_jpeg_2000,
}
"""Decoders by transfer syntax: explicit little endian, JPEG baseline, JPEG-LS, JPEG 2000."""
_PLAIN = "1.2.840.10008.1.2.1"
_COLORS: Mapping[Decode, tuple[str, ...]] = {
    _decode_plain: ("RGB", "MONOCHROME2"),
    _decode_jpeg: ("RGB", "YBR_FULL_422", "YBR_FULL", "MONOCHROME2"),
    _decode_jpeg_ls: ("RGB", "MONOCHROME2"),
    _decode_jpeg_2000: ("RGB", "YBR_ICT", "YBR_RCT", "YBR_FULL", "MONOCHROME2"),
}
"""Photometric interpretations whose pixels each decoder returns as red, green and blue, or as gray."""


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Place of a frame in the grid of tiles, its number, and its bytes in the file."""

    row: int
    column: int
    number: int
    start: int
    stop: int


class SlideRegions:
    """Reader of one slide and its levels.

    Args:
        files: source files.
        path: path of the largest resolution.
        threads: threads that decode frames.
    """

    def __init__(self, files: SourceFiles, path: str, threads: int) -> None:
        found, damaged = read_levels(files, path)
        _check(found[0])
        self._levels = [header for header in found if header is found[0] or _is_read(header)]
        damaged += len(found) - len(self._levels)
        self._pool = OrderedThreads(threads)
        self._threads = threads
        self._sources = [files.open_ranges(header.path) for header in self._levels]
        self._places: dict[int, list[tuple[int, int]]] = {}
        first = self._levels[0]
        self.facts = RegionFacts(
            levels=tuple(header.size for header in self._levels),
            bands=first.samples,
            dtype=f"uint{first.bits}",
            color="gray" if first.samples == 1 else "rgb",
            row_steps=tuple(header.tile[0] for header in self._levels),
            pixel_size_m=first.pixel_size_m,
            notes=("slide files beside it could not be read as its resolutions",) if damaged else (),
        )

    def read_bytes(self, level: int, height: int, width: int) -> int:
        """Return the memory of the frames that threads decode at the same time, and of the places of all frames."""
        header = self._levels[level]
        frame = header.tile[0] * header.tile[1] * header.samples * header.bits // 8
        return self._threads * (6 * frame + 2 * GROUP_BYTES) + 200 * header.count

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window, see `RegionReader.read`.

        Raises:
            SourceError: a frame is damaged, or a file has changed.
        """
        check_window(self.facts, level, top, left, height, width)
        window = Window(top=top, left=left, height=height, width=width)
        header = self._levels[level]
        self._sources[level].check_unchanged()
        if level not in self._places:
            self._places[level] = frame_places(header, self._sources[level])
        places = self._places[level]
        pixels = np.empty((height, width, header.samples), self.facts.dtype)
        shown = list(_frames_of(header, window))
        if any(frame is None for *_, frame in shown):
            pixels[:] = _WHITE
        present = [
            _Frame(row=row, column=column, number=number, start=places[number][0], stop=places[number][1])
            for row, column, number in shown
            if number is not None
        ]
        for _ in self._pool.map(
            lambda group: self._copy(level, group, window, pixels), [*neighbors(present)]
        ):
            pass
        return pixels

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        """Return where a window has tiles, see `RegionReader.read_valid`."""
        check_window(self.facts, level, top, left, height, width)
        window = Window(top=top, left=left, height=height, width=width)
        header = self._levels[level]
        valid = None
        for row, column, frame in _frames_of(header, window):
            if frame is None:
                valid = np.ones((height, width), np.bool_) if valid is None else valid
                target, _ = _overlap(row, column, header, window)
                valid[target] = False
        return valid

    def _copy(self, level: int, group: Sequence[_Frame], window: Window, pixels: NDArray[Any]) -> None:
        """Read neighboring frames at once, and copy the part of each that the window shows."""
        header, source = self._levels[level], self._sources[level]
        first = group[0].start
        data = memoryview(source.read(first, max(one.stop for one in group)))
        for one in group:
            try:
                with decoder_failures():
                    part = bytes(data[one.start - first : one.stop - first])
                    if len(part) < one.stop - one.start:
                        raise truncated_error(f"it ends at byte {one.stop} of {source.size}")
                    frame = _decode(part, header)
            except SourceError as error:
                raise error.at(f"frame {one.number + 1} of {header.path.rpartition('/')[2]}") from error
            target, shown = _overlap(one.row, one.column, header, window)
            pixels[target] = frame[shown]

    def close(self) -> None:
        """Close the files and end the threads."""
        self._pool.close()
        for source in self._sources:
            source.close()


def _check(header: SlideHeader) -> None:
    """Refuse frames of a form that is not decoded here."""
    if header.syntax not in DECODERS:
        raise decode_error(
            "slide of this compression is not supported",
            f"transfer syntax {header.syntax}; write it anew as JPEG, such as with wsidicom",
        )
    is_known = header.color in _COLORS[DECODERS[header.syntax]]
    fits = header.samples == (1 if header.color == "MONOCHROME2" else 3)
    if header.bits not in (8, 16) or not is_known or not fits:
        raise decode_error(
            "slide of these samples is not supported",
            f"{header.samples} samples of {header.bits} bits, {header.color}",
        )


def _decode(data: bytes, header: SlideHeader) -> NDArray[Any]:
    """Return the pixels of a frame [height, width, sample] from its bytes in the file."""
    joined = data if header.syntax == _PLAIN else _joined(data)
    frame = DECODERS[header.syntax](joined, header)
    frame = frame.reshape(*frame.shape[:2], -1)
    if frame.shape != (*header.tile, header.samples) or frame.dtype.itemsize * 8 != header.bits:
        held = f"{frame.dtype} of the shape {frame.shape}"
        raise damaged_error(f"it holds {held}, expected {header.bits} bits of {header.tile}")
    return frame


def _is_read(header: SlideHeader) -> bool:
    try:
        _check(header)
    except SourceError:
        return False
    return True


def _frames_of(header: SlideHeader, window: Window) -> Iterator[tuple[int, int, int | None]]:
    """Yield the place of each tile that a window overlaps, and the number of its frame; None for a missing one."""
    height, width = header.tile
    for row in range(window.top // height, -(-window.bottom // height)):
        for column in range(window.left // width, -(-window.right // width)):
            yield row, column, header.frames.get((row, column))


def _overlap(
    row: int, column: int, header: SlideHeader, window: Window
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return the part of a window that a tile covers, and the part of the tile."""
    targets, parts = [], []
    for number, step, start, stop in (
        (row, header.tile[0], window.top, window.bottom),
        (column, header.tile[1], window.left, window.right),
    ):
        low, high = max(number * step, start), min((number + 1) * step, stop)
        targets.append(slice(low - start, high - start))
        parts.append(slice(low - number * step, high - number * step))
    return (targets[0], targets[1]), (parts[0], parts[1])


def _joined(data: bytes) -> bytes:
    """Return the bytes of a compressed frame from its items."""
    fragments, at = [], 0
    while data[at : at + 4] == _ITEM:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        fragments.append(data[at + 8 : at + 8 + size])
        if len(fragments[-1]) < size:
            raise truncated_error("the file ends inside a frame")
        at += 8 + size
    if not fragments or data[at : at + 4] not in (b"", _END):
        raise damaged_error("its items do not follow each other")
    return b"".join(fragments)


def open_slide_regions(files: SourceFiles, path: str, threads: int = 1) -> SlideRegions:
    """Open a DICOM slide by its largest resolution; its levels are the other resolutions in the same folder.

    Raises:
        SourceError: the file is no slide, or of a kind that is not supported.
        MissingExtraError: imagecodecs is not installed.

    Source: DICOM PS3.3, A.32.8.
    """
    with require_extra("large", "imagecodecs"):
        import imagecodecs  # noqa: F401
    return SlideRegions(files, path, threads)
