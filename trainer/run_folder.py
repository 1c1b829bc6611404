"""Run folder of a training: create it, resume it, replace it and open it again.

--overwrite sets the old run aside until the new one has saved a checkpoint:

runs/cards               new run            delete_replaced: .cards.replaced is deleted
runs/.cards.replaced     old run            restore_replaced: it becomes runs/cards again
runs/.cards.HEX.removed  being deleted      the next run deletes what a killed deletion left
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import json
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from halofeed import __version__
from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.file_layout import CHECKPOINTS, RUN_FILE, RUN_FORMAT, read_run
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import atomic_write, swap_paths
from halofeed.storage.locks import FolderLock
from halofeed.storage.paths import find_paths, names_in
from halofeed.system.console import print_status
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.checkpoint import Checkpoints, saved_steps
from halofeed.trainer.config import FALLING_TO_ZERO, TrainConfig
from halofeed.trainer.optimizers import build_optimizer, build_schedule
from halofeed.trainer.step import TrainingSetup, Variables, abstract_state
from halofeed.trainer.task import DataFacts
from halofeed.trainer.training_setup import build_training_setup

_CHANGEABLE_FIELDS = {
    *("cores_per_replica", "partition", "evaluate_every", "evaluate_split", "evaluate_batch_size"),
    *("checkpoint_every", "keep_last", "remat", "iterations_per_loop"),
}
"""Config fields that may differ when a run resumes: its losses stay the same except for rounding."""

_CHANGEABLE_TASK_OPTIONS = {"mirror_at_test", "window_weights"}
"""Options of a task for which the same holds: they concern evaluation and prediction alone."""

_LENGTH_FIELDS = {"steps", "schedule_steps"}
"""Config fields of which a resume may change the values: the next step follows the new schedule, and a line says so."""
_INIT_FIELDS = {"model", "model_options", "normalization", "backbone_weights", "init", "facts"}
"""Differences with which a run may not start from the weights of the other one."""
ORIGIN, EARLIER_LENGTHS = "origin", "earlier_lengths"
"""Members of run.json: run whose weights it started from, and the lengths that it had before, by their last step."""

_REMOVED_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.removed")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run folder of a training.

    Args:
        folder: path of the folder.
        document: content of its run.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        """Config that the run was trained with."""
        return TrainConfig.from_json(self.document["config"])

    @property
    def facts(self) -> DataFacts:
        """Facts of the data set that it was trained on; their mean and deviation normalize other data too."""
        return DataFacts.from_json(self.document["facts"])

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Recipe by which that data set was converted."""
        return dict(self.document["recipe"])

    @property
    def origin_text(self) -> str:
        """Words that say from which run the first weights came; "" if they were drawn from the seed."""
        origin = self.document.get(ORIGIN)
        return f"; it began with the weights of {origin['run']}, step {origin['step']}" if origin else ""

    def changed(self, **fields: Any) -> Run:
        """Return the run with other fields of its config, such as the split of an image; None keeps the run's own."""
        given = {name: value for name, value in fields.items() if value is not None}
        # The run's partition is for its own number of cores.
        if "cores_per_replica" in given:
            given.setdefault("partition", "")
        config = self.config.changed(**given).to_json() if given else self.document["config"]
        return replace(self, document={**self.document, "config": config})

    def problem(self, mesh: Mesh | None = None) -> TrainingSetup:
        """Return the training setup of the run on a mesh; None is one device."""
        return build_training_setup(self.config, self.facts, mesh)

    def restore(self, setup: TrainingSetup, which: str = "best") -> tuple[Variables, Variables, int]:
        """Return parameters and norm statistics for prediction, replicated on the setup's mesh, and their step.

        Args:
            setup: training setup of this run.
            which: "best" by the task's metric (the last one without an evaluation), "last", or a step.

        Raises:
            UsageError: there is no such checkpoint.
        """
        config = self.config
        with Checkpoints(self.folder / CHECKPOINTS, read_only=True) as checkpoints:
            step = _choose_step(checkpoints, which, self.folder)
            optimizer, _ = build_optimizer(config)
            template = abstract_state(setup, optimizer, average=config.average_decay > 0)
            state, _ = checkpoints.restore(template, step)
        return state.best_parameters, state.statistics, step


def open_run(folder: str | Path) -> Run:
    """Open the run in a folder.

    Raises:
        UsageError: the folder holds no run.
        CorruptFileError: its run.json cannot be read.
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
) -> list[str]:
    """Create a run folder, or check that the existing one holds this run, so that it can resume.

    A run that has saved no step may change all of its options. One that has may take more or fewer steps.

    Args:
        folder: path of the run folder.
        config: options of the run.
        facts: facts of its data set.
        description: further members of run.json, such as the path of the data set.
        overwrite: set an existing run aside, for `delete_replaced` or `restore_replaced`.
        chief: True in the process that writes; the others only check.
        lock: lock of the writing process, which keeps it; None releases the folder when this returns.

    Returns:
        Lines that say what differs from the existing run.

    Raises:
        UsageError: the folder holds another run or other files, cannot be written, or holds files to be replaced that
            halofeed did not write.
        JobError: another process is writing to it.
    """
    held_lock, notes = lock or run_lock(), list[str]()
    document: dict[str, Any] = {
        "format": RUN_FORMAT,
        "halofeed": __version__,
        "config": config.to_json(),
        "facts": facts.to_json(),
        **description,
    }
    try:
        if chief:
            held_lock.make(folder)
            _finish_deletions(folder)
            # Files of others are refused before anything is moved.
            if overwrite and (folder / RUN_FILE).is_file():
                owned_files.check_owned(folder, "--out")
                _set_aside(folder, held_lock)
        # Others may still see the run that the first process replaces.
        if (folder / RUN_FILE).is_file() and (chief or not overwrite):
            document, notes = _continued(folder, open_run(folder).document, document)
        elif chief:
            _claim_empty_folder(folder)
        if chief:
            write_json(folder / RUN_FILE, with_json_checksum(document))
    except OSError as error:
        raise UsageError(
            f"--out {folder}: cannot be written ({error.strerror or error}); name a folder that can be"
        ) from error
    finally:
        if lock is None:
            held_lock.release()
    return notes


def run_lock() -> FolderLock:
    """Return the lock that a process holds on a run folder while it trains."""
    return FolderLock("is training into", "take another --out")


def _finish_deletions(folder: Path) -> None:
    """Delete runs that an earlier process had renamed for deletion when it was killed."""
    for left in find_paths(folder.parent, f".*{glob.escape(folder.name)}.*.removed"):
        # The glob also matches names that halofeed does not make, such as .cards.old.removed.
        if _REMOVED_NAME.fullmatch(left.name):
            owned_files.delete_owned(left)


def _claim_empty_folder(folder: Path) -> None:
    """Check that a folder is empty and start its list of owned files."""
    for name in names_in(folder):
        # A run that was killed while it began may have left these two.
        if not (owned_files.TEMPORARY.fullmatch(name) or name == owned_files.LIST):
            raise UsageError(f"--out {folder}: is not empty and holds no run; name another folder")
    if not owned_files.has_list(folder):
        owned_files.begin_list(folder)


def _replaced_folder(folder: Path) -> Path:
    """Return the path to which a replaced run is moved until the new run has saved a checkpoint."""
    return folder.with_name(f".{folder.name}.replaced")


def _is_set_aside(replaced: Path) -> bool:
    return not replaced.is_symlink() and owned_files.has_list(replaced)


def _set_aside(folder: Path, lock: FolderLock) -> None:
    """Put an empty, locked folder in the place of a run, atomically if the system can exchange folders."""
    replaced = _replaced_folder(folder)
    with contextlib.suppress(OSError):
        replaced.rmdir()  # an empty one is left by a run that was killed before the exchange
    mode = folder.stat().st_mode & 0o777
    if os.path.lexists(replaced):  # an earlier run was killed before its first checkpoint
        if not _is_set_aside(replaced):
            raise UsageError(
                f"--out {folder}: {replaced} is in the way, which halofeed did not make; move it away"
            )
        _remove(folder)
        lock.make(folder)
    else:
        replaced.mkdir(mode=0o700)
        lock.take(replaced)
        # Not all file systems can exchange two folders atomically.
        if not swap_paths(str(replaced), str(folder)):
            replaced.rmdir()
            folder.rename(replaced)
            lock.make(folder)
    folder.chmod(mode)


def _remove(folder: Path) -> None:
    """Delete a run after an atomic rename, so that another writer finds no folder, or its own new one."""
    moved = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.removed")
    folder.rename(moved)
    # Files that halofeed did not write are the user's.
    if not owned_files.delete_owned(moved):
        print_status(f"halofeed train: {moved} is kept, because halofeed did not write all of its files")


def delete_replaced(folder: Path) -> None:
    """Delete the run that the one in a folder replaces."""
    if _is_set_aside(_replaced_folder(folder)):
        with contextlib.suppress(FileNotFoundError):  # another process of the run deleted it first
            _remove(_replaced_folder(folder))


def restore_replaced(folder: Path) -> bool:
    """Move the replaced run back in place of one that saved nothing, and return whether there was one.

    Another thread may still be writing to the new run.
    """
    replaced = _replaced_folder(folder)
    if not (_is_set_aside(replaced) and (replaced / RUN_FILE).is_file()):
        return False
    # Another thread may write a file after the deletion, and then the renaming fails.
    while replaced.exists():
        with contextlib.suppress(FileNotFoundError):
            _remove(folder)
        try:
            replaced.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    return True


def write_json(file: Path, document: Any) -> None:
    """Write a JSON file atomically."""
    atomic_write(file, (json.dumps(document, indent=1) + "\n").encode())


def _continued(
    folder: Path, before: Mapping[str, Any], now: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return run.json of a run that starts again or resumes in the folder of an existing one, and lines for the user.

    Args:
        folder: path of the run folder.
        before: the existing run.json.
        now: that of this command.

    Raises:
        UsageError: a step was saved, and options differ that a resume cannot change.
    """
    saved, different = saved_steps(folder / CHECKPOINTS), _differences(before, now)
    if not saved:
        changed = "".join(f"\n  {line}" for line in different.values())
        return now, [
            f"{folder}: no step of its run was saved; it starts again with{changed}"
        ] if changed else []
    origin, given = before["config"].get("init", ""), now["config"]["init"]
    # The weights of a run that resumes are in its checkpoint, and the origin may have been deleted.
    if not given or (origin and os.path.realpath(given) == os.path.realpath(origin)):
        different.pop("init", None)
    _check_changes(folder, different)
    document = {**now, "config": {**now["config"], "init": origin}}
    document |= {name: before[name] for name in (ORIGIN, EARLIER_LENGTHS) if name in before}
    if not different:
        return document, []
    old, new = (TrainConfig.from_json(one["config"]) for one in (before, now))
    if new.steps < saved[-1]:
        raise UsageError(
            f"--steps {new.steps}: the run in {folder} has taken {plural(saved[-1], 'step')}; pass --steps "
            f"{saved[-1]} or more, or name another --out"
        )
    document[EARLIER_LENGTHS] = _lengths(before, old, saved[-1])
    return document, [_changed_length(old, new, saved[-1])]


def _check_changes(folder: Path, different: Mapping[str, str]) -> None:
    """Raise UsageError where settings differ that a resume cannot change."""
    # A recipe's warm-up is shortened where the run is (`config.configure`), so it may change with the length.
    length = {*_LENGTH_FIELDS, "warmup_steps"} if different.keys() & _LENGTH_FIELDS else set()
    if others := {name: line for name, line in different.items() if name not in length}:
        # With the settings of another model its weights would be refused.
        begins = (
            "" if others.keys() & _INIT_FIELDS else f" ({_init_words(folder)} starts there from its weights)"
        )
        raise UsageError(
            f"--out {folder}: holds a run with other settings; name another folder{begins}, or pass --overwrite to "
            "start again\n" + "\n".join(others.values())
        )


def _init_words(folder: Path) -> str:
    return f"--out {shlex.quote(_free_name(folder))} --init {shlex.quote(str(folder))}"


def _free_name(folder: Path) -> str:
    """Return the path of a folder beside another one that does not exist: runs/cards-2."""
    paths = (f"{folder}-{number}" for number in itertools.count(2))
    return next(path for path in paths if not os.path.lexists(path))


def _lengths(before: Mapping[str, Any], config: TrainConfig, saved: int) -> list[dict[str, int]]:
    """Return the lengths that a run had before this one, each with the last step that it was used for."""
    lengths: list[dict[str, int]] = list(before.get(EARLIER_LENGTHS, ()))
    # A length under which no step was saved had no effect.
    if not lengths or lengths[-1]["until_step"] < saved:
        fields = {name: getattr(config, name) for name in (*sorted(_LENGTH_FIELDS), "warmup_steps")}
        lengths.append({"until_step": saved, **fields})
    return lengths


def _changed_length(old: TrainConfig, new: TrainConfig, saved: int) -> str:
    """Return the line that says which steps and learning rates follow after a change of the run's length."""
    changed = ", ".join(
        f"{name}: was {getattr(old, name)}, now {getattr(new, name)}"
        for name in sorted(_LENGTH_FIELDS, reverse=True)
        if getattr(old, name) != getattr(new, name)
    )
    if new.schedule not in FALLING_TO_ZERO:
        return f"{changed}; the learning rate is {new.schedule} and does not depend on it"
    before, after = (
        f"{float(build_schedule(config)(saved // config.accumulate_steps)):g}" for config in (old, new)
    )
    here = f"at step {saved + 1}"
    old_length, new_length = (config.schedule_steps or config.steps for config in (old, new))
    curve = f"follows the {new.schedule} of {plural(new_length, 'step')}"
    if old_length == new_length:
        return f"{changed}; the learning rate still {curve}: {after} {here}"
    return (
        f"{changed}; the learning rate {curve} from here on: {after} {here}; with --set schedule_steps={old_length} "
        f"it follows that of {plural(old_length, 'step')}: {before}"
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each setting that changes what is computed, by its name."""
    # Settings that an earlier version did not have count as their defaults.
    earlier = {**TrainConfig().to_json(), **before["config"]}
    names = sorted({*earlier, *now["config"]} - _CHANGEABLE_FIELDS)
    pairs = [(name, _of_losses(name, earlier), _of_losses(name, now["config"])) for name in names]
    # `from_json` completes the facts of an earlier version, which have no kind.
    old_facts, new_facts = (DataFacts.from_json(document["facts"]).to_json() for document in (before, now))
    # A run of an earlier version resumes: it has no counts, and no class weights that need them.
    if old_facts["label_voxels"] is None:
        new_facts["label_voxels"] = None
    pairs.append(("facts", old_facts, new_facts))
    pairs += [(name, before.get(name), now.get(name)) for name in ("data_name", "data_version", "split")]
    return {name: f"{name}: was {old!r}, now {new!r}" for name, old, new in pairs if old != new}


def _of_losses(name: str, config: Mapping[str, Any]) -> Any:
    """Return the value of a config's field, without options of the task that change no loss."""
    value = config.get(name)
    if name != "task_options" or not isinstance(value, Mapping):
        return value
    return {key: option for key, option in value.items() if key not in _CHANGEABLE_TASK_OPTIONS}


def _choose_step(checkpoints: Checkpoints, which: str, folder: Path) -> int:
    last, best = checkpoints.latest(), checkpoints.best()
    if last is None:
        raise UsageError(f"{folder}: holds no checkpoint yet; let the run continue to its first one")
    if which == "last":
        return last
    # A run without an evaluation has no best checkpoint.
    if which == "best":
        return last if best is None else best
    if not which.isdigit():
        steps = ", ".join(map(str, checkpoints.steps()))
        raise UsageError(f"checkpoint {which!r}: expected best, last or a step of {folder}: {steps}")
    return int(which)
