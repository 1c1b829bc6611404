"""Is the report about the data set it is given: complete, self-contained, escaped, and the same every time?"""

import base64
import dataclasses
import functools
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.dataset_facts import DatasetFacts, padding_choices
from halofeed.inspection.html.report import write_report
from halofeed.inspection.samples import (
    Candidate,
    Picture,
    choose_samples,
    find_candidates,
    load_sample,
)
from halofeed.inspection.verify import verify
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.file_layout import index_file
from halofeed.schemas.manifest import Manifest, Shard, Split, read_manifest
from halofeed.schemas.statistics import Statistics
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.conversions import run_convert
from tests.support.dataset_writer import Drawn, draw_examples, write_dataset
from tests.support.pages import (
    Page,
    assert_a_browser_shows,
    assert_only_our_script,
    assert_self_contained,
    browse,
    code_blocks,
    images,
    part_of,
    picture,
    rows,
)
from tests.support.set_writer import refusal

SECTIONS = [
    "suspects",
    "contents",
    "conversion",
    "samples",
    "labels",
    "boxes",
    "sizes",
    "pixels",
    "partitions",
    "recipe",
    "use",
]
DRAWN_BY_DEFAULT = draw_examples("detection", {"train": 14, "test": 4})


def make(folder: Path, task: str = "detection", **more: Any) -> Path:
    shape = {key: more.pop(key) for key in ("shape", "dtype", "varied", "max_boxes") if key in more}
    examples = draw_examples(task, {"train": 14, "test": 4}, **shape)
    return write_dataset(folder / "tiny" / "1.0.0", examples, task=task, **more)


def change(folder: Path, **values: Any) -> Manifest:
    manifest = dataclasses.replace(read_manifest(folder), **values)
    (folder / "manifest.json").write_text(manifest.to_json())
    return manifest


def change_train(folder: Path, statistics: dict[str, Any], **values: Any) -> Manifest:
    """The same, with train as the only split, of which something else was counted."""
    train = read_manifest(folder).splits["train"]
    counted = dataclasses.replace(train.statistics, **statistics)
    return change(folder, splits={"train": Split(shards=train.shards, statistics=counted)}, **values)


def report(folder: Path, **more: Any) -> tuple[str, Page]:
    source = write_report(folder, **more).read_text("utf-8")
    return source, Page(source)


def test_the_page_is_well_formed_loads_nothing_and_has_every_section_in_order(tmp_path: Path) -> None:
    source, page = report(make(tmp_path))
    assert [given["id"] for given in page.all("section")] == SECTIONS
    assert_self_contained(source, page)
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    assert len([given for given in page.all("meta") if given.get("name") == "viewport"]) == 1
    feet = [
        float(found[1])
        for given in page.all("span")
        if given.get("class") == "tag" and (found := re.search(r"bottom:([\d.-]+)%", given["style"] or ""))
    ]
    assert feet and all(0 <= foot < 100 for foot in feet), "no tag leaves the picture"


def test_the_default_file_lies_beside_the_version_and_leaves_the_data_set_sound(tmp_path, monkeypatch):
    folder = make(tmp_path)
    written = write_report(folder)
    assert written == tmp_path / "tiny" / "1.0.0-report.html" and written.is_file()
    assert verify(folder).ok
    monkeypatch.chdir(folder)
    assert write_report(".").resolve() == written.resolve()
    assert sorted(path.name for path in written.parent.iterdir()) == ["1.0.0", "1.0.0-report.html"]


def test_the_counts_are_the_manifests(tmp_path: Path) -> None:
    reasons = [("decode", "file is truncated")] * 7 + [("selection", "no label")] * 2
    refused = [refusal(f"{n}.jpg", *reason, f"detail {n}") for n, reason in enumerate(reasons)]
    folder = make(tmp_path, rejected=refused)
    source, page = report(folder)
    manifest = read_manifest(folder)
    words = page.words()
    assert "27 inputs gave 18 records; 7 could not be converted, and 2 were left out on purpose." in words
    assert "rejected7" in words
    widths = re.findall(r'<i class="\w+" style="width:([\d.]+)%', part_of(source, "conversion"))[:4]
    parts = [round(float(width)) for width in widths]
    assert parts == [round(100 * count / 27) for count in (14, 4, 7, 2)]
    splits = {row[0]: row[1:3] for row in rows(source, "conversion")}
    assert splits == {"train": ["14", "2"], "test": ["4", "2"]}
    conversion = page.words("conversion")
    assert "7file is truncated decode0.jpg detail 0" in conversion and "and 3 more" in conversion
    assert "Left out on purpose2no label selection7.jpg detail 7" in conversion
    for label, name in manifest.labels.items():
        both = [manifest.splits[split].statistics.labels for split in ("train", "test")]
        counts = [labels.get(str(label), 0) for labels in both]
        assert f"{name}{sum(counts)}{counts[0]}{counts[1]}" in page.words("labels")
    boxes = {row[0]: row[1:] for row in rows(source, "boxes")}
    for split, content in manifest.splits.items():
        held = {int(value): count for value, count in content.statistics.boxes_per_image.items()}
        total = sum(value * count for value, count in held.items())
        average = f"{total / content.records:.1f}"
        assert boxes[split] == [str(total), average, str(max(held)), str(held.get(0, 0))]
    drawn = [0 if example.boxes is None else len(example.boxes) for example in DRAWN_BY_DEFAULT]
    assert f"{sum(drawn)} boxes, {np.mean(drawn):.1f} per image; " in page.words("boxes")
    cut = Counter[str]()
    for content in manifest.splits.values():
        cut.update(vars(content.statistics.cut))
    assert f"drops {cut['boxes']} boxes of {cut['images']} images" in page.words("boxes")
    assert "12.5 % of the stored pixels are padding" in page.words("sizes")
    assert len(page.all("figure")) == len(images(page, "samples")) == 12
    assert re.search(rf"[\d,]+ pixels, in every {ROW_STEP}th row of \d+ pictures", page.words("pixels"))


def test_text_is_never_taken_for_html(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>\'&\x1b[31m'
    refused = [refusal(evil, "read", evil, evil)]

    def alter(example: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "image/filename": evil.encode() + b"\xff"}

    folder = make(tmp_path, rejected=refused, alter=alter)
    change(
        folder,
        labels={1: evil, 2: "</style>", 5: '" onload="'},
        recipe={"layout": evil, "resize": evil},
        inputs={"images": evil, "source": evil, "count": 3},
        software={evil: evil},
    )
    source, page = report(folder)
    assert_only_our_script(source, page)
    assert not any("onload" in given for _, given in page.elements)
    shown = evil.replace("\x1b", "\\x1b")
    for section in ("conversion", "samples", "labels", "recipe"):
        assert shown in page.words(section), section
    assert shown + "\\udcff" in page.words("samples")


KINDS_OF_SETS = [("classification", {}), ("classification", {"shape": (8, 12, 1), "encoding": "png"})]
KINDS_OF_SETS += [("detection", {"shape": (8, 12, 4), "encoding": "png"})]
KINDS_OF_SETS += [("detection", {"shape": (9, 7, 1), "dtype": "uint16"})]
KINDS_OF_SETS += [("classification", {"dtype": "uint16", "shape": (6, 6, 4)})]
KINDS_OF_SETS += [("classification", {"encoding": "jpeg", "varied": True, "shape": (130, 150, 3)})]
KINDS_OF_SETS += [("detection", {"encoding": "png", "varied": True, "masks": True, "shape": (40, 50, 3)})]
KINDS_OF_SETS += [("detection", {"max_boxes": 0})]
KINDS_OF_SETS += [("detection", {"max_boxes": 300, "shape": (200, 240, 3)})]


@pytest.mark.parametrize(("task", "options"), KINDS_OF_SETS)
def test_every_kind_of_data_set_has_its_report(tmp_path: Path, task: str, options: dict[str, Any]) -> None:
    folder = make(tmp_path, task, **options)
    source, page = report(folder, samples=6)
    found = [given["id"] for given in page.all("section")]
    assert found == [name for name in SECTIONS if name != "boxes" or task == "detection"]
    assert read_manifest(folder).fields[0].shape[-1] * 2 == len(rows(source, "pixels"))
    for image in page.all("img"):
        kind, _, data = str(image["src"]).partition(";base64,")
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        picture.load()
        assert kind == f"data:image/{picture.format}".lower() and max(picture.size) <= 360
    assert not re.search(r"\bnan\b|\binf\b|None", page.words())


def test_an_empty_split_no_records_and_no_rejects_are_no_trouble(tmp_path: Path) -> None:
    folder = make(tmp_path)
    manifest = read_manifest(folder)
    empty = Split(shards=(), statistics=Statistics())
    change(folder, splits={**manifest.splits, "never": empty})
    (folder / "rejected.jsonl").unlink()
    source, page = report(folder)
    assert ["never", "0", "0", "0 B", "–"] in rows(source, "conversion")
    assert "Rejected" not in [words for _, words in page.texts]
    change(folder, splits={"train": empty}, rejected={"decode: broken": 3})
    _, page = report(folder)
    assert "No record is shown." in page.words("samples")
    assert "No pixels were counted." in page.words("pixels")
    assert "3 could not be converted" in page.words("conversion")


def test_thousands_of_classes_stay_readable(tmp_path: Path) -> None:
    folder = make(tmp_path, "classification")
    names = {label: f"class number {label}" for label in range(4000)}
    counts = {str(label): 4000 - label for label in range(3990)}
    change_train(folder, {"labels": counts}, labels=names)
    source, page = report(folder, samples=0)
    words = page.words("labels")
    assert len(source) < 150_000 and "3,880 classes between them not shown" in words
    assert "class number 04,000" in words and "class number 398911" in words
    assert "class number 2000" not in words
    assert "No examples: class number 3990, class number 3991" in words


def test_thumbnails_shrink_where_many_are_asked_for(tmp_path: Path) -> None:
    examples = draw_examples("classification", {"train": 80}, shape=(380, 420, 3))
    folder = write_dataset(tmp_path / "d" / "1.0.0", examples, task="classification")
    for samples, side in ((3, 360), (80, 197)):
        source, page = report(folder, samples=samples)
        assert max(picture(images(page, "samples")[0]["src"]).shape) == side
        assert len(source) < 5_000_000, "random noise is the worst case"


def test_wrong_use_is_refused_in_words(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for output in (folder / "report.html", folder / "deeper" / "report.html"):
        with pytest.raises(UsageError, match="is in the version's folder"):
            write_report(folder, output=output)
    with pytest.raises(UsageError, match="is a folder; name a file"):
        write_report(folder, output=tmp_path)
    with pytest.raises(UsageError, match="expected 0 or more"):
        write_report(folder, samples=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(folder, output=tmp_path / "file" / "report.html")
    assert write_report(folder, output=tmp_path / "new" / "page.html").is_file()


@pytest.mark.parametrize("damage", ["shard", "index", "cut", "rejects"])
def test_a_damaged_data_set_is_refused_and_no_page_is_left(tmp_path: Path, damage: str) -> None:
    folder = make(tmp_path)
    shard = folder / "tiny-train.tfrecord-00000-of-00002"
    data = bytearray(shard.read_bytes())
    if damage == "shard":
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[: len(data) // 2])
    elif damage == "index":
        (folder / index_file(shard.name)).unlink()
    else:
        (folder / "rejected.jsonl").write_text('{"stage": 1}\n')
    with pytest.raises(CorruptFileError, match=r"tiny-train|_index|rejected\.jsonl: line 1"):
        write_report(folder, samples=18)
    assert [path.name for path in folder.parent.iterdir()] == ["1.0.0"]


PADDED = {"resize": "keep-aspect", "min_dimension": 160, "max_dimension": 160, "pad": True}
STRETCHED = {"resize": "fixed-shape", "height": 120, "width": 200}


@pytest.mark.parametrize("sizing", [PADDED, STRETCHED], ids=["padded", "stretched"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_lie_on_their_objects_before_and_after_for_every_orientation(tmp_path, orientation, sizing):
    photos = tmp_path / "photos"
    photos.mkdir()
    pixels = np.full((90, 140, 3), 40, np.uint8)
    pixels[16:48, 24:104] = (230, 30, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(photos / "one.jpg", quality=97, subsampling=0, exif=exif)
    write_annotations(photos, "coco", [boxed("one.jpg", (24, 16, 104, 48))])
    options = {"layout": "coco", "encoding": "png", "annotation_grid": "stored", **sizing}
    folder = Path(run_convert(photos, tmp_path / "out", **options).folder)
    manifest = read_manifest(folder)
    (candidate,) = find_candidates(folder, manifest)
    assert candidate.orientation == orientation and candidate.labels == (1,)
    sample = load_sample(folder, manifest, (candidate, None), LocalFiles(photos), side=160)
    assert sample.before is not None and sample.before.size == (90, 140)
    np.testing.assert_allclose(sample.before.boxes[0] * [90, 140, 90, 140], [16, 24, 48, 104], atol=1e-3)
    assert sample.stored.size == manifest.fields[0].shape[:2]
    assert min(sample.stored.content) == pytest.approx(103 / 160 if sizing is PADDED else 1, abs=0.01)
    for one in (sample.before, sample.stored):
        assert_red_is_in_the_box(one)
    assert ("orientation applied" in sample.notes) == (orientation != 1)


def assert_red_is_in_the_box(shown_picture: Picture) -> None:
    shown = picture(shown_picture.uri).astype(int)
    red = shown[..., 0] - shown[..., 1] > 90
    height, width = red.shape
    found = [np.flatnonzero(red.any(axis=axis))[[0, -1]] + [0, 1] for axis in (1, 0)]
    measured = np.array(found).T.ravel() / [height, width, height, width]
    np.testing.assert_allclose(shown_picture.boxes[0], measured, atol=1.6 / min(height, width))


SHARD = Shard(file="f", index="i", records=0, bytes=0, crc32c=0, index_bytes=0, index_crc32c=0)
PLAIN = Candidate(
    split="train", number=0, shard=SHARD, row=0, labels=(), padding=0.0, elongation=0.0, orientation=1
)
CANDIDATE = st.builds(
    functools.partial(dataclasses.replace, PLAIN),
    split=st.sampled_from(["a", "b", "c"]),
    labels=st.lists(st.integers(0, 5), max_size=6).map(tuple),
    padding=st.sampled_from([0.0, 0.3, 0.6]),
    elongation=st.sampled_from([0.0, 1.5]),
    orientation=st.sampled_from([1, 1, 1, 6, 8]),
)


@given(st.lists(CANDIDATE, max_size=30), st.integers(0, 14))
def test_the_choice_is_distinct_reproducible_and_spread_over_classes_and_splits(found, count):
    labels = [(0,) if number < 500 else (number % 7,) for number in range(520)]
    many = [dataclasses.replace(PLAIN, number=number, labels=some) for number, some in enumerate(labels)]
    assert {item.labels[0] for item, _ in choose_samples(many, 7, detection=False)} == set(range(7))
    found = [dataclasses.replace(item, number=number) for number, item in enumerate(found)]
    chosen = choose_samples(found, count, detection=True)
    assert chosen == choose_samples(list(found), count, detection=True)
    numbers = [item.number for item, _ in chosen]
    assert len(numbers) == len(set(numbers)) == min(count, len(found))
    awkward = [reason for _, reason in chosen if reason]
    are_ordinary = [reason is None for _, reason in chosen]
    assert len(awkward) <= count // 2 and are_ordinary == sorted(are_ordinary, reverse=True)
    if len(awkward) and count >= 2:
        assert max(len(item.labels) for item in found) in [len(item.labels) for item, _ in chosen]
    ordinary = Counter(item.split for item, reason in chosen if reason is None)
    for split, shown in ordinary.items():
        others = [name for name in ordinary if ordinary[name] < shown - 1]
        for other in others:
            left = [i for i in found if i.split == other and i.number not in numbers]
            assert not left, (split, shown, other, ordinary[other])


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_the_code_shown_works_as_it_stands(tmp_path: Path, task: str) -> None:
    folder = make(tmp_path, task, shape=(32, 24, 3))
    load, _, mesh = code_blocks(report(folder)[0])
    names: dict[str, Any] = {}
    exec(load.rpartition("\n")[0], names)
    assert f"[{len(names['batch']['image'])}, 32, 24, 3]" in load
    compile(mesh, "mesh", "exec")


def test_padding_is_counted_now_and_estimated_for_other_sizes(tmp_path: Path) -> None:
    folder = make(tmp_path)
    sizes = {"480x640": 3, "640x480": 1}
    # Pixels may be sampled: they say nothing of padding.
    sampled = dataclasses.replace(read_manifest(folder).splits["train"].statistics.pixels, count=1)
    recipe = {"resize": "keep-aspect", "min_dimension": 300, "max_dimension": 400, "pad": True}
    manifest = change_train(folder, {"source_sizes": sizes, "pixels": sampled}, recipe=recipe)
    found = padding_choices(DatasetFacts(path="x", manifest=manifest))
    choices = {name: (size, share) for name, size, share in found}
    padded = "aspect kept within 400, padded to a square (--pad)"
    for name, size, share in (("as it is now", (8, 12), 1 / 8), (padded, (400, 400), 0.25)):
        assert choices[name][0] == size and choices[name][1] == pytest.approx(share)
    assert not [name for name in choices if "the loader" in name], "that would be the square"


@pytest.mark.long
@pytest.mark.parametrize(("task", "shape"), [("detection", (60, 90, 3)), ("classification", (64, 48, 4))])
def test_a_browser_shows_every_picture_without_errors_overlaps_or_sideways_scrolling(tmp_path, task, shape):
    refused = [refusal("x" * 300, "decode", "broken " * 9, "y" * 200)]
    folder = make(tmp_path, task, shape=shape, encoding="png", max_boxes=30, rejected=refused)
    manifest = read_manifest(folder)
    long = {label: f"{name} with quite a long name" for label, name in manifest.labels.items()}
    change(folder, labels=long)
    source, _ = report(folder)
    assert_a_browser_shows(source, 12 + 18, tmp_path)
    damaged = re.sub(r"(src=\"data:image/\w+;base64,.{40})", r"\1!!", source, count=1)
    bad = '<p style="width:3000px">wide</p><script>console.error("loud")</script></body>'
    found, log = browse(damaged.replace("</body>", bad), tmp_path)
    assert [frame["broken"] for frame in found] == [1, 1, 1], "the check would see a damaged picture"
    assert all(frame["scroll"] > frame["width"] for frame in found) and "CONSOLE" in log
