"""A run starts from the weights of another one: all of them, or all but the outputs of other classes."""

import dataclasses
import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from halofeed.errors import UsageError
from halofeed.trainer.config import TrainConfig, config_of_run
from halofeed.trainer.initial_weights import Name, _arrays, _fitting, _misfits, _shapes, initial_weights
from halofeed.trainer.models import model_named
from halofeed.trainer.run_folder import open_run
from halofeed.trainer.step import TrainState
from halofeed.trainer.task import DataFacts
from halofeed.trainer.training_setup import build_program, build_training_setup
from tests.support.stripes import FACTS, SIDE, Stripes, assert_equal, config_of, run
from tests.support.training import facts_of

TWO = config_of(steps=2, batch_size=4, model_options={"features": (4, 4)}, checkpoint_every=1)
THREE_CLASSES = facts_of(
    "classification", {0: "across", 1: "down", 2: "both"}, (SIDE, SIDE, 3), mean=(128.0,) * 3
)
OTHER_CLASSES = facts_of("classification", {0: "down", 1: "across"}, (SIDE, SIDE, 3), mean=(128.0,) * 3)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("other") / "run"
    run(TWO, Stripes(4), folder=folder)
    return folder


def first_state(config: TrainConfig, facts: DataFacts = FACTS, devices: int = 1) -> tuple[TrainState, Any]:
    """The state before step 0, and what its origin is."""
    program = build_program(config, facts, jax.devices()[:devices])
    initial = initial_weights(config, facts, program.setup)
    assert initial is not None
    return program.new_state(initial.load), initial.origin


def saved(folder: Path, which: str = "last") -> dict[Name, Any]:
    """The weights of a checkpoint by name."""
    opened = open_run(folder)
    parameters, statistics, _ = opened.restore(opened.problem(), which)
    return _arrays(parameters, statistics)


def weights(state: TrainState) -> dict[Name, Any]:
    return _arrays(state.parameters, state.statistics)


def assert_same(found: Mapping[Name, Any], expected: Mapping[Name, Any], names: Any) -> None:
    assert names
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], str(name))


def test_with_equal_classes_the_first_loss_is_that_of_the_other_run_continued(
    other: Path, tmp_path: Path
) -> None:
    continued = run(TWO.changed(steps=3), Stripes(4), folder=shutil.copytree(other, tmp_path / "continued"))
    stream = io.StringIO()
    # Batch 0 of the new run is the other one's batch 2.
    new = TWO.changed(init=str(other), seed=5, optimizer="adam")
    done = run(new, Stripes(4, first=2), folder=tmp_path / "new", stream=stream)
    assert done.losses[0] == continued.losses[0]
    assert f"init {other}: weights after step 2; loaded blocks, head (12 arrays)\n" in stream.getvalue()
    origin = open_run(tmp_path / "new").document["origin"]
    assert (origin["run"], origin["step"], origin["new"]) == (str(other), 2, [])


@pytest.mark.parametrize(
    ("facts", "listed"), [(THREE_CLASSES, "across, down, both"), (OTHER_CLASSES, "down, across")]
)
@pytest.mark.parametrize("devices", [1, 4])
def test_with_other_classes_all_but_the_outputs_is_loaded_exactly(other, facts, listed, devices) -> None:
    split = {"cores_per_replica": 2, "partition": "image=1,2,1,1"} if devices > 1 else {}
    config = TWO.changed(init=str(other), seed=9, **split)
    state, origin = first_state(config, facts, devices)
    found, expected = weights(state), saved(other)
    assert_same(found, expected, [name for name in expected if name[0] == "blocks"])
    drawn = weights(build_program(config, facts, jax.devices()[:devices]).new_state())
    assert_same(found, drawn, [name for name in drawn if name[0] == "head"])
    assert int(state.step) == 0 and all(leaf.is_fully_replicated for leaf in found.values())
    assert origin.document["loaded"] == ["blocks"] and origin.document["new"] == ["head"]
    words = "loaded blocks (10 arrays); new head (2 arrays), because the classes differ: across, down there"
    assert origin.line.endswith(f"{words}, {listed} here")


def test_a_checkpoint_of_the_other_run_may_be_named(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(other)
    for path, step in (("checkpoints/00000001", 1), (str(other / "checkpoints/00000002"), 2)):
        state, origin = first_state(TWO.changed(init=path))
        assert_same(
            weights(state), saved(other, str(step)), [("head", "kernel"), ("blocks", 0, "norm", "mean")]
        )
        assert origin.document["step"] == step
    assert not np.array_equal(saved(other, "1")["head", "kernel"], saved(other, "2")["head", "kernel"])


def test_the_average_of_the_other_run_is_taken_as_in_its_evaluation(tmp_path: Path) -> None:
    averaged = TWO.changed(average_decay=0.9)
    done = run(averaged, Stripes(4), folder=tmp_path / "run")
    state, _ = first_state(averaged.changed(init=str(tmp_path / "run")))
    assert_equal(state.parameters, done.state.average)
    assert_equal(state.average, done.state.average)


def test_a_resume_needs_no_origin_and_names_it(other: Path, tmp_path: Path) -> None:
    origin = Path(shutil.copytree(other, tmp_path / "origin"))
    config = TWO.changed(init=str(origin), steps=3)
    undisturbed = run(config, Stripes(4), folder=tmp_path / "undisturbed")
    first = run(config, Stripes(4, steps=1), folder=tmp_path / "new")
    shutil.rmtree(origin)
    for settings in (config, config.changed(init="")):
        stream = io.StringIO()
        place = Path(shutil.copytree(tmp_path / "new", tmp_path / f"new {settings.init == ''}"))
        second = run(settings, Stripes(4), folder=place, stream=stream)
        assert first.losses + second.losses == undisturbed.losses
        assert_equal(second.state, undisturbed.state)
        assert f"resuming after step 1; it began with the weights of {origin}, step 2\n" in stream.getvalue()
        assert open_run(place).config.init == str(origin) and open_run(place).document["origin"]["step"] == 2
    with pytest.raises(UsageError, match=r"holds a run with other settings(.|\n)*init: was "):
        run(config.changed(init=str(other)), Stripes(4), folder=tmp_path / "new")
    with pytest.raises(UsageError, match=r"holds a run with other settings(.|\n)*init: was ''"):
        run(TWO.changed(init=str(tmp_path / "new")), Stripes(4), folder=other)


def test_what_cannot_be_an_origin_is_refused_before_anything_is_written(other: Path, tmp_path: Path) -> None:
    def refused(message: str, facts: DataFacts = FACTS, out: Path = tmp_path / "new", **changes: Any) -> None:
        with pytest.raises(UsageError, match=message):
            run(TWO.changed(**{"init": str(other), **changes}), Stripes(4), folder=out, facts=facts)
        assert not (tmp_path / "new").exists()

    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/signature.json").write_text("{}")
    refused(r"exported: is an exported program.*name the run", init=str(tmp_path / "exported"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text("{}")
    refused("data: is a data set, not a training run; name the folder of a run", init=str(tmp_path / "data"))
    refused("nowhere: no such folder; name a folder that `halofeed train --out` made", init="nowhere")
    refused("is a part of a run; name the run's folder", init=str(other / "checkpoints"))
    refused("no checkpoint of step 7, but of 1, 2", init=str(other / "checkpoints/00000007"))
    refused(
        "trained on 3 channels, the data set has 1; .* --recipe",
        dataclasses.replace(FACTS, image_shape=(32, 32, 1)),
    )
    refused(
        "normalization caffe: .* trained with dataset; pass --set normalization=dataset",
        normalization="caffe",
    )
    lines = r"leave --config and the options of the model out(.|\n)*model.features: \[4, 4\] there, \[8, 4\] here\n"
    refused(
        lines + r"  blocks.*float32\[3, 3, 3, 4\] there, float32\[3, 3, 3, 8\] here",
        model_options={"features": [8, 4]},
    )
    refused(r"and \d+ other arrays", model_options={"features": [4] * 5})
    refused(
        "model for classification, the data set is for segmentation",
        of_masks(),
        model="unet",
        model_options=UNET,
    )
    refused("leave --backbone-weights out, or .* add --set backbone_weights=", backbone_weights="w.h5")
    refused("is the run's own folder; leave --init out", out=other)
    run_again = Path(shutil.copytree(other, tmp_path / "again"))
    for path in run_again.glob("checkpoints/0*"):
        shutil.rmtree(path)
    refused("holds no checkpoint yet", init=str(run_again))
    refused("is the run's own folder; leave --init out", init=str(run_again), out=run_again)


UNET = {"depth": 2, "width": 2}


def of_masks(classes: int = 2) -> DataFacts:
    return facts_of("segmentation", dict(enumerate("abcdef"[:classes])), (SIDE, SIDE, 3), mean=(1.0,) * 3)


@pytest.mark.parametrize(
    ("model", "options", "outputs"),
    [
        ("classifier", {}, {"head"}),
        ("unet", UNET, {"head"}),
        ("unet", {**UNET, "depth": 3, "deep_supervision": True}, {"head", "coarse_heads"}),
        ("retinanet", {"width": 2, "features": 2, "blocks": [1, 1, 1, 1]}, {"outputs"}),
        ("ssd_mobilenet_v1_ppn", {"width": 8}, {"outputs"}),
    ],
)
def test_outputs_are_the_parts_with_shapes_that_depend_on_the_classes(model, options, outputs) -> None:
    task = model_named(model).task
    facts = [
        facts_of(task, dict(enumerate("abcd"[:count], 1)), (64, 64, 3), mean=(1.0,) * 3) for count in (2, 3)
    ]
    config = TrainConfig(model=model, model_options=options)
    shapes = [_shapes(build_training_setup(config, one), one.classes) for one in facts]
    assert {name[0] for name in shapes[0].outputs} == {name[0] for name in shapes[0].by_class} == outputs
    fitting, new = _fitting(*shapes, same_classes=False)
    assert set(new) == shapes[0].by_class and not _misfits(*shapes, new)
    assert {*fitting, *new} == set(shapes[0].arrays)


def test_boxes_with_other_anchors_are_new_and_the_rest_of_the_detector_is_not() -> None:
    small = {"width": 2, "features": 2, "blocks": [1, 1, 1, 1]}
    facts = facts_of("detection", {1: "a", 2: "b"}, (64, 64, 3), mean=(1.0,) * 3)
    there, here = (
        _shapes(
            build_training_setup(TrainConfig(model="retinanet", model_options={**small, **more}), facts), 2
        )
        for more in ({}, {"aspect_ratios": [1.0]})
    )
    _, new = _fitting(here, there, same_classes=True)
    assert {name[:2] for name in new} == {("outputs", "logits"), ("outputs", "codes")}
    assert not _misfits(here, there, new)


class Wrapped(nnx.Module):
    """A model that keeps everything in one part."""

    def __init__(self, layers: Any, *, classes: int, image_shape: Any, width: int = 3) -> None:
        self.all = nnx.List([layers.dense(image_shape[-1], width), layers.dense(width, classes)])


def test_a_model_in_one_part_has_its_outputs_by_their_shapes(other: Path) -> None:
    def shapes(width: int, classes: int) -> Any:
        config = TrainConfig(model=f"{__name__}:Wrapped", model_options={"width": width})
        return _shapes(build_training_setup(config, FACTS if classes == 2 else THREE_CLASSES), classes)

    here, there = shapes(3, 2), shapes(3, 3)
    _, new = _fitting(here, there, same_classes=False)
    assert set(new) == here.outputs == {("all", 1, "kernel"), ("all", 1, "bias")} and not _misfits(
        here, there, new
    )
    _, new = _fitting(here, shapes(5, 2), same_classes=True)
    assert _misfits(here, shapes(5, 2), new)


def test_without_a_config_the_options_are_those_of_the_other_run_but_for_its_data(other: Path) -> None:
    config = config_of_run(other)
    assert config == TWO
    assert dataclasses.replace(config, init=str(other)).model_options == TWO.model_options
