"""Images without a label are in splits of their own, so that no loss takes their zeros for background."""

from collections.abc import Sequence
from typing import Any

import pytest

from halofeed.errors import UsageError
from halofeed.prep.annotations.splits import SplitOptions, assign_splits
from halofeed.prep.annotations.unlabeled import assign_unlabeled_apart
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.data import evaluation_split
from halofeed.trainer.task import check_has_labels
from tests.support.conversions import run_convert
from tests.support.small_scans import AFFINE, image, mask
from tests.support.volume_support import save_nifti, write_table

FAULT = ("read", "damaged", "")


def listed(*rows: tuple[str, str, bool]) -> list[SourceExample]:
    return [
        SourceExample(source=name, key=name, split=split, mask="m" if has_label else None)
        for name, split, has_label in rows
    ]


def splits(examples: Sequence[SourceExample], **options: Any) -> dict[str, str]:
    chosen = SplitOptions(**options)
    found = assign_unlabeled_apart(
        examples, lambda some: assign_splits(some, chosen), by_shares=bool(chosen.shares)
    )
    return {one.source: one.split for one in found}


CASES = {
    "a split that the source names": (
        [("a", "train", True), ("t", "test", False)],
        {"a": "train", "t": "test"},
    ),
    "beside labels in one split": (
        [("a", "train", True), ("b", "train", False), ("t", "test", True), ("u", "test", False)],
        {"a": "train", "b": "unlabeled", "t": "test", "u": "unlabeled"},
    ),
    "labels of the test images alone": (
        [("a", "train", False), ("t", "test", True)],
        {"a": "unlabeled", "t": "test"},
    ),
    "no label at all": ([("a", "train", False), ("t", "test", False)], {"a": "train", "t": "test"}),
    "a labeled split of that name": (
        [("a", "unlabeled", True), ("b", "train", False)],
        {"a": "unlabeled", "b": "unlabeled_too"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_image_without_a_label_is_in_no_split_with_labels(case):
    rows, expected = CASES[case]
    assert splits(listed(*rows)) == expected


def test_shares_divide_the_images_with_labels_and_lists_name_any():
    rows = [*((f"a{n}", "train", True) for n in range(40)), *((f"t{n}", "test", False) for n in range(9))]
    found = splits(listed(*rows), shares={"train": 0.5, "test": 0.5})
    assert {found[f"t{n}"] for n in range(9)} == {"unlabeled"}
    assert found == {
        **splits(listed(*rows[:40]), shares={"train": 0.5, "test": 0.5}),
        **{f"t{n}": "unlabeled" for n in range(9)},
    }
    by_list = splits(listed(*rows[:1], *rows[40:41]), lists={"train": "a0", "prediction": "t0"})
    assert by_list == {"a0": "train", "t0": "prediction"}
    mixed = splits(listed(*rows[:1], *rows[40:41]), lists={"train": "a0\nt0"})
    assert mixed == {"a0": "train", "t0": "unlabeled"}


def test_a_rejected_image_names_no_split():
    rejected = SourceExample(source="r", key="r", problem=FAULT)
    assert splits([*listed(("a", "train", True)), rejected]) == {"a": "train", "r": "train"}


def test_a_conversion_tells_which_images_have_no_label_and_the_trainer_refuses_their_split(tmp_path, capsys):
    for name in "abc":
        save_nifti(tmp_path / f"{name}.nii.gz", image(), AFFINE)
    save_nifti(tmp_path / "seg.nii.gz", mask(), AFFINE)
    table = [("a", "a.nii.gz", "seg.nii.gz"), ("b", "b.nii.gz", ""), ("c", "c.nii.gz", "")]
    write_table(tmp_path, table)
    done = run_convert(
        tmp_path / "table.csv",
        tmp_path / "out",
        layout="csv",
        task="segmentation",
        depth=5,
        height=8,
        width=9,
    )
    assert {name: one.records for name, one in done.manifest.splits.items()} == {"train": 1, "unlabeled": 2}
    assert "2 of 3 images have no label, such as b.nii.gz" in capsys.readouterr().err
    manifest = read_manifest(done.folder)
    assert evaluation_split(manifest, "", "train") is None
    with pytest.raises(UsageError, match=r"has no labels.*take --split train"):
        check_has_labels(manifest, "unlabeled")
    with pytest.raises(UsageError, match="take --set evaluate_split=train"):
        evaluation_split(manifest, "unlabeled", "train")
    check_has_labels(manifest, "train")
