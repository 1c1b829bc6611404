"""Layouts of boxes in volumes: tables in every form, and files that lack something."""

import json
import shutil

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.scan_box_columns import find_box_form, find_scan_column
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_boxes import place_in_source
from halofeed.prep.layouts import find_layout
from halofeed.prep.layouts.lidc import NoduleReading, merge_readings
from halofeed.prep.sources.files import LocalFiles
from tests.support.dicom_writer import write_volume
from tests.support.layout_references import detected
from tests.support.scan_box_sets import (
    LIDC_AFFINE,
    draw_lidc,
    draw_luna,
    draw_nndetection,
    lidc_document,
    outline,
    turned_affine,
    write_nifti,
    write_table,
)

SHAPE = (20, 30, 24)
LOW, HIGH = (3.0, 4.0, 5.0), (9.0, 12.0, 7.0)  # x, y, z
CENTER = tuple((a + b) / 2 for a, b in zip(LOW, HIGH, strict=True))
SIZE = tuple(b - a for a, b in zip(LOW, HIGH, strict=True))


def listed(root, layout="scan-boxes", **options):
    files = LocalFiles(root)
    return list(find_layout(layout).list_references(files, files, None, LayoutOptions(**options)))


def write_scan(path, seed=0, affine=None):
    write_nifti(path, np.zeros(SHAPE, np.int16), turned_affine(seed) if affine is None else affine)


def corners(box):
    return (box.xmin, box.ymin, box.zmin, box.xmax, box.ymax, box.zmax)


@pytest.mark.parametrize(
    ("header", "numbers"),
    [
        ("xmin,ymin,zmin,xmax,ymax,zmax", (*LOW, *HIGH)),
        ("x1,y1,z1,x2,y2,z2", (*LOW, *HIGH)),
        ("x_min,y_min,z_min,x_max,y_max,z_max", (*LOW, *HIGH)),
        ("xmin,ymin,zmin,width,height,depth", (*LOW, *SIZE)),
        ("x,y,z,width,height,depth", (*CENTER, *SIZE)),
        ("center_x,center_y,center_z,w,h,d", (*CENTER, *SIZE)),
        ("coordX,coordY,coordZ,size_x,size_y,size_z", (*CENTER, *SIZE)),
        ("cx_vox,cy_vox,cz_vox,dx_vox,dy_vox,dz_vox", (*CENTER, *SIZE)),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_every_form_of_a_box_is_read(tmp_path, header, numbers, delimiter):
    write_scan(tmp_path / "scans" / "p1.nii.gz")
    lines = [f"filename,{header}", ",".join(["p1", *map(str, numbers)])]
    text = "\ufeff" + "\r\n".join(line.replace(",", delimiter) for line in lines)
    (tmp_path / "boxes.csv").write_text(text)
    (one,) = listed(tmp_path)
    assert one.source == "scans/p1.nii.gz"
    assert corners(one.boxes[0]) == (*LOW, *HIGH)
    assert (one.boxes[0].label, one.boxes[0].space) == ("object", "voxels")


def test_diameter_and_radius_are_spheres():
    assert find_box_form(["x", "y", "z", "diameter_mm"]).unit == "mm"
    assert find_box_form(["x", "y", "z", "radius"]).kind == "radius"


@pytest.mark.parametrize(
    "header",
    [
        ["filename", "xmin", "ymin", "xmax", "ymax"],
        ["filename", "x", "y", "z"],
        ["filename", "class", "xmin", "ymin", "xmax", "ymax", "width", "height"],
        ["seriesuid", "coordX", "coordY", "coordZ", "class"],
    ],
)
def test_columns_without_an_axis_or_a_size_are_no_boxes_in_volumes(header):
    assert find_box_form(header) is None


@pytest.mark.parametrize(
    "name", ["scans/p1.nii.gz", "p1.nii.gz", "p1", "./scans/p1.nii.gz", "scans\\p1.nii.gz", "/old/p1.nii.gz"]
)
def test_a_scan_may_be_named_by_its_path_file_or_stem(tmp_path, name):
    write_scan(tmp_path / "scans" / "p1.nii.gz")
    write_table(
        tmp_path / "b.csv", ("scan", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax"), [(name, *LOW, *HIGH)]
    )
    (one,) = listed(tmp_path)
    assert (one.source, len(one.boxes)) == ("scans/p1.nii.gz", 1)


HEADER = ("scan", "class", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax")


def test_rows_with_faults_are_listed_and_the_others_kept(tmp_path):
    for name in ("p1", "p2", "p3"):
        write_scan(tmp_path / f"{name}.nii.gz")
    rows = [
        ("p1", "a", *LOW, *HIGH),
        ("p1", "a", "x", *LOW[1:], *HIGH),
        ("p1", "a", "nan", *LOW[1:], *HIGH),
        ("p1", "a", *HIGH, *LOW),
        ("p2", "", *[""] * 6),
        ("p9", "a", *LOW, *HIGH),
    ]
    write_table(tmp_path / "b.csv", HEADER, rows)
    found = {one.source: one for one in listed(tmp_path)}
    assert [reason for reason, _ in found["p1.nii.gz"].bad_objects] == [
        "coordinate of a box is no number",
        "coordinate of a box is not finite",
        "box is inverted",
    ]
    assert len(found["p1.nii.gz"].boxes) == 1
    assert found["p2.nii.gz"].boxes == ()
    assert found["p2.nii.gz"].problem is None
    assert found["p3.nii.gz"].problem[:2] == ("selection", "scan has no row in the table")
    assert found["p9"].problem[1] == "scan of a row is not there"
    rejected = {one.source: one.problem for one in listed(tmp_path, on_bad_object="reject")}
    assert rejected["p1.nii.gz"] is not None


SIDES = HEADER[2:]


@pytest.mark.parametrize("file", ["t.jsonl", "t.ndjson"])
@pytest.mark.parametrize(
    "rows",
    {
        "one box per row": [
            {"scan": "p1", "class": "a", **dict(zip(SIDES, (*LOW, *HIGH), strict=True))},
            {"scan": "p1", "class": "b", **dict(zip(SIDES, (*LOW, *HIGH), strict=True)), "reader": 3},
            {"scan": "p2"},
        ],
        "all objects of a scan": [
            {"image": "p2.nii.gz", "findings": []},
            {
                "image": "p1.nii.gz",
                "patient": "x",
                "tags": ["ct"],
                "findings": [
                    {"label": name, **dict(zip(SIDES, (*LOW, *HIGH), strict=True))} for name in ("a", "b")
                ],
            },
        ],
        "centers and sizes, null for none": [
            {
                "volume": "p1",
                "objects": [
                    {
                        "category": name,
                        **dict(zip("xyz", CENTER, strict=True)),
                        "w": SIZE[0],
                        "h": SIZE[1],
                        "d": SIZE[2],
                    }
                    for name in ("a", "b")
                ],
            },
            {"volume": "p2", "objects": None},
        ],
    }.items(),
    ids=lambda item: item[0],
)
def test_rows_of_json_have_a_box_or_a_list_of_objects(tmp_path, rows, file):
    for name in ("p1", "p2"):
        write_scan(tmp_path / f"{name}.nii.gz")
    (tmp_path / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows[1]))
    assert detected(tmp_path) == "scan-boxes"
    first, second = listed(tmp_path)
    assert [(box.label, corners(box)) for box in first.boxes] == [("a", (*LOW, *HIGH)), ("b", (*LOW, *HIGH))]
    assert (second.boxes, second.problem) == ((), None)


def test_lists_of_numbers_and_other_values_of_json_are_refused_with_what_is_needed(tmp_path):
    write_scan(tmp_path / "p1.nii.gz")
    table = tmp_path / "t.jsonl"
    table.write_text(json.dumps({"scan": "p1", "boxes": [[*LOW, *HIGH]]}))
    with pytest.raises(AnnotationsError, match=r"no boxes of scans; found scan, boxes; expected .*zmax"):
        listed(tmp_path)
    row = {"scan": "p1", "objects": [dict(zip(SIDES, (*LOW, *HIGH), strict=True))]}
    table.write_text(f"{json.dumps(row)}\n{json.dumps({'scan': 'p2', 'objects': 3})}\n")
    with pytest.raises(AnnotationsError, match=r"t.jsonl:2: objects: expected a list of objects"):
        listed(tmp_path)
    write_table(tmp_path / "t.csv", HEADER, [("p1", "a", *LOW, *HIGH)])
    table.write_text(json.dumps(row))
    with pytest.raises(AnnotationsError, match=r"t.jsonl, .*t.csv have boxes of scans; name one of them"):
        listed(tmp_path)


def test_a_name_of_two_scans_is_refused_unless_its_folder_tells(tmp_path):
    for folder in ("a", "b"):
        write_scan(tmp_path / folder / "ct.nii.gz")
    write_table(tmp_path / "t.csv", HEADER, [("ct", "a", *LOW, *HIGH)])
    first, second = listed(tmp_path)
    assert first.problem[1] == "name of a row fits several scans"
    assert "a/ct.nii.gz, b/ct.nii.gz" in first.problem[2]
    assert second.problem[0] == "selection"
    write_table(tmp_path / "t.csv", HEADER, [("a/ct", "x", *LOW, *HIGH), ("b/ct", "y", *LOW, *HIGH)])
    assert [one.boxes[0].label for one in listed(tmp_path)] == ["x", "y"]


def test_the_unit_is_the_one_in_which_boxes_lie_in_their_scans(tmp_path):
    affine = turned_affine(3)
    write_scan(tmp_path / "p1.nii.gz", affine=affine)
    grid = Grid(shape=SHAPE, affine=affine)
    mm = grid.to_mm(np.array([7.2, 9.1, 11.4]))
    for unit, sign in (("mm-ras", (1, 1, 1)), ("mm-lps", (-1, -1, 1))):
        write_table(tmp_path / "t.csv", ("scan", "x", "y", "z", "diameter"), [("p1", *(mm * sign), 5)])
        (one,) = listed(tmp_path)
        (place,) = place_in_source(one.boxes, grid)
        np.testing.assert_allclose((place[:3] + place[3:]) / 2 - 0.5, [7.2, 9.1, 11.4], atol=1e-6)
        assert corners(one.boxes[0]) == corners(listed(tmp_path, scan_box_units=unit)[0].boxes[0])


def test_boxes_that_fit_in_several_units_or_in_none_are_refused_with_the_option(tmp_path):
    centered = np.eye(4)
    centered[:3, :3] = [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    centered[:3, 3] = [-12, -15, -10]
    write_scan(tmp_path / "p1.nii.gz", affine=centered)
    columns = ("scan", "x", "y", "z", "diameter")
    write_table(tmp_path / "t.csv", columns, [("p1", 3, 4, 5, 2)])
    with pytest.raises(
        AnnotationsError, match=r"several units.*--scan-box-units voxels or --scan-box-units mm-ras"
    ):
        listed(tmp_path)
    write_table(tmp_path / "t.csv", columns, [("p1", 300, 400, 500, 2)])
    with pytest.raises(AnnotationsError, match=r"in no unit.*--scan-box-units"):
        listed(tmp_path)


def test_units_that_place_boxes_equally_are_one(tmp_path):
    affine = np.eye(4)
    affine[:3, :3] = [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    affine[:3, 3] = 0.5  # RAS millimeters are then continuous voxels
    write_scan(tmp_path / "p1.nii.gz", affine=affine)
    write_table(tmp_path / "t.csv", HEADER, [("p1", "a", *LOW, *HIGH)])
    assert listed(tmp_path)[0].boxes[0].space == "voxels"


def test_columns_in_millimeters_exclude_voxels(tmp_path):
    affine = np.eye(4)
    affine[:3, :3] = [[0, 0, 2.0], [0, 2, 0], [2, 0, 0]]
    write_scan(tmp_path / "p1.nii.gz", affine=affine)
    header = ("scan", *(f"{name}_mm" for name in HEADER[2:]))
    write_table(tmp_path / "t.csv", header, [("p1", *LOW, *HIGH)])
    assert listed(tmp_path)[0].boxes[0].space == "mm"


def test_tables_without_boxes_or_scans_are_refused_with_what_is_needed(tmp_path):
    write_scan(tmp_path / "p1.nii.gz")
    write_table(tmp_path / "t.csv", ("scan", "x", "y", "z"), [("p1", 1, 2, 3)])
    with pytest.raises(AnnotationsError, match=r"no boxes of scans; found scan, x, y, z; expected .*zmax"):
        listed(tmp_path)
    write_table(tmp_path / "t.csv", HEADER, [("other", "a", *LOW, *HIGH)])
    with pytest.raises(AnnotationsError, match=r"no row names a scan.*'other'; found p1.nii.gz; .*--images"):
        listed(tmp_path)
    assert find_scan_column(["filename", "image"]) is None


def test_series_of_dicom_are_named_by_folder_or_uid(tmp_path):
    volume = np.zeros(SHAPE)
    write_volume(tmp_path / "p1" / "ct", volume, LIDC_AFFINE, series="1.2.77", patient="p1")
    for name in ("p1/ct", "ct", "1.2.77"):
        write_table(tmp_path / "t.csv", HEADER, [(name, "a", *LOW, *HIGH)])
        found = [one for one in listed(tmp_path) if one.boxes]
        assert [(one.source, len(one.members)) for one in found] == [("p1/ct", SHAPE[0])]


def test_splits_groups_and_flags_of_a_table_are_kept(tmp_path):
    for name in ("p1", "p2"):
        write_scan(tmp_path / f"{name}.nii.gz")
    header = ("split", "patient", "ignored", *HEADER)
    rows = [("val", "g", 1, "p1", "a", *LOW, *HIGH), ("train", "g", 0, "p2", "a", *LOW, *HIGH)]
    write_table(tmp_path / "t.csv", header, rows)
    first, second = listed(tmp_path)
    assert (first.split, second.split) == ("val", "train")
    assert (first.group, second.group) == ("g", "g")
    assert [one.boxes[0].is_crowd for one in (first, second)] == [True, False]


def test_the_user_may_name_the_columns_of_scan_and_class(tmp_path):
    write_scan(tmp_path / "p1.nii.gz")
    header = ("uid", "finding", *HEADER[2:])
    write_table(tmp_path / "t.csv", header, [("p1", "cyst", *LOW, *HIGH)])
    (one,) = listed(tmp_path, column=("image=uid", "label=finding"))
    assert (one.source, one.boxes[0].label) == ("p1.nii.gz", "cyst")
    with pytest.raises(AnnotationsError, match=r"--column xmin: .*image, label"):
        listed(tmp_path, column=("image=uid", "xmin=zmin"))


def test_luna16_needs_its_table_and_reads_it_in_any_folder(tmp_path):
    draw_luna(tmp_path)
    (tmp_path / "CSVFILES").mkdir()
    shutil.move(tmp_path / "annotations.csv", tmp_path / "CSVFILES")
    excluded = (tmp_path / "CSVFILES" / "annotations.csv").read_text()
    (tmp_path / "CSVFILES" / "annotations_excluded.csv").write_text(excluded)
    found = listed(tmp_path, "luna16")
    assert [one.group for one in found if one.problem is None] == [f"subset{n}" for n in range(4)]
    shutil.rmtree(tmp_path / "CSVFILES")
    with pytest.raises(AnnotationsError, match=r"expected annotations.csv.*found candidates.csv.*scan-boxes"):
        listed(tmp_path, "luna16")


def test_nndetection_cases_that_lack_a_file_or_a_class_are_listed(tmp_path):
    draw_nndetection(tmp_path, cases=4)
    folder = tmp_path / "labelsTr"
    (folder / "case_1.json").unlink()
    (folder / "case_2.json").write_text(json.dumps({"instances": {"1": 7}}))
    (folder / "case_3.nii.gz").unlink()
    problems = {one.source: one.problem for one in listed(tmp_path, "nndetection")}
    assert problems["imagesTr/case_0_0000.nii.gz"] is None
    assert "case_1.json" in problems["imagesTr/case_1_0000.nii.gz"][2]
    assert "0 cyst, 1 nodule" in problems["imagesTr/case_2_0000.nii.gz"][2]
    assert "case_3.nii.gz" in problems["imagesTr/case_3_0000.nii.gz"][2]


@pytest.mark.parametrize("folder", ["", "Task017_CADA/raw_splitted/"])
def test_nndetection_is_read_with_yaml_and_without_any_document(tmp_path, folder):
    draw_nndetection(tmp_path / folder)
    (tmp_path / folder / "dataset.json").unlink()
    labels = {box.label for one in listed(tmp_path, "nndetection") for box in one.boxes}
    assert labels == {"0", "1"}
    (tmp_path / folder / "dataset.yaml").write_text("task: T\nlabels:\n  '0': cyst\n  '1': nodule\n")
    labels = {box.label for one in listed(tmp_path, "nndetection") for box in one.boxes}
    assert labels == {"cyst", "nodule"}


def reading(reader, low, high, is_small=False):
    return NoduleReading(reader=reader, low=low, high=high, is_small=is_small)


def test_readings_that_share_volume_by_others_are_one_nodule():
    chain = [reading(n, (0, 0, 4 * n), (5, 5, 4 * n + 5)) for n in range(4)]
    (box,) = merge_readings(chain, 4)
    assert not box.is_crowd
    assert (box.xmin, box.xmax) == (4.0, 13.0)
    beside = [reading(0, (0, 0, 0), (5, 5, 5)), reading(1, (0, 0, 5), (5, 5, 9))]
    assert len(list(merge_readings(beside, 1))) == 2


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
def test_a_nodule_is_what_half_of_its_readers_hold_along_each_axis(readers):
    random = np.random.default_rng(readers)
    for _ in range(50):
        lows, highs = random.integers(0, 10, (readers, 3)), random.integers(11, 20, (readers, 3))
        held = np.zeros((3, 20), int)
        for low, high in zip(lows, highs, strict=True):
            held += (low[:, None] <= np.arange(20)) & (np.arange(20) < high[:, None])
        first, last = np.array([np.flatnonzero(2 * one >= readers)[[0, -1]] for one in held]).T
        outlined = [
            reading(n, tuple(low), (high[0] - 1, *high[1:]))
            for n, (low, high) in enumerate(zip(lows.astype(float), highs.astype(float), strict=True))
        ]
        (box,) = merge_readings(outlined, 1)
        # Ends along z are positions of slices, which both belong to the nodule; those of pixels are continuous.
        assert (box.zmin, box.ymin, box.xmin) == tuple(first)
        assert (box.zmax, box.ymax - 1, box.xmax - 1) == tuple(last)


def test_nodules_of_few_readers_and_small_ones_are_flagged():
    full = [reading(n, (0, 0, 0), (5, 5, 5)) for n in range(2)]
    assert [next(merge_readings(full, least)).is_crowd for least in (1, 2, 3)] == [False, False, True]
    small = [reading(n, (1, 1, 1), (1, 2, 2), is_small=True) for n in range(3)]
    assert next(merge_readings(small, 1)).is_crowd
    assert not next(merge_readings([*full, small[0]], 2)).is_crowd


def test_lidc_documents_without_series_damaged_or_doubled_are_listed(tmp_path):
    draw_lidc(tmp_path)
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml" / "a.xml").write_text(lidc_document("9.9.9", [[{0.0: outline((1, 1), (3, 3))}]]))
    (tmp_path / "xml" / "b.xml").write_text("<LidcReadMessage><broken>")
    (tmp_path / "xml" / "c.xml").write_text("<IdriReadMessage xmlns='http://www.nih.gov'/>")
    (tmp_path / "xml" / "d.xml").write_text("<other/>")
    found = {one.source: one.problem for one in listed(tmp_path, "lidc")}
    assert found["LIDC-IDRI-0001/scan"] is None
    assert found["xml/a.xml"][1] == "series of a document is not there"
    assert found["xml/b.xml"][1] == "malformed XML"
    assert found["xml/c.xml"][0] == "selection"
    assert "LIDC-IDRI-0001/scan/069.xml" not in found
    shutil.copy(tmp_path / "LIDC-IDRI-0001" / "scan" / "069.xml", tmp_path / "xml" / "e.xml")
    found = {one.source: one.problem for one in listed(tmp_path, "lidc")}
    assert found["LIDC-IDRI-0001/scan"][1] == "series has several documents"


def test_more_readers_than_a_document_has_are_refused(tmp_path):
    draw_lidc(tmp_path)
    (one,) = (one for one in listed(tmp_path, "lidc", min_readers=5) if one.source.endswith("scan"))
    assert "take --min-readers 4 or less" in one.problem[2]
