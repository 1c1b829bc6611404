"""Masks in DICOM files beside pictures are label images: their stored numbers, or a refusal that says why."""

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import (
    DigitalMammographyXRayImageStorageForPresentation,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
    SecondaryCaptureImageStorage,
)

from halofeed.prep.convert.label_image import gray_form, read_label_image
from halofeed.system.errors import SourceError
from tests.support.conversions import halofeed_here, read_all, rejected_entries
from tests.support.dicom_writer import file_bytes, image_dataset, save

HEIGHT, WIDTH = 40, 52
NONE = {"position": None, "orientation": None, "rescale": None}


def drawn(top: int, left: int, value: int = 255, dtype: type = np.uint8) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), dtype)
    mask[top : top + 10, left : left + 12] = value
    return mask


def mask_set(pixels: np.ndarray, **more):
    kind = {"SOPClassUID": SecondaryCaptureImageStorage, "PixelSpacing": None}
    return image_dataset(pixels, modality="MG", more=kind | more, **NONE)


@pytest.mark.parametrize("syntax", [None, RLELossless, JPEG2000Lossless])
@pytest.mark.parametrize(("dtype", "value"), [(np.uint8, 255), (np.uint8, 3), (np.uint16, 700)])
def test_a_label_has_the_numbers_that_the_file_stores_whatever_it_displays(dtype, value, syntax):
    mask = drawn(5, 7, value, dtype)
    dataset = mask_set(mask, WindowCenter="1", WindowWidth="2")
    data = file_bytes(dataset) if syntax is None else file_bytes(dataset, syntax)
    found = read_label_image(data, 1 << 20)
    assert found.dtype == dtype and np.array_equal(found, mask)
    assert gray_form(data).bits == 8 * found.itemsize


def test_a_label_of_one_bit_has_the_values_0_and_1():
    mask = drawn(3, 9, 1)
    packed = np.packbits(mask.reshape(-1), bitorder="little").tobytes()
    more = {
        "BitsAllocated": 1,
        "BitsStored": 1,
        "HighBit": 0,
        "PixelData": packed + b"\0" * (len(packed) % 2),
    }
    data = file_bytes(mask_set(mask, **more))
    assert np.array_equal(read_label_image(data, 1 << 20), mask) and gray_form(data).bits == 1


REFUSED = {
    "MONOCHROME1": ({"PhotometricInterpretation": "MONOCHROME1"}, "ambiguous"),
    "rescaled": ({"RescaleSlope": "2", "RescaleIntercept": "0"}, "ambiguous"),
    "lossy": ({"LossyImageCompression": "01"}, "loss"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_label_whose_classes_are_not_certain_is_refused(name):
    elements, said = REFUSED[name]
    with pytest.raises(SourceError, match=said):
        read_label_image(file_bytes(mask_set(drawn(1, 1), **elements)), 1 << 20)


def test_jpeg_frames_and_negative_values_are_refused():
    with pytest.raises(SourceError, match="loss"):
        read_label_image(file_bytes(mask_set(drawn(1, 1)), JPEGBaseline8Bit), 1 << 20)
    with pytest.raises(SourceError, match="-3 to 0"):
        read_label_image(file_bytes(mask_set(drawn(1, 1, -3, np.int16))), 1 << 20)
    with pytest.raises(SourceError, match="2 frames"):
        read_label_image(file_bytes(mask_set(np.stack([drawn(1, 1)] * 2), NumberOfFrames=2)), 1 << 20)
    with pytest.raises(SourceError, match="more pixels"):
        read_label_image(file_bytes(mask_set(drawn(1, 1))), 100)


def write_set(root, *, second: bool = True, wrong_size: bool = False) -> None:
    """Four mammograms with masks as CBIS-DDSM has them: a table with a row for each mask, and names that end a line."""
    rows = ["patient_id,image file path,ROI mask file path,pathology"]
    for at in range(4):
        pixels = np.random.default_rng(at).integers(0, 4000, (HEIGHT, WIDTH)).astype(np.uint16)
        kind = {"SOPClassUID": DigitalMammographyXRayImageStorageForPresentation, "PixelSpacing": [0.1, 0.1]}
        save(
            image_dataset(pixels, bits_stored=12, modality="MG", more=kind, **NONE), root / f"full/{at}/1.dcm"
        )
        for number in range(1 + (at == 1 and second)):
            mask = drawn(4 + 15 * number, 6 + 20 * number)
            mask = mask[:-1] if wrong_size and at == 2 else mask
            save(mask_set(mask), root / f"roi/{at}_{number}/1.dcm")
            rows.append(f'P{at},full/{at}/1.dcm,"roi/{at}_{number}/1.dcm\n",BENIGN')
    (root / "t.csv").write_text("\n".join(rows))


COLUMNS = ["--column", "image=image file path", "--column", "label=ROI mask file path"]


def convert(root, *words: object) -> tuple[object, str]:
    size = ["--height", HEIGHT, "--width", WIDTH, "--channels", 1]
    run = halofeed_here(
        "convert", "--source", root / "s", "--out", root / "out", "--name", "t", *size, *words
    )
    assert run.returncode == 0, run.stderr
    return root / "out/t/1.0.0", run.stdout + run.stderr


def test_a_table_pairs_pictures_with_masks_and_merges_the_rows_of_one_picture(tmp_path):
    write_set(tmp_path / "s")
    table = ["--task", "segmentation", "--layout", "csv", *COLUMNS]
    folder, printed = convert(tmp_path, *table, "--several-masks", "merge")
    assert "255 is class 1, foreground" in printed
    records = read_all(folder, ["train"])
    assert len(records) == 4
    for name, record in records.items():
        label = np.frombuffer(record["image/label"][0], np.uint8).reshape(HEIGHT, WIDTH)
        expected = drawn(4, 6, 1) | (drawn(19, 26, 1) if name == "full/1/1.dcm" else 0)
        assert np.array_equal(label, expected) and "image/spacing_mm" in record


def test_rows_of_one_picture_are_refused_with_a_fix_unless_the_user_chooses(tmp_path):
    write_set(tmp_path / "s", wrong_size=True)
    folder, _ = convert(tmp_path, "--task", "segmentation", "--layout", "csv", *COLUMNS, "--max-rejected", 2)
    entries = {entry["source"]: entry["reason"] + entry["detail"] for entry in rejected_entries(folder)}
    assert "--several-masks merge" in entries["full/1/1.dcm"]
    assert (
        "another size" in entries["full/2/1.dcm"] and f"label {WIDTH}x{HEIGHT - 1}" in entries["full/2/1.dcm"]
    )


def test_patterns_name_masks_in_dicom(tmp_path):
    write_set(tmp_path / "s", second=False)
    (tmp_path / "s/t.csv").unlink()
    patterns = ["--image-pattern", "full/{id}/1.dcm", "--label-pattern", "roi/{id}_0/1.dcm"]
    folder, _ = convert(tmp_path, "--layout", "pairs", *patterns, "--map-classes", "255=mass")
    assert len(read_all(folder, ["train"])) == 4 and '"mass"' in (folder / "manifest.json").read_text()


def test_masks_in_dicom_and_png_give_one_data_set(tmp_path):
    write_set(tmp_path / "s", second=False)
    Image.fromarray(drawn(4, 6)).save(tmp_path / "s/roi/3.png")
    table = (tmp_path / "s/t.csv").read_text().replace("roi/3_0/1.dcm", "roi/3.png")
    (tmp_path / "s/t.csv").write_text(table)
    words = ["--task", "segmentation", "--layout", "csv", *COLUMNS, "--max-rejected", 1]
    folder, _ = convert(tmp_path, *words)
    labels = {bytes(record["image/label"][0]) for record in read_all(folder, ["train"]).values()}
    assert labels == {drawn(4, 6, 1).tobytes()}
