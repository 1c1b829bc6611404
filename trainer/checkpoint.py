"""How is a run saved so that it goes on after any end, on the same mesh or another?

    folder/00000200/            one folder per checkpoint, renamed to its name once it is whole
                    state/      every leaf of the TrainState by its path, and its checksum
                    loader/     the loader's state, step and metric, checksums of the leaves and of all this
                    metrics/    what the best is chosen by, where it was measured

Only this file knows Orbax.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
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

from halofeed.errors import CorruptFileError, TrainingError, UsageError
from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.system import owned_files
from halofeed.system.atomic_files import make_own_folder, sync_tree
from halofeed.trainer.step import TrainState

DIGITS = 8
METRIC = "best"
REPLICA_BYTES = 1 << 24
"""Leaves that are smaller are written by one device alone."""

Leaves = dict[str, Any]


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run: the last few, and the best by its metric.

    A save is written in the background. Until it is whole it has another name, so a run that is killed leaves the
    checkpoints before it. Every process of a run calls every method; each writes its share.

    Args:
        folder: of the checkpoints; made where there is none.
        keep_last: how many of the last are kept, beside the best.
        read_only: nothing is made or removed. A second job that looks at a run's folder needs it, for a writer
            removes what another has half written.

    Raises:
        CorruptFileError: a checkpoint's metadata cannot be read.
        UsageError: `read_only` and there is no such folder.
    """

    def __init__(self, folder: Path, *, keep_last: int = 2, read_only: bool = False) -> None:
        logging.getLogger("absl").addFilter(_drop_chatter)
        self.folder = Path(folder).absolute()
        self._read_only = read_only
        self._synced: int | None = None
        if read_only and not self.folder.is_dir():
            raise UsageError(f"{folder}: no such folder; expected one with checkpoints")
        if not read_only and jax.process_index() == 0 and self.folder.parent.is_dir():
            make_own_folder(self.folder)
        best = BestN(get_metric_fn=_metric, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            step_format_fixed_length=DIGITS,
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=True,
            best_fn=_metric,
            preservation_policy=AnyPreservationPolicy([LatestN(keep_last), best]),
        )
        _check_metrics(self.folder)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=options, handler_registry=_handlers())
        except DAMAGE as error:
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
        """Save the state after `step` steps; a step that is there already is left as it is.

        The state is copied from the devices before this returns, so that the next step may take its memory over.
        A save under way is waited for.

        Args:
            step: how many were taken.
            state: what a step changes.
            loader_state: of `Loader.state`; JSON values.
            metric: the higher the better, the later of equal ones; None or a value that is not finite
                leaves this checkpoint out of the choice of the best.
            wait: return when it is on disk.

        Raises:
            UsageError: the folder holds a later checkpoint.
            TrainingError: this one, or the one before, could not be written.
        """
        self.wait()
        steps = self._manager.all_steps()
        if step in steps:
            return
        if steps and max(steps) > step:
            raise UsageError(
                f"{self.folder}: holds the checkpoint of step {max(steps)}, later than {step}; "
                "go on from it, remove it, or train in another folder"
            )
        # Orbax would wait five minutes for a folder that it cannot make.
        if not os.access(self.folder, os.W_OK | os.X_OK) or not self.folder.is_dir():
            raise self._unwritten(OSError("the folder is gone or may not be written to"))
        if jax.process_index() == 0:
            for place in (self._place(step), f"{self._place(step)}.orbax-checkpoint-tmp"):
                owned_files.note_below(self.folder.parent, place, whole=False)
        leaves = _leaves(state)
        known = None if metric is None or not math.isfinite(metric) else float(metric)
        document = {
            "loader": dict(loader_state),
            "checksums": _checksums(leaves),
            "step": step,
            "metric": known,
        }
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(leaves), loader=ocp.args.JsonSave(with_json_checksum(document))
        )
        metrics = None if known is None else {METRIC: known}
        try:
            self._manager.save(step, args=items, metrics=metrics)
        except UNWRITTEN as error:
            raise self._unwritten(error) from error
        if wait:
            self.wait()

    def latest(self) -> int | None:
        """The last step whose checkpoint is whole; waits for a save under way."""
        self.wait()
        step: int | None = self._manager.latest_step()
        return step

    def best(self) -> int | None:
        """The step with the highest metric, None where none has one; waits for a save under way."""
        self.wait()
        step: int | None = self._manager.best_step()
        return step

    def restore(self, template: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """The state and the loader's state of a checkpoint, each leaf bit for bit.

        Args:
            template: a TrainState of arrays or jax.ShapeDtypeStruct: their shapes and dtypes are expected, their
                shardings are where the leaves go (the first device where there is none). They may lie on another
                mesh than the state that was saved.
            step: the last by default.

        Raises:
            UsageError: no such checkpoint; or it is of another model or optimizer, with every leaf that differs.
            CorruptFileError: it is damaged.
        """
        self.wait()
        steps = self._manager.all_steps()
        if not steps:
            raise UsageError(f"{self.folder}: holds no checkpoint")
        chosen = max(steps) if step is None else step
        if chosen not in steps:
            raise UsageError(
                f"{self.folder}: holds no checkpoint of step {step}; there are {', '.join(map(str, sorted(steps)))}"
            )
        place = self.folder / f"{chosen:0{DIGITS}d}"
        wanted, structure = _abstract(template)
        try:
            stored = self._manager.item_metadata(chosen)["state"]
            stored = {key: (tuple(leaf.shape), np.dtype(leaf.dtype)) for key, leaf in stored.items()}
        except DAMAGE as error:
            raise _damaged(place, error) from error
        if differences := _differences(stored, wanted):
            lines = "\n  ".join(differences)
            raise UsageError(
                f"{place}: is of another model or optimizer; use the config that it was trained with:\n  {lines}"
            )
        items = ocp.args.Composite(state=ocp.args.StandardRestore(wanted), loader=ocp.args.JsonRestore())
        try:
            found = self._manager.restore(chosen, args=items)
            leaves, document = dict(found["state"]), check_json_checksum(found["loader"])
            expected = document["checksums"]
            loader_state = dict(document["loader"])
            saved_after = document.get("step", chosen)  # which earlier checkpoints do not state
        except Exception as error:  # Orbax raises the base class where TensorStore cannot read a chunk
            raise _damaged(place, error) from error
        got = _checksums(leaves)
        if wrong := [key for key in got if key in expected and expected[key] != got[key]]:
            raise _damaged(place, ValueError(f"wrong checksum of {', '.join(wrong)}"))
        if saved_after != chosen:
            raise CorruptFileError(
                f"{place}: the checkpoint of step {chosen} states that it was saved after step {saved_after}; "
                f"rename this folder to {saved_after:0{DIGITS}d}, or remove it to go on from the one before it"
            )
        return jax.tree.unflatten(structure, [leaves[key] for key in wanted]), loader_state

    def wait(self) -> None:
        """Return when the save under way is on disk.

        Raises:
            TrainingError: it could not be written.
        """
        try:
            self._manager.wait_until_finished()
            latest = self._manager.latest_step()
            if latest is not None and latest != self._synced and not self._read_only:
                sync_tree(self.folder / f"{latest:0{DIGITS}d}")
                if jax.process_index() == 0:
                    owned_files.note_below(self.folder.parent, self._place(latest), whole=True)
                self._synced = latest
        except UNWRITTEN as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Wait for the save under way and end the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def __exit__(self, *details: object) -> None:
        self.close()

    def _place(self, step: int) -> str:
        """A checkpoint's folder below the run's."""
        return f"{self.folder.name}/{step:0{DIGITS}d}"

    def _unwritten(self, error: Exception) -> TrainingError:
        return TrainingError(
            f"{self.folder}: a checkpoint could not be written: {_first_line(error)}; those before it are whole"
        )


DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What Orbax and TensorStore raise of files that are missing, cut short or not what was written."""

UNWRITTEN = (OSError, ValueError, RuntimeError)
"""What they raise of a full disk or a folder that may not be written to."""


def _damaged(place: Path, error: Exception) -> CorruptFileError:
    return CorruptFileError(
        f"{place}: the checkpoint is damaged ({_first_line(error)}); remove this folder to go on from the one before it"
    )


def _check_metrics(folder: Path) -> None:
    """Refuse a checkpoint whose metric is not the one that it was saved with: by it the best is chosen and kept."""
    for place in sorted(folder.glob("[0-9]" * DIGITS)):
        found = None
        try:
            with contextlib.suppress(FileNotFoundError):
                found = json.loads((place / "metrics/metrics").read_bytes())[METRIC]
        except DAMAGE as error:
            raise _damaged(place, error) from error
        try:
            saved = check_json_checksum(json.loads((place / "loader/metadata").read_bytes())).get(
                "metric", found
            )
        except DAMAGE:  # which whoever restores it is told
            continue
        if found != saved:
            raise _damaged(place, ValueError(f"its metric was {saved} and is {found}"))


def _first_line(error: Exception) -> str:
    """What went wrong, without the pages of context that TensorStore adds in brackets."""
    text = f"{type(error).__name__}: {error}".split("\n")[0].split(" [")[0]
    return text if len(text) <= 500 else f"{text[:500]} ..."


def _metric(metrics: Mapping[str, float]) -> float:
    return metrics[METRIC]


def _handlers() -> Any:
    # Orbax cuts every leaf that all devices hold into a slice for each, by a program per shape: 10 s for 600 leaves.
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


def _drop_chatter(record: logging.LogRecord) -> bool:
    """Whether a record of absl's logger passes: of Orbax's own, errors that nothing raises.

    The tracebacks that it logs are of exceptions that the next `wait` raises.
    """
    return "orbax" not in record.pathname or (record.levelno >= logging.ERROR and not record.exc_info)


def _leaves(state: TrainState) -> Leaves:
    """Every leaf by its path, e.g. `.parameters['head']['kernel'].value`."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _abstract(template: TrainState) -> tuple[dict[str, jax.ShapeDtypeStruct], Any]:
    somewhere = SingleDeviceSharding(jax.local_devices()[0])
    wanted = {
        key: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or somewhere
        )
        for key, leaf in _leaves(template).items()
    }
    return wanted, jax.tree.structure(template)


def _differences(
    stored: Mapping[str, tuple[tuple[int, ...], Any]], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> list[str]:
    """A line for every leaf that is missing in the checkpoint, is there for nothing, or differs."""
    missing = [f"{key}: not in the checkpoint" for key in wanted if key not in stored]
    extra = [f"{key}: only in the checkpoint" for key in stored if key not in wanted]
    other = [
        f"{key}: expected {leaf.dtype}{list(leaf.shape)}, the checkpoint has {stored[key][1]}{list(stored[key][0])}"
        for key, leaf in wanted.items()
        if key in stored and stored[key] != (tuple(leaf.shape), np.dtype(leaf.dtype))
    ]
    return missing + extra + other


def _checksums(leaves: Leaves) -> dict[str, int]:
    """CRC-32 of every leaf's bytes that this process holds whole; files alone don't tell of changed bytes."""
    whole = {
        key: leaf.addressable_data(0) if leaf.is_fully_replicated else leaf
        for key, leaf in leaves.items()
        if leaf.is_fully_replicated or leaf.is_fully_addressable
    }
    return {
        key: zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        for key, leaf in whole.items()
    }
