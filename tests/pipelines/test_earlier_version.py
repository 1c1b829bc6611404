"""A version that starts from an earlier one holds what a full conversion holds, and shares every unchanged shard."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.errors import ChangedSourceError, ManifestError, UsageError
from halofeed.inspection.subset_data import SubsetOptions, write_subset
from halofeed.inspection.verify import verify
from halofeed.pipelines import earlier_version
from halofeed.pipelines.convert import convert
from halofeed.pipelines.earlier_version import compatible_labels
from halofeed.pipelines.job import JobOptions, are_stored_alike
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.lineage import lineage_of, possible_shards
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import read_records
from tests.support.conversions import (
    all_bytes,
    convert_words,
    die_at,
    draw_folders,
    halofeed_here,
    run_convert,
    shard_bytes,
)
from tests.support.stores import serving

OPTIONS = {"layout": "folders", "shards": 4}
SHARES = ("train=0.75", "test=0.25")


def records(folder: str | Path) -> dict[int, tuple[str, bytes]]:
    """Split and bytes of each record by its id, read from the shards alone."""
    found = {}
    manifest = read_manifest(folder)
    for split, content in manifest.splits.items():
        for shard in content.shards:
            for _, data in read_records(Path(folder, shard.file).read_bytes(), shard.file):
                identity = int(bytes(decode_example(data)["image/source_id"][0]))
                assert identity not in found
                found[identity] = (split, bytes(data))
    return found


def files(folder: str | Path) -> dict[str, tuple[int, set[int]]]:
    """Inode and ids of each shard by its split and number."""
    manifest = read_manifest(folder)
    return {
        f"{split}/{number}": (
            os.stat(Path(folder, shard.file)).st_ino,
            set(ShardIndex.from_bytes(Path(folder, shard.index).read_bytes(), shard.index).ids.tolist()),
        )
        for split, content in manifest.splits.items()
        for number, shard in enumerate(content.shards)
    }


def draw(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 30, 3)).astype(np.uint8)).save(file)


@pytest.fixture
def source(tmp_path) -> Path:
    return draw_folders(tmp_path / "src", 24)


def start(source: Path, out: Path, **more) -> str:
    return run_convert(source, out, **OPTIONS | more).folder


def go_on(source: Path, out: Path, earlier: str, version: str, **more) -> str:
    return run_convert(source, out, from_=earlier, version=version, **OPTIONS | more).folder


def test_added_pictures_are_in_further_shards_and_no_other_shard_changes(source, tmp_path):
    first = start(source, tmp_path / "out")
    for number in range(3):
        draw(source / "hat" / f"new{number}.png", number)
    second = go_on(source, tmp_path / "out", first, "1.1.0")
    before, after = files(first), files(second)
    assert {key: after[key] for key in before} == before
    assert set(after) - set(before) == {"train/4"} and len(after["train/4"][1]) == 3
    assert records(second) == records(start(source, tmp_path / "full"))
    assert verify(second).ok
    inputs = read_manifest(second).inputs
    assert inputs["parent"]["generations"] == {"train": [4, 1]} and inputs["parent"]["version"] == "1.0.0"


def edit(source: Path, generator: random.Random, step: int) -> None:
    """Add, remove, change and rename some pictures."""
    for number in range(generator.randrange(4)):
        draw(
            source / generator.choice(("hat", "shirt")) / f"step{step}-{number}.png",
            generator.randrange(10**6),
        )
    pictures = sorted(source.rglob("*.*"))
    for path in generator.sample(pictures, 2):
        path.unlink()
    for path in generator.sample(sorted(source.rglob("*.*")), generator.randrange(3)):
        draw(path.with_suffix(".png"), generator.randrange(10**6))
    broken = source / "hat" / f"broken{step}.jpg"
    broken.write_bytes(b"no picture")


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_versions_holds_the_records_of_full_conversions(source, tmp_path, seed):
    generator = random.Random(seed)
    folder = start(source, tmp_path / "out", split_shares=SHARES)
    for step in range(1, 4):
        edit(source, generator, step)
        earlier, folder = folder, go_on(source, tmp_path / "out", folder, f"1.{step}.0", split_shares=SHARES)
        full = start(source, tmp_path / f"full{step}", split_shares=SHARES)
        held, expected = records(folder), records(full)
        assert held == expected
        assert read_manifest(folder).splits.keys() == read_manifest(full).splits.keys()
        for split, content in read_manifest(folder).splits.items():
            assert content.statistics == read_manifest(full).splits[split].statistics
        assert verify(folder).ok, str(verify(folder))
        before, old, after = files(earlier), records(earlier), files(folder)
        for key, (inode, ids) in before.items():
            split = key.partition("/")[0]
            is_same = all(held.get(one) == old[one] for one in ids)
            # A shard may also list another rejected input.
            if key in after and after[key][0] == inode:
                assert is_same and after[key][1] == ids
            for one in ids & held.keys():
                assert held[one][0] != split or one in after[key][1]


def test_the_bytes_do_not_depend_on_the_number_of_processes_or_on_earlier_attempts(source, tmp_path):
    first = start(source, tmp_path / "out")
    edit(source, random.Random(7), 1)
    wanted = all_bytes(Path(go_on(source, tmp_path / "out", first, "1.1.0")))
    for workers in (2, 1):
        again = go_on(source, tmp_path / f"other{workers}", first, "1.1.0", workers=workers)
        assert all_bytes(Path(again)) == wanted
    assert run_convert(source, tmp_path / "out", from_=first, version="1.1.0", **OPTIONS).was_there
    with pytest.raises(ChangedSourceError, match=r"was converted from version 1\.0\.0 \(--from\)"):
        run_convert(source, tmp_path / "out", version="1.1.0", **OPTIONS)
    other = start(source, tmp_path / "moved")
    with pytest.raises(ChangedSourceError, match=r"1\.0\.0, which has changed since"):
        run_convert(source, tmp_path / "out", from_=other, version="1.1.0", **OPTIONS)


@pytest.mark.parametrize(
    "place",
    [("take", "before"), ("take", "after"), ("-00004-of-00005", "before"), ("manifest.json", "after")],
)
def test_a_kill_leaves_both_versions_sound(source, tmp_path, place):
    first = start(source, tmp_path / "out")
    before = all_bytes(Path(first))
    draw(source / "hat" / "new.png", 0)
    wanted = all_bytes(Path(go_on(source, tmp_path / "whole", first, "1.1.0")))
    words = [*convert_words(source, tmp_path / "out", version="1.1.0", shards=4, workers=1), "--from", first]
    die_at((*place, "exchange", words))
    assert all_bytes(Path(first)) == before
    second = go_on(source, tmp_path / "out", first, "1.1.0")
    assert all_bytes(Path(second)) == wanted and all_bytes(Path(first)) == before


def test_few_added_pictures_of_many_versions_share_a_shard(source, tmp_path):
    folder = start(source, tmp_path / "out")
    for step in range(1, 5):
        draw(source / "hat" / f"new{step}.png", step)
        folder = go_on(source, tmp_path / "out", folder, f"1.{step}.0")
    assert read_manifest(folder).inputs["parent"]["generations"] == {"train": [4, 1]}
    assert len(files(folder)["train/4"][1]) == 4 and verify(folder).ok


def test_a_new_class_follows_the_others_and_rewrites_nothing(source, tmp_path):
    first = start(source, tmp_path / "out")
    draw(source / "bag" / "new.png", 0)  # before hat by name
    second = go_on(source, tmp_path / "out", first, "1.1.0")
    assert read_manifest(second).labels == {0: "hat", 1: "shirt", 2: "bag"}
    before, after = files(first), files(second)
    assert {key: after[key] for key in before} == before and verify(second).ok
    shutil.rmtree(source / "bag")
    draw(source / "hat" / "more.png", 1)
    third = go_on(source, tmp_path / "out", second, "1.2.0")
    assert read_manifest(third).labels == {0: "hat", 1: "shirt", 2: "bag"}
    assert {key: files(third)[key] for key in before} == before


PAIRS = {"layout": "pairs", "task": "segmentation", "shards": 2}
PAIRS |= {"image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}


def draw_pairs(source: Path, values: list[list[int]]) -> None:
    """Pictures with label images in bands of some values each."""
    for number, bands in enumerate(values):
        draw(source / "images" / f"{number}.png", number)
        (source / "masks").mkdir(exist_ok=True)
        mask = np.resize(np.repeat(np.array(bands, np.uint8), 30), (20, 30))
        Image.fromarray(mask).save(source / "masks" / f"{number}.png")


def class_file(tmp_path: Path, *names: str) -> str:
    file = tmp_path / f"{len(names)}.json"
    file.write_text(json.dumps({str(number): name for number, name in enumerate(names, start=1)}))
    return str(file)


def test_an_added_class_cures_rejects_and_other_shards_stay(tmp_path):
    source, given = tmp_path / "src", {**PAIRS, "label_map": class_file(tmp_path, "hat", "coat")}
    draw_pairs(source, [[0, 1], [0, 2], [0, 1, 3], [1, 2], [0, 2]])
    first = start(source, tmp_path / "out", **given)
    given["label_map"] = class_file(tmp_path, "hat", "coat", "bag")
    second = go_on(source, tmp_path / "out", first, "1.1.0", **given)
    assert records(second) == records(start(source, tmp_path / "full", **given)) and len(records(second)) == 5
    assert not Path(second, "rejected.jsonl").read_text() and verify(second).ok
    before, after = files(first), files(second)
    kept = [key for key in before if before[key][0] == after[key][0]]
    assert len(kept) == 1


def test_classes_that_would_lose_their_names_are_refused_with_a_file_that_has_them(tmp_path):
    source, given = tmp_path / "src", {**PAIRS, "label_map": class_file(tmp_path, "hat", "coat")}
    draw_pairs(source, [[0, 1], [0, 2], [1, 2]])
    first = start(source, tmp_path / "out", **given)
    with pytest.raises(UsageError, match=r"names \(1 hat, 2 coat\), and nothing names them now") as raised:
        go_on(source, tmp_path / "out", first, "1.1.0", **PAIRS)
    given["label_map"] = str(raised.value).rpartition("--label-map ")[2]
    second = go_on(source, tmp_path / "out", first, "1.1.0", **given)
    assert read_manifest(second).labels == read_manifest(first).labels and files(second) == files(first)
    # Classes that never had names go on without.
    plain = start(source, tmp_path / "plain", **PAIRS)
    assert go_on(source, tmp_path / "plain", plain, "1.1.0", **PAIRS)


def test_a_region_that_takes_a_value_of_another_one_changes_the_records_of_that_value():
    def regions(*values: tuple[int, int]) -> LabelMap:
        return LabelMap(entries=((0, "background"), (1, "tumor"), (2, "core")), first_id=0, values=values)

    two = regions((1, 1), (2, 1))
    assert are_stored_alike(regions((1, 1), (2, 1), (3, 2)), two, sets=True)
    assert not are_stored_alike(regions((1, 1), (2, 1), (2, 2)), two, sets=True)


def test_numbers_of_classes_that_a_file_changes_are_refused(source, tmp_path):
    first = start(source, tmp_path / "out")
    (tmp_path / "labels.txt").write_text("shirt\nhat\n")
    with pytest.raises(
        UsageError, match=r"(?s)2 classes of the earlier.*class 0 was 'hat', now 'shirt'"
    ) as raised:
        go_on(source, tmp_path / "out", first, "1.1.0", label_map=str(tmp_path / "labels.txt"))
    assert "convert all without --from" in str(raised.value)
    assert not (tmp_path / "out/set/1.1.0").exists()


def test_another_task_and_another_runner_are_refused(source, tmp_path, monkeypatch):
    first = start(source, tmp_path / "out")
    rows = [f"{path.relative_to(source)},1,1,5,5,hat\n" for path in sorted(source.rglob("*.jpg"))]
    (source / "boxes.csv").write_text("filename,xmin,ymin,xmax,ymax,class\n" + "".join(rows))
    manifest = read_manifest(first)
    # The same recipe reads the boxes, where a table takes the place of class folders.
    monkeypatch.setitem(manifest.recipe, "layout", "csv")
    monkeypatch.setattr(earlier_version, "read_manifest", lambda _: manifest)
    options = {"from_": first, "version": "1.1.0", "layout": "csv", "shards": 4}
    with pytest.raises(UsageError, match="its task is classification, and the sources show detection"):
        run_convert(source / "boxes.csv", tmp_path / "out", **options)
    monkeypatch.undo()
    job = JobOptions(source=str(source), out=str(tmp_path / "out"), name="set", version="1.1.0", from_=first)
    with pytest.raises(UsageError, match="compared on this machine; leave --runner out"):
        convert(job, Recipe(height=16, width=24, **OPTIONS), ["--runner=PrismRunner"])


def test_labels_are_compatible_where_every_earlier_class_keeps_its_number():
    class Earlier:
        folder = "data"
        manifest = type("M", (), {"labels": {1: "hat", 4: "coat"}})

    found = LabelMap(entries=((1, "bag"), (2, "coat"), (3, "hat")), first_id=1)
    assert compatible_labels(Earlier, found, are_given=False).names == {1: "hat", 4: "coat", 5: "bag"}
    kept = LabelMap(entries=((1, "hat"), (2, "bag"), (4, "coat")), first_id=1)
    assert compatible_labels(Earlier, kept, are_given=True) is kept
    with pytest.raises(UsageError, match="class 4 was 'coat', now 'missing'"):
        compatible_labels(Earlier, LabelMap(entries=((1, "hat"),), first_id=1), are_given=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"height": 20}, "these options differ; leave them out.*--height: was 16, now 20"),
        ({"split_shares": SHARES}, "add --keep-splits"),
        ({"name": "other"}, "use --name set"),
        ({"version": "1.0.0"}, "is the version that --from names"),
        ({"from_": "", "keep_splits": True}, "--keep-splits has no effect without --from"),
        ({"from_": "nowhere"}, "no such folder"),
    ],
)
def test_what_differs_from_the_earlier_version_is_named(source, tmp_path, more, words):
    first = start(source, tmp_path / "out")
    given = {"from_": first, "version": "1.1.0", **OPTIONS, **more}
    with pytest.raises(UsageError, match=f"(?s){words}"):
        run_convert(source, tmp_path / "out", **given)


def splits_of(folder: str) -> dict[int, str]:
    return {identity: split for identity, (split, _) in records(folder).items()}


def test_keep_splits_moves_no_example_whatever_the_options_say(source, tmp_path):
    folder = start(source, tmp_path / "out", split_shares=SHARES)
    ways = [
        {"split_shares": ("train=0.2", "val=0.8")},
        {"split_shares": SHARES, "split_seed": 5},
        {"folds": 3},
        {},
    ]
    for step, way in enumerate(ways, start=1):
        for number in range(6):
            draw(source / "hat" / f"{step}-{number}.png", 10 * step + number)
        earlier, folder = (
            folder,
            go_on(source, tmp_path / "out", folder, f"1.{step}.0", keep_splits=True, **way),
        )
        before, after = splits_of(earlier), splits_of(folder)
        assert {one: after[one] for one in before} == before and len(after) == len(before) + 6
        shared = {key for key, (inode, _) in files(earlier).items() if files(folder)[key][0] == inode}
        # New pictures may fill the last shard of their split, and every other one stays.
        assert len(shared) >= len(files(earlier)) - len(read_manifest(earlier).splits)
        assert verify(folder).ok, str(verify(folder))


def test_a_new_picture_of_a_known_group_follows_its_group(tmp_path):
    source = tmp_path / "src"
    for patient in range(12):
        draw(source / "hat" / f"p{patient}_0.png", patient)
    pattern = {"group_pattern": r"(p[0-9]+)_"}
    first = start(source, tmp_path / "out", split_shares=SHARES, **pattern)
    for patient in range(14):
        draw(source / "hat" / f"p{patient}_1.png", 100 + patient)
    more = {"split_shares": ("train=0.1", "test=0.9"), "keep_splits": True}
    second = go_on(source, tmp_path / "out", first, "1.1.0", **pattern, **more)
    by_patient: dict[str, set[str]] = {}
    for split, data in records(second).values():
        name = bytes(decode_example(data)["image/filename"][0]).decode()
        by_patient.setdefault(name.split("/")[1].split("_")[0], set()).add(split)
    assert len(by_patient) == 14 and all(len(splits) == 1 for splits in by_patient.values())


def test_a_damaged_index_of_the_earlier_version_is_named(source, tmp_path):
    first = start(source, tmp_path / "out")
    index = next(Path(first).glob("_index-*"))
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    with pytest.raises(
        halofeed.errors.CorruptFileError, match=rf"{index.name}: its checksum.*halofeed verify"
    ):
        go_on(source, tmp_path / "out", first, "1.1.0")


def test_a_manifest_with_a_wrong_lineage_is_refused(source, tmp_path):
    first = start(source, tmp_path / "out")
    document = json.loads(Path(first, "manifest.json").read_text())
    for wrong, words in (
        ("x", "inputs.parent: expected an object"),
        ({"version": 1, "crc32c": 1, "generations": {}}, "inputs.parent.version"),
        ({"version": "1.0.0", "crc32c": 1, "generations": {"train": [3]}}, "expected counts with the sum 4"),
        (
            {"version": "1.0.0", "crc32c": 1, "generations": {"train": [4]}, "recipes": [1]},
            "inputs.parent.recipes",
        ),
        (
            {"version": "1.0.0", "crc32c": 1, "generations": {"train": [4]}, "name": 1},
            "inputs.parent.name: expected a text",
        ),
    ):
        document["inputs"]["parent"] = wrong
        with pytest.raises(ManifestError, match=words):
            Manifest.from_json(json.dumps(document))


def test_the_command_takes_the_recipe_the_place_and_the_name_of_the_earlier_version(
    source, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    start(source, "out")
    draw(source / "hat" / "new.png", 0)
    done = halofeed_here("convert", "--source", "src", "--from", "out/set/1.0.0", "--version", "1.1.0")
    assert done.returncode == 0, done.stderr
    assert "from 1.0.0, 4 of 5 shards kept" in done.stdout and "from 1.0.0: 1 added" in done.stdout
    assert "hat/new.png" in done.stdout
    assert records("out/set/1.1.0") == records(start(source, "full"))
    refused = halofeed_here("convert", "--source", "src", "--from", "out/set/1.0.0")
    assert refused.returncode == 2 and "--version 1.1.0" in refused.stderr
    both = ["--from", "out/set/1.0.0", "--recipe", "out/set/1.0.0", "--version", "1.2.0"]
    assert "leave --recipe out" in halofeed_here("convert", "--source", "src", *both).stderr
    data = halofeed.convert("src", "out", from_="out/set/1.1.0", version="1.2.0")
    assert data.changes.is_empty or data.changes.counts == {}
    assert data.summary.shards_kept == 5 and data.manifest.name == "set"


def test_what_the_messages_propose_works_when_it_is_typed(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(source, "out")
    draw(source / "hat" / "new.png", 0)
    first = ["convert", "--source", "src", "--from", "out/set/1.0.0", "--version"]
    for number, (wrong, right) in enumerate(
        (
            (["--split-shares", ",".join(SHARES)], ["--split-shares", ",".join(SHARES), "--keep-splits"]),
            (["--name", "other"], ["--name", "set"]),
            (["--height", "20"], []),
            (["--recipe", "out/set/1.0.0"], []),
            (["--task", "detection"], ["--task", "classification"]),
        ),
        start=1,
    ):
        refused = halofeed_here(*first, f"1.{number}.0", *wrong)
        assert refused.returncode == 2 and "--from" in refused.stderr, (wrong, refused.stderr)
        done = halofeed_here(*first, f"1.{number}.0", *right)
        assert done.returncode == 0, done.stderr
    apart = ["--keep-splits"]
    assert (
        halofeed_here("convert", "--source", "src", "--out", "two", "--name", "set", *apart).returncode == 2
    )
    words = ["convert", "--source", "src", "--out", "two", "--name", "set", "--height", "20"]
    assert halofeed_here(*words).returncode == 0


def test_examples_that_move_between_splits_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_folders(tmp_path / "src", 60)
    start(tmp_path / "src", "out", split_shares=SHARES)
    draw_folders(tmp_path / "src", 90)
    done = halofeed_here("convert", "--source", "src", "--from", "out/set/1.0.0", "--version", "1.1.0")
    before, after = splits_of("out/set/1.0.0"), splits_of("out/set/1.1.0")
    moved = sum(before[one] != after[one] for one in before)
    assert moved and f"{moved} in another split" in done.stdout and "--keep-splits" in done.stderr


@pytest.mark.long
def test_a_store_copies_the_kept_shards_by_itself(source, tmp_path):
    with serving("s3", tmp_path / "server") as place:
        out = f"{place.address}/out"
        first = start(source, out)
        draw(source / "hat" / "new.png", 0)
        asked = len(place.requests())
        second = go_on(source, out, first, "1.1.0")
        later = place.requests()[asked:]
        local = start(source, tmp_path / "full")
        assert verify(second).ok
        # No shard of the earlier version was read.
        assert not [line for line in later if line.startswith("GET") and "1.0.0/set-train" in line]
        assert halofeed.open(second).splits == halofeed.open(local).splits
        part = write_subset(second, SubsetOptions(where="class=hat", out=str(tmp_path / "part")))
        assert verify(part.folder).ok and 0 < part.manifest.splits["train"].records < 25
        here = go_on(source, tmp_path / "here", first, "1.1.0")
        assert verify(here).ok
        assert shard_bytes(Path(here)) == {
            name: data for name, data in place.objects("out/set/1.1.0/").items() if ".tfrecord-" in name
        }


def test_every_generation_has_a_possible_shard():
    generator = random.Random(0)
    for _ in range(50):
        counts = tuple(generator.randrange(1, 6) for _ in range(generator.randrange(1, 5)))
        found = possible_shards(generator.randrange(2**63), counts)
        firsts = np.cumsum([0, *counts[:-1]])
        assert all(
            first <= one < first + count for one, first, count in zip(found, firsts, counts, strict=True)
        )
    assert lineage_of({"count": 1}) is None
