"""Small files that a later command reads state their checksum, and none with a changed digit is believed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import CorruptFileError
from halofeed.inspection.run_facts import read_run_facts
from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.schemas.file_layout import plan_file, read_plan
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.log import RunLog
from halofeed.trainer.run_folder import begin_run, open_run
from tests.support.run_writer import write_run
from tests.support.training import facts_of


def write_begun_run(folder: Path) -> Path:
    facts = facts_of("classification", {0: "a", 1: "b"}, (16, 16, 3), mean=(101.5,) * 3)
    begin_run(folder, TrainConfig(), facts, {"recipe": {}}, overwrite=False, chief=True)
    return folder / "run.json"


def write_plan(folder: Path) -> Path:
    plan_file(folder).write_text(json.dumps({"format": 1, "cores": 8}))
    return write_sealed(plan_file(folder))


def write_log(folder: Path) -> Path:
    write_run(folder, "classification", steps=0)
    with RunLog(folder, resume_step=None) as log:
        log.step(1, {"loss": 0.5})
    return folder / "log.jsonl"


def write_sealed(file: Path) -> Path:
    file.write_text(json.dumps(with_json_checksum(json.loads(file.read_text()))))
    return file


FILES: dict[str, tuple[Callable[[Path], Path], tuple[str, str], Callable[[Path], Any]]] = {
    "the facts of a run": (write_begun_run, ("101.5", "181.5"), open_run),
    "its log": (write_log, ("0.5", "0.6"), read_run_facts),
    "a plan": (write_plan, ("8", "4"), read_plan),
    "its examples": (
        lambda folder: write_sealed(write_run(folder, "classification") / "examples/examples.json"),
        ('"step": 200', '"step": 100'),
        read_run_facts,
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_changed_digit_is_refused_and_a_file_of_the_release_before_is_read(tmp_path, case):
    write, (digit, other), read = FILES[case]
    folder = tmp_path / "run"
    file = write(folder)
    text = file.read_text()
    read(folder)
    assert text.count(digit) and "crc32c" in text
    file.write_text(text.replace(digit, other, 1))
    with pytest.raises(CorruptFileError, match=f"{file}: .*checksum is wrong.*(again|remove)"):
        read(folder)
    file.write_text(json.dumps(check_json_checksum(json.loads(text))))
    read(folder)
