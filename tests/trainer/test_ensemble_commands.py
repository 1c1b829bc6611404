"""Runs of two folds: one table of both, the mean of their masks, and rules of components that predict applies."""

import json

import nibabel
import numpy as np
import pytest
from scipy import ndimage

from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.file_layout import read_run
from halofeed.trainer.ensemble import Ensemble
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.run_folder import open_run
from tests.support.training import command, convert_scans
from tests.support.volume_support import save_nifti

SETTINGS = ("--steps", "4", "--set", "augment=[]", "--set", "model.depth=2", "--set", "model.width=2")
DEVICES = ("--set", "evaluate_batch_size=8", "--batch-size", "8")


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """A data set of 16 small scans in two folds, and a run for each."""
    folder = tmp_path_factory.mktemp("folds")
    affine, rows = np.diag([1.0, 1.0, 1.0, 1.0]), []
    for number in range(16):
        generator = np.random.default_rng(number)
        label = np.zeros((8, 8, 8), np.uint8)
        label[2:6, 2:6, 2:6] = 1
        image = (300.0 * label + generator.normal(0, 100, label.shape)).astype(np.int16)
        for name, voxels in ((f"image{number}", image), (f"label{number}", label)):
            save_nifti(folder / f"{name}.nii.gz", voxels, affine)
        rows.append((f"case{number}", f"image{number}.nii.gz", f"label{number}.nii.gz"))
    data = convert_scans(folder, rows, folder, depth=8, height=8, width=8, folds=2).folder
    for fold in (0, 1):
        words = ("train", data, "--config", "unet3d_small", *SETTINGS, *DEVICES, "--fold", fold)
        command(*words, "--out", folder / f"fold{fold}")
    return data, folder / "fold0", folder / "fold1"


@pytest.mark.long
def test_each_fold_is_evaluated_on_its_own_split_in_one_table(folds, tmp_path):
    _, *runs = folds
    both = ",".join(map(str, runs))
    said = command("evaluate", both, "--cross-validate", "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    alone = []
    for run in runs:
        command("evaluate", run, "--json", tmp_path / "one.json")
        alone.append(json.loads((tmp_path / "one.json").read_text())["metrics"]["dice"])
    assert [fold["metrics"]["dice"] for fold in found["folds"]] == alone
    assert [fold["split"] for fold in found["folds"]] == ["fold0", "fold1"]
    assert found["mean"]["dice"] == pytest.approx(np.mean(alone))
    assert f"{np.mean(alone):.4f}" in said and "deviation" in said
    refused = command("evaluate", both, code=2)
    assert "--cross-validate" in refused and "fold0, fold1" in refused
    assert "learned from fold0" in command("evaluate", both, "--split", "fold0")
    assert "both evaluated on fold0" in command(
        "evaluate", f"{runs[0]},{runs[0]}/../fold0", "--cross-validate", code=2
    )


@pytest.mark.long
def test_the_masks_of_an_ensemble_are_those_of_the_mean_of_the_probabilities(folds, tmp_path):
    data, *runs = folds
    opened = [open_run(run) for run in runs]
    single = [
        {
            int(batch.truth["id"][row][0]): batch.predictions["probabilities"][row]
            for batch in each
            for row in range(8)
        }
        for each in (
            list(LoadedRun(run, data, "fold0", with_probabilities=True).predictions()) for run in opened
        )
    ]
    for batch in Ensemble(opened, data, "fold0").predictions():
        for row in range(8):
            record = int(batch.truth["id"][row][0])
            mean = np.mean([np.asarray(one[record], np.float32) for one in single], axis=0)
            np.testing.assert_allclose(batch.predictions["probabilities"][row], mean, atol=1e-3)  # float16
            assert np.array_equal(batch.predictions["label"][row], mean.argmax(-1))
    said = command("predict", ",".join(map(str, runs)), data, "--split", "fold0", "--out", tmp_path / "masks")
    assert "predicted by the mean of 2 runs" in said
    assert len(list((tmp_path / "masks").glob("*.nii.gz"))) == 8


@pytest.mark.long
def test_runs_with_different_splits_of_an_image_predict_their_mean(folds):
    """8 devices are 8 replicas of the first model and 2 of the second, whose batch of evaluation is 2."""
    data, *runs = folds
    first, second = map(open_run, runs)
    split = second.changed(cores_per_replica=4, partition="image=1,4,1,1,1", evaluate_batch_size=2)
    expected = list(Ensemble([first, second], data, "fold0").predictions())
    found = list(Ensemble([first, split], data, "fold0").predictions())
    assert len(found) == len(expected) == 1
    for name in ("label", "probabilities"):
        one, other = (np.asarray(each[0].predictions[name], np.float32) for each in (found, expected))
        np.testing.assert_allclose(one, other, atol=1e-2 if name == "probabilities" else 0)


@pytest.mark.long
def test_predictions_keep_the_largest_component_where_the_run_has_proved_it(folds, tmp_path):
    data, run, _ = folds
    proved = read_run(run)
    rule = {"step": 4, "split": "fold0", "classes": [{"label": 1}]}
    (run / "run.json").write_text(json.dumps(with_json_checksum({**proved, "largest_component": rule})))
    words = ("predict", run, data, "--split", "fold0", "--out")
    said = command(*words, tmp_path / "largest")
    assert "largest component alone: 1" in said
    assert "largest component" not in command(*words, tmp_path / "all", "--no-largest-component")
    counts = {}
    for name in ("largest", "all"):
        masks = [
            np.asarray(nibabel.load(file).dataobj) for file in sorted((tmp_path / name).glob("*.nii.gz"))
        ]
        counts[name] = [ndimage.label(mask == 1, np.ones((3, 3, 3)))[1] for mask in masks]
    assert max(counts["largest"]) <= 1
    assert "largest_component" in json.loads((tmp_path / "largest/predictions.json").read_text())
    (run / "run.json").write_text(json.dumps(with_json_checksum(proved)))
