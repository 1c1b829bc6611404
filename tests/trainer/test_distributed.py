"""Processes find each other, sum over all their devices, and agree."""

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


def test_two_processes_sum_over_all_their_devices_and_agree():
    outputs = run_processes(PROGRAM, 2)
    total = float(sum(number**2 for number in range(16)))
    expected = f"4 {total} {{}} [False, True, True]"
    assert outputs == [expected.format(True), expected.format(False)]


def test_a_single_process_needs_no_settings_and_agrees_with_itself():
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
def test_partial_and_impossible_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        start_processes(*settings)
