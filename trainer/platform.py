"""Which environment must be set before JAX is imported?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from halofeed.schemas.errors import UsageError

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


def platform_environment(environment: Mapping[str, str], virtual_devices: int | None) -> dict[str, str]:
    """The variables to set so that JAX sees `virtual_devices` CPU devices; none if it is None.

    Accelerators are hidden from every library of the process, TensorFlow's included.

    Args:
        environment: the present one; other flags in its XLA_FLAGS are kept.
        virtual_devices: how many CPU devices to make, or None to use the machine's own devices.

    Raises:
        UsageError: if the number is below 1.

    >>> platform_environment({"XLA_FLAGS": "--a"}, 8)["XLA_FLAGS"]
    '--a --xla_force_host_platform_device_count=8'
    """
    if virtual_devices is None:
        return {}
    if virtual_devices < 1:
        raise UsageError(f"virtual devices: expected 1 or more, got {virtual_devices}")
    kept = [
        flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(DEVICE_COUNT_FLAG)
    ]
    return {
        "XLA_FLAGS": " ".join([*kept, f"{DEVICE_COUNT_FLAG}={virtual_devices}"]),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def configure_platform(virtual_devices: int | None) -> None:
    """Set this process's environment for JAX; call it before anything imports JAX (TensorFlow does).

    Raises:
        UsageError: if virtual devices are asked for and JAX is already imported.
    """
    if virtual_devices is not None and "jax" in sys.modules:
        raise UsageError(
            f"virtual devices: JAX is already imported; set XLA_FLAGS={DEVICE_COUNT_FLAG}={virtual_devices} "
            "and JAX_PLATFORMS=cpu before Python starts, or call configure_platform first"
        )
    os.environ.update(platform_environment(os.environ, virtual_devices))


def hide_accelerators_from_tensorflow() -> None:
    """Keep TensorFlow, if it is imported, off the accelerators that JAX will use."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        for kind in ("GPU", "TPU"):
            tensorflow.config.set_visible_devices([], kind)
