"""`halofeed train` resumes after kills and runs on several processes; halofeed/api.py's examples run the rest."""

import random
import shutil
import signal
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

from halofeed.trainer.run_folder import open_run
from tests.support import commands
from tests.support.conversions import draw_folders, run_convert
from tests.support.level_rows import others
from tests.support.training import finished, free_port, halofeed, logged

SETTINGS = (
    *("--config", "classifier_small", "--compute-dtype", "float32", "--batch-size", "8"),
    *("--set", "model.features=[8, 8, 8]", "--evaluate-split", "train"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw_folders(folder / "source", 24)
    done = run_convert(folder / "source", folder / "out", layout="folders", height=32, width=32)
    return Path(done.folder)


def losses(run: Path) -> list[float]:
    log = logged(run)
    assert [entry["step"] for entry in log] == list(range(1, len(log) + 1))
    return [entry["loss"] for entry in log]


@pytest.mark.parametrize("kills", [*others([2], []), *others([10], [], pytest.mark.exhaustive)])
def test_kills_change_no_later_loss(data: Path, tmp_path: Path, kills: int) -> None:
    def train(name: str) -> subprocess.Popen[str]:
        return halofeed(
            "train", data, "--out", tmp_path / name, *SETTINGS, "--steps", 60, "--checkpoint-every", 2,
            "--virtual-devices", 2, "--cores-per-replica", 2, "--partition", "image=1,2,1,1",
        )  # fmt: skip

    finished(train("undisturbed"))
    expected, file, killed = losses(tmp_path / "undisturbed"), tmp_path / "killed/log.jsonl", 0
    for at_step in sorted(random.Random(4).sample(range(2, 58), kills)):
        process = train("killed")
        commands.wait_until(
            lambda at=at_step: file.is_file() and len(file.read_text().splitlines()) >= at, process, 300
        )
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    finished(train("killed"))
    assert killed >= min(kills - 1, 8)
    assert losses(tmp_path / "killed") == expected


@pytest.mark.parametrize("count", [*others([2], []), *others([4], [], pytest.mark.exhaustive)])
def test_several_processes_have_the_losses_of_one(data: Path, tmp_path: Path, count: int) -> None:
    def train(name: str, devices: int, *more: object) -> subprocess.Popen[str]:
        return halofeed(
            "train", data, "--out", tmp_path / name, *SETTINGS, "--steps", 6, "--virtual-devices", devices,
            "--cores-per-replica", 2, "--partition", "image=1,2,1,1", *more,
        )  # fmt: skip

    finished(train("one", 4))
    together = ("--coordinator", f"127.0.0.1:{free_port()}", "--process-count", count, "--process-id")
    for process in [train("several", 4 // count, *together, number) for number in range(count)]:
        finished(process)
    np.testing.assert_allclose(losses(tmp_path / "several"), losses(tmp_path / "one"), rtol=1e-5)
    # They write one checkpoint, which one process reads.
    runs = [open_run(tmp_path / name) for name in ("several", "one")]
    found, expected = (jax.tree.leaves(run.restore(run.problem(), "last")[0]) for run in runs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_several_processes_start_from_the_weights_that_one_reads(data: Path, tmp_path: Path) -> None:
    finished(
        halofeed("train", data, "--out", tmp_path / "first", *SETTINGS, "--steps", 2, "--virtual-devices", 1)
    )

    def train(name: str, devices: int, *more: object) -> subprocess.Popen[str]:
        return halofeed(
            "train", data, "--init", tmp_path / "first", "--out", tmp_path / name, "--evaluate-split", "train",
            "--virtual-devices", devices, "--cores-per-replica", 2, "--partition", "image=1,2,1,1", *more,
        )  # fmt: skip

    said = finished(train("one", 4))
    assert f"--init without --config: the options are those of {tmp_path / 'first'}\n" in said
    together = ("--coordinator", f"127.0.0.1:{free_port()}", "--process-count", 2, "--process-id")
    several = [
        finished(process) for process in [train("several", 2, *together, number) for number in range(2)]
    ]
    assert "weights after step 2; loaded blocks, head" in several[0]
    assert losses(tmp_path / "first")[0] != losses(tmp_path / "one")[0]
    np.testing.assert_allclose(losses(tmp_path / "several"), losses(tmp_path / "one"), rtol=1e-5)
    assert len(losses(tmp_path / "one")) == 2  # the steps of the first run
    shutil.rmtree(tmp_path / "first")
    assert "it began with the weights of" in finished(train("one", 4, "--steps", 3))
    assert len(losses(tmp_path / "one")) == 3
