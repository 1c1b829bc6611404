"""Features on the map become boxes and masks in pixels, as rasterio, pyproj and shapely compute them."""

import json
from pathlib import Path

import numpy as np
import pyproj
import pytest
import rasterio
import rasterio.features
import shapely.geometry
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rasterio.transform import Affine

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.layouts.detect import detect_layout
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.masks import draw_mask
from halofeed.trainer.geojson_predictions import PredictedLabels, PredictedObjects, write_geojson
from tests.support.large_picture_files import write_ome, write_slide
from tests.support.large_pictures import LargePicture

HEIGHT, WIDTH = 300, 400
UTM = Affine(0.5, 0, 500000, 0, -0.5, 5300000)
PLACES = {
    "utm": (UTM, "EPSG:32633"),
    "degrees": (Affine(3e-6, 0, 14.5, 0, -2e-6, 48.1), "EPSG:4326"),
    "feet": (Affine(1.5, 0, 2_000_000, 0, -1.5, 500_000), "EPSG:2263"),
    "rotated": (UTM @ Affine.rotation(33), "EPSG:32633"),
    "rows to the north": (Affine(0.5, 0, 500000, 0, 0.5, 5300000), "EPSG:32633"),
    "antimeridian": (Affine(2e-5, 0, 179.996, 0, -2e-5, -17.0), "EPSG:4326"),
    "utm beside the antimeridian": (Affine(10, 0, 820000, 0, -10, 8120000), "EPSG:32760"),
    "large pixels": (Affine(60, 0, 500000, 0, -60, 7500000), "EPSG:32633"),
}


def write_tiff(path: Path, transform: Affine = UTM, crs: str | None = "EPSG:32633") -> None:
    pixels = np.zeros((3, HEIGHT, WIDTH), np.uint8)
    profile = {"driver": "GTiff", "height": HEIGHT, "width": WIDTH, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", **profile, transform=transform, crs=crs) as file:
        file.write(pixels)


def square(x: float, y: float, side: float = 20.0) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def on_map(
    points: list[list[float]], transform: Affine, crs: str, target: str = "OGC:CRS84"
) -> list[list[float]]:
    """Pixels on the map, by rasterio's transform and pyproj."""
    to_target = pyproj.Transformer.from_crs(crs, target, always_xy=True)
    return [list(to_target.transform(*(transform @ tuple(point)))) for point in points]


def feature(rings: list[list[list[float]]], **properties: object) -> dict[str, object]:
    geometry = {"type": "Polygon", "coordinates": rings}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def save(path: Path, features: list[dict[str, object]], **members: object) -> None:
    path.write_text(json.dumps({"type": "FeatureCollection", **members, "features": features}))


def listed(folder: Path, **options: object) -> list[SourceExample]:
    files = LocalFiles(folder)
    found = LAYOUTS["geojson"].list_references(files, files, None, LayoutOptions(**options))  # type: ignore[arg-type]
    return list(found)


def edges(example: SourceExample) -> list[list[float]]:
    assert example.boxes is not None, example.problem
    return [[box.ymin, box.xmin, box.ymax, box.xmax] for box in example.boxes]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("coordinates", ["wgs84", "source"])
def test_boxes_come_back_from_a_written_file(tmp_path: Path, place: str, coordinates: str) -> None:
    transform, crs = PLACES[place]
    write_tiff(tmp_path / "a.tif", transform, crs)
    files = LocalFiles(tmp_path)
    reader = open_regions(files, "a.tif")
    georeference = reader.facts.georeference
    reader.close()
    assert georeference is not None
    random = np.random.default_rng(0)
    corner = random.uniform(0, 200, (20, 2))
    boxes = np.concatenate([corner, corner + random.uniform(1, 100, (20, 2))], axis=1)
    predicted = PredictedObjects(boxes=boxes, classes=["hat", "cat"] * 10, scores=random.random(20))
    assert write_geojson(tmp_path / "a.geojson", predicted, georeference, coordinates=coordinates) == 20
    (example,) = listed(tmp_path)
    assert np.abs(np.array(edges(example)) - boxes).max() < 0.01
    assert [box.label for box in example.boxes or ()] == ["hat", "cat"] * 10


def test_pixels_are_written_and_read_in_the_form_of_qupath(tmp_path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    boxes = np.array([[10.25, 20.5, 30, 60], [0, 0, 300, 400]])
    write_geojson(
        tmp_path / "a.geojson", PredictedObjects(boxes=boxes, classes=["Tumor", "Stroma"], scores=np.ones(2))
    )
    written = json.loads((tmp_path / "a.geojson").read_text())["features"][0]["properties"]
    assert written == {
        "objectType": "annotation",
        "classification": {"name": "Tumor"},
        "measurements": {"score": 1.0},
    }
    (example,) = listed(tmp_path)
    assert edges(example) == boxes.tolist()
    assert [box.label for box in example.boxes or ()] == ["Tumor", "Stroma"]


def test_annotations_of_an_ome_tiff_and_of_a_dicom_slide_have_the_name_of_the_slide(tmp_path: Path) -> None:
    picture = LargePicture(300, 400, count=4)
    write_ome(tmp_path / "a.ome.tif", picture)
    write_slide(tmp_path / "b", picture)
    for name in "ab":
        save(tmp_path / f"{name}.geojson", [feature([square(30.5, 40)], objectType="annotation")])
    # One file of the folder is the slide, and the others are its levels.
    takes = ("a.ome.tif", "b/level_0.dcm").__contains__
    examples = listed(tmp_path, one_class="tumor", takes=takes)
    named = {example.source: edges(example) for example in examples if not example.problem}
    assert named == {"a.ome.tif": [[40, 30.5, 60, 50.5]], "b/level_0.dcm": [[40, 30.5, 60, 50.5]]}


def test_annotations_whose_name_is_of_no_picture_are_refused_with_a_name_that_works(tmp_path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    save(tmp_path / "other.geojson", [feature([square(30, 40)], objectType="annotation")])
    with pytest.raises(AnnotationsError, match=r"other.geojson: .*such as a.geojson for a.png"):
        listed(tmp_path, one_class="tumor")
    (tmp_path / "other.geojson").rename(tmp_path / "a.geojson")
    assert edges(listed(tmp_path, one_class="tumor")[0]) == [[40, 30, 60, 50]]


def test_outlines_of_labels_are_those_of_gdal_and_valid() -> None:
    random = np.random.default_rng(1)
    from halofeed.trainer.label_outlines import outlines_of

    for _ in range(60):
        labels = (random.random(random.integers(1, 9, 2)) < random.choice([0.3, 0.6, 0.9])).astype(np.uint8)
        ours = [shapely.geometry.Polygon(one.rings[0], one.rings[1:]) for one in outlines_of(labels, 1)]
        shapes = rasterio.features.shapes(labels, connectivity=4)
        theirs = [shapely.geometry.shape(shape) for shape, value in shapes if value == 1]
        assert all(one.is_valid for one in ours)
        assert len(ours) == len(theirs)
        assert all(any(one.equals(other) for other in theirs) for one in ours)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_labels_come_back_as_masks_with_holes(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("labels")
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    small = np.random.default_rng(seed).random((6, 8)) < 0.6
    labels[60:120, 40:120] = np.kron(small, np.ones((10, 10), np.uint8))
    labels[0, 0] = 1
    write_tiff(folder / "a.tif")
    place = Georeference(to_map=tuple(UTM)[:6], crs="EPSG:32633")
    write_geojson(folder / "a.geojson", PredictedLabels(labels=labels, names={1: "hat"}), place)
    (example,) = listed(folder, masks=True)
    drawn = np.zeros_like(labels)
    for box in example.boxes or ():
        drawn |= draw_mask(box.mask, labels.shape)
        assert box.area == pytest.approx(draw_mask(box.mask, labels.shape).sum(), abs=0.1)
    assert (drawn == labels).all()


def test_a_file_of_a_city_gives_each_picture_the_features_on_it(tmp_path: Path) -> None:
    """As SpaceNet's: a feature across two pictures belongs to both, one outside to none."""
    write_tiff(tmp_path / "west.tif")
    write_tiff(tmp_path / "east.tif", UTM @ Affine.translation(WIDTH, 0))
    write_tiff(tmp_path / "far.tif", UTM @ Affine.translation(0, 5000))
    squares = {"inside": square(50, 60), "both": square(390, 60), "beside": square(-90, 60)}
    features = [feature([on_map(points, *PLACES["utm"])], kind="house") for points in squares.values()]
    # Its box meets the western picture, and its outline does not.
    corner = [[380.0, -20.0], [420.0, -20.0], [420.0, 20.0]]
    features.append(
        feature([on_map([*corner, corner[0]], UTM @ Affine.translation(0, -20), "EPSG:32633")], kind="roof")
    )
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
    save(
        tmp_path / "city.geojson",
        [*features, feature([on_map(square(70, 200), *PLACES["utm"])], kind="house")],
        crs=crs,
    )
    east, far, west = listed(tmp_path, class_property="kind")
    assert np.allclose(edges(west), [[60, 50, 80, 70], [60, 390, 80, 410], [200, 70, 220, 90]], atol=0.01)
    assert np.allclose(edges(east), [[60, -10, 80, 10]], atol=0.01)
    assert far.boxes == ()
    assert "no feature lies" in far.notes[0]


def test_boxes_of_xview_are_found_by_its_properties(tmp_path: Path) -> None:
    for name in ("389.tif", "390.tif"):
        Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / name)
    lies = [[[14.0, 48.0], [14.1, 48.0], [14.1, 48.1], [14.0, 48.0]]]
    save(
        tmp_path / "xView_train.geojson",
        [
            feature(lies, bounds_imcoords="10,20,30,50", image_id="389.tif", type_id=18, feature_id=1),
            feature(lies, bounds_imcoords="1,2,3,5", image_id="390.tif", type_id=73, feature_id=2),
        ],
    )
    first, second = listed(tmp_path)
    assert (edges(first), edges(second)) == ([[20, 10, 50, 30]], [[2, 1, 5, 3]])
    assert [box.label for box in (*(first.boxes or ()), *(second.boxes or ()))] == ["18", "73"]


def test_geometries_without_an_area_are_listed_with_their_reason(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif")
    good = feature([on_map(square(50, 60), *PLACES["utm"])], label="hat")
    null = {"type": "Feature", "properties": {"label": "hat"}, "geometry": None}
    point = {
        "type": "Feature",
        "properties": {"label": "hat"},
        "geometry": {"type": "Point", "coordinates": [1, 2]},
    }
    save(
        tmp_path / "a.geojson",
        [good, null, point, feature([[[1, 2], [3]]], label="hat"), {**null, "id": 5}],
    )
    (example,) = listed(tmp_path)
    assert len(example.boxes or ()) == 1
    assert [reason for reason, _ in example.bad_objects] == [
        "feature has no geometry",
        "shape is no box",
        "ring is no list of positions",
        "feature has no geometry",
    ]


def test_points_of_a_file_of_a_city_are_listed_once_and_do_not_reject_a_picture(tmp_path: Path) -> None:
    for name in ("a.tif", "b.tif"):
        write_tiff(tmp_path / name)
    good = feature([on_map(square(50, 60), *PLACES["utm"])], label="hat")
    position = on_map([[30, 40]], *PLACES["utm"])[0]
    point = {**good, "geometry": {"type": "Point", "coordinates": position}}
    save(tmp_path / "city.geojson", [good, point, {**good, "geometry": None}])
    for options in ({}, {"on_bad_object": "reject"}):
        examples = listed(tmp_path, **options)
        assert [len(one.boxes or ()) for one in examples] == [1, 1]
        bad = [one for example in examples for one in example.bad_objects]
        assert [reason for reason, _ in bad] == ["shape is no box", "feature has no geometry"]
        assert all(detail.startswith("city.geojson: feature ") for _, detail in bad)


@pytest.mark.parametrize(
    ("points", "fix"),
    [
        ([point[::-1] for point in on_map(square(50, 60), *PLACES["utm"])], "--coordinates lat-lon"),
        (on_map(square(50, 60), UTM, "EPSG:32633", "EPSG:32633"), "--coordinates picture"),
        (square(50, 60), "--coordinates pixels"),
        ([[1.0, 1.0], [2.0, 1.0], [2.0, 2.0], [1.0, 1.0]], "--images"),
    ],
    ids=["latitude first", "meters", "pixels", "elsewhere"],
)
def test_features_beside_the_pictures_are_refused_with_both_extents(
    tmp_path: Path, points: list[list[float]], fix: str
) -> None:
    write_tiff(tmp_path / "a.tif")
    save(tmp_path / "other.geojson", [feature([points], label="hat")])
    with pytest.raises(AnnotationsError, match="no feature lies on a picture") as caught:
        listed(tmp_path)
    if fix != "--images":
        assert fix in str(caught.value)
    assert "EPSG:32633 (WGS 84 / UTM zone 33N)" in str(caught.value)
    assert "x from 500000 to 500200" in str(caught.value)
    if fix.startswith("--coordinates"):
        (example,) = listed(tmp_path, coordinates=fix.split()[1])
        assert np.allclose(edges(example), [[60, 50, 80, 70]], atol=0.01)


def test_degrees_are_never_taken_as_pixels_of_a_picture_without_a_place(tmp_path: Path) -> None:
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    save(tmp_path / "a.geojson", [feature([on_map(square(50, 60), *PLACES["utm"])], label="hat")])
    with pytest.raises(AnnotationsError, match="picture has no georeference"):
        listed(tmp_path)
    save(tmp_path / "a.geojson", [feature([square(50, 60)], label="hat")])
    (example,) = listed(tmp_path)
    assert edges(example) == [[60, 50, 80, 70]]
    assert "taken as pixels" in example.notes[0]


def test_a_world_file_places_a_png_as_rasterio_does(tmp_path: Path) -> None:
    transform = UTM @ Affine.rotation(12)
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    center = transform @ (0.5, 0.5)
    lines = (transform.a, transform.d, transform.b, transform.e, *center)
    (tmp_path / "a.pgw").write_text("\n".join(map(repr, lines)))
    (tmp_path / "a.prj").write_text(pyproj.CRS("EPSG:32633").to_wkt("WKT1_ESRI"))
    with rasterio.open(tmp_path / "a.png") as file:
        assert np.allclose(file.transform, transform)
    save(tmp_path / "a.geojson", [feature([on_map(square(50, 60), transform, "EPSG:32633")], label="hat")])
    (example,) = listed(tmp_path)
    assert np.allclose(edges(example), [[60, 50, 80, 70]], atol=0.01)


def test_a_property_that_repeats_is_the_class_and_none_is_guessed(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif")
    ring = on_map(square(50, 60), *PLACES["utm"])
    kinds = ["roof", "road", "roof", "road"]
    save(tmp_path / "a.geojson", [feature([ring], fid=str(n), surface=kind) for n, kind in enumerate(kinds)])
    (example,) = listed(tmp_path)
    assert [box.label for box in example.boxes or ()] == kinds
    save(tmp_path / "a.geojson", [feature([ring], OBJECTID=n) for n in range(4)])
    with pytest.raises(AnnotationsError, match="--one-class"):
        listed(tmp_path)
    (example,) = listed(tmp_path, one_class="building")
    assert {box.label for box in example.boxes or ()} == {"building"}


def test_the_layout_is_recognized_and_vector_files_are_refused_with_a_command(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif")
    save(tmp_path / "a.geojson", [feature([on_map(square(50, 60), *PLACES["utm"])], label="hat")])
    files = LocalFiles(tmp_path)
    assert detect_layout(files, files, None, lambda name: LayoutOptions()).name == "geojson"
    (tmp_path / "a.geojson").unlink()
    (tmp_path / "labels.gpkg").write_bytes(b"SQLite format 3\0")
    with pytest.raises(AnnotationsError, match=r"ogr2ogr -t_srs EPSG:4326 labels\.geojson labels\.gpkg"):
        detect_layout(LocalFiles(tmp_path), LocalFiles(tmp_path), None, lambda name: LayoutOptions())


@pytest.mark.parametrize(
    "crs", ["EPSG:32633", "urn:ogc:def:crs:EPSG::32633", "EPSG:4326", "urn:ogc:def:crs:OGC:1.3:CRS84"]
)
def test_the_member_crs_names_the_system_and_x_is_always_first(tmp_path: Path, crs: str) -> None:
    """EPSG:4326 is latitude, longitude in EPSG's register, and GDAL writes longitude first under that name."""
    write_tiff(tmp_path / "a.tif")
    member = {"type": "name", "properties": {"name": crs}}
    save(
        tmp_path / "a.geojson",
        [feature([on_map(square(50, 60), UTM, "EPSG:32633", crs)], label="hat")],
        crs=member,
    )
    (example,) = listed(tmp_path)
    assert np.allclose(edges(example), [[60, 50, 80, 70]], atol=0.01)


def test_a_long_edge_is_the_curve_that_a_dense_line_is(tmp_path: Path) -> None:
    """A triangle over 24 km: its edges are straight in degrees, and up to 10 m off the chord in UTM."""
    transform = Affine(60, 0, 500000, 0, -60, 7700000)
    write_tiff(tmp_path / "a.tif", transform)
    corners = np.array(on_map([[10, 290], [390, 290], [200, 10]], transform, "EPSG:32633"))
    save(tmp_path / "a.geojson", [feature([[*corners.tolist(), corners[0].tolist()]], label="hat")])
    (example,) = listed(tmp_path)
    share = np.linspace(0, 1, 2001)[:, None]
    dense = np.concatenate(
        [a + share * (b - a) for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True)]
    )
    to_utm = pyproj.Transformer.from_crs("OGC:CRS84", "EPSG:32633", always_xy=True)
    x, y = (np.array(to_utm.transform(*dense.T)) - [[500000], [7700000]]) / [[60], [-60]]
    assert np.allclose(edges(example), [[y.min(), x.min(), y.max(), x.max()]], atol=0.01)
    assert abs(y.max() - 290) > 0.05


def test_a_multipolygon_with_a_hole_has_the_pixels_that_rasterio_burns(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif")
    parts = [[square(50, 60, 40), square(60.3, 70.2, 15)[::-1]], [square(200.7, 100.1, 30)]]
    geometry = {
        "type": "MultiPolygon",
        "coordinates": [[on_map(ring, *PLACES["utm"]) for ring in part] for part in parts],
    }
    save(tmp_path / "a.geojson", [{"type": "Feature", "properties": {"label": "hat"}, "geometry": geometry}])
    (example,) = listed(tmp_path, masks=True)
    (box,) = example.boxes or ()
    shape = shapely.geometry.shape({"type": "MultiPolygon", "coordinates": parts})
    burned = rasterio.features.rasterize([shape], out_shape=(HEIGHT, WIDTH))
    drawn = draw_mask(box.mask, (HEIGHT, WIDTH))
    assert (drawn != burned).sum() == 0
    assert box.area == pytest.approx(shape.area, rel=1e-6)
    assert edges(example) == [pytest.approx([60, 50, 130.1, 230.7], abs=0.01)]


def test_a_feature_with_a_hole_around_the_picture_is_no_object_in_it(tmp_path: Path) -> None:
    write_tiff(tmp_path / "a.tif")
    around = [
        on_map(square(-50, -50, 600), *PLACES["utm"]),
        on_map(square(-20, -20, 500)[::-1], *PLACES["utm"]),
    ]
    inside = [on_map(square(50, 60), *PLACES["utm"])]
    save(tmp_path / "city.geojson", [feature(around, label="wall"), feature(inside, label="hat")])
    (example,) = listed(tmp_path)
    assert [box.label for box in example.boxes or ()] == ["hat"]


def test_a_damaged_or_too_large_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiff(tmp_path / "a.tif")
    (tmp_path / "a.geojson").write_text('{"type": "FeatureCollection", "features": [')
    with pytest.raises(AnnotationsError, match="malformed JSON"):
        listed(tmp_path)
    save(tmp_path / "a.geojson", [feature([on_map(square(50, 60), *PLACES["utm"])], label="hat")])
    monkeypatch.setattr("halofeed.prep.layouts.geojson._MAX_BYTES", 100)
    with pytest.raises(AnnotationsError, match=r"ogr2ogr -clipsrc .* a\.geojson"):
        listed(tmp_path)
