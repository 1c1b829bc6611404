"""Headers are read as pydicom reads them, and nothing in them that could identify a patient comes out again."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom import config
from pydicom.datadict import DicomDictionary
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.uid import RLELossless

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers as dicom_headers
from halofeed.prep.formats.dicom.headers import (
    HEADER_VRS,
    Element,
    HeaderContinuesError,
    is_dicom,
    parse_dicom_header,
)
from halofeed.prep.formats.dicom.series import group_series, open_series
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.files import LocalFiles
from tests.support.dicom_writer import image_dataset, save
from tests.support.level_rows import others

PIXELS = np.arange(64, dtype=np.uint16).reshape(8, 8)
SENTINEL_VRS = ("PN", "DA", "TM", "DT", "LO", "SH", "LT", "ST", "UT", "UC", "AS", "AE", "UI", "CS", "UR")
KEPT = {
    "SOPClassUID", "Modality", "PhotometricInterpretation", "ImageType", "SeriesInstanceUID", "PatientID",
    "RescaleType", "SpecificCharacterSet", "TransferSyntaxUID",
}  # fmt: skip


def sentinel_dataset(index: int, **options: Any) -> Dataset:
    """A CT slice with a sentinel in every element that can hold text and is not needed to read it."""
    dataset = image_dataset(PIXELS + index, position=(0, 0, index), **options)
    said = {0x0020000E: "1.2.3.SENTINEL", 0x00100020: "SENTINEL-ID", 0x00080020: "19701231SENTINEL"}
    for tag, (vr, _, _, retired, keyword) in DicomDictionary.items():
        is_needed = keyword in KEPT or tag >> 16 in (0x0000, 0x0002, 0x0004, 0xFFFE)
        if tag in said or (vr in SENTINEL_VRS and not is_needed and not retired):
            text = said.get(tag, "1.2.77777.SENTINEL" if vr == "UI" else "SENTINEL^DOE")
            dataset[tag] = DataElement(tag, vr, text, validation_mode=config.IGNORE)
    return dataset


FAULTS: dict[str, dict[str, Any]] = {
    "sound": {},
    "one that is not rescaled": {"rescale": None},
    "no number": {"SliceThickness": b"SENTINEL"},
    "no orientation": {"ImageOrientationPatient": b"SENTINEL\\1\\0\\0\\1\\0 "},
    "an unknown modality": {"Modality": b"SENTINEL"},
    "an unknown rescale type": {"RescaleType": b"SENTINEL"},
    "an unknown image type": {"ImageType": b"SENTINEL\\LOCALIZER "},
    "colors": {"PhotometricInterpretation": b"SENTINEL"},
    "an unknown character set": {"SpecificCharacterSet": b"SENTINEL"},
    "sizes as text": {"Rows": b"SENTINEL"},
    "frames as text": {"NumberOfFrames": b"SENTINEL"},
    "an unknown class": {"SOPClassUID": b"1.2.77777.SENTINEL"},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("compressed", others([False, True], [False]))
def test_no_value_of_a_header_comes_out_in_results_errors_warnings_or_logs(
    fault: str,
    compressed: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(config.settings, "writing_validation_mode", config.IGNORE)
        for index in range(3):
            changes = dict(FAULTS[fault])
            options = {"rescale": changes.pop("rescale")} if "rescale" in changes else {}
            dataset = sentinel_dataset(index, **options)
            path = save(dataset, tmp_path / f"{index}.dcm", *[RLELossless] * compressed)
            if index == 1:
                for keyword, value in changes.items():
                    _overwrite(path, keyword, value)
    caplog.clear()
    capfd.readouterr()
    files = LocalFiles(tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said = [group_series(files, files.sizes(), SeriesPolicy(salt="s"))]
        try:
            scan = open_series(files, files.sizes(), SeriesPolicy(salt="s"))
            said += [scan.findings, scan.files, scan.unit, scan.modality, scan.read().shape]
        except SourceError as error:
            said += [str(error), error.args, error.__cause__, error.__context__]
    outputs = capfd.readouterr()
    text = " ".join(map(repr, [*said, [str(item.message) for item in warned], caplog.text, outputs]))
    for sentinel in ("SENTINEL", "77777", "DOE", "19701231", "1.2.3."):
        assert sentinel not in text
    assert (fault == "sound") <= ("'HU'" in text)


def _overwrite(path: Path, keyword: str, value: bytes) -> None:
    """Replace an element's value in a file, whatever its VR says about such a value."""
    tag = pydicom.datadict.tag_for_keyword(keyword)
    assert tag is not None
    data = path.read_bytes()
    start = data.index(b"\x08\x00", 132)
    element = (tag >> 16).to_bytes(2, "little") + (tag & 0xFFFF).to_bytes(2, "little")
    value += b" " * (len(value) % 2)
    at, new = data.find(element, start), b"LO" + len(value).to_bytes(2, "little") + value
    if at >= 0:
        old = 8 + int.from_bytes(data[at + 6 : at + 8], "little")
        path.write_bytes(data[: at + 4] + new + data[at + old :])
    else:
        path.write_bytes(data[:start] + element + new + data[start:])


def assert_as_pydicom(data: bytes) -> None:
    """Compare every wanted element, and where the pixels begin, with pydicom's reader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pydicom.dcmread(pydicom.filebase.DicomBytesIO(data), force=True)
        header, body = parse_dicom_header(data)
        assert_same_elements(header.elements, [*expected.file_meta, *expected])
    if "PixelData" in expected:
        assert header.pixels is not None
        raw = expected.get_item("PixelData").value
        assert body[header.pixels.offset :][: len(raw)] == raw
    else:
        assert header.pixels is None or header.pixels.kind != "integer"


def assert_same_elements(elements: dicom_headers.Elements, listed: list[DataElement]) -> None:
    wanted = {int(element.tag): element for element in listed if int(element.tag) in HEADER_VRS}
    assert set(elements) == set(wanted)
    for tag, element in wanted.items():
        ours = elements[tag]
        if element.VR == "SQ":
            assert isinstance(ours, tuple) and len(ours) == len(element.value)
            for item, theirs in zip(ours, element.value, strict=True):
                assert_same_elements(item, list(theirs))
        elif element.VR in ("DS", "US", "SS", "IS", "FD", "FL", "UL", "US or SS"):
            value = [] if element.value in (None, "") else element.value
            try:
                values = np.atleast_1d(value).astype(float).tolist()
            except ValueError:
                with pytest.raises(SourceError):
                    dicom_headers.numbers(elements, tag, 1)
                continue
            try:
                found = dicom_headers.numbers(elements, tag, len(values)) if values else ()
            except SourceError:
                assert tag in (dicom_headers.PADDING_VALUE,)
                continue
            if tag != dicom_headers.PADDING_VALUE:
                assert list(found or ()) == pytest.approx(values)
        elif isinstance(element.value, bytes):
            assert isinstance(ours, Element) and ours.data == element.value
        else:
            assert isinstance(ours, Element)
            value = element.value if element.value is not None else ""
            several = isinstance(value, pydicom.multival.MultiValue)
            joined = "\\".join(map(str, value)) if several else str(value)
            assert dicom_headers.text(elements, tag).strip() == joined.strip() or not joined.isascii()


def test_headers_of_real_series_are_read_as_pydicom_reads_them(test_data: Path) -> None:
    paths = [path for path in sorted((test_data / "dicom").glob("*/*")) if is_dicom(path.read_bytes()[:256])]
    assert len(paths) == 45
    for path in paths:
        assert_as_pydicom(path.read_bytes())


SHIPPED = sorted((Path(pydicom.__file__).parent / "data" / "test_files").glob("**/*.dcm"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_headers_of_pydicoms_own_test_files_are_read_as_pydicom_reads_them(path: Path) -> None:
    data = path.read_bytes()
    try:
        parse_dicom_header(data)
    except SourceError:
        pytest.skip("refused")
    assert_as_pydicom(data)


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1"])
def test_a_header_is_the_same_from_its_first_bytes_as_from_the_file(tmp_path: Path, syntax: str) -> None:
    data = save(image_dataset(PIXELS), tmp_path / "a.dcm", syntax).read_bytes()
    whole, _ = parse_dicom_header(data)
    assert whole.pixels is not None
    for length in range(140, len(data)):
        try:
            part, _ = parse_dicom_header(data[:length], complete=False)
        except HeaderContinuesError:
            assert length < whole.pixels.offset
        else:
            assert part == whole and length >= whole.pixels.offset
