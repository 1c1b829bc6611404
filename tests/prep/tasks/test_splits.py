"""Splits from the source, from lists, and by hash."""

import re
from collections import Counter
from itertools import takewhile
from posixpath import basename
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.splits import (
    SplitOptions,
    assign_splits,
    check_groups,
    read_fold,
)
from halofeed.prep.layouts import SourceExample
from halofeed.prep.sources.file_names import stem_of
from halofeed.storage import spill
from tests.support.allocations import traced

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
IMAGES = st.lists(
    st.tuples(st.text("ab/", min_size=1, max_size=6), st.none() | st.sampled_from(["p1", "p2", "p3"])),
    unique_by=lambda image: image[0],
)


def make(images: list[tuple[str, str | None]], split: str = "train") -> list[SourceExample]:
    return [SourceExample(source=path, key=path, group=group, split=split) for path, group in images]


def assign(references: list[SourceExample], **options: object) -> dict[str, SourceExample]:
    assigned = list(assign_splits(references, SplitOptions(**options)))
    assert [one.source for one in assigned] == [one.source for one in references]
    return {reference.source: reference for reference in assigned}


CLASSES = st.sampled_from(["cat", "dog", "owl"])
LABELED = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=4), CLASSES), unique_by=lambda one: one[0], max_size=60
)


def labeled(images: list[tuple[str, str]]) -> list[SourceExample]:
    return [SourceExample(source=path, key=path, label=label) for path, label in images]


@given(LABELED, LABELED, st.integers(0, 50))
def test_new_images_move_at_most_three_old_ones_each_at_a_boundary(old, new, seed):
    """One of their own class, and two others as the cut moves; the order of the images plays no part."""
    names = {path for path, _ in old}
    more = [image for image in new if image[0] not in names]
    before, after = (assign(labeled(some), shares=SHARES, seed=seed) for some in (old, more + old[::-1]))
    moved = sum(after[path].split != before[path].split for path in names)
    boundaries = len(SHARES) - 1
    # Splits that would be empty get a group while there are few, which can move one more at each boundary.
    assert moved <= 3 * boundaries * len(more) + boundaries * bool(more)


def test_most_images_stay_where_they_are_when_a_tenth_is_added():
    images = [(f"image {number}", "abcde"[number % 5]) for number in range(2_200)]
    before, after = (assign(labeled(some), shares=SHARES) for some in (images[:2000], images))
    assert sum(after[path].split != before[path].split for path in before) < 60


@given(
    st.lists(st.tuples(st.integers(1, 5), CLASSES), min_size=3, max_size=40),
    st.integers(0, 50),
    st.sampled_from([{"a": 0.5, "b": 0.5}, {"a": 0.8, "b": 0.2}, {"a": 0.6, "b": 0.2, "c": 0.2}]),
)
def test_counts_are_within_one_group_of_the_shares_for_every_seed(groups, seed, shares):
    references = [
        SourceExample(source=f"{group}/{number}", key=f"{group}/{number}", group=f"g{group}", label=label)
        for group, (size, label) in enumerate(groups)
        for number in range(size)
    ]
    counts = Counter(one.split for one in assign(references, shares=shares, seed=seed).values())
    largest = max(size for size, _ in groups)
    assert all(counts[name] for name in shares)
    if len(groups) >= 3 / min(shares.values()):
        assert all(abs(counts[name] - share * len(references)) <= largest for name, share in shares.items())


@pytest.mark.parametrize("seed", range(20))
def test_each_class_has_its_share_in_every_split(seed):
    sizes = {"a": 500, "b": 50, "c": 10}
    images = [(f"{label}{number}", label) for label, many in sizes.items() for number in range(many)]
    found = assign(labeled(images), shares={"train": 0.8, "test": 0.2}, seed=seed).values()
    counts = Counter(one.label for one in found if one.split == "test")
    assert all(abs(counts[label] - 0.2 * many) <= 2 for label, many in sizes.items())
    assert abs(counts.total() - 112) <= 1


def test_a_split_that_stays_empty_is_named():
    said: list[str] = []
    list(assign_splits(make([("1.png", None), ("2.png", None)]), SplitOptions(shares=SHARES), said.append))
    assert len(said) == 1 and "is empty: there are 2 groups for 3 splits" in said[0]


@given(IMAGES, st.integers(0, 5))
def test_a_group_is_never_divided(images, seed):
    splits = {}
    for reference in assign(make(images), shares={"a": 0.5, "b": 0.5}, seed=seed).values():
        if reference.group is not None:
            splits.setdefault(reference.group, set()).add(reference.split)
    assert all(len(found) == 1 for found in splits.values())


def test_sessions_of_a_bids_subject_stay_together():
    names = [f"sub-{n:02d}/ses-{m}/anat/sub-{n:02d}_ses-{m}_T2w.nii.gz" for n in range(1, 9) for m in (1, 2)]
    found = checked([(name, None) for name in names])
    by_subject = {name: {split for one, split in found.items() if one.startswith(name[:6])} for name in names}
    assert all(len(splits) == 1 for splits in by_subject.values()) and set(found.values()) == {"a", "b"}


def test_folds_that_take_up_a_test_split_of_the_source_say_so():
    said: list[str] = []
    images = [SourceExample(source=f"{n}.png", key=n, split="test" if n > 8 else "train") for n in range(12)]
    list(assign_splits(images, SplitOptions(folds=3), said.append))
    assert len(said) == 1 and "split test are in the folds" in said[0]
    list(assign_splits(images[:8], SplitOptions(folds=3), said.append))
    list(assign_splits(images, SplitOptions(shares=HALVES), said.append))
    assert len(said) == 1


WRONG = [
    ({"shares": {"a": 0.5}}, "sum of 1, got 0.5"),
    *(({"shares": {"a": share, "b": 1 - share}}, "above 0") for share in (1.5, float("nan"), 1)),
    *(({"group_pattern": pattern}, "--group-pattern") for pattern in ("p", "(a)(b)", "(")),
]


@pytest.mark.parametrize(("options", "word"), WRONG)
def test_shares_are_positive_and_sum_to_one_and_patterns_have_one_group(options, word):
    SplitOptions(shares={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    with pytest.raises(UsageError, match=word):
        SplitOptions(**options)


def test_a_pattern_finds_the_group_in_the_path_and_one_that_the_source_divides_is_named():
    references = make([("p1/a.jpg", "other"), ("p1/b.jpg", None), ("p2/c.jpg", None), ("x.jpg", None)])
    found = assign(references, group_pattern=r"^(p\d+)/", shares=SHARES)
    assert [reference.group for reference in found.values()] == ["p1", "p1", "p2", None]
    assert found["x.jpg"].problem == ("selection", "group pattern does not match", "")
    assert found["p1/a.jpg"].split == found["p1/b.jpg"].split
    references = make([("a.jpg", "p1"), ("c.jpg", None)]) + make([("b.jpg", "p1")], split="test")
    words = r"group is divided, .*: a.jpg is in train, b.jpg in test"
    with pytest.raises(AnnotationsError, match=words) as raised:
        assign(references)
    assert "p1" not in str(raised.value), "it may be a patient's name"
    with pytest.raises(AnnotationsError, match="group is divided"):
        assign(references, lists={"x": "a.jpg\nc.jpg", "y": "b.jpg"})
    assigned = assign(references, shares=SHARES).values()
    assert len({reference.split for reference in assigned if reference.group}) == 1
    references = make([("a.jpg", None)]) + make([("b.jpg", None)], split="day 2")
    assert list(assign(references).values()) == references


LISTED = [
    SourceExample(source="x/a.jpg", key=17),
    SourceExample(source="x/b.jpg", key=18),
    SourceExample(source="y/b.jpg", key=19),
    SourceExample(source="y/c.d.png", key=20, problem=("annotation", "box is inverted", "")),
    SourceExample(source="z.jpg", key=21),
]


def test_list_entries_are_paths_names_stems_or_ids_and_refused_where_they_mean_nothing_or_too_much():
    lists = {"train": "\ufeffa\r\n\r\n19\n", "test": "x/b\n./z.jpg\nc.d.png"}
    found = assign(LISTED, lists=lists)
    assert [reference.split for reference in found.values()] == ["train", "test", "train", "test", "test"]
    assert [reference.problem for reference in found.values()] == [reference.problem for reference in LISTED]
    found = assign(LISTED, lists={"train": "a.jpg"})
    assert found["x/b.jpg"].problem == ("selection", "in no split list", "")
    assert found["y/c.d.png"].problem == ("annotation", "box is inverted", "")
    references = [SourceExample(source=f"Archery/v_{number}.avi", key=number) for number in (1, 2)]
    found = assign(references, lists={"train": "Archery/v_1.avi 3\n", "test": "Archery/v_2.avi\n"})
    assert [one.split for one in found.values()] == ["train", "test"]
    for lists, word in (
        ({"train": "a\nq.jpg"}, "train list, line 2: 'q.jpg' means no image"),
        ({"train": "b.jpg"}, "'b.jpg' means several images: x/b.jpg and y/b.jpg"),
        ({"train": "a", "test": "17"}, "test list, line 1: x/a.jpg is already in the train list"),
        ({"train": "a\na"}, "already in the train list"),
    ):
        with pytest.raises(AnnotationsError, match=word):
            assign(LISTED, lists=lists)


FOLDS = [{"train": ["a", "b"], "val": ["c"]}, {"train": ["b", "c"], "val": ["a"]}]


def test_folds_of_nnunet_divide_the_training_cases_and_what_is_none_is_refused():
    references = [SourceExample(source=f"imagesTr/{name}_0000.nii.gz", key=name) for name in "abcd"]
    references.append(SourceExample(source="imagesTs/a_0000.nii.gz", key="t", split="test"))
    found = assign(references, cases=read_fold(FOLDS, 1))
    assert [one.split for one in found.values()] == ["val", "train", "train", "train", "test"]
    problems = [one.problem and one.problem[1] for one in found.values()]
    assert problems == [None, None, None, "in no split list", None]
    with pytest.raises(AnnotationsError, match="--nnunet-splits: c: no such case among the training images"):
        assign(references[:2], cases=read_fold(FOLDS, 0))
    with pytest.raises(AnnotationsError, match="case 'a' is in train and in val"):
        assign(references, cases={"train": ("a",), "val": ("a",)})
    for document, fold, reason in (
        (FOLDS, 2, "--nnunet-fold 2: expected 0 to 1"),
        ({"train": ["a"]}, 0, "one for each fold"),
        ([{"train": "a"}], 0, "one for each fold"),
        ([], None, "one for each fold"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_fold(document, fold)


NAMES = st.sampled_from(["a/1.jpg", "a/2.jpg", "b/1.png", "b/c/2.jpg", "3.jpg", "a/3.jpg"])


@given(
    st.lists(NAMES, unique=True, min_size=1),
    st.lists(NAMES | st.sampled_from(["1", "3.jpg", "c/2", "a\\2.jpg", "x"])),
)
def test_an_entry_means_the_one_image_that_its_best_name_has(sources, entries):
    """Whether the references stay in memory or not."""

    def meant(entry):
        for name_of in (str, lambda one: one.rpartition(".")[0], lambda one: f"id {one}", basename, stem_of):
            if found := [one for one in sources if name_of(one) == entry.replace("\\", "/")]:
                return found
        return by_end(entry.replace("\\", "/"))

    def by_end(entry):
        *above, name = entry.split("/")
        ranks = {}
        for source in sources:
            *folders, file = source.split("/")
            pairs = zip(reversed(above), reversed(folders), strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if stem_of(file) == stem_of(name) and (shared or not above or not folders):
                ranks[source] = shared, file == name
        best = max(ranks.values(), default=(0, False))
        elsewhere = {folder for source in sources for folder in source.split("/")[:-1]}
        if best[0] < len(above) and above[-1 - best[0]] in elsewhere:
            return []
        return [source for source, rank in ranks.items() if rank == best]

    references = [SourceExample(source=one, key=f"id {one}") for one in sources]
    given_lists = {"val": "\n".join(entries)}
    means = [meant(entry) for entry in entries]
    with mock.patch.multiple(spill, SPILL_CHUNK=2, _ITEMS_PER_ROW=1):
        if any(len(one) != 1 for one in means) or len({one[0] for one in means}) < len(means):
            with pytest.raises(AnnotationsError, match=r"means no image|means several|already in the val"):
                assign(references, lists=given_lists)
            return
        assigned = assign(references, lists=given_lists)
    chosen = {one[0] for one in means}
    assert {source for source, one in assigned.items() if one.split == "val"} == chosen
    assert all((one.problem is None) == (source in chosen) for source, one in assigned.items())


@pytest.mark.long
def test_references_beside_lists_are_not_held(monkeypatch):
    monkeypatch.setattr(spill, "SPILL_CHUNK", 1_000)
    names = [f"a/{number:06d}.jpg" for number in range(20_000)]
    options = SplitOptions(lists={"val": "\n".join(names)})

    def peak() -> int:
        with traced() as found:
            references = (SourceExample(source=one, key=one) for one in names)
            assert sum(1 for _ in assign_splits(references, options)) == 20_000
        return found.peak

    assert min(peak(), peak()) < 20_000 * 500  # what other threads allocate meanwhile counts, too


HALVES = {"a": 0.5, "b": 0.5}


def checked(images, **more):
    options = SplitOptions(shares=HALVES, **more)
    assigned = assign_splits(make(images), options)
    return {one.source: one.split for one in check_groups(assigned, options, are_patients=False)}


ASKED = {
    "a word for none": ("1.png=p1 2.png=p2 3.png=N/A", "3.png has none"),
    "patients": ("a/patient001_f1.nii a/patient001_f9.nii b.nii", "one 'patient001'"),
    "persons": ("x/person1_virus_6.jpeg y/person1_bacteria_1.jpeg IM-1.jpeg", "person1"),
    "frames": ("Video_12/1.png Video_12/2.png Video_1/1.png", "one 'Video 12'"),
    "folders": ("sub-01/ses-1/t1.nii sub-01/ses-2/t1.nii sub-02/t1.nii", "one 'sub-01'"),
}


def with_groups(text: str) -> list[tuple[str, str | None]]:
    """Paths, and their groups after an =; for blanks within a name stand underscores after Video."""
    found = (one.replace("Video_", "Video ").partition("=") for one in text.split())
    return [(path, group or None) for path, _, group in found]


@pytest.mark.parametrize("case", ASKED)
def test_shares_that_might_divide_a_group_are_refused_and_the_advice_works(case):
    images, words = with_groups(ASKED[case][0]), ASKED[case][1]
    with pytest.raises(AnnotationsError, match=words) as caught:
        checked(images)
    assert str(caught.value).startswith("--split-shares: ")
    patterns = re.findall("--group-pattern '(.*?)'", str(caught.value))
    assert patterns[-1] == "(.+)"
    for pattern in patterns:
        assert len(checked(images, group_pattern=pattern)) == len(images)
    if len(patterns) == 2:
        found = {one.group for one in assign(make(images), shares=HALVES, group_pattern=patterns[0]).values()}
        assert len(found) == len(images) - 1


def test_images_of_which_nothing_says_that_they_belong_together_are_divided():
    texts = ["hat/1.png shirt/1.png casebook/2.png", "case_001.nii case_0010.nii case_002.nii"]
    for text in (*texts, "1.png=p1 2.png=p2", "1.png=unknown 2.png=unknown", "patient1/ct.nii"):
        assert len(checked(with_groups(text))) == len(text.split())
