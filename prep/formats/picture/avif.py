"""Reader of AVIF files: Pillow decodes 8 bits, and imagecodecs 10 and 12 bits, which Pillow would reduce to 8.

The boxes `irot` and `imir` turn the picture. Pillow and libavif leave the pixels as stored. Pillow gives the turn as an
EXIF orientation, which replaces that of the EXIF data in the file, as the format asks (HEIF, ISO 23008-12, 6.5.10).
"""

from __future__ import annotations

from PIL import ImageFile

from halofeed.prep.formats.picture.image import OpenedImage, Raster, estimate_decoding
from halofeed.prep.formats.picture.optional_codecs import codec, three_axes, to_full_depth
from halofeed.prep.formats.picture.pillow import decoder_failures, load_raster, open_with_plugin

_ORIENTATION = 0x0112
_EXTRA_PIXEL_BYTES = 16
"""Most bytes per pixel beside the raster; 7 to 10 were measured (4:2:0 without alpha)."""


def open_avif(data: bytes) -> OpenedImage:
    """Open an AVIF file; only the first frame of a sequence is read.

    Raises:
        SourceError: the boxes are damaged or truncated. `load` also reports damaged pixels.
    """
    image = _open(data)
    with decoder_failures():
        orientation = image.getexif().get(_ORIENTATION, 1)
        frames = getattr(image, "n_frames", 1)
    bits = _sample_bits(data)
    estimate = estimate_decoding(
        (image.height, image.width),
        len(image.getbands()),
        2 if bits > 8 else 1,
        pillow_bytes=0 if bits > 8 else 4,
        extra_pixel_bytes=_EXTRA_PIXEL_BYTES,
    )
    return OpenedImage(
        stored_size=(image.height, image.width),
        orientation=orientation if orientation in range(1, 9) else 1,
        estimate=lambda *_: estimate,
        load=lambda *_: _load_deep(data, bits) if bits > 8 else _load(data),
        more=frames > 1,
    )


def _open(data: bytes) -> ImageFile.ImageFile:
    # The plugin takes 8 ms to import, with the libraries of AV1, and few sources need it.
    from PIL import AvifImagePlugin

    return open_with_plugin(AvifImagePlugin.AvifImageFile, data)


def _sample_bits(data: bytes) -> int:
    """Return the bits of a sample by the first AV1 configuration, which is that of the colors.

    Source: AV1 Codec ISO Media File Format Binding, 2.3.3: after the box's name a marker and a version, the profile and
    level, then tier, high_bitdepth and twelve_bit.
    """
    at = data.find(b"av1C")
    flags = data[at + 6] if 0 <= at < len(data) - 6 else 0
    if not flags & 0x40:
        return 8
    return 12 if flags & 0x20 else 10


def _load(data: bytes) -> Raster:
    return load_raster(_open(data))


def _load_deep(data: bytes, bits: int) -> Raster:
    imagecodecs = codec("imagecodecs", "pictures", f"AVIF pictures of {bits} bits")
    with decoder_failures():
        pixels = three_axes(imagecodecs.avif_decode(data, index=0, numthreads=1))
        filled, notes = to_full_depth(pixels, bits)
    return Raster(pixels=filled, notes=notes)
