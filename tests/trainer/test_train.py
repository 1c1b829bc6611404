"""A run learns, reports its progress, saves what it must, and stops with a reason."""

import contextlib
import io
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from halofeed.errors import CorruptFileError, JobError, TrainingError, UsageError
from halofeed.trainer.checkpoint import saved_steps
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.run_folder import open_run, run_lock
from halofeed.trainer.run_progress import Progress
from halofeed.trainer.task import DataFacts
from tests.support.stripes import FACTS, SIDE, Stripes, assert_equal, config_of, run
from tests.support.training import facts_of, logged

TWO_STEPS = config_of(steps=2, batch_size=4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of TWO_STEPS with an evaluation; a test that changes it has a copy."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(TWO_STEPS, Stripes(4), folder=folder, evaluation=Stripes(4, steps=1))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_learns_on_a_partition_and_its_evaluation_says_so() -> None:
    split = {"cores_per_replica": 4, "partition": "image=1,2,2,1"}
    config = config_of(steps=25, batch_size=16, **split, compute_dtype="bfloat16", norm_decay=0.9)
    summary = run(config, Stripes(16), devices=8, evaluation=Stripes(16, steps=3, seed=1))
    assert summary.mesh_shape == {"replica": 2, "core0": 2, "core1": 2}
    assert len(summary.losses) == 25
    assert np.mean(summary.losses[-3:]) < 0.3 * summary.losses[0]
    assert summary.metrics is not None
    assert summary.metrics["examples"] == 48 and summary.metrics["accuracy"] > 0.9
    assert summary.images_per_second > 0 and 0 <= summary.waiting_share <= 1


def test_the_run_folder_holds_config_log_evaluations_checkpoints_and_examples(tmp_path: Path) -> None:
    config = config_of(steps=6, batch_size=4, evaluate_every=2, keep_last=1)
    summary = run(config, Stripes(4), folder=tmp_path / "run", evaluation=Stripes(4, steps=2, seed=1))
    opened = open_run(tmp_path / "run")
    assert opened.config == config and opened.facts == FACTS
    log = logged(tmp_path / "run")
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5, 6]
    assert [entry["loss"] for entry in log] == list(summary.losses)
    assert {"learning_rate", "gradient_norm", "images_per_second", "waiting_share"} <= set(log[0])
    assert [entry["step"] for entry in logged(tmp_path / "run", "evaluations")] == [2, 4, 6]
    problem = opened.problem()
    parameters, _, step = opened.restore(problem, "last")
    assert step == 6
    assert_equal(parameters, summary.state.parameters)
    listed = json.loads((tmp_path / "run/examples/examples.json").read_text())["examples"]
    assert {entry["reason"] for entry in listed} == {"worst", "typical"} and len(listed) == 8
    scores = [entry["score"] for entry in listed if entry["reason"] == "worst"]
    assert scores == sorted(scores)
    with np.load(tmp_path / "run/examples" / listed[0]["file"]) as arrays:
        assert arrays["image"].shape == (SIDE, SIDE, 3)
        assert {"truth_label", "predicted_label", "predicted_probabilities"} <= set(arrays)


LOOPS = {"iterations_per_loop": 2, "cores_per_replica": 4, "partition": "[[1,4,1,1],None]"}


@pytest.mark.parametrize("how", [{}, {"iterations_per_loop": 3}, LOOPS], ids=["single", "loop", "split"])
def test_a_resumed_run_goes_on_bit_for_bit_also_with_several_steps_in_flight(tmp_path, how) -> None:
    averaged = {"average_decay": 0.9, "optimizer": "adamw", "accumulate_steps": 2}
    config = config_of(steps=8, batch_size=4, checkpoint_every=4, evaluate_every=3, **averaged, **how)
    options: dict[str, Any] = {"evaluation": Stripes(4, steps=1), "devices": config.cores_per_replica}
    undisturbed = run(config.changed(iterations_per_loop=1), Stripes(4), **options)
    ended = run(config, Stripes(4, steps=5), folder=tmp_path / "run", **options)
    assert ended.steps == 5
    resumed = run(config, Stripes(4), folder=tmp_path / "run", **options)
    assert ended.losses + resumed.losses == undisturbed.losses
    assert_equal(resumed.state, undisturbed.state)
    assert [entry["step"] for entry in logged(tmp_path / "run")] == list(range(1, 9))
    assert [entry["step"] for entry in logged(tmp_path / "run", "evaluations")] == [3, 5, 6, 8]


def test_a_checkpoint_under_the_number_of_another_step_is_refused(tmp_path: Path) -> None:
    config = config_of(steps=4, batch_size=4)
    run(config, Stripes(4, steps=2), folder=tmp_path / "run")
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("0*")
    checkpoint.rename(checkpoint.with_name("00000003"))
    with pytest.raises(CorruptFileError, match=r"00000003: the checkpoint of step 3 states .* step 2"):
        run(config, Stripes(4), folder=tmp_path / "run")


@pytest.mark.long
def test_a_run_goes_on_with_another_split_within_rounding(tmp_path: Path) -> None:
    config = config_of(steps=6, batch_size=8, cores_per_replica=2, partition="image=1,2,1,1")
    undisturbed = run(config, Stripes(8), devices=8).losses
    run(config, Stripes(8, steps=3), devices=8, folder=tmp_path / "run")
    other = config.changed(cores_per_replica=4, partition="image=1,4,1,1")
    resumed = run(other, Stripes(8), devices=8, folder=tmp_path / "run")
    np.testing.assert_allclose(resumed.losses, undisturbed[3:], rtol=1e-3)


def test_sigterm_saves_and_leaves_and_the_same_run_goes_on(tmp_path: Path) -> None:
    config = config_of(steps=20, batch_size=4)
    batches, stream = Stripes(4), io.StringIO()
    batches.kill_at = 9
    before = signal.getsignal(signal.SIGTERM)
    stopped = run(config, batches, folder=tmp_path / "run", stream=stream)
    assert signal.getsignal(signal.SIGTERM) == before
    assert stopped.stopped_by == signal.SIGTERM and 0 < stopped.steps <= 10
    assert f"stopped after step {stopped.steps}; the same command resumes there" in stream.getvalue()
    resumed = run(config, Stripes(4), folder=tmp_path / "run")
    assert stopped.steps + len(resumed.losses) == resumed.steps == 20


@pytest.mark.parametrize("evaluate_every", [3, 0])
def test_sigterm_in_an_evaluation_ends_it_and_saves_the_steps(tmp_path: Path, evaluate_every: int) -> None:
    config = config_of(steps=6, batch_size=4, evaluate_every=evaluate_every)
    evaluation, stream = Stripes(4, steps=50), io.StringIO()
    evaluation.kill_at = 2
    stopped = run(config, Stripes(4), folder=tmp_path / "run", evaluation=evaluation, stream=stream)
    reached = evaluate_every or 6
    assert (stopped.steps, stopped.stopped_by, stopped.metrics) == (reached, signal.SIGTERM, None)
    assert (
        f"the evaluation after step {reached} did not end; `halofeed evaluate` repeats it"
        in stream.getvalue()
    )
    assert saved_steps(tmp_path / "run/checkpoints") == [reached]
    undisturbed = run(config, Stripes(4), evaluation=Stripes(4, steps=1))
    resumed = run(config, Stripes(4), folder=tmp_path / "run", evaluation=Stripes(4, steps=1))
    assert stopped.losses + resumed.losses == undisturbed.losses
    assert_equal(resumed.state, undisturbed.state)


def test_an_evaluation_that_fails_loses_no_step(tmp_path: Path) -> None:
    class Failing(Stripes):
        def batch(self, step: int) -> dict[str, np.ndarray[Any, Any]]:
            raise RuntimeError("RESOURCE_EXHAUSTED")

    config = config_of(steps=6, batch_size=4, evaluate_every=4)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        run(config, Stripes(4), folder=tmp_path / "run", evaluation=Failing(4, steps=1))
    assert saved_steps(tmp_path / "run/checkpoints") == [4]


def test_a_finished_run_is_left_as_it_is(folder: Path) -> None:
    stream = io.StringIO()
    again = run(TWO_STEPS, Stripes(4), folder=folder, stream=stream)
    assert again.losses == () and again.steps == 2
    assert "nothing to do: all 2 steps were taken" in stream.getvalue()


def test_a_folder_with_another_run_or_with_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--overwrite to start again\nlearning_rate: was 0.02, now 0.5"):
        run(TWO_STEPS.changed(learning_rate=0.5), Stripes(4), folder=folder)
    again = run(TWO_STEPS.changed(steps=3), Stripes(4), folder=folder, overwrite=True)
    assert len(again.losses) == 3
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="is not empty and holds no run"):
            run(TWO_STEPS, Stripes(4), folder=tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine/thesis.tex").read_text() == "years of work"


def test_a_run_that_is_replaced_stays_until_the_new_one_has_saved_something(folder, tmp_path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(TrainingError):
        run(config_of(steps=9, batch_size=4), Stripes(4, broken_step=1), folder=folder, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    saving = config_of(steps=9, batch_size=4, checkpoint_every=2)
    with pytest.raises(TrainingError):
        run(saving, Stripes(4, broken_step=6), folder=folder, overwrite=True)
    assert open_run(folder).config.steps == 9
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_is_replaced_only_where_all_in_it_is_as_halofeed_wrote_it(folder, tmp_path: Path) -> None:
    (folder / "exported").mkdir()
    for name in ("notes.txt", "exported/model", "checkpoints/mine"):
        (folder / name).write_text("mine")
    (folder / "run.json").write_text((folder / "run.json").read_text() + " ")
    said = r"does not delete(.|\n)*notes.txt \(not(.|\n)*run.json \(changed(.|\n)*exported/(.|\n)*checkpoints/mine"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UsageError, match=said):
        run(TWO_STEPS, Stripes(4), folder=folder, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for name in ("notes.txt", "exported/model", "checkpoints/mine"):
        (folder / name).unlink()
    (folder / "exported").rmdir()
    (folder / "run.json").write_text((folder / "run.json").read_text()[:-1])
    for private in (folder, folder / "run.json"):
        private.chmod(private.stat().st_mode & 0o700)
    (tmp_path / ".run.removed").mkdir()
    (tmp_path / "link").symlink_to(folder)
    run(config_of(steps=3, batch_size=4), Stripes(4), folder=tmp_path / "link", overwrite=True)
    assert open_run(folder).config.steps == 3 and (tmp_path / "link").is_symlink()
    assert not any(path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*")))
    assert {path.name for path in tmp_path.iterdir()} == {"run", "link", ".run.removed"}


def test_a_second_process_that_trains_into_a_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "new", folder):
        lock = run_lock()
        lock.make(place)
        for overwrite in (False, True):
            with pytest.raises(JobError, match=r"process.* is training into it.*take another --out"):
                run(TWO_STEPS, Stripes(4), folder=place, overwrite=overwrite)
        lock.release()
        run(TWO_STEPS, Stripes(4), folder=place)


def test_a_log_that_is_a_link_is_not_written_through(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for name in ("log.jsonl", "log.jsonl.new", "tensorboard", "checkpoints"):
        folder = Path(shutil.copytree(trained, tmp_path / f"run {name}"))
        place = folder / name
        if place.is_dir():
            place.rename(tmp_path / f"moved {name}")
            (tmp_path / "mine").unlink()
            (tmp_path / "mine").mkdir()
        else:
            place.unlink(missing_ok=True)
        place.symlink_to(tmp_path / "mine")
        with pytest.raises(UsageError, match="move away") if name[-1] in "ds" else contextlib.nullcontext():
            run(TWO_STEPS, Stripes(4), folder=folder)
        if (tmp_path / "mine").is_dir():
            assert not list((tmp_path / "mine").iterdir())
            (tmp_path / "mine").rmdir()
            (tmp_path / "mine").write_text("mine")
        assert (tmp_path / "mine").read_text() == "mine"


def test_progress_is_some_twenty_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    run(config_of(steps=40, batch_size=2, compute_dtype="bfloat16"), Stripes(2), stream=stream)
    first, *steps = stream.getvalue().splitlines()
    assert "bfloat16, on cpu as replica 1; compiled in" in first
    assert [line.split("  ")[0] for line in steps] == [f"step {n}/40" for n in (1, *range(2, 41, 2))]
    assert all(re.search(r"  loss \d+\.\d{4}", line) for line in steps)
    assert all(re.search(r"images/s  input \d+%  .* left$", line) for line in steps[1:])


def test_a_model_of_ones_own_on_a_split_is_told_to_check_its_gradients() -> None:
    own = "halofeed.trainer.models.classifier:Classifier"

    def begun(model: str, cores: int) -> str:
        stream = io.StringIO()
        Progress(config_of(steps=1, model=model), stream, 0).begin(
            make_mesh(cores, jax.devices()[:2]), 9, is_cached=False
        )
        return stream.getvalue()

    assert "halofeed.trainer.check_gradients compares them" in begun(own, 2)
    assert "check_gradients" not in begun(own, 1) + begun("classifier", 2)


def test_progress_stays_in_place_on_a_terminal() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    run(config_of(steps=3, batch_size=2), Stripes(2), stream=stream)
    head, line = stream.getvalue().split("\n", 1)
    assert "parameters" in head
    assert line.count("\r\x1b[K") == 3 and line.count("\n") == 1


@pytest.mark.parametrize(
    ("cores", "partition", "warned"),
    [(2, "image=none", True), (2, "image=1", True), (2, "image=1,2,1,1", False), (1, "image=1", False)],
)
def test_cores_that_do_the_same_work_are_warned_of(cores: int, partition: str, warned: bool) -> None:
    stream = io.StringIO()
    config = config_of(steps=1, batch_size=2, cores_per_replica=cores, partition=partition)
    with pytest.raises(TrainingError, match="gave no batch"):  # before its step is compiled
        run(config, Stripes(2, steps=0), devices=cores, stream=stream)
    warnings = [line for line in stream.getvalue().splitlines() if line.startswith("warning: ")]
    assert bool(warnings) == warned
    if warned:
        assert "2 cores" in warnings[0] and "--partition image=1,2,1,1" in warnings[0]


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_ids(tmp_path, iterations) -> None:
    config = config_of(steps=5, batch_size=2, checkpoint_every=2, iterations_per_loop=iterations)
    words = r"step 3: the loss is nan; lower .* \(seed 0, batch 2\).*ids: 8589934592, 8589934593"
    with pytest.raises(TrainingError, match=words):
        run(config, Stripes(2, broken_step=2), folder=tmp_path / "run")
    _, _, step = open_run(tmp_path / "run").restore(open_run(tmp_path / "run").problem(), "last")
    assert step == 2


def test_what_does_not_go_together_is_refused_before_the_first_step() -> None:
    def refused(message: str, rows: int = 8, facts: DataFacts = FACTS, **options: Any) -> None:
        with pytest.raises(UsageError, match=message):
            run(config_of(**{"steps": 1, "batch_size": 8, **options}), Stripes(rows), devices=8, facts=facts)

    refused("batch of 6 does not divide by the 8 replicas", rows=6)
    refused(r"image: expected \[16, 32, 32, 3\], got \[8, 32, 32, 3\]", batch_size=16)
    refused(r"model\.widht: classifier has no such option; it takes features=", model_options={"widht": 3})
    own = "halofeed.trainer.models.classifier:Classifier"
    refused(r"model own:Net: cannot be imported \(No module named .own", model="own:Net")
    refused(r"unexpected keyword argument .widht.*options: features", model=own, model_options={"widht": 3})
    refused("task json:Task: cannot be imported", task="json:Task")
    own = "halofeed.trainer.tasks.classification:Classification"
    refused("smoothing is unknown; .*known: label_smoothing", task=own, task_options={"smoothing": 1})
    of_boxes = facts_of("detection", {1: "a"}, (32, 32, 3))
    refused("model classifier: is for classification, the data set is for detection", facts=of_boxes)
