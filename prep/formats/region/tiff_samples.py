"""Meaning of the samples of a TIFF page, and their conversion to the pixels that the decoders of pictures return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import GRAY_BANDS, decode_error
from halofeed.prep.formats.picture.pillow import cmyk_to_rgb
from halofeed.prep.formats.picture.tiff import (
    BLACK_IS_ZERO,
    PHOTOMETRICS,
    PREMULTIPLIED,
    RGB,
    SAMPLE_FORMATS,
    WHITE_IS_ZERO,
)
from halofeed.prep.formats.region.tiff_blocks import APERIO_YCBCR

if TYPE_CHECKING:
    from tifffile import TiffPage

Pixels = NDArray[Any]
PALETTE, CMYK, YCBCR = 3, 5, 6
STRAIGHT = 2
_JPEG = (7, 34892, 33007)
"""Compressions of JPEG whose decoder converts luma and chroma to red, green and blue."""
_LOSSLESS = (1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000)
"""Compressions without loss: CCITT, LZW, Deflate, PackBits, LZMA and Zstd."""
_CONVERTED = (*_JPEG, 50001, 34927, 50002, 52546)
"""The same, with WebP and JPEG XL."""
_WRITE_RGB = "`gdal_translate -expand rgb a.tif b.tif` or `tiff2rgba a.tif b.tif` writes red, green and blue"


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """Form of the pixels of a picture.

    Args:
        bands: values per pixel after conversion.
        dtype: dtype after conversion.
        color: meaning of the bands, as in `RegionFacts`.
        convert: function from decoded samples [height, width, sample] to pixels [height, width, band]; None if these
            are the same.
        alpha: number of the sample that is transparency; None without one.
        peak: largest value of the samples if white is zero, so that pixels are peak - sample; None for others.
        notes: what was chosen, for the statistics.
    """

    bands: int
    dtype: np.dtype[Any]
    color: str
    convert: Callable[[Pixels], Pixels] | None = None
    alpha: int | None = None
    peak: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def keeps_values(self) -> bool:
        """True if the pixels are the stored samples, in their order."""
        return self.convert is None


def sample_form(pages: Sequence[TiffPage], as_indices: bool) -> SampleForm:
    """Return the form of the pixels of a picture of one page, or of one page per band.

    Args:
        pages: pages of the same size and type.
        as_indices: whether the picture is a label image: palette indices and bits stay as they are.

    Raises:
        SourceError: the samples have no exact form as pixels.
    """
    page = pages[0]
    if any(_signature(one) != _signature(page) for one in pages):
        raise decode_error("TIFF planes differ", "expected one number type for all planes of the picture")
    if as_indices:
        _check_label(page)
    if page.dtype is None or page.dtype.kind not in "buif" or isinstance(page.bitspersample, tuple):
        raise decode_error("TIFF of this number type is not supported", describe_samples(page))
    if len(pages) > 1:
        return _plane_form(pages)
    # OpenSlide takes luma and chroma for granted there, whatever the tag says.
    photometric = YCBCR if int(page.compression) == APERIO_YCBCR else int(page.photometric)
    forms = _LABEL_FORMS if as_indices else _FORMS
    if photometric not in forms:
        raise decode_error("TIFF of these colors is not supported", f"{describe_samples(page)}; {_WRITE_RGB}")
    return forms[photometric](page)


def _plane_form(pages: Sequence[TiffPage]) -> SampleForm:
    """Return the form of a picture of which each page is a band."""
    page = pages[0]
    if page.samplesperpixel != 1 or int(page.photometric) != BLACK_IS_ZERO:
        raise decode_error(
            "TIFF of color planes is not supported",
            f"{len(pages)} planes of {describe_samples(page)}; `bfconvert -channel 0 a.ome.tif b.ome.tif` writes "
            "one of them",
        )
    return SampleForm(bands=len(pages), dtype=_whole_bytes(page), color="bands", convert=_expansion(page))


def _check_label(page: TiffPage) -> None:
    """Refuse label images as `halofeed.prep.convert.label_image` does: stored with loss, inverted, or scaled."""
    cure = "save it as an 8-bit picture with one value for each class, by the tool that drew it"
    if int(page.compression) not in _LOSSLESS:
        name = getattr(page.compression, "name", page.compression)
        raise decode_error("label image is stored with loss", f"TIFF with compression {name}; {cure}")
    is_palette = int(page.photometric) == PALETTE
    # Pictures show such values inverted and scaled, so that a class may be either number.
    if int(page.photometric) == WHITE_IS_ZERO or (
        page.bitspersample not in (1, 8, 16, 32) and not is_palette
    ):
        raise decode_error("label image is ambiguous", f"{describe_samples(page)}; {cure}")


def describe_samples(page: TiffPage) -> str:
    """Return the words for the samples of a page in messages."""
    kind = SAMPLE_FORMATS.get(int(page.sampleformat), f"sample format {int(page.sampleformat)}")
    colors = PHOTOMETRICS.get(int(page.photometric), f"photometric {int(page.photometric)}")
    return f"{page.samplesperpixel} x {page.bitspersample} bit {kind}, {colors}"


def _signature(page: TiffPage) -> tuple[Any, ...]:
    return page.dtype, page.bitspersample, page.samplesperpixel, int(page.photometric)


def _whole_bytes(page: TiffPage) -> np.dtype[Any]:
    """Return the dtype of decoded samples in the byte order of the machine; tifffile decodes single bits to bool."""
    assert page.dtype is not None
    return np.dtype(np.uint8) if page.dtype == np.bool_ else page.dtype.newbyteorder("=")


def _is_unsigned(page: TiffPage) -> bool:
    return page.dtype is not None and page.dtype.kind in "bu"


def _is_scaled(page: TiffPage) -> bool:
    """Return whether values of fewer than 8 bits are spread over 0 to 255, as the decoders of pictures do."""
    return _is_unsigned(page) and page.bitspersample in (1, 2, 4)


def _expansion(page: TiffPage) -> Callable[[Pixels], Pixels] | None:
    """Return the function that spreads values of fewer than 8 bits over 0 to 255; None for others."""
    if not _is_scaled(page):
        return None
    factor = np.uint8(255 // ((1 << int(page.bitspersample)) - 1))
    return lambda samples: np.multiply(samples, factor, dtype=np.uint8)


def _alpha_of(page: TiffPage) -> int | None:
    """Return the number of the first sample beyond the colors that is transparency."""
    for number, meaning in enumerate(page.extrasamples):
        if int(meaning) in (PREMULTIPLIED, STRAIGHT):
            # Extra samples are the last ones (TIFF 6.0, section 18), also where the count of the tag is wrong.
            return page.samplesperpixel - len(page.extrasamples) + number
    return None


def _is_premultiplied(page: TiffPage) -> bool:
    return PREMULTIPLIED in [int(meaning) for meaning in page.extrasamples]


def _index_form(page: TiffPage) -> SampleForm:
    """Return the form of the numbers of a label image, as they are stored."""
    bands = page.samplesperpixel
    return SampleForm(bands=bands, dtype=_whole_bytes(page), color="gray" if bands == 1 else "bands")


def _palette_index_form(page: TiffPage) -> SampleForm:
    _palette_of(page)
    return _index_form(page)


def _black_form(page: TiffPage) -> SampleForm:
    samples, alpha, dtype = page.samplesperpixel, _alpha_of(page), _whole_bytes(page)
    if alpha is not None and samples == 2 and _is_unsigned(page):
        convert = straighten if _is_premultiplied(page) else _expansion(page)
        return SampleForm(bands=2, dtype=dtype, color="gray-alpha", convert=convert, alpha=1)
    # The decoders of pictures take three bands of unsigned integers for red, green and blue.
    has_depth = dtype in (np.uint8, np.uint16) and page.bitspersample in (8, 16)
    are_colors = samples == 3 and not any(page.extrasamples) and has_depth
    return SampleForm(
        bands=samples,
        dtype=dtype,
        color="rgb" if are_colors else "gray" if samples == 1 else "bands",
        convert=_expansion(page),
        alpha=alpha,
        notes=(GRAY_BANDS,) if are_colors else (),
    )


def _white_form(page: TiffPage) -> SampleForm:
    """Return the form of gray in which white is zero, which is inverted as in the decoders of pictures."""
    if not _is_unsigned(page):
        raise decode_error(
            "TIFF in which white is zero is not supported for signed numbers and floating point",
            f"{describe_samples(page)}; `gdal_translate -co PHOTOMETRIC=MINISBLACK a.tif b.tif` keeps the values",
        )
    if _alpha_of(page) is not None:
        raise decode_error("TIFF of these colors is not supported", describe_samples(page))
    samples, dtype, peak = page.samplesperpixel, _whole_bytes(page), (1 << int(page.bitspersample)) - 1
    color, convert = "gray" if samples == 1 else "bands", _inversion(dtype, peak, _expansion(page))
    return SampleForm(bands=samples, dtype=dtype, color=color, convert=convert, peak=peak)


def _inversion(
    dtype: np.dtype[Any], peak: int, scale: Callable[[Pixels], Pixels] | None
) -> Callable[[Pixels], Pixels]:
    def invert(samples: Pixels) -> Pixels:
        inverse = np.subtract(dtype.type(peak), samples, dtype=dtype)
        return inverse if scale is None else scale(inverse)

    return invert


def _rgb_form(page: TiffPage) -> SampleForm:
    samples, alpha, dtype = page.samplesperpixel, _alpha_of(page), _whole_bytes(page)
    if samples < 3:
        raise decode_error("TIFF of these colors is not supported", describe_samples(page))
    if samples == 4 and alpha is not None and _is_unsigned(page):
        convert = straighten if _is_premultiplied(page) else _expansion(page)
        return SampleForm(bands=4, dtype=dtype, color="rgba", convert=convert, alpha=alpha)
    color = "rgb" if samples == 3 else "bands"
    return SampleForm(bands=samples, dtype=dtype, color=color, convert=_expansion(page), alpha=alpha)


def straighten(samples: Pixels) -> Pixels:
    """Divide colors by alpha, which is the last sample: unsigned integers [height, width, sample].

    Colors with an alpha of 0 become 0, those with the peak stay, and quotients are rounded down, as in Pillow.

    >>> straighten(np.array([[[50, 100, 255, 128], [7, 7, 7, 0]]], np.uint8)).tolist()
    [[[99, 199, 255, 128], [0, 0, 0, 0]]]
    """
    peak = int(np.iinfo(samples.dtype).max)
    pixels = np.empty_like(samples)
    for row, out in zip(
        samples, pixels, strict=True
    ):  # one row at a time, because quotients need wide integers
        alpha = row[:, -1:].astype(np.uint64)
        colors = row[:, :-1] * np.uint64(peak) // np.maximum(alpha, 1)
        out[:, :-1] = np.where(alpha > 0, np.minimum(colors, peak), 0)
        out[:, -1] = row[:, -1]
    return pixels


def _palette_of(page: TiffPage) -> NDArray[np.uint8]:
    """Return the colors [index, 3] of a palette. As in Pillow, the upper 8 of 16 bits count (TIFF 6.0, section 5)."""
    colors = None if page.colormap is None else np.asarray(page.colormap)
    if page.samplesperpixel != 1 or colors is None or page.bitspersample not in (1, 2, 4, 8):
        raise decode_error("TIFF of these colors is not supported", f"{describe_samples(page)}; {_WRITE_RGB}")
    if colors.shape != (3, 1 << int(page.bitspersample)):
        raise decode_error(
            "file is damaged", f"a palette of shape {colors.shape} for {describe_samples(page)}"
        )
    return np.ascontiguousarray((colors.T >> 8).astype(np.uint8))


def _palette_form(page: TiffPage) -> SampleForm:
    colors = _palette_of(page)
    return SampleForm(
        bands=3,
        dtype=np.dtype(np.uint8),
        color="rgb",
        convert=lambda samples: colors[samples[..., 0].astype(np.uint8, copy=False)],
    )


def _cmyk_form(page: TiffPage) -> SampleForm:
    is_known = (
        page.dtype == np.uint8 and page.samplesperpixel == 4 and int(page.compression) not in _CONVERTED
    )
    if not is_known:
        raise decode_error("TIFF of these colors is not supported", f"{describe_samples(page)}; {_WRITE_RGB}")
    return SampleForm(
        bands=3, dtype=np.dtype(np.uint8), color="rgb", convert=cmyk_to_rgb, notes=("CMYK converted",)
    )


def _ycbcr_form(page: TiffPage) -> SampleForm:
    compression = int(page.compression)
    if page.samplesperpixel != 3 or page.dtype != np.uint8 or page.planarconfig != 1:
        raise decode_error("TIFF of these colors is not supported", f"{describe_samples(page)}; {_WRITE_RGB}")
    if compression == APERIO_YCBCR:
        return SampleForm(bands=3, dtype=np.dtype(np.uint8), color="rgb", convert=ycbcr_to_rgb)
    if compression not in _CONVERTED:
        raise decode_error(
            "TIFF of these colors is not supported",
            f"{describe_samples(page)} without JPEG; {_WRITE_RGB}",
        )
    return SampleForm(bands=3, dtype=np.dtype(np.uint8), color="rgb")


# Photometric interpretation (TIFF 6.0, section 8): function that returns the form of a page.
_FORMS: Mapping[int, Callable[[TiffPage], SampleForm]] = {
    WHITE_IS_ZERO: _white_form,
    BLACK_IS_ZERO: _black_form,
    RGB: _rgb_form,
    PALETTE: _palette_form,
    CMYK: _cmyk_form,
    YCBCR: _ycbcr_form,
}
_LABEL_FORMS = {**_FORMS, BLACK_IS_ZERO: _index_form, PALETTE: _palette_index_form}


def ycbcr_to_rgb(samples: Pixels) -> Pixels:
    """Convert luma and chroma uint8 [height, width, 3] to RGB, by the equations of JFIF 1.02.

    >>> ycbcr_to_rgb(np.array([[[76, 85, 255], [128, 128, 128]]], np.uint8)).tolist()
    [[[254, 0, 0], [128, 128, 128]]]
    """
    pixels = np.empty_like(samples)
    for row, out in zip(samples, pixels, strict=True):
        luma, blue, red = row.astype(np.float32).T
        blue, red = blue - 128, red - 128
        colors = (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
        out[:] = np.clip(np.rint(np.stack(colors, axis=-1)), 0, 255)
    return pixels
