"""Records of scans: values in every type and window, channels, padding and findings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import AnnotationsError, JobError
from tests.support.conversions import run_convert
from tests.support.level_rows import others
from tests.support.volume_support import Stored, findings, save_nifti, stored_volumes, write_table

SHAPE = (4, 6, 8)
SIZE = {"depth": 4, "height": 6, "width": 8}
AFFINE = np.array([[0, 0, 1.0, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])
FLIP = np.array([[-1, 0, 0, 3], [0, 1, 0, 0], [0, 0, -1, 7], [0, 0, 0, 1]])


def draw(low: int, high: int, dtype: Any = np.int16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, SHAPE).astype(dtype)


def one(folder: Path, *channels: np.ndarray, mask: np.ndarray | None = None, **options: Any) -> Stored:
    """The one record of a scan whose channels are files of their own."""
    (record,) = stored_volumes(convert_one(folder, *channels, mask=mask, **options))
    return record


def convert_one(folder, *channels, mask=None, **options):
    for number, array in enumerate(channels):
        save_nifti(folder / f"s/{number}.nii", array, AFFINE)
    if mask is not None:
        save_nifti(folder / "s/mask.nii", mask, AFFINE)
    images = ";".join(f"{number}.nii" for number in range(len(channels)))
    write_table(folder / "s", [("a", images, "" if mask is None else "mask.nii")])
    options = {"layout": "csv", "task": "segmentation"} | SIZE | options
    return run_convert(folder / "s", folder / f"out{len(list(folder.iterdir()))}", **options)


def test_fractions_are_rounded_with_a_finding_and_refused_where_a_window_flattens_them(tmp_path):
    array = draw(-1000, 1000).astype(np.float32)
    array[1, 1] += 0.25
    done = convert_one(tmp_path, array)
    assert findings(done) == {"fractions rounded to whole numbers (corrected)": 1}
    assert np.array_equal(stored_volumes(done)[0].image[..., 0], np.rint(array))
    window = {"channels": 2, "window_hu": (-160.0, 240.0), "window_unit": "any"}
    with pytest.raises(JobError, match=r"channel 1 \(1.nii\).*--window-percentiles"):
        one(tmp_path, draw(-1000, 1500), _SKEWED, **window)


_SKEWED = np.random.default_rng(3).gamma(0.8, 1.5, SHAPE).astype(np.float32)
_HOT = np.where(np.arange(_SKEWED.size).reshape(SHAPE) % 97 == 0, 60, _SKEWED).astype(np.float32)


@pytest.mark.parametrize("beside", [[], [draw(-1000, 1500)]], ids=["alone", "beside_ct"])
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (_SKEWED, {}),  # SUV
        (_HOT, {}),  # SUV with a hot spot: the range is not narrow
        (_SKEWED / _SKEWED.max(), {}),  # probabilities
        (_SKEWED / 1000, {}),  # ADC in mm²/s
        (_SKEWED, {"dtype": "int16", "window_percentiles": (0.0, 100.0)}),
    ],
    ids=["suv", "hot", "probabilities", "adc", "window"],
)
def test_no_channel_loses_its_fractions_to_whole_numbers(tmp_path, values, options, beside):
    images, channels = [*beside, values], {"channels": 1 + len(beside)}
    name = r"values of channel 1 \(1.nii\) run" if beside else "values run"
    with pytest.raises(JobError, match=rf"flatten the values \({name} from .*--dtype float32"):
        one(tmp_path, *images, **channels, **options)
    assert np.array_equal(one(tmp_path, *images, **channels, dtype="float32").image[..., -1], values)


@pytest.mark.parametrize("scale", [30, 1000], ids=["percent", "milliseconds"])
def test_fractions_that_rounding_hardly_moves_are_stored_as_whole_numbers(tmp_path, scale):
    array = _SKEWED * scale
    record = one(tmp_path, draw(-1000, 1500), array, channels=2)
    assert np.array_equal(record.image[..., 1], np.rint(array))


@pytest.mark.parametrize(
    "dtype", others([np.uint8, np.int16, np.uint16, np.int32, np.float32], [np.int16, np.float32])
)
def test_padding_holds_its_value_whatever_the_file_declares(tmp_path, dtype):
    array = draw(0, 200, dtype)
    larger = {"depth": 6, "height": 9, "width": 9}
    record = one(tmp_path, array, pad_value=(-1024,), **larger)
    assert np.array_equal(record.extent, [[1, 2, 1], [5, 8, 9]])
    assert np.array_equal(record.image[record.shown][..., 0], array)
    padding = np.ones(record.grid.shape, bool)
    padding[record.shown] = False
    assert (record.image[padding] == -1024).all() and padding.sum() == 6 * 9 * 9 - array.size
    window = {"window_hu": (-160.0, 240.0), "window_unit": "any"}
    record = one(tmp_path, array, pad_value=(-1024,), **window, **larger)
    assert (record.image[padding] == 0).all()
    record = one(tmp_path, array, **larger)
    assert (record.image[padding] == array.min()).all()


def test_channels_keep_their_own_orientation_and_any_type_gives_one_result(tmp_path):
    first, second = draw(-1000, 1000), draw(-1000, 1000, seed=1)
    save_nifti(tmp_path / "s/a.nii", first, AFFINE)
    save_nifti(tmp_path / "s/b.nii", second[::-1, :, ::-1], AFFINE @ FLIP)
    write_table(tmp_path / "s", [("a", "a.nii;b.nii", "")])
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="csv", task="segmentation", channels=2, **SIZE)
    (record,) = stored_volumes(done)
    assert np.array_equal(record.image, np.stack([first, second], axis=-1))
    array = draw(-1000, 1000)
    options = {"spacing_mm": (2.2, 1.7, 0.9), "depth": 6, "height": 7, "width": 9}
    found = [
        one(tmp_path / "b" / np.dtype(dtype).name, array.astype(dtype), **options).bits
        for dtype in (np.int16, np.int32, np.float32)
    ]
    assert len(set(found)) == 1


def test_class_ids_beyond_what_a_record_holds_and_class_masks_without_one_are_refused(tmp_path):
    named = {"label_map": str(tmp_path / "map.json")}
    (tmp_path / "map.json").write_text('{"background": 0, "rare": 65535}')
    array, mask = draw(0, 99), draw(0, 2, np.int32) * 65535
    record = one(tmp_path, array, mask=mask, **named)
    assert record.label.dtype == np.uint16 and np.array_equal(record.label, mask)
    (tmp_path / "map.json").write_text('{"background": 0, "rare": 65536}')
    with pytest.raises(AnnotationsError, match=r"id 65536 \('rare'\): expected 0 to 65535"):
        one(tmp_path, array, mask=mask, **named)
    for name in ("liver", "spleen"):
        save_nifti(tmp_path / "b" / f"s/a/segmentations/{name}.nii", draw(0, 1, np.uint8), AFFINE)
    save_nifti(tmp_path / "b" / "s/a/ct.nii", draw(0, 99), AFFINE)
    for text, reason in (
        ('{"liver": 1}', "'spleen': 1 time, first in a/ct.nii"),
        ('["liver", "spleen"]', "id 0 is"),
    ):
        (tmp_path / "b" / "map.json").write_text(text)
        options = {"layout": "class-masks", "label_map": str(tmp_path / "b" / "map.json")} | SIZE
        with pytest.raises(AnnotationsError, match=reason):
            run_convert(tmp_path / "b" / "s", tmp_path / "b" / "o", **options)


def test_tiles_cover_the_scan_and_share_what_was_asked(tmp_path):
    array, mask = draw(-99, 99), draw(0, 3, np.uint8)
    options = {"fit": "tiles", "depth": 3, "height": 4, "width": 3, "tile_overlap": (1, 1, 1)}
    records = stored_volumes(convert_one(tmp_path, array, mask=mask, **options))
    whole, labels = np.full(SHAPE, 32767, np.int16), np.full(SHAPE, 99, np.uint8)
    for record in records:
        begin = record.tile_origin
        place = tuple(slice(low, low + side) for low, side in zip(begin, record.grid.shape, strict=True))
        whole[place], labels[place] = record.image[..., 0], record.label
        assert np.allclose(record.grid.to_mm([0, 0, 0]), AFFINE[:3, :3] @ begin + AFFINE[:3, 3])
    assert np.array_equal(whole, array) and np.array_equal(labels, mask)
    assert sorted(record.tile for record in records) == list(range(2 * 2 * 4))
    assert {record.key for record in records} == {"a"}


@pytest.mark.parametrize(
    "options", [{"center": "label"}, {"center": "foreground"}, {"crop_foreground": True}]
)
def test_nothing_to_center_on_keeps_the_middle_or_says_so(tmp_path, options):
    array = np.zeros(SHAPE, np.int16)
    if "crop_foreground" in options:
        with pytest.raises(JobError, match="no foreground found"):
            one(tmp_path, array, **options)
    else:
        record = one(tmp_path, array, mask=np.zeros(SHAPE, np.uint8), depth=2, **options)
        assert record.grid.to_mm([0, 0, 0]) == pytest.approx(AFFINE[:3, 3] + AFFINE[:3, 0])


def test_a_label_in_the_corner_is_kept_whole(tmp_path):
    array, mask = draw(-99, 99), np.zeros(SHAPE, np.uint8)
    mask[3, 4:, 6:] = 1
    record = one(tmp_path, array, mask=mask, center="label", depth=2, height=3, width=3)
    assert int(record.label.sum()) == 4
    assert np.array_equal(record.image[..., 0], array[2:, 3:, 5:])
