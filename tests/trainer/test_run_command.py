"""Does `halofeed train` go on after kills, on several processes, and do its results lead on to the other commands?"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.conversions import draw_folders, run_convert
from tests.support.training import finished, free_port, halofeed, logged

SETTINGS = (
    *("--config", "classifier_small", "--compute-dtype", "float32", "--batch-size", "8"),
    *("--set", "model.features=[8, 8, 8]", "--evaluate-split", "train"),
)
TIMEOUT_SECONDS = 300


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


@pytest.mark.long
def test_ten_kills_change_no_later_loss(data: Path, tmp_path: Path) -> None:
    def train(name: str) -> subprocess.Popen[str]:
        return halofeed(
            "train", data, "--out", tmp_path / name, *SETTINGS, "--steps", 60, "--checkpoint-every", 2,
            "--virtual-devices", 2, "--cores-per-replica", 2, "--partition", "image=1,2,1,1",
        )  # fmt: skip

    finished(train("undisturbed"))
    expected, draw, kills = losses(tmp_path / "undisturbed"), random.Random(4), 0
    for at_step in sorted(draw.sample(range(2, 58), 10)):
        process = train("killed")
        file, began = tmp_path / "killed/log.jsonl", time.monotonic()
        while process.poll() is None and time.monotonic() - began < TIMEOUT_SECONDS:
            if file.is_file() and len(file.read_text().splitlines()) >= at_step:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.communicate()
    finished(train("killed"))
    assert kills >= 8
    assert losses(tmp_path / "killed") == expected


@pytest.mark.long
def test_several_processes_have_the_losses_of_one(data: Path, tmp_path: Path) -> None:
    def train(name: str, devices: int, *more: object) -> subprocess.Popen[str]:
        return halofeed(
            "train", data, "--out", tmp_path / name, *SETTINGS, "--steps", 6, "--virtual-devices", devices,
            "--cores-per-replica", 2, "--partition", "image=1,2,1,1", *more,
        )  # fmt: skip

    finished(train("one", 4))
    for count in (2, 4):
        together = ("--coordinator", f"127.0.0.1:{free_port()}", "--process-count", count, "--process-id")
        for process in [train(str(count), 4 // count, *together, number) for number in range(count)]:
            finished(process)
        np.testing.assert_allclose(losses(tmp_path / str(count)), losses(tmp_path / "one"), rtol=1e-5)


def test_the_way_from_training_to_predictions_and_an_export(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    output = finished(halofeed("train", data, "--out", run, *SETTINGS, "--steps", 4))
    assert "step 4/4" in output and "accuracy" in output and (run / "report.html").is_file()
    output = finished(halofeed("evaluate", run, "--json", tmp_path / "metrics.json"))
    assert "step 4 on train of" in output
    metrics = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    assert metrics["examples"] == 24
    new = data.parents[2] / "source"
    output = finished(halofeed("predict", run, "--source", new, "--out", tmp_path / "found"))
    assert "24 records predicted by step 4" in output and (tmp_path / "found/classes.csv").is_file()
    output = finished(halofeed("predict", run, "--source", new, "--out", tmp_path / "found"), code=2)
    assert "--overwrite" in output
    finished(halofeed("export", run, "--out", tmp_path / "exported"))
    assert {"model.stablehlo", "signature.json", "README.md"} <= {
        file.name for file in (tmp_path / "exported").iterdir()
    }
    output = finished(halofeed("evaluate", tmp_path), code=2)
    assert "holds no run (run.json is missing)" in output


def test_the_recipes_and_models_are_listed_and_printed() -> None:
    listed = finished(halofeed("configs"))
    names = ("retinanet_resnet50_fpn_2560_8way", "unet3d_256_16way", "ssd_mobilenet_v1")
    assert all(name in listed for name in names)
    assert 'model = "unet"' in finished(halofeed("configs", "unet3d_128"))
