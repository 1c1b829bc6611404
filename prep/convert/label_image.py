"""Reader of label images: class indices of a picture, from one image of all classes or one mask for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin

from halofeed.prep.annotations.class_names import LabelCoding
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.tallies import count_labels
from halofeed.prep.formats.dicom.headers import is_dicom
from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.formats.picture.gray_forms import GrayForm, is_other_form, png_form
from halofeed.prep.formats.picture.image import (
    apply_orientation,
    check_pixel_count,
    decode_error,
    estimate_decoding,
)
from halofeed.prep.formats.picture.pillow import copy_pixels, decoder_failures, open_with_plugin
from halofeed.prep.formats.picture.png import GRAY, PALETTE, PngHeader, read_png_header
from halofeed.prep.formats.picture.tiff import holds_further_page, read_tiff_directory
from halofeed.prep.geometry.resize import ResizePlan, displayed_size
from halofeed.prep.geometry.scan import OverlapRule
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE
from halofeed.prep.voxels.kernels import resize_mask
from halofeed.prep.voxels.label_volumes import (
    classes_of_colors,
    classes_of_segments,
    merge_class_masks,
    merge_labels,
)
from halofeed.prep.voxels.masks import draw_mask
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory, no_memory_limit

OVERLAPPED = "pixels of several classes are those of the {} one, as --class-overlap says"
MAX_SINGLE = 8
"""Values of isolated pixels below which a label counts as drawn, see `check_drawn`."""
GRAY_FIX = (
    "--label-values shown takes the gray values, as image viewers and most readers do, --label-values stored the "
    "numbers in the files"
)
_CURE = "save it as an 8-bit PNG with one value for each class, by the tool that drew it"
_STACK_CURE = (
    "if they are slices of a volume, save the image and the label as NRRD or NIfTI with their voxel size (SimpleITK or "
    f"3D Slicer) and convert these; else {_CURE}"
)
_OPENERS: tuple[tuple[bytes | tuple[bytes, ...], type[ImageFile.ImageFile]], ...] = (
    (PNG_SIGNATURE, PngImagePlugin.PngImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImagePlugin.TiffImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
    ((b"GIF87a", b"GIF89a"), GifImagePlugin.GifImageFile),
)
_DICOM_START = 144
"""Bytes that show whether a file is DICOM: the preamble, the prefix and the first element."""
_LOSSLESS = (
    "raw",
    "tiff_lzw",
    "tiff_adobe_deflate",
    "tiff_deflate",
    "packbits",
    "group3",
    "group4",
    "lzma",
    "zstd",
)
_COLORS = ("RGB", "RGBA", "LA")
_DEPTHS = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I": np.int32}


DecodeColors: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Function that returns the classes [height, width] of colors [height, width, 3] of 8 bits."""


def decoder_of(coding: LabelCoding, segments: Sequence[tuple[int, int]] = ()) -> DecodeColors | None:
    """Return the function that decodes colors which are classes or `SourceExample.segments`; None without any."""
    if segments:
        return partial(classes_of_segments, segments=dict(segments))
    return partial(classes_of_colors, numbers=coding.numbers) if coding.colors else None


def read_label_image(
    data: bytes,
    max_pixels: int,
    reserve: ReserveMemory = no_memory_limit,
    decode_colors: DecodeColors | None = None,
    labels: LabelMap | None = None,
) -> NDArray[Any]:
    """Return the class indices [height, width] of a PNG, TIFF, BMP, GIF or DICOM file: gray values or palette indices.

    Color with equal red, green and blue counts as gray. A GIF needs a gray palette, whose values are the class indices,
    because writers reorder the palette in each file. A gray PNG of fewer than 8 bits, or with a palette of grays, has
    the numbers that it stores, or the gray values that it shows, as `LabelMap.shown_bits` says.

    Args:
        reserve: called with the number of bytes for the file and its pixels before they are decoded.
        decode_colors: function that returns the classes of colors [..., 3], if colors are classes.
        labels: the classes, for what they say about colors and gray values.

    Raises:
        SourceError: the image has another or a lossy format, color, several pages or too many pixels, or is damaged.
    """
    if _is_dicom(data):
        return _read_dicom(data, max_pixels, reserve, decode_colors, labels)
    image, header = _open_label(data, max_pixels)
    dtype = np.dtype(np.uint8 if image.mode in _COLORS else _DEPTHS[image.mode])
    reserve(len(data) + _decoding_bytes(image, dtype))
    with decoder_failures():
        image.load()
        by_table = _table_decoder(image, labels) if decode_colors is None and labels is not None else None
        decode = decode_colors or by_table
        shown = image.convert("RGB") if decode and image.mode == "P" else image
        values = _copy_values(shown, dtype)
    # The mode of a GIF is known only after loading.
    if shown.mode in _COLORS:
        return _of_color(values, shown.mode, header, decode)
    if decode_colors:
        raise _not_in_color(f"mode {image.mode}")
    if header is None:
        return classes_of_gray(_by_palette(values[..., 0], image), _form_of_mode(image.mode), labels)
    return classes_of_gray(class_indices(values[..., 0], header), png_form(data, header), labels)


def _is_dicom(data: bytes) -> bool:
    return not any(data.startswith(begins) for begins, _ in _OPENERS) and is_dicom(data[:_DICOM_START])


def _read_dicom(
    data: bytes,
    max_pixels: int,
    reserve: ReserveMemory,
    decode_colors: DecodeColors | None,
    labels: LabelMap | None,
) -> NDArray[Any]:
    from halofeed.prep.formats.dicom.picture_labels import read_dicom_label  # takes 0.2 s

    if decode_colors:
        raise _not_in_color("a DICOM file")
    return classes_of_gray(read_dicom_label(data, max_pixels, reserve), _dicom_form(data), labels)


def _dicom_form(data: bytes) -> GrayForm:
    from halofeed.prep.formats.dicom.picture_labels import label_bits

    return GrayForm(bits=label_bits(data))


def _not_in_color(found: str) -> SourceError:
    detail = (
        f"{found}, and a panoptic file needs red, green and blue; "
        "--label-colors is for label images in color; leave it out for gray ones"
    )
    return decode_error("label image is not in color", detail)


def _open_label(data: bytes, max_pixels: int) -> tuple[Image.Image, PngHeader | None]:
    """Open a label image without decoding its pixels; return it with the header of a PNG."""
    opener = next((one for begins, one in _OPENERS if data.startswith(begins)), None)
    if opener is None:
        is_jpeg = data.startswith(b"\xff\xd8")
        kind = "it is a JPEG, which is stored with loss" if is_jpeg else "not a PNG, TIFF, BMP, GIF or DICOM"
        begins = data[:8].hex(" ") or "nothing"
        raise decode_error("label image is not a PNG", f"{kind}: begins with {begins}; {_CURE}")
    header = read_png_header(data) if data.startswith(PNG_SIGNATURE) else None
    with decoder_failures():
        image = open_with_plugin(opener, data)
    check_pixel_count((image.height, image.width), max_pixels, " in the label")
    if header is None:
        _check_sound(image)
    if image.mode not in _COLORS:
        check_mode(image.mode)
    return image, header


def check_label_file(data: bytes, first_part: bytes) -> None:
    """Refuse a label file by its header, as `read_label_image` does; smaller copies in a TIFF are no further pages.

    Args:
        data: the file.
        first_part: a file with its first rows and the same form.
    """
    if not data.startswith(PNG_SIGNATURE) and holds_further_page(data, read_tiff_directory(data)):
        raise decode_error("label image holds several pictures", _STACK_CURE)
    _open_label(first_part, 1 << 31)


def _decoding_bytes(image: Image.Image, dtype: np.dtype[Any]) -> int:
    """Return the peak memory of decoding an opened image into values of a dtype."""
    # Pillow holds a pixel in 4 bytes unless it is of one band of 8 bits, or of "I;16".
    in_color = image.mode in _COLORS
    pillow_bytes = {"I": 4, "I;16": 2}.get(image.mode, 4 if in_color else 1)
    size, bands = (image.height, image.width), len(image.getbands())
    return estimate_decoding(size, bands, dtype.itemsize, pillow_bytes=pillow_bytes).peak_bytes


def _copy_values(image: Image.Image, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values [height, width, band] of a loaded image."""
    bands = len(image.getbands())

    def take(part: Image.Image) -> NDArray[Any]:
        return np.asarray(part).astype(dtype).reshape(part.height, part.width, bands)

    return copy_pixels(image, take, bands, dtype.name)


def gray_form(data: bytes) -> GrayForm | None:
    """Return the form of a gray label image; None if it is in color, or has a palette of colors.

    Raises:
        SourceError: the image is damaged.
    """
    if data.startswith(PNG_SIGNATURE):
        return png_form(data, read_png_header(data))
    if _is_dicom(data):
        return _dicom_form(data)
    opener = next((one for begins, one in _OPENERS if data.startswith(begins)), None)
    if opener is None:
        return None
    with decoder_failures():
        return _form_of_mode(open_with_plugin(opener, data).mode)


def palette_colors(data: bytes) -> NDArray[np.uint8] | None:
    """Return the palette [index, band] of a PNG; None without one.

    Raises:
        SourceError: the image is damaged.
    """
    if not data.startswith(PNG_SIGNATURE):
        return None
    header = read_png_header(data)
    payload = header.payload(data, b"PLTE") if header.color_type == PALETTE else None
    return None if payload is None else np.frombuffer(payload, np.uint8).reshape(-1, 3)


def _form_of_mode(mode: str) -> GrayForm | None:
    """Return the form of a TIFF or BMP; tools write a mask of 0 and 255 with 1 bit, too."""
    bits = {"1": 1, "L": 8, "I;16": 16}.get(mode)
    return None if bits is None else GrayForm(bits=bits)


def classes_of_gray(stored: NDArray[Any], form: GrayForm | None, labels: LabelMap | None) -> NDArray[Any]:
    """Return the classes of stored numbers: themselves, or the gray values, as the whole set of files proves.

    Raises:
        SourceError: the file has another form than those that planning saw, which would change its classes.
    """
    if form is None or labels is None:
        return stored
    # Planning compared all label images, and their gray values are the classes.
    if labels.shown_bits:
        return form.shown(stored, labels.shown_bits)
    # Mixed forms, such as masks of 1 and of 8 bits, would give one class two values.
    if is_other_form(form, stored, labels.forms):
        stores = ", ".join(map(str, np.unique(stored)[:5]))
        shows = ", ".join(map(str, np.unique(form.shown(stored, 8))[:5]))
        detail = f"it stores {stores} and shows {shows}; {GRAY_FIX}"
        raise decode_error("label image has another form than those before it", detail)
    return stored


def _table_decoder(image: Image.Image, labels: LabelMap) -> DecodeColors | None:
    """Return the function that decodes the colors of a class table; None for a palette with other colors."""
    if not labels.colors:
        return None
    numbers = dict(labels.colors)
    if image.mode == "P":
        colors = np.array(image.getpalette("RGB") or [], np.int64).reshape(-1, 3)
        codes = colors @ (1 << 16, 1 << 8, 1)
        indices = np.unique(np.asarray(image)).tolist()
        used = {index: int(codes[index]) for index in indices if index < len(codes)}
        named = {index: numbers[code] for index, code in used.items() if code in numbers}
        # Every index that a color of the table has is the table's number for it.
        if len(named) < len(used) and all(index == value for index, value in named.items()):
            return None  # its own numbers are those of the table, or it has other colors
    elif image.mode not in _COLORS:
        return None
    return partial(classes_of_colors, numbers=numbers, where=labels.where)


def _check_sound(image: Image.Image) -> None:
    """Refuse a TIFF, BMP or GIF that is lossy, rotated or inverted, or has several pages."""
    # The classes of further pages would be lost.
    if getattr(image, "n_frames", 1) > 1:
        raise decode_error("label image holds several pictures", f"{image.n_frames}; {_STACK_CURE}")  # type: ignore[attr-defined]
    if image.format != "TIFF":
        return
    compression = str(image.info.get("compression", "raw"))
    if compression not in _LOSSLESS:
        raise decode_error("label image is stored with loss", f"TIFF with compression {compression}; {_CURE}")
    tags = image.tag_v2  # type: ignore[attr-defined]
    bits = tags.get(258, (1,))
    # TIFF 6.0: Orientation (274), white is 0 in PhotometricInterpretation (262), BitsPerSample (258). Pillow inverts
    # and scales such values, so that they are no longer those which the file stores.
    if tags.get(274, 1) != 1 or tags.get(262) == 0 or any(bit not in (1, 8, 16, 32) for bit in bits):
        detail = "TIFF that is turned, whose white is 0, or of 2, 4 or 12 bits"
        raise decode_error("label image is ambiguous", f"{detail}; {_CURE}")
    if image.mode in _COLORS and set(bits) != {8}:
        raise decode_error("label image is in color", f"{bits} bits; {_CURE}")


def _of_color(
    values: NDArray[Any], mode: str, header: PngHeader | None, decode_colors: DecodeColors | None
) -> NDArray[Any]:
    """Return the classes of opaque color [height, width, band], or its gray values if all bands are equal."""
    gray = values[..., 0]
    colors = 1 if mode == "LA" else 3
    # Pillow reduces 16-bit color to 8 bits, so that two colors may become one.
    if header is not None and header.depth == 16:
        raise decode_error("label image is in color", f"16 bits a color; {_CURE}")
    if values.shape[2] > colors and (values[..., colors] != 255).any():
        raise decode_error("label image is in color", f"it is transparent in places; {_CURE}")
    if decode_colors:
        return decode_colors(np.broadcast_to(values[..., :colors], (*gray.shape, 3)))
    if any(not np.array_equal(gray, values[..., band]) for band in range(1, colors)):
        detail = f"mode {mode}; expected gray values or a palette, one value for each class; {_CURE}, or say which "
        raise decode_error("label image is in color", f"{detail}color is which class with --label-colors")
    return np.ascontiguousarray(gray)


def _by_palette(indices: NDArray[Any], image: Image.Image) -> NDArray[Any]:
    """Return the classes of a TIFF, BMP or GIF: its values, or those of a gray palette, which a GIF requires."""
    # Without a palette, the stored numbers are gray values.
    if image.mode != "P":
        return indices
    palette = np.zeros((256, 3), np.uint8)
    colors = np.array(image.getpalette("RGB") or [], np.uint8).reshape(-1, 3)[:256]
    palette[: len(colors)] = colors
    used = np.unique(indices)
    is_gray = bool((palette[used] == palette[used][:, :1]).all())
    if "transparency" in image.info or (image.format == "GIF" and not is_gray):
        detail = (
            f"{image.format} with a palette of colors or transparency, which writers order anew in each file"
        )
        raise decode_error("label image is in color", f"{detail}; {_CURE}")
    if not is_gray or image.format == "GIF":
        return palette[indices, 0] if is_gray else indices
    if not np.array_equal(palette[used, 0], used):
        detail = f"{image.format} whose gray values are not the indices of its palette"
        raise decode_error("label image is ambiguous", f"{detail}; {_CURE}")
    return indices


def has_voc_palette(data: bytes) -> bool:
    """Return whether a file is an indexed PNG with the palette of PASCAL VOC, whose void value is 255.

    In this palette, the bits of an index, three at a time, are the highest bits of red, green and blue.
    """
    if not data.startswith(PNG_SIGNATURE):
        return False
    header = read_png_header(data)
    palette = header.payload(data, b"PLTE") if header.color_type == PALETTE else None
    expected = bytearray(3 * 256)
    for index in range(256):
        for bit in range(8):
            expected[3 * index + bit % 3] |= (index >> bit & 1) << (7 - bit // 3)
    return palette == bytes(expected)


def check_mode(mode: str) -> None:
    """Refuse an image that Pillow reads as color, with transparency or with fractions."""
    if mode == "F":
        raise decode_error("label image holds fractions", f"32-bit floats; expected whole numbers; {_CURE}")
    if mode not in _DEPTHS:
        raise decode_error(
            "label image is in color", f"mode {mode}; expected gray values or a palette; {_CURE}"
        )


def class_indices(values: NDArray[Any], header: PngHeader) -> NDArray[Any]:
    """Return the stored numbers of a PNG from Pillow's values, which may be changed in place."""
    if header.color_type == GRAY and header.depth in (2, 4):
        values //= 255 // (2**header.depth - 1)  # Pillow scales 0 to 3, and 0 to 15, to 0 to 255
    return values


def label_on_grid(
    labels: NDArray[Any], orientation: int, image: DecodedImage, plan: ResizePlan, fill: int = 0
) -> NDArray[Any]:
    """Return a label's class indices on the stored picture's grid: rotated, nearest neighbor, padded with `fill`.

    Args:
        orientation: EXIF orientation from the label's grid to the displayed picture.

    Raises:
        SourceError: the label has neither the stored nor the displayed size.
    """
    # The label image was drawn on the stored picture, so the EXIF orientation of the picture applies to it.
    if orientation != 1:
        labels = apply_orientation(labels[..., None], orientation)[..., 0]
    if labels.shape != displayed_size(image.orientation, image.stored_size):
        height, width = image.stored_size
        detail = f"label {labels.shape[1]}x{labels.shape[0]}, picture {width}x{height}"
        raise SourceError("annotation", "label image is of another size than the picture", detail)
    return resize_mask(labels, plan, fill)


def check_drawn(planes: NDArray[Any], path: str) -> None:
    """Refuse a label with many values of isolated pixels, as after blending of edges or lossy compression.

    A pixel is isolated where at most two of its eight neighbors have its value.

    Args:
        planes: class indices [plane, height, width].

    Raises:
        SourceError: at least eight values, and more than half, nearly always belong to isolated pixels.
    """
    drawn = DrawnPixels()
    for plane in planes:
        # Few values are checked in a moment: no picture with them can be refused.
        if len(planes) == 1 and len(_count_pixels(plane)) <= MAX_SINGLE:
            return
        drawn.add(plane)
    drawn.check(path)


class DrawnPixels:
    """Pixels and isolated pixels of each value of a label, which is given in parts."""

    MAX_SINGLE = MAX_SINGLE

    def __init__(self) -> None:
        self._pixels: Counter[int] = Counter()
        self._single: Counter[int] = Counter()

    def add(
        self, plane: NDArray[Any], above: NDArray[Any] | None = None, below: NDArray[Any] | None = None
    ) -> None:
        """Count rows [height, width]; `above` and `below` are the rows beside them, None at the rim of the label."""
        around = [row[None] for row in (above, below) if row is not None]
        together = np.concatenate([*around[:1], plane, *around[1:]]) if len(around) == 2 else plane
        if len(around) == 1:
            together = np.concatenate([around[0], plane] if above is not None else [plane, around[0]])
        start = int(above is not None)
        alike = _count_alike(together)[start : start + len(plane)]
        self._pixels.update(_count_pixels(plane))
        self._single.update(_count_pixels(plane[alike <= 3]))  # a pixel equals itself

    def check(self, path: str) -> None:
        """Refuse the label, see `check_drawn`."""
        pixels, single = self._pixels, self._single
        scattered = sorted(value for value, count in pixels.items() if value and single[value] > 0.9 * count)
        drawn = sorted(pixels.keys() - {0, *scattered})
        if len(scattered) < MAX_SINGLE or len(scattered) <= len(drawn):
            return
        # Blending of two classes may hit a third one, which has few pixels then.
        least = (pixels.total() - pixels[0]) / 20
        keep = ",".join(str(value) for value in drawn[:20] if pixels[value] >= least) or "1"
        detail = (
            f"{path}: {len(scattered)} of its values ({', '.join(map(str, scattered[:5]))}, ...) are of single pixels, "
            "as where edges were blended or compressed with loss; save it by nearest neighbor and without loss, or "
            f"keep the values of classes alone with --classes {keep}"
        )
        raise SourceError("annotation", "label holds values that nobody drew", detail)


def _count_pixels(values: NDArray[Any]) -> dict[int, int]:
    """Return the number of pixels of each value."""
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _count_alike(plane: NDArray[Any]) -> NDArray[np.uint8]:
    """Return for each pixel [height, width] how many of it and its eight neighbors have its value."""
    padded = np.pad(plane.astype(np.int64), 1, constant_values=-1)
    height, width = plane.shape
    alike = np.zeros(plane.shape, np.uint8)
    for down, right in product(range(3), range(3)):
        alike += padded[down : down + height, right : right + width] == plane
    return alike


def renumber(values: NDArray[Any], ids: Mapping[int, int], dtype: str) -> NDArray[Any]:
    """Return the values of a label image or volume as ids; `ids` has one for each value."""
    # Most labels hold the ids already; then no copy is made.
    if all(value == identity for value, identity in ids.items()):
        return values
    numbers = sorted(ids)
    chosen = np.array([ids[number] for number in numbers], dtype)
    renumbered = np.empty(values.shape, dtype)
    for target, plane in zip(renumbered, values, strict=True):  # an index takes 8 bytes per voxel of a plane
        target[...] = chosen[np.searchsorted(numbers, plane)]
    return renumbered


def read_picture_labels(
    recipe: Recipe,
    labels: LabelMap,
    reference: SourceExample,
    files: SourceFiles,
    reserve: ReserveMemory = no_memory_limit,
) -> tuple[NDArray[Any] | None, tuple[str, ...], frozenset[int]]:
    """Return a picture's class indices [height, width] (None without labels), findings about them, and its class ids.

    Args:
        reserve: called with the number of bytes before pixels are decoded.

    Raises:
        SourceError: a label image cannot be read, has unknown classes, or classes overlap where that is refused.
    """
    several = len(reference.mask_paths) > 1
    if reference.class_runs is not None and reference.declared_size is not None:
        check_pixel_count(reference.declared_size, recipe.max_pixels, " in the label")
        # The mask of one class and the merged classes of 16 bits at most, which counting copies.
        reserve(6 * reference.declared_size[0] * reference.declared_size[1])
    decode_colors = decoder_of(recipe.label_coding(), reference.segments)

    def read(path: str) -> NDArray[Any]:
        # The merged labels stay in memory beside the next ones, and counting their classes makes copies.
        return read_label_image(
            files.read(path),
            recipe.max_pixels,
            lambda alone: reserve((3 if several else 2) * alone),
            decode_colors,
            labels,
        )

    found, overlapped, classes = merged_labels(recipe, labels, reference, read)
    return found, (OVERLAPPED.format(recipe.class_overlap),) if overlapped else (), classes


def _drawn_classes(
    labels: LabelMap, reference: SourceExample, overlap: OverlapRule
) -> tuple[NDArray[Any], int]:
    """Return the class indices [height, width] of a picture's run lengths, and the overlapped pixels.

    Raises:
        SourceError: run lengths are damaged, or classes overlap where that is refused.
    """
    if reference.declared_size is None:
        raise SourceError("annotation", "size of the masks is not known", "")
    size = reference.declared_size
    if not reference.class_runs:
        return np.zeros(size, labels.dtype), 0
    masks = ((labels.id_of(name), draw_mask(code, size)[None]) for name, code in reference.class_runs)
    merged, overlapped = merge_class_masks(masks, overlap, may_repeat=True)
    return merged[0], overlapped


def merged_labels(
    recipe: Recipe,
    labels: LabelMap,
    reference: SourceExample,
    read: Callable[[str], NDArray[Any]],
    check: Callable[[NDArray[Any], str], None] = check_drawn,
) -> tuple[NDArray[Any] | None, int, frozenset[int]]:
    """Return the merged class indices [height, width] (None without masks), the overlapped pixels, and the class ids.

    Args:
        read: returns the values of the mask of a path.
        check: called with the values [1, height, width] of a label without class names, and its path.

    Raises:
        SourceError: as `read_picture_labels`.
    """
    overlap: OverlapRule = recipe.class_overlap  # type: ignore[assignment]
    overlapped = 0
    classes: set[int] = set()
    found: NDArray[Any] | None = None
    if reference.class_runs is not None:
        found, overlapped = _drawn_classes(labels, reference, overlap)
        classes.update(count_labels(found))
    if reference.class_masks:
        masks = ((labels.id_of(name), read(path)[None]) for name, path in reference.class_masks)
        merged, overlapped = merge_class_masks(masks, overlap, may_repeat=bool(recipe.map_classes))
        found = merged[0]
        classes.update(count_labels(found))
    for path in reference.masks:
        image = read(path)
        if labels.is_open and labels.ignore is None:
            check(image[None], path)
        present = count_labels(image) if image.dtype == np.uint8 else np.unique(image).tolist()
        ids = labels.ids_of_values(present)
        classes.update(ids.values())
        image = renumber(image, ids, labels.dtype)
        if found is not None:
            image, voxels = merge_labels(found, image, overlap)
            overlapped += voxels
        found = image
    return found, overlapped, frozenset(classes)
