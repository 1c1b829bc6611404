"""Values are normalized as asked, which can be undone, and windowed in Hounsfield units where they are such."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import JobError, UsageError
from halofeed.loader import Loader
from halofeed.pipelines.convert import Conversion
from halofeed.prep.convert.normalize_like import foreground_scheme
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.manifest import read_manifest
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_volume
from tests.support.level_rows import others
from tests.support.small_scans import msd_document, write_json
from tests.support.volume_support import by_name, findings, save_nifti, stored_volumes, write_table

SHAPE = (8, 16, 24)
SIZE = {"depth": 8, "height": 16, "width": 24}


def draw(seed: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(100, 60, SHAPE) * scale - 200).round().astype(np.int16)


def convert(folder: Path, *, channels: int = 1, **options: Any) -> Conversion:
    """Two scans, the second of another scale, and a label on a part of each."""
    rows = []
    for name, scale in (("a", 1.0), ("b", 7.0)):
        files = [f"{name}{channel}.nii" for channel in range(channels)]
        for channel, file in enumerate(files):
            save_nifti(folder / "s" / file, draw(channel, scale))
        save_nifti(folder / f"s/{name}_mask.nii", (draw(0, scale) > -100).astype(np.uint8))
        rows.append((name, ";".join(files), f"{name}_mask.nii"))
    write_table(folder / "s", rows)
    out = folder / f"out{len(list(folder.iterdir()))}"
    given = {"layout": "csv", "task": "segmentation", "channels": channels} | SIZE
    return run_convert(folder / "s", out, **(given | options))


def scans(folder: Path, channels: int = 1) -> dict[str, np.ndarray]:
    return {
        f"{name}0.nii": np.stack([draw(channel, scale) for channel in range(channels)], -1).astype(float)
        for name, scale in (("a", 1.0), ("b", 7.0))
    }


def undone(done: Conversion, key: str) -> dict[str, np.ndarray]:
    """Each image in its source's values, by the scale that its record says."""
    include = ["source", "intensity_scale", "intensity_offset"]
    batch = Loader(done.folder, batch_size=2, shuffle=False, include=include).batch(0)
    wide = batch["image"].astype(float)
    scale, offset = (batch[f"intensity_{name}"][:, None, None, None] for name in ("scale", "offset"))
    return dict(zip(batch["source"].tolist(), wide * scale + offset, strict=True))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("store", ["float32", "bfloat16"])
def test_a_z_score_of_each_scan_and_channel_is_undone_by_its_record(tmp_path, channels, store):
    done = convert(tmp_path, channels=channels, normalize="scan", dtype=store)
    stored = {name.split("/")[-1]: record.image for name, record in by_name(done).items()}
    for name, values in scans(tmp_path, channels).items():
        for channel in range(channels):
            body = values[..., channel][values[..., channel] > values[..., channel].min()]
            expected = (values[..., channel] - body.mean()) / body.std()
            # Values above 4096 are counted to 1 part in 8192; bfloat16 keeps 8 bits.
            np.testing.assert_allclose(stored[name][..., channel], expected, atol=0.02, rtol=0.01)
        np.testing.assert_allclose(undone(done, name)[name], values, atol=0.5 if store == "float32" else 8)


def test_one_normalization_for_all_is_undone_by_the_recipe_and_holds_for_padding_too(tmp_path):
    done = convert(tmp_path, normalize="40/50", window_hu=(-160.0, 240.0))
    for name, values in scans(tmp_path).items():
        expected = (np.clip(values, -160, 240) - 40) / 50
        np.testing.assert_allclose(by_name(done)[name].image, expected, atol=1e-5)
    recipe = Recipe.from_json(read_manifest(done.folder).recipe)
    standard = recipe.fixed_standard()
    assert standard is not None and (standard.mean, standard.deviation) == (40, 50)
    assert done.manifest.recipe["dtype"] == "float32"
    done = convert(tmp_path, normalize="40/50", pad_value=(-1024,), depth=10)
    record = by_name(done)["a0.nii"]
    assert record.image[0].max() == pytest.approx((-1024 - 40) / 50)
    image = next(field for field in done.manifest.fields if field.name == "image")
    assert image.fill == pytest.approx([(-1024 - 40) / 50])


def test_percentiles_of_each_scan_are_undone_by_its_record(tmp_path):
    done = convert(tmp_path, window_percentiles=(0.0, 100.0))
    for name, values in scans(tmp_path).items():
        step, above = (values.max() - values.min()) / 255, values > values.min()
        # The ends of the window are counted to 1 part in 512.
        assert np.abs(undone(done, name)[name] - values)[above].max() <= step + 8


def test_a_conversion_is_normalized_by_the_labeled_voxels_of_an_earlier_one(tmp_path):
    first = convert(tmp_path)
    second = convert(tmp_path, normalize_like=first.folder)
    window, standard = foreground_scheme(first.manifest, "train")
    labeled = np.concatenate([v[v > -100] for v in scans(tmp_path).values()])
    # Statistics take every eighth row.
    assert standard.mean == pytest.approx(labeled.mean(), rel=0.15)
    assert window.high == pytest.approx(np.percentile(labeled, 99.5), rel=0.15)
    recipe = second.manifest.recipe
    assert recipe["window_hu"] == [window.low, window.high] and recipe["dtype"] == "float32"
    for name, values in scans(tmp_path).items():
        expected = (np.clip(values, window.low, window.high) - standard.mean) / standard.deviation
        np.testing.assert_allclose(by_name(second)[name].image, expected, atol=1e-3)
    again = run_convert(
        tmp_path / "s", Path(second.folder).parents[1], layout="csv", task="segmentation", **SIZE,
        normalize_like=first.folder,
    )  # fmt: skip
    assert again.was_there


def test_figures_of_changed_values_and_what_cannot_be_normalized_are_refused(tmp_path):
    windowed = convert(tmp_path, window_hu=(-160.0, 240.0))
    with pytest.raises(UsageError, match="has a window or is normalized"):
        convert(tmp_path, normalize_like=windowed.folder)
    with pytest.raises(UsageError, match="leave --window, --window-hu"):
        convert(tmp_path, normalize_like=windowed.folder, window="lung")
    for options, says in (
        ({"normalize": "zscore"}, "--normalize 'zscore': expected scan .*, or MEAN/DEVIATION"),
        ({"normalize": "40/0"}, r"--normalize '40/0': .*a deviation above 0"),
    ):
        with pytest.raises(UsageError, match=says):
            Recipe(layout="csv", **SIZE, **options)


SMALL = (4, 6, 8)
REFUSED = "the window is in HU and the values are not"
WINDOWS = ({"window_hu": (-160.0, 240.0)}, {"window": "abdomen"}, {"window": "40/400", "dtype": "int16"})


def draw_hu(low: int, high: int) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, SMALL).astype(np.int16)


def convert_hu(folder: Path, layout: str, **options: Any) -> Conversion:
    sizes = {"depth": 4, "height": 6, "width": 8}
    given = {"layout": layout, "task": "segmentation", "missing_masks": "prediction", "max_rejected": 0}
    return run_convert(folder / "s", folder / f"o{len(list(folder.iterdir()))}", **given, **(sizes | options))


def write_scan(folder: Path, array: np.ndarray) -> None:
    save_nifti(folder / "s/a.nii", array)
    write_table(folder / "s", [("a", "a.nii", "")])


@pytest.mark.parametrize(
    "header",
    [{"modality": "MR", "rescale": None}, {"rescale": None}, {"modality": "PT"}, {"rescale_type": "US"}],
    ids=lambda header: "-".join(map(str, header.values())),
)
def test_a_series_that_is_not_in_hounsfield_units_is_refused(tmp_path, header):
    write_volume(tmp_path / "s", draw_hu(-900, 900), np.eye(4)[:, [2, 1, 0, 3]], **header)
    window = WINDOWS[0]
    with pytest.raises(JobError, match=REFUSED):
        convert_hu(tmp_path, "dicom", **window)
    insisting = convert_hu(tmp_path, "dicom", **window, window_unit="any", on_loss="warn")
    assert insisting.manifest.splits["train"].records == 1


def test_a_ct_in_hounsfield_units_is_windowed_and_one_with_its_offset_of_1024_refused(tmp_path):
    write_volume(tmp_path / "s", draw_hu(0, 900), np.eye(4)[:, [2, 1, 0, 3]])
    assert not findings(convert_hu(tmp_path, "dicom", window="abdomen"))
    write_scan(tmp_path / "b", draw_hu(-900, 900) + np.int16(1024))
    with pytest.raises(JobError, match=REFUSED):
        convert_hu(tmp_path / "b", "csv", window="abdomen")


@pytest.mark.parametrize("window", WINDOWS)
def test_a_file_without_unit_is_refused_unless_its_values_speak_for_hounsfield_units(tmp_path, window):
    write_scan(tmp_path, draw_hu(0, 900))
    with pytest.raises(JobError, match=REFUSED):
        convert_hu(tmp_path, "csv", **window)
    assert stored_volumes(convert_hu(tmp_path, "csv", **window, window_unit="any"))
    write_scan(tmp_path, draw_hu(-900, 900))
    assert findings(convert_hu(tmp_path, "csv", **window)) == {"values taken for Hounsfield units (noted)": 1}


def test_percentiles_need_no_unit_and_one_channel_that_is_not_in_hounsfield_units_is_refused(tmp_path):
    write_scan(tmp_path, draw_hu(0, 900))
    assert not findings(convert_hu(tmp_path, "csv", window_percentiles=(0.5, 99.5)))
    assert not findings(convert_hu(tmp_path, "csv"))
    save_nifti(tmp_path / "s/a.nii", draw_hu(-900, 900))
    save_nifti(tmp_path / "s/b.nii", draw_hu(0, 900))
    write_table(tmp_path / "s", [("a", "a.nii;b.nii", "")])
    with pytest.raises(JobError, match=REFUSED):
        convert_hu(tmp_path, "csv", window="abdomen", channels=2)


@pytest.mark.parametrize("name", others(["MRI", "T1w", "FLAIR", "PET"], ["T1w"]))
def test_a_data_set_that_calls_its_channel_mr_is_refused_before_any_scan_is_read(tmp_path, name):
    save_nifti(tmp_path / "s/imagesTs/a.nii.gz", draw_hu(-900, 900))
    write_json(tmp_path / "s", msd_document(test=("a.nii.gz",), channels=(name,)))
    with pytest.raises(UsageError, match=f"Hounsfield units.*{name}.*--window-percentiles"):
        convert_hu(tmp_path, "msd", window="abdomen")
    assert convert_hu(tmp_path, "msd", window="abdomen", window_unit="any").manifest.splits


def body(dtype: str, shift: int) -> np.ndarray:
    """A body of 40 HU in air, stored with an offset."""
    voxels = np.full(SHAPE, -1000)
    voxels[1:-1, 3:-3, 3:-3] = 40 + np.random.default_rng(0).integers(-30, 30, (6, 10, 18))
    return (voxels + shift).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "shift"), [("int16", 1024), ("uint16", 1024), ("float32", 1024), ("uint16", 32768)]
)
def test_values_with_an_offset_become_hounsfield_units_by_the_option_that_the_message_names(
    tmp_path, dtype, shift
):
    save_nifti(tmp_path / "s/a.nii", body(dtype, shift))
    write_table(tmp_path / "s", [("a", "a.nii", "")])
    with pytest.raises(
        JobError, match=rf"not below -50.*if they are HU \+ {shift}, use --offset-hu=-{shift}"
    ):
        convert_hu(tmp_path, "csv", window="abdomen")
    done = convert_hu(tmp_path, "csv", offset_hu=-shift, dtype="int16", **SIZE)
    assert np.array_equal(stored_volumes(done)[0].image[..., 0], body("int16", 0))
    assert findings(convert_hu(tmp_path, "csv", offset_hu=-shift, window="abdomen"))


def test_an_offset_is_refused_for_scans_that_state_their_unit_and_for_several_channels(tmp_path):
    write_volume(tmp_path / "d/ct", body("int16", 0), np.diag([1.0, 1, 1, 1])[:, [2, 1, 0, 3]])
    with pytest.raises(JobError, match=r"values state their unit already.*--offset-hu"):
        run_convert(tmp_path / "d", tmp_path / "o", layout="dicom", offset_hu=-1024, **SIZE)
    save_nifti(tmp_path / "s/a.nii", body("int16", 1024))
    save_nifti(tmp_path / "s/b.nii", body("int16", 1024))
    write_table(tmp_path / "s", [("a", "a.nii;b.nii", "")])
    with pytest.raises(JobError, match=r"offset of several channels.*--offset-hu"):
        convert_hu(tmp_path, "csv", offset_hu=-1024, channels=2)
    with pytest.raises(UsageError, match="--offset-hu nan"):
        convert_hu(tmp_path, "csv", offset_hu=float("nan"))
