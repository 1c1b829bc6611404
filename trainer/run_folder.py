"""How is a run folder begun, gone on with, and opened again?"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from halofeed import __version__
from halofeed.errors import UsageError
from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.files import CHECKPOINTS, RUN_FILE, RUN_FORMAT, read_run
from halofeed.system import owned_files
from halofeed.system.atomic_files import atomic_write, exchange
from halofeed.system.console import print_status
from halofeed.system.locks import FolderLock
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.optimizers import build_optimizer
from halofeed.trainer.problem import build_problem
from halofeed.trainer.step import TrainingSetup, Variables, abstract_state
from halofeed.trainer.task import DataFacts

_MAY_CHANGE = {
    *("cores_per_replica", "partition", "evaluate_every", "evaluate_split", "evaluate_batch_size"),
    *("checkpoint_every", "keep_last", "remat"),
}
"""What a resumed run may do otherwise: its losses stay the same but for rounding."""

_REMOVED = re.compile(r"\..+\.[0-9a-f]{16}\.removed")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder.

    Args:
        folder: where it is.
        document: of its run.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        """What was trained how."""
        return TrainConfig.from_json(self.document["config"])

    @property
    def facts(self) -> DataFacts:
        """Of the data that it was trained on; its mean and deviation normalize other data too."""
        return DataFacts.from_json(self.document["facts"])

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How that data was converted."""
        return dict(self.document["recipe"])

    def split_otherwise(self, cores_per_replica: int | None, partition: str | None) -> Run:
        """The run with each image split over other cores; None leaves what it has."""
        if cores_per_replica is None and partition is None:
            return self
        config = self.config
        cores = config.cores_per_replica if cores_per_replica is None else cores_per_replica
        parts = (config.partition if cores_per_replica is None else "") if partition is None else partition
        changed = config.changed(cores_per_replica=cores, partition=parts)
        return replace(self, document={**self.document, "config": changed.to_json()})

    def problem(self, mesh: Mesh | None = None) -> TrainingSetup:
        """The setup of the run, on any mesh."""
        return build_problem(self.config, self.facts, mesh)

    def restore(self, setup: TrainingSetup, which: str = "best") -> tuple[Variables, Variables, int]:
        """Parameters and norm statistics to predict with, whole on each device of the setup's mesh, and their step.

        Args:
            setup: of this run.
            which: "best" by the task's metric (the last one where none was evaluated), "last", or a step.

        Raises:
            UsageError: there is no such checkpoint.
        """
        config = self.config
        with Checkpoints(self.folder / CHECKPOINTS, read_only=True) as checkpoints:
            step = _chosen(checkpoints, which, self.folder)
            optimizer, _ = build_optimizer(config)
            template = abstract_state(setup, optimizer, average=config.average_decay > 0)
            state, _ = checkpoints.restore(template, step)
        return state.best_parameters, state.statistics, step


def open_run(folder: str | Path) -> Run:
    """The run in a folder.

    Raises:
        UsageError: there is none.
        CorruptFileError: its description cannot be read.
    """
    return Run(folder=Path(folder), document=read_run(folder))


def begin_run(
    folder: Path,
    config: TrainConfig,
    facts: DataFacts,
    description: Mapping[str, Any],
    *,
    overwrite: bool,
    chief: bool,
    lock: FolderLock | None = None,
) -> None:
    """Make a run folder, or check that the one there is this run, to be gone on with.

    Args:
        folder: the run's.
        config, facts, description: of this run; the description says which data.
        overwrite: set aside what another run left, for `delete_replaced` or `restore_replaced`.
        chief: whether this process writes; the others only look.
        lock: goes on holding the folder for the process that writes.

    Raises:
        UsageError: the folder holds another run, or something that is no run, or cannot be written; or something would
            be replaced that halofeed did not write.
        JobError: another process writes it.
    """
    held = lock or run_lock()
    try:
        if chief:
            held.make(folder)
            for left in folder.parent.glob(f".*{glob.escape(folder.name)}.*.removed"):
                if _REMOVED.fullmatch(left.name):  # of a removal that was killed
                    owned_files.delete(left)
            if overwrite and (folder / RUN_FILE).is_file():
                owned_files.check_own(folder, "--out")
                _set_aside(folder, held)
        _begin(folder, config, facts, description, chief=chief)
    except OSError as error:
        raise UsageError(
            f"--out {folder}: cannot be written ({error.strerror or error}); name a folder that can be"
        ) from error
    finally:
        if lock is None:
            held.release()


def run_lock() -> FolderLock:
    """What holds the folder of a run while it is trained."""
    return FolderLock("is training into", "take another --out")


def _begin(
    folder: Path, config: TrainConfig, facts: DataFacts, description: Mapping[str, Any], *, chief: bool
) -> None:
    made = {"format": RUN_FORMAT, "halofeed": __version__}
    document = {**made, "config": config.to_json(), "facts": facts.to_json(), **description}
    if (folder / RUN_FILE).is_file():
        _check_same(folder, open_run(folder).document, document)
    elif chief:
        # Of a run that was killed as it began there may be these two.
        left = [
            owned_files.TEMPORARY.fullmatch(name) or name == owned_files.LIST for name in os.listdir(folder)
        ]
        if not all(left):
            raise UsageError(f"--out {folder}: is not empty and holds no run; name another folder")
        if not owned_files.has_list(folder):
            owned_files.begin(folder)
    if chief:
        write_json(folder / RUN_FILE, with_json_checksum(document))


def _replaced(folder: Path) -> Path:
    """Where a run lies that another replaces, until that one has saved a checkpoint."""
    return folder.with_name(f".{folder.name}.replaced")


def _is_set_aside(replaced: Path) -> bool:
    return not replaced.is_symlink() and owned_files.has_list(replaced)


def _set_aside(folder: Path, lock: FolderLock) -> None:
    """Have an empty folder, which is held too, in the place of a run, in one step where the system has it."""
    replaced = _replaced(folder)
    with contextlib.suppress(OSError):
        replaced.rmdir()  # of a run that was killed before it changed places
    mode = folder.stat().st_mode & 0o777
    if os.path.lexists(replaced):  # by a run that was killed before its first checkpoint
        if not _is_set_aside(replaced):
            raise UsageError(
                f"--out {folder}: {replaced} is in the way, which halofeed did not make; move it away"
            )
        _remove(folder)
        lock.make(folder)
    else:
        replaced.mkdir(mode=0o700)
        lock.take(replaced)
        if not exchange(str(replaced), str(folder)):
            replaced.rmdir()
            folder.rename(replaced)
            lock.make(folder)
    folder.chmod(mode)


def _remove(folder: Path) -> None:
    """Delete a run in one rename: another thread or process that writes to it finds nothing, or its own new folder."""
    moved = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.removed")
    folder.rename(moved)
    if not owned_files.delete(moved):
        print_status(f"halofeed train: {moved} stays, as halofeed did not write all that is in it")


def delete_replaced(folder: Path) -> None:
    """Delete the run that the one in a folder replaces."""
    if _is_set_aside(_replaced(folder)):
        with contextlib.suppress(FileNotFoundError):  # another process of the run was first
            _remove(_replaced(folder))


def restore_replaced(folder: Path) -> bool:
    """Put the run that was replaced in the place of one that saved nothing; whether there was one.

    Whoever writes that run may still be at it, in another thread.
    """
    if not (_is_set_aside(_replaced(folder)) and (_replaced(folder) / RUN_FILE).is_file()):
        return False
    while _replaced(folder).exists():
        with contextlib.suppress(FileNotFoundError):
            _remove(folder)
        try:
            _replaced(folder).rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    return True


def write_json(file: Path, document: Any) -> None:
    """Write a JSON file whole or not at all, whatever ends the process or the machine."""
    atomic_write(file, (json.dumps(document, indent=1) + "\n").encode())


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    # What an early version had no setting for is as it is where nobody sets it.
    earlier = {**TrainConfig().to_json(), **before["config"]}
    names = sorted({*earlier, *now["config"]} - _MAY_CHANGE)
    pairs = [(name, earlier.get(name), now["config"].get(name)) for name in names]
    # Facts of an early version name no kind.
    old_facts, new_facts = (DataFacts.from_json(document["facts"]).to_json() for document in (before, now))
    pairs.append(("facts", old_facts, new_facts))
    pairs += [(name, before.get(name), now.get(name)) for name in ("data_name", "data_version", "split")]
    if different := [f"{name}: was {old!r}, now {new!r}" for name, old, new in pairs if old != new]:
        raise UsageError(
            f"--out {folder}: holds a run with other settings; name another folder, or pass --overwrite to start "
            "again\n" + "\n".join(different)
        )


def _chosen(checkpoints: Checkpoints, which: str, folder: Path) -> int:
    last, best = checkpoints.latest(), checkpoints.best()
    if last is None:
        raise UsageError(f"{folder}: holds no checkpoint yet; let the run go on to its first one")
    if which == "last":
        return last
    if which == "best":
        return last if best is None else best
    if not which.isdigit():
        raise UsageError(f"checkpoint {which!r}: expected best, last or a step")
    return int(which)
