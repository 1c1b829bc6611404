"""A manifest is read as it was written; a wrong one names every problem, also of a field, with its path."""

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import ManifestError, UsageError
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import index_file, index_file_1, shard_file
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.manifest import FORMAT_VERSION, Manifest, Shard, Split, format_version_of
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tasks import TASKS, ImageFormat, task_named

TEXT = st.text(st.characters(), max_size=6)  # lone surrogates too: file names that are not UTF-8
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
COUNT = st.integers(0, 2**40)
CRC = st.integers(0, 2**32 - 1)
NAME = st.from_regex("[a-z][a-z0-9_]{0,5}", fullmatch=True)
SPLIT = st.from_regex("[A-Za-z][A-Za-z0-9_.]{0,5}", fullmatch=True)
BYTE, SIDE = st.integers(0, 255), st.integers(1, 9999)
COUNTED = {"records": COUNT, "labels": st.dictionaries(st.integers(0, 10**6).map(str), COUNT, max_size=3)}
COUNTED |= {"notes": st.dictionaries(TEXT, COUNT, max_size=3)}
COUNTED |= {"source_sizes": st.dictionaries(st.just("480x640"), COUNT)}
COUNTED["largest"] = st.lists(st.integers(0, 9999), min_size=2, max_size=2)
STATISTICS = st.fixed_dictionaries({}, optional=COUNTED)


@st.composite
def manifests(draw: Any) -> Manifest:
    name, task = draw(NAME), draw(st.sampled_from(sorted(TASKS)))
    how = {"dtype": draw(st.sampled_from(["uint8", "uint16"]))}
    how |= {"encoding": draw(st.sampled_from(["raw", "png"]))}
    how["pad_value"] = draw(st.tuples(BYTE) | st.tuples(BYTE, BYTE, BYTE))
    image = ImageFormat(kind=KINDS["picture"], shape=draw(st.tuples(SIDE, SIDE)), channels=3, **how)
    splits, (form, index) = {}, draw(st.sampled_from([(1, index_file_1), (2, index_file)]))
    for split in draw(st.lists(SPLIT, max_size=3, unique=True)):
        shards, count = [], draw(st.integers(0, 3))
        for number in range(count):
            records, file = draw(COUNT), shard_file(name, split, number, count)
            sums = {"crc32c": draw(CRC), "index_bytes": draw(COUNT), "index_crc32c": draw(CRC)}
            sums["index"] = index(file)
            shards.append(Shard(file=file, records=records, bytes=16 * records + draw(COUNT), **sums))
        if split != "all":
            splits[split] = Split(shards=tuple(shards), statistics=Statistics.from_json(draw(STATISTICS)))
    values = {"recipe": JSON, "inputs": JSON, "rejected": COUNT, "software": TEXT}
    more = {which: draw(st.dictionaries(TEXT, value, max_size=3)) for which, value in values.items()}
    more["labels"] = draw(st.dictionaries(st.integers(0, 10**6), TEXT, max_size=4))
    more["fields"] = TASKS[task].fields(image, max_boxes=draw(st.integers(1, 300)), masks=draw(st.booleans()))
    version = ".".join(str(draw(st.integers(0, 99))) for _ in range(3))
    return Manifest(name=name, version=version, task=task, splits=splits, format_version=form, **more)


def sample() -> Manifest:
    image = ImageFormat(kind=KINDS["picture"], shape=(4, 6), channels=3, dtype="uint8", encoding="raw")
    files = [shard_file("cards", "train", number, 2) for number in range(2)]
    sums = {"crc32c": 5, "index_bytes": 64, "index_crc32c": 2**32 - 1}
    shards = tuple(Shard(file=file, index=index_file(file), records=3, bytes=100, **sums) for file in files)
    return Manifest(
        name="cards",
        version="1.0.0",
        task="classification",
        fields=TASKS["classification"].fields(image, max_boxes=1, masks=False),
        labels={0: "cat", 10: "Käfer", 9: "猫"},
        recipe={"interpolation": "antialias", "height": 4, "nested": {"b": [1, 2.5], "a": None}},
        inputs={"count": 6},
        splits={"train": Split(shards=shards, statistics=Statistics(labels={"10": 1, "9": 2}, records=6))},
        rejected={"decode: truncated": 1},
        software={"halofeed": "0.1.0"},
    )


def reversed_inside(value: Any) -> Any:
    """The same JSON value with every object's members in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_inside(item) for key, item in reversed(value.items())}
    return [reversed_inside(item) for item in value] if isinstance(value, list) else value


@given(manifests())
def test_what_is_written_is_read_again_and_gives_the_same_bytes(manifest: Manifest) -> None:
    text = manifest.to_json()
    read = Manifest.from_json(text.encode())
    assert read == manifest
    assert read.to_json() == text
    assert text == text.encode().decode()


def test_a_person_can_read_it_and_options_have_todays_names_whoever_wrote_them() -> None:
    text = sample().to_json()
    assert '"9": "猫"' in text and "Käfer" in text
    assert text.index('"9": 2') < text.index('"10": 1'), "numbers are ordered by size"
    written = {"store": "int16", "kernel": "tf2-area", "interpolation": "cubic"}
    for depth, used in ((4, "cubic"), (None, "tf2-area")):
        earlier = dataclasses.replace(sample(), recipe={"depth": depth, **written})
        found = Manifest.from_json(earlier.to_json().encode()).recipe
        assert found == {"depth": depth, "dtype": "int16", "interpolation": used}


@given(manifests())
def test_equal_manifests_give_equal_bytes(manifest: Manifest) -> None:
    names = ("labels", "recipe", "inputs", "rejected")
    changes, splits = {name: reversed_inside(getattr(manifest, name)) for name in names}, {}
    for name, split in reversed(manifest.splits.items()):
        statistics = Statistics.from_json(reversed_inside(split.statistics.to_json()))
        splits[name] = dataclasses.replace(split, statistics=statistics)
    other = dataclasses.replace(manifest, **changes, splits=splits)
    assert other == manifest and other.to_json() == manifest.to_json()


def test_every_changed_byte_and_every_truncation_is_a_manifest_error_unless_it_is_white_space() -> None:
    manifest = sample()
    data = manifest.to_json().encode()
    for position in range(len(data)):
        for change in (1, 0x20, 1 << position % 8, 0x29):
            changed = bytearray(data)
            changed[position] ^= change
            try:
                assert Manifest.from_json(bytes(changed)) == manifest
            except ManifestError:
                continue
            assert data[position : position + 1].isspace() and changed[position : position + 1].isspace()
    for length in range(len(data) - 1):
        with pytest.raises(ManifestError):
            Manifest.from_json(data[:length])


MISSING = object()


def put(document: dict[str, Any], where: str, value: object) -> None:
    """Set what stands at a path such as splits.train.shards[1].file, or take it away."""
    steps = re.findall(r"\[(\d+)\]|([^.[\]]+)", where)
    *above, last = (int(number) if number else name for number, name in steps)
    target: Any = document
    for step in above:
        target = target[step]
    target[last] = value
    if value is MISSING:
        del target[last]


PROBLEMS: list[tuple[Any, ...]] = [
    # where, what is put there, what is said, and of what where that is another place
    ("name", "Cards", "--name 'Cards': expected lower case"),
    ("name", 7, "expected a text, got 7"),
    ("version", "1", "expected three numbers"),
    ("task", "depth", "expected one of classification, detection, segmentation, got 'depth'"),
    ("task", MISSING, "expected a text, it is missing"),
    ("labels", [], "expected an object, got []"),
    ("labels.01", "x", "expected an id and a name"),
    ("labels.٣", "x", "expected an id and a name"),
    ("labels." + "9" * 5000, "x", "expected an id and a name", "labels." + "9" * 193),
    ("labels.0", None, "got '0' and None"),
    ("fields", {}, "expected a list, got {}"),
    ("fields[0]", 3, "expected an object, got 3"),
    ("fields[0].dtype", "complex64", "expected one of uint8"),
    ("fields[0].shape[1]", True, "expected an integer, got True"),
    ("fields[0].shape[1]", -3, "expected sizes of 1 to", "fields[0].shape"),
    ("fields[0].keys[0]", ["x"], "expected a text, got ['x']"),
    ("fields[0].axes[0]", {}, "expected a text, got {}"),
    ("fields[0].fill[0]", "0", "expected a number, got '0'"),
    ("fields[0].optional", 0, "expected true or false, got 0"),
    ("fields[1].name", "image", "'image' is there twice", "fields"),
    ("splits.train", [], "expected an object, got []"),
    ("splits.a/b", {"records": 0, "shards": [], "statistics": {}}, "split 'a/b': expected"),
    # The name of a shard's index is a digest of the split's name, which has no bytes here.
    (
        "splits.a\ud800",
        {"records": 0, "shards": [{"file": "x"}], "statistics": {}},
        "split 'a\\ud800': expected",
    ),
    ("splits.train.records", 7, "expected the shards' sum 6, got 7"),
    ("splits.train.shards[1]", 0, "expected an object, got 0"),
    ("splits.train.shards[1].file", "/etc/x", "got '/etc/x'"),
    ("splits.train.shards[1].bytes", -1, "expected 0 to"),
    ("splits.train.shards[1].bytes", 1.5, "expected an integer"),
    ("splits.train.shards[1].crc32c", 2**32, "expected 0 to"),
    ("splits.train.shards[1].bytes", 10**40, "expected 0 to"),
    ("splits.train.shards[1].bytes", 47, "47 bytes hold no 3 records", "splits.train.shards[1].records"),
    ("fields[0].name", "picture", "it is missing", "fields.image"),
    ("fields[0].keys", ["image/other"], "expected ('image/encoded',)", "fields.image.keys"),
    ("fields[0].shape", [1 << 20, 1 << 20, 3], "fit in no record"),
    ("fields[0].fill", [256], "expected numbers that uint8 can hold, got 256"),
    ("fields[0].fill", [1, 2], "expected one number or 3, got 2"),
    ("fields[1].dtype", "int64", "expected 'int32' of classification", "fields.label.dtype"),
    ("splits.train.statistics.labels.10", "x", "expected a count, got 'x'"),
    ("splits.train.statistics.x", 1, "unknown"),
    ("splits.train.statistics", None, "expected an object, got None"),
    ("rejected.decode: truncated", "1", "expected an integer, got '1'"),
    ("rejected.decode: truncated", -1, "expected 0 to"),
    ("software.halofeed", 1, "expected a text, got 1"),
    ("splits.train.shards[0].index", "x", "expected '_index-00000-"),
    ("surprise", 1, "unknown"),
    ("crc32c", "x", "expected an integer, got 'x'"),
    ("recipe.height", 5, "it was changed", "crc32c"),
    ("format_version", FORMAT_VERSION + 1, "install a newer halofeed"),
    ("format_version", 0, "convert the data again"),
    ("format_version", MISSING, "it is missing"),
]


@pytest.mark.parametrize("row", PROBLEMS, ids=lambda row: f"{row[0][:30]} {row[2][:20]}")
def test_each_problem_is_named_by_its_path(row: tuple[Any, ...]) -> None:
    where, value, message, *other = row
    document = json.loads(sample().to_json())
    put(document, where, value)
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(json.dumps(document), "m.json")
    path, problems = (*other, where)[0], caught.value.problems
    assert any(place == path and message in text for place, text in problems), problems
    assert str(caught.value).startswith("m.json: ")


def test_all_problems_are_reported_at_once() -> None:
    document = json.loads(sample().to_json())
    wanted = {"name", "version", "task", "fields[0].dtype", "fields[0].fill[0]", "surprise"}
    for where, value, *_ in PROBLEMS:
        if where in wanted:
            put(document, where, value)
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(json.dumps(document))
    assert {path for path, _ in caught.value.problems} >= wanted


HUGE_COUNTS = json.loads(sample().to_json())
HUGE_COUNTS["splits"]["train"]["shards"][0]["records"] = 10**4299


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "expected an object, got list"),
        (b"7", "expected an object, got int"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b'{"a": 1, "a": 1}', "'a' is there twice in one object"),
        (json.dumps(HUGE_COUNTS).encode(), "10000000000000000000... has 4,300 digits"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
    ],
    ids=["empty", "not UTF-8", "list", "number", "deep", "long number", "repeated", "huge counts", "NaN"],
)
def test_what_is_no_manifest_at_all_is_a_manifest_error(text: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(text)


@given(JSON)
def test_any_json_in_any_place_is_a_manifest_error_or_a_manifest(value: Any) -> None:
    for key in json.loads(sample().to_json()):
        document = {**json.loads(sample().to_json()), key: value}
        try:
            Manifest.from_json(json.dumps(document))
        except ManifestError:
            continue


def test_unknown_fields_and_splits_and_numbers_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dataclasses.replace(sample(), inputs={"mean": float("inf")}).to_json()
    manifest = sample()
    assert manifest.field("label").dtype == "int32" and manifest.split("train").records == 6
    with pytest.raises(UsageError, match="no field 'boxes' in cards; known: image, label, id, source"):
        manifest.field("boxes")
    with pytest.raises(UsageError, match="no split 'test' in cards; known: train"):
        manifest.split("test")


AXES = ("height", "width", "channel")
GOOD = Field(name="image", keys=("image/encoded",), dtype="uint8", axes=AXES, shape=(4, 5, 3), encoding="raw")


FAULTS = [({"name": ""}, "name"), ({"keys": ()}, "keys"), ({"keys": ("",)}, "keys")]
FAULTS += [({"dtype": "complex64"}, "dtype"), ({"dtype": "str"}, "dtype"), ({"encoding": "webp"}, "encoding")]
FAULTS += [({"axes": ("height", "width", "color")}, "axes"), ({"axes": ("height",)}, "shape")]
FAULTS += [({"shape": (4, 0, 3)}, "shape"), ({"encoding": "list", "shape": (), "axes": ()}, "shape")]
FAULTS += [({"encoding": "sets", "shape": (), "axes": ()}, "axes"), ({"fill": ()}, "fill")]
FAULTS += [({"fill": (float("nan"),)}, "fill")]


@pytest.mark.parametrize(("change", "attribute"), FAULTS)
def test_each_fault_is_found_under_its_attribute(change: dict[str, Any], attribute: str) -> None:
    assert not list(GOOD.problems())
    assert [place for place, _ in dataclasses.replace(GOOD, **change).problems()] == [attribute]


def test_equal_fields_have_equal_json() -> None:
    whole, fraction = dataclasses.replace(GOOD, fill=(1,)), dataclasses.replace(GOOD, fill=(1.0,))
    assert whole == fraction
    assert repr(whole.to_json()) == repr(fraction.to_json())
    assert dataclasses.replace(GOOD, fill=(0.5,)).to_json()["fill"] == [0.5]


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("masks", [False, True])
def test_every_tasks_fields_are_without_faults_and_named_once(name: str, masks: bool) -> None:
    how = {"dtype": "uint8", "encoding": "raw", "pad_value": (1, 2, 3)}
    image = ImageFormat(kind=KINDS["picture"], shape=(4, 6), channels=3, **how)
    fields = task_named(name).fields(image, max_boxes=7, masks=masks)
    assert not [problem for field in fields for problem in field.problems()]
    assert len({field.name for field in fields}) == len(fields)
    assert fields[0].name == "image" and fields[0].fill == (1, 2, 3)


@pytest.mark.parametrize(
    ("encoding", "side", "version"),
    [("raw", 147, 2), ("raw", 148, 3), ("packed", 8, 3), ("yuv420", 8, 3), ("jpeg", 640, 2), ("png", 640, 2)],
)
def test_only_what_an_earlier_program_would_misread_has_a_new_format(
    encoding: str, side: int, version: int
) -> None:
    # 147 x 147 x 3 bytes are one block of 64 KiB, and 148 x 148 x 3 are two.
    image = ImageFormat(
        kind=KINDS["picture"], shape=(side, side), channels=3, dtype="uint8", encoding=encoding
    )
    assert format_version_of(task_named("detection").fields(image, max_boxes=9, masks=False)) == version
