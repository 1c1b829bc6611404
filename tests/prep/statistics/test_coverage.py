"""What the static shape cuts off is said, and the voxels of every class and value are counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.pipelines.convert import Conversion
from halofeed.pipelines.summary import summary
from halofeed.prep.convert import tallies as statistics
from halofeed.prep.convert.tallies import count_labels
from halofeed.prep.voxels import counts
from halofeed.prep.voxels.counts import count_intensities
from halofeed.prep.voxels.intensity import STORES, IntensityPlan, as_numbers
from tests.support.allocations import traced
from tests.support.conversions import run_convert
from tests.support.volume_support import findings, save_nifti, stored_volumes, write_table

SHAPE = (12, 20, 24)
TABLE = {"layout": "csv", "task": "segmentation", "depth": 12, "height": 20, "width": 24}
SMALLEST = {"depth": 24, "height": 24, "width": 24}
ORGAN = (slice(2, 12), slice(4, 16), slice(0, 10))
FAR = (slice(0, 2), slice(0, 3), slice(20, 24))
STRAIGHT = np.array([[0, 0, 1.5, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])
TILTED = STRAIGHT.copy()
TILTED[1, 0] = 1.0


def convert(folder: Path, affine: np.ndarray = STRAIGHT, **options: Any) -> Conversion:
    """One scan with a large class 1 and a small class 2 in a far corner."""
    image = np.random.default_rng(0).integers(-1000, 1000, SHAPE).astype(np.int16)
    mask = np.zeros(SHAPE, np.uint8)
    mask[ORGAN], mask[FAR] = 1, 2
    save_nifti(folder / "s/image.nii", image, affine)
    save_nifti(folder / "s/mask.nii", mask, affine)
    write_table(folder / "s", [("a", "image.nii", "mask.nii")])
    (folder / "labels.txt").write_text("background\nspleen\nnode\n")
    named = {"label_map": str(folder / "labels.txt")}
    return run_convert(folder / "s", folder / "out", **named, **(TABLE | options))


def cut_shares(done: Conversion) -> dict[int, float]:
    statistics = done.manifest.splits["train"].statistics
    cut = statistics.label_cut_mm3
    return {int(value): cut.get(value, 0) / mm3 for value, mm3 in statistics.label_mm3.items()}


def voxels_in(box: tuple[slice, ...]) -> np.ndarray:
    inside = np.zeros(SHAPE, bool)
    inside[box] = True
    return inside


def expected_shares(kept: tuple[slice, ...]) -> dict[int, float]:
    """Slow and obvious: which of the classes' voxels are in a box of the scan."""
    organs = {1: voxels_in(ORGAN), 2: voxels_in(FAR)}
    return {value: 1 - (organ & voxels_in(kept)).sum() / organ.sum() for value, organ in organs.items()}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, np.s_[:, :, :]),
        ({"fit": "stretch", "depth": 4, "height": 5, "width": 6}, np.s_[:, :, :]),
        ({"fit": "tiles", "depth": 5, "height": 8, "width": 8}, np.s_[:, :, :]),
        ({"depth": 6}, np.s_[3:9, :, :]),
        ({"height": 10, "width": 8}, np.s_[:, 5:15, 8:16]),
        ({"spacing_mm": (1.5, 1.0, 0.75), "depth": 12, "height": 40, "width": 48}, np.s_[3:9, :, :]),
        ({"spacing_mm": (6.0, 4.0, 3.0), "depth": 2, "height": 10, "width": 12}, np.s_[4:8, :, :]),
    ],
)
def test_the_share_of_each_class_that_is_cut_off_is_counted_at_the_source(tmp_path, options, kept):
    done = convert(tmp_path, **options)
    expected = expected_shares(kept)
    assert cut_shares(done) == pytest.approx(expected, abs=2e-3)
    lost = any(share > 0.01 for share in expected.values())
    assert findings(done) == ({"a class is cut off (noted)": 1} if lost else {})
    statistics = done.manifest.splits["train"].statistics
    share = statistics.scan_cut_mm3 / statistics.scan_mm3
    assert share == pytest.approx(1 - voxels_in(kept).mean(), abs=1e-3)


def test_a_class_that_a_microscopic_scan_loses_is_noted_and_measured_as_in_a_large_one(tmp_path):
    """All of its classes are below 1 mm³ here, so whole mm³ would show no loss and no size."""
    scale = np.diag([0.004, 0.004, 0.004, 1.0])
    large, small = (
        convert(tmp_path / name, matrix @ STRAIGHT, depth=6)
        for name, matrix in (("large", np.eye(4)), ("small", scale))
    )
    assert findings(small) == findings(large) == {"a class is cut off (noted)": 1}
    sizes = [done.manifest.splits["train"].statistics.ledger for done in (large, small)]
    assert sizes[0] == sizes[1]


def test_a_foreground_crop_that_leaves_a_class_out_is_counted(tmp_path):
    image = np.full(SHAPE, -1000, np.int16)
    image[2:, 4:, :12] = 40
    convert(tmp_path)
    save_nifti(tmp_path / "s/image.nii", image, STRAIGHT)
    named = {"label_map": str(tmp_path / "labels.txt"), "version": "2.0.0"}
    done = run_convert(tmp_path / "s", tmp_path / "out", crop_foreground=True, **named, **TABLE)
    assert cut_shares(done) == pytest.approx({1: 0, 2: 1})


@pytest.mark.parametrize("sides", [{}, {"depth": 5}, {"depth": 8, "height": 9, "width": 10}])
def test_the_share_of_a_tilted_scan_is_that_of_its_stored_label(tmp_path, sides):
    done = convert(tmp_path, TILTED, **{"depth": 12, "height": 26, "width": 24, **sides})
    (record,) = stored_volumes(done)
    before, after = (abs(np.linalg.det(g.affine[:3, :3])) for g in (record.source_grid, record.grid))
    for value, share in cut_shares(done).items():
        organ = voxels_in({1: ORGAN, 2: FAR}[value])
        stored = (record.label == value).sum() * after / (organ.sum() * before)
        assert 1 - share == pytest.approx(stored, abs=0.12), value


def test_the_summary_says_what_is_cut_off_what_padding_costs_and_the_cures(tmp_path):
    done = convert(tmp_path, depth=6)
    text = summary(done)
    assert "warning: train: 100.0% of 'node' (0.2 of 0.2 ml), 40.0% of 'spleen' (4.3 of 10.8 ml)" in text
    assert "--fit tiles" in text and "12x20x24" in text
    assert "warning: 1 class in no record: node" in text
    assert "warning: 1 of 2 structures vanished, such as image.nii: class 2; take --fit tiles" in text
    assert summary(done, warn_cut=1.0).count("warning") == 2
    done = convert(tmp_path / "b", height=300, width=300)
    text = summary(done)
    assert "warning: train: 99.5% of the voxels are padding" in text
    assert "no scan of the data set is larger than 12x20x24; take --height 24 --width 24" in text
    assert "warning" not in summary(convert(tmp_path / "b" / "whole"))


def test_padding_that_no_smaller_shape_avoids_is_no_warning(tmp_path):
    for name, side in (("large", 24), ("small", 8)):
        save_nifti(tmp_path / f"s/{name}.nii", np.ones((side, side, side), np.int16), STRAIGHT)
        save_nifti(tmp_path / f"s/{name}_mask.nii", np.ones((side, side, side), np.uint8), STRAIGHT)
    rows = [("a", "large.nii", "large_mask.nii", "train"), ("b", "small.nii", "small_mask.nii", "test")]
    write_table(tmp_path / "s", rows, "id,image,label,split")
    assert "are padding" not in summary(run_convert(tmp_path / "s", tmp_path / "out", **TABLE | SMALLEST))
    text = summary(run_convert(tmp_path / "s", tmp_path / "wide", **TABLE | SMALLEST | {"width": 256}))
    assert (
        "no scan of the data set is larger than 24x24x24; take --width 24\n" in text
        and text.count("take") == 2
    )


def unlabeled(folder: Path, affine: np.ndarray = STRAIGHT, **options: Any) -> Conversion:
    """A body of 10 x 10 x 12 voxels in air, off the middle along depth."""
    image = np.full(SHAPE, -1000, np.int16)
    image[:10, 5:15, 6:18] = 30
    save_nifti(folder / "s/image.nii", image, affine)
    write_table(folder / "s", [("a", "image.nii", "")])
    return run_convert(folder / "s", folder / "out", missing_masks="prediction", **(TABLE | options))


SIDES = [  # of the record, the scan's affine, the shares that are cut off the view and the body, and what is said
    ({}, STRAIGHT, 0, 0, ""),
    ({"depth": 6}, STRAIGHT, 50, 40, "warning: train: 50.0% of the field of view|up to 40%|--fit tiles"),
    ({"height": 10, "width": 12}, STRAIGHT, 75, 0, "train: 75.0% of the field|nearly all of each body"),
    ({"depth": 2, "height": 10, "width": 12, "fit": "stretch"}, STRAIGHT, 0, 0, ""),
    ({"depth": 5, "height": 10, "width": 12, "fit": "tiles"}, STRAIGHT, 0, 0, ""),
    ({"depth": 6, "height": 40, "width": 40}, TILTED, 50, 40, "warning: train: 50.|lost of 1 of 1 scan"),
]


@pytest.mark.parametrize(("sides", "affine", "of_view", "of_body", "words"), SIDES)
def test_the_share_of_an_unlabeled_scan_and_of_its_body_that_is_cut_off_is_told(
    tmp_path, sides, affine, of_view, of_body, words
):
    done = unlabeled(tmp_path, affine, **sides)
    statistics = done.manifest.splits["train"].statistics
    ((view, _),), ((body, _),) = statistics.scan_cut_percents.items(), statistics.body_cut_percents.items()
    assert (int(view), int(body)) == pytest.approx((of_view, of_body), abs=2 * (affine is TILTED))
    text = summary(done)
    assert all(word in text for word in words.split("|")) and ("field of view" in text) == bool(words)
    assert any("warning" in line and "field of view" in line for line in text.splitlines()) == bool(of_body)


@pytest.mark.parametrize("start", [-6, 10])
def test_a_mask_that_reaches_beyond_its_scan_is_noted(tmp_path, start):
    """The mask's grid begins before the scan's, or ends after it; half of the organ has no voxel to lie on."""
    convert(tmp_path)
    mask = np.zeros((12, 20, 24), np.uint8)
    low = 3 if start < 0 else -1
    mask[slice(low, low + 6) if start < 0 else slice(0, 4), 5:15, 5:15] = 1
    affine = STRAIGHT.copy()
    affine[:3, 3] += affine[:3, 0] * start
    save_nifti(tmp_path / "s/mask.nii", mask, affine)
    again = {"version": "2.0.0", "mask_grid": "resample"}
    done = run_convert(tmp_path / "s", tmp_path / "out", **again, **TABLE)
    assert findings(done)["mask reaches beyond its image (noted)"] == 1
    (record,) = stored_volumes(done)
    assert 0 < record.label.sum() < 0.8 * mask.sum()


def counted(labels: Any) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@settings(deadline=None, max_examples=100)
@given(
    dtype=st.sampled_from(["uint8", "uint16"]),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 40)),
    block=st.integers(1, 40),
    flips=st.sets(st.integers(0, 2)),
    seed=st.integers(0, 99),
)
def test_labels_are_counted_in_pieces_of_any_size_and_order(dtype, shape, block, flips, seed):
    random = np.random.default_rng(seed)
    values = random.integers(0, np.iinfo(dtype).max, np.prod(shape), dtype, endpoint=True)
    labels = np.repeat(values, block)[: values.size].reshape(shape)
    seen = np.flip(labels, tuple(flips))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_CHUNK_LABELS", 64)  # chunks end within a piece
        for view in (seen, seen.transpose(2, 0, 1), seen[:, ::2, 1:]):
            if view.size:
                assert count_labels(view) == counted(view)


def test_counting_labels_that_are_seen_reversed_copies_none():
    labels = np.zeros((40, 512, 512), np.uint16)
    labels[10:20, 100:300, 200:400] = 7
    with traced() as memory:
        found = count_labels(labels[:, ::-1, ::-1])
    assert found == {0: labels.size - 400_000, 7: 400_000}
    assert memory.peak < labels.nbytes / 4


@settings(deadline=None, max_examples=100)
@given(
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16", "int32", "float32"]),
    mask_dtype=st.sampled_from([None, "uint8", "uint16", "int32"]),
    above=st.sampled_from([None, -5, 0, 2.5, 30]),
    seed=st.integers(0, 99),
)
def test_what_is_counted_lies_in_the_mask_and_above_the_threshold(dtype, mask_dtype, above, seed):
    random = np.random.default_rng(seed)
    ends = (0, 100) if dtype.startswith("u") else (-100, 100)
    array = random.integers(*ends, (5, 16, 7)).astype(dtype)[:, ::2, ::-1]
    mask = mask_dtype and random.choice([0, 0, 1, 256], (5, 16, 7)).astype(mask_dtype)[:, ::2]
    wanted = array if mask is None else array[mask != 0]
    wanted = wanted if above is None else wanted[wanted > above]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_SLAB_VOXELS", 100)
        patch.setattr(counts, "_MAX_EXACT_COUNT", 30)
        found = count_intensities(array, mask, above)
    values, numbers = np.unique(wanted, return_counts=True)
    assert found.values.tolist() == values.tolist() and found.counts.tolist() == numbers.tolist()


@pytest.mark.parametrize("store", STORES)
def test_stored_numbers_are_the_values_again(store):
    values = np.array([[[0.0, 1.0, 128.0]]])
    if store != "uint8":
        assert as_numbers(IntensityPlan(store=store).apply(values), store).tolist() == values.tolist()
