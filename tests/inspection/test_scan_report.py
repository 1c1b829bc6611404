"""Does the report of a segmentation data set show scans as they lie in the patient, and say what is known of them?"""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers
from PIL import Image

from halofeed.inspection.dataset_facts import DatasetFacts, volume_sizings
from halofeed.inspection.html import charts
from halofeed.inspection.html.charts import LineSeries, line_chart, running_mean, thin_points
from halofeed.inspection.html.report import write_report
from halofeed.inspection.planes import center_of, display_of
from halofeed.inspection.samples import (
    Candidate,
    ScanSample,
    choose_samples,
    find_candidates,
    load_scan,
)
from halofeed.inspection.thumbnails import overlay
from halofeed.prep.geometry.scan import Finding
from halofeed.prep.voxels.intensity import IntensityWindow
from halofeed.prep.voxels.phantom import LABELED_ORGANS
from halofeed.schemas.findings import FindingName
from halofeed.schemas.manifest import Split, read_manifest
from halofeed.schemas.statistics import Statistics
from tests.inspection.test_report import change, change_train, report
from tests.inspection.test_report import make as make_pictures
from tests.support.pages import (
    assert_a_browser_shows,
    assert_self_contained,
    code_blocks,
    images,
    part_of,
    picture,
    rows,
)
from tests.support.set_writer import refusal
from tests.support.volume_report_writer import RECIPE, draw_picture, draw_scan, write_segmentation

WINDOW = IntensityWindow(low=-160, high=240)
BYTES = {"window": WINDOW, "store": "uint8"}
PERCENTILES = {"window_percentiles": [0.5, 99.5]}
TILT = Finding(name="gantry tilt", treatment="corrected", detail="16 degrees")
OTHER = Finding(name="nobody knows this one", treatment="noted", detail="")
ENDING = ["partitions", "recipe", "use"]
VOLUME_SECTIONS = [
    "suspects",
    "contents",
    "conversion",
    "samples",
    "labels",
    "findings",
    "sizes",
    "values",
    *ENDING,
]
PICTURE_SECTIONS = ["suspects", "contents", "conversion", "samples", "labels", "sizes", "pixels", *ENDING]
ROOT = Path(__file__).parents[2]


def make(folder: Path, **more: Any) -> Path:
    """Six scans in two splits: one without a label, one with an empty one, two with findings."""
    drawing = {key: more.pop(key) for key in ("window", "store", "spacing_mm", "modality") if key in more}
    records = [draw_scan(f"scan {number}.nii.gz", **drawing) for number in range(4)]
    records[1] = dataclasses.replace(records[1], findings=(TILT,))
    empty = np.zeros_like(records[2].label)
    records[2] = dataclasses.replace(records[2], findings=(TILT, OTHER), label=empty)
    records += [draw_scan(f"test {number}", "test", labelled=number == 0, **drawing) for number in range(2)]
    return write_segmentation(folder / "scans" / "1.0.0", records, **more)


def load_all(folder: Path, side: int = 240) -> list[ScanSample]:
    manifest = read_manifest(folder)
    facts = DatasetFacts(path="x", manifest=manifest)
    display = display_of(manifest, facts.total)
    found = find_candidates(folder, manifest)
    return [load_scan(folder, manifest, (one, None), display, facts.ranks, side) for one in found]


def test_the_page_is_well_formed_loads_nothing_and_has_every_section_in_order(tmp_path: Path) -> None:
    source, page = report(make(tmp_path))
    assert [given["id"] for given in page.all("section")] == VOLUME_SECTIONS
    assert_self_contained(source, page)
    assert len(page.all("article")) == 6 and len(page.all("figure")) == 18
    masks = [given for given in images(page, "samples") if given.get("class") == "mask"]
    assert len(masks) == 12, "an empty label and none at all have nothing to lay over"
    source, page = report(write_segmentation(tmp_path / "2d" / "1", [draw_picture("a")], encoding="png"))
    assert [given["id"] for given in page.all("section")] == PICTURE_SECTIONS


def test_every_fact_of_the_scans_is_said_and_the_code_shown_fits_them(tmp_path: Path) -> None:
    folder = make(tmp_path, rejected=[refusal("x", "decode", "slices are missing", "3 of 9")])
    source, page = report(folder)
    assert "A segmentation data set: 6 scans of 5 classes" in page.words()
    assert "1slices are missing decodex 3 of 9" in page.words("conversion")
    samples = page.words("samples")
    for expected in (
        "the patient's right is on the left of the picture",
        "the same scale in millimeters",
        "Black to white is -338 to 700 HU: the recipe has no window",
        "no label: for prediction",
        "nothing but background",
        "spacing6 × 4 × 4 mm",
        "padding19.9 %",
        "source22 × 26 × 32spacing 6 × 4 × 4 mm",
    ):
        assert expected in samples, samples
    assert samples.count("axial, depth") == samples.count("coronal, height") == 6
    manifest = read_manifest(folder)
    train, test = (manifest.splits[name].statistics for name in ("train", "test"))
    marked = train.foreground_voxels + test.foreground_voxels
    voxels = {row[0]: row[1:] for row in rows(source, "labels")}
    for organ in LABELED_ORGANS:
        counted = train.label_voxels[str(organ.label)] + test.label_voxels[str(organ.label)]
        share = f"{100 * counted / marked:.1f} %"
        assert voxels[organ.name][:3] == [str(organ.label), "4", f"{counted:,}"]
        assert voxels[organ.name][4] == share
    words = page.words("labels")
    assert "No examples: never seen" in words and "background4" not in words
    assert f"foreground {100 * marked / (5 * 24 * 28 * 34):.1f} %" in words
    assert "1 scan of 6 has no label and is for prediction" in words
    findings = page.words("findings")
    assert f"2gantry tilt corrected{FindingName.GANTRY_TILT.meaning}train 2" in findings
    assert "1nobody knows this one noted" in findings and "scans, of 6 scans in total" in findings
    assert "most common spacing of the sources is 6 × 4 × 4 mm (6 scans)" in page.words("sizes")
    assert rows(source, "sizes") == [
        ["as it is now", "24 × 28 × 34", "19.9 %", "0 %", "1.00×"],
        ["the largest of each side: nothing is cut off", "22 × 26 × 32", "0 %", "0 %", "0.80×"],
    ]
    figures = rows(source, "values")
    expected = [["all", "train"], ["all", "test"], ["labeled", "train"], ["labeled", "test"]]
    assert [row[:2] for row in figures] == expected
    assert "The recipe has no window, so the chart has no band." in page.words("values")
    assert "1,2,1,1,1" in page.words("partitions") and "12 × 28 × 34 per core" in page.words("partitions")
    assert "no split is even" not in page.words("partitions").partition("4")[0]
    load, mesh = code_blocks(source)
    assert '"image": int16 [1, 24, 28, 34, 1]; "label": [1, 24, 28, 34], "labelled"' in load
    compile(load, "load", "exec")
    compile(mesh, "mesh", "exec")
    assert "'image=1,2,1,2,1;label=1,2,1,2'" in mesh or "'image=1,1,2,2,1;label=1,1,2,2'" in mesh
    assert "halofeed train" not in part_of(source, "use")


def test_planes_lie_in_the_patient_as_radiologists_look(tmp_path: Path) -> None:
    sample = load_all(make(tmp_path))[0]
    ranks = {1: 0, 2: 1, 3: 2, 4: 3}
    assert [plane.sides for plane in sample.planes] == ["RLAP", "RLSI", "APSI"]
    # The liver (right) and the spleen (left) lie above the bladder (inferior, anterior) and before the spine.
    colors = {1: (59, 130, 246), 2: (245, 158, 11), 3: (16, 185, 129), 4: (239, 68, 68)}
    found: dict[tuple[str, int], np.ndarray] = {}
    for plane in sample.planes:
        shown = picture(plane.masks[0])
        for label in ranks:
            places = np.argwhere((shown[..., :3] == colors[label]).all(axis=2) & (shown[..., 3] > 0))
            if len(places):
                found[plane.name, label] = places.mean(axis=0) / shown.shape[:2]
        gray = picture(plane.uri)
        assert abs(gray.shape[1] / gray.shape[0] - plane.size_mm[1] / plane.size_mm[0]) < 0.01
    assert found["axial", 1][1] < 0.5 < found["axial", 2][1]
    assert found["axial", 3][0] > 0.6, "the spine is posterior, which is down"
    assert found["coronal", 1][1] < 0.5 < found["coronal", 2][1] and found["coronal", 1][0] < 0.5
    assert found["sagittal", 3][1] > 0.6, "posterior is on the right of a sagittal plane"
    assert found["sagittal", 4][0] > 0.6 and found["sagittal", 4][1] < 0.5


def test_the_mask_lies_where_the_organ_is_bright(tmp_path: Path) -> None:
    for sample in load_all(make(tmp_path, **BYTES, recipe={**RECIPE, "window_hu": [-160, 240]})):
        for plane in sample.planes:
            if plane.masks[0] is None:
                continue
            gray, mask = picture(plane.uri).astype(int), picture(plane.masks[0])
            times = mask.shape[0] // gray.shape[0]
            mask = mask[times // 2 :: times, times // 2 :: times]
            assert gray.shape == mask.shape[:2]
            inside = (mask[..., 3] > 0) & (mask[..., 3] < 255)
            assert np.median(gray[inside]) > np.median(gray[gray > 5]) + 30


def test_the_center_is_the_labels_or_the_nearest_plane_that_meets_it() -> None:
    label = np.zeros((9, 10, 20), np.uint8)
    extent = np.array([[0, 2, 4], [9, 10, 20]])
    assert center_of(label, extent) == (4, 6, 12)
    label[3:6, 2:5, 1:4] = 1
    assert center_of(label, extent) == (4, 3, 2)
    label[3:6, 2:5, 16:19] = 2
    depth, height, width = center_of(label, extent)
    assert (depth, height) == (4, 3) and width in (3, 16), "the middle, 9.5, meets neither"


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_an_overlay_shows_every_class_where_it_is(height: int, width: int, seed: int) -> None:
    label = np.random.default_rng(seed).integers(0, 3, (height, width)).astype(np.uint8)
    uri = overlay(label, {1: 0, 2: 1}, (height, width))
    if not label.any():
        assert uri is None
        return
    shown = picture(uri)
    times = shown.shape[0] // height
    assert shown.shape == (height * times, width * times, 4) and max(shown.shape) >= 240
    middle = shown[times // 2 :: times, times // 2 :: times]
    assert ((middle[..., 3] > 0) == (label > 0)).all()
    assert (middle[..., 2][label == 1] == 246).all() and (middle[..., 2][label == 2] == 11).all()


@pytest.mark.parametrize(
    ("options", "recipe", "words", "drawn"),
    [
        ({}, {}, "-338 to 700 HU: the recipe has no window", 0),
        ({"modality": "MR"}, {}, "-338 to 700: the recipe has no window", 0),
        ({"window": WINDOW}, {"window_hu": [-160, 240]}, "-160 to 240 HU, the recipe's window.", 2),
        (BYTES, {"window": "40/400"}, "-160 to 240 HU, the recipe's window, stored as 0 to 255.", 2),
        (BYTES, PERCENTILES, "each scan's own window, from its 0.5th to its 99.5th percentile, stored", 0),
        (BYTES, {}, "0 to 255, as stored.", 0),
    ],
)
def test_the_window_that_is_shown_is_stated_and_drawn(tmp_path, options, recipe, words, drawn):
    source, page = report(make(tmp_path, recipe={**RECIPE, **recipe}, **options))
    assert f"Black to white is {words}" in page.words("samples"), page.words("samples")
    values = part_of(source, "values")
    assert len(re.findall('class="marker"', values)) == drawn and ('class="band"' in values) == bool(drawn)
    if drawn:
        assert ">-160</text>" in values and ">240</text>" in values
        body = rows(source, "values")[0]
        assert -160 <= float(body[2]) <= 240 and body[-1] == "240", "in Hounsfield units"


@pytest.mark.parametrize("store", ["float32", "bfloat16"])
def test_fractional_values_are_shown_as_whole_ones_are(tmp_path: Path, store: str) -> None:
    whole, fractional = (
        load_all(make(tmp_path / name, **more))[0]
        for name, more in (("whole", {}), (store, {"store": store, "dtype": store}))
    )
    for one, other in zip(whole.planes, fractional.planes, strict=True):
        assert np.abs(picture(one.uri).astype(int) - picture(other.uri)).max() <= 4
        assert one.masks == other.masks


def test_empty_parts_say_so(tmp_path: Path) -> None:
    records = [draw_scan(f"{number}", labelled=False, modality="MR") for number in range(2)]
    _, page = report(write_segmentation(tmp_path / "a" / "1", records))
    for section, words in (
        ("labels", "No scan has a label."),
        ("labels", "0 classes occur in scans"),
        ("findings", "None in 2 scans, and nothing was corrected."),
        ("values", "no labeled voxels"),
        ("values", "voxels of train, because none are labeled"),
    ):
        assert words in page.words(section)
    folder = make(tmp_path)
    change(folder, splits={"train": Split(shards=(), statistics=Statistics())})
    _, page = report(folder)
    for section, words in (
        ("samples", "No record is shown."),
        ("sizes", "No scan was counted."),
        ("values", "No values were counted."),
        ("labels", "No scan has a label."),
    ):
        assert words in page.words(section)


def test_tiles_channels_and_unnamed_classes_are_called_so(tmp_path: Path) -> None:
    records = [draw_scan(key, tile=number) for key in ("one", "two") for number in range(3)]
    records = [dataclasses.replace(one, image=np.concatenate([one.image] * 2, axis=3)) for one in records]
    folder = write_segmentation(tmp_path / "a" / "1", records, recipe={**RECIPE, "fit": "tiles"})
    change(folder, labels={value: str(value) for value in range(5)})
    source, page = report(folder)
    assert "6 tiles of 4 classes" in page.words() and "tile 2" in page.words("samples")
    assert "The first channel is shown." in page.words("samples") and "first channel" in page.words("values")
    assert "class 1" in page.words("labels") and "None in 2 scans" in page.words("findings")
    assert rows(source, "sizes")[0][3] == "0 %", "tiles are not cropped"


def test_what_other_static_shapes_cost_is_worked_out_from_the_sources(tmp_path: Path) -> None:
    folder = make(tmp_path)
    manifest = change_train(folder, {"source_shapes": {"10x10x10": 2, "20x10x40": 1}})
    sizings = {name: rest for name, *rest in volume_sizings(DatasetFacts(path="x", manifest=manifest))}
    largest = sizings["the largest of each side: nothing is cut off"]
    assert largest == [(20, 10, 40), pytest.approx(1 - 10_000 / 24_000), 0]
    assert sizings["the median of each side"] == [(10, 10, 10), 0, pytest.approx(1 - 3_000 / 10_000)]
    worked_out = pytest.approx(1 - (2_000 + 20 * 10 * 34) / 10_000)
    assert sizings["as it is now"][2] == 0, "counted at the conversion"
    change_train(folder, {"body_cut_percents": {"0": 2, "12": 2}})
    assert "2 of 4 scans lost more than 1 % of the body, up to 12 %" in report(folder)[1].words("sizes")
    manifest = change_train(folder, {"scan_mm3": None, "scan_cut_mm3": None})
    sizings = {name: rest for name, *rest in volume_sizings(DatasetFacts(path="x", manifest=manifest))}
    assert sizings["as it is now"][2] == worked_out


def test_scans_without_labels_with_padding_and_thick_slices_are_among_the_samples(tmp_path: Path) -> None:
    records = [draw_scan(f"{number}", padding=1) for number in range(30)]
    records[7] = draw_scan("unlabelled", labelled=False, padding=1)
    records[9] = draw_scan("padded", padding=6)
    records[11] = draw_scan("thick", spacing_mm=(12.0, 4.0, 4.0), padding=1)
    folder = write_segmentation(tmp_path, records)
    chosen = choose_samples(find_candidates(folder, read_manifest(folder)), 8, detection=False)
    reasons = [reason for _, reason in chosen if reason]
    thickest = "thickest slices: 3.0 times the spacing within"
    assert reasons == ["most padding: 51 %", "no label: for prediction", thickest]
    assert len(chosen) == 8 and all(isinstance(item, Candidate) for item, _ in chosen)


def test_pictures_show_their_classes_over_the_stored_one_beside_the_source(tmp_path: Path) -> None:
    drawn = [draw_picture(f"{number}.png", seed=number, labelled=number != 2) for number in range(3)]
    photos = tmp_path / "photos"
    photos.mkdir()
    for one in drawn:
        Image.fromarray(one.image[:-1]).save(photos / one.key)
    folder = write_segmentation(tmp_path / "d" / "1", drawn, encoding="png", recipe={})
    source, page = report(folder, sources=str(photos))
    samples = page.words("samples")
    assert "The stored picture shows the classes of its label." in samples
    assert samples.count("source 23 × 32") == samples.count("stored 24 × 32, picture 23 × 32") == 3
    assert "liverspleen" in samples and "no label: for prediction" in samples
    masks = [picture(given["src"]) for given in images(page, "samples") if given.get("class") == "mask"]
    assert len(masks) == 2 and len(images(page, "samples")) == 8
    for mask in masks:
        times = mask.shape[0] // 24
        assert ((mask[times // 2 :: times, times // 2 :: times, 3] > 0) == (drawn[0].label > 0)).all()
    voxels = {row[0]: row[2:4] for row in rows(source, "labels")}
    assert voxels == {"liver": ["2", "240"], "spleen": ["2", "288"]}
    assert "Pixels of each class" in page.words("labels") and "findings" not in page.words()


@pytest.mark.parametrize("write", [make, make_pictures])
def test_the_same_data_give_the_same_bytes(tmp_path, monkeypatch, write):
    pages = []
    for place in (tmp_path / "a", tmp_path / "b"):
        folder = write(place)
        monkeypatch.chdir(place)
        pages.append(write_report(folder.relative_to(place)).read_bytes())
    assert pages[0] == pages[1]


@given(
    st.dictionaries(st.floats(0.1, 12).map(lambda x: round(x, 2)), st.tuples(st.integers(0, 9)), min_size=1)
)
def test_a_spread_draws_every_scan_once(values: dict[float, tuple[int]]) -> None:
    drawn = charts.spread(values, unit="mm")
    titles = re.findall(r"<title>([\d.e+-]+) to ([\d.e+-]+) mm: ([\d,]+) scans</title>", drawn)
    assert sum(int(count.replace(",", "")) for *_, count in titles) == sum(map(sum, values.values()))
    assert len(titles) <= 30


@given(st.floats(-2000, 2000), st.floats(0.01, 5000), st.sampled_from([0.0, 1.0, 400 / 255]))
def test_a_density_stays_within_its_frame(low: float, width: float, step: float) -> None:
    values = np.linspace(low, low + width, 50)
    drawn = charts.densities(
        [("gray", values.tolist(), [3] * 50), ("red", [low], [1])],
        (low, low + width / 3),
        (low, low + width),
        unit="HU",
        step=step,
        origin=-160.0,
    )
    for x, y in re.findall(r"(?<=[ML])([\d.-]+) ([\d.-]+)", drawn):
        assert charts.LEFT - 0.1 <= float(x) <= charts.WIDTH - charts.RIGHT + 0.1
        assert 0 <= float(y) <= charts.HEIGHT


@pytest.mark.parametrize(("step", "origin"), [(1.0, 0.0), (400 / 255, -160.0)])
def test_values_that_are_equally_frequent_make_a_flat_curve(step: float, origin: float) -> None:
    values = [origin + step * number for number in range(1001)]
    ends = (values[0], values[-1])
    drawn = charts.densities([("gray", values, [7] * 1001)], None, ends, unit="HU", step=step, origin=origin)
    heights = re.findall(r"(?<=L)[\d.]+ ([\d.]+)", drawn)[1:-2]
    assert len(heights) > 80 and len(set(heights)) == 1, "a bin of more values than the next would be a tooth"


@pytest.mark.long
def test_a_browser_shows_every_picture_without_errors_overlaps_or_sideways_scrolling(tmp_path: Path) -> None:
    recipe = {**RECIPE, "window_hu": [-160, 240]}
    folder = make(tmp_path, spacing_mm=(1.5, 4.0, 4.0), window=WINDOW, recipe=recipe)
    labels = read_manifest(folder).labels
    change(folder, labels={value: f"{name} with quite a long name" for value, name in labels.items()})
    source, _ = report(folder)
    assert_a_browser_shows(source, 30 + 10, tmp_path)


@pytest.mark.parametrize("highest", [0, 1, 2, 3, 7, 10, 99, 101, 12345, 3e9])
def test_axes_have_few_round_ticks_that_reach_far(highest: float) -> None:
    ticks = charts.nice_ticks(highest)
    assert ticks[0] == 0 and len(ticks) <= 6 and ticks[-1] <= highest
    assert highest == 0 or ticks[-1] >= highest * 0.5


@given(st.dictionaries(st.integers(0, 5000), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_a_histogram_draws_every_image_once(values: dict[int, tuple[int, int]]) -> None:
    drawn = charts.histogram(values, unit="boxes", marker=(7, "limit"))
    titles = [int(count.replace(",", "")) for count in re.findall(r"boxes: ([\d,]+)</title>", drawn)]
    assert sum(titles) == sum(map(sum, values.values()))


@pytest.mark.parametrize("points", [0, 1, 2, 19, 100_000])
@pytest.mark.parametrize("kind", ["falling", "level", "zeros", "negative", "gaps", "nothing"])
def test_a_line_chart_draws_any_number_of_points_in_few_bytes(points: int, kind: str) -> None:
    steps = np.arange(1.0, points + 1)
    values = {
        "falling": 100 * 0.5 ** (10 * steps / max(points, 1)),
        "level": np.full(points, 0.25),
        "zeros": np.zeros(points),
        "negative": np.sin(steps),
        "gaps": np.where(steps % 10 > 7, np.nan, 1 / steps),
        "nothing": np.full(points, np.nan),
    }[kind]
    drawn = line_chart([LineSeries(name="loss", steps=steps, values=values, smooth=True)], "Loss")
    assert len(drawn) < 40_000 and "nan" not in drawn and "inf" not in drawn
    if points == 0 or kind == "nothing":
        assert "No values are logged." in drawn
        return
    logarithmic = {("falling", 2), ("falling", 19), ("falling", 100_000), ("gaps", 100_000)}
    assert ("logarithmic" in drawn) == ((kind, points) in logarithmic)
    heights = re.findall(r"[ML][\d.]+ ([-\d.]+)", drawn) + re.findall(r'cy="([-\d.]+)"', drawn)
    places = [float(height) for height in heights]
    assert places and all(13 < place < 171 for place in places), "inside the frame"


def test_a_gap_parts_a_line_and_a_lonely_point_is_a_dot() -> None:
    values = np.array([1, 2, np.nan, 3, np.nan, 4, 5.0])
    drawn = line_chart([LineSeries(name="a", steps=np.arange(7.0), values=values)], "A")
    (path,) = re.findall(r'<path class="line s0" d="([^"]*)"', drawn)
    assert path.count("M") == 3 and path.count("L") == 2 and drawn.count("<circle") == 5
    assert "a from 1 at step 0 to 5 at step 6, lowest 1 at step 0, highest 5 at step 6" in drawn


@given(numbers.arrays(np.float64, st.integers(700, 4000), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_thinning_keeps_the_highest_the_lowest_and_the_order(values: np.ndarray) -> None:
    steps, kept = thin_points(np.arange(len(values), dtype=np.float64), values)
    assert len(steps) <= 640 and (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(values[steps.astype(int)], kept)
    if np.isfinite(values).any():
        assert np.nanmax(kept) == np.nanmax(values) and np.nanmin(kept) == np.nanmin(values)


@given(numbers.arrays(np.float64, st.integers(1, 200), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_the_running_mean_is_that_of_known_neighbors(values: np.ndarray) -> None:
    reach = max(1, len(values) // 60)
    for at, mean in enumerate(running_mean(values).tolist()):
        near = min(reach, at, len(values) - 1 - at)
        known = [value for value in values[at - near : at + near + 1].tolist() if not math.isnan(value)]
        if math.isnan(values[at]):
            assert math.isnan(mean)
        else:
            assert mean == pytest.approx(sum(known) / len(known), abs=1e-9)
