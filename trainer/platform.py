"""Which environment must be set before JAX is imported?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from halofeed.errors import UsageError

WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""What keeps libtpu, where it is installed and no TPU is there, from asking for one and from complaining at length."""
TPU_COMPILER = {**WITHOUT_TPU, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Several compilers at once, which a lock against several users of one TPU would end."""
_GOOGLE = "0x1ae0"
DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


def platform_environment(
    environment: Mapping[str, str], virtual_devices: int | None, *, at_least: int = 1
) -> dict[str, str]:
    """The variables to set so that JAX sees `virtual_devices` CPU devices.

    If a number is given, accelerators are hidden from every library of the process, TensorFlow's included.

    Args:
        environment: the present one; other flags in its XLA_FLAGS are kept.
        virtual_devices: how many CPU devices to make, or None to use the machine's own devices.
        at_least: as how many devices the CPU counts where the machine turns out to have no others; a number
            already in XLA_FLAGS stands.

    Raises:
        UsageError: if the number is below 1.

    >>> platform_environment({"XLA_FLAGS": "--a"}, 8)["XLA_FLAGS"]
    '--a --xla_force_host_platform_device_count=8'
    """
    flags = environment.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if not flag.startswith(DEVICE_COUNT_FLAG)]
    if virtual_devices is None:
        if at_least == 1 or kept != flags:
            return {}
        return {"XLA_FLAGS": " ".join([*kept, f"{DEVICE_COUNT_FLAG}={at_least}"])}
    if virtual_devices < 1:
        raise UsageError(f"virtual devices: expected 1 or more, got {virtual_devices}")
    return {
        "XLA_FLAGS": " ".join([*kept, f"{DEVICE_COUNT_FLAG}={virtual_devices}"]),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def configure_platform(virtual_devices: int | None, *, at_least: int = 1) -> None:
    """Set this process's environment for JAX as `platform_environment` says.

    Call it before anything imports JAX (TensorFlow does).

    Raises:
        UsageError: if virtual devices are asked for and JAX is already imported.
    """
    if virtual_devices is not None and "jax" in sys.modules:
        raise UsageError(
            f"virtual devices: JAX is already imported; set XLA_FLAGS={DEVICE_COUNT_FLAG}={virtual_devices} "
            "and JAX_PLATFORMS=cpu before Python starts, or call configure_platform first"
        )
    os.environ.update(platform_environment(os.environ, virtual_devices, at_least=at_least))
    if not _has_google_chip():
        for name, value in WITHOUT_TPU.items():
            os.environ.setdefault(name, value)


def _has_google_chip() -> bool:
    """Whether a TPU may be here: something of Google's is on the bus, or there is no bus to look at."""
    vendors = list(Path("/sys/bus/pci/devices").glob("*/vendor"))
    return not vendors or any(vendor.read_text().strip() == _GOOGLE for vendor in vendors)


def hide_accelerators_from_tensorflow() -> None:
    """Keep TensorFlow, if it is imported, off the accelerators that JAX will use."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        for kind in ("GPU", "TPU"):
            tensorflow.config.set_visible_devices([], kind)
