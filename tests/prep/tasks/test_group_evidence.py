"""Evidence of groups: which names show that images belong together, and which do not."""

import random
import shlex
from pathlib import Path

import pytest

from halofeed.prep.annotations import group_evidence
from halofeed.prep.annotations.group_evidence import GroupEvidence, GroupsFound, describe
from halofeed.prep.annotations.splits import SplitOptions, assign_splits
from halofeed.prep.sources.example import SourceExample

REAL_DATA = Path(__file__).resolve().parents[4] / "shared/data"
PICK = random.Random(7)


def evidence(
    paths: list[str], labels: list[str] | None = None, attributes: list[tuple] | None = None
) -> GroupEvidence:
    found = GroupEvidence()
    for number, path in enumerate(paths):
        label = labels[number] if labels else None
        more = attributes[number] if attributes else ()
        found.add(SourceExample(source=path, key=path, label=label, attributes=more))
    return found


def numbered(form: str, groups: int, each: int) -> list[str]:
    return [form.format(group, number) for group in range(1, groups + 1) for number in range(each)]


def hashes(count: int, digits: int) -> list[str]:
    return [f"{PICK.getrandbits(4 * digits):0{digits}x}" for _ in range(count)]


# paths, number of groups that the printed option makes, whether a word names them
GROUPS = {
    "NIH": (numbered("{:08d}_{:03d}.png", 6, 4), 6, False),
    "LiTS": (numbered("images/volume-{}_slice_{:03d}.png", 5, 4), 5, False),
    "BraTS": (numbered("BraTS20_Training_{:03d}_{}.png", 5, 4), 5, False),
    "letters": (numbered("P{:03d}_{}.png", 5, 4), 5, False),
    "LIDC": (numbered("LIDC-IDRI-{:04d}_slice{:03d}.png", 5, 4), 5, False),
    "folders": (numbered("images/{:03d}/{}.png", 5, 4), 5, False),
    "folders of persons": ([f"{name}/{n}.png" for name in ("li", "kim", "roe") for n in range(4)], 3, False),
    "time points": (["a_001-000.nii", "a_001-001.nii", *(f"a_{n:03d}-000.nii" for n in range(2, 20))], 19, False),
    "nnU-Net": (numbered("imagesTr/x_{:03d}-{:03d}_0000.nii.gz", 4, 2), 4, False),
    "frames": (numbered("v{}f{}.png", 10, 9), 10, False),
    "two views": ([f"{n}_{side}.png" for n in range(50) for side in ("left", "right")], 50, False),
    "study in patient": ([f"P{p}_S{s}_{n}.png" for p in range(9) for s in range(3) for n in range(4)], 9, False),
    "copies": ([f"{n:04d}_jpg.rf.{one}.jpg" for n in range(30) for one in hashes(3, 32)], 30, False),
    "towns": ([f"{t}/{s:06d}_{n}.png" for t in ("ulm", "bonn", "jena") for s in range(4) for n in range(5)], 3, False),
    "tiles": ([f"{s}_{x}_{y}.png" for s in hashes(9, 16) for x in range(5) for y in range(5)], 9, False),
    "behind a counter": ([f"{n:04d}_P{n // 5:03d}.png" for n in range(100)], 20, False),
    "two forms": (numbered("a/P{:03d}_{}.png", 5, 4) + numbered("b/c/Q{:03d}-x-{}.png", 5, 4) + ["z.png"], 11, False),
    "a letter beyond ASCII": (numbered("患者{}_切片{}.png", 9, 5), 9, False),
    "frames before videos": ([f"frame_{n:04d}_video{v}.png" for v in "ABCDEF" for n in range(30)], 6, False),
    "slices before cases": (numbered("z{1:03d}_c{0:02d}.png", 8, 60), 8, False),
    "sides before eyes": ([f"{side}_{n}.png" for side in ("left", "right") for n in range(10, 60)], 50, False),
    "side letters": ([f"{n:03d}{side}.png" for side in "LR" for n in range(10, 60)], 50, False),
    "ids like years": ([f"{2001 + p}_{n}.png" for p in range(20) for n in range(5)], 20, False),
    "copies of a patient's pictures": (
        [f"P{p:03d}_{n}{end}.png" for p in range(6) for n in range(4) for end in ("", "_flip")],
        6,
        False,
    ),
    "copies with words": ([f"{n:03d}{end}.jpg" for n in range(30) for end in ("", "_flip", "_rot90")], 30, False),
    "copies in parentheses": ([f"IMG_{n:03d}{end}.jpg" for n in range(30) for end in ("", " (1)")], 30, False),
    "copies of free names": ([f"{w}_png.rf.{one}.jpg" for w in ("a b", "c-2", "d") for one in hashes(3, 32)], 3, False),
    "free folders": ([f"480p/{v}/{n:02d}.jpg" for v in ("bear", "car-turn", "dog") for n in range(20)], 3, False),
    "three persons": ([f"{name}_{n:03d}.jpg" for name in ("li", "kim", "roe") for n in range(20)], 3, False),
    "words": (numbered("patient{:03d}_study{}.png", 9, 5), 9, True),
    "a word behind another": (["scene_1_person_3.png", "scene_2_person_3.png", "scene_3_person_4.png"], 2, True),
}  # fmt: skip
NONE = {
    "counter": [f"{n:04d}.png" for n in range(1, 401)],
    "constant prefix": [f"BloodImage_{n:05d}.jpg" for n in range(300)],
    "years": [f"{2007 + n % 5}_{PICK.randrange(10**4):06d}.jpg" for n in range(300)],
    "days": [f"IMG_202001{n % 28 + 1:02d}_{PICK.randrange(240000):06d}.jpg" for n in range(300)],
    "days with signs": [f"2020-{n % 12 + 1:02d}-{n % 28 + 1:02d} {n:03d}.jpg" for n in range(300)],
    "days and times": [f"Image 2021-03-{n % 28 + 1:02d} at {n % 24}.{n % 60:02d}.{n * 7 % 60}.jpg" for n in range(300)],
    "years and months": [f"{2012 + n % 8}/{1 + n % 12:02d}/{n:05d}.jpg" for n in range(400)],
    "counters of days": [f"IMG-202103{1 + n % 28:02d}-WA{n % 7:04d}.jpg" for n in range(28)],
    "parts of a large set": [f"part{p}/{p * 100 + n:06d}.jpg" for p in (1, 2, 3) for n in range(100)],
    "sizes": [f"img_{PICK.choice(['640x480', '1024x768'])}_{n:03d}.png" for n in range(100)],
    "cameras": [f"{PICK.choice(['DSC', 'IMG', 'P'])}_{n:04d}.jpg" for n in range(100)],
    "blocks of a large set": [f"{n // 1000:05d}/{n:05d}.png" for n in range(4000)],
    "two random numbers": [f"{PICK.randrange(10**6)}_{PICK.randrange(10**6)}.png" for _ in range(2000)],
    "a random first digit": [f"{PICK.randrange(10)}-{PICK.randrange(10**8)}.png" for _ in range(500)],
    "hashes": [f"{one}.png" for one in hashes(2000, 32)],
    "uuids": [f"{a}-{b}-4{c}.png" for a, b, c in zip(hashes(3000, 8), hashes(3000, 4), hashes(3000, 3), strict=True)],
    "splits": [f"{split}/{n:03d}.png" for split in ("train", "val", "test") for n in range(30)],
    "folds": [f"fold_{fold}/{n:03d}.png" for fold in range(5) for n in range(30)],
    "categories": [f"{kind} ({n}).png" for kind in ("benign", "normal") for n in range(50)],
    "one file in each folder": [f"s{n:04d}/ct.nii.gz" for n in range(50)],
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_what_repeats_while_the_rest_counts_is_a_group_and_the_printed_option_keeps_it_together(case):
    paths, groups, is_named = GROUPS[case]
    found = evidence(paths).find()
    assert found is not None and (found.all_groups, found.is_named) == (groups, is_named)
    option, value = found.option
    assert option == "--group-pattern" and shlex.quote(value) in describe(found)
    references = [SourceExample(source=path, key=path) for path in paths]
    assigned = list(assign_splits(references, SplitOptions(shares={"a": 0.5, "b": 0.5}, group_pattern=value)))
    assert len({one.group for one in assigned}) == groups and not any(one.problem for one in assigned)


@pytest.mark.parametrize("case", NONE)
def test_what_repeats_by_its_nature_or_by_chance_is_no_group(case):
    assert evidence(NONE[case]).find() is None


def test_parts_that_name_the_class_are_no_groups():
    for form in ("{}/{:03d}.png", "{}_{:03d}.png", "{0}/{0}_{1:03d}.png"):
        paths = [form.format(name, n) for name in ("n0144", "n0210", "n0300", "n0411") for n in range(30)]
        assert evidence(paths, [path[:5] for path in paths]).find() is None


def test_two_folders_are_groups_if_both_have_the_same_classes():
    paths = [f"{name}/{n:03d}.jpg" for name in ("li", "kim") for n in range(30)]
    found = evidence(paths, ["xy"[n % 2] for n in range(60)]).find()
    assert found is not None and (found.all_groups, found.is_named) == (2, False)
    assert evidence(paths, ["x" * (1 + n // 15) for n in range(60)]).find() is None
    counted = [
        f"{c:03d}.{w}/{w}_{n:04d}_{PICK.randrange(10**6)}.jpg"
        for c, w in ((1, "Bay_a"), (2, "Jay"))
        for n in range(1, 40)
    ]
    assert evidence(counted, [path[:3] for path in counted]).find() is None


# name and values of an attribute, whether it is refused (None: nothing)
ATTRIBUTES = {
    "a word": ("video_id", lambda n: n // 5, True),
    "a word in an object": ("meta.location", lambda n: f"place {n // 5}", True),
    "DICOM's name": ("StudyInstanceUID", lambda n: f"1.2.{n // 5}", True),
    "the name of an identity": ("camera_trap_id", lambda n: n // 5, False),
    "runs of a free name": ("site", lambda n: f"hospital {n // 5}", False),
    "runs of numbers": ("age", lambda n: 30 + n // 5, None),
    "runs of days": ("day", lambda n: f"2020-01-0{1 + n // 5}T0", None),
    "words that alternate": ("weather", lambda n: f"rain {n % 8}", None),
    "one value": ("patient_id", lambda n: 7, None),
    "all different": ("video_id", lambda n: n, None),
    "a measure": ("age", lambda n: n % 7, None),
    "the class": ("category_id", lambda n: n % 2, None),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes_that_repeat_are_groups_by_their_name(case):
    name, value, is_named = ATTRIBUTES[case]
    paths = [f"im{n}.png" for n in range(40)]
    labels = ["ab"[n % 2] for n in range(40)]
    found = evidence(paths, labels, [((name, str(value(n))),) for n in range(40)]).find()
    if is_named is None:
        assert found is None
    else:
        assert found is not None and found.is_named is is_named
        assert (found.option, found.all_groups) == (("--group-column", name), 8)


def test_a_column_that_describes_the_classes_is_no_group():
    paths = [f"im{n}.png" for n in range(40)]
    labels = [f"class {n // 5}" for n in range(40)]
    order = [(("order", f"order {n // 10}"),) for n in range(40)]
    assert evidence(paths, labels, order).find() is None


def test_evidence_of_parts_in_any_order_is_that_of_the_whole(monkeypatch):
    """Also where only a sample fits into memory, which keeps groups whole."""
    paths = numbered("p{}/{:03d}.png", 40, 10)

    def found_in_parts(size: int) -> tuple[GroupsFound | None, int]:
        shuffled = PICK.sample(paths, len(paths))
        whole = GroupEvidence()
        for first in range(0, len(paths), size):
            whole.merge(evidence(shuffled[first : first + size]))
        return whole.find(), whole.level

    for limit, level in ((1000, 0), (100, 2)):
        monkeypatch.setattr(group_evidence, "MAX_ROWS", limit)
        results = [found_in_parts(size) for size in (1, 7, 400)]
        assert results[0] == results[1] == results[2]
        assert results[0][0] is not None and results[0][1] >= level


@pytest.mark.skipif(not REAL_DATA.exists(), reason="no ../shared/data with real data sets")
@pytest.mark.parametrize("kind", ["images", "detection", "volumes", "dicom", "odd"])
def test_no_real_set_seems_to_have_groups(kind):
    for folder in sorted((REAL_DATA / kind).iterdir()):
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        images = [name for name in names if name.endswith((".jpg", ".JPG", ".png", ".dcm", ".nii.gz"))]
        assert evidence([name for name in images if "labels" not in name]).find() is None, folder
