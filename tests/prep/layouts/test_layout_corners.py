"""--keep corners: every source of oriented boxes gives the corners that its tool draws, in the order of the annotation.

The oracle turns one point after the other by each tool's rule, or takes the points as they are written.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapely.geometry import Polygon

from halofeed.errors import SourceError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.resolve_boxes import continuous, scale_to_pixels
from halofeed.prep.annotations.written_boxes import check_corners, polygon_of, rectangle_of
from halofeed.prep.geometry.boxes import box_corners
from tests.support.layout_references import by_source, list_references, write_files

WIDTH, HEIGHT = 96, 64
KEEP = {"keep": ("corners",)}
OPTIONS = LayoutOptions(keep=("corners",))
BOX = (20.0, 12.0, 50.0, 32.0)
"""xmin, ymin, xmax, ymax of the box that is turned."""
SIDES = ("xmin", "ymin", "xmax", "ymax")
TURNED = [(30.0, 10.0), (52.0, 21.0), (47.0, 31.0), (25.0, 20.0)]
"""Corners of a rectangle that is turned, clockwise from its first."""


def turned(degrees, center=None):
    """Turn each corner of `BOX` clockwise, as a picture shows it, about its center or another point."""
    xmin, ymin, xmax, ymax = BOX
    x0, y0 = center or ((xmin + xmax) / 2, (ymin + ymax) / 2)
    found = []
    for x, y in ((xmin, ymin), (xmax, ymin), (xmax, ymax), (xmin, ymax)):
        far, angle = math.hypot(x - x0, y - y0), math.atan2(y - y0, x - x0) + math.radians(degrees)
        found.append((x0 + far * math.cos(angle), y0 + far * math.sin(angle)))
    return found


def flat(points):
    return [side for point in points for side in point]


def cvat(degrees):
    xtl, ytl, xbr, ybr = BOX
    box = f'<box label="car" xtl="{xtl}" ytl="{ytl}" xbr="{xbr}" ybr="{ybr}" rotation="{degrees}"/>'
    image = f'<image id="0" name="a.png" width="{WIDTH}" height="{HEIGHT}">{box}</image>'
    return {"a.xml": f"<annotations>{image}</annotations>"}


def cvat_voc(degrees):
    sides = "".join(f"<{name}>{side}</{name}>" for name, side in zip(SIDES, BOX, strict=True))
    turn = f"<attributes><attribute><name>rotation</name><value>{degrees}</value></attribute></attributes>"
    return voc(f"<bndbox>{sides}</bndbox>{turn}")


def ro_label_img(degrees):
    xmin, ymin, xmax, ymax = BOX
    values = {
        "cx": (xmin + xmax) / 2,
        "cy": (ymin + ymax) / 2,
        "w": xmax - xmin,
        "h": ymax - ymin,
        "angle": math.radians(degrees),
    }
    return voc(
        f"<robndbox>{''.join(f'<{name}>{value!r}</{name}>' for name, value in values.items())}</robndbox>"
    )


def voc(shape):
    return {
        "Annotations/a.xml": f"<annotation><filename>a.png</filename><size><width>{WIDTH}</width><height>{HEIGHT}"
        f"</height></size><object><name>car</name>{shape}</object></annotation>"
    }


def coco(**more):
    one = {"id": 1, "image_id": 1, "category_id": 1, **more}
    images = [{"id": 1, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}]
    return {
        "c.json": json.dumps(
            {"images": images, "annotations": [one], "categories": [{"id": 1, "name": "car"}]}
        )
    }


def corner_size():
    xmin, ymin, xmax, ymax = BOX
    return [xmin, ymin, xmax - xmin, ymax - ymin]


def label_studio(degrees):
    sides = zip(("x", "y", "width", "height"), corner_size(), (WIDTH, HEIGHT) * 2, strict=True)
    value = {name: 100 * side / whole for name, side, whole in sides}
    region = {
        "type": "rectanglelabels",
        "original_width": WIDTH,
        "original_height": HEIGHT,
        "value": {**value, "rotation": degrees, "rectanglelabels": ["car"]},
    }
    task = {"data": {"image": "a.png"}, "annotations": [{"result": [region]}]}
    return {"t.json": json.dumps([task])}


def labelme(kind, points):
    shape = {"label": "car", "shape_type": kind, "points": points}
    return {"a.json": json.dumps({"imagePath": "a.png", "shapes": [shape]})}


def via(points):
    x, y = zip(*points, strict=True)
    shape = {"name": "polygon", "all_points_x": x, "all_points_y": y}
    region = {"shape_attributes": shape, "region_attributes": {"class": "car"}}
    return {"v.json": json.dumps({"a.png1": {"filename": "a.png", "regions": [region]}})}


def supervisely(points):
    one = {"classTitle": "car", "geometryType": "polygon", "points": {"exterior": points, "interior": []}}
    document = {"size": {"height": HEIGHT, "width": WIDTH}, "objects": [one]}
    return {"d/ann/a.png.json": json.dumps(document)}


def yolo(points, more=""):
    shares = " ".join(
        str(side / whole) for side, whole in zip(flat(points), (WIDTH, HEIGHT) * 4, strict=True)
    )
    return {"data.yaml": "names: [car]\n", "labels/a.txt": f"0 {shares}\n{more}"}


def dota(points):
    return {"labelTxt/a.txt": f"{' '.join(map(str, flat(points)))} car 0\n"}


SQUARE = [(20.0, 12.0), (50.0, 12.0), (50.0, 32.0), (20.0, 32.0)]
CENTER = {
    f"{write.__name__} {angle}": (write(angle), turned(angle))
    for angle in (30, -75, 90, 180, 200)
    for write in (cvat, cvat_voc, ro_label_img)
}
SOURCES = CENTER | {
    **{f"label studio {angle}": (label_studio(angle), turned(angle, BOX[:2])) for angle in (30, 300, 90)},
    "coco rotation": (coco(bbox=corner_size(), attributes={"rotation": 30}), turned(30)),
    "coco polygon": (coco(bbox=[25, 10, 27, 21], segmentation=[flat(TURNED)]), TURNED),
    "coco outline alone": (coco(segmentation=[flat(TURNED)]), TURNED),
    "coco upright": (coco(bbox=corner_size(), segmentation=[]), SQUARE),
    "coco run lengths": (
        coco(bbox=corner_size(), segmentation={"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}),
        SQUARE,
    ),
    "labelme polygon": (labelme("polygon", TURNED), TURNED),
    "labelme closed": (labelme("polygon", [*TURNED, TURNED[0]]), TURNED),
    "labelme oriented_rectangle": (labelme("oriented_rectangle", TURNED), TURNED),
    "X-AnyLabeling rotation": (labelme("rotation", TURNED), TURNED),
    "labelme four points": (labelme("rectangle", TURNED), TURNED),
    "labelme two points": (labelme("rectangle", [BOX[:2], BOX[2:]]), SQUARE),
    "labelme six points": (labelme("polygon", [*SQUARE, (18.0, 30.0), (16.0, 20.0)]), None),
    "via": (via(TURNED), TURNED),
    "supervisely": (supervisely([[x + 0.25, y] for x, y in TURNED]), [(x + 0.25, y) for x, y in TURNED]),
    "yolo": (yolo(TURNED), TURNED),
    "yolo upright in another order": (yolo(SQUARE[2:] + SQUARE[:2]), SQUARE[2:] + SQUARE[:2]),
    "yolo counterclockwise": (yolo(TURNED[::-1]), TURNED[::-1]),
    "dota": (dota(TURNED), TURNED),
    "dota outside": (dota([(x - 40, y - 15) for x, y in TURNED]), [(x - 40, y - 15) for x, y in TURNED]),
}
LAYOUTS = {"cvat_voc": "voc", "ro_label_img": "voc", "label": "label-studio", "X-AnyLabeling": "labelme"}


@pytest.mark.parametrize("source", SOURCES)
def test_corners_are_those_that_the_tool_draws(tmp_path, source):
    files, expected = SOURCES[source]
    images = {"d/img/a.png": "x"} if source == "supervisely" else {"images/a.png": "x"}
    write_files(tmp_path, files | images)
    word = source.split()[0]
    layout = LAYOUTS.get(word, word)
    # Numbers of VOC count from 1 unless fractions or the user say otherwise.
    more = {"box_origin": 0} if layout == "voc" else {"box_units": "pixels"} if word == "dota" else {}
    (one,) = by_source(layout, tmp_path, **KEEP, **more).values()
    (box,) = one.boxes
    if one.normalized:
        box = scale_to_pixels(box, (HEIGHT, WIDTH))
    (corners,) = box_corners([box])[..., ::-1]
    if expected is None:
        expected = [(box.xmin, box.ymin), (box.xmax, box.ymin), (box.xmax, box.ymax), (box.xmin, box.ymax)]
    np.testing.assert_allclose(corners, expected, atol=1e-9)
    if box.corners:
        polygon = Polygon(expected)
        assert box.area == pytest.approx(polygon.area)
        if "bbox" not in str(files.get("c.json")):
            assert (box.xmin, box.ymin, box.xmax, box.ymax) == pytest.approx(polygon.bounds)
    (plain,) = list_references(layout, tmp_path, **more)
    assert plain.boxes[0].corners == ()


@given(st.floats(-720, 720), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_a_turned_rectangle_that_counts_pixels_from_one_grows_by_half_a_pixel_on_each_side(
    turn, left, top, width, height
):
    from halofeed.prep.annotations.resolve_boxes import _corners_from_one

    written = rectangle_of("a", [left, top, left + width, top + height], "one", OPTIONS, turn=turn)
    if not written.corners:  # not turned: `continuous` does the same
        return
    (x0, x1), (y0, y1) = continuous(left, left + width), continuous(top, top + height)
    center = ((x0 + x1) / 2, (y0 + y1) / 2)
    radians = math.radians(turn)
    expected = []
    for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1)):
        across, down = x - center[0], y - center[1]
        expected.append(center[0] + across * math.cos(radians) - down * math.sin(radians))
        expected.append(center[1] + across * math.sin(radians) + down * math.cos(radians))
    np.testing.assert_allclose(_corners_from_one(written.corners), expected, atol=1e-2)


POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=4, max_size=4)


@given(POINTS)
def test_four_corners_are_refused_where_shapely_finds_no_polygon_of_an_area(points):
    polygon = Polygon(points)
    reason = ""
    try:
        check_corners(flat(points), "one")
    except SourceError as error:
        reason = error.reason
    if not reason:
        # Corners that touch a side, or each other, enclose an area in one order only.
        assert polygon.buffer(0).area > 0
    elif reason == "corners enclose no area":
        sides = zip(points, points[1:] + points[:1], strict=True)
        doubled = sum(x * b - a * y for (x, y), (a, b) in sides)
        assert doubled == 0
    else:
        assert not polygon.is_valid


def test_masks_and_corners_are_kept_beside_each_other():
    box = polygon_of("a", flat(TURNED), "one", LayoutOptions(masks=True, keep=("corners",)))
    assert box.mask == [flat(TURNED)] and box.corners == tuple(flat(TURNED)) and box.turned_share is None


def test_ignored_rotation_gives_upright_corners_and_drop_leaves_the_object_out(tmp_path):
    write_files(tmp_path, cvat(30) | {"images/a.png": "x"})
    (one,) = list_references("cvat", tmp_path, ignore_columns=("rotation",), **KEEP)
    np.testing.assert_array_equal(box_corners(one.boxes)[0, :, ::-1], SQUARE)
    (one,) = list_references("cvat", tmp_path, oriented_boxes="drop", **KEEP)
    assert one.boxes == () and [reason for reason, _ in one.bad_objects] == ["box is oriented"]


def test_a_set_of_boxes_and_corners_has_the_corners_of_both(tmp_path):
    write_files(tmp_path, yolo(TURNED, more="0 0.5 0.5 0.25 0.25\n") | {"images/a.png": "x"})
    (one,) = list_references("yolo", tmp_path, **KEEP)
    boxes = [scale_to_pixels(box, (HEIGHT, WIDTH)) for box in one.boxes]
    np.testing.assert_allclose(box_corners(boxes)[0, :, ::-1], TURNED)
    np.testing.assert_allclose(box_corners(boxes)[1, :, ::-1], [(36, 24), (60, 24), (60, 40), (36, 40)])


def test_the_note_says_that_corners_are_kept(tmp_path):
    write_files(tmp_path, cvat(30) | {"images/a.png": "x"})
    for keep, said in (KEEP, "keep their corners beside upright boxes"), ({}, "became upright boxes"):
        (one,) = list_references("cvat", tmp_path, **keep)
        assert any(said in note for note in one.notes)
        assert any("--keep corners" in note for note in one.notes) == (not keep)
