"""Single DICOM pictures have the values of pydicom's modality LUT, VOI LUT and colors; hostile ones are refused."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    EnhancedXAImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
    UltrasoundMultiFrameImageStorage,
)

from halofeed.prep.formats.picture import ReadOptions, read_image, size_and_orientation
from halofeed.prep.formats.picture.image import (
    BURNED_IN_TEXT,
    IGNORED_WINDOWS,
    INVERTED,
    NARROW_VALUES,
    OVERLAYS_LEFT_OUT,
    PADDING_IN_BLACK,
    SEVERAL_VIEWS,
)
from halofeed.prep.formats.picture.picture_formats import open_picture
from halofeed.system.errors import SourceError
from tests.support.dicom_writer import file_bytes, image_dataset, item

LEVELS = ReadOptions(channels=1, dtype="uint16")
COLORS = ReadOptions(channels=3, dtype="uint8")
NOISE = np.random.default_rng(7)
SIZE = 40, 36


def gray(
    bits: int = 12, *, signed: bool = False, rescale: tuple[float, float] | None = None, **more: Any
) -> Dataset:
    """A radiograph of noise that uses all values of `bits` bits."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    word = np.dtype(f"{'i' if signed else 'u'}{1 if bits <= 8 else 2}")
    pixels = NOISE.integers(low, high + 1, SIZE).astype(word)
    pixels[0, :2] = low, high
    kind = {"SOPClassUID": ComputedRadiographyImageStorage} | more
    return image_dataset(
        pixels, position=None, orientation=None, modality="CR", rescale=rescale, bits_stored=bits, more=kind
    )


def color(
    pixels: np.ndarray, interpretation: str = "RGB", *, is_planar: bool = False, **more: Any
) -> Dataset:
    """An ultrasound picture, or frames of one, of colors [height, width, 3] in the order of the file."""
    stored = np.moveaxis(pixels, -1, -3) if is_planar else pixels
    bits = 8 * pixels.dtype.itemsize
    elements = {
        "SOPClassUID": UltrasoundMultiFrameImageStorage,
        "SamplesPerPixel": 3,
        "PhotometricInterpretation": interpretation,
        "PlanarConfiguration": int(is_planar),
        "Rows": pixels.shape[-3],
        "Columns": pixels.shape[-2],
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": bits - 1,
        "PixelData": stored.astype(pixels.dtype.newbyteorder("<")).tobytes(),
    }
    if pixels.ndim == 4:
        elements["NumberOfFrames"] = len(pixels)
    return image_dataset(
        np.zeros((1, 1), np.uint8),
        position=None,
        orientation=None,
        modality="US",
        rescale=None,
        more=elements | more,
    )


def noise_colors(*shape: int, dtype: str = "uint8") -> np.ndarray:
    return NOISE.integers(0, np.iinfo(dtype).max + 1, (*shape, 3)).astype(dtype)


def table(entries: np.ndarray, first: int, bits: int) -> Dataset:
    """An item of a modality LUT or VOI LUT sequence."""
    made = item(LUTDescriptor=[len(entries) % 65536, first, bits], LUTData=entries.astype("<u2").tobytes())
    made["LUTDescriptor"].VR = "SS" if first < 0 else "US"
    made["LUTData"].VR = "OW"
    return made


def shown_by_pydicom(data: bytes, index: int = 0) -> np.ndarray:
    """The levels of pydicom's values: the range of its output becomes 0 to 65535, and MONOCHROME1 is inverted."""
    dataset = pydicom.dcmread(io.BytesIO(data), force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset, index=index)
    values = values.astype(np.float64)
    low, high = (-(1 << dataset.BitsStored - 1), (1 << dataset.BitsStored - 1) - 1)
    if not dataset.PixelRepresentation:
        low, high = 0, (1 << dataset.BitsStored) - 1
    if dataset.get("ModalityLUTSequence"):
        low, high = 0, (1 << dataset.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    elif "RescaleSlope" in dataset:
        low, high = (end * dataset.RescaleSlope + dataset.RescaleIntercept for end in (low, high))
        # Its windows run from the value of the lowest stored value, which a negative slope makes the highest.
        low, high = (low, high) if "WindowCenter" in dataset else sorted((low, high))
    if dataset.get("VOILUTSequence"):
        low, high = 0, (1 << dataset.VOILUTSequence[index].LUTDescriptor[2]) - 1
    share = (values - low) / (high - low)
    return np.rint((1 - share if dataset.PhotometricInterpretation == "MONOCHROME1" else share) * 65535)


def levels_of(data: bytes, **options: Any) -> np.ndarray:
    options = {"channels": 1, "dtype": "uint16", **options}
    return read_image(data, ReadOptions(**options)).pixels[..., 0]


def views() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each kind of VOI LUT and window, by name."""
    yield "none", {}
    for function in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        yield function, {"WindowCenter": 700.5, "WindowWidth": 900, "VOILUTFunction": function}
    yield "narrow", {"WindowCenter": 100, "WindowWidth": 1}
    curve = np.sqrt(np.linspace(0, 1, 900)) * 4095
    yield "table", {"VOILUTSequence": [table(curve, 50, 12)]}


@pytest.mark.parametrize(("view", "elements"), list(views()), ids=[name for name, _ in views()])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_gray_values_are_those_of_pydicom_before_they_are_scaled(view, elements, syntax):
    # pydicom warns of fractions before a table, and counts values beyond 65535 from 0 again.
    rescales = (None, (1, -1024)) if view == "table" else (None, (2.5, -100.25), (1, -1024), (-1, 3000))
    for bits, signed, rescale in product((8, 12, 16), (False, True), rescales):
        for interpretation in ("MONOCHROME1", "MONOCHROME2"):
            dataset = gray(
                bits, signed=signed, rescale=rescale, PhotometricInterpretation=interpretation, **elements
            )
            data = file_bytes(dataset, syntax)
            assert np.array_equal(levels_of(data), shown_by_pydicom(data)), (bits, signed, rescale)


def test_a_modality_table_replaces_the_rescale_and_comes_before_the_window():
    entries = (np.arange(4096) ** 2 // 256).clip(0, 65535)
    for more in ({}, {"WindowCenter": 20000, "WindowWidth": 30000}):
        data = file_bytes(gray(12, ModalityLUTSequence=[table(entries, 0, 16)], **more))
        assert np.array_equal(levels_of(data), shown_by_pydicom(data))


def test_inputs_beyond_a_table_take_its_ends_and_its_first_input_may_be_negative():
    entries = np.arange(100, 4096, 40)
    data = file_bytes(gray(12, signed=True, VOILUTSequence=[table(entries, -50, 12)]))
    assert np.array_equal(levels_of(data), shown_by_pydicom(data))


def test_a_table_of_16_bits_that_uses_12_fills_the_range():
    data = file_bytes(gray(12, VOILUTSequence=[table(np.arange(4096), 0, 16)]))
    assert levels_of(data).max() == 65535


def test_entries_of_8_bits_may_be_stored_as_bytes():
    made = item(LUTDescriptor=[256, 0, 8], LUTData=bytes(range(256)))
    made["LUTDescriptor"].VR, made["LUTData"].VR = "US", "OW"
    dataset = gray(8, VOILUTSequence=[made])
    pixels = np.frombuffer(dataset.PixelData, np.uint8).reshape(SIZE)
    assert np.array_equal(levels_of(file_bytes(dataset), dtype="uint8"), pixels)


def test_8_bits_without_a_window_keep_their_values_and_12_bits_keep_theirs_in_uint16():
    small, large = gray(8), gray(12)
    of_small = np.frombuffer(small.PixelData, np.uint8).reshape(SIZE)
    of_large = np.frombuffer(large.PixelData, "<u2").reshape(SIZE)
    assert np.array_equal(levels_of(file_bytes(small), dtype="uint8"), of_small)
    # The scaling to 16 bits can be undone.
    assert np.array_equal(np.rint(levels_of(file_bytes(large)) / 65535 * 4095), of_large)


def test_the_user_chooses_a_window_by_number_explanation_or_values_or_none():
    dataset = gray(12, WindowCenter=[700, 2000], WindowWidth=[900, 3000])
    dataset.WindowCenterWidthExplanation = ["NORMAL", "HARDER"]
    data = file_bytes(dataset)
    second = shown_by_pydicom(data, index=1)
    assert np.array_equal(levels_of(data, window="2"), second)
    assert np.array_equal(levels_of(data, window="harder"), second)
    pixels = np.frombuffer(dataset.PixelData, "<u2").reshape(SIZE)
    assert np.array_equal(levels_of(data, window="none"), np.rint(pixels / 4095 * 65535))
    share = ((pixels - 300.0) / 200).clip(0, 1)
    assert np.abs(levels_of(data, window="400/200") - share * 65535).max() < 1
    for wrong in ("3", "0", "soft"):
        with pytest.raises(SourceError, match=r"no such window.*--window 1 to 2, or none"):
            levels_of(data, window=wrong)


def test_a_named_window_in_hounsfield_units_is_for_ct():
    dataset = gray(12, rescale=(1, -1024), Modality="CT")
    share = ((np.frombuffer(dataset.PixelData, "<u2").reshape(SIZE) - 1024.0 + 160) / 400).clip(0, 1)
    assert np.abs(levels_of(file_bytes(dataset), window="abdomen") - share * 65535).max() < 1
    with pytest.raises(SourceError, match="no such window"):
        levels_of(file_bytes(gray(12, rescale=(1, -1024))), window="abdomen")


def test_inverse_of_the_presentation_shape_inverts_once():
    dataset = gray(8)
    pixels = np.frombuffer(dataset.PixelData, np.uint8).reshape(SIZE)
    for interpretation, shape in (
        ("MONOCHROME1", "INVERSE"),
        ("MONOCHROME2", "INVERSE"),
        ("MONOCHROME1", None),
        ("MONOCHROME1", "IDENTITY"),
    ):
        dataset.PhotometricInterpretation = interpretation
        if shape:
            dataset.PresentationLUTShape = shape
        image = read_image(file_bytes(dataset), ReadOptions(channels=1))
        assert np.array_equal(image.pixels[..., 0], 255 - pixels) and INVERTED in image.notes


def test_padding_is_black_and_said_however_the_values_are_shown():
    for interpretation in ("MONOCHROME1", "MONOCHROME2"):
        dataset = gray(12, PhotometricInterpretation=interpretation, PixelPaddingValue=2000)
        dataset["PixelPaddingValue"].VR = "US"
        dataset.PixelPaddingRangeLimit = 2100
        pixels = np.frombuffer(dataset.PixelData, "<u2").reshape(SIZE)
        image = read_image(file_bytes(dataset), LEVELS)
        is_padding = (pixels >= 2000) & (pixels <= 2100)
        assert is_padding.any() and not image.pixels[is_padding].any() and PADDING_IN_BLACK in image.notes
        expected = shown_by_pydicom(file_bytes(dataset))[~is_padding]
        assert np.array_equal(image.pixels[..., 0][~is_padding], expected)


def test_what_a_header_says_of_a_picture_is_noted():
    dataset = gray(12, WindowCenter=[700, 2000], WindowWidth=[900, 3000], BurnedInAnnotation="YES")
    dataset.add_new(0x60000010, "US", SIZE[0])
    assert {BURNED_IN_TEXT, OVERLAYS_LEFT_OUT, SEVERAL_VIEWS} <= {
        *read_image(file_bytes(dataset), LEVELS).notes
    }
    chosen = read_image(file_bytes(dataset), ReadOptions(window="1")).notes
    assert SEVERAL_VIEWS not in chosen
    useless = gray(12, WindowCenter=0, WindowWidth=0)
    assert IGNORED_WINDOWS in read_image(file_bytes(useless), LEVELS).notes
    dim = gray(12)
    dim.PixelData = (np.frombuffer(dim.PixelData, "<u2") // 8).tobytes()
    assert NARROW_VALUES in read_image(file_bytes(dim), COLORS).notes


def test_a_picture_of_16_bits_that_uses_12_of_them_asks_for_the_number_of_bits():
    dataset = gray(12)
    dataset.BitsStored, dataset.HighBit = 16, 15
    with pytest.raises(SourceError, match=r"nearly black.*--sample-bits 12"):
        read_image(file_bytes(dataset), ReadOptions(sample_bits=0))
    pixels = np.frombuffer(dataset.PixelData, "<u2").reshape(*SIZE, 1)
    found = read_image(file_bytes(dataset), ReadOptions(channels=1, sample_bits=12)).pixels
    assert np.abs(found - pixels / 4095 * 255).max() < 1


@pytest.mark.parametrize(
    "syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless, JPEGLosslessSV1, ExplicitVRBigEndian]
)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_compressed_gray_equals_uncompressed_gray(syntax, bits):
    window = {"WindowCenter": 100, "WindowWidth": 150}
    dataset = gray(bits, **window)
    plain = levels_of(file_bytes(dataset))
    assert np.array_equal(levels_of(file_bytes(dataset, syntax)), plain)


def test_colors_in_pixels_or_planes_are_those_of_the_file():
    for pixels, is_planar in product((noise_colors(7, 5), noise_colors(6, 4, dtype="uint16")), (False, True)):
        data = file_bytes(color(pixels, is_planar=is_planar))
        assert np.array_equal(read_image(data, ReadOptions(dtype=str(pixels.dtype))).pixels, pixels)


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless])
def test_compressed_colors_are_those_of_the_file(syntax):
    pixels = noise_colors(*SIZE)
    assert np.array_equal(read_image(file_bytes(color(pixels), syntax), COLORS).pixels, pixels)


def test_luma_and_chroma_become_the_colors_of_pydicom():
    pixels = noise_colors(8, 6)
    subsampled = np.concatenate([pixels[:, ::2, :1], pixels[:, 1::2, :1], pixels[:, ::2, 1:]], axis=-1)
    half = color(pixels, "YBR_FULL_422", PixelData=subsampled.tobytes())
    for dataset in (color(pixels, "YBR_FULL"), color(pixels, "YBR_FULL", is_planar=True), half):
        data = file_bytes(dataset)
        assert np.array_equal(read_image(data, COLORS).pixels, pydicom.dcmread(io.BytesIO(data)).pixel_array)
    # Some writers store all samples under the name of the subsampled form.
    whole = file_bytes(color(pixels, "YBR_FULL_422"))
    assert np.array_equal(
        read_image(whole, COLORS).pixels, read_image(file_bytes(color(pixels, "YBR_FULL")), COLORS).pixels
    )


@pytest.mark.parametrize(("interpretation", "subsampling"), [("YBR_FULL_422", 1), ("YBR_FULL", 0)])
def test_a_jpeg_in_color_has_the_colors_of_pydicom(interpretation, subsampling):
    stream = io.BytesIO()
    Image.fromarray(noise_colors(16, 16)).save(stream, "JPEG", quality=90, subsampling=subsampling)
    dataset = color(noise_colors(16, 16), interpretation, PixelData=encapsulate([stream.getvalue()]))
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True
    data = renamed(file_bytes(dataset), JPEGBaseline8Bit)
    assert np.array_equal(read_image(data, COLORS).pixels, pydicom.dcmread(io.BytesIO(data)).pixel_array)


def renamed(data: bytes, syntax: str) -> bytes:
    """The file with another transfer syntax in its meta information."""
    dataset = pydicom.dcmread(io.BytesIO(data))
    dataset.file_meta.TransferSyntaxUID = syntax
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def palette(values: np.ndarray, tables: np.ndarray, *, first: int = 0, bits: int = 16) -> Dataset:
    """A picture of places in palettes [entry, 3]."""
    dataset = image_dataset(values, position=None, orientation=None, modality="US", rescale=None)
    dataset.SOPClassUID, dataset.PhotometricInterpretation = UltrasoundMultiFrameImageStorage, "PALETTE COLOR"
    for name, entries in zip(("Red", "Green", "Blue"), tables.T, strict=True):
        setattr(dataset, f"{name}PaletteColorLookupTableDescriptor", [len(entries) % 65536, first, bits])
        dataset[f"{name}PaletteColorLookupTableDescriptor"].VR = "US"
        setattr(dataset, f"{name}PaletteColorLookupTableData", entries.astype("<u2").tobytes())
    return dataset


def test_a_palette_gives_the_colors_of_pydicom_with_its_ends_for_values_beyond_it():
    values = NOISE.integers(0, 256, (9, 7)).astype(np.uint8)
    tables = NOISE.integers(0, 65536, (100, 3))
    data = file_bytes(palette(values, tables, first=20))
    dataset = pydicom.dcmread(io.BytesIO(data))
    expected = apply_color_lut(dataset.pixel_array, dataset)
    assert np.array_equal(read_image(data, ReadOptions(dtype="uint16")).pixels, expected)


@pytest.mark.parametrize("factor", [1, 256, 257])
def test_a_palette_of_8_bits_in_words_gives_8_bits_wherever_they_are(factor):
    values, tables = np.arange(256, dtype=np.uint8).reshape(16, 16), NOISE.integers(0, 256, (256, 3))
    found = read_image(file_bytes(palette(values, tables * factor)), COLORS).pixels
    assert np.array_equal(found, tables[values])


def test_a_segmented_palette_is_expanded():
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    # 3 values; 4 steps to 700; then the first segment again, from its byte 0.
    segments = np.array([0, 3, 100, 200, 300, 1, 4, 700, 2, 1, 0, 0, 0, 2, 7, 9], "<u2")
    expected = [100, 200, 300, 400, 500, 600, 700, 100, 200, 300, 7, 9]
    dataset = palette(values, np.zeros((12, 3), int))
    for name in ("Red", "Green", "Blue"):
        del dataset[f"{name}PaletteColorLookupTableData"]
        setattr(dataset, f"Segmented{name}PaletteColorLookupTableData", segments.tobytes())
    found = read_image(file_bytes(dataset), ReadOptions(dtype="uint16")).pixels
    assert found[..., 0].ravel().tolist() == expected


def test_each_frame_is_a_picture_with_its_own_window():
    frames = noise_colors(3, 8, 6)
    data = file_bytes(color(frames))
    assert open_picture(data, COLORS).frames == 3
    for number in range(3):
        assert np.array_equal(read_image(data, COLORS, frame=number).pixels, frames[number])
    pixels = NOISE.integers(0, 4096, (2, 8, 6)).astype(np.uint16)
    windows = [item(WindowCenter=center, WindowWidth=1000) for center in (700, 2000)]
    more = {
        "SOPClassUID": EnhancedXAImageStorage,
        "NumberOfFrames": 2,
        "PerFrameFunctionalGroupsSequence": [item(FrameVOILUTSequence=[one]) for one in windows],
    }
    dataset = image_dataset(pixels, position=None, modality="XA", rescale=None, bits_stored=12, more=more)
    for number, window in enumerate(windows):
        single = gray(12)
        single.PixelData, single.Rows, single.Columns = pixels[number].tobytes(), 8, 6
        single.WindowCenter, single.WindowWidth = window.WindowCenter, 1000
        found = read_image(file_bytes(dataset), LEVELS, frame=number).pixels[..., 0]
        assert np.array_equal(found, shown_by_pydicom(file_bytes(single)))


def test_one_bit_is_black_and_white():
    bits = NOISE.integers(0, 2, (5, 7)).astype(np.uint8)
    more = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0, "Rows": 5, "Columns": 7}
    packed = np.packbits(bits.ravel(), bitorder="little").tobytes()
    dataset = image_dataset(np.zeros((1, 1), np.uint8), position=None, rescale=None, modality="OT", more=more)
    dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7.1"
    dataset.PixelData = packed + b"\0" * (len(packed) % 2)
    assert np.array_equal(read_image(file_bytes(dataset), ReadOptions(channels=1)).pixels[..., 0], bits * 255)


def test_a_file_without_its_preamble_is_read_and_its_head_tells_the_size():
    data = file_bytes(gray(8))
    start = data.index(b"\x08\x00\x08\x00")
    assert np.array_equal(levels_of(data[start:]), levels_of(data))
    assert size_and_orientation(data[:900]) == (SIZE, 1)


def test_every_truncated_file_is_refused_with_a_reason():
    whole = {
        name: file_bytes(gray(12, WindowCenter=1, WindowWidth=9), name)
        for name in (RLELossless, JPEG2000Lossless)
    }
    whole[ExplicitVRLittleEndian] = file_bytes(gray(12, VOILUTSequence=[table(np.arange(4096), 0, 12)]))
    for data in whole.values():
        # The delimiter after the last frame is 8 bytes; without it the frames are whole.
        for end in range(0, len(data) - 10, max(1, len(data) // 97)):
            with pytest.raises(SourceError):
                read_image(data[:end], LEVELS)


def test_damaged_bytes_give_a_picture_or_a_reason_and_no_other_error():
    random = np.random.default_rng(3)
    for dataset in (gray(12, VOILUTSequence=[table(np.arange(300), 0, 12)]), color(noise_colors(2, 8, 6))):
        data = file_bytes(dataset)
        for _ in range(150):
            changed = bytearray(data)
            for place in random.integers(132, len(data), 4):
                changed[place] = random.integers(256)
            with contextlib.suppress(SourceError):
                assert read_image(bytes(changed), COLORS).pixels.dtype == np.uint8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PhotometricInterpretation": "CMYK"}, "colors of the DICOM file are not supported"),
        ({"SamplesPerPixel": 3}, "3 samples per pixel of MONOCHROME2"),
        ({"WindowCenter": 5, "WindowWidth": 9, "VOILUTFunction": "CUBIC"}, "--window none"),
        ({"RescaleSlope": 0, "RescaleIntercept": 5}, "rescale slope is 0"),
        (
            {"VOILUTSequence": [item(LUTDescriptor=[900, 0, 12], LUTData=b"\1\0")]},
            "a table of 2 bytes for 900 entries",
        ),
        ({"NumberOfFrames": 100_000}, "100,000 frames"),
        ({"NumberOfFrames": 4}, "pixel data is truncated"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.4", "Modality": "SEG"}, "--layout dicom with --depth"),
    ],
)
def test_a_picture_that_contradicts_itself_is_refused_with_the_reason(change, message):
    dataset = gray(12, **change)
    for sequence in dataset.get("VOILUTSequence", ()):
        sequence["LUTDescriptor"].VR, sequence["LUTData"].VR = "US", "OW"
    with pytest.raises(SourceError, match=message):
        levels_of(file_bytes(dataset))
