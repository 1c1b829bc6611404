"""Checkpoints of a run, restored on the same mesh or another.

    folder/00000200/            one folder per checkpoint, renamed to this name when it is complete
                    state/      every leaf of the TrainState by its path
                    loader/     the loader's state, step and metric, checksums of the leaves and of this document
                    metrics/    the metric that selects the best checkpoint, if it was evaluated

Only this file uses Orbax.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint.checkpoint_managers import (  # type: ignore[import-untyped]
    AnyPreservationPolicy,
    BestN,
    LatestN,
)

from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import fsync_tree, make_owned_folder
from halofeed.storage.paths import find_paths, load_bytes
from halofeed.system.errors import CorruptFileError, TrainingError, UsageError
from halofeed.trainer.step import TrainState

DIGITS = 8
METRIC = "best"
REPLICA_BYTES = 1 << 24
"""Size below which one device alone writes a leaf."""

DAMAGED_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions of Orbax and TensorStore for files that are missing, truncated or changed."""

WRITE_ERRORS = (OSError, ValueError, RuntimeError)
"""Exceptions of Orbax and TensorStore for a full disk or a folder without write permission."""

Leaves = dict[str, Any]


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """Checkpoints of one run: the last few, and the best by its metric.

    A save runs in the background, under a temporary name until it is complete. So a killed run keeps its earlier
    checkpoints. Every process of a run calls every method and writes its share.

    Args:
        folder: folder of the checkpoints; created if missing.
        keep_last: number of last checkpoints to keep, besides the best.
        read_only: create and remove nothing. A second job that reads a run's folder must set it, because a writer
            removes incomplete checkpoints.

    Raises:
        CorruptFileError: a checkpoint's metadata cannot be read.
        UsageError: `read_only` and the folder does not exist.
    """

    def __init__(self, folder: Path, *, keep_last: int = 2, read_only: bool = False) -> None:
        logging.getLogger("absl").addFilter(_is_worth_logging)
        self.folder = Path(folder).absolute()
        self._read_only = read_only
        self._synced: int | None = None
        if read_only and not self.folder.is_dir():
            raise UsageError(
                f"{folder}: no such folder; copy it from where the run was trained, or train again"
            )
        if not read_only and jax.process_index() == 0 and self.folder.parent.is_dir():
            make_owned_folder(self.folder)
        best = BestN(get_metric_fn=itemgetter(METRIC), n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            step_format_fixed_length=DIGITS,
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=True,
            best_fn=itemgetter(METRIC),
            preservation_policy=AnyPreservationPolicy([LatestN(keep_last), best]),
        )
        _check_metrics(self.folder)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options, handler_registry=_handlers())
        except DAMAGED_ERRORS as error:
            raise _damaged(self.folder, error) from error

    def save(
        self,
        step: int,
        state: TrainState,
        loader_state: Mapping[str, Any],
        metric: float | None,
        *,
        wait: bool = False,
    ) -> None:
        """Save the state after `step` steps, unless this checkpoint exists; wait for an earlier save first.

        The state is copied from the devices before this returns, so the next step may reuse its memory.

        Args:
            step: number of steps taken.
            state: training state to save.
            loader_state: output of `Loader.state`, JSON values.
            metric: metric that selects the best checkpoint: the highest, and the latest of equal ones. A checkpoint
                with None or a value that is not finite is never the best.
            wait: return when the checkpoint is on disk.

        Raises:
            UsageError: the folder holds a later checkpoint.
            TrainingError: this checkpoint, or the one before, could not be written.
        """
        self.wait()
        steps = self._manager.all_steps()
        if step in steps:
            return
        self._check_writable(step, steps)
        # Added to the list of owned files before Orbax makes them, so --overwrite can delete those of a killed save.
        if jax.process_index() == 0:
            for name in (self._name(step), f"{self._name(step)}.orbax-checkpoint-tmp"):
                owned_files.record_library_folder(self.folder.parent, name, whole=False)
        leaves = _leaves(state)
        known_metric = None if metric is None or not math.isfinite(metric) else float(metric)
        document = {
            "loader": dict(loader_state),
            "checksums": _checksums(leaves),
            "step": step,
            "metric": known_metric,
        }
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(leaves), loader=ocp.args.JsonSave(with_json_checksum(document))
        )
        metrics = None if known_metric is None else {METRIC: known_metric}
        try:
            self._manager.save(step, args=items, metrics=metrics)
        except WRITE_ERRORS as error:
            raise self._write_error(error) from error
        if wait:
            self.wait()

    def _check_writable(self, step: int, steps: Sequence[int]) -> None:
        """Raise an error if the folder holds a checkpoint of a later step, or cannot be written."""
        if steps and max(steps) > step:
            raise UsageError(
                f"{self.folder}: holds the checkpoint of step {max(steps)}, later than {step}; "
                "resume from it, remove it, or train in another folder"
            )
        # Orbax would wait five minutes for a folder that it cannot create.
        if not os.access(self.folder, os.W_OK | os.X_OK) or not self.folder.is_dir():
            raise self._write_error(OSError("the folder is missing or not writable"))

    def latest(self) -> int | None:
        """Return the step of the last complete checkpoint, after waiting for a running save."""
        self.wait()
        step: int | None = self._manager.latest_step()
        return step

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints."""
        return sorted(self._manager.all_steps())

    def best(self) -> int | None:
        """Return the step with the highest metric, None if no checkpoint has one, after waiting for a running save."""
        self.wait()
        step: int | None = self._manager.best_step()
        return step

    def restore(self, template: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """Return the state and the loader's state of a checkpoint, each leaf bit for bit.

        Args:
            template: TrainState of arrays or jax.ShapeDtypeStruct with the expected shapes and dtypes. Its shardings
                place the leaves (on the first device without one); the mesh may differ from the saved state's.
            step: step of the checkpoint, the last by default.

        Raises:
            UsageError: there is no such checkpoint, or its leaves are those of another model or optimizer.
            CorruptFileError: the checkpoint is damaged.
        """
        self.wait()
        step = self._existing_step(step)
        folder = self.folder.parent / self._name(step)
        expected, structure = _abstract(template)
        self._check_leaves(step, folder, expected)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(expected), loader=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
            leaves, document = dict(restored["state"]), check_json_checksum(restored["loader"])
            checksums = document["checksums"]
            loader_state = dict(document["loader"])
            saved_after = document.get("step", step)  # missing in checkpoints of early versions
        except Exception as error:  # Orbax raises the base class where TensorStore cannot read a chunk
            raise _damaged(folder, error) from error
        actual = _checksums(leaves)
        # A leaf that is spread over processes has no checksum, see `_checksums`.
        if wrong := [key for key in actual if key in checksums and checksums[key] != actual[key]]:
            raise _damaged(folder, ValueError(f"wrong checksum of {', '.join(wrong)}"))
        # A checkpoint that was renamed or copied would resume at another step.
        if saved_after != step:
            raise CorruptFileError(
                f"{folder}: the checkpoint of step {step} states that it was saved after step {saved_after}; "
                f"rename this folder to {saved_after:0{DIGITS}d}, or remove it to resume from the one before it"
            )
        return jax.tree.unflatten(structure, [leaves[key] for key in expected]), loader_state

    def _existing_step(self, step: int | None) -> int:
        """Return a step, or the last one for None; UsageError if it has no checkpoint."""
        steps = self._manager.all_steps()
        if not steps:
            raise UsageError(f"{self.folder}: holds no checkpoint")
        step = max(steps) if step is None else step
        if step not in steps:
            raise UsageError(
                f"{self.folder}: holds no checkpoint of step {step}, but of {', '.join(map(str, sorted(steps)))}"
            )
        return step

    def _check_leaves(self, step: int, folder: Path, expected: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        """Raise UsageError if a checkpoint has other leaves than expected, before they are read."""
        try:
            stored = self._manager.item_metadata(step)["state"]
            stored = {key: (tuple(leaf.shape), np.dtype(leaf.dtype)) for key, leaf in stored.items()}
        except DAMAGED_ERRORS as error:
            raise _damaged(folder, error) from error
        if differences := _differences(stored, expected):
            lines = "\n  ".join(differences)
            raise UsageError(
                f"{folder}: is of another model or optimizer; use the config that it was trained with:\n  {lines}"
            )

    def wait(self) -> None:
        """Wait until the running save is on disk.

        Raises:
            TrainingError: it could not be written.
        """
        try:
            self._manager.wait_until_finished()
            latest = self._manager.latest_step()
            # A checkpoint counts as saved when its files are on the disk, and not in the system's cache.
            if latest is not None and latest != self._synced and not self._read_only:
                fsync_tree(self.folder / f"{latest:0{DIGITS}d}")
                if jax.process_index() == 0:
                    owned_files.record_library_folder(self.folder.parent, self._name(latest), whole=True)
                self._synced = latest
        except WRITE_ERRORS as error:
            raise self._write_error(error) from error

    def close(self) -> None:
        """Wait for the running save and end the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def __exit__(self, *details: object) -> None:
        self.close()

    def _name(self, step: int) -> str:
        """Return the path of a checkpoint's folder, relative to the run folder."""
        return f"{self.folder.name}/{step:0{DIGITS}d}"

    def _write_error(self, error: Exception) -> TrainingError:
        return TrainingError(
            f"{self.folder}: a checkpoint could not be written: {_first_line(error)}; earlier ones are complete"
        )


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, also a missing one, without opening them."""
    # Orbax gives a checkpoint its name when it is complete.
    return sorted(int(path.name) for path in find_paths(folder, "[0-9]" * DIGITS))


def _damaged(folder: Path, error: Exception) -> CorruptFileError:
    return CorruptFileError(
        f"{folder}: the checkpoint is damaged ({_first_line(error)}); remove this folder to resume from the one before "
        "it"
    )


def _check_metrics(folder: Path) -> None:
    """Raise CorruptFileError if a metric, which selects the best checkpoint, differs from the saved document."""
    # Orbax chooses the best checkpoint by this file, which has no checksum.
    for checkpoint in sorted(find_paths(folder, "[0-9]" * DIGITS)):
        metric = None
        try:
            with contextlib.suppress(FileNotFoundError):
                metric = json.loads(load_bytes(checkpoint / "metrics/metrics"))[METRIC]
        except DAMAGED_ERRORS as error:
            raise _damaged(checkpoint, error) from error
        try:
            document = check_json_checksum(json.loads(load_bytes(checkpoint / "loader/metadata")))
            saved = document.get("metric", metric)
        except DAMAGED_ERRORS:  # `restore` reports a damaged document
            continue
        if metric != saved:
            raise _damaged(checkpoint, ValueError(f"its metric was {saved} and is {metric}"))


def _first_line(error: Exception) -> str:
    """Return an error's text without the long context that TensorStore adds in brackets."""
    text = f"{type(error).__name__}: {error}".split("\n")[0].split(" [")[0]
    return text if len(text) <= 500 else f"{text[:500]} ..."


def _handlers() -> Any:
    # By default Orbax slices every replicated leaf for all devices, by a program per shape: 10 s for 600 leaves.
    arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=REPLICA_BYTES)
    ocp.type_handlers.register_type_handler(jax.Array, arrays, override=True)
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item, handler, kinds in (
        ("state", ocp.StandardCheckpointHandler(), (ocp.args.StandardSave, ocp.args.StandardRestore)),
        ("loader", ocp.JsonCheckpointHandler(), (ocp.args.JsonSave, ocp.args.JsonRestore)),
    ):
        for kind in kinds:
            registry.add(item, kind, handler)
    return registry


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Filter absl's log: of Orbax's records keep only errors without a traceback.

    Its tracebacks are of exceptions that the next `wait` raises.
    """
    return "orbax" not in record.pathname or (record.levelno >= logging.ERROR and not record.exc_info)


def _leaves(state: TrainState) -> Leaves:
    """Return every leaf by its path, e.g. `.parameters['head']['kernel'].value`."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _abstract(template: TrainState) -> tuple[dict[str, jax.ShapeDtypeStruct], Any]:
    default = SingleDeviceSharding(jax.local_devices()[0])
    expected = {
        key: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or default
        )
        for key, leaf in _leaves(template).items()
    }
    return expected, jax.tree.structure(template)


def _differences(
    stored: Mapping[str, tuple[tuple[int, ...], Any]], expected: Mapping[str, jax.ShapeDtypeStruct]
) -> list[str]:
    """Return a line for every leaf that is only in the checkpoint, only in the model, or differs."""
    missing = [f"{key}: not in the checkpoint" for key in expected if key not in stored]
    extra = [f"{key}: only in the checkpoint" for key in stored if key not in expected]
    other = [
        f"{key}: expected {leaf.dtype}{list(leaf.shape)}, the checkpoint has {stored[key][1]}{list(stored[key][0])}"
        for key, leaf in expected.items()
        if key in stored and stored[key] != (tuple(leaf.shape), np.dtype(leaf.dtype))
    ]
    return missing + extra + other


def _checksums(leaves: Leaves) -> dict[str, int]:
    """Return the CRC-32 of every leaf that is complete in this process; Orbax's files have no checksum."""
    complete = {
        key: leaf.addressable_data(0) if leaf.is_fully_replicated else leaf
        for key, leaf in leaves.items()
        if leaf.is_fully_replicated or leaf.is_fully_addressable
    }
    return {
        key: zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        for key, leaf in complete.items()
    }
