"""Backbones with weights of keras.applications give Keras' outputs, from every kind of file that Keras writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.errors import UsageError
from halofeed.trainer.models.keras_weights import keras_normalization, load_backbone
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.mobilenet import MobileNetClassifier
from halofeed.trainer.models.resnet import ResNet, ResNetClassifier
from halofeed.trainer.models.retinanet import RetinaNet
from tests.support.scripts import run_script

CLASSES = 5
EVALUATE = Pass(training=False)
EXPORT = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import h5py, keras, numpy as np
from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group
folder = sys.argv[1]
draw = np.random.default_rng(0)

def randomized(model):
    for variable in model.weights:
        shape = tuple(variable.shape)
        if variable.path.endswith(("moving_variance", "gamma")):
            variable.assign(draw.uniform(0.5, 1.5, shape))
        elif len(shape) == 1:
            variable.assign(draw.normal(0, 0.2, shape))
    return model

def save(name, model, layers, image, *endings):
    for ending in endings:
        path = f"{folder}/{name}{ending}"
        model.save_weights(path) if ending == ".weights.h5" else model.save(path)
    ends = [model.get_layer(layer).output for layer in layers]
    outputs = keras.Model(model.input, ends)(image, training=False)
    np.savez(f"{folder}/{name}.npz", image, *outputs)

options = {"weights": None, "classes": 5, "classifier_activation": None}
small, odd = draw.normal(size=(2, 64, 64, 3)), draw.normal(size=(1, 75, 75, 3))
model = randomized(keras.applications.ResNet50(input_shape=(64, 64, 3), **options))
ends = [f"conv{stage}_block{count}_out" for stage, count in ((2, 3), (3, 4), (4, 6), (5, 3))]
save("resnet", model, [*ends, "predictions"], small, ".weights.h5")
for alpha in (1.0, 0.25):
    model = randomized(keras.applications.MobileNet(input_shape=(75, 75, 3), alpha=alpha, **options))
    ends = [f"conv_pw_{block}_relu" for block in (5, 11, 13)]
    save(f"mobilenet{alpha}", model, [*ends, "reshape_2"], odd, ".h5", ".keras", ".weights.h5")
model = keras.applications.MobileNet(input_shape=(32, 32, 3), alpha=0.25, weights=None, include_top=False)
model.save(f"{folder}/whole.h5")
with h5py.File(f"{folder}/mobilenet_no_top.h5", "w") as file:  # as the published files are
    save_weights_to_hdf5_group(file, model)
"""


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A folder of weights that Keras drew and saved, with its outputs on random images."""
    folder = tmp_path_factory.mktemp("keras")
    run_script(EXPORT, folder, seconds=600)
    return folder


def layers_of(seed: int = 0) -> Layers:
    return Layers(rngs=nnx.Rngs(seed), dtype=jnp.float32)


def mobilenet(width: int, channels: int = 3) -> MobileNetClassifier:
    return MobileNetClassifier(layers_of(), classes=CLASSES, image_shape=(75, 75, channels), width=width)


def empty(build: Callable[[], Any]) -> Any:
    """A model of zeros: to draw a large one takes longer than to use it."""
    graph, state = nnx.split(nnx.eval_shape(build))
    return nnx.merge(graph, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state))


def outputs_of(model: Any, image: np.ndarray[Any, Any]) -> list[jax.Array]:
    @nnx.jit
    def evaluate(model: Any, image: jax.Array) -> list[jax.Array]:
        return [*model.backbone(image, EVALUATE), model(image, EVALUATE)]

    found: list[jax.Array] = evaluate(model, jnp.asarray(image, jnp.float32))
    return found


def assert_same_outputs(model: Any, file: Path) -> None:
    with np.load(file) as saved:
        image, *expected = (saved[name] for name in saved.files)
    found = outputs_of(model, image)
    assert [x.shape for x in found] == [x.shape for x in expected]
    for ours, keras in zip(found, expected, strict=True):
        assert np.abs(ours - keras).max() <= 1e-4 * np.abs(keras).max()
        assert np.abs(keras).max() > 0


@pytest.mark.long
def test_resnet50_gives_the_outputs_of_keras_at_every_stage(exported):
    model = empty(lambda: ResNetClassifier(layers_of(), classes=CLASSES, image_shape=(64, 64, 3)))
    file = exported / "resnet.weights.h5"
    assert load_backbone(model, file, top=True) == file
    assert_same_outputs(model, exported / "resnet.npz")
    assert keras_normalization(model) == "caffe"


@pytest.mark.parametrize(("width", "alpha"), [(32, 1.0), (8, 0.25)])
@pytest.mark.long
def test_mobilenet_gives_the_outputs_of_keras_at_uneven_sizes_too(exported, width, alpha):
    model = empty(lambda: mobilenet(width))
    load_backbone(model, exported / f"mobilenet{alpha}.h5", top=True)
    assert_same_outputs(model, exported / f"mobilenet{alpha}.npz")
    assert keras_normalization(model) == "tf"


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.long
def test_every_kind_of_file_holds_the_same(exported, ending):
    one, other = mobilenet(8), mobilenet(8)
    load_backbone(one, exported / "mobilenet0.25.h5", top=True)
    load_backbone(other, exported / f"mobilenet0.25{ending}", top=True)
    assert_equal_states(nnx.state(one), nnx.state(other))


def assert_equal_states(one: Any, other: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.long
def test_whole_models_without_top_load_and_leave_the_head_as_drawn(exported):
    model, drawn = mobilenet(8), mobilenet(8)
    load_backbone(model, exported / "whole.h5")
    other = mobilenet(8)
    load_backbone(other, exported / "mobilenet_no_top.h5")
    assert_equal_states(nnx.state(model), nnx.state(other))
    assert_equal_states(nnx.state(model.head), nnx.state(drawn.head))
    assert not np.array_equal(model.backbone.stem.convolution.kernel, drawn.backbone.stem.convolution.kernel)
    with pytest.raises(UsageError, match=r"whole\.h5: no layer conv_preds; it has 54 layers"):
        load_backbone(model, exported / "whole.h5", top=True)


@pytest.mark.long
def test_a_detector_takes_the_weights_into_its_backbone_alone(exported):
    options: dict[str, Any] = {"backbone": "mobilenet_v1", "width": 8, "features": 8, "tower_depth": 1}
    model = RetinaNet(layers_of(), classes=3, image_shape=(64, 64, 3), **options)
    drawn = jax.tree.map(np.array, nnx.state(model.pyramid))
    load_backbone(model, exported / "mobilenet0.25.h5")
    classifier = mobilenet(8)
    load_backbone(classifier, exported / "mobilenet0.25.h5")
    assert_equal_states(nnx.state(model.backbone), nnx.state(classifier.backbone))
    assert_equal_states(nnx.state(model.pyramid), drawn)


@pytest.mark.long
def test_weights_that_do_not_fit_are_refused_and_change_nothing(exported):
    model = mobilenet(16)
    before = jax.tree.map(np.array, nnx.state(model))
    wrong = r"conv1, kernel: the model expects the shape \(3, 3, 3, 16\), the file has \(3, 3, 3, 8\)"
    with pytest.raises(UsageError, match=rf"mobilenet0\.25\.h5: layer {wrong}"):
        load_backbone(model, exported / "mobilenet0.25.h5")
    with pytest.raises(UsageError, match=r"conv1, kernel: .* \(3, 3, 1, 8\), the file has"):
        load_backbone(mobilenet(8, channels=1), exported / "mobilenet0.25.h5")
    small = ResNet(layers_of(), blocks=(1, 1, 1, 1), width=8)
    with pytest.raises(UsageError, match=r"mobilenet0\.25\.h5: no layer conv1_conv"):
        load_backbone(small, exported / "mobilenet0.25.h5")
    assert_equal_states(nnx.state(model), before)


def test_a_missing_or_foreign_file_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"none\.h5: no such file"):
        load_backbone(mobilenet(8), tmp_path / "none.h5")
    for name in ("text.h5", "text.keras"):
        (tmp_path / name).write_text("not weights")
        with pytest.raises(UsageError, match=rf"{name}: cannot be read as weights that Keras saved"):
            load_backbone(mobilenet(8), tmp_path / name)


@pytest.mark.long
def test_keras_cache_is_looked_into_by_name(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"mobilenet_2_5_224_tf\.h5 or .*MobileNet\(weights='imagenet'\)"):
        load_backbone(mobilenet(8))
    (tmp_path / "models").mkdir()
    cached = tmp_path / "models" / "mobilenet_2_5_160_tf_no_top.h5"
    cached.symlink_to(exported / "mobilenet_no_top.h5")
    assert load_backbone(mobilenet(8)) == cached
    with pytest.raises(UsageError, match="no weights of this width and depth; name a file"):
        load_backbone(mobilenet(12))


@pytest.mark.long
def test_group_norm_and_models_without_backbone_are_refused(exported):
    layers = Layers(rngs=nnx.Rngs(0), norm_kind="group")
    grouped = MobileNetClassifier(layers, classes=2, image_shape=(32, 32, 3), width=8)
    with pytest.raises(UsageError, match="conv1_bn is a batch norm, the model has GroupNorm"):
        load_backbone(grouped, exported / "mobilenet0.25.h5")
    with pytest.raises(UsageError, match=r"backbone Linear: .* are loaded into ResNet, MobileNet"):
        load_backbone(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
