"""A run continues to more steps with the learning rates that it says, and changes freely while no step is saved."""

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import TrainingError, UsageError
from halofeed.trainer.checkpoint import saved_steps
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.run_folder import begin_run, open_run
from halofeed.trainer.train import TrainSummary
from tests.support.stripes import FACTS, Stripes, assert_equal, config_of, run
from tests.support.training import logged

FOUR = config_of(steps=4, batch_size=2, model_options={"features": (4,)}, learning_rate=0.1)


def into(folder: Path, config: TrainConfig, **more: Any) -> tuple[TrainSummary, str]:
    stream = io.StringIO()
    done = run(config, Stripes(2, steps=more.pop("until", None)), folder=folder, stream=stream, **more)
    return done, stream.getvalue()


def cosine(step: int, steps: int) -> float:
    """The learning rate of a step, counted from 1."""
    return 0.1 * (1 + math.cos(math.pi * min(step - 1, steps) / steps)) / 2


def rates(folder: Path) -> list[float]:
    return [entry["learning_rate"] for entry in logged(folder)]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainSummary]:
    folder = tmp_path_factory.mktemp("four") / "run"
    return folder, into(folder, FOUR)[0]


@pytest.fixture
def copied(four: tuple[Path, TrainSummary], tmp_path: Path) -> Path:
    return Path(shutil.copytree(four[0], tmp_path / "run"))


def test_a_longer_run_follows_the_new_cosine_from_its_next_step_also_after_a_stop(four, copied, tmp_path):
    longer, said = into(copied, FOUR.changed(steps=7))
    assert "steps: was 4, now 7; the learning rate follows the cosine of 7 steps from here on: " in said
    assert f"{cosine(5, 7):g} at step 5; with --set schedule_steps=4 it follows that of 4 steps: 0\n" in said
    listed = [*(cosine(step, 4) for step in range(1, 5)), *(cosine(step, 7) for step in range(5, 8))]
    np.testing.assert_allclose(rates(copied), listed, rtol=1e-5, atol=1e-9)
    written = FOUR.changed(
        steps=7, schedule="manual_step", boundaries=tuple(range(1, 7)), rates=tuple(listed)
    )
    oracle = run(written, Stripes(2))
    np.testing.assert_allclose((*four[1].losses, *longer.losses), oracle.losses, rtol=1e-4)
    document = open_run(copied).document
    assert document["config"]["steps"] == 7
    assert document["earlier_lengths"] == [
        {"until_step": 4, "schedule_steps": 0, "steps": 4, "warmup_steps": 0}
    ]

    again = Path(shutil.copytree(four[0], tmp_path / "again"))
    first, _ = into(again, FOUR.changed(steps=7), until=6)
    second, said = into(again, FOUR.changed(steps=7))
    assert "was 4" not in said and "resuming after step 6" in said
    assert first.losses + second.losses == longer.losses
    assert_equal(second.state, longer.state)
    assert open_run(again).document["earlier_lengths"] == document["earlier_lengths"]


def test_a_longer_run_keeps_its_cosine_where_that_is_asked(four, copied):
    _, said = into(copied, FOUR.changed(steps=6, schedule_steps=4))
    assert "steps: was 4, now 6" in said and "still follows the cosine of 4 steps: 0 at step 5" in said
    np.testing.assert_allclose(rates(copied), [cosine(step, 4) for step in range(1, 7)], atol=1e-8)
    kept, _, step = open_run(copied).restore(open_run(copied).problem(), "last")
    # The rate is 0, so two more steps change no parameter.
    assert step == 6
    assert_equal(kept, four[1].state.parameters)


@pytest.mark.parametrize(
    "options", [{"schedule_steps": 6}, {"schedule": "constant"}], ids=["cosine", "constant"]
)
def test_a_run_whose_schedule_allows_for_more_steps_equals_an_undisturbed_one(tmp_path, options) -> None:
    short = FOUR.changed(steps=3, **options)
    undisturbed = run(short.changed(steps=6), Stripes(2))
    first, _ = into(tmp_path / "run", short)
    # Without its value the schedule is that of the new number of steps, which is the same.
    second, said = into(tmp_path / "run", short.changed(steps=6, schedule_steps=0))
    assert first.losses + second.losses == undisturbed.losses
    assert_equal(second.state, undisturbed.state)
    assert "steps: was 3, now 6" in said and "from here on" not in said


def test_all_options_may_change_while_no_step_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(TrainingError, match="the loss is nan"):
        run(FOUR.changed(steps=9), Stripes(2, broken_step=1), folder=folder)
    # What a run leaves that is killed while it saves.
    (folder / "checkpoints/00000002.orbax-checkpoint-tmp").mkdir()
    done, said = into(folder, FOUR.changed(steps=1, learning_rate=0.5, seed=3, optimizer="adam"))
    lines = [line.strip() for line in said.splitlines()]
    assert f"{folder}: no step of its run was saved; it starts again with" in lines
    assert {"learning_rate: was 0.1, now 0.5", "seed: was 0, now 3", "steps: was 9, now 1"} <= set(lines)
    assert done.steps == 1 and [entry["step"] for entry in logged(folder)] == [1]
    assert open_run(folder).config.seed == 3 and saved_steps(folder / "checkpoints") == [1]


def begun(folder: Path, config: TrainConfig, facts: Any = FACTS) -> list[str]:
    return begin_run(folder, config, facts, {"data_name": "a"}, overwrite=False, chief=True)


def test_options_of_a_saved_run_are_refused_with_the_ways_out(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    assert begun(folder, FOUR) == []
    (folder / "checkpoints/00000003").mkdir(parents=True)
    (tmp_path / "my run-2").mkdir()
    before = (folder / "run.json").read_bytes()
    words = (
        rf"holds a run with other .*\(--out '{folder}-3' --init '{folder}' starts there from its weights\)"
    )
    for changes in ({"learning_rate": 0.5}, {"steps": 9, "seed": 1}, {"warmup_steps": 1}):
        with pytest.raises(UsageError, match=words) as caught:
            begun(folder, FOUR.changed(**changes))
        assert "steps: was" not in str(caught.value).replace("warmup_steps", "")
    with pytest.raises(
        UsageError, match=r"--steps 2: .* has taken 3 steps; pass --steps 3 or more, or name another --out"
    ):
        begun(folder, FOUR.changed(steps=2))
    with pytest.raises(
        UsageError, match="name another folder, or pass --overwrite to start again\nmodel_options"
    ):
        begun(folder, FOUR.changed(model_options={"features": [8]}))
    assert (folder / "run.json").read_bytes() == before
    # The warm-up of a recipe is a share of a short run, so it changes with the length.
    (line,) = begun(folder, FOUR.changed(steps=9, warmup_steps=1))
    assert line.startswith("steps: was 4, now 9")
    assert begun(folder, FOUR.changed(steps=9, warmup_steps=1)) == []
    lengths = json.loads((folder / "run.json").read_text())["earlier_lengths"]
    assert [(length["until_step"], length["steps"]) for length in lengths] == [(3, 4)]
    # No step was taken with 9, so it leaves no trace.
    begun(folder, FOUR.changed(steps=12))
    assert open_run(folder).document["earlier_lengths"] == lengths


def test_the_schedule_has_its_own_length_only_where_it_depends_on_it() -> None:
    with pytest.raises(
        UsageError,
        match="schedule steps: belongs to the schedule cosine or polynomial, not constant; leave it out",
    ):
        run(FOUR.changed(schedule="constant", schedule_steps=5), Stripes(2))
    with pytest.raises(UsageError, match="accumulate steps: expected at most the 2 steps of the run, got 4"):
        run(FOUR.changed(accumulate_steps=4, schedule_steps=2), Stripes(2))
