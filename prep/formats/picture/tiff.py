"""Reader of TIFF files: the directories are parsed here, Pillow and libtiff decode the pixels."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import TiffImagePlugin, _imaging

from halofeed.prep.formats.picture.image import (
    GRAY_BANDS,
    MORE_BANDS,
    MemoryEstimate,
    OpenedImage,
    Raster,
    Size,
    damaged_error,
    decode_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.pillow import (
    copy_pixels,
    decoder_failures,
    load_16_bit,
    load_raster,
    open_with_plugin,
)
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

NEW_SUBFILE_TYPE = 254
ORIENTATION = 274
_REDUCED_OR_MASK = 5
_THREE_BANDS = (
    "gdal_translate -b 1 -b 2 -b 3 -co PHOTOMETRIC=RGB -co ALPHA=NO a.tif b.tif writes the first three bands as "
    "a color picture"
)
_ONE_BAND = "gdal_translate -b 1 -co ALPHA=NO a.tif b.tif writes the first band as a gray picture"
_SCALE = (
    "gdal_translate -ot UInt16 -scale MIN MAX 0 65535 a.tif b.tif writes it as 16 bits: take one MIN and one MAX "
    "for all pictures"
)
_MAX_PAGES = 64

# Bytes per value of each field type, TIFF 6.0 section 2 and BigTIFF.
_SIZES = {1: (1, 2, 6, 7), 2: (3, 8), 4: (4, 9, 11, 13), 8: (5, 10, 12, 16, 17, 18)}
TYPE_BYTES = {type_: size for size, types in _SIZES.items() for type_ in types}
UNSIGNED = frozenset((1, 3, 4, 13, 16, 18))
MAX_ENTRIES = 1 << 16
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, SAMPLES = 256, 257, 258, 259, 262, 277
STRIP_OFFSETS, STRIP_BYTES, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES = 273, 279, 322, 323, 324, 325
EXTRA_SAMPLES, SAMPLE_FORMAT = 338, 339
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, LAB = 0, 1, 2, 8
PHOTOMETRICS = {0: "white is 0", 1: "black is 0", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr", 8: "Lab"}
SAMPLE_FORMATS = {1: "unsigned integer", 2: "signed integer", 3: "floating point"}
PREMULTIPLIED, SHORT, UNCOMPRESSED, JPEG, YCBCR = 1, 3, 1, 7, 6
ROWS_PER_STRIP, PLANAR = 278, 284
_SEPARATE = 2
"""Planar configuration in which each color has its own strips or tiles."""
BLOCK_RECORD_BYTES = 1024
"""Memory of Pillow for the position of each block."""
# Tags that describe the pixels, TIFF 6.0 and its supplements; 512 to 521 belong to old-style JPEG.
SINGLE_TAGS = frozenset((256, 257, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 512, 513, 514, 515))
LISTED_TAGS = frozenset((258, 273, 279, 320, 324, 325, 338, 339, 347, 517, 518, 519, 520, 521, 529, 530, 532))
_PIXEL_TAGS = SINGLE_TAGS | LISTED_TAGS


@dataclass(frozen=True, kw_only=True)
class TiffField:
    """One directory entry: its type, its number of values, and their bytes (None if they are beyond the end)."""

    type: int
    count: int
    data: memoryview | None


@dataclass(frozen=True, kw_only=True)
class TiffDirectory:
    """TIFF directory: byte order (< or >), whether BigTIFF, fields by tag, position of the next one (0: none)."""

    order: str
    big: bool
    fields: Mapping[int, TiffField]
    following: int

    def integers(self, tag: int) -> NDArray[Any]:
        """Return the values of an unsigned integer field; empty if it is absent or has another type."""
        field = self.fields.get(tag)
        # Numbers about pixels are unsigned (TIFF 6.0, section 8); `_layout` reports values beyond the end.
        if field is None or field.type not in UNSIGNED or field.data is None:
            return np.empty(0, np.int64)
        kind = f"{self.order}u{TYPE_BYTES[field.type]}"
        return np.frombuffer(field.data, kind, field.count)

    def integer(self, tag: int, default: int) -> int:
        """Return the first value of an unsigned integer field."""
        values = self.integers(tag)
        return int(values[0]) if len(values) else default


def holds_further_page(data: bytes, first: TiffDirectory) -> bool:
    """Return whether a later directory is another picture, not a smaller copy or a mask."""
    directory, seen = first, {0}
    while directory.following not in seen and len(seen) < _MAX_PAGES:
        seen.add(directory.following)
        try:
            directory = read_tiff_directory(data, directory.following)
        except SourceError:  # a damaged page is a page too, which the note about further pages must not hide
            return True
        if not directory.integer(NEW_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK:
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _TiffForm:
    """Byte order (< or >), and the widths of the numbers: BigTIFF has positions and counts of 64 bits."""

    order: str
    big: bool

    @property
    def inline_bytes(self) -> int:
        """Bytes of a position, and of the values that an entry holds itself."""
        return 8 if self.big else 4

    @property
    def entry_bytes(self) -> int:
        return 20 if self.big else 12

    @property
    def count_bytes(self) -> int:
        """Bytes of the number of entries."""
        return 8 if self.big else 2

    def number(self, data: bytes, at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little" if self.order == "<" else "big")


def _tiff_form(data: bytes) -> _TiffForm:
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise damaged_error("no TIFF header")
    if len(data) < 8:
        raise truncated_error("no room for a TIFF header")
    version = struct.unpack_from(f"{order}H", data, 2)[0]
    if version not in (42, 43):
        raise damaged_error(f"TIFF version {version}")
    if version == 43 and len(data) < 16:
        raise truncated_error("no room for a BigTIFF header")
    return _TiffForm(order=order, big=version == 43)


def read_tiff_directory(data: bytes, start: int | None = None) -> TiffDirectory:
    """Read the directory at byte `start`, by default the first one.

    Fields of unknown type are skipped, as TIFF 6.0 requires.

    Raises:
        SourceError: the structure is not TIFF, or its directory is beyond the end of the bytes.
    """
    form = _tiff_form(data)
    if start is None:
        start = form.number(data, form.inline_bytes, form.inline_bytes)
    first = start + form.count_bytes
    if first > len(data):
        raise truncated_error(f"the directory is at byte {start} of {len(data)}")
    count = form.number(data, start, form.count_bytes)
    end = first + count * form.entry_bytes
    if end > len(data):
        raise truncated_error(f"the directory of {count} entries ends at byte {end} of {len(data)}")
    if count > MAX_ENTRIES:  # BigTIFF counts entries in 64 bits
        raise damaged_error(f"a directory of {count} entries")
    fields = {}
    for position in range(first, end, form.entry_bytes):
        tag, field = _read_field(data, form, position)
        if field is not None:
            fields[tag] = field
    following = form.number(data, end, form.inline_bytes)
    return TiffDirectory(order=form.order, big=form.big, fields=fields, following=following)


def _read_field(data: bytes, form: _TiffForm, position: int) -> tuple[int, TiffField | None]:
    """Return the tag and the field of the entry at a position; None for an unknown type, which TIFF 6.0 lets skip."""
    tag, type_, count = struct.unpack_from(f"{form.order}HH{'Q' if form.big else 'I'}", data, position)
    if type_ not in TYPE_BYTES:
        return tag, None
    size = count * TYPE_BYTES[type_]
    at = position + form.entry_bytes - form.inline_bytes
    if size > form.inline_bytes:  # the entry holds the position of its values instead
        at = form.number(data, at, form.inline_bytes)
    is_inside = at + size <= len(data)
    field = TiffField(type=type_, count=count, data=memoryview(data)[at : at + size] if is_inside else None)
    return tag, field


def valid_orientation(value: int) -> int:
    """Return an orientation of 1 to 8 unchanged, and 1 (upright) for any other value."""
    return value if 1 <= value <= 8 else 1


def exif_orientation(exif: bytes) -> int:
    """Return the orientation in a block of EXIF data; 1 if it is absent or unreadable.

    Args:
        exif: a TIFF structure, with or without the "Exif" and two zero bytes that JPEG puts before it.

    >>> header, entry = "4949 2a00 08000000 0100", "1201 0300 01000000 0600 0000"
    >>> exif_orientation(bytes.fromhex(header + entry))
    6
    """
    try:
        directory = read_tiff_directory(exif.removeprefix(b"Exif\0\0"))
    except SourceError:
        return 1
    return valid_orientation(directory.integer(ORIENTATION, 1))


@dataclass(frozen=True, kw_only=True)
class SampleLayout:
    """Layout of the samples, as far as it determines how they are decoded.

    Args:
        size: (height, width).
        bits: bits of a sample.
        samples: samples of a pixel.
        photometric: meaning of the samples.
        are_bands: whether the file calls its bands gray, and they are taken for red, green and blue.
        has_more_bands: whether further bands, which are no transparency, follow red, green and blue.
    """

    size: Size
    bits: int
    samples: int
    photometric: int
    are_bands: bool = False
    has_more_bands: bool = False


def _unsupported_compression(compression: int) -> SourceError:
    return decode_error("TIFF of this compression is not supported", f"compression {compression}")


@dataclass(frozen=True, kw_only=True)
class _StoredSamples:
    """Description of the samples by the tags.

    Args:
        photometric: meaning of the samples.
        samples: samples of a pixel.
        bits: the bits of the samples, each number once.
        formats: the sample formats, each once.
        extra: meaning of the samples beyond the colors: 0 is unspecified, others are transparency.
        compression: code of the compression.
    """

    photometric: int
    samples: int
    bits: tuple[int, ...]
    formats: tuple[int, ...]
    extra: NDArray[Any]
    compression: int

    @property
    def depth(self) -> int:
        return self.bits[0]

    @property
    def is_gray(self) -> bool:
        return self.photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO)

    @property
    def are_bands(self) -> bool:
        """True if the file calls its bands gray. Satellite pictures are written so."""
        return self.is_gray and self.samples > 2

    @property
    def has_transparency(self) -> bool:
        return bool((self.extra > 0).any())

    @property
    def has_readable_colors(self) -> bool:
        if self.photometric not in PHOTOMETRICS or self.photometric == LAB:
            return False
        # Pillow has 16-bit modes for gray alone; `load_16_bit` decodes RGB twice, which premultiplied alpha prevents.
        return self.depth < 16 or (
            (self.is_gray or self.photometric == RGB) and PREMULTIPLIED not in self.extra
        )

    def __str__(self) -> str:
        formats = "/".join(SAMPLE_FORMATS.get(value, str(value)) for value in self.formats)
        colors = PHOTOMETRICS.get(self.photometric, f"photometric {self.photometric}")
        return f"{self.samples} x {'/'.join(map(str, self.bits))} bit {formats}, {colors}"


def _stored_samples(directory: TiffDirectory) -> _StoredSamples:
    # Defaults of TIFF 6.0, section 8: one unsigned sample of one bit, uncompressed.
    return _StoredSamples(
        photometric=directory.integer(PHOTOMETRIC, 0),
        samples=directory.integer(SAMPLES, 1),
        bits=tuple(np.unique(directory.integers(BITS)).tolist()) or (1,),
        formats=tuple(np.unique(directory.integers(SAMPLE_FORMAT)).tolist()) or (1,),
        extra=directory.integers(EXTRA_SAMPLES),
        compression=directory.integer(COMPRESSION, 1),
    )


def _check_supported(stored: _StoredSamples) -> None:
    """Refuse pixels that Pillow cannot decode, or decodes to other values than the stored ones."""
    bands = "TIFF of several gray bands is not supported"
    refused = (
        (
            stored.formats != (1,),
            "TIFF of other than unsigned integers is not supported",
            f"{stored}; {_SCALE}",
        ),
        (
            len(stored.bits) != 1 or stored.depth not in (1, 2, 4, 8, 16),
            "TIFF of this bit depth is not supported",
            f"{stored}; {_SCALE}",
        ),
        (not stored.has_readable_colors, "TIFF of these colors is not supported", f"{stored}"),
        (
            stored.compression not in TiffImagePlugin.COMPRESSION_INFO,
            *_unsupported_compression(stored.compression).args[1:],
        ),
        # Two bands, of which none is called transparency.
        (
            stored.is_gray and stored.samples == 2 and not stored.has_transparency,
            bands,
            f"{stored}; {_ONE_BAND}",
        ),
        # Pillow's raw modes end at RGB with three further samples.
        (
            stored.samples > 6,
            "TIFF of this many samples per pixel is not supported",
            f"{stored}; {_THREE_BANDS}",
        ),
        # Three bands are read as red, green and blue; with four or more, nothing shows which are the colors.
        (
            stored.are_bands and (stored.photometric, stored.samples) != (BLACK_IS_ZERO, 3),
            bands,
            f"{stored}; {_THREE_BANDS}",
        ),
        # Relabeled as RGB, such samples have no raw mode of Pillow.
        (
            stored.are_bands and (stored.depth < 8 or bool((stored.extra != 0).any())),
            bands,
            f"{stored}; {_THREE_BANDS}",
        ),
    )
    for is_refused, reason, detail in refused:
        if is_refused:
            raise decode_error(reason, detail)


def _layout(directory: TiffDirectory, byte_count: int) -> SampleLayout:
    """Check the tags of the first picture and return its layout; refuse unsupported pixel types."""
    for tag in _PIXEL_TAGS & directory.fields.keys():
        if directory.fields[tag].data is None:
            raise truncated_error(f"the values of tag {tag} lie beyond byte {byte_count}")
    # Pillow's messages about a list in place of a number do not name the tag.
    for tag in SINGLE_TAGS & directory.fields.keys():
        if directory.fields[tag].count != 1:
            raise damaged_error(f"tag {tag} has {plural(directory.fields[tag].count, 'value')}, expected 1")
    stored = _stored_samples(directory)
    _check_supported(stored)
    return SampleLayout(
        size=(directory.integer(HEIGHT, 0), directory.integer(WIDTH, 0)),
        bits=stored.depth,
        samples=stored.samples,
        photometric=RGB if stored.are_bands else stored.photometric,
        are_bands=stored.are_bands,
        has_more_bands=stored.photometric == RGB and stored.samples > 3 and not stored.has_transparency,
    )


def _check_blocks(directory: TiffDirectory, layout: SampleLayout, data: bytes) -> None:
    """Check that all strips or tiles are within the file and not too large."""
    tiled = TILE_OFFSETS in directory.fields
    offsets, lengths = (
        directory.integers(tag).astype(np.uint64)
        for tag in ((TILE_OFFSETS, TILE_BYTES) if tiled else (STRIP_OFFSETS, STRIP_BYTES))
    )
    _check_positions(offsets, lengths, len(data))
    compression = directory.integer(COMPRESSION, 1)
    # Tiles are padded to their full size, and the lengths of compressed strips say nothing about rows.
    if not tiled and len(lengths) and compression == UNCOMPRESSED:
        _check_uncompressed_size(layout, lengths)
    if len(lengths) and compression == JPEG:
        _check_jpeg_ends(offsets, lengths, data)
    if tiled:
        _check_tile_sides(directory, layout.size)


def _check_positions(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], byte_count: int) -> None:
    """Check that there is a length for each offset and that all blocks lie in the file."""
    if not len(offsets):
        raise damaged_error("the TIFF has no offsets of its pixels")
    if len(lengths) and len(lengths) != len(offsets):
        raise damaged_error(f"{len(offsets)} blocks of pixels with {len(lengths)} lengths")
    # libtiff estimates lengths that are absent.
    held = lengths if len(lengths) else np.ones(len(offsets), np.uint64)
    beyond = (offsets > byte_count) | (held > byte_count - np.minimum(offsets, byte_count))
    if beyond.any():
        end = max(
            int(offset) + int(length) for offset, length in zip(offsets[beyond], held[beyond], strict=True)
        )
        raise truncated_error(f"pixels end at byte {end} of {byte_count}")


def _check_uncompressed_size(layout: SampleLayout, lengths: NDArray[np.uint64]) -> None:
    """Check that strips hold all rows; Pillow 12.3 returns other pixels for those that they lack."""
    height, width = layout.size
    needed = height * (width * layout.bits * layout.samples // 8)
    found = int(lengths.sum(dtype=np.float64))
    if found < needed:
        raise truncated_error(f"{found} bytes of pixels, expected {needed}")


def _check_jpeg_ends(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], data: bytes) -> None:
    """Check that each block has its end marker: libtiff fills in the missing end of a JPEG and reports success."""
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        if not data[offset : offset + length].rstrip(b"\0").endswith(b"\xff\xd9"):
            raise truncated_error(f"the JPEG data at byte {offset} have no end")


def _check_tile_sides(directory: TiffDirectory, size: Size) -> None:
    """Refuse a tile that extends far beyond the picture: its complete buffer is allocated."""
    for tag, pixels in ((TILE_HEIGHT, size[0]), (TILE_WIDTH, size[1])):
        tile = directory.integer(tag, 0)
        if not 1 <= tile <= max(4 * pixels, 4096):
            raise damaged_error(f"a tile side of {tile} for {plural(pixels, 'pixel')}")


def _plain_tiff(
    data: bytes,
    directory: TiffDirectory,
    replaced: Mapping[int, TiffField],
    dropped: frozenset[int],
    wanted: frozenset[int] = _PIXEL_TAGS,
) -> bytes:
    """Return the file with a new directory at its end: only the pixel tags, some with a replaced value."""
    order, big = directory.order, directory.big
    inline, pointer = (8, "Q") if big else (4, "I")
    entries: list[bytes] = []
    values: list[bytes | memoryview] = []
    fields = {**directory.fields, **replaced}
    kept = [(tag, field) for tag, field in sorted(fields.items()) if tag in wanted - dropped]
    start = len(data) + len(data) % 2
    values_at = start + (8 if big else 2) + len(kept) * (20 if big else 12) + inline
    for tag, field in kept:
        payload: bytes | memoryview = field.data or b""
        if len(payload) > inline:  # values begin at even bytes (TIFF 6.0, section 2)
            place = struct.pack(f"{order}{pointer}", values_at)
            values += [payload, b"\0" * (len(payload) % 2)]
            values_at += len(payload) + len(payload) % 2
        else:
            place = bytes(payload).ljust(inline, b"\0")
        entries.append(struct.pack(f"{order}HH{pointer}", tag, field.type, field.count) + place)
    header = data[:8] + struct.pack(f"{order}Q", start) if big else data[:4] + struct.pack(f"{order}I", start)
    count = struct.pack(f"{order}{'Q' if big else 'H'}", len(kept))
    body = memoryview(data)[len(header) :]
    return b"".join([header, body, b"\0" * (len(data) % 2), count, *entries, b"\0" * inline, *values])


def tiff_rows(data: bytes, directory: TiffDirectory, top: int, bottom: int) -> bytes:
    """Return a TIFF of some rows, with their strips or tiles as they are stored.

    Args:
        directory: directory of a picture whose samples are stored together.
        top: first row, at which a strip or a tile begins.
        bottom: the row after the last one.

    Raises:
        SourceError: a block is missing.
    """
    is_tiled = len(directory.integers(TILE_OFFSETS)) > 0
    tags = (TILE_OFFSETS, TILE_BYTES) if is_tiled else (STRIP_OFFSETS, STRIP_BYTES)
    height, width = directory.integer(HEIGHT, 0), directory.integer(WIDTH, 0)
    rows = directory.integer(TILE_HEIGHT if is_tiled else ROWS_PER_STRIP, height)
    across = -(-width // max(1, directory.integer(TILE_WIDTH, width))) if is_tiled else 1
    first, last = top // max(1, rows) * across, -(-bottom // max(1, rows)) * across
    if is_one_plain_strip(directory):
        offset, row_bytes = (
            directory.integer(STRIP_OFFSETS, 0),
            directory.integer(STRIP_BYTES, 0) // max(1, height),
        )
        strip = data[offset + top * row_bytes : offset + bottom * row_bytes]
        return _small_tiff(data, directory, [strip], {HEIGHT: [bottom - top]}, tags)
    offsets, lengths = (directory.integers(tag)[first:last].astype(np.int64) for tag in tags)
    ends = offsets + lengths[: len(offsets)] if len(lengths) == len(offsets) else offsets
    if len(offsets) != last - first or len(lengths) != len(offsets) or (ends > len(data)).any():
        raise truncated_error(f"blocks {first} to {last - 1} are not all in the file")
    blocks = [data[start:end] for start, end in zip(offsets.tolist(), ends.tolist(), strict=True)]
    return _small_tiff(data, directory, blocks, {HEIGHT: [bottom - top]}, tags)


def is_one_plain_strip(directory: TiffDirectory) -> bool:
    """Return whether all rows are one after the other without compression."""
    return (
        directory.integer(COMPRESSION, UNCOMPRESSED) == UNCOMPRESSED
        and len(directory.integers(STRIP_OFFSETS)) == len(directory.integers(STRIP_BYTES)) == 1
    )


def tiff_row(data: bytes, directory: TiffDirectory, width: int, row: bytes) -> bytes:
    """Return a TIFF of one row of other samples, without compression, whose form is that of a file."""
    sizes = {WIDTH: [width], HEIGHT: [1], COMPRESSION: [UNCOMPRESSED], ROWS_PER_STRIP: [1]}
    return _small_tiff(data, directory, [row], sizes, (STRIP_OFFSETS, STRIP_BYTES))


_BLOCK_TAGS = frozenset((STRIP_OFFSETS, STRIP_BYTES, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES))
_CODING_TAGS = frozenset((266, 292, 293, 317))
"""FillOrder, options of fax compression, and Predictor."""


def _small_tiff(
    data: bytes,
    directory: TiffDirectory,
    blocks: Sequence[bytes],
    values: Mapping[int, Sequence[int]],
    tags: tuple[int, int],
) -> bytes:
    """Return a TIFF of some blocks: their positions and lengths have the two `tags`, other tags new `values`."""
    header = data[: 16 if directory.big else 8]
    lengths = [len(block) for block in blocks]
    starts = (len(header) + np.cumsum([0, *lengths[:-1]])).tolist()
    replaced = {**values, tags[0]: starts, tags[1]: lengths}
    dropped = set(_CODING_TAGS if COMPRESSION in values else ())
    dropped |= _BLOCK_TAGS - {*tags, *((TILE_WIDTH, TILE_HEIGHT) if TILE_OFFSETS in tags else ())}
    return _plain_tiff(
        header + b"".join(blocks),
        directory,
        {tag: _longs(directory, numbers) for tag, numbers in replaced.items()},
        frozenset(dropped),
        _PIXEL_TAGS | {ORIENTATION},
    )


def _longs(directory: TiffDirectory, values: Sequence[int]) -> TiffField:
    """Return a field of numbers of 32 bits."""
    data = np.array(values, f"{directory.order}u4").tobytes()
    return TiffField(type=4, count=len(values), data=memoryview(data))


def _short(directory: TiffDirectory, value: int) -> TiffField:
    """Return a field of one 16-bit number."""
    return TiffField(type=SHORT, count=1, data=memoryview(struct.pack(f"{directory.order}H", value)))


def _load_gray_16_bit(plain: bytes) -> NDArray[Any]:
    """Decode gray samples as uint16 [height, width, 1]."""
    image = open_with_plugin(TiffImagePlugin.TiffImageFile, plain)
    # Pillow decodes some layouts of 16-bit gray to 32 bits or to floats.
    if not image.mode.startswith("I;16"):
        raise decode_error("TIFF of these colors is not supported", f"Pillow's mode {image.mode}")
    with decoder_failures():
        image.load()
    return copy_pixels(image, lambda part: np.asarray(part).astype(np.uint16)[..., None], 1, "uint16")


def _load_planes_16_bit(data: bytes, directory: TiffDirectory, layout: SampleLayout) -> NDArray[Any]:
    """Decode 16-bit colors of which each has its own strips or tiles, as uint16 [height, width, channel].

    Pillow 12 keeps only the high bytes of such samples, whatever the raw mode, so that `load_16_bit` cannot read them.
    Each color is read as a separate gray picture.
    """
    pixels = np.empty((*layout.size, layout.samples), np.uint16)
    for sample in range(layout.samples):
        single = _short(directory, 1)
        replaced = {SAMPLES: single, PHOTOMETRIC: single, PLANAR: single, BITS: _short(directory, 16)}
        for tag in {STRIP_OFFSETS, STRIP_BYTES, TILE_OFFSETS, TILE_BYTES} & directory.fields.keys():
            field = directory.fields[tag]
            count, left_over = divmod(field.count, layout.samples)
            # Planar files list all blocks of the first color, then those of the next.
            if left_over or field.data is None:
                raise damaged_error(f"{field.count} blocks of pixels for {layout.samples} samples")
            size = count * TYPE_BYTES[field.type]
            part = field.data[sample * size : (sample + 1) * size]
            replaced[tag] = TiffField(type=field.type, count=count, data=part)
        plain = _plain_tiff(data, directory, replaced, frozenset((EXTRA_SAMPLES, SAMPLE_FORMAT)))
        pixels[..., sample] = _load_gray_16_bit(plain)[..., 0]
    return pixels


def _load_samples(data: bytes, directory: TiffDirectory, layout: SampleLayout) -> Raster:
    """Decode the pixels with every stored bit."""
    # `load_16_bit` cannot read planes, see `_load_planes_16_bit`.
    if layout.bits == 16 and layout.photometric == RGB and directory.integer(PLANAR, 1) == _SEPARATE:
        return Raster(pixels=_load_planes_16_bit(data, directory, layout))
    # Pillow refuses 16-bit pictures in which white is zero, or does not invert them.
    deep_inverse = layout.bits == 16 and layout.photometric == WHITE_IS_ZERO
    replaced = {PHOTOMETRIC: _short(directory, BLACK_IS_ZERO)} if deep_inverse else {}
    dropped = frozenset[int]()
    if layout.are_bands:
        # Pillow has no mode for several gray samples. Called red, green and blue, the same samples are decoded.
        replaced, dropped = {PHOTOMETRIC: _short(directory, RGB)}, frozenset((EXTRA_SAMPLES,))
    plain = _plain_tiff(data, directory, replaced, dropped)
    open_again = partial(open_with_plugin, TiffImagePlugin.TiffImageFile, plain)
    if layout.bits < 16:
        return load_raster(open_again())
    # Pillow has no 16-bit color mode; `load_16_bit` decodes twice.
    if layout.photometric == RGB:
        return Raster(pixels=load_16_bit(open_again))
    gray = _load_gray_16_bit(plain)
    if deep_inverse:
        np.subtract(np.uint16(65535), gray, out=gray)
    return Raster(pixels=gray)


def _estimate(directory: TiffDirectory, layout: SampleLayout, byte_count: int) -> MemoryEstimate:
    (height, width), pixel_bits = layout.size, layout.bits * layout.samples
    tiled = TILE_OFFSETS in directory.fields
    count = len(directory.integers(TILE_OFFSETS if tiled else STRIP_OFFSETS))
    rows = directory.integer(TILE_HEIGHT if tiled else ROWS_PER_STRIP, height)
    columns = directory.integer(TILE_WIDTH, width) if tiled else width
    # libtiff decodes one block at a time, and converts luma and chroma to colors.
    bytes_per_pixel = pixel_bits / 8 + 8 * (layout.photometric == YCBCR)
    block_bytes = (
        rows if tiled else min(rows, height)
    ) * columns * bytes_per_pixel + BLOCK_RECORD_BYTES * count
    gray = layout.photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO)
    channels = layout.samples if gray else 4 if layout.samples > 3 and layout.photometric == RGB else 3
    sample_bytes = 2 if layout.bits == 16 else 1
    pillow_bytes = sample_bytes if layout.samples == 1 else 4
    # Pillow receives a copy of the file.
    held_bytes = byte_count + round(block_bytes)
    return estimate_decoding(
        layout.size, min(channels, 4), sample_bytes, pillow_bytes=pillow_bytes, held_bytes=held_bytes
    )


def open_tiff(data: bytes) -> OpenedImage:
    """Open a TIFF or BigTIFF file of unsigned integers of 1 to 16 bits; only the first picture is read.

    Raises:
        SourceError: the directory is damaged, the pixels are beyond the end of the file, or their type is not
            supported (floating point, signed, 12 or 32 bit, Lab, CMYK of 16 bits). `load` also reports damaged
            pixels.

    Source: TIFF 6.0.
    """
    directory = read_tiff_directory(data)
    layout = _layout(directory, len(data))

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        _check_blocks(directory, layout, data)
        compression = directory.integer(COMPRESSION, 1)
        with libtiff_messages() as messages:
            try:
                raster = _load_samples(data, directory, layout)
                notes = [GRAY_BANDS] * layout.are_bands + [MORE_BANDS] * layout.has_more_bands
                return replace(raster, notes=(*raster.notes, *notes))
            except SourceError as error:
                # Pillow's own message does not mention that its libtiff was built without the codec.
                if any("not configured" in message for message in messages):
                    raise _unsupported_compression(compression) from error
                raise

    return OpenedImage(
        stored_size=layout.size,
        orientation=valid_orientation(directory.integer(ORIENTATION, 1)),
        estimate=lambda *_: _estimate(directory, layout, len(data)),
        load=load,
        more=holds_further_page(data, directory),
    )


_COLLECTED = threading.local()
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)


def _collect(module: bytes | None, message_format: bytes | None, _: Any) -> None:
    # The handler is called on every thread of the process, and may be called for each of a million strips.
    messages = getattr(_COLLECTED, "messages", None)
    if messages is not None and len(messages) < 10:
        parts = [part.decode("utf-8", "replace") for part in (module, message_format) if part]
        messages.append(": ".join(parts))


_COLLECT = _HANDLER(_collect)  # libtiff keeps its address, so it must live as long as the process


@cache
def _install_error_handler() -> bool:
    try:
        library = ctypes.CDLL(_imaging.__file__)
        setter = library.TIFFSetErrorHandler
    except (OSError, AttributeError):  # a Pillow whose libtiff is hidden or a library of the system
        return False
    setter.argtypes, setter.restype = [_HANDLER], ctypes.c_void_p
    setter(_COLLECT)
    return True


@contextmanager
def libtiff_messages() -> Iterator[list[str]]:
    """Collect the errors that libtiff reports on this thread; none if Pillow's libtiff cannot be loaded.

    The messages are libtiff's format strings, without the values.
    """
    _install_error_handler()
    _COLLECTED.messages = []
    try:
        yield _COLLECTED.messages
    finally:
        _COLLECTED.messages = None
