"""A fingerprint has what the conversion measured; the advised conversion gives records with nothing to advise."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.auto.conversion_advice import conversion_advice
from halofeed.trainer.auto.fingerprint import Fingerprint, fingerprint_of, weighted_percentile
from tests.support.training import command, convert_scans
from tests.support.volume_support import save_nifti


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 5)), min_size=1), st.floats(0.01, 1))
def test_a_percentile_of_counts_is_that_of_the_repeated_values(values, share):
    repeated = np.repeat(*map(np.array, zip(*values, strict=True)))
    expected = np.quantile(repeated, share, method="averaged_inverted_cdf")
    # The share times the count may be a rounding error off a whole number.
    near = [
        np.quantile(repeated, min(1, share * factor), method="averaged_inverted_cdf")
        for factor in (1 - 1e-9, 1 + 1e-9)
    ]
    found = weighted_percentile(values, share)
    assert any(found == pytest.approx(one) for one in (expected, *near))


def converted(folder, spacings, outside=0, **options):
    """Scans of a ball of radius 6 mm at several spacings, in the folder `scans`; values around it are `outside`."""
    rows, scans = [], folder / "scans"
    scans.mkdir()
    for number, spacing in enumerate(spacings):
        sides = [round(40 / one) for one in spacing]
        places = [(np.arange(side) - (side - 1) / 2) * one for side, one in zip(sides, spacing, strict=True)]
        away = sum(np.meshgrid(*(place**2 for place in places), indexing="ij"))
        label = (away < 36).astype(np.uint8)
        image = (
            np.where(label, 100, outside).astype(np.int16)
            + np.arange(label.size, dtype=np.int16).reshape(label.shape) % 7
        )
        affine = np.diag([spacing[2], spacing[1], spacing[0], 1.0])[[0, 1, 2, 3]][:, [2, 1, 0, 3]]
        for name, voxels in ((f"image{number}", image), (f"label{number}", label)):
            save_nifti(scans / f"{name}.nii.gz", voxels, affine)
        rows.append((f"case{number}", f"image{number}.nii.gz", f"label{number}.nii.gz"))
    return convert_scans(folder, rows, scans, **options)


def test_a_fingerprint_has_the_spacing_the_shapes_and_the_structures_of_the_scans(tmp_path):
    done = converted(tmp_path, [(2.0, 1.0, 1.0)] * 3, depth=24, height=48, width=48)
    found = fingerprint_of(done.manifest, "train")
    assert found.records == 3 and found.stored_shape == (24, 48, 48, 1) and found.common_spacing
    assert found.spacing_mm == found.best_spacing_mm == (2.0, 1.0, 1.0)
    assert found.median_shape == found.largest_shape == (20, 40, 40)
    # A ball of radius 6 mm has 905 mm3, and its voxels 2 mm3.
    (voxels,) = found.structures.values()
    assert voxels == pytest.approx(4 / 3 * np.pi * 6**3 / 2, rel=0.05)
    assert found.structure_sides() == (6, 12, 12)
    assert found.padded_share == pytest.approx(1 - 20 * 40 * 40 / (24 * 48 * 48))
    assert found.foreground_share == pytest.approx(voxels / (24 * 48 * 48), rel=1e-3)
    assert conversion_advice(found) is None


@pytest.mark.parametrize(
    ("outside", "options", "is_ct"),
    [
        (-1000, {}, True),
        # A scanner's MR has no negative values, and fat alone has -100 HU.
        (0, {}, False),
        (-100, {}, True),
        (-1000, {"window_hu": (-1000, 240)}, False),
        (-1000, {"window_percentiles": (0.5, 99.5)}, False),
        (-1000, {"normalize": "scan"}, False),
    ],
)
def test_scans_without_a_modality_are_ct_by_their_values(outside, options, is_ct, tmp_path):
    done = converted(tmp_path, [(2.0, 1.0, 1.0)], outside, depth=24, height=48, width=48, **options)
    assert fingerprint_of(done.manifest, "train").is_ct == is_ct


def test_the_advised_conversion_leaves_nothing_to_advise(tmp_path):
    done = converted(
        tmp_path, [(2.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, 2.0)], depth=16, height=32, width=32
    )
    found = fingerprint_of(done.manifest, "train")
    assert not found.common_spacing and found.lost_share > 0.1
    advice = conversion_advice(found)
    assert (
        advice is not None
        and "several spacings" in advice.reasons[0]
        and "is in no record" in advice.reasons[1]
    )
    assert advice.options[:2] == ("--spacing-mm", "2,1,1")
    command_line = advice.command(done.manifest, str(done.folder), str(tmp_path / "table"))
    program, *words = shlex.split(command_line)
    # The scans are in another folder than their table here.
    assert program == "halofeed" and command(*words, "--images", tmp_path / "scans")
    again = read_manifest(Path(done.folder).parent / "1.1.0")
    assert conversion_advice(fingerprint_of(again, "train")) is None


@given(
    st.tuples(*[st.integers(8, 900)] * 3),
    st.tuples(*[st.floats(0.3, 6)] * 3),
    st.tuples(*[st.integers(8, 300)] * 3),
)
def test_advised_shapes_divide_and_are_no_larger_than_a_patch_may_be(largest, spacing, stored):
    fingerprint = Fingerprint(
        task="segmentation",
        kind="volume",
        records=3,
        stored_shape=(*stored, 1),
        spacing_mm=spacing,
        best_spacing_mm=spacing,
        median_shape=stored,
        largest_shape=largest,
        structures={"organ": 100.0},
        lost_share=0.3,
    )
    advice = conversion_advice(fingerprint)
    assert advice is not None
    options = dict(zip(advice.options[::2], advice.options[1::2], strict=True))
    sides = [int(options[name]) for name in ("--depth", "--height", "--width")]
    is_tiled = options.get("--fit") == "tiles"
    assert is_tiled or all(side >= size for side, size in zip(sides, largest, strict=True))
    assert np.prod(sides, dtype=float) <= 2.5 * 256**3
