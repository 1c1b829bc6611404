"""Is a label taken for what it is, whatever file it comes from, or refused with a cure that works?"""

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset

from halofeed.errors import AnnotationsError, JobError, UsageError
from halofeed.prep.geometry.scan import Grid
from tests.support.conversions import read_split, run_convert
from tests.support.dicom_mask_writer import frames_of, saved, segmentation, structure_set
from tests.support.dicom_writer import item, write_volume
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image, mask, msd_document, reference_to, write_json
from tests.support.volume_support import by_name, findings, rejected, save_nifti, write_table


def moved(shift_mm: float, scale: float = 1.0) -> np.ndarray:
    """The grid of the scan, off along each axis and stretched."""
    affine = AFFINE.copy()
    affine[:3, :3] *= scale
    affine[:3, 3] += shift_mm
    return affine


def table_of(root: Path, **masks: tuple[np.ndarray, np.ndarray]) -> Path:
    """A table of scans, each with a mask [depth, height, width] and the affine of the mask."""
    rows = []
    for name, (values, affine) in masks.items():
        save_nifti(root / f"{name}.nii", image(), AFFINE)
        save_nifti(root / f"{name}_mask.nii", values, affine)
        rows.append((name, f"{name}.nii", f"{name}_mask.nii"))
    return write_table(root, rows)


def convert(source: Path, out: Path, **options: Any) -> Any:
    return run_convert(source, out, **{"layout": "csv", "task": "segmentation", **SIZE, **options})


def test_a_resampled_mask_that_lies_beside_its_scan_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path / "s", beside=(mask(), moved(500)), near=(mask(), moved(1.5)))
    done = convert(tmp_path / "s", tmp_path / "o", mask_grid="resample")
    stage, reason, detail = rejected(done)["beside.nii"]
    assert (stage, reason) == ("geometry", "mask lies outside of its image")
    assert "--mask-grid voxels" in detail
    assert by_name(done)["near.nii"].label.any()


def test_a_mask_off_by_less_than_the_tolerance_is_its_scans_and_its_offset_is_noted(tmp_path: Path) -> None:
    table_of(
        tmp_path / "s",
        same=(mask(), AFFINE),
        dcm2niix=(mask(), moved(0.0011)),
        scaled=(mask(), moved(0, 1 + 1e-5)),
        rounded=(mask(), moved(0.05)),
        tenth=(mask(), moved(0.15)),
        half=(mask(), moved(0.75)),
    )
    done = convert(tmp_path / "s", tmp_path / "o")
    assert set(by_name(done)) == {"same.nii", "dcm2niix.nii", "scaled.nii", "rounded.nii"}
    assert all(np.array_equal(record.label, mask()) for record in by_name(done).values())
    assert findings(done) == {"mask slightly off its image's grid (noted)": 1}
    stage, reason, detail = rejected(done)["half.nii"]
    assert (stage, reason) == ("geometry", "mask lies on another grid than its image")
    assert "(0.5 voxels); --mask-grid resample" in detail and "tolerance" not in detail
    assert "--mask-grid-tolerance 0.1" in rejected(done)["tenth.nii"][2]
    done = convert(tmp_path / "s", tmp_path / "p", mask_grid_tolerance=0.2)
    assert set(rejected(done)) == {"half.nii"}
    done = convert(tmp_path / "s", tmp_path / "q", mask_grid_tolerance=0.0001)
    assert set(by_name(done)) == {"same.nii", "scaled.nii"}
    with pytest.raises(UsageError, match=r"--mask-grid-tolerance 0\.5: expected"):
        convert(tmp_path / "s", tmp_path / "r", mask_grid_tolerance=0.5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_of_a_part_of_its_scans_voxels_is_taken_as_it_lies(tmp_path: Path, turned: bool) -> None:
    """3D Slicer saves the extent of what is drawn; nothing is resampled, so no option is needed."""
    window = (slice(1, 4), slice(2, 8), slice(0, 5))
    grid = AFFINE.copy()
    grid[:3, 3] = (AFFINE @ [1, 2, 0, 1])[:3]
    part = mask()[window]
    if turned:  # stored from the right
        grid = grid @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, part.shape[2] - 1], [0, 0, 0, 1.0]])
        part = part[:, :, ::-1]
    half, beyond = grid.copy(), grid.copy()
    half[:3, 3] += 0.5 * AFFINE[:3, 2]
    beyond[:3, 3] += 3 * AFFINE[:3, 0]
    table = table_of(
        tmp_path / "s",
        inside=(part, grid),
        half=(part, half),
        beyond=(part, beyond),
        scaled=(part, grid @ np.diag([1, 1.1, 1, 1])),
        larger=(np.zeros((6, 8, 9), np.uint8), AFFINE),
        lost_first_slice=(mask()[1:], AFFINE),  # nothing tells it from a part at the other end
    )
    done = convert(table, tmp_path / "o")
    wrong = ("half", "beyond", "scaled", "larger", "lost_first_slice")
    expected = np.zeros_like(mask())
    expected[window] = mask()[window]
    assert np.array_equal(by_name(done)["inside.nii"].label, expected)
    assert findings(done) == {"mask covers a part of its scan (noted)": 1}
    assert set(rejected(done)) == {f"{name}.nii" for name in wrong}
    assert all(
        reason == "mask lies on another grid than its image" for _, reason, _ in rejected(done).values()
    )


def test_a_mask_that_lost_its_affine_is_taken_voxel_for_voxel_by_choice(tmp_path: Path) -> None:
    """Tools that save np.eye(4): resampling such a mask would leave most of it behind, as the refusal now says."""
    lost = np.eye(4)[:, [2, 1, 0, 3]]
    turned = AFFINE @ np.diag([1.0, 1.0, -1.0, 1.0])  # the scan's own first axis runs to the left
    save_nifti(tmp_path / "s/a.nii", image(), turned)
    save_nifti(tmp_path / "s/b.nii", mask(), lost)
    save_nifti(tmp_path / "s/c.nii", mask()[:-1], lost)
    table = write_table(tmp_path / "s", [("x", "a.nii", "b.nii")])
    done = convert(table, tmp_path / "p", mask_grid="voxels")
    assert np.array_equal(by_name(done)["a.nii"].label, mask()[:, :, ::-1])
    assert np.array_equal(by_name(done)["a.nii"].image[..., 0], image()[:, :, ::-1])
    assert findings(done) == {"mask's affine is not its image's (corrected)": 1}
    table = write_table(tmp_path / "s", [("x", "a.nii", "c.nii")])
    with pytest.raises(JobError, match="another grid") as caught:
        convert(table, tmp_path / "q", mask_grid="voxels")
    assert "--mask-grid voxels" not in str(caught.value)


def test_channels_and_segmentations_have_the_same_tolerance(tmp_path: Path) -> None:
    save_nifti(tmp_path / "s/a.nii", image(), AFFINE)
    save_nifti(tmp_path / "s/b.nii", image(1), moved(0.0011))
    save_nifti(tmp_path / "s/c.nii", image(2), moved(0.15))
    table = write_table(tmp_path / "s", [("near", "a.nii;b.nii", ""), ("far", "b.nii;c.nii", "")])
    done = convert(table, tmp_path / "o", channels=2)
    assert np.array_equal(by_name(done)["a.nii"].image[..., 1], image(1))
    assert rejected(done)["b.nii"][1] == "channels lie on different grids"
    assert "--mask-grid-tolerance 0." in rejected(done)["b.nii"][2]
    assert len(by_name(convert(table, tmp_path / "p", channels=2, mask_grid_tolerance=0.2))) == 2
    write_volume(tmp_path / "d/ct", image(), AFFINE, series="1.2.1")
    frames = [(1, depth, pixels) for depth, pixels in frames_of(mask(), 1).items()]
    (tmp_path / "d/seg.dcm").write_bytes(saved(segmentation(frames, moved(0.15), {1: "liver"})))
    (tmp_path / "map.txt").write_text("background\nliver\n")
    table = write_table(tmp_path / "d", [("x", "ct", "seg.dcm")])
    options = {"label_map": str(tmp_path / "map.txt")}
    with pytest.raises(JobError, match="another grid"):
        convert(table, tmp_path / "e", **options)
    done = convert(table, tmp_path / "f", mask_grid_tolerance=0.2, **options)
    assert np.array_equal(by_name(done)["ct"].label, mask() == 1)


def test_a_channel_on_another_grid_is_resampled_by_choice_where_its_affine_puts_it(tmp_path: Path) -> None:
    """Values that rise evenly along each axis are the same for every grid: linear interpolation keeps them."""
    steps = np.array([100.0, 10.0, 1.0])
    index = np.moveaxis(np.indices(image().shape), 0, -1)
    save_nifti(tmp_path / "s/a.nii", image(), AFFINE)
    fine = AFFINE @ np.diag([0.5, 0.5, 0.5, 1.0])
    shape = 2 * np.array(image().shape) - 1
    fine_index = np.moveaxis(np.indices(shape), 0, -1) / 2
    turned = fine @ np.array([[1, 0, 0, 0], [0, -1, 0, shape[1] - 1], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    save_nifti(tmp_path / "s/b.nii", (fine_index @ steps).astype(np.float32)[:, ::-1], turned)
    far = AFFINE.copy()
    far[:3, 3] += 500
    save_nifti(tmp_path / "s/c.nii", image(), far)
    table = write_table(tmp_path / "s", [("near", "a.nii;b.nii", "")])
    with pytest.raises(JobError, match=r"different grids.*--channel-grid resample"):
        convert(table, tmp_path / "o", channels=2, dtype="float32")
    done = convert(table, tmp_path / "p", channels=2, dtype="float32", channel_grid="resample")
    stored = by_name(done)["a.nii"].image
    assert np.array_equal(stored[..., 0], image())
    inner = (slice(1, -1),) * 3  # at the edges a widened kernel ends
    np.testing.assert_allclose(stored[..., 1][inner], (index @ steps)[inner], rtol=1e-4)
    table = write_table(tmp_path / "s", [("far", "a.nii;c.nii", "")])
    with pytest.raises(JobError, match="channel lies outside of the first"):
        convert(table, tmp_path / "q", channels=2, dtype="float32", channel_grid="resample")


# Which classes ------------------------------------------------------------------------------------------


def box(*bounds: tuple[int, int]) -> np.ndarray:
    inside = np.zeros(SHAPE, np.uint8)
    inside[tuple(slice(low, high) for low, high in bounds)] = 1
    return inside


BODY = box((0, 5), (1, 7), (1, 8))
LEFT, RIGHT = box((1, 4), (2, 5), (2, 4)), box((1, 4), (2, 5), (5, 7))
PARTS = {"BODY": BODY, "left kidney": LEFT, "right kidney": RIGHT}


def seg_of(parts: dict[str, np.ndarray], series: str = "1.2.1") -> bytes:
    names = dict(enumerate(parts, start=1))
    frames = [
        (number, depth, pixels)
        for number, name in names.items()
        for depth, pixels in frames_of(parts[name], 1).items()
    ]
    made = segmentation(frames, AFFINE, names)
    made.ReferencedSeriesSequence = [reference_to(series)]
    return saved(made)


def rtstruct_of(parts: dict[str, np.ndarray], series: str = "1.2.1") -> bytes:
    """An RTSTRUCT of one rectangle a slice for each part, drawn through the centers of its outermost voxels."""
    grid = Grid(shape=SHAPE, affine=AFFINE)
    structures = {}
    for number, (name, part) in enumerate(parts.items(), start=1):
        (top, left), (bottom, right) = (f(np.argwhere(part.any(axis=0)), axis=0) for f in (np.min, np.max))
        corners = [(top, left), (top, right), (bottom, right), (bottom, left)]
        contours = [
            ("CLOSED_PLANAR", grid.to_mm(np.array([(depth, *corner) for corner in corners])))
            for depth in np.flatnonzero(part.any(axis=(1, 2)))
        ]
        structures[number] = (name, contours)
    made = structure_set(structures)
    frame, study = Dataset(), Dataset()
    study.RTReferencedSeriesSequence = [reference_to(series)]
    frame.RTReferencedStudySequence = [study]
    made.ReferencedFrameOfReferenceSequence = [frame]
    return saved(made)


def series_with(root: Path, **files: bytes) -> Path:
    write_volume(root / "ct", image(), AFFINE, series="1.2.1")
    for name, data in files.items():
        (root / f"{name}.dcm").write_bytes(data)
    return root


def two_series(root: Path, made: Any) -> Path:
    """One with a label of both kidneys, and another."""
    write_volume(root / "other/ct", image(1), AFFINE, series="1.2.2")
    return series_with(root, labels=made({"left kidney": LEFT, "right kidney": RIGHT}))


def label_of(done: Any) -> np.ndarray:
    (record,) = by_name(done).values()
    return record.label


def check(source: Path, label: Any, said: Any = None, names: Any = None, /, **options: Any) -> None:
    """Convert one scan: to this label, with these findings and these classes above the background, where given."""
    with TemporaryDirectory() as out:
        done = convert(source, Path(out), **options)
        assert np.array_equal(label_of(done), label)
    assert said is None or findings(done) == said
    assert names is None or done.manifest.labels == {0: "background", **names}


KIDNEYS: dict[str, Any] = {"layout": "dicom", "task": None, "classes": ("left kidney", "right kidney")}
LIVER: tuple[dict[str, Any], ...] = ({"classes": ("liver",)}, {"map_classes": ("liver=kidney",)})
OVERLAP = {"classes overlap (corrected)": 1}
LEFT_OUT = {"classes left out by choice (noted)": 1}


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_structures_that_overlap_convert_by_choice(tmp_path: Path, made: Any) -> None:
    source = series_with(tmp_path / "s", labels=made(PARTS))
    everything = {"layout": "dicom", "task": None, "classes": ("BODY", "left kidney", "right kidney")}
    with pytest.raises(JobError, match=r"(?s)overlap.*--class-overlap last or first"):
        convert(source, tmp_path / "a", **everything)
    last = np.where(RIGHT, 3, np.where(LEFT, 2, BODY))
    check(source, last, OVERLAP, class_overlap="last", **everything)
    check(source, BODY, class_overlap="first", **everything)
    options: dict[str, Any] = {"layout": "dicom", "task": None}
    kidneys = ("right kidney", "left kidney")
    check(source, RIGHT + 2 * LEFT, LEFT_OUT, dict(enumerate(kidneys, 1)), classes=kidneys, **options)
    options["map_classes"] = ("left kidney=kidney", "right kidney=kidney", "BODY=background")
    check(source, LEFT | RIGHT, None, {1: "kidney"}, **options)
    (tmp_path / "map.json").write_text('{"background": 0, "kidney": 300}')
    numbered = 300 * (LEFT | RIGHT).astype(np.uint16)
    check(source, numbered, label_map=str(tmp_path / "map.json"), **options)
    check(source, BODY, {}, **options | {"map_classes": tuple(f"{name}=torso" for name in PARTS)})


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_several_files_of_one_series_are_refused_or_merged(tmp_path: Path, made: Any) -> None:
    left, right = {"left kidney": LEFT}, {"right kidney": RIGHT, "BODY": BODY}
    source = series_with(tmp_path / "s", a=made(left), b=made(right))
    options = dict(KIDNEYS)
    with pytest.raises(JobError, match=r"(?s)several labels for one image.*--several-masks merge"):
        convert(source, tmp_path / "a", **options)
    check(source, LEFT + 2 * RIGHT, several_masks="merge", **options)
    options["classes"] = ("left kidney", "right kidney", "BODY")
    with pytest.raises(JobError, match="overlap"):
        convert(source, tmp_path / "c", several_masks="merge", **options)
    first = np.where(LEFT, 1, np.where(RIGHT, 2, 3 * BODY))
    check(source, first, OVERLAP, several_masks="merge", class_overlap="first", **options)
    table = write_table(source, [("x", "ct", "a.dcm;b.dcm")])
    check(table, LEFT + 2 * RIGHT, classes=("left kidney", "right kidney"))


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_readings_of_one_scan_become_one_label_by_vote(tmp_path: Path, made: Any) -> None:
    smaller = LEFT.copy()
    smaller[1] = 0
    readings = {"a": {"left kidney": LEFT}, "b": {"left kidney": smaller}, "c": {"left kidney": LEFT}}
    source = series_with(tmp_path / "s", **{name: made(parts) for name, parts in readings.items()})
    options: dict[str, Any] = {"layout": "dicom", "task": None, "classes": ("left kidney",)}
    for rule in ("majority", "staple"):
        check(source, LEFT, {"masks combined by vote (corrected)": 1}, several_masks=rule, **options)
    # A tie is background: of two readings, what both drew is left.
    table = write_table(source, [("x", "ct", "a.dcm;b.dcm")])
    check(table, smaller, several_masks="majority", classes=("left kidney",))
    table = write_table(source, [("x", "ct", "b.dcm;a.dcm;c.dcm")])
    check(table, LEFT, several_masks="majority", classes=("left kidney",))


def test_masks_of_different_structures_are_no_readings_and_the_vote_says_what_is_gone(tmp_path: Path) -> None:
    parts = {"a": {"left kidney": LEFT}, "b": {"right kidney": RIGHT}, "c": {"left kidney": LEFT}}
    source = series_with(tmp_path / "s", **{name: seg_of(one) for name, one in parts.items()})
    gone = {"classes that no voxel has after the vote (noted)": 1, "masks combined by vote (corrected)": 1}
    check(source, LEFT, gone, several_masks="majority", **KIDNEYS)
    with pytest.raises(UsageError, match=r"--several-masks majority and --class-overlap channels"):
        convert(source, tmp_path / "o", several_masks="majority", class_overlap="channels", **KIDNEYS)


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_a_label_pattern_names_masks_in_dicom_of_scans_in_nifti(tmp_path: Path, made: Any) -> None:
    source = tmp_path / "s"
    save_nifti(source / "images/a.nii.gz", image(), AFFINE)
    for folder in ("labels", "second"):
        (source / folder).mkdir()
        (source / folder / "a.dcm").write_bytes(made({"left kidney": LEFT, "right kidney": RIGHT}))
    options = {"layout": "pairs", "task": None, "image_pattern": "images/{id}.nii.gz"}
    kidneys = {1: "left kidney", 2: "right kidney"}
    label = LEFT + 2 * RIGHT
    check(source, label, None, kidneys, label_pattern="labels/{id}.dcm", classes=("*kidney",), **options)
    both = {"label_pattern": "*/{id}.dcm", "classes": ("*kidney",)}
    check(source, label, None, kidneys, several_masks="majority", **both, **options)
    with pytest.raises(JobError, match="several labels for one image"):
        convert(source, tmp_path / "o", **both, **options)


# SNOMED CT: kidney, with the modifier left or right; body structure.
CODES = {
    "left kidney": ("64033007", "7771000"),
    "right kidney": ("64033007", "24028007"),
    "BODY": ("123037004",),
}


def coded(data: bytes) -> bytes:
    """A SEG or RTSTRUCT with the code of each segment or structure."""
    made = pydicom.dcmread(io.BytesIO(data))

    def code_of(name: str) -> Dataset:
        type_code, *modifiers = (item(CodeValue=one, CodingSchemeDesignator="SCT") for one in CODES[name])
        if modifiers:
            type_code.SegmentedPropertyTypeModifierCodeSequence = modifiers
        return type_code

    for segment in made.get("SegmentSequence", ()):
        segment.SegmentedPropertyTypeCodeSequence = [code_of(segment.SegmentLabel)]
    if "StructureSetROISequence" in made:
        made.RTROIObservationsSequence = [
            item(ReferencedROINumber=one.ROINumber, RTROIIdentificationCodeSequence=[code_of(one.ROIName)])
            for one in made.StructureSetROISequence
        ]
    return saved(made)


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_classes_are_chosen_by_pattern_or_code(tmp_path: Path, made: Any) -> None:
    source = series_with(tmp_path / "s", labels=coded(made(PARTS)))
    options: dict[str, Any] = {"layout": "dicom", "task": None}
    kidneys = {1: "left kidney", 2: "right kidney"}
    check(source, LEFT + 2 * RIGHT, LEFT_OUT, kidneys, classes=("*Kidney",), **options)
    check(
        source,
        2 * LEFT + 3 * RIGHT + (BODY & ~LEFT & ~RIGHT),
        None,
        None,
        classes=("BODY", "*kidney"),
        class_overlap="last",
        **options,
    )
    check(
        source,
        LEFT | RIGHT,
        None,
        {1: "kidney"},
        map_classes=("*kidney=kidney",),
        classes=("kidney",),
        **options,
    )
    check(source, LEFT | RIGHT, None, {1: "SCT:64033007"}, classes=("SCT:64033007",), **options)
    left = {"map_classes": ("SCT:64033007+SCT:7771000=left", "BODY=background", "right*=background")}
    check(source, LEFT, None, {1: "left"}, **left, **options)
    both = {"map_classes": ("SCT:64033007=kidney", "SCT:123037004=background"), "classes": ("kidney",)}
    check(source, LEFT | RIGHT, None, {1: "kidney"}, **both, **options)
    with pytest.raises(AnnotationsError, match=r"--classes: SCT:1: no such class.*SCT:64033007\+SCT:7771000"):
        convert(source, tmp_path / "a", classes=("SCT:1",), **options)
    with pytest.raises(AnnotationsError, match=r"--classes: lung\*: no such class.*found BODY, left kidney"):
        convert(source, tmp_path / "b", classes=("lung*",), **options)


def test_a_pattern_keeps_what_it_fits_in_any_of_the_files(tmp_path: Path) -> None:
    """Each hospital numbers its tumors; every class that fits has an id in all scans."""
    source = two_series(tmp_path / "s", seg_of)
    (source / "other/labels.dcm").write_bytes(seg_of({"left kidney 2": LEFT}, series="1.2.2"))
    done = convert(source, tmp_path / "a", layout="dicom", task=None, classes=("left*",))
    assert done.manifest.labels == {0: "background", 1: "left kidney", 2: "left kidney 2"}
    assert np.array_equal(by_name(done)["other/ct"].label, 2 * LEFT)
    assert np.array_equal(by_name(done)["ct"].label, LEFT)


@pytest.mark.parametrize(
    ("made", "written"), [(seg_of, "Left kidney"), (seg_of, "left_kidney"), (rtstruct_of, "LEFT KIDNEY")]
)
def test_a_class_that_differs_from_the_choice_in_spelling_alone_is_not_left_out_silently(
    tmp_path: Path, made: Any, written: str
) -> None:
    """Two hospitals, two spellings: the second's kidneys became background, with a note."""
    source = two_series(tmp_path / "s", made)
    other = made({written: LEFT, "right kidney": RIGHT}, series="1.2.2")
    (source / "other/labels.dcm").write_bytes(other)
    done = convert(source, tmp_path / "a", **KIDNEYS)
    ((where, (_, reason, detail)),) = rejected(done).items()
    assert (where, reason) == ("other/ct", "class is that of the choice but for its spelling")
    cure = f"{written}=left kidney"
    assert f"--map-classes '{cure}' takes it" in detail
    done = convert(source, tmp_path / "b", map_classes=(cure,), **KIDNEYS)
    assert all(np.array_equal(one.label, LEFT + 2 * RIGHT) for one in by_name(done).values())
    done = convert(source, tmp_path / "c", map_classes=(f"{written}=background",), **KIDNEYS)
    assert np.array_equal(by_name(done)["other/ct"].label, 2 * RIGHT)


@pytest.mark.parametrize("made", [seg_of, rtstruct_of])
def test_a_label_that_names_none_of_the_classes_is_no_empty_label_without_a_word(tmp_path, made):
    source = two_series(tmp_path / "s", made)
    (source / "other/labels.dcm").write_bytes(made({"BODY": BODY}, series="1.2.2"))
    done = convert(source, tmp_path / "a", **KIDNEYS)
    cure = "left kidney, right kidney; --missing-classes empty takes the scan as one without them"
    assert rejected(done) == {"other/ct": ("annotation", "label has none of the classes", cure)}
    done = convert(source, tmp_path / "b", missing_classes="empty", **KIDNEYS)
    assert not by_name(done)["other/ct"].label.any()
    (source / "other/labels.dcm").write_bytes(made({"left kidney": LEFT}, series="1.2.2"))
    done = convert(source, tmp_path / "c", **KIDNEYS)
    assert np.array_equal(by_name(done)["other/ct"].label, LEFT)
    assert findings(done) == {"classes that the label does not name (noted)": 1}
    (source / "other/more.dcm").write_bytes(made({"right kidney": RIGHT}, series="1.2.2"))
    done = convert(source, tmp_path / "d", several_masks="merge", **KIDNEYS)
    assert findings(done) == {}


def test_the_cure_for_a_value_that_the_data_set_does_not_name_works(tmp_path: Path) -> None:
    """--map-classes 2=background was the advice, and then refused as no class of the data set."""
    save_nifti(tmp_path / "s/imagesTr/a.nii.gz", image(), AFFINE)
    save_nifti(tmp_path / "s/labelsTr/a.nii.gz", (LEFT + 2 * RIGHT).astype(np.uint8), AFFINE)
    write_json(tmp_path / "s", msd_document("a.nii.gz", labels=("kidney",)) | {"numTraining": 1})
    options: dict[str, Any] = {"layout": "msd", "task": None}
    for number, choice in enumerate(({}, {"classes": ("kidney",)}, {"map_classes": ("7=background",)})):
        with pytest.raises(JobError, match="--map-classes 2=background leaves it out"):
            convert(tmp_path / "s", tmp_path / f"a{number}", **options, **choice)
    for target, label, classes in (
        ("background", LEFT, {1: "kidney"}),
        ("kidney", LEFT | RIGHT, {1: "kidney"}),
        ("other", LEFT + 2 * RIGHT, {1: "kidney", 2: "other"}),
    ):
        check(tmp_path / "s", label, None, classes, map_classes=(f"2={target}",), **options)


def test_label_images_of_any_layout_take_a_choice_and_values_above_255(tmp_path: Path) -> None:
    values = (500 * LEFT.astype(np.uint16)) + 600 * RIGHT.astype(np.uint16) + 7 * (BODY & ~LEFT & ~RIGHT & 1)
    table = table_of(tmp_path / "s", a=(values, AFFINE))
    check(table, RIGHT + 2 * LEFT, LEFT_OUT, {1: "600", 2: "500"}, classes=("600", "500"))
    both, rest = LEFT | RIGHT, (values == 7) * 7
    check(table, 2 * both + rest, None, {2: "2", 7: "7"}, map_classes=("500=2", "600=2"))
    named = ("500=kidney", "600=kidney", "7=background")
    check(table, both, map_classes=named)
    (tmp_path / "map.json").write_text('{"background": 0, "kidney": 9, "rest": 7}')
    options = {"label_map": str(tmp_path / "map.json"), "map_classes": named[:2]}
    check(table, 9 * both + rest, **options)
    check(table, 9 * both, classes=("kidney",), **options)


def test_named_values_are_kept_merged_and_renumbered(tmp_path: Path) -> None:
    values = LEFT + 2 * RIGHT + 3 * (BODY & ~LEFT & ~RIGHT & 1)
    save_nifti(tmp_path / "s/imagesTr/a.nii.gz", image(), AFFINE)
    save_nifti(tmp_path / "s/labelsTr/a.nii.gz", values, AFFINE)
    write_json(tmp_path / "s", msd_document("a.nii.gz", labels=("left", "right", "body")))
    options = {"layout": "msd", "task": None}
    both, body = LEFT | RIGHT, values == 3
    check(tmp_path / "s", body + 2 * LEFT, classes=("body", "left"), **options)
    for choice, label, classes in (
        (("right=kidney", "1=kidney", "body=background"), both, {1: "kidney"}),
        (("right=left",), both + 3 * body, {1: "left", 3: "body"}),
        (("right=left", "left=right"), LEFT + 2 * RIGHT + 3 * body, {1: "right", 2: "left", 3: "body"}),
    ):
        check(tmp_path / "s", label, None, classes, map_classes=choice, **options)


def test_class_masks_are_merged_and_left_out_by_choice(tmp_path: Path) -> None:
    save_nifti(tmp_path / "s/1/ct.nii", image(), AFFINE)
    for name, part in PARTS.items():
        save_nifti(tmp_path / f"s/1/segmentations/{name}.nii", part, AFFINE)
    options = {"layout": "class-masks", "task": None}
    merged = ("left kidney=kidney", "right kidney=kidney")
    both = LEFT | RIGHT
    check(tmp_path / "s", both, map_classes=(*merged, "BODY=background"), **options)
    check(tmp_path / "s", both, map_classes=merged, classes=("kidney",), **options)
    choice = {"map_classes": merged, "classes": ("kidney", "BODY"), "class_overlap": "first"}
    overlap = {"class masks overlap (corrected)": 1}
    check(tmp_path / "s", np.where(both, 1, 2 * BODY), overlap, **choice, **options)
    for number, choice in enumerate(LIVER):
        words = r"(of class liver anywhere|liver: no such class).*; found BODY"
        with pytest.raises(AnnotationsError, match=words):
            convert(tmp_path / "s", tmp_path / f"d{number}", **choice, **options)


def test_a_class_that_no_segmentation_has_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = series_with(tmp_path / "s", labels=seg_of(PARTS))
    for number, choice in enumerate(LIVER):
        with pytest.raises(AnnotationsError, match=r"liver: no such class in the labels; found BODY, left"):
            convert(source, tmp_path / f"a{number}", layout="dicom", task=None, **choice)


def test_a_structure_that_is_left_out_may_lie_anywhere(tmp_path: Path) -> None:
    grid = Grid(shape=SHAPE, affine=AFFINE)
    corners = np.array([(0.5, 1, 1), (0.5, 1, 6), (0.5, 6, 6), (0.5, 6, 1.0)])
    between = ("CLOSED_PLANAR", grid.to_mm(corners))
    on_slice = ("CLOSED_PLANAR", grid.to_mm(corners + np.array([0.5, 0, 0])))
    made = structure_set({1: ("couch", [between]), 2: ("organ", [on_slice])})
    made.FrameOfReferenceUID = "1.2.9"
    table = write_table(series_with(tmp_path / "s", labels=saved(made)), [("x", "ct", "labels.dcm")])
    with pytest.raises(JobError, match="contours lie between the image's slices"):
        convert(table, tmp_path / "a", classes=("organ", "couch"))
    assert np.count_nonzero(label_of(convert(table, tmp_path / "b", classes=("organ",)))) == 36


def test_pictures_with_a_mask_for_each_class_or_several_label_images_keep_them(tmp_path: Path) -> None:
    """Their records had an all-zero label, without a word."""
    hat, shirt = np.zeros((8, 9), np.uint8), np.zeros((8, 9), np.uint8)
    hat[:3], shirt[2:6, 2:7] = 255, 255
    (tmp_path / "s/p1/masks").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 9, 3), np.uint8)).save(tmp_path / "s/p1/a.png")
    Image.fromarray(hat).save(tmp_path / "s/p1/masks/hat.png")
    Image.fromarray(shirt).save(tmp_path / "s/p1/masks/shirt.png")
    options = {"layout": "class-masks", "height": 8, "width": 9}
    with pytest.raises(JobError, match=r"masks of one scan overlap .*--class-overlap last or first"):
        run_convert(tmp_path / "s", tmp_path / "a", **options)
    done = run_convert(tmp_path / "s", tmp_path / "b", class_overlap="last", **options)
    expected = np.where(shirt, 2, np.where(hat, 1, 0))
    assert np.array_equal(picture_label(done), expected)
    merged = ("hat=clothes", "shirt=clothes")
    done = run_convert(tmp_path / "s", tmp_path / "c", map_classes=merged, **options)
    assert np.array_equal(picture_label(done), expected > 0)
    Image.fromarray(2 * (hat // 255)).save(tmp_path / "s/p1/masks/hat.png")
    Image.fromarray(shirt // 255).save(tmp_path / "s/p1/masks/shirt.png")
    table = write_table(tmp_path / "s", [("x", "p1/a.png", "p1/masks/shirt.png;p1/masks/hat.png")])
    options = {"layout": "csv", "task": "segmentation", "class_overlap": "first", "height": 8, "width": 9}
    done = run_convert(table, tmp_path / "d", **options)
    assert np.array_equal(picture_label(done), np.where(shirt, 1, np.where(hat, 2, 0)))


def picture_label(done: Any) -> np.ndarray:
    (record,) = read_split(Path(done.folder), "train")
    assert record["image/labelled"][0] == 1
    return np.frombuffer(record["image/label"][0], np.uint8).reshape(8, 9)


def test_channels_and_colors_of_labels_are_classes_by_option(tmp_path: Path) -> None:
    hot = np.stack([mask() == number for number in range(3)], axis=-1).astype(np.uint8)
    channels = {"label_channels": ("background", "liver", "spleen")}
    colors = {"label_colors": ("010000=background", "000100=liver", "000001=spleen")}
    both, several = hot.copy(), hot.copy()
    both[0, 0, 0], several[0, 0, :2, 1] = (0, 1, 1), (2, 3)
    cases: tuple[tuple[np.ndarray, Any, str], ...] = (
        (hot, channels, ""),
        (255 * hot, channels, ""),
        (hot, colors, ""),
        (hot[..., :2], channels, "label has another number of channels"),
        (both, channels, "masks of one scan overlap"),
        (both, colors, "label has colors without a class"),
        (several, channels, "channel of a class holds several values"),
    )
    for number, (label, options, reason) in enumerate(cases):
        root = tmp_path / str(number)
        table_of(root, a=(label, AFFINE), good=(hot, AFFINE))
        done = convert(root, tmp_path / "out" / str(number), max_rejected=1, **options)
        found = by_name(done)
        assert {at: row[1] for at, row in rejected(done).items()} == ({"a.nii": reason} if reason else {})
        np.testing.assert_array_equal(found["good.nii" if reason else "a.nii"].label, mask())
