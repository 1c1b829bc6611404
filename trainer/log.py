"""Log of a run: training steps and evaluations, as JSON lines and for TensorBoard.

    folder/log.jsonl            {"step": 10, "loss": 0.5, ...}                              a line per logged step
    folder/evaluations.jsonl    {"step": 100, "split": "val", "metrics": {"mAP": 0.4, ...}}  a line per evaluation
    folder/tensorboard/         the same numbers for TensorBoard

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity", because JSON lacks them. The last member
of a line is its checksum (`halofeed.schemas.bounded_json`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import atomic_write, make_owned_folder, open_owned_file
from halofeed.storage.paths import load_bytes, open_path
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.resource_errors import error_context
from halofeed.trainer.event_file import EventFile

STEPS, EVALUATIONS, TENSORBOARD = "log.jsonl", "evaluations.jsonl", "tensorboard"


class RunLog(AbstractContextManager["RunLog"]):
    """Log of a run; every line is in the file when its call returns.

    Args:
        folder: run folder; created if missing.
        resume_step: number of steps after which the run resumes. Later lines and an incomplete last line are removed,
            and TensorBoard hides later steps. None starts a new log.
        writes: whether this process writes; in a run of several processes only the first does.

    Raises:
        CorruptFileError: an earlier log has a line that this class did not write.
        UsageError: a file or folder to be written is a link.
    """

    def __init__(self, folder: Path, *, resume_step: int | None, writes: bool = True) -> None:
        self._files: dict[str, TextIO] = {}
        self._board: EventFile | None = None
        self._folder = folder = Path(folder)
        # Several processes of a run share one folder.
        if not writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        board = folder / TENSORBOARD
        make_owned_folder(board)
        last_step = -1 if resume_step is None else resume_step
        for name in (STEPS, EVALUATIONS):
            owned_files.record_growing_file(folder, name)
            _remove_later_steps(folder / name, last_step)
            try:
                descriptor = open_owned_file(folder / name, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                self.close()
                raise UsageError(f"{folder / name}: {error.strerror}") from error
            self._files[name] = open_path(descriptor, "a", encoding="utf-8")
        self._board = EventFile(board, first_step=last_step + 1)
        owned_files.record_growing_file(folder, f"{TENSORBOARD}/{self._board.path.name}")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Log a training step.

        Args:
            step: number of steps taken.
            values: numbers by name, e.g. loss; NumPy's and JAX's scalars are allowed.
        """
        self._write(STEPS, {"step": step, **_plain(values)})
        self._scalars(values, step)

    def evaluation(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Log an evaluation.

        Args:
            step: number of steps taken.
            split: evaluated split of the data set.
            metrics: nested tables of numbers, text, None, lists and arrays. TensorBoard gets only the numbers, named
                split/outer/inner.
        """
        self._write(EVALUATIONS, {"step": step, "split": split, "metrics": _plain(metrics)})
        self._scalars({split: metrics}, step)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._board is not None:
            self._board.close()
            self._board = None

    def __exit__(self, *details: object) -> None:
        self.close()

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        if name in self._files:
            with error_context("cannot write the log", self._folder / name):
                self._files[name].write(_line(document))
                self._files[name].flush()

    def _scalars(self, values: Mapping[str, Any], step: int) -> None:
        if self._board is not None:
            with error_context("cannot write the log", self._board.path):
                self._board.scalars(step, flat_numbers(values))


def flat_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of nested tables, with names joined by /.

    >>> list(flat_numbers({"AP": 0.5, "per class": {"cat": 1, "dog": None}, "matrix": [[1]]}))
    [('AP', 0.5), ('per class/cat', 1.0)]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in flat_numbers(value))
            continue
        plain = _plain(value)
        if isinstance(plain, int | float) and not isinstance(plain, bool):
            yield name, float(plain)


def _plain(value: Any) -> Any:
    """Return a value as JSON values; arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        # JSON cannot encode other types, such as bfloat16.
        encodable = array if array.dtype.kind in "biufOU" else array.astype(np.float64)
        return _plain(encodable.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # NaN, Infinity or -Infinity, as text
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"log: expected numbers, text, tables, lists or arrays, got {value!r}")


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(with_json_checksum(document), allow_nan=False, ensure_ascii=False) + "\n"


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a file of JSON lines, without an incomplete last line."""
    lines = load_bytes(path).split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            document = check_json_checksum(json.loads(line))
        except ValueError as error:
            raise CorruptFileError(
                f"{path}, line {number}: expected JSON as it was written, got {line[:80]!r} ({error}); remove this line"
            ) from error
        # Lines are kept or removed by their step.
        if not isinstance(document, dict) or not isinstance(document.get("step"), int):
            raise CorruptFileError(
                f'{path}, line {number}: expected {{"step": ...}}, got {line[:80]!r}; remove this line'
            )
        yield document


def _remove_later_steps(path: Path, last_step: int) -> None:
    """Rewrite a log atomically with the lines up to a step."""
    if not path.exists():
        return
    kept = [_line(document) for document in _documents(path) if document["step"] <= last_step]
    atomic_write(path, "".join(kept).encode())
