"""What `halofeed train` and `predict` say about choices that the user did not make."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halofeed import training
from halofeed.trainer.config import TrainConfig


@pytest.mark.parametrize(
    ("given", "evaluation", "said", "unsaid"),
    [
        (
            None,
            object(),
            ["no --config: unet3d_small, 40 steps of 4 images of 24 x 32 x 40;"],
            ["no metrics"],
        ),
        ("unet3d_small", object(), [], ["--config", "no metrics"]),
        ("unet3d_small", None, ["no metrics", "--split-shares", "besides 'train'"], ["--config"]),
    ],
)
def test_a_run_names_the_recipe_that_it_chose_and_the_lack_of_a_split_to_evaluate_on(
    given: str | None, evaluation: Any, said: list[str], unsaid: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = SimpleNamespace(image_shape=(24, 32, 40, 1))
    data: Any = SimpleNamespace(facts=facts, evaluation=evaluation, description={"split": "train"})
    config = TrainConfig(model="unet", steps=40, batch_size=4)
    parsed: Any = SimpleNamespace(config=given)
    training._print_choices(parsed, config, "unet3d_small", data)
    printed = capsys.readouterr().err
    assert all(words in printed for words in said) and not any(words in printed for words in unsaid)


def test_a_prediction_names_the_folder_of_series_that_it_skips(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(facts=SimpleNamespace(kind="volume"))
    names = [f"my mr/IMG{number}.dcm" for number in range(5)]
    (tmp_path / "my mr").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
    text = training._describe_skipped(names, tmp_path, run)
    assert text.startswith("skipped 5 files") and "IMG2.dcm and 2 more" in text and "IMG3" not in text
    assert text.endswith(f"--source '{tmp_path}/my mr'")
    (tmp_path / "odd.raw").write_bytes(b"?")
    assert "--source" not in training._describe_skipped(["odd.raw"], tmp_path, run)
