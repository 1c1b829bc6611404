"""Reader of TIFF files: the directories are parsed here, Pillow and libtiff decode the pixels."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import TiffImagePlugin, _imaging

from halofeed.errors import SourceError
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
_MOST_PAGES = 64

# Bytes per value of each field type, TIFF 6.0 section 2 and BigTIFF.
_SIZES = {1: (1, 2, 6, 7), 2: (3, 8), 4: (4, 9, 11, 13), 8: (5, 10, 12, 16, 17, 18)}
TYPE_BYTES = {type_: size for size, types in _SIZES.items() for type_ in types}
UNSIGNED = frozenset((1, 3, 4, 13, 16, 18))
MOST_ENTRIES = 1 << 16
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
    while directory.following not in seen and len(seen) < _MOST_PAGES:
        seen.add(directory.following)
        try:
            directory = read_tiff_directory(data, directory.following)
        except SourceError:
            return True
        if not directory.integer(NEW_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK:
            return True
    return False


def read_tiff_directory(data: bytes, start: int | None = None) -> TiffDirectory:
    """Read the directory at byte `start`, by default the first one.

    Fields of unknown type are skipped, as TIFF 6.0 requires.

    Raises:
        SourceError: the structure is not TIFF, or its directory is beyond the end of the bytes.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise damaged_error("no TIFF header")
    if len(data) < 8:
        raise truncated_error("no room for a TIFF header")
    version = struct.unpack_from(f"{order}H", data, 2)[0]
    if version not in (42, 43):
        raise damaged_error(f"TIFF version {version}")
    big = version == 43
    if big and len(data) < 16:
        raise truncated_error("no room for a BigTIFF header")
    count_format, entry_format, pointer, inline = ("Q", "HHQ", "Q", 8) if big else ("H", "HHI", "I", 4)
    view = memoryview(data)
    if start is None:
        start = int(struct.unpack_from(f"{order}{pointer}", data, inline)[0])
    count_bytes = struct.calcsize(f"{order}{count_format}")
    if start + count_bytes > len(data):
        raise truncated_error(f"the directory is at byte {start} of {len(data)}")
    count = struct.unpack_from(f"{order}{count_format}", data, start)[0]
    entry_bytes = struct.calcsize(f"{order}{entry_format}") + inline
    first = start + count_bytes
    end = first + count * entry_bytes
    if end > len(data):
        raise truncated_error(f"the directory of {count} entries ends at byte {end} of {len(data)}")
    if count > MOST_ENTRIES:
        raise damaged_error(f"a directory of {count} entries")
    fields = {}
    for position in range(first, end, entry_bytes):
        tag, type_, values = struct.unpack_from(f"{order}{entry_format}", data, position)
        if type_ not in TYPE_BYTES:
            continue
        value_bytes = values * TYPE_BYTES[type_]
        at = position + entry_bytes - inline
        if value_bytes > inline:
            at = struct.unpack_from(f"{order}{pointer}", data, at)[0]
        inside = at + value_bytes <= len(data)
        fields[tag] = TiffField(
            type=type_, count=values, data=view[at : at + value_bytes] if inside else None
        )
    following = int.from_bytes(data[end : end + inline], "little" if order == "<" else "big")
    return TiffDirectory(order=order, big=big, fields=fields, following=following)


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


def _layout(directory: TiffDirectory, byte_count: int) -> SampleLayout:
    """Check the tags of the first picture and return its layout; refuse unsupported pixel types."""
    for tag in _PIXEL_TAGS & directory.fields.keys():
        if directory.fields[tag].data is None:
            raise truncated_error(f"the values of tag {tag} lie beyond byte {byte_count}")
    for tag in SINGLE_TAGS & directory.fields.keys():
        if directory.fields[tag].count != 1:
            raise damaged_error(f"tag {tag} has {plural(directory.fields[tag].count, 'value')}, expected 1")
    size = directory.integer(HEIGHT, 0), directory.integer(WIDTH, 0)
    sample_formats = set(np.unique(directory.integers(SAMPLE_FORMAT)).tolist()) or {1}
    bits = set(np.unique(directory.integers(BITS)).tolist()) or {1}
    photometric = directory.integer(PHOTOMETRIC, 0)
    samples = directory.integer(SAMPLES, 1)
    kind = (
        f"{samples} x {'/'.join(map(str, sorted(bits)))} bit "
        f"{'/'.join(SAMPLE_FORMATS.get(value, str(value)) for value in sorted(sample_formats))}, "
        f"{PHOTOMETRICS.get(photometric, f'photometric {photometric}')}"
    )
    if sample_formats != {1}:
        raise decode_error("TIFF of other than unsigned integers is not supported", f"{kind}; {_SCALE}")
    if len(bits) != 1 or not bits <= {1, 2, 4, 8, 16}:
        raise decode_error("TIFF of this bit depth is not supported", f"{kind}; {_SCALE}")
    (depth,) = bits
    extra = directory.integers(EXTRA_SAMPLES)
    unsupported_16_bit = photometric not in (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB) or PREMULTIPLIED in extra
    if photometric not in PHOTOMETRICS or photometric == LAB or (depth == 16 and unsupported_16_bit):
        raise decode_error("TIFF of these colors is not supported", kind)
    compression = directory.integer(COMPRESSION, 1)
    if compression not in TiffImagePlugin.COMPRESSION_INFO:
        raise _unsupported_compression(compression)
    if photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO) and samples == 2 and not (extra > 0).any():
        # Two bands, of which none is called transparency.
        raise decode_error("TIFF of several gray bands is not supported", f"{kind}; {_ONE_BAND}")
    if samples > 6:
        raise decode_error("TIFF of this many samples per pixel is not supported", f"{kind}; {_THREE_BANDS}")
    are_bands = photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO) and samples > 2
    if are_bands and (photometric, samples) != (BLACK_IS_ZERO, 3):
        raise decode_error("TIFF of several gray bands is not supported", f"{kind}; {_THREE_BANDS}")
    if are_bands and (depth < 8 or (extra != 0).any()):
        raise decode_error("TIFF of several gray bands is not supported", f"{kind}; {_THREE_BANDS}")
    return SampleLayout(
        size=size,
        bits=depth,
        samples=samples,
        photometric=RGB if are_bands else photometric,
        are_bands=are_bands,
        has_more_bands=photometric == RGB and samples > 3 and not (extra > 0).any(),
    )


def _check_blocks(directory: TiffDirectory, layout: SampleLayout, data: bytes) -> None:
    """Check that all strips or tiles are within the file and not too large."""
    byte_count = len(data)
    tiled = TILE_OFFSETS in directory.fields
    offsets, lengths = (
        directory.integers(tag).astype(np.uint64)
        for tag in ((TILE_OFFSETS, TILE_BYTES) if tiled else (STRIP_OFFSETS, STRIP_BYTES))
    )
    if not len(offsets):
        raise damaged_error("the TIFF has no offsets of its pixels")
    if len(lengths) and len(lengths) != len(offsets):
        raise damaged_error(f"{len(offsets)} blocks of pixels with {len(lengths)} lengths")
    held = lengths if len(lengths) else np.ones(len(offsets), np.uint64)
    beyond = (offsets > byte_count) | (held > byte_count - np.minimum(offsets, byte_count))
    if beyond.any():
        end = max(
            int(offset) + int(length) for offset, length in zip(offsets[beyond], held[beyond], strict=True)
        )
        raise truncated_error(f"pixels end at byte {end} of {byte_count}")
    if not tiled and len(lengths) and directory.integer(COMPRESSION, 1) == UNCOMPRESSED:
        height, width = layout.size
        needed = height * (width * layout.bits * layout.samples // 8)
        found = int(lengths.sum(dtype=np.float64))
        if found < needed:
            raise truncated_error(f"{found} bytes of pixels, expected {needed}")
    if len(lengths) and directory.integer(COMPRESSION, 1) == JPEG:
        # libtiff fills in the missing end of a JPEG and reports success.
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            if not data[offset : offset + length].rstrip(b"\0").endswith(b"\xff\xd9"):
                raise truncated_error(f"the JPEG data at byte {offset} have no end")
    if tiled:
        # A tile may extend beyond the picture, but not far: its complete buffer is allocated.
        for tag, pixels in ((TILE_HEIGHT, layout.size[0]), (TILE_WIDTH, layout.size[1])):
            tile = directory.integer(tag, 0)
            if not 1 <= tile <= max(4 * pixels, 4096):
                raise damaged_error(f"a tile side of {tile} for {plural(pixels, 'pixel')}")


def _plain_tiff(
    data: bytes, directory: TiffDirectory, replaced: Mapping[int, TiffField], dropped: frozenset[int]
) -> bytes:
    """Return the file with a new directory at its end: only the pixel tags, some with a replaced value."""
    order, big = directory.order, directory.big
    inline, pointer = (8, "Q") if big else (4, "I")
    entries: list[bytes] = []
    values: list[bytes | memoryview] = []
    fields = {**directory.fields, **replaced}
    kept = [(tag, field) for tag, field in sorted(fields.items()) if tag in _PIXEL_TAGS - dropped]
    start = len(data) + len(data) % 2
    values_at = start + (8 if big else 2) + len(kept) * (20 if big else 12) + inline
    for tag, field in kept:
        payload: bytes | memoryview = field.data or b""
        if len(payload) > inline:
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


def _short(directory: TiffDirectory, value: int) -> TiffField:
    """Return a field of one 16-bit number."""
    return TiffField(type=SHORT, count=1, data=memoryview(struct.pack(f"{directory.order}H", value)))


def _load_gray_16_bit(plain: bytes) -> NDArray[Any]:
    """Decode gray samples as uint16 [height, width, 1]."""
    image = open_with_plugin(TiffImagePlugin.TiffImageFile, plain)
    if not image.mode.startswith("I;16"):
        raise decode_error("TIFF of these colors is not supported", f"Pillow's mode {image.mode}")
    with decoder_failures():
        image.load()
    return copy_pixels(image, lambda part: np.asarray(part).astype(np.uint16)[..., None], 1, "uint16")


def _load_planes_16_bit(data: bytes, directory: TiffDirectory, layout: SampleLayout) -> NDArray[Any]:
    """Decode 16-bit colors of which each has its own strips or tiles, as uint16 [height, width, channel].

    Pillow 12 keeps only the high bytes of such samples, whatever the raw mode, so that `load_16_bit` cannot read them.
    Each color is read as a gray picture of its own.
    """
    pixels = np.empty((*layout.size, layout.samples), np.uint16)
    for sample in range(layout.samples):
        single = _short(directory, 1)
        replaced = {SAMPLES: single, PHOTOMETRIC: single, PLANAR: single, BITS: _short(directory, 16)}
        for tag in {STRIP_OFFSETS, STRIP_BYTES, TILE_OFFSETS, TILE_BYTES} & directory.fields.keys():
            field = directory.fields[tag]
            count, left_over = divmod(field.count, layout.samples)
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
    if layout.bits == 16 and layout.photometric == RGB and directory.integer(PLANAR, 1) == _SEPARATE:
        return Raster(pixels=_load_planes_16_bit(data, directory, layout))
    # Pillow refuses 16-bit pictures in which white is zero, or does not invert them.
    deep_inverse = layout.bits == 16 and layout.photometric == WHITE_IS_ZERO
    replaced = {PHOTOMETRIC: _short(directory, BLACK_IS_ZERO)} if deep_inverse else {}
    if layout.are_bands:
        # Pillow has no mode for several gray samples. Called red, green and blue, the same samples are decoded.
        replaced = {PHOTOMETRIC: _short(directory, RGB)}
    plain = _plain_tiff(data, directory, replaced, frozenset((EXTRA_SAMPLES,) if layout.are_bands else ()))
    open_again = partial(open_with_plugin, TiffImagePlugin.TiffImageFile, plain)
    if layout.bits < 16:
        return load_raster(open_again())
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
    except (OSError, AttributeError):
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
