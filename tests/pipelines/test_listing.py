"""Do workers that list a source in parts find what a command finds that lists it at once?"""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError, HalofeedError, UsageError
from halofeed.pipelines import listing, totals
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.listing import ListingInJob
from halofeed.pipelines.opened_sources import open_sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.plan import make_plan
from halofeed.pipelines.references import NumberedFiles, read_file
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas import identity
from tests.support.conversions import all_bytes, draw_folders
from tests.support.stores import Place

FAR = "--runner=tests.support.far_runner.FarRunner"
RECIPE = Recipe(layout="folders", height=16, width=24, shards=2)
EIGHTEEN = [f"{label}/{number}.jpg" for label in ("hat", "coat") for number in range(9)]
NAMES = ["1.jpg", "2.PNG", "ä b.jpeg", "x.jp2", "README.md", ".hidden.jpg", "3", "k.mp4", "v.hdr", "v.img"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(listing, "REFERENCES_PER_FILE", 3)
    monkeypatch.setattr(listing, "_PIECES_AT_ONCE", 2)
    monkeypatch.setattr(listing, "_IDS_AT_ONCE", 5)
    monkeypatch.setattr(listing, "FILES_IN_COMMAND", 10)


def touch(root: Path, *paths: str, text: bytes = b"x") -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text)
    return root


def planned(source: object, out: Path, in_job: bool, **options):
    """The plan of class folders, all of its references, whether in parts; `in_job` asks for that, here."""
    given = {name: options.pop(name) for name in ("images", "split_lists") if name in options}
    job = JobOptions(source=str(source), out=str(out), name=f"set_{in_job:d}", **given)
    output, sources = OutputFolder(job.folder), open_sources(job)
    output.make()
    recipe = Recipe(**{"layout": "folders", "height": 16, "width": 24, "shards": 2} | options)
    written = NumberedFiles(output)
    more = {"recipe": recipe, "sources": sources, "output": output, "writer": written}
    parts = ListingInJob(run_distributed=map, is_required=False, **more) if in_job else None
    plan = make_plan(job, recipe, sources, written, None, parts)
    lines = [line for number in range(written.count) for _, line in read_file(output, number)]
    return plan, sorted(lines), bool(list(Path(output.root).glob(".incomplete/ids-*")))


def check_same(source: object, out: Path, *, in_parts: bool = True, **options) -> None:
    """The same plan both ways; `in_parts`: whether it is listed in parts indeed."""
    (whole, lines, _), (parted, more, parts) = (planned(source, out, way, **options) for way in (False, True))
    assert more == lines and len(lines) == whole.totals.count
    assert parted.inputs == whole.inputs and parted.labels == whole.labels
    assert (parted.task, parted.totals.splits) == (whole.task, whole.totals.splits)
    assert parts == in_parts


@pytest.mark.parametrize("seed", range(6))
def test_any_tree_of_class_folders_is_the_same(tmp_path, seed):
    pick = random.Random(seed)
    source = tmp_path / "in"
    splits = pick.choice([[""], ["train/", "val/"]])
    for split in splits:
        for label in pick.sample(["hat", "Hat", "coat", "a b", "ü", "c.jpg"], 4):
            for _ in range(pick.randrange(1, 8)):
                deeper = pick.choice(["", "", "2019/", "2019/may/"])
                touch(source, f"{split}{label}/{deeper}{pick.choice(NAMES)}")
            touch(source, f"{split}{label}/z.jpg")
    if seed % 3 == 0:
        touch(source, "README.txt", "stray.jpg", ".git/x/1.jpg")
    shares = {"split_shares": ("train=0.7", "test=0.3"), "split_seed": seed} if seed % 2 else {}
    if shares and seed % 4 == 1:
        shares["group_pattern"] = r"([^/]+)/[^/]+$"
    check_same(source, tmp_path / "out", **shares)


def test_a_folder_of_many_files_is_listed_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("halofeed.prep.sources.walk.FILES_NEAR_TOP", 4)
    touch(tmp_path / "in", *(f"hat/{number}.jpg" for number in range(9)), "coat/deep/1.jpg", "coat/2.jpg")
    check_same(tmp_path / "in", tmp_path / "out")


def test_a_folder_that_cannot_be_listed_is_a_fault_of_it_alone(tmp_path, monkeypatch):
    source = touch(tmp_path / "in", *(f"{one}/{two}/1.jpg" for one in "abcd" for two in "xyzuv"))
    scandir = os.scandir

    def refusing(folder):
        if str(folder).endswith(("b/x", "/c")):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    check_same(source, tmp_path / "out", folders_are_classes=True)


@pytest.mark.parametrize("case", ["links", "masks", "yolo", "table", "many others"])
def test_what_must_be_seen_at_once_is_listed_by_the_command(tmp_path, capsys, monkeypatch, case):
    source = touch(tmp_path / "in", *EIGHTEEN)
    if case == "links":
        (source / "cap").mkdir()
        (source / "cap" / "more").symlink_to(source / "hat")
    elif case == "masks":
        names = [f"{one}/{two}.png" for one in ("images", "masks") for two in range(9)]
        source = touch(tmp_path / "other", *names)
    elif case == "yolo":
        touch(source, "hat/1.txt", text=b"0 0.5 0.5 0.1 0.1\n")
    elif case == "table":
        touch(source, "t.csv", text=b"filename,xmin,ymin,xmax,ymax,class\n")
    else:
        monkeypatch.setattr(listing, "_OTHERS", 3)
        touch(source, *(f"hat/{number}.txt" for number in range(5)))
    if case in ("masks", "yolo", "table"):
        with pytest.raises(AnnotationsError, match=r"--layout|--folders-are-classes") as at_once:
            planned(source, tmp_path / "out", False)
        with pytest.raises(AnnotationsError) as in_parts:
            planned(source, tmp_path / "out", True)
        assert str(in_parts.value) == str(at_once.value)
    else:
        check_same(source, tmp_path / "out", in_parts=False)
    assert "this command lists the source, not the job" in capsys.readouterr().err


REFUSED = [(["a/b/1.jpg", "a/c/1.jpg", "b/b/1.jpg", "b/c/1.jpg"], {})]
REFUSED += [(["train/hat/1.jpg", "cap/hat/1.jpg"], {}), ([f"{number}.jpg" for number in range(12)], {})]
REFUSED += [(["hat/a.txt", "hat/b.txt"], {}), (["hat/1.jp2", "coat/2.jp2"], {"max_rejected": None})]


@pytest.mark.parametrize(("paths", "options"), REFUSED)
def test_what_is_refused_is_refused_in_the_same_words(tmp_path, paths, options):
    source = touch(tmp_path / "in", *paths, *(f"{Path(paths[0]).parent}/n{one}.txt" for one in range(12)))
    said = []
    for way in (False, True):
        with pytest.raises(HalofeedError) as error:
            planned(source, tmp_path / "out", way)
        said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]


def test_ids_that_come_twice_are_named(tmp_path, monkeypatch):
    source = touch(tmp_path / "in", *EIGHTEEN)

    def colliding(key):
        return identity.ID_LIMIT - 1 if str(key).endswith(("hat/7.jpg", "coat/2.jpg")) else original(key)

    original = identity.example_id
    monkeypatch.setattr(totals, "example_id", colliding)
    monkeypatch.setattr(identity, "example_id", colliding)
    with pytest.raises(AnnotationsError, match=r"coat/2.jpg .* and hat/7.jpg"):
        planned(source, tmp_path / "out", True)


def test_sums_of_parts_are_those_of_the_whole_in_any_order(tmp_path):
    source = touch(tmp_path / "in", *EIGHTEEN)
    plan, lines, _ = planned(source, tmp_path / "out", False)
    references = [listing.SourceExample(source=f"{number}.jpg", key=number, label="a") for number in range(5)]

    def taken(size: int, *some: listing.SourceExample) -> totals.Totals:
        found = totals.Totals()
        for one in some:
            found.take(one, lambda _: size, lambda _: (size,) if size else None)
        return found

    whole, back = taken(7, *references), totals.Totals()
    for one in reversed(references):
        back.add(taken(7, one))
    assert back.fingerprints(b"")[0] == whole.fingerprints(b"")[0]
    assert sorted(back.identities) == sorted(whole.identities)
    assert back.stamps == whole.stamps
    back.add(taken(0, references[0]))
    assert back.stamps is None
    changed = taken(8, *references)
    assert changed.stamps != whole.stamps
    assert changed.fingerprints(b"")[0] != whole.fingerprints(b"")[0]
    assert len(plan.fingerprints) == 2 and len(back.fingerprints(b"")) == 1 and lines


def test_a_store_is_listed_folder_by_folder(clean: Place, tmp_path):
    source = touch(tmp_path / "in", "train/hat/deep/9.jpg", "README.md", ".git/1.jpg", "train/hat/notes.md")
    folders = [f"{split}/{one}" for split in ("train", "val") for one in ("hat", "ä b")]
    touch(source, *(f"{folder}/{number}.jpg" for folder in folders for number in range(5)))
    clean.store().write(f"{clean.upload(source, 'src')}/train/", b"")  # as consoles mark folders
    check_same(f"{clean.address}/src", tmp_path / "out")


def test_a_store_is_listed_in_the_job_and_holds_nothing_of_it_afterwards(clean: Place, tmp_path):
    draw_folders(tmp_path / "in", 12, broken=1)
    given = {"source": clean.upload(tmp_path / "in", "src"), "name": "set"}
    here = convert(JobOptions(**given, out=str(tmp_path / "out")), RECIPE, show_progress=False)
    there = convert(JobOptions(**given, out=f"{clean.address}/out", listing="job"), RECIPE, [FAR])
    assert there.folder == f"{clean.address}/out/set/1.0.0"
    assert clean.objects("out/set/1.0.0/") == all_bytes(Path(here.folder))


@pytest.mark.parametrize("listing_option", ["job", pytest.param("auto", marks=pytest.mark.long)])
def test_a_source_that_is_listed_in_the_job_gives_the_same_bytes(tmp_path, monkeypatch, listing_option):
    source = tmp_path / "in"
    draw_folders(source, 30, broken=2)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(source / "stray.png")
    recipe = Recipe(layout="folders", height=16, width=24, shards=2, split_shares=("train=0.7", "test=0.3"))
    found = {}
    for way in ("command", listing_option):
        job = JobOptions(source=str(source), out=str(tmp_path / way), name="set", listing=way)
        done = convert(job, recipe, [FAR])
        found[way] = all_bytes(Path(done.folder))
        assert convert(job, recipe, [FAR]).was_there and all_bytes(Path(done.folder)) == found[way]
    assert found["command"] == found[listing_option]
    (source / "stray.png").unlink()
    with pytest.raises(UsageError, match="other sources"):
        convert(JobOptions(source=str(source), out=str(tmp_path / listing_option), name="set"), recipe, [FAR])


def test_a_set_whose_fingerprint_is_that_of_earlier_versions_is_known_to_be_the_same(tmp_path):
    draw_folders(tmp_path / "in", 6)
    job = JobOptions(source=str(tmp_path / "in"), out=str(tmp_path / "out"), name="set")
    done = convert(job, RECIPE, show_progress=False)
    plan = make_plan(job, RECIPE, open_sources(job), None)
    assert done.manifest.inputs == plan.inputs != plan.inputs | {"fingerprint": plan.fingerprints[1]}
    earlier = replace(done.manifest, inputs={**done.manifest.inputs, "fingerprint": plan.fingerprints[1]})
    Path(done.folder, "manifest.json").write_text(earlier.to_json())
    assert convert(job, RECIPE, show_progress=False).was_there
    (tmp_path / "in" / "hat" / "0002.jpg").unlink()
    with pytest.raises(UsageError, match="other sources"):
        convert(job, RECIPE, show_progress=False)


def test_what_cannot_be_listed_in_the_job_is_refused_where_it_is_asked_for(tmp_path):
    draw_folders(tmp_path / "in", 6)
    job = {"source": str(tmp_path / "in"), "out": str(tmp_path / "out"), "name": "set", "listing": "job"}
    touch(tmp_path, "train.txt", text=b"1.jpg")
    lists = (f"train={tmp_path / 'train.txt'}",)
    with pytest.raises(UsageError, match=r"--listing job.*lists"):
        convert(JobOptions(**job, split_lists=lists), RECIPE, [FAR])
    with pytest.raises(UsageError, match="expected auto, command or job"):
        JobOptions(**job | {"listing": "there"})
