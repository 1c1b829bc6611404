"""Images and labels by pattern, custom or the names of LiTS, and what the files of scans are called."""

import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError, SourceError, UsageError
from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.annotations.pairing import NEITHER
from halofeed.prep.annotations.patterns import Expression, compile_pair, compile_pattern
from halofeed.prep.layouts import LayoutOptions, SourceExample, find_layout
from halofeed.prep.sources.file_names import find_annotated_file, iterate_scans, stem_of, volume_files
from halofeed.prep.sources.files import LocalFiles
from tests.support.layout_references import by_source, make, outcome

read = partial(by_source, "pairs")


def test_real_scans_pair_by_their_folders_a_suffix_or_patterns_that_name_every_other(test_data):
    references = read(LocalFiles(test_data / "volumes" / "hippocampus"))
    assert len(references) == 13
    for source, reference in references.items():
        assert reference.mask == source.replace("images/", "labels/") and reference.split == "train"
    references = read(LocalFiles(test_data / "volumes" / "spleen"))
    assert outcome(references) == {"sub-spleen2_ct.nii.gz": "sub-spleen2_ct_seg-manual.nii.gz"}
    files = LocalFiles(test_data / "volumes")
    image, label = (f"hippocampus/{folder}/{{id}}.nii.gz" for folder in ("images", "labels"))
    references = read(files, image_pattern=image, label_pattern=label)
    assert sum(reference.problem is None for reference in references.values()) == 13
    others = {reference.problem[1] for reference in references.values() if reference.problem}
    assert others == {NEITHER[1]}
    named = {path for reference in references.values() for path in reference.paths}
    assert named == set(iterate_scans(files.sizes()))


PATTERNS = [
    (
        ("{id}/ct.nii.gz", "{id}/seg.nii.gz"),
        "p1/ct.nii.gz p1/seg.nii.gz a/p2/ct.nii.gz a/p2/seg.nii.gz p3/ct.nii.gz p4/seg.nii.gz",
        {
            "p1/ct.nii.gz": "p1/seg.nii.gz",
            "a/p2/ct.nii.gz": "a/p2/seg.nii.gz",
            "p3/ct.nii.gz": "image has no label",
            "p4/seg.nii.gz": "label has no image",
        },
    ),
    (("{id}.nii.gz", "{id}_seg.nii.gz"), "a.nii.gz a_seg.nii.gz", {"a.nii.gz": "a_seg.nii.gz"}),
    (("{id}_ct.nii", "{id}.nii"), "a_ct.nii a.nii", {"a_ct.nii": "a.nii"}),
    (("scan.nii", "truth.nii"), "scan.nii truth.nii a.png", {"scan.nii": "truth.nii", "a.png": NEITHER[1]}),
    (
        ("i/{id}.img", "l/{id}.hdr"),
        "i/a.hdr i/a.img l/a.hdr l/a.img i/b.img l/b.hdr l/b.img i/c.hdr i/c.img l/c.hdr",
        {
            "i/a.hdr": "l/a.hdr",
            "i/b.img": "the .hdr file with the header is missing",
            "i/c.hdr": "the .img file with the voxels is missing",
        },
    ),
    (
        ("i/*/{id}.png", "l/{id}.png"),
        "i/x/a.png i/y/a.png l/a.png i/x/b.png l/b.png",
        dict.fromkeys(("i/x/a.png", "i/y/a.png"), "several images for one label") | {"i/x/b.png": "l/b.png"},
    ),
    (("i/{id}.png", "l/{id}.*"), "i/a.png l/a.png l/a.tif", {"i/a.png": "several labels for one image"}),
]


@pytest.mark.parametrize(("patterns", "paths", "expected"), PATTERNS)
def test_patterns_pair_what_the_placeholders_share(tmp_path, patterns, paths, expected):
    image, label = patterns
    assert outcome(read(make(tmp_path, *paths.split()), image_pattern=image, label_pattern=label)) == expected


def test_bids_scans_find_their_labels_by_custom_or_by_two_stars_in_a_pattern(tmp_path):
    """As in BIDS, where images and labels lie at different depths: they were one folder, and {id} took the rest."""
    image, label = "sub-1/ses-1/anat/sub-1_T1w.nii.gz", "derivatives/x/sub-1/ses-1/anat/sub-1_dseg.nii.gz"
    root = make(tmp_path, image, label)
    options = {"image_pattern": "**/{id}_T1w.nii.gz", "label_pattern": "**/{id}_dseg.nii.gz"}
    assert outcome(read(root, **options)) == {image: label}
    scans = [f"sub-01/ses-{n}/anat/sub-01_ses-{n}_T2w" for n in (1, 2)]
    labels = [f"derivatives/labels/{scan}_dseg.nii.gz" for scan in scans]
    other = ["derivatives/fmriprep/sub-01/anat/sub-01_desc-preproc_T1w.nii.gz"]
    files = make(tmp_path / "b", *(f"{scan}.nii.gz" for scan in scans), *labels, *other)
    found = outcome(by_source("pairs", files))
    expected = {f"{scan}.nii.gz": label for scan, label in zip(scans, labels, strict=True)}
    assert {source: found[source] for source in expected} == expected and found[other[0]] == NEITHER[1]


def test_split_and_group_come_from_the_pattern_and_images_without_labels_may_be_for_prediction(tmp_path):
    files = make(tmp_path, *(f"{split}/p7/{n}_1.nii" for split in ("train", "test") for n in ("ct", "seg")))
    image, label = (f"{{split}}/{{group}}/{name}_{{id}}.nii" for name in ("ct", "seg"))
    references = read(files, image_pattern=image, label_pattern=label)
    assert {(one.split, one.group, one.mask) for one in references.values()} == {
        ("train", "p7", "train/p7/seg_1.nii"),
        ("test", "p7", "test/p7/seg_1.nii"),
    }
    patterns = {"image_pattern": "{id}.nii", "label_pattern": "l/{id}.nii"}
    found = read(make(tmp_path / "a", "a.nii", "l/b.nii"), missing_masks="prediction", **patterns)
    assert outcome(found) == {"a.nii": None, "l/b.nii": "label has no image"}
    beside = ("LICENSE", "participants.tsv", "images/._a.nii")
    assert set(read(make(tmp_path / "b", "images/a.nii", "labels/a.nii", *beside))) == {"images/a.nii"}
    with pytest.raises(AnnotationsError, match="names a split"):
        read(make(tmp_path / "c", "train/images/a.png", "train/labels/a.png", "images/b.png", "labels/b.png"))


CUSTOMS = [
    ("images/a.jpg labels/a.png", {"images/a.jpg": ("labels/a.png", "train")}),
    (
        "train/images/a.png train/masks/a.png val/images/a.png val/masks/a.png",
        {f"{split}/images/a.png": (f"{split}/masks/a.png", split) for split in ("train", "val")},
    ),
    ("images/test/b.nii labels/test/b.nii", {"images/test/b.nii": ("labels/test/b.nii", "test")}),
    (
        "imagesTr/a.nii.gz labelsTr/a.nii.gz imagesTs/b.nii.gz",
        {"imagesTr/a.nii.gz": ("labelsTr/a.nii.gz", "train"), "imagesTs/b.nii.gz": (None, "test")},
    ),
    (
        "imagesTr/a.nii labelsTr/a.nii imagesTs/b.nii imagesTs/c.nii labelsTs/b.nii",
        {
            "imagesTr/a.nii": ("labelsTr/a.nii", "train"),
            "imagesTs/b.nii": ("labelsTs/b.nii", "test"),
            "imagesTs/c.nii": ("image has no label", "test"),
        },
    ),
    (
        "p/images/1.nii q/images/1.nii p/labels/1.nii images/2.nii labels/3.nii stray.nii",
        {
            "p/images/1.nii": ("p/labels/1.nii", "train"),
            **dict.fromkeys(("q/images/1.nii", "images/2.nii"), ("image has no label", "train")),
            "labels/3.nii": ("label has no image", "train"),
            "stray.nii": (NEITHER[1], "train"),
        },
    ),
    (
        "x/a.nii.gz x/a_mask.nii.gz y/a.nii.gz y/b-label.nii",
        {
            "x/a.nii.gz": ("x/a_mask.nii.gz", "train"),
            "y/a.nii.gz": ("image has no label", "train"),
            "y/b-label.nii": ("label has no image", "train"),
        },
    ),
]


@pytest.mark.parametrize(("paths", "expected"), CUSTOMS)
def test_customs_of_names_pair_without_patterns(tmp_path, paths, expected):
    references = read(make(tmp_path, *paths.split()))
    found = outcome(references)
    assert {source: (found[source], references[source].split) for source in references} == expected


def test_patterns_that_cannot_be_are_refused_and_two_part_extensions_and_pairs_known():
    for image, label, words in (
        ("{id}.nii", "labels/one.nii", "in both or in neither"),
        ("{id}.nii", "{id}/{class}.nii", "'{class}' is not known"),
        ("{id.nii", "{id}_s.nii", "'{' is not known"),
        ("/data/{id}.nii", "{id}_s.nii", "path below the folder"),
    ):
        with pytest.raises(UsageError, match=words.replace("{", r"\{").replace("}", r"\}")):
            compile_pair(image, label, with_class=False)
    for path, stem, files in (
        ("a/b.nii.gz", "b", ("a/b.nii.gz",)),
        ("b.v2.NII", "b.v2", ("b.v2.NII",)),
        ("b.hdr", "b", ("b.hdr", "b.img")),
        ("b.IMG.GZ", "b", ("b.HDR.GZ", "b.IMG.GZ")),
        ("CT.1.2.840.16589", "CT.1.2.840.16589", ("CT.1.2.840.16589",)),
        (".nii", ".nii", (".nii",)),
    ):
        assert stem_of(path) == stem and volume_files(path) == files


_AS_EXPRESSION = {"*": "[^/]*", "**": ".*", "**/": "(?:.*/)?"}
_AS_EXPRESSION |= {"{id}": "(?P<id>.+)", "{group}": "(?P<group>[^/]+)"}


@given(
    st.lists(st.sampled_from([*_AS_EXPRESSION, "a", "b", "/", "_"]), min_size=1, max_size=7),
    st.text("ab/_", max_size=12),
)
def test_a_pattern_matches_as_its_regular_expression_does(parts, path):
    text = "".join(parts)
    assume(not text.startswith("/") and "***" not in text and not text.endswith("**/"))
    expression = ""
    for part in re.split(r"(\{\w+\}|\*\*/|\*\*|\*)", text):
        again = part.startswith("{") and _AS_EXPRESSION[part] in expression
        expression += f"(?P={part[1:-1]})" if again else _AS_EXPRESSION.get(part, part)
    found = re.fullmatch(expression, path)
    assert compile_pattern(text, "x", ("id", "group")).match(path) == (found and found.groupdict())


def test_patterns_match_the_longest_paths_of_linux_and_refuse_what_takes_too_long(monkeypatch):
    """`re` takes minutes for 200 characters; a path of Linux has at most 4,096."""
    for text in ("{id}*{group}*{split}*y*x.nii", "**/*{id}**{group}*y*x.nii", "*a*{id}*a*a*y*x.nii"):
        pattern = compile_pattern(text, "image_pattern", ("id", "group", "split"))
        for name in ("a" * 4_000, "a/" * 2_000 + "b", "a_b" * 1_300):
            assert pattern.match(f"{name}_-x.nii") is None
            assert pattern.match(f"{name}a/aa_yx.nii") is not None
    monkeypatch.setattr("halofeed.prep.annotations.patterns._TIMEOUT_SECONDS", 0.05)
    pattern = compile_pattern("{id}{group}_{split}_{id}_{group}z", "x", ("id", "group", "split"))
    with pytest.raises(UsageError, match=r"'a_a_.*Write each placeholder once"):
        pattern.match("a_" * 400 + "z")


def test_a_search_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr("halofeed.prep.annotations.patterns._TIMEOUT_SECONDS", 0.05)
    with pytest.raises(UsageError, match=r"--group-pattern.*without a repetition inside a repetition"):
        Expression(option="--group-pattern", text="((a|aa)+)$").search("a" * 60 + "!")


def test_a_file_is_never_looked_for_elsewhere_than_it_was_said_to_be(tmp_path):
    files = make(tmp_path, "p1/seg.nii.gz", "p1/ct.nii", "p2/ct.img", "p2/ct.hdr")
    assert find_annotated_file(str(tmp_path / "p1/ct.nii"), "image", files) == "p1/ct.nii"
    assert find_annotated_file("..\\p2\\ct.img", "image", files, "p1") == "p2/ct.hdr"
    for wrong in ("seg.nii.gz", "p3/seg.nii.gz", "../p1/seg.nii.gz", "P1/seg.nii.gz", "/p1/seg.nii.gz"):
        with pytest.raises(SourceError, match="label file not found"):
            find_annotated_file(wrong, "label", files)
    with pytest.raises(SourceError, match=r"there is p1/ct\.nii"):
        find_annotated_file("p1/ct.nii.gz", "image", files)


def test_a_reference_is_written_as_ever_and_a_series_folder_once():
    text = '{"key":"a.jpg","label":"hat","source":"a.jpg","split":"train"}'
    assert reference_to_json(SourceExample(source="a.jpg", key="a.jpg", label="hat")) == text
    assert '"boxes":[]' in reference_to_json(SourceExample(source="a", key="a", boxes=()))
    members = tuple(f"a long folder/of a patient/{number:04d}" for number in range(500))
    text = reference_to_json(SourceExample(source="a long folder/of a patient", key="k", members=members))
    assert text.count("patient") == 2 and reference_from_json(text).members == members
    for odd in ("1 2", "p/1", "p/1 pq/2", "p//q/1 p//q/2", "p//q/1 p/q/2", "/p/1 q/2"):
        one = SourceExample(source=".", key=".", members=tuple(odd.split()))
        assert reference_from_json(reference_to_json(one)) == one


BRATS = {"image_pattern": "{id}/{id}_{channel}.nii.gz", "label_pattern": "{id}/{id}_seg.nii.gz"}


def brats(root: Path, case: str, *names: str) -> None:
    make(root, *(f"{case}/{case}_{name}.nii.gz" for name in (*names, "seg")))


def test_files_of_one_channel_each_become_the_channels_of_one_image(tmp_path):
    brats(tmp_path, "B_001", "t1", "flair", "t2")
    brats(tmp_path, "B_002", "t2", "flair")
    brats(tmp_path, "B_003", "flair", "t1", "t2")
    files = LocalFiles(tmp_path)
    references = read(files, **BRATS)
    assert outcome(references) == {
        "B_001/B_001_flair.nii.gz": "B_001/B_001_seg.nii.gz",
        "B_002/B_002_flair.nii.gz": "channel is missing",
        "B_003/B_003_flair.nii.gz": "B_003/B_003_seg.nii.gz",
    }
    first = references["B_001/B_001_flair.nii.gz"]
    assert first.channels == ("B_001/B_001_t1.nii.gz", "B_001/B_001_t2.nii.gz")
    assert first.notes == ("channels in order of name: flair, t1, t2",)
    references = read(files, **BRATS, channel_order=("t2", "flair"))
    assert {source: one.channels for source, one in references.items() if one.problem is None} == {
        f"B_00{number}/B_00{number}_t2.nii.gz": (f"B_00{number}/B_00{number}_flair.nii.gz",)
        for number in (1, 2, 3)
    }
    assert not references["B_001/B_001_t2.nii.gz"].notes
    assert outcome(references)["B_001/B_001_t1.nii.gz"] == "channel is left out by --channel-order"
    with pytest.raises(AnnotationsError, match=r"order: t1ce: no such channel in .*; found flair, t1, t2"):
        read(files, **BRATS, channel_order=("t1ce",))
    with pytest.raises(UsageError, match="channel"):
        read(files, image_pattern="{id}_x.nii.gz", label_pattern="{id}_{channel}.nii.gz")
    make(tmp_path / "b", "i/a/t1.nii.gz", "i/a/t1.nii", "i/a/t2.nii", "l/a.nii")
    patterns = {"image_pattern": "i/{id}/{channel}.nii*", "label_pattern": "l/{id}.nii"}
    assert outcome(read(tmp_path / "b", **patterns)) == {"i/a/t1.nii": "several files of one channel"}


read_lits = partial(by_source, "lits")


def test_lits_names_pair_by_number_wherever_they_lie(tmp_path):
    files = make(
        tmp_path,
        *("pt1/volume-0.nii", "pt2/volume-1.nii.gz", "segs/segmentation-0.nii", "segs/segmentation-1.nii.gz"),
        *("volume-2.nii", "segmentation-3.nii", "test-volume-0.nii", "liver.nii", "README.md"),
        *("volume-4.nii", "volume-04.nii", "segmentation-4.nii"),
    )
    references = read_lits(files)
    assert outcome(references) == {
        "pt1/volume-0.nii": "segs/segmentation-0.nii",
        "pt2/volume-1.nii.gz": "segs/segmentation-1.nii.gz",
        "volume-2.nii": "image has no label",
        "segmentation-3.nii": "label has no image",
        "test-volume-0.nii": None,
        "liver.nii": "file is neither image nor label by its name",
        "volume-4.nii": "several images for one label",
        "volume-04.nii": "several images for one label",
    }
    assert references["test-volume-0.nii"].split == "test"


def test_lits_numbers_may_start_anew_in_each_split(tmp_path):
    names = [f"{split}/{name}-0.nii" for split in ("train", "val") for name in ("ct", "segmentation")]
    files = make(tmp_path / "a", *names)
    found = {(one.split, one.mask) for one in read_lits(files).values()}
    assert found == {(split, f"{split}/segmentation-0.nii") for split in ("train", "val")}
    layout = find_layout("lits")
    assert layout.label_values is not None
    assert layout.label_values(files, files, None, LayoutOptions())[2] == "tumour"
    with pytest.raises(AnnotationsError, match="no volume-N"):
        read_lits(make(tmp_path / "empty", "a.nii"))
    lost = {"test-volume-0.nii": "image has no label", "test-segmentation-7.nii": "label has no image"}
    assert outcome(read_lits(make(tmp_path / "test", *lost))) == lost
