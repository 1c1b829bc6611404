"""Environment variables to set before JAX is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from halofeed.system.errors import UsageError

WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Variables for a machine without a TPU: libtpu neither queries the metadata server nor logs warnings."""
TPU_COMPILER = {**WITHOUT_TPU, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Variables for compiling: several compilers run at once, which libtpu's lock would prevent."""
_GOOGLE_PCI_VENDOR = "0x1ae0"
DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


def platform_environment(
    environment: Mapping[str, str], virtual_devices: int | None, *, at_least: int = 1
) -> dict[str, str]:
    """Return the variables to set so that JAX sees `virtual_devices` CPU devices.

    A number also hides accelerators from every library of the process, including TensorFlow.

    Args:
        environment: the current environment; other flags in its XLA_FLAGS are kept.
        virtual_devices: number of CPU devices to create; None uses the machine's own devices.
        at_least: number of CPU devices if the machine has no accelerator; a number in XLA_FLAGS takes precedence.

    Raises:
        UsageError: `virtual_devices` is below 1.

    >>> platform_environment({"XLA_FLAGS": "--a"}, 8)["XLA_FLAGS"]
    '--a --xla_force_host_platform_device_count=8'
    """
    flags = environment.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if not flag.startswith(DEVICE_COUNT_FLAG)]
    if virtual_devices is None:
        # A number of devices that the user set in XLA_FLAGS is kept.
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
    """Set the variables of `platform_environment` in this process, before any import of JAX (TensorFlow imports it).

    Raises:
        UsageError: virtual devices are requested after JAX was imported.
    """
    if virtual_devices is not None and "jax" in sys.modules:
        raise UsageError(
            f"virtual devices: JAX is already imported; set XLA_FLAGS={DEVICE_COUNT_FLAG}={virtual_devices} "
            "and JAX_PLATFORMS=cpu before Python starts, or call configure_platform first"
        )
    os.environ.update(platform_environment(os.environ, virtual_devices, at_least=at_least))
    if not _may_have_tpu():
        for name, value in WITHOUT_TPU.items():
            os.environ.setdefault(name, value)


def computes_on_processor() -> bool:
    """Return whether JAX can only use the processor; JAX need not be imported.

    JAX reaches a TPU by libtpu, and every other accelerator by an installed plugin.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return True
    return not _may_have_tpu() and not _has_plugins()


def _has_plugins() -> bool:
    """Return whether a plugin of JAX is installed, in either of the two places where JAX looks for them."""
    return bool(entry_points(group="jax_plugins")) or find_spec("jax_plugins") is not None


def _may_have_tpu() -> bool:
    """Return whether the PCI bus has a Google device, or cannot be read."""
    vendors = list(Path("/sys/bus/pci/devices").glob("*/vendor"))
    return not vendors or any(vendor.read_text().strip() == _GOOGLE_PCI_VENDOR for vendor in vendors)


def hide_accelerators_from_tensorflow() -> None:
    """Keep TensorFlow, if it is imported, from using the accelerators that JAX will use."""
    tensorflow = sys.modules.get("tensorflow")
    # TensorFlow reserves all memory of a GPU as soon as it uses it.
    if tensorflow is not None:
        for kind in ("GPU", "TPU"):
            tensorflow.config.set_visible_devices([], kind)
