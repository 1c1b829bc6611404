"""The choice of classes of objects and pictures: --classes, --map-classes and --drop-classes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError, UsageError
from halofeed.loader import Loader
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.prep.annotations.choose_classes import ChosenCounts, choose_classes
from halofeed.prep.annotations.class_names import ClassChoice
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.system.errors import Problem
from tests.support.annotation_writer import boxed, coco_document, draw, write_annotations
from tests.support.conversions import all_bytes, read_all, run_convert

FAR = "--runner=tests.support.far_runner.FarRunner"
CLASSES = ("car", "bus", "tram", "person", "background")
OBJECTS = {
    "a.png": ["car", "tram"],
    "b.png": ["bus", "person", "car"],
    "c.png": ["tram"],
    "d.png": ["person"],
}
JOINED: dict[str, Any] = {"map_classes": ("car=vehicle", "bus=vehicle"), "drop_classes": ("tram",)}


def rows() -> list[Any]:
    """A box of its own place for each object."""
    return [
        boxed(name, (2 * number, 1, 2 * number + 8, 9), label, width=24, height=16)
        for name, labels in OBJECTS.items()
        for number, label in enumerate(labels)
    ]


def write(root: Path, layout: str) -> dict[str, Any]:
    """The pictures with their objects; the options of their conversion."""
    draw(root, *OBJECTS)
    if layout == "coco":
        write_coco(root)
        return {"layout": "coco"}
    if layout == "yolo":
        names = [*CLASSES[:4]]
        (root / "data.yaml").write_text(json.dumps({"names": names, "train": "."}))
        for name, labels in OBJECTS.items():
            lines = [
                f"{names.index(label)} {(2 * number + 4) / 24} {5 / 16} {8 / 24} {8 / 16}"
                for number, label in enumerate(labels)
            ]
            (root / name).with_suffix(".txt").write_text("\n".join(lines) + "\n")
        return {"layout": "yolo"}
    if layout == "voc":
        from tests.support.annotation_writer import voc_object, voc_text

        for name in OBJECTS:
            objects = "".join(voc_object(row) for row in rows() if row["filename"] == name)
            (root / name).with_suffix(".xml").write_text(voc_text(name, objects, 24, 16))
        return {"layout": "voc", "box_origin": 0}
    write_annotations(root, layout, rows())
    return {"layout": layout}


def write_coco(root: Path, crowd: str = "") -> None:
    """The same as COCO; the objects of the class `crowd` are crowds."""
    document = coco_document(rows())
    names = [*CLASSES[:4]]
    document["categories"] = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    for one, row in zip(document["annotations"], rows(), strict=True):
        one["category_id"] = names.index(row["class"]) + 1
        one["iscrowd"] = int(row["class"] == crowd)
        if one["iscrowd"]:
            one["segmentation"] = {"size": [16, 24], "counts": [0, 384]}
    (root / "instances.json").write_text(json.dumps(document))


def objects_of(done: Any) -> dict[str, list[tuple[str, int]]]:
    """The classes of the objects of each record, with the column where each begins."""
    found = {}
    for name, features in read_all(Path(done.folder), done.manifest.splits).items():
        ids, sides = features.get("image/object/class/label", []), features.get("image/object/bbox/xmin", [])
        found[name] = [
            (done.manifest.labels[int(one)], round(24 * float(x))) for one, x in zip(ids, sides, strict=True)
        ]
    return found


def expected(targets: dict[str, str | None]) -> dict[str, list[tuple[str, int]]]:
    """The same by hand, of the drawn objects."""
    found = {}
    for name, labels in OBJECTS.items():
        pairs = [(targets.get(label, label), 2 * number) for number, label in enumerate(labels)]
        found[name] = [(one, x) for one, x in pairs if one is not None]
    return found


@pytest.mark.parametrize("layout", ["coco", "csv", "jsonl", "yolo", "voc"])
def test_objects_are_joined_and_dropped_in_every_layout(tmp_path, layout, capsys):
    options = write(tmp_path / "src", layout)
    done = run_convert(tmp_path / "src", tmp_path / "out", task="detection", **options, **JOINED)
    found = objects_of(done)
    assert found == expected({"car": "vehicle", "bus": "vehicle", "tram": None})
    assert found["c.png"] == []  # a picture without objects, which is said
    assert set(done.manifest.labels.values()) - {"background"} == {"vehicle", "person"}
    assert (
        "left out by class: tram 2; 1 picture has no other class and is kept (--emptied-pictures left-out"
        in capsys.readouterr().err
    )


def test_pictures_whose_objects_are_all_dropped_have_no_record_on_request(tmp_path, capsys):
    options = write(tmp_path / "src", "coco")
    given = {**options, **JOINED, "task": "detection", "emptied_pictures": "left-out"}
    done = run_convert(tmp_path / "src", tmp_path / "out", **given)
    by_hand = expected({"car": "vehicle", "bus": "vehicle", "tram": None})
    assert objects_of(done) == {name: one for name, one in by_hand.items() if name != "c.png"}
    assert (
        "left out by class: tram 2; 1 picture has no other class and is left out" in capsys.readouterr().err
    )
    (rejected,) = map(json.loads, (Path(done.folder) / "rejected.jsonl").read_text().splitlines())
    assert rejected["source"] == "c.png" and "none of the chosen classes" in rejected["reason"]


def test_pictures_whose_objects_are_all_dropped_ignore_the_places_of_these_objects_on_request(
    tmp_path, capsys
):
    options = write(tmp_path / "src", "coco")
    given = {**options, **JOINED, "task": "detection", "emptied_pictures": "ignored"}
    done = run_convert(tmp_path / "src", tmp_path / "out", **given)
    by_hand = expected({"car": "vehicle", "bus": "vehicle", "tram": None})
    assert objects_of(done) == by_hand and by_hand["c.png"] == []
    assert "1 picture has no other class and ignores the places of these objects" in capsys.readouterr().err
    loader = Loader(done.folder, batch_size=4, include=["source"])
    batch = loader.batch(0)
    for row, source in enumerate(batch["source"]):
        # a.png has a tram too, and another object: it is no emptied picture.
        region = [1, 0, 9, 8] if str(source).endswith("c.png") else [0] * 4
        shown = batch["ignored_boxes"][row] * [16, 24, 16, 24]
        assert shown.round(4).tolist() == [region]


def test_the_chosen_classes_have_the_order_of_the_option(tmp_path):
    options = write(tmp_path / "src", "coco")
    done = run_convert(
        tmp_path / "src", tmp_path / "out", task="detection", classes=("tram", "car"), **options
    )
    assert done.manifest.labels == {1: "tram", 2: "car"}
    assert objects_of(done) == expected({"bus": None, "person": None})


def test_crowds_follow_their_class(tmp_path):
    draw(tmp_path / "src", *OBJECTS)
    write_coco(tmp_path / "src", crowd="bus")
    kept = run_convert(tmp_path / "src", tmp_path / "a", layout="coco", map_classes=("bus=car",))
    dropped = run_convert(tmp_path / "src", tmp_path / "b", layout="coco", drop_classes=("bus",))
    crowds = {
        one.folder: sum(
            int(sum(features.get("image/object/is_crowd", [])))
            for features in read_all(Path(one.folder), one.manifest.splits).values()
        )
        for one in (kept, dropped)
    }
    assert crowds == {kept.folder: 1, dropped.folder: 0}
    assert "bus" not in kept.manifest.labels.values()


def test_classes_of_folders_are_joined_and_dropped_before_shares_divide_them(tmp_path, capsys):
    for label in ("cat", "dog", "wolf", "background"):
        draw(tmp_path / "src" / label, *(f"{label}{number}.png" for number in range(20)))
    done = run_convert(
        tmp_path / "src",
        tmp_path / "out",
        layout="folders",
        map_classes=("wolf=dog",),
        drop_classes=("cat",),
        split_shares=("train=0.5", "test=0.5"),
    )
    # "background" is a class of pictures like any other.
    assert done.manifest.labels == {0: "background", 1: "dog"}
    assert {name: split.records for name, split in done.manifest.splits.items()} == {"test": 30, "train": 30}
    labels = Counter(
        int(label)
        for split in ("train", "test")
        for batch in Loader(done.folder, split=split, batch_size=30, num_epochs=1).batches()
        for label in batch["label"]
    )
    assert labels == {0: 20, 1: 40}
    assert (
        "left out by class: cat 20; 20 pictures have no other class and are left out"
        in capsys.readouterr().err
    )


def test_several_classes_of_a_picture_become_one_only_once(tmp_path):
    lines = ["filename,class", *(f"{name},{label}" for name, of in OBJECTS.items() for label in of)]
    draw(tmp_path / "src", *OBJECTS)
    (tmp_path / "src/t.csv").write_text("\n".join(lines) + "\n")
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="csv", several_classes="keep", **JOINED)
    names = done.manifest.labels
    (batch,) = Loader(done.folder, batch_size=4, num_epochs=1).batches()
    found = Counter(tuple(names[one] for one in np.flatnonzero(row)) for row in batch["labels"])
    assert found == {("vehicle",): 1, ("person", "vehicle"): 1, (): 1, ("person",): 1}


def test_a_source_that_workers_list_has_the_same_bytes(tmp_path):
    for label in ("cat", "dog", "wolf"):
        draw(tmp_path / "src" / label, *(f"{label}{number}.png" for number in range(6)))
    given = {"layout": "folders", "height": 16, "width": 24, "map_classes": ("wolf=dog",)}
    recipe = Recipe(**given, drop_classes=("cat",), split_shares=("train=0.5", "test=0.5"))
    found = []
    for way in ("command", "job"):
        job = JobOptions(
            source=str(tmp_path / "src"), out=str(tmp_path / way), name="set", workers=1, listing=way
        )
        more = [FAR] if way == "job" else []
        found.append(all_bytes(Path(convert(job, recipe, more, show_progress=False).folder)))
    shards = [{name: data for name, data in one.items() if ".tfrecord" in name} for one in found]
    assert shards[0] == shards[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"classes": ("persn",)}, AnnotationsError, "--classes: persn: .*did you mean person"),
        ({"map_classes": ("persn=x",)}, AnnotationsError, "--map-classes: persn: .*did you mean person"),
        ({"drop_classes": ("persn",)}, AnnotationsError, "--drop-classes: persn: .*did you mean person"),
        ({"drop_classes": ("car",), "map_classes": ("car=x",)}, UsageError, "car comes twice"),
        ({"drop_classes": ("car",), "classes": ("car",)}, UsageError, "car is left out by --drop-classes"),
        ({"emptied_pictures": "left-out"}, UsageError, "no effect without a choice of classes"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused_by_name(tmp_path, options, error, message):
    given = write(tmp_path / "src", "coco")

    def run() -> None:
        Recipe(**given, **options).check_used()
        run_convert(tmp_path / "src", tmp_path / "out", task="detection", **given, **options)

    with pytest.raises(error, match=message):
        run()


def test_background_is_either_a_class_or_a_way_to_leave_classes_out(tmp_path):
    for label in ("cat", "background"):
        draw(tmp_path / "src" / label, f"{label}.png")
    with pytest.raises(AnnotationsError, match=r"--drop-classes 'cat'.*'cat=nothing,background=nothing'"):
        run_convert(tmp_path / "src", tmp_path / "a", layout="folders", map_classes=("cat=background",))
    done = run_convert(
        tmp_path / "src",
        tmp_path / "b",
        layout="folders",
        map_classes=("cat=nothing", "background=nothing"),
    )
    assert done.manifest.labels == {0: "nothing"}
    done = run_convert(tmp_path / "src", tmp_path / "c", layout="folders", drop_classes=("cat",))
    assert done.manifest.labels == {0: "background"}


names = st.sampled_from(CLASSES)
BOXES = st.lists(names, max_size=4).map(
    lambda labels: tuple(
        Box(ymin=0, xmin=number, ymax=1, xmax=number + 1, label=label, is_crowd=label < "c")
        for number, label in enumerate(labels)
    )
)
PROBLEM: Problem = ("read", "file is missing", "")
EXAMPLES = st.one_of(
    st.builds(SourceExample, source=st.just("a"), key=st.just(1), boxes=BOXES),
    st.builds(SourceExample, source=st.just("a"), key=st.just(1), label=names),
    st.builds(
        SourceExample, source=st.just("a"), key=st.just(1), labels=st.lists(names, unique=True).map(tuple)
    ),
    st.just(SourceExample(source="a", key=1, problem=PROBLEM)),
)


@given(
    st.lists(EXAMPLES, max_size=5),
    st.lists(names, unique=True),
    st.dictionaries(names, st.sampled_from(["vehicle", "car", "person"])),
    st.sets(names),
    st.sampled_from(["negative", "ignored", "left-out"]),
)
def test_every_object_has_the_class_that_a_slow_reading_of_the_options_gives(
    examples, keep, mapped, dropped, emptied
):
    dropped -= mapped.keys()

    def target(name: str) -> str | None:
        name = "" if name in dropped else mapped.get(name, name)
        return name if name and (not keep or name in keep) else None

    pairs = tuple(f"{name}={to}" for name, to in mapped.items())
    choice = ClassChoice.of(tuple(keep), pairs, tuple(sorted(dropped)))
    counts = ChosenCounts()
    found = list(choose_classes(examples, choice, emptied, counts))
    assert len(found) == len(examples)
    assert counts.found == Counter(
        label for one in examples for label in [*one.classes, *(box.label for box in one.boxes or ())]
    )
    emptied_pictures = 0
    for before, after in zip(examples, found, strict=True):
        if before.problem is not None:
            assert after is before
            continue
        boxes = [
            (target(box.label), box.xmin, box.is_crowd) for box in before.boxes or () if target(box.label)
        ]
        labels = {target(name) for name in before.classes} - {None}
        had = bool(before.boxes or before.classes)
        if had and not boxes and not labels:
            emptied_pictures += 1
            assert (after.problem is None) == (emptied != "left-out" and before.label is None)
            dropped_boxes = [(box.ymin, box.xmin, box.ymax, box.xmax) for box in before.boxes or ()]
            assert list(after.ignored_regions) == (dropped_boxes if emptied == "ignored" else [])
        else:
            assert after.problem is None and after.ignored_regions == ()
        if after.problem is None:
            assert [(box.label, box.xmin, box.is_crowd) for box in after.boxes or ()] == boxes
            assert set(after.classes) == labels and len(after.classes) == len(labels)
            assert (after.boxes is None) == (before.boxes is None)
            assert (after.labels is None) == (before.labels is None)
    assert counts.emptied + counts.ignored + counts.left_out == emptied_pictures
    assert counts.left_out == sum(one.problem not in (None, PROBLEM) for one in found)


def test_patterns_choose_classes_of_objects(tmp_path: Path) -> None:
    """In upper or lower case; a name counts before a pattern."""
    options = write(tmp_path / "s", "csv")
    done = run_convert(tmp_path / "s", tmp_path / "a", **options, classes=("person", "*A*"))
    assert [*done.manifest.labels.values()] == ["person", "car", "tram"]
    options |= {"map_classes": ("bus=coach", "*s=other", "P*=person")}
    done = run_convert(tmp_path / "s", tmp_path / "b", **options, drop_classes=("*r*m*",))
    assert {*done.manifest.labels.values()} == {"coach", "car", "person"}
    with pytest.raises(AnnotationsError, match=r"--drop-classes: x\*: no such class.*found"):
        run_convert(tmp_path / "s", tmp_path / "c", **options, drop_classes=("x*",))
