"""The report shows what may be wrong first, then records that can be searched, each with its picture or slices."""

import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halofeed.inspection.html.contents import spread_numbers
from halofeed.inspection.html.report import write_report
from halofeed.inspection.record_cards import SIZE_ENDS, size_words
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.slice_sheet import chosen_depths
from halofeed.loader.batch import join_id
from tests.inspection.test_report import make, report
from tests.inspection.test_scan_report import make as make_scans
from tests.support.conversions import run_convert
from tests.support.dataset_writer import LABELS, draw_examples, write_dataset
from tests.support.pages import (
    Page,
    assert_self_contained,
    find_chromium,
    images,
    part_of,
    picture,
    run_probe,
)
from tests.support.set_writer import refusal
from tests.support.volume_report_writer import draw_scan, write_segmentation


class PlantedKind(SuspectKind):
    """Kinds of the tests."""

    COPY = ("planted copies", "Two records are equal.", "Remove one of them.")
    DARK = ("planted darkness", "A picture is <b>dark</b>.", "Look at it.")


def plant(monkeypatch: pytest.MonkeyPatch, search: Callable[[ReviewedSet], Iterator[Suspect]]) -> None:
    monkeypatch.setattr("halofeed.inspection.review.review.SEARCHES", (search,))


def pairs_and_one(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Records 0 and 17, and 8 times record 3 with a falling score."""
    places = (reviewed.place(0), reviewed.place(len(reviewed) - 1))
    yield Suspect(kind=PlantedKind.COPY, places=places, score=1, words="0 of 64 bits differ")
    for score in range(8):
        words = f"darkness {score}"
        place = (reviewed.place(3),)
        yield Suspect(kind=PlantedKind.DARK, places=place, score=score, words=words, box=(0.1, 0.2, 0.5, 0.9))


def cards(source: str) -> list[dict[str, str]]:
    """The values of each record of the contents that the page's script compares."""
    found = re.findall(r'<li class="record"([^>]*)>', part_of(source, "contents"))
    return [dict(re.findall(r'data-(\w+)="([^"]*)"', one)) for one in found]


def test_without_suspects_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda reviewed: iter(()))
    source, page = report(make(tmp_path))
    assert page.words("suspects").startswith(
        "What may be wrongNo suspects in 18 records.Not searched: copies, "
    )
    assert 'name="finding"' not in source


def test_suspects_come_first_with_their_records_side_by_side(tmp_path, monkeypatch):
    plant(monkeypatch, pairs_and_one)
    source, page = report(make(tmp_path))
    assert_self_contained(source, page)
    assert page.all("section")[0]["id"] == "suspects"
    words = page.words("suspects")
    assert "9 suspects of 2 kinds in 18 records" in words and "A picture is <b>dark</b>." in words
    assert words.index("planted copies") < words.index("planted darkness 8")
    shown = re.findall(r"(?<!planted )darkness (\d)", words)
    assert shown == ["7", "6", "5", "4", "3", "2"], "the worst six"
    assert "2 more: halofeed review" in words and "--json found.json lists all" in words
    assert len(images(page, "suspects")) == 2 + 6
    frame = re.findall(r'class="suspect-box" style="([^"]*)"', source)
    assert frame == ["left:20.00%;top:10.00%;width:70.00%;height:40.00%"] * 6


def test_the_findings_of_a_record_are_among_its_contents(tmp_path, monkeypatch):
    plant(monkeypatch, pairs_and_one)
    source, _ = report(make(tmp_path))
    found = [one["finding"] for one in cards(source)]
    assert [at for at, kinds in enumerate(found) if kinds == "0"] == [0, 17]
    assert [at for at, kinds in enumerate(found) if kinds == "1"] == [3] and found.count("") == 15
    assert '<option value="1">planted darkness</option>' in source


def test_contents_hold_every_record_of_a_small_set_in_order_with_what_is_searched(tmp_path: Path) -> None:
    examples = draw_examples("detection", {"train": 14, "test": 4})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="detection")
    source, page = report(folder)
    assert "18 records, all of the data set." in page.words("contents")
    reviewed = ReviewedSet(folder)
    places = [reviewed.place(number) for number in range(18)]
    by_name = {example.key: example for example in examples}
    listed = re.findall(r"<code>(\w+:\d+)</code>", part_of(source, "contents"))
    assert listed == [f"{place.split}:{place.number}" for place in places]
    for place, card in zip(places, cards(source), strict=True):
        assert set(card["class"].split()) == {str(label) for label in by_name[place.source].classes}
        assert card["split"] == {"train": "0", "test": "1"}[place.split]
    for label, name in LABELS["detection"].items():
        assert f'<option value="{label}">{name}</option>' in source


def test_a_large_set_shows_a_spread_of_records_within_the_budget_and_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("halofeed.inspection.html.contents._LEAST_BYTES", 20_000)
    monkeypatch.setattr("halofeed.inspection.html.contents._CONTENT_BYTES", {False: 60_000, True: 0})
    plant(monkeypatch, pairs_and_one)
    examples = draw_examples("classification", {"train": 60, "test": 60}, shape=(24, 24, 3))
    folder = write_dataset(tmp_path / "d" / "1", examples, task="classification")
    source, page = report(folder, samples=1)
    shown = cards(source)
    assert 10 < len(shown) < 40
    assert len(part_of(source, "contents")) < 62_000
    words = page.words("contents")
    assert f"{len(shown)} of 120 records, spread over the data set" in words
    assert f"halofeed report {folder} --serve" in words
    splits = [one["split"] for one in shown]
    assert abs(splits.count("0") - splits.count("1")) <= 5
    assert [one["finding"] for one in shown if one["finding"]] == ["0", "1", "0"], "suspects are among them"


@pytest.mark.parametrize("suspects", [20, 60])
def test_suspects_take_a_third_of_the_contents_and_other_records_the_rest(tmp_path, monkeypatch, suspects):
    monkeypatch.setattr("halofeed.inspection.html.contents._READ_VALUES", 45 * 8 * 12 * 3)

    def first_are_dark(reviewed: ReviewedSet) -> Iterator[Suspect]:
        for number in range(suspects):
            yield Suspect(kind=PlantedKind.DARK, places=(reviewed.place(number),), score=1, words="dark")

    plant(monkeypatch, first_are_dark)
    examples = draw_examples("detection", {"train": 120})
    source, _ = report(write_dataset(tmp_path / "d" / "1", examples, task="detection"), samples=1)
    shown = cards(source)
    assert len(shown) == 45
    assert sum(one["finding"] == "" for one in shown) >= 15, "records beside the suspects"
    listed = re.findall(r"<code>train:(\d+)</code>", part_of(source, "contents"))
    assert max(map(int, listed)) > 110, "spread over the data set"


def test_large_images_are_read_for_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halofeed.inspection.html.contents._READ_VALUES", 13 * 8 * 12 * 3)
    source, _ = report(make(tmp_path))
    assert len(cards(source)) == 13


def test_without_samples_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, pairs_and_one)
    _, page = report(make(tmp_path), samples=0)
    assert not page.all("img") and "darkness 7" in page.words("suspects")
    assert "--serve" in page.words("contents")


def test_likely_label_faults_of_a_run_come_first_with_what_it_saw(tmp_path: Path) -> None:
    examples = draw_examples("classification", {"train": 90})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="classification")
    reviewed = ReviewedSet(folder)
    random = np.random.default_rng(0)
    labels = [int(reviewed.features(number)["image/class/label"][0]) for number in range(90)]
    probabilities = random.dirichlet(np.ones(3), 90) * 0.2
    seen = np.array(labels)
    seen[17] = (labels[17] + 1) % 3
    probabilities[np.arange(90), seen] += 0.8
    halves = reviewed.ids.astype(np.uint64)
    ids = np.stack([halves >> np.uint64(32), halves & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    order = slice(None, None, -1) if join_id(ids).tolist() != reviewed.ids.tolist() else slice(None)
    batch = ({"probabilities": probabilities}, {"id": ids[..., order], "label": np.array(labels)})
    _, page = report(folder, predicted=[batch])
    words = page.words("suspects")
    assert words.index("wrong class") < words.index(f"train:{reviewed.place(17).number}")
    assert f"seen as {LABELS['classification'][int(seen[17])]}" in words


def test_equal_data_sets_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, pairs_and_one)
    monkeypatch.chdir(tmp_path)
    pages = [write_report(folder, tmp_path / "r.html").read_bytes() for folder in [make(tmp_path)] * 2]
    assert pages[0] == pages[1]


def test_the_sheet_of_a_volume_holds_its_slices_and_their_classes(tmp_path: Path) -> None:
    folder = write_segmentation(tmp_path / "s" / "1", [draw_scan("a.nii.gz"), draw_scan("b.nii.gz")])
    source, page = report(folder)
    (sheet, mask, *_) = (picture(given["src"]) for given in images(page, "contents"))
    style = re.findall(r'class="picture sheet" style="([^"]*)"', source)[0]
    columns, rows = (int(re.findall(rf"--{name}:(\d+)", style)[0]) for name in ("columns", "rows"))
    depths = re.findall(r'data-depths="([\d ]*)"', source)[0].split()
    assert list(map(int, depths)) == list(range(2, 24)), "all but the padding"
    assert sheet.shape[:2] == mask.shape[:2] and columns * rows >= len(depths) > columns * (rows - 1)
    height, width = sheet.shape[0] // rows, sheet.shape[1] // columns
    scan = draw_scan("a.nii.gz")
    for at, depth in enumerate(range(2, 24)):
        row, column = divmod(at, columns)
        inside = np.s_[row * height : (row + 1) * height, column * width : (column + 1) * width]
        shown = mask[inside][..., 3] > 0
        # Radiological view: both axes are reversed. Nearest neighbor of the stored slice, without padding.
        label = scan.label[depth, 2:, 2:][::-1, ::-1] > 0
        down, across = (np.arange(n) * m // n for n, m in zip((height, width), label.shape, strict=True))
        differ = shown != label[down[:, None], across]
        assert differ.mean() < 0.02
    assert 'type="range"' in source and "26 × 32" in page.words("contents")


def test_a_suspect_in_a_volume_shows_its_slice_and_place(tmp_path, monkeypatch):
    def search(reviewed: ReviewedSet) -> Iterator[Suspect]:
        where = {"box": (0.25, 0.5, 0.5, 1.0), "depth": 9}
        yield Suspect(kind=PlantedKind.DARK, places=(reviewed.place(1),), score=1, words="dark", **where)

    plant(monkeypatch, search)
    source, page = report(make_scans(tmp_path))
    assert "depth 9" in page.words("suspects")
    (style,) = re.findall(r'class="suspect-box" style="([^"]*)"', source)
    found = {name: float(value) for name, value in re.findall(r"(\w+):([\d.]+)%", style)}
    # Stored 28 x 34 of which 2 rows and columns at the beginning are padding; both axes are reversed.
    expected = {"top": 14 / 26, "left": 0.0, "height": 7 / 26, "width": 17 / 32}
    assert found == {name: pytest.approx(100 * share, abs=0.01) for name, share in expected.items()}


@given(st.integers(0, 40), st.integers(1, 60), st.integers(1, 70), st.data())
def test_chosen_depths_are_distinct_in_order_and_hold_the_wanted_one(first, count, most, data):
    wanted = data.draw(st.integers(first, first + count - 1))
    found = chosen_depths(first, first + count, most, wanted)
    assert wanted in found and len(found) == min(most, count) and list(found) == sorted(set(found))
    assert found[0] >= first and found[-1] < first + count


@given(st.integers(0, 300))
def test_spread_numbers_are_all_numbers_once(count: int) -> None:
    assert sorted(spread_numbers(count)) == list(range(count))
    first = list(spread_numbers(count))[:4]
    assert count < 32 or len({number * 4 // count for number in first}) >= 3


def test_every_range_of_sizes_has_words() -> None:
    words = [size_words(at) for at in range(len(SIZE_ENDS) + 1)]
    assert words[0] == "up to 128 pixels" and words[1] == "129 to 256 pixels"
    assert words[-1] == "above 4096 pixels" and len(set(words)) == len(words)


def test_rejects_are_shown_where_their_sources_can_be_read(tmp_path: Path) -> None:
    sources = tmp_path / "photos"
    sources.mkdir()
    for name in ("seen.jpg", "../secret.jpg"):
        Image.new("RGB", (40, 30), "red").save(sources / name)
    (sources / "broken.jpg").write_bytes(b"no picture")
    names = ("seen.jpg", "broken.jpg", "gone.jpg", "../secret.jpg")
    folder = make(tmp_path, rejected=[refusal(name, "decode", "unlike", "") for name in names])
    source, page = report(folder, sources=str(sources))
    assert len(images(page, "conversion")) == 1
    assert "seen.jpg</code><img" in source
    assert not images(report(folder)[1], "conversion"), "the folder of someone else's sources is not known"


PROBE = """
<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument;
  const form = page.querySelector("form.filter"), found = {hidden: form.hidden};
  const shown = () => [...page.querySelectorAll(".record")].filter((one) => one.offsetParent).length;
  const set = (name, value) => {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input", {bubbles: true}));
  };
  found.all = shown();
  if (form.elements.class) { set("class", "CLASS"); found.class = shown(); set("class", ""); }
  set("text", "TEXT"); found.text = shown(); found.words = form.querySelector("output").value;
  set("text", "nothing like it"); found.none = shown();
  set("text", "");
  const slider = page.querySelector("input.slices");
  if (slider) {
    const image = slider.parentElement.previousElementSibling.querySelector("img");
    found.slices = [0, Number(slider.max)].map((value) => {
      slider.value = value;
      slider.dispatchEvent(new Event("input", {bubbles: true}));
      const sheet = image.parentElement.getBoundingClientRect(), all = image.getBoundingClientRect();
      return [sheet.left - all.left, sheet.top - all.top, all.width / sheet.width, all.height / sheet.height,
        slider.nextElementSibling.textContent].map((one) => one.toFixed ? Math.round(one) : one);
    });
    found.columns = Number(slider.dataset.columns);
    found.sides = [image.parentElement.clientWidth, image.parentElement.clientHeight];
  }
  document.body.innerHTML = "";
  document.body.dataset.found = JSON.stringify([found]);
});
</script>
"""


def probe(source: str, folder: Path, **values: str) -> dict[str, Any]:
    script = PROBE
    for name, value in values.items():
        script = script.replace(name.upper(), value)
    frame = f'<iframe width="900" height="3000" srcdoc="{html.escape(source)}"></iframe>'
    (folder / "probe.html").write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}{script}</body>')
    (found,), log = run_probe((folder / "probe.html").as_uri(), folder)
    assert "CONSOLE" not in log, log
    return found


@pytest.mark.long
def test_a_browser_filters_records_and_shows_the_slice_that_is_chosen(tmp_path: Path) -> None:
    find_chromium()
    source, _ = report(make(tmp_path))
    found = probe(source, tmp_path, **{"class": "5", "text": "PICTURE 1.jpg"})
    expected = sum("5" in one["class"].split() for one in cards(source))
    assert (found["hidden"], found["all"], found["class"], found["none"]) == (False, 18, expected, 0)
    assert found["text"] == 2 and found["words"] == "2 of 18 shown"
    (tmp_path / "s").mkdir()
    source, _ = report(make_scans(tmp_path / "s"))
    found = probe(source, tmp_path, **{"class": "1", "text": "scan"})
    first, last = found["slices"]
    width, height = found["sides"]
    row, column = divmod(21, found["columns"])
    assert first[:2] == [0, 0] and first[4] == "depth 2" and last[4] == "depth 23"
    assert last[:2] == [pytest.approx(column * width, abs=3), pytest.approx(row * height, abs=3)]
    assert json.dumps(last[2:4]) == json.dumps([found["columns"], -(-22 // found["columns"])])


@pytest.mark.long
def test_the_reports_of_real_sets_are_small(test_data: Path, tmp_path: Path) -> None:
    options = {"resize": "keep-aspect", "min_dimension": 640, "max_dimension": 640, "pad": True}
    folder = run_convert(
        test_data / "detection/coco_ccby", tmp_path / "coco", layout="coco", **options
    ).folder
    source = write_report(folder, tmp_path / "coco.html").read_text()
    assert len(Page(source).all("img")) >= 53 and len(source) < 5_000_000
    options = {"layout": "pairs", "depth": 32, "height": 176, "width": 176}
    folder = run_convert(test_data / "volumes/spleen", tmp_path / "spleen", **options).folder
    source = write_report(folder, tmp_path / "spleen.html").read_text()
    assert source.count('type="range"') == 1 and len(source) < 15_000_000
