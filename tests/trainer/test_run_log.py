"""Every logged number is on disk and still right after a run was cut off, and a replaced run comes back whole."""

import contextlib
import json
import math
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.storage import owned_files
from halofeed.trainer.event_file import EventFile
from halofeed.trainer.log import RunLog
from halofeed.trainer.run_folder import restore_replaced
from tests.support.training import logged


def strict(line: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line, parse_constant=refuse)


def events(path: Path) -> list[Any]:
    """The messages of an event file, as TensorFlow reads them."""
    from tensorflow.core.util import event_pb2
    from tensorflow.python.lib.io import tf_record

    return [event_pb2.Event.FromString(record) for record in tf_record.tf_record_iterator(str(path))]


def board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What the event files hold, purged as TensorBoard does it."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in events(path):
            if event.HasField("session_log"):
                found = {tag: [row for row in rows if row[0] < event.step] for tag, rows in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_every_line_is_json_and_on_disk_when_its_call_returns_and_tensorboard_gets_the_numbers(
    tmp_path: Path,
) -> None:
    classes = {"cat": np.float32(0.25), "dog": None}
    metrics = {"mAP": 0.5, "per class": classes, "confusion": np.eye(2, dtype=int), "rows": [1], "name": "x"}
    with RunLog(tmp_path, resume_step=None) as log:
        log.step(10, {"loss": 0.5, "rate": jnp.float32(0.25), "half": jnp.bfloat16(1.5)})
        log.step(20, {"loss": math.nan, "rate": math.inf, "low": np.float64(-math.inf)})
        log.evaluation(20, "val", metrics)
        lines = (tmp_path / "log.jsonl").read_text().splitlines()
        assert [check_json_checksum(strict(line)) for line in lines] == [
            {"step": 10, "loss": 0.5, "rate": 0.25, "half": 1.5},
            {"step": 20, "loss": "NaN", "rate": "Infinity", "low": "-Infinity"},
        ]
        expected = metrics | {"per class": {"cat": 0.25, "dog": None}, "confusion": [[1, 0], [0, 1]]}
        assert logged(tmp_path, "evaluations") == [{"step": 20, "split": "val", "metrics": expected}]
    numbers = {"loss": [(10, 0.5)], "rate": [(10, 0.25)], "half": [(10, 1.5)]}
    assert board(tmp_path) == {**numbers, "val/mAP": [(20, 0.5)], "val/per_class/cat": [(20, 0.25)]}


def test_an_event_file_has_the_names_times_and_steps_of_tensorflows_format(tmp_path: Path) -> None:
    times = iter(range(1_700_000_000_000_000_000, 1_700_000_009_000_000_000, 1_000_000_000))
    with EventFile(tmp_path, first_step=5, clock=times.__next__) as file:
        file.scalars(5, [("loss", 0.1), ("/val/dice of liver \u00e9", -2.5)])
        file.scalars(1 << 35, [("loss", 1e300)])
        file.scalars(7, [])
        # While the file is open, as TensorBoard reads it.
        version, start, first, second = events(file.path)
    assert (version.file_version, version.step, version.wall_time) == ("brain.Event:2", 0, 1.7e9 + 1)
    assert (start.session_log.status, start.step) == (1, 5)
    assert (first.step, first.wall_time) == (5, 1.7e9 + 3)
    assert [value.tag for value in first.summary.value] == ["loss", "val/dice_of_liver_\u00e9"]
    assert [value.simple_value for value in first.summary.value] == [np.float32(0.1), -2.5]
    assert (second.step, second.summary.value[0].simple_value) == (1 << 35, math.inf)


@pytest.mark.parametrize("torn", [b"", b'{"step": 4, "lo', b'{"step": 1, "loss": 7.0}'])
def test_a_resumed_run_cuts_off_later_lines_and_a_torn_one(tmp_path: Path, torn: bytes) -> None:
    with RunLog(tmp_path, resume_step=None) as log:
        for step in (1, 2, 3):
            log.step(step, {"loss": float(step)})
            log.evaluation(step, "val", {"AP": float(step)})
    for name in ("log.jsonl", "evaluations.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(torn)
    with RunLog(tmp_path, resume_step=2) as log:
        log.step(3, {"loss": 30.0})
        log.evaluation(3, "val", {"AP": 30.0})
    assert [(line["step"], line["loss"]) for line in logged(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [line["metrics"]["AP"] for line in logged(tmp_path, "evaluations")] == [1.0, 2.0, 30.0]
    assert board(tmp_path)["loss"] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert not list(tmp_path.glob("*.new"))


def test_a_run_that_begins_anew_empties_the_log_and_one_that_does_not_write_has_none(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        with RunLog(tmp_path, resume_step=None) as log:
            log.step(0, {"loss": loss})
    assert logged(tmp_path) == [{"step": 0, "loss": 2.0}]
    with RunLog(tmp_path / "run", resume_step=None, writes=False) as log:
        log.step(1, {"loss": 1.0})
        log.evaluation(1, "val", {"AP": 1.0})
    assert not (tmp_path / "run").exists()


CHANGED = json.dumps(with_json_checksum({"step": 1, "loss": 0.5})).replace("0.5", "0.6").encode()


@pytest.mark.parametrize("line", [b"\0\0\0", b'{"loss": 1}', b"[1]", CHANGED])
def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(CorruptFileError, match=r"log.jsonl, line 2: expected .* remove this line"):
        RunLog(tmp_path, resume_step=2)


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with RunLog(tmp_path, resume_step=None) as log, pytest.raises(UsageError, match="expected numbers, text"):
        log.evaluation(1, "val", {"set": {1, 2}})


def test_a_run_comes_back_whole_also_where_another_thread_still_writes(tmp_path: Path) -> None:
    run, replaced = tmp_path / "run", tmp_path / ".run.replaced"
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                (run / "checkpoints").mkdir(parents=True, exist_ok=True)
                (run / "log.jsonl").write_text("later")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            replaced.mkdir()
            owned_files.begin_list(replaced)
            (replaced / "run.json").write_text("earlier")
            assert restore_replaced(run) and not replaced.exists()
            assert (run / "run.json").read_text() == "earlier"
    finally:
        ended.set()
        writer.join()
    assert not restore_replaced(run), "there is no other"
