"""The options of a run are read, checked and changed as documented."""

from pathlib import Path

import pytest

from halofeed.errors import UsageError
from halofeed.trainer.config import TrainConfig, config_summary, load_config, named_configs


def test_wrong_options_are_refused_when_they_are_given():
    for options, message in (
        ({"steps": 0, "batch_size": 0}, "steps: expected 1 or more, got 0; batch size: expected 1 or more"),
        ({"learning_rate": 0.0}, "learning rate: expected more than 0"),
        ({"image_shape": (32, 32)}, r"image shape: expected \[height, width, channel\] .*, got \(32, 32\)"),
        ({"image_shape": (32, 0, 3)}, "image shape: expected .* each 1 or more"),
        ({"optimizer": "lion"}, "optimizer: expected one of sgd, adam, adamw, lamb, lars"),
        ({"average_decay": 1.0}, "average decay: expected 0 or more and less than 1"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainConfig(**options)


def test_settings_are_toml_and_reach_into_model_and_task() -> None:
    config = TrainConfig().changed(
        ["clip-norm=10", "model.features=[8, 16]", "task.label_smoothing=0.1", "partition=[[1,2,1,1]]"],
        cores_per_replica=2,
    )
    assert config.clip_norm == 10.0 and isinstance(config.clip_norm, float)
    assert config.model_options == {"features": [8, 16]}
    assert config.task_options == {"label_smoothing": 0.1}
    assert config.parsed_partition().dims == {"image": (1, 2, 1, 1)}


def test_a_setting_that_cannot_be_names_itself():
    for setting, message in (
        ("steps", "expected name=value"),
        ("stpes=3", r"stpes: no such setting; did you mean steps\? known: model,"),
        ("steps=many", "steps: expected a whole number, got 'many'"),
        ("steps=true", "steps: expected a whole number, got True"),
        ("augment=3", "augment: expected a list such as .*FlipLeftRight.*, got 3"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainConfig().changed([setting])


@pytest.mark.parametrize("name", named_configs())
def test_each_config_that_comes_along_opens_with_its_summary_and_command(name: str) -> None:
    text = named_configs()[name]
    assert len(config_summary(text)) > 20
    comment = text[: text.index("\n\n")]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert f"--config {name}" in comment and "expect" in comment.lower()
    load_config(name)


def test_a_file_of_ones_own_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("steps = 7\n")
    assert load_config(str(file)).steps == 7
    file.write_text("steps = \n")
    with pytest.raises(UsageError, match=r"--config .*mine.toml: Invalid value"):
        load_config(str(file))
    with pytest.raises(UsageError, match="--config nothing: not known; known: "):
        load_config("nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(str(tmp_path / "absent.toml"))


MIX = {"name": "BatchMix"}


@pytest.mark.parametrize(
    ("changes", "remedy", "message"),
    [
        (
            {"repeat_threshold": 0.01},
            {"draw_by": "repeat-factor"},
            "repeat_threshold 0.01: has an effect only with",
        ),
        (
            {"model_options": {"anisotropic": True, "strides": [[1, 2]]}},
            {"model_options": {"anisotropic": True, "strides": []}},
            "model.anisotropic: has no effect beside model.strides",
        ),
        (
            {"batch_size": 1, "device_augment": (MIX,)},
            {"batch_size": 2},
            "device_augment BatchMix: mixes images",
        ),
    ],
)
def test_options_that_change_nothing_are_refused_by_a_new_run_alone(changes, remedy, message):
    config = TrainConfig(**changes)  # an old run can be evaluated
    with pytest.raises(UsageError, match=message):
        config.check_effects()
    TrainConfig(**{**changes, **remedy}).check_effects()


def test_all_options_that_change_nothing_are_named_at_once():
    config = TrainConfig(batch_size=1, device_augment=(MIX,), repeat_threshold=0.5)
    with pytest.raises(UsageError, match=r"repeat_threshold 0\.5: .*; device_augment BatchMix: "):
        config.check_effects()


def test_a_foreground_share_belongs_to_the_windows_of_a_random_crop():
    crop = {"name": "RandomCrop", "sides": [4, 4], "foreground": 1.0}
    config = TrainConfig(augment=({"name": "FlipLeftRight"}, crop), foreground_share=0.25)
    assert config.loader_augment() == [
        {"name": "FlipLeftRight"},
        {**crop, "foreground": 0.25, "by_class": True},
    ]
    assert config.changed(foreground_share=0.0).loader_augment() == list(config.augment)
    with pytest.raises(UsageError, match="foreground_share: places the windows of RandomCrop"):
        TrainConfig(foreground_share=0.25).loader_augment()
    with pytest.raises(UsageError, match=r"foreground share: expected 0 to 1, got 1\.5"):
        TrainConfig(foreground_share=1.5)
