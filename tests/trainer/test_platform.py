"""Is the environment right before JAX is imported?"""

from __future__ import annotations

import pytest

from halofeed.schemas.errors import UsageError
from halofeed.trainer.platform import configure_platform, platform_environment
from tests.support.scripts import run_script


def test_other_xla_flags_are_kept_and_an_old_count_is_replaced() -> None:
    before = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=2"}
    after = platform_environment(before, 16)
    assert after["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=16"
    assert after["JAX_PLATFORMS"] == "cpu"


def test_without_virtual_devices_nothing_changes() -> None:
    assert platform_environment({"XLA_FLAGS": "--a"}, None) == {}


def test_a_new_process_sees_the_virtual_devices() -> None:
    program = (
        "import sys\n"
        "from halofeed.trainer.platform import configure_platform\n"
        "assert 'jax' not in sys.modules\n"
        "configure_platform(3)\n"
        "import jax; print(jax.devices())"
    )
    assert run_script(program).strip() == "[CpuDevice(id=0), CpuDevice(id=1), CpuDevice(id=2)]"


def test_it_is_refused_once_jax_is_imported() -> None:
    with pytest.raises(UsageError, match="JAX is already imported"):
        configure_platform(8)


def test_fewer_than_one_virtual_device_is_refused() -> None:
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        platform_environment({}, 0)
