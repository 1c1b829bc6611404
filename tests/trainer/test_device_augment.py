"""A recipe's `device_augment` changes the images of training, and nothing else."""

import dataclasses
import io
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.loader.batch import split_id
from halofeed.loader.device import BiasField, Contrast, GaussianNoise, Normalization, augment_on_device
from halofeed.trainer.config import TrainConfig, load_config
from halofeed.trainer.data import BatchSource, TrainData, open_data
from halofeed.trainer.models.classifier import Classifier
from halofeed.trainer.run_folder import open_run
from halofeed.trainer.step import TrainingSetup, loss_and_gradients
from halofeed.trainer.tasks import build_task
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.train import TrainSummary, train
from halofeed.trainer.training_setup import build_training_setup
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.training import facts_of

TABLES = (
    {"name": "Contrast", "factor": [0.5, 1.5]},
    {"name": "GaussianBlur", "sigma_pixels": [0.5, 1.0]},
    {"name": "GaussianNoise", "deviation": [0.1, 0.2], "probability": 1},
)
FACTS = facts_of("classification", {0: "a", 1: "b", 2: "c"}, (16, 16, 3), mean=(120.0,) * 3, std=(60.0,) * 3)
PLAIN = TrainingSetup(
    build=lambda layers: Classifier(layers, classes=3, image_shape=(16, 16, 3), features=(4, 8, 8)),
    task=Classification(labels=("a", "b", "c")),
    normalization=Normalization(mean=FACTS.mean, std=FACTS.std),
    compute_dtype="float32",
)


def batch_of(dtype: str = "uint8") -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "image": generator.integers(0, 256, (4, 16, 16, 3)).astype(dtype),
        "label": np.array([0, 1, 2, 1], np.int32),
        "id": split_id(np.arange(4)),
        "epoch": np.arange(4, dtype=np.int32),
    }


def test_the_loss_is_that_of_the_augmented_batch():
    several = (Contrast(), GaussianNoise(probability=1))
    problem, batch = dataclasses.replace(PLAIN, augment=several, augment_seed=3), batch_of()
    model = PLAIN.new_model(0)
    state = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))

    def loss(problem: TrainingSetup, batch: Any) -> float:
        return float(jax.jit(lambda batch: loss_and_gradients(problem, *state, batch)[0])(batch))

    before = jax.jit(lambda batch: augment_on_device(batch, several, seed=3))(batch)
    assert loss(problem, batch) == pytest.approx(loss(PLAIN, before), rel=1e-5)
    assert abs(loss(problem, batch) - loss(PLAIN, batch)) > 1e-3


def test_without_the_table_the_batch_is_the_very_same():
    batch = batch_of()
    assert build_training_setup(TrainConfig(), FACTS).augmented(batch) is batch


def test_wider_values_are_as_the_normalization_says():
    limited = Normalization(mean=(10.0,) * 3, std=(5.0,) * 3, limits=(-160.0, 240.0))
    for normalization, values in ((limited, (-160.0, 240.0)), (PLAIN.normalization, (0.0, 240.0))):
        several = (GaussianNoise(probability=1),)
        problem = dataclasses.replace(PLAIN, augment=several, normalization=normalization)
        expected = augment_on_device(batch_of("int16"), problem.augment, seed=0, values=values)
        assert np.array_equal(problem.augmented(batch_of("int16"))["image"], expected["image"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    examples = draw_examples("classification", {"train": 12, "test": 4}, shape=(16, 16, 3))
    return write_dataset(tmp_path_factory.mktemp("set") / "tiny", examples, task="classification")


def config_of(**changes: Any) -> TrainConfig:
    small = {"steps": 4, "batch_size": 4, "compute_dtype": "float32", "device_augment": TABLES}
    return TrainConfig(**{**small, "model_options": {"features": (8, 8, 16)}, **changes})


def opened(config: TrainConfig, folder: Path) -> TrainData:
    return open_data(config, folder, "train", lambda facts: build_task(facts, {}))


def run(config, folder, devices=1, out=None, ends=None) -> TrainSummary:
    data = opened(config, folder)
    if ends is not None:
        data = dataclasses.replace(data, batches=Ended(data.batches, ends))
    return train(config, data, out, devices=jax.devices()[:devices], stream=io.StringIO())


class Ended:
    def __init__(self, batches: BatchSource, ends: int) -> None:
        self.batches, self.ends, self.state, self.restore = batches, ends, batches.state, batches.restore

    def on_mesh(self, mesh, partition, start_step=0):
        return itertools.islice(self.batches.on_mesh(mesh, partition, start_step), self.ends - start_step)


@pytest.fixture(scope="module")
def whole(folder):
    return run(config_of(), folder)


@pytest.mark.long
def test_a_run_is_the_same_whole_and_split_and_evaluates_images_as_they_are(folder, whole):
    split = run(config_of(cores_per_replica=4, partition="image=1,4,1,1"), folder, devices=8)
    np.testing.assert_allclose(split.losses, whole.losses, rtol=1e-3)
    plain = run(config_of(device_augment=()), folder)
    assert abs(plain.losses[0] - whole.losses[0]) > 1e-4
    assert whole.metrics is not None and whole.metrics["examples"] == 4


def test_a_resumed_run_draws_what_the_whole_one_drew_also_of_an_earlier_version(folder, tmp_path, whole):
    first = run(config_of(), folder, out=tmp_path / "run", ends=2)
    assert first.steps == 2
    assert run(config_of(), folder, out=tmp_path / "run").losses == whole.losses[2:]
    run(config_of(device_augment=()), folder, out=tmp_path / "old", ends=2)
    file = tmp_path / "old/run.json"
    document = json.loads(file.read_text())
    del document["config"]["device_augment"], document["crc32c"]
    file.write_text(json.dumps(document))
    assert run(config_of(device_augment=()), folder, out=tmp_path / "old").steps == 4
    assert open_run(tmp_path / "run").document["config"]["device_augment"][0]["name"] == "Contrast"
    with pytest.raises(UsageError, match="device_augment: was "):
        run(config_of(device_augment=()), folder, out=tmp_path / "run")


@pytest.mark.long
def test_images_are_mixed_for_tasks_whose_loss_takes_mixed_classes_alone():
    config = TrainConfig(device_augment=({"name": "BatchMix"},), model="classifier")
    several = dataclasses.replace(FACTS, multi_label=True)
    for facts in (FACTS, several):
        key = "labels" if facts.multi_label else "label"
        batch = {
            **batch_of(),
            key: np.eye(4, 3, dtype=np.uint8) if facts.multi_label else batch_of()["label"],
        }
        if facts.multi_label:
            del batch["label"]
        found = build_training_setup(config, facts).augmented(batch)
        assert {f"partner_{key}", "own_share"} == found.keys() - batch.keys()
    detection = facts_of("detection", {1: "a"}, (64, 64, 3))
    with pytest.raises(
        UsageError, match=r"device_augment BatchMix: .*loss of detection takes no mixed classes"
    ):
        build_training_setup(dataclasses.replace(config, model="retinanet"), detection)


def test_a_recipe_draws_records_as_the_loader_does(folder):
    states = {
        name: opened(config_of(draw_by=name), folder).batches.state(3)
        for name in ("", "class", "repeat-factor")
    }
    assert states[""]["draw_by"] is None
    assert states["class"] == Loader(
        folder, split="train", batch_size=4, include=("epoch", "size"), draw_by="class"
    ).state(3)
    assert states["repeat-factor"] != states["class"]
    with pytest.raises(
        UsageError, match="draw by: expected one of class, foreground, repeat-factor, got often"
    ):
        config_of(draw_by="often")


def test_a_table_that_cannot_be_is_refused_when_the_data_is_opened(folder):
    for table, message in (
        ({"name": "Blur"}, "device_augment 'Blur': not known; known: Brightness, Contrast"),
        ({"name": "Hue", "angle": 3}, "device_augment Hue: .*it takes probability, degrees"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(config_of(device_augment=(table,)), folder)


def test_a_recipe_of_toml_names_them(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('device_augment = [{ name = "BiasField", strength = [0.2, 0.3], zero = -5.0 }]\n')
    config = load_config(str(recipe))
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    problem = build_training_setup(config, FACTS)
    assert problem.augment == (BiasField(strength=(0.2, 0.3), zero=-5.0),) and problem.augment_seed == 0
