"""`train --config auto` plans, trains, resumes with the same network, and says what it chose and why."""

import argparse
import tomllib

import jax
import numpy as np
import pytest

from halofeed.auto_config import plan_for_training, toml_of
from halofeed.errors import PartitionError, UsageError
from halofeed.schemas.file_layout import read_run
from halofeed.trainer.auto.candidates import Machine
from halofeed.trainer.auto.choose import Verdict
from halofeed.trainer.auto.fingerprint import Fingerprint
from halofeed.trainer.auto.plan_auto import Planner, plan_auto, recipe_candidates
from halofeed.trainer.choose_config import ConfigChoice
from halofeed.trainer.config import TrainConfig, load_config, named_configs
from tests.support.training import command, convert_scans, finished, halofeed
from tests.support.volume_support import save_nifti

CHOICES = ("spacing", "patch", "network", "width", "batch", "values", "memory", "steps")


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A data set of small scans of thick slices, each with a ball in it."""
    folder = tmp_path_factory.mktemp("scans")
    affine = np.array([[0, 0, 1.0, 0], [0, 1.0, 0, 0], [4.0, 0, 0, 0], [0, 0, 0, 1]])
    rows = []
    for number in range(4):
        generator = np.random.default_rng(number)
        center = np.array([4, *generator.integers(10, 14, 2)]).reshape(3, 1, 1, 1)
        away_mm = (np.indices((8, 24, 24)) - center) * np.array([4, 1, 1]).reshape(3, 1, 1, 1)
        label = ((away_mm**2).sum(0) < 60).astype(np.uint8)
        image = (400.0 * label + generator.normal(0, 30, label.shape)).astype(np.int16)
        for name, voxels in ((f"image{number}", image), (f"label{number}", label)):
            save_nifti(folder / f"{name}.nii.gz", voxels, affine)
        rows.append((f"case{number}", f"image{number}.nii.gz", f"label{number}.nii.gz"))
    options = {"depth": 8, "height": 24, "width": 24, "split_shares": ("train=0.5", "validation=0.5")}
    return convert_scans(folder, rows, folder, **options).folder


@pytest.mark.long
def test_a_planned_run_says_why_keeps_its_network_and_resumes(scans, tmp_path):
    words = ("train", scans, "--config", "auto", "--minutes", "0.05", "--out", tmp_path / "run", "--steps")
    said = finished(halofeed(*words, 4))
    for choice in CHOICES:
        assert f"halofeed train: {choice}: " in said, said
    document = read_run(tmp_path / "run")
    config = TrainConfig.from_json(document["config"])
    # Slices of 4 mm are not halved first, and the user's own setting wins.
    assert config.model_options["strides"][0] == [1, 2, 2] and config.steps == 4
    assert config.batch_size == 2, "a batch must not repeat the two records"
    assert any(line.startswith("patch: ") for line in document["plan"])
    assert "largest component" in said and "largest_component" in document
    # The same command resumes the same network, although the time of a step would differ now.
    again = finished(halofeed(*words, 6))
    assert "the options are those of the run" in again and "resuming after step 4" in again
    resumed = TrainConfig.from_json(read_run(tmp_path / "run")["config"])
    assert resumed.model_options == config.model_options and resumed.steps == 6
    assert read_run(tmp_path / "run")["plan"] == document["plan"]


def test_a_classifier_keeps_its_recipe_and_gets_the_batch_and_the_steps_that_fit():
    fingerprint = Fingerprint(
        task="classification",
        kind="picture",
        records=20,
        stored_shape=(32, 32, 3),
        spacing_mm=(1.0, 1.0),
        best_spacing_mm=(1.0, 1.0),
        median_shape=(32, 32),
        largest_shape=(32, 32),
        structures={},
    )
    machine = Machine(platform="cpu", devices=1, limit_bytes=1000)
    tried = []

    def judge_of(configure):
        def judge(candidate):
            batch = configure(candidate).batch_size
            tried.append(batch)
            return Verdict(
                fits=batch <= 4, total_bytes=250 * batch, limit_bytes=1000, step_seconds=0.1, is_measured=True
            )

        return judge

    planner = Planner(
        machine=machine,
        seconds=100.0,
        configure=lambda recipe, changes: load_config(recipe).changed(**changes),
        judge_of=judge_of,
    )
    plan = plan_auto(fingerprint, ConfigChoice(name="classifier_small", reason="a test"), planner)
    config = planner.configure(plan.recipe, plan.changes)
    assert (config.model, config.batch_size, config.steps) == ("classifier", 4, 850) and tried[-1] == 4
    assert any("recipe: classifier_small, a test" in line for line in plan.lines)


PICTURES = Fingerprint(
    task="segmentation",
    kind="picture",
    records=20,
    stored_shape=(64, 64, 3),
    spacing_mm=(1.0, 1.0),
    best_spacing_mm=(1.0, 1.0),
    median_shape=(64, 64),
    largest_shape=(64, 64),
    structures={"vessel": 100.0},
)


@pytest.mark.parametrize(("platform", "precision"), [("cpu", "float32"), ("tpu", "bfloat16")])
def test_the_time_that_the_plan_took_is_missing_in_the_steps(platform, precision):
    verdict = Verdict(
        fits=True,
        step_seconds=0.1,
        is_measured=True,
        compile_seconds=20.0,
        seconds=30.0 * (platform == "cpu"),
    )
    planner = Planner(
        machine=Machine(platform=platform, devices=1),
        seconds=250.0,
        configure=lambda recipe, changes: load_config(recipe).changed(**changes),
        judge_of=lambda _: lambda _: verdict,
    )
    plan = plan_auto(PICTURES, ConfigChoice(name="unet2d_small", reason="a test"), planner)
    config = planner.configure(plan.recipe, plan.changes)
    assert config.compute_dtype == precision
    left = 250.0 - 20.0 - 30.0 * len([one for one in plan.lines if "went into this plan" in one])
    assert config.steps == int(0.85 * left / 0.1)
    assert any(one.startswith("precision: float32") for one in plan.lines) == (platform == "cpu")


def test_a_split_over_more_cores_than_there_are_names_the_devices():
    config = load_config("classifier_small").changed(cores_per_replica=4, partition="image=1,4,1,1")
    with pytest.raises(PartitionError, match="cores_per_replica 4: expected at most the 2 devices"):
        recipe_candidates(config, records=100, devices=2)
    assert {one.batch for one in recipe_candidates(config, records=2, devices=8)} == {2}


def test_a_recipe_that_mixes_images_keeps_two_of_them():
    config = load_config("classifier_small").changed(device_augment=({"name": "BatchMix"},))
    assert min(one.batch for one in recipe_candidates(config, records=100, devices=1)) == 2


def test_processes_that_jax_found_by_itself_are_not_given_a_plan_each(monkeypatch, tmp_path):
    # As on a TPU of several hosts, where no option names the processes.
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    parsed = argparse.Namespace(out=str(tmp_path / "run"), overwrite=False, process_count=None)
    with pytest.raises(UsageError, match="the processes of a run need one configuration"):
        plan_for_training(parsed, None, "train", {})


@pytest.mark.parametrize("name", sorted(named_configs()))
def test_a_configuration_written_as_toml_is_read_back_the_same(name):
    config = load_config(name)
    assert TrainConfig.from_json(tomllib.loads(toml_of(config, ("patch: 8 x 8",)))) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "DATA", "--minutes", "5"), "--minutes 5: has an effect only with --config auto"),
        (("train", "DATA", "--config", "auto", "--minutes", "0"), "--minutes 0: expected more than 0"),
        (("plan", "--auto"), "--auto: needs a data set"),
        (("plan", "DATA", "--toml", "x.toml"), "--toml x.toml: has an effect only with --auto"),
        (("plan", "DATA", "--auto", "--search", "side"), "--search: --auto decides this itself"),
    ],
)
def test_options_that_contradict_auto_are_refused(words, message):
    assert message in command(*words, code=2)
