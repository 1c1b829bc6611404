"""Do real processes find each other, add up over each other's devices, and agree?"""

from __future__ import annotations

from pathlib import Path

import pytest

from halofeed.schemas.errors import UsageError
from halofeed.trainer.distributed import agree_any, is_chief, start_processes
from tests.support.training import run_processes

PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from halofeed.trainer.distributed import agree_any, is_chief, start_processes
coordinator, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start_processes(coordinator, count, number)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("replica",))
rows = np.arange(8 * count, dtype=np.float32)
split = NamedSharding(mesh, PartitionSpec("replica"))
array = jax.make_array_from_callback(rows.shape, split, lambda index: rows[index])
total = jax.jit(lambda x: (x * x).sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
answers = [agree_any(False), agree_any(number == count - 1), agree_any(True)]
print(jax.device_count(), float(total), is_chief(), answers, flush=True)
"""


def test_two_processes_sum_over_all_their_devices_and_agree() -> None:
    outputs = run_processes(PROGRAM, 2)
    total = float(sum(number**2 for number in range(16)))
    expected = f"4 {total} {{}} [False, True, True]"
    assert outputs == [expected.format(True), expected.format(False)]


CHECKPOINT_PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from halofeed.trainer.distributed import start_processes
coordinator, count, number, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
start_processes(coordinator, count, number)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.step import TrainState
mesh = Mesh(np.array(jax.devices()), ("replica",))

def state(factor):
    def place(values, spec):
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda index: values[index]
        )
    kernel = np.arange(32, dtype=np.float32).reshape(8, 4) * factor
    return TrainState(
        parameters={"kernel": place(kernel, ())},
        statistics={},
        optimizer_state={"trace": place(-kernel, ("replica",))},
        average=None,
        step=place(np.int32(factor), ()),
    )

with Checkpoints(folder, keep_last=1) as checkpoints:
    for step, metric in ((1, 0.9), (2, 0.5), (3, None)):
        checkpoints.save(step, state(step), {"step": step}, metric)
    found, loader_state = checkpoints.restore(state(0))
    same = all(
        np.array_equal(one.data, two.data)
        for got, expected in zip(jax.tree.leaves(found), jax.tree.leaves(state(3)), strict=True)
        for one, two in zip(got.addressable_shards, expected.addressable_shards, strict=True)
    )
    print(checkpoints.latest(), checkpoints.best(), same, loader_state, flush=True)
"""


@pytest.mark.long
def test_two_processes_write_one_checkpoint_that_one_process_reads(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from halofeed.trainer.checkpoint import Checkpoints
    from halofeed.trainer.step import TrainState

    outputs = run_processes(CHECKPOINT_PROGRAM, 2, str(tmp_path))
    assert outputs == ["3 1 True {'step': 3}"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000003"]
    kernel = np.arange(32, dtype=np.float32).reshape(8, 4) * 3
    template = TrainState(
        parameters={"kernel": jax.ShapeDtypeStruct((8, 4), jnp.float32)},
        statistics={},
        optimizer_state={"trace": jax.ShapeDtypeStruct((8, 4), jnp.float32)},
        average=None,
        step=jax.ShapeDtypeStruct((), jnp.int32),
    )
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        state, _ = checkpoints.restore(template)
    np.testing.assert_array_equal(state.parameters["kernel"], kernel)
    np.testing.assert_array_equal(state.optimizer_state["trace"], -kernel)
    assert int(state.step) == 3


def test_a_single_process_needs_no_settings_and_agrees_with_itself() -> None:
    start_processes(None, None, None)
    assert is_chief()
    assert agree_any(True) is True
    assert agree_any(False) is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("127.0.0.1:1234", None, None), "process count, process id: expected together with coordinator"),
        ((None, 2, 0), "coordinator: expected together with process count, process id"),
        (("127.0.0.1:1234", 2, None), "process id: expected together with coordinator, process count"),
        (("127.0.0.1", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:port", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:70000", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:1234", 0, 0), "process count: expected 1 or more, got 0"),
        (("127.0.0.1:1234", 2, 2), "process id: expected 0 to 1, got 2"),
        (("127.0.0.1:1234", 2, -1), "process id: expected 0 to 1, got -1"),
    ],
)
def test_partial_and_impossible_settings_are_refused(
    settings: tuple[str | None, int | None, int | None], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        start_processes(*settings)
