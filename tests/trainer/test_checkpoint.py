"""A saved run is restored bit for bit, whatever ended it and on whichever devices it resumes."""

import dataclasses
import gc
import logging
import math
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.errors import CorruptFileError, TrainingError, UsageError
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.step import TrainState
from tests.support.conversions import edited
from tests.support.level_rows import levels

# Orbax abandons its other reads and writes when one fails.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NUMBERS = {
    "float32": (7, 3),
    "bfloat16": (5,),
    "int32": (2, 2),
    "bool": (9,),
    "uint32": (2,),
    "float16": (1, 4),
}


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """What Orbax abandons is collected here, and warns here, not in a later test of another file."""
    yield
    gc.collect()


def train_state(parameters: Any, step: Any = 0, **more: Any) -> TrainState:
    """These parameters at a step, with nothing else unless said."""
    rest = {"statistics": {}, "optimizer_state": (), "average": None, **more}
    return TrainState(parameters=parameters, step=jnp.int32(step) if isinstance(step, int) else step, **rest)


def state(seed: int = 0, *, width: int = 7) -> TrainState:
    """Leaves of every dtype, of bits that hold NaN and infinity too, under names with dots and slashes."""
    generator = np.random.default_rng(seed)

    def leaf(dtype: str, shape: tuple[int, ...]) -> jax.Array:
        if dtype == "bool":
            return jnp.asarray(generator.integers(0, 2, shape).astype(bool))
        kind = jnp.dtype(dtype)
        bits = generator.bytes(math.prod(shape) * kind.itemsize)
        return jnp.asarray(np.frombuffer(bits, kind).reshape(shape))

    kernel = jnp.asarray(generator.normal(size=(width, 3)), jnp.float32).at[0, 0].set(jnp.nan)
    return train_state(
        {"block/1.a": {"kernel": kernel}, "list": [jnp.float32(seed)]},
        seed,
        statistics={dtype: leaf(dtype, shape) for dtype, shape in NUMBERS.items()},
        optimizer_state=(optax.EmptyState(), {"count": jnp.int32(seed)}),
    )


def bits(tree: Any) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path), str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes())
        for path, leaf in leaves
    ]


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize(("as_arrays", "x64"), [(False, True), (True, False)])
def test_a_state_of_every_dtype_comes_back_bit_for_bit(tmp_path: Path, as_arrays: bool, x64: bool) -> None:
    loader_state = {"step": 3, "nested": {"list": [1, 2.5, None, "text"]}}
    with jax.enable_x64(x64):
        average = {"kernel": jnp.asarray([0.1, -0.0, math.inf])}
        saved, template = (dataclasses.replace(state(seed), average=average) for seed in (3, 0))
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(3, saved, loader_state, None)
        with Checkpoints(tmp_path) as checkpoints:
            found, loader = checkpoints.restore(template if as_arrays else abstract(template))
    assert bits(found) == bits(saved)
    assert found.average["kernel"].dtype == (np.float64 if x64 else np.float32)
    assert jax.tree.structure(found) == jax.tree.structure(template)
    assert loader == loader_state


def test_a_checkpoint_is_on_the_disk_before_the_next_one_is_begun(tmp_path: Path, monkeypatch: Any) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("halofeed.trainer.checkpoint.fsync_tree", synced.append)
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step), {}, None)
            assert [path.name for path in synced] == ["00000001", "00000002"][: step - 1]
    assert len(synced) == 2


def test_a_state_goes_on_another_mesh_with_another_split(tmp_path: Path) -> None:
    devices = np.array(jax.devices())
    before = Mesh(devices.reshape(8), ("replica",))
    after = Mesh(devices.reshape(2, 4), ("replica", "core0"))
    kernel = np.arange(64, dtype=np.float32).reshape(8, 8)

    def laid_out(mesh: Mesh, spec: PartitionSpec) -> TrainState:
        step = jax.device_put(np.int32(4), NamedSharding(mesh, PartitionSpec()))
        return train_state({"kernel": jax.device_put(kernel, NamedSharding(mesh, spec))}, step)

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, laid_out(before, PartitionSpec("replica")), {}, None)
        for mesh, spec in ((after, PartitionSpec()), (after, PartitionSpec("core0", "replica"))):
            template = laid_out(mesh, spec)
            shapes = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), template
            )
            found, _ = checkpoints.restore(shapes)
            assert found.parameters["kernel"].sharding == NamedSharding(mesh, spec)
            assert bits(found) == bits(template)
        alone, _ = checkpoints.restore(abstract(template))
    assert alone.parameters["kernel"].sharding.device_set == {jax.devices()[0]}
    np.testing.assert_array_equal(alone.parameters["kernel"], kernel)


def test_a_save_under_way_keeps_what_the_next_steps_overwrite(tmp_path: Path) -> None:
    whole = NamedSharding(Mesh(np.array(jax.devices()), ("replica",)), PartitionSpec())
    values = {name: jnp.full((500_000,), float(number)) for number, name in enumerate("abcd")}
    running = jax.device_put(train_state(values), whole)

    def more(tree: TrainState) -> TrainState:
        return jax.tree.map(lambda leaf: leaf + 1, tree)

    step = jax.jit(more, donate_argnums=0, out_shardings=whole)
    with Checkpoints(tmp_path, keep_last=3) as checkpoints:
        for number in range(3):
            checkpoints.save(number, running, {}, None)
            given = step(running)
            running = given
            for _ in range(4):
                running = step(running)
            jax.block_until_ready(running)
            assert given.parameters["a"].is_deleted()
        for number in range(3):
            found, _ = checkpoints.restore(abstract(running), number)
            assert int(found.step) == 5 * number
            for start, name in enumerate("abcd"):
                np.testing.assert_array_equal(found.parameters[name], np.full(500_000, start + 5.0 * number))


KEPT = [([None] * 5, 2, [4, 5], None), ([0.1, 0.9, 0.2, 0.3, 0.4], 2, [2, 4, 5], 2)]
KEPT += [([0.1, 0.9, None, None, None], 1, [2, 5], 2), ([None, 0.5, None, 0.5, None], 1, [4, 5], 4)]
KEPT += [([0.1, math.nan, math.inf, None, -math.inf], 1, [1, 5], 1)]
KEPT += [([-3.0, -1.0, -2.0, -4.0, -5.0], 1, [2, 5], 2)]


@pytest.mark.parametrize(("metrics", "keep_last", "kept", "best"), KEPT)
def test_the_last_and_the_best_are_kept(tmp_path, metrics, keep_last, kept, best):
    for split in (5, 2):  # all in one life, or resumed after the second
        folder = tmp_path / str(split)
        for steps in (range(1, split + 1), range(split + 1, 6)):
            with Checkpoints(folder, keep_last=keep_last) as checkpoints:
                for step in steps:
                    checkpoints.save(step, small(step), {}, metrics[step - 1])
        with Checkpoints(folder, keep_last=keep_last) as checkpoints:
            assert (checkpoints.latest(), checkpoints.best()) == (5, best)
        assert [int(path.name) for path in sorted(folder.iterdir())] == kept


def small(step: int, values: Any = None) -> TrainState:
    """One kernel, of four times the step unless there are values."""
    kernel = jnp.full(4, float(step)) if values is None else jnp.asarray(values, jnp.float32)
    return train_state({"kernel": kernel}, step)


def big(step: int, count: int = 4000) -> TrainState:
    return small(step, np.random.default_rng(step).normal(size=count))


def test_a_step_that_is_there_stays_and_one_before_the_last_is_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, small(5), {"first": True}, None)
        checkpoints.save(5, small(6), {"first": False}, 0.5)
        assert checkpoints.restore(small(0))[1] == {"first": True}
        with pytest.raises(UsageError, match="holds the checkpoint of step 5, later than 4"):
            checkpoints.save(4, small(4), {}, None)


def test_a_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "new") as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.best() is None
        with pytest.raises(UsageError, match="holds no checkpoint"):
            checkpoints.restore(state())
        checkpoints.save(2, state(2), {}, None)
        with pytest.raises(UsageError, match="holds no checkpoint of step 7, but of 2"):
            checkpoints.restore(state(), 7)


def test_a_checkpoint_of_another_model_is_refused_with_every_leaf_that_differs(tmp_path: Path) -> None:
    other = train_state(
        {"block/1.a": {"kernel": jnp.zeros((8, 3))}, "head": jnp.zeros(2)},
        statistics={**state().statistics, "int32": jnp.zeros((2, 2), jnp.float32)},
        optimizer_state=(optax.EmptyState(), {"count": jnp.int32(0)}),
    )
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1), {}, None)
        with pytest.raises(UsageError) as caught:
            checkpoints.restore(abstract(other))
    lines = str(caught.value).split("\n")
    assert lines[0].startswith(f"{tmp_path / '00000001'}: is of another model or optimizer")
    assert [line.strip() for line in lines[1:]] == [
        ".parameters['head']: not in the checkpoint",
        ".parameters['list'][0]: only in the checkpoint",
        ".parameters['block/1.a']['kernel']: expected float32[8, 3], the checkpoint has float32[7, 3]",
        ".statistics['int32']: expected float32[2, 2], the checkpoint has int32[2, 2]",
    ]


def overwrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flipped(data: bytes) -> bytes:
    """One bit in the middle of the largest file, which holds the values."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "bit": lambda folder: overwrite(largest(folder), flipped),
    "values": lambda folder: largest(folder).unlink(),
    "half": lambda folder: overwrite(largest(folder), lambda data: data[: len(data) // 2]),
    "manifest": lambda folder: (folder / "state/manifest.ocdbt").unlink(),
    "state": lambda folder: shutil.rmtree(folder / "state"),
    "no metadata": lambda folder: (folder / "state/_METADATA").unlink(),
    "empty metadata": lambda folder: (folder / "state/_METADATA").write_bytes(b""),
    "torn json": lambda folder: (folder / "loader/metadata").write_bytes(b'{"loader": {'),
    "loader": lambda folder: shutil.rmtree(folder / "loader"),
    "a digit of the loader's step": lambda folder: overwrite(
        folder / "loader/metadata", lambda data: re.sub(rb'("step": ?)2', rb"\g<1>1", data)
    ),
    "the name of a leaf among the checksums": lambda folder: overwrite(
        folder / "loader/metadata", lambda data: data.replace(b'".step"', b'".stop"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_with_the_cure_and_the_one_before_is_whole(tmp_path, damage):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, big(step), {"step": step}, None)
    DAMAGE[damage](tmp_path / "00000002")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CorruptFileError) as caught:
        checkpoints.restore(big(0))
    assert str(caught.value).startswith(f"{tmp_path / '00000002'}: the checkpoint is damaged (")
    assert str(caught.value).endswith("remove this folder to resume from the one before it")
    shutil.rmtree(tmp_path / "00000002")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 1
        assert bits(checkpoints.restore(big(0))[0]) == bits(big(1))


def test_a_damaged_metric_names_its_checkpoint(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small(1), {}, 0.5)
    for damaged in (b"", b"[]", b'{"best": 0.25}', None):
        metrics = tmp_path / "00000001/metrics/metrics"
        metrics.unlink() if damaged is None else metrics.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"00000001: the checkpoint is damaged .* remove this"):
            Checkpoints(tmp_path)


def test_a_checkpoint_of_the_release_before_is_read_without_its_checksum(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small(1), {"step": 1}, 0.5)
    with edited(tmp_path / "00000001/loader/metadata") as document:
        for name in ("crc32c", "step", "metric"):
            del document[name]
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.best() == 1 and bits(checkpoints.restore(small(0))[0]) == bits(small(1))


def test_a_reader_leaves_the_folder_of_a_running_job_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Checkpoints(tmp_path / "none", read_only=True)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small(1), {}, None)
    half = tmp_path / "00000002.orbax-checkpoint-tmp"
    half.mkdir()
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.latest() == 1
        checkpoints.restore(small(0))
    assert half.exists()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 1
        checkpoints.save(2, small(2), {}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000002"]


def test_a_disk_that_takes_no_more_is_an_error_of_the_run_and_the_one_before_is_whole(tmp_path, capfd):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, big(1, 200_000), {}, None, wait=True)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            checkpoints.save(2, big(2, 200_000), {}, None)
            # Which file meets the limit first, and in which words, differs from time to time.
            with pytest.raises(TrainingError, match=r"(?s)could not be written: .*; earlier ones"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoints.latest() == 1
        checkpoints.save(3, big(3, 200_000), {}, None)
        assert bits(checkpoints.restore(big(0, 200_000))[0]) == bits(big(3, 200_000))
        assert bits(checkpoints.restore(big(0, 200_000), 1)[0]) == bits(big(1, 200_000))
    assert "ERROR:absl" not in capfd.readouterr().err


def test_orbax_is_silent_but_for_errors_and_others_still_speak(tmp_path, caplog):
    absl = logging.getLogger("absl")
    absl.addHandler(caplog.handler)
    try:
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, small(1), {}, None)
            checkpoints.restore(abstract(small(0)))
        assert [record.getMessage() for record in caplog.records] == []
        absl.warning("of somebody else")
        assert {record.getMessage() for record in caplog.records} == {"of somebody else"}
    finally:
        absl.removeHandler(caplog.handler)


KILLED = """
import os, signal, sys, threading
from pathlib import Path
import jax
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.step import TrainState
folder, moment = Path(sys.argv[1]), sys.argv[2]

def state(step):
    values = {str(number): jnp.full((300_000,), step + number / 16) for number in range(8)}
    return TrainState(parameters=values, statistics={}, optimizer_state=(), average=None, step=jnp.int32(step))

def kill_at_the_moment():
    while not there():
        pass
    os.kill(os.getpid(), signal.SIGKILL)

def there():
    try:
        return any(folder.glob(moment))
    except FileNotFoundError:  # renamed while it was listed
        return False

checkpoints = Checkpoints(folder, keep_last=1)
last = checkpoints.latest() or 0
if not last:
    last = 1
    checkpoints.save(last, state(last), {"step": last}, None, wait=True)
threading.Thread(target=kill_at_the_moment, daemon=True).start()
checkpoints.save(last + 1, state(last + 1), {"step": last + 1}, 0.25)
checkpoints.wait()
threading.Event().wait(30)
"""


FEW_MOMENTS = ["0*2*/state*", "0*2*/state*/ocdbt*/d/*", "0*2"]
MOMENTS = ["0*2*/loader*", "0*2*/loader*/metadata", "0*2*/metrics*", "0*2*/state*/_METADATA"]
MOMENTS += ["0*2*/state*/manifest.ocdbt", "0*2*/state*/d/*", "0*2*/commit_success.txt", "0*2"]


@pytest.mark.parametrize("moments", levels(long=[FEW_MOMENTS], exhaustive=[MOMENTS]))
def test_a_run_killed_while_saving_leaves_a_whole_checkpoint(tmp_path: Path, moments: list[str]) -> None:
    shapes = {str(number): jax.ShapeDtypeStruct((300_000,), jnp.float32) for number in range(8)}
    template = train_state(shapes, jax.ShapeDtypeStruct((), jnp.int32))
    half_written = 0
    for moment in moments:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), moment], timeout=120, capture_output=True, text=True
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        names = sorted(path.name for path in tmp_path.iterdir())
        half_written += any("orbax" in name for name in names)
        with Checkpoints(tmp_path, keep_last=1, read_only=True) as checkpoints:
            step = checkpoints.latest()
            found, loader_state = checkpoints.restore(template)
        assert step == (2 if "00000002" in names else 1), (moment, names)
        assert loader_state == {"step": step}
        assert int(found.step) == step
        for number in range(8):
            np.testing.assert_array_equal(found.parameters[str(number)], np.full(300_000, step + number / 16))
    assert half_written >= 1
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(3, found, {}, 0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["00000003"]
