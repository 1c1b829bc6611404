"""Images with Real World Value Mappings hold the quantity that their files define."""

import warnings

import numpy as np
import pydicom
import pytest
from pydicom.uid import EnhancedMRImageStorage, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from tests.support.dicom_folders import details, open_folder, refusal
from tests.support.dicom_writer import image_dataset, item, multi_frame_dataset, save

SHAPE = (4, 5, 6)
POSITIONS = [[0, 0, 2.0 * at] for at in range(4)]
STORED = np.arange(120).reshape(SHAPE)


def unit(code):
    return [item(CodeValue=code, CodingSchemeDesignator="UCUM", CodeMeaning="a unit")]


def mapping(slope=0.001, intercept=-0.5, code="mm2/s", first=0, last=4095, **more):
    """A mapping; the VR of its range is that of the pixels."""
    made = item(LUTLabel="label", MeasurementUnitsCodeSequence=unit(code), **more)
    vr = "SS" if first < 0 else "US"
    made.add_new("RealWorldValueFirstValueMapped", vr, first)
    made.add_new("RealWorldValueLastValueMapped", vr, last)
    if "RealWorldValueLUTData" not in more:
        made.RealWorldValueSlope, made.RealWorldValueIntercept = float(slope), float(intercept)
    return made


def save_enhanced(path, per_frame=None, shared=None, rescale=(1, 0), kind="US", stored=STORED, syntax=None):
    """An enhanced MR with mappings of each frame, or of all."""
    volume = stored.astype(np.int16 if stored.min() < 0 else np.uint16)
    dataset = multi_frame_dataset(volume, POSITIONS, modality="MR", rescales=[rescale or (1, 0)] * 4)
    dataset.SOPClassUID = EnhancedMRImageStorage
    for at, group in enumerate(dataset.PerFrameFunctionalGroupsSequence):
        group.PixelValueTransformationSequence[0].RescaleType = kind
        if rescale is None:
            del group.PixelValueTransformationSequence
        if per_frame:
            group.RealWorldValueMappingSequence = per_frame[at]
    if shared:
        dataset.SharedFunctionalGroupsSequence[0].RealWorldValueMappingSequence = shared
    save(dataset, path, syntax or ExplicitVRLittleEndian)


def of_highdicom(path):
    """The values that highdicom reads [frame, row, column]."""
    import highdicom

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return highdicom.imread(path).get_frames(apply_real_world_transform=True)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
@pytest.mark.parametrize("rescale", [(1, 0), (2.5, 7), None])
@pytest.mark.parametrize(
    ("stored", "per_frame", "shared"),
    [
        (STORED, None, [mapping()]),
        (STORED, [[mapping(slope=at + 1, intercept=at / 8)] for at in range(4)], None),
        (STORED - 60, None, [mapping(first=-100, last=100)]),
        (STORED, None, [mapping(first=0, last=119, RealWorldValueLUTData=(np.arange(120.0) ** 2).tolist())]),
        (
            STORED % 7 - 3,
            None,
            [mapping(first=-3, last=3, RealWorldValueLUTData=np.geomspace(1, 2, 7).tolist())],
        ),
    ],
)
def test_each_frame_has_the_values_of_its_mapping_as_highdicom_reads_them(
    tmp_path, syntax, rescale, stored, per_frame, shared
):
    save_enhanced(tmp_path / "a.dcm", per_frame, shared, rescale, stored=stored, syntax=syntax)
    scan = open_folder(tmp_path)
    expected = of_highdicom(tmp_path / "a.dcm")
    np.testing.assert_allclose(scan.read()[..., 0], expected, rtol=1e-6)
    assert details(scan)["real world values"] == ("corrected", "in mm2/s") and not scan.unit
    plain = open_folder(tmp_path, real_world_values="stored")
    slope, intercept = rescale or (1, 0)
    np.testing.assert_allclose(plain.read()[..., 0], stored * slope + intercept)
    assert "real world values" not in details(plain)


@pytest.mark.parametrize("choice", ["1", "ms", "2", "mm2/s"])
def test_one_of_several_mappings_is_chosen_by_its_unit_or_number(tmp_path, choice):
    save_enhanced(tmp_path / "a.dcm", shared=[mapping(slope=2, code="ms"), mapping(slope=3, intercept=1)])
    error = refusal(tmp_path)
    assert error.reason == "several real world value mappings" and "1: ms, 2: mm2/s" in error.detail
    assert "--real-world-values ms" in error.detail
    expected = STORED * 2 - 0.5 if choice in ("1", "ms") else STORED * 3 + 1
    np.testing.assert_allclose(open_folder(tmp_path, real_world_values=choice).read()[..., 0], expected)
    assert refusal(tmp_path, real_world_values="Bq").reason == "no such real world value mapping"


def test_mappings_of_one_unit_are_chosen_by_number_and_equal_ones_are_one(tmp_path):
    save_enhanced(tmp_path / "a.dcm", shared=[mapping(slope=2), mapping(slope=3)])
    assert "--real-world-values 1" in refusal(tmp_path).detail
    save_enhanced(tmp_path / "a.dcm", shared=[mapping(slope=2), mapping(slope=2)])
    np.testing.assert_allclose(open_folder(tmp_path).read()[..., 0], STORED * 2 - 0.5)


def test_values_beyond_the_mapped_range_and_frames_of_several_units_are_refused(tmp_path):
    save_enhanced(tmp_path / "a.dcm", shared=[mapping(first=10, last=99)])
    error = refusal(tmp_path)
    assert error.reason == "values without a real world value" and "mapped are 10 to 99" in error.detail
    assert "--real-world-values stored" in error.detail
    assert open_folder(tmp_path, real_world_values="stored").read().max() == 119
    save_enhanced(tmp_path / "a.dcm", [[mapping(code="ms" if at else "mm2/s")] for at in range(4)])
    assert refusal(tmp_path).reason == "real world values of several units"
    damaged = mapping(first=0, last=9, RealWorldValueLUTData=[1.0, 2.0])
    save_enhanced(tmp_path / "a.dcm", shared=[damaged])
    assert refusal(tmp_path).reason == "real world value mapping is damaged"


@pytest.mark.parametrize(
    ("modality", "rescale", "kind", "applied"),
    [
        ("CT", (1, -1024), "HU", False),
        ("CT", (1, -1024), None, False),
        ("CT", (2, 0), "US", False),
        ("PT", (0.5, 0), None, False),
        ("MR", (3, 1), "OD", False),
        ("MR", (3, 1), "US", True),
        ("MR", (3, 1), None, True),
        ("MR", None, None, True),
        ("CT", None, None, True),
    ],
)
def test_a_rescale_that_is_a_quantity_stays_beside_a_mapping(tmp_path, modality, rescale, kind, applied):
    """HU of CT and the unit of PET are defined by the rescale; a damaged mapping beside them does not matter."""
    known = {"modality": modality, "rescale": rescale, "rescale_type": kind}
    for name, mappings in (
        ("with", [mapping(slope=7)]),
        ("damaged", [item(LUTLabel="x")]),
        ("without", None),
    ):
        (tmp_path / name).mkdir()
        for at, position in enumerate(POSITIONS):
            more = {"RealWorldValueMappingSequence": mappings} if mappings else {}
            dataset = image_dataset(STORED[at].astype(np.uint16), position=position, more=more, **known)
            save(dataset, tmp_path / name / f"{at}.dcm")
    plain, scan = open_folder(tmp_path / "without"), open_folder(tmp_path / "with")
    assert ("real world values" in details(scan)) == applied
    if applied:
        np.testing.assert_allclose(scan.read()[..., 0], STORED * 7 - 0.5)
        assert refusal(tmp_path / "damaged").reason == "real world value mapping is damaged"
        return
    for other in (scan, open_folder(tmp_path / "damaged")):
        np.testing.assert_array_equal(other.read(), plain.read())
        assert (other.dtype, other.unit) == (plain.dtype, plain.unit) and details(other) == details(plain)


def test_a_mapping_that_repeats_the_rescale_changes_nothing(tmp_path):
    """Philips writes the rescale of classic MR as a mapping too, with more digits than a decimal text has."""
    more = {"RealWorldValueMappingSequence": [mapping(slope=1.2345678901, intercept=0.25)]}
    for name, elements in (("with", more), ("without", {})):
        (tmp_path / name).mkdir()
        for at, position in enumerate(POSITIONS):
            stored = STORED[at].astype(np.uint16)
            dataset = image_dataset(
                stored,
                position=position,
                modality="MR",
                rescale=(1.234568, 0.25),
                rescale_type="US",
                more=elements,
            )
            save(dataset, tmp_path / name / f"{at}.dcm")
    scan, plain = open_folder(tmp_path / "with"), open_folder(tmp_path / "without")
    np.testing.assert_array_equal(scan.read(), plain.read())


def test_hounsfield_units_of_a_mapping_are_hounsfield_units(tmp_path):
    volume = STORED.astype(np.uint16)
    dataset = multi_frame_dataset(volume, POSITIONS)
    for group in dataset.PerFrameFunctionalGroupsSequence:
        del group.PixelValueTransformationSequence
    mappings = [mapping(slope=1, intercept=-1000, code="[hnsf'U]")]
    dataset.SharedFunctionalGroupsSequence[0].RealWorldValueMappingSequence = mappings
    save(dataset, tmp_path / "a.dcm")
    scan = open_folder(tmp_path)
    assert (scan.unit, scan.dtype) == ("HU", "int32")
    np.testing.assert_array_equal(scan.read()[..., 0], STORED - 1000)


def test_a_table_for_all_values_of_16_bits_is_read(tmp_path):
    table = np.linspace(-1, 1, 1 << 16)
    # An explicit VR has 16 bits for the length of numbers.
    mappings = [mapping(last=65535, RealWorldValueLUTData=table.tolist())]
    save_enhanced(tmp_path / "a.dcm", shared=mappings, syntax=ImplicitVRLittleEndian)
    np.testing.assert_allclose(open_folder(tmp_path).read()[..., 0], table[STORED], rtol=1e-6)


def test_a_unit_that_may_be_the_name_of_a_person_is_not_kept(tmp_path):
    save_enhanced(tmp_path / "a.dcm", shared=[mapping(code="Doe, John")])
    assert details(open_folder(tmp_path))["real world values"] == ("corrected", "in other")
    assert pydicom.dcmread(tmp_path / "a.dcm").SOPClassUID == EnhancedMRImageStorage
