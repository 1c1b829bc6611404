"""A subset holds the records that meet its condition, byte for byte, with the statistics of these records."""

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.errors import UsageError
from halofeed.inspection import subset_data
from halofeed.inspection.compare_versions import compare_versions
from halofeed.inspection.recounted import only_recounted
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.subset_data import Subset, SubsetOptions, read_findings, write_subset
from halofeed.inspection.verify import verify
from halofeed.inspection.where import parse_condition
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.lineage import lineage_of
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.statistics import Statistics
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import read_records
from tests.support.conversions import draw_folders, halofeed_here, run_convert
from tests.support.volume_support import save_nifti, write_table


def records(folder: str) -> dict[int, tuple[str, bytes]]:
    found = {}
    for split, content in read_manifest(folder).splits.items():
        for shard in content.shards:
            for _, data in read_records(Path(folder, shard.file).read_bytes(), shard.file):
                identity = int(bytes(decode_example(data)["image/source_id"][0]))
                found[identity] = (split, bytes(data))
    return found


def subset(data: str, where: str, out: Path, **more) -> Subset:
    return write_subset(data, SubsetOptions(where=where, out=str(out), **more))


def statistics(folder: str) -> Statistics:
    return Statistics.total(split.statistics for split in read_manifest(folder).splits.values())


@pytest.fixture(scope="module")
def boxes(tmp_path_factory) -> str:
    """Pictures of three sizes with 0 to 3 boxes of two classes in two splits."""
    root = tmp_path_factory.mktemp("boxes") / "src"
    rows, generator = [], np.random.default_rng(0)
    for number in range(40):
        name, width = f"{('train', 'test')[number % 4 == 0]}/{number}.png", (20, 24, 40)[number % 3]
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(generator.integers(0, 256, (16, width, 3)).astype(np.uint8)).save(root / name)
        classes = [("hat", "old coat")[(number + k) % 2] for k in range(number % 3 + number % 2)]
        rows += [
            f"{name},{label},{1 + k},2,{6 + k},9,{int(number % 5 == 0)},{name.split('/')[0]}"
            for k, label in enumerate(classes)
        ] or [f"{name},,,,,,,{name.split('/')[0]}"]
    head = "filename,class,xmin,ymin,xmax,ymax,difficult,split"
    (root / "boxes.csv").write_text("\n".join([head, *rows]) + "\n")
    out = root.parent / "out"
    return run_convert(root, out, layout="csv", shards=3, height=16, width=24, task="detection").folder


def facts(data: str) -> dict[int, dict[str, object]]:
    """What the oracle knows of each record."""
    found = {}
    for identity, (split, record) in records(data).items():
        features = decode_example(record)
        names = [bytes(one).decode() for one in features["image/object/class/text"]]
        found[identity] = {
            "split": split,
            "class": set(names),
            "boxes": len(names),
            "width": int(features["image/source/width"][0]),
            "source": bytes(features["image/filename"][0]).decode(),
            "difficult": {int(one) for one in features["image/object/difficult"]},
        }
    return found


CASES = [
    ("class=hat", lambda one: "hat" in one["class"]),
    (
        "class='old coat' and not class=hat",
        lambda one: "old coat" in one["class"] and "hat" not in one["class"],
    ),
    ("class!=hat", lambda one: "hat" not in one["class"]),
    ("split=test or boxes>=3", lambda one: one["split"] == "test" or one["boxes"] >= 3),
    ("width in (20, 40) and boxes<2", lambda one: one["width"] in (20, 40) and one["boxes"] < 2),
    ("width not in (20,40)", lambda one: one["width"] == 24),
    ("size<=24 and source=train/*", lambda one: one["width"] <= 24 and one["source"].startswith("train/")),
    ("difficult=1", lambda one: 1 in one["difficult"]),
    (
        "not (split=test and (class=hat or boxes=0))",
        lambda one: one["split"] != "test" or (one["boxes"] > 0 and "hat" not in one["class"]),
    ),
    ("image/format=raw and id>0 and source!=train/1.png", lambda one: one["source"] != "train/1.png"),
]


@pytest.mark.parametrize(("where", "meets"), CASES)
def test_the_records_that_meet_the_condition_are_kept_byte_for_byte(boxes, tmp_path, where, meets):
    done = subset(boxes, where, tmp_path)
    known = facts(boxes)
    wanted = {identity: one for identity, one in records(boxes).items() if meets(known[identity])}
    assert records(done.folder) == wanted and 0 < len(wanted) < len(known)
    report = verify(done.folder)
    assert report.ok, str(report)
    lineage = lineage_of(read_manifest(done.folder).inputs)
    assert lineage is not None and (lineage.version, lineage.where) == ("1.0.0", where)
    difference = compare_versions(boxes, done.folder)
    assert set(difference.counts) == {"removed"} and difference.counts["removed"] == len(known) - len(wanted)


def test_the_statistics_are_those_of_a_conversion_of_the_same_sources(tmp_path):
    draw_folders(tmp_path / "src", 30)
    whole = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", shards=3, encoding="png").folder
    chosen = random.Random(0).sample(sorted((tmp_path / "src").rglob("*.jpg")), 11)
    names = ", ".join(str(path.relative_to(tmp_path / "src")) for path in chosen)
    done = subset(whole, f"source in ({names})", tmp_path / "part")
    for path in sorted((tmp_path / "src").rglob("*.jpg")):
        if path not in chosen:
            path.unlink()
    alone = run_convert(
        tmp_path / "src", tmp_path / "alone", layout="folders", shards=3, encoding="png"
    ).folder
    assert statistics(done.folder) == only_recounted(statistics(alone))
    assert records(done.folder) == records(alone)


def test_the_statistics_of_scans_are_those_of_their_records(tmp_path):
    rows, generator = [], np.random.default_rng(0)
    for number in range(6):
        values = generator.integers(-100, 100, (8, 16, 16)).astype(np.int16)
        save_nifti(tmp_path / f"{number}.nii", values)
        save_nifti(tmp_path / f"{number}-label.nii", generator.integers(0, 3, values.shape).astype(np.uint8))
        rows.append((number, f"{number}.nii", f"{number}-label.nii"))
    write_table(tmp_path, rows)
    given = {"layout": "csv", "depth": 8, "height": 16, "width": 16, "window_hu": (-100, 100)}
    whole = run_convert(tmp_path / "table.csv", tmp_path / "out", shards=2, **given).folder
    done = subset(whole, "id in (0, 2, 3) and class=2 and depth=8", tmp_path / "part")
    assert sorted(records(done.folder)) == [0, 2, 3] and verify(done.folder).ok
    found = statistics(done.folder)
    assert found.intensities is not None and found.intensities.body and found.labelled == 3
    every = subset(whole, "id<6 and id!=5", tmp_path / "most")
    assert statistics(every.folder).label_voxels != found.label_voxels


def test_whole_shards_are_links_and_keep_all_statistics(boxes, tmp_path):
    out = Path(boxes).parents[1] / "linked"
    done = subset(boxes, "split=train", out)
    assert done.whole == 3
    for shard in read_manifest(boxes).splits["train"].shards:
        assert os.path.samefile(Path(boxes, shard.file), Path(done.folder, shard.file))
    assert (
        read_manifest(done.folder).splits["train"].statistics
        == read_manifest(boxes).splits["train"].statistics
    )
    assert halofeed.Loader(done.folder, batch_size=4).batch(0)["image"].shape == (4, 16, 24, 3)


def test_the_other_commands_read_a_subset(boxes, tmp_path):
    done = subset(boxes, "class=hat", tmp_path, name="hats", version="2.0.0")
    assert done.folder.endswith("hats/2.0.0")
    assert halofeed_here("inspect", done.folder).returncode == 0
    assert halofeed_here("report", done.folder, "--output", tmp_path / "r.html").returncode == 0
    again = subset(done.folder, "boxes=1", tmp_path, name="ones")
    assert verify(again.folder).ok and 0 < len(records(again.folder)) < len(records(done.folder))
    lineage = lineage_of(read_manifest(again.folder).inputs)
    assert lineage is not None and (lineage.name, lineage.version) == ("hats", "2.0.0")
    assert lineage.where == "(class=hat) and (boxes=1)"
    at_once = subset(boxes, lineage.where, tmp_path, name="at_once")
    assert records(at_once.folder) == records(again.folder)
    with pytest.raises(UsageError, match=r"is a subset of version 1\.0\.0"):
        run_convert(tmp_path, tmp_path / "o", from_=done.folder, version="3.0.0", name="hats", layout="csv")


@pytest.mark.parametrize(
    ("where", "words", "at"),
    [
        ("class=", "expected a value after =", 6),
        ("class hat", "expected =, !=, <, >, <=, >= or in after class", 6),
        ("class=hat split=test", "expected and, or, or the end, got split", 10),
        ("(class=hat", r"expected \)", 10),
        ("class='hat", "the quote ' is not closed", 6),
        ("boxes>many", "expected a number after >, got many", 6),
        ("klass=hat", "no name 'klass'; did you mean class", 0),
        ("class in hat", r"expected \( after in", 9),
        ("class in (hat", r"expected , or \)", 13),
        ("class=hat and", "expected a name after and", 13),
        ("class=or", "expected a value after =; write 'or' for the text", 6),
        ("class=hat & boxes=1", "expected and, or, or the end, got &", 10),
        ("class!=hatt", "no class 'hatt'; did you mean hat[?] known: hat, 'old coat'", 7),
        ("class not in (hat, coat)", "no class 'coat'; ", 19),
        ("boxes=1 and split!='tset'", "no split 'tset'; did you mean test[?] known: ", 19),
        ("finding!='exact copy'", "no finding 'exact copy'; .*known: 'copies in several splits', ", 9),
        ("finding!='likely extra box'", "no finding 'likely extra box'", 9),  # found only with a run
        ("", "expected a name", 0),
        ("not", "expected a name after not", 3),
        ("((" * 60 + "id=1", "more than 100 conditions are inside of each other", 101),
    ],
)
def test_the_place_of_a_mistake_is_shown(boxes, tmp_path, where, words, at):
    with pytest.raises(UsageError, match=words) as raised:
        subset(boxes, where, tmp_path)
    _, shown, pointer = str(raised.value).split("\n")
    assert shown == f"  {where}" and pointer == f"  {' ' * at}^"
    assert not list(tmp_path.iterdir())


def test_findings_are_those_of_a_review_or_of_a_file(boxes, tmp_path, monkeypatch):
    ids = sorted(records(boxes))
    suspect = {"kind": "dark picture", "records": [{"id": ids[2]}, {"id": ids[3]}]}
    reviewed = {"suspects": [suspect], "not_searched": []}
    monkeypatch.setattr(subset_data, "review_dataset", lambda _: SimpleNamespace(to_json=lambda: reviewed))
    assert sorted(records(subset(boxes, "finding='dark picture'", tmp_path / "review").folder)) == ids[2:4]
    (tmp_path / "review.json").write_text(json.dumps(reviewed))
    assert read_findings(tmp_path / "review.json") == {ids[2]: ["dark picture"], ids[3]: ["dark picture"]}
    (tmp_path / "findings.json").write_text(
        json.dumps({str(ids[0]): ["blurred", "dark"], str(ids[1]): ["dark"]})
    )
    words = ["--findings", tmp_path / "findings.json", "--out", tmp_path / "out"]
    done = halofeed_here("subset", boxes, "--where", "finding=dark and finding!=blurred", *words)
    assert done.returncode == 0, done.stderr
    assert list(records(str(tmp_path / "out/set/1.0.0"))) == [ids[1]]
    data = halofeed.subset(boxes, where="finding!=dark", out=tmp_path / "rest", findings={ids[0]: ["dark"]})
    assert sum(data.splits.values()) == len(ids) - 1
    (tmp_path / "wrong.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match="expected what `halofeed review --json FILE` wrote"):
        read_findings(tmp_path / "wrong.json")


def test_findings_that_a_review_cannot_search_are_refused(boxes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        # As in a data set of before signatures.
        patch.setattr(
            ReviewedSet, "signatures", property(lambda reviewed: np.zeros((len(reviewed), 4), np.int64))
        )
        with pytest.raises(UsageError, match="no signatures; the same conversion with --overwrite") as raised:
            subset(boxes, "finding!='exact copies in a split'", tmp_path / "out")
        assert not list(tmp_path.iterdir())
    assert f"`halofeed review {boxes} --json FILE` and --findings FILE" in str(raised.value)
    assert halofeed_here("review", boxes, "--json", "typed.json").returncode == 0
    words = ["--findings", "typed.json", "--out", "out", "--where", "finding!='exact copies in a split'"]
    assert halofeed_here("subset", boxes, *words).returncode == 0
    assert len(records("out/set/1.0.0")) == len(records(boxes))


def test_signatures_and_measures_stay_with_their_records(boxes, tmp_path):
    def columns(folder: str) -> dict[int, list[object]]:
        found: dict[int, list[object]] = {}
        for split in read_manifest(folder).splits.values():
            for shard in split.shards:
                index = ShardIndex.from_bytes(Path(folder, shard.index).read_bytes(), shard.index)
                assert index.signatures is not None
                for row, identity in enumerate(index.ids.tolist()):
                    measures = {name: str(one[row]) for name, one in index.measures.items()}
                    found[identity] = [index.signatures[row].tolist(), measures]
        return found

    done = subset(boxes, "id>0 and class=hat", tmp_path)
    before = columns(boxes)
    assert {one: before[one] for one in records(done.folder)} == columns(done.folder)
    assert halofeed_here("review", done.folder).returncode == 0


def test_nothing_is_replaced(boxes, tmp_path):
    with pytest.raises(UsageError, match=r"no record of .* meets it"):
        subset(boxes, "boxes>9", tmp_path)
    with pytest.raises(UsageError, match="would replace the data set itself"):
        subset(boxes, "class=hat", Path(boxes).parents[1])
    done = subset(boxes, "class=hat", tmp_path)
    with pytest.raises(UsageError, match="is there already; take another --name or --version"):
        subset(boxes, "class=hat", tmp_path)
    assert verify(done.folder).ok


def test_conditions_mean_what_their_words_say():
    def meets(text: str, **values: object) -> bool:
        return parse_condition(text).meets(lambda name: values.get(name, ()))

    assert meets("a=1 or a=2 and b=3", a=[1]) and not meets("(a=1 or a=2) and b=3", a=[1])
    assert meets("not a=1", a=[2]) and meets("not not a=1", a=[1])
    assert meets("a>1", a=[0, 2]) and not meets("a>1", a=[]) and meets("a!=1", a=[])
    assert meets("a=1.0", a=[1]) and meets("a='1'", a=[1]) and not meets("a=01", a=["1"])
    assert meets("a=9007199254740993", a=[9007199254740993]) and not meets(
        "a=9007199254740993", a=[9007199254740992]
    )
    assert meets("a=x*z", a=["xyyz"]) and not meets("a='x*z'", a=["xyyz"]) and meets("a='x*z'", a=["x*z"])
    assert meets(r"a='it\'s'", a=["it's"]) and meets("a in ('b', \"c d\")", a=["c d"])
    assert not parse_condition("a!=h*", values={"a": ["cap"]}).meets({"a": ["hat"]}.__getitem__)
    assert meets("a = hat.png", a=["hat.png"]) and meets("a<=-1.5e3", a=[-1600.0])
