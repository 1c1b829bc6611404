"""An exported model gives the same in a fresh process, without halofeed."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.errors import JobError, UsageError
from halofeed.loader.device import Normalization
from halofeed.trainer import export
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.step import TrainingSetup, replicated_sharding
from halofeed.trainer.task import DeviceBatch
from halofeed.trainer.tasks.classification import Classification
from tests.support.scripts import run_script

SHAPE = (16, 24, 3)
LABELS = {0: "a", 1: "b", 2: "c"}

READ_STABLEHLO = """
import sys, numpy as np, jax
jax.config.update("jax_platforms", "cpu")
from jax import export
from pathlib import Path
folder = Path(sys.argv[1])
found = export.deserialize(bytearray((folder / "model.stablehlo").read_bytes())).call(np.load(folder / "image.npy"))
np.savez(folder / "found.npz", **{name: np.asarray(value) for name, value in found.items()})
assert not any(name.startswith(("halofeed", "flax", "tensorflow")) for name in sys.modules)
"""
READ_SAVED_MODEL = """
import sys, numpy as np, tensorflow as tf
from pathlib import Path
folder = Path(sys.argv[1])
predict = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
found = predict(image=tf.constant(np.load(folder / "image.npy")))
np.savez(folder / "found.npz", **{name: np.asarray(value) for name, value in found.items()})
assert not any(name.startswith(("halofeed", "flax")) for name in sys.modules)
"""


def in_fresh_process(program: str, folder: Any, image: np.ndarray) -> dict[str, np.ndarray]:
    np.save(folder / "image.npy", image)
    run_script(program, folder, seconds=300)
    with np.load(folder / "found.npz") as found:
        return dict(found)


def exported_in(folder: Any) -> Any:
    return jax.export.deserialize(bytearray((folder / "model.stablehlo").read_bytes())).call


def small_problem(**options: Any) -> tuple[TrainingSetup, Any, Any]:
    problem = TrainingSetup(
        build=partial(MODELS["classifier"].build, classes=3, image_shape=SHAPE),
        task=Classification(labels=tuple(LABELS.values())),
        normalization=Normalization(mean=(100.0, 120.0, 140.0), std=(50.0, 60.0, 70.0)),
        **{"compute_dtype": "float32", **options},
    )
    model = problem.new_model(3)
    return problem, nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))


def images(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 256, (rows, *SHAPE)).astype(np.uint8)


def test_stablehlo_gives_the_same_in_a_fresh_process_for_any_number_of_rows(tmp_path):
    predict = export.prediction_function(*small_problem())
    about = {"labels": LABELS, "task": "classification"}
    signature = export.export_stablehlo(predict, SHAPE, "uint8", tmp_path, **about)
    assert json.loads((tmp_path / "signature.json").read_text()) == signature
    assert signature["inputs"] == {"image": {"shape": ["batch", *SHAPE], "dtype": "uint8"}}
    assert signature["outputs"]["probabilities"] == {"shape": ["batch", 3], "dtype": "float32"}
    assert signature["platforms"] == ["cpu", "cuda", "tpu"] and signature["batch"] == "any"
    assert [label["name"] for label in signature["labels"]] == list("abc")
    found = in_fresh_process(READ_STABLEHLO, tmp_path, images(5))
    expected = jax.device_get(jax.jit(predict)(images(5)))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and np.abs(found[name] - value).max() < 1e-5
    one = exported_in(tmp_path)(images(5)[:1])
    assert np.abs(np.asarray(one["probabilities"]) - expected["probabilities"][:1]).max() < 1e-5
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == {".halofeed"}


@pytest.mark.long
def test_a_saved_model_gives_the_same_in_a_fresh_process(tmp_path):
    predict = export.prediction_function(*small_problem())
    export.export_saved_model(predict, SHAPE, "uint8", tmp_path)
    found = in_fresh_process(READ_SAVED_MODEL, tmp_path, images(4))
    expected = jax.device_get(jax.jit(predict)(images(4)))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() < 1e-5


def test_a_model_of_a_mesh_is_exported_for_one_device(tmp_path):
    problem, parameters, statistics = small_problem(mesh=make_mesh(2), dims=(1, 2, 1, 1))
    parameters, statistics = jax.device_put((parameters, statistics), replicated_sharding(problem.mesh))
    predict = export.prediction_function(problem, parameters, statistics)
    export.export_stablehlo(predict, SHAPE, "uint8", tmp_path, platforms=("cpu",))
    found = exported_in(tmp_path)(images(2))
    alone = export.prediction_function(*small_problem())
    expected = jax.device_get(jax.jit(alone)(images(2)))
    assert np.abs(np.asarray(found["probabilities"]) - expected["probabilities"]).max() < 1e-5


def test_what_needs_a_known_number_of_rows_is_exported_for_one_and_says_so(tmp_path):
    class Ranked(Classification):
        def predict(self, outputs: jax.Array, batch: DeviceBatch) -> dict[str, jax.Array]:
            order = jnp.concatenate([outputs[row] for row in range(int(outputs.shape[0]))])
            return {"order": order.reshape(-1, 3)}

    problem, parameters, statistics = small_problem()
    ranked = TrainingSetup(**{**vars(problem), "task": Ranked(labels=tuple("abc"))})
    predict = export.prediction_function(ranked, parameters, statistics)
    signature = export.export_stablehlo(predict, SHAPE, "uint8", tmp_path, platforms=("cpu",))
    assert signature["inputs"]["image"]["shape"] == [1, *SHAPE] and "symbolic" in signature["batch"]
    assert exported_in(tmp_path)(images(1))["order"].shape == (1, 3)


def test_an_export_replaces_no_file_of_others_and_only_one_is_made_at_a_time(tmp_path):
    predict = export.prediction_function(*small_problem())

    def write() -> None:
        with export.export_folder(tmp_path) as folder:
            export.export_stablehlo(predict, SHAPE, "uint8", folder, platforms=("cpu",))

    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(UsageError, match=r"did not write; move it away(.|\n)*README\.md \(not written"):
        write()
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").rename(tmp_path / "notes.md")
    write(), write()
    (tmp_path / "signature.json").write_text("mine")
    with pytest.raises(UsageError, match=r"signature\.json \(changed"):
        write()
    with export.export_folder(tmp_path), pytest.raises(JobError, match="is exporting into it"):
        write()
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_an_unknown_platform_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected some of cpu, cuda, tpu"):
        export.export_stablehlo(lambda image: {}, SHAPE, "uint8", tmp_path, platforms=("gpu",))
