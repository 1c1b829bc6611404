"""Which environment must a process have, before it imports JAX, to compile for a machine?"""

from __future__ import annotations

from collections.abc import Mapping

from halofeed.trainer.plan.topologies import Topology
from halofeed.trainer.platform import WITHOUT_TPU, platform_environment

TPU_COMPILER = {**WITHOUT_TPU, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Several compilers at once, which a lock against several users of one TPU would end."""


def compiler_environment(environment: Mapping[str, str], topology: Topology) -> dict[str, str]:
    """The variables to set, beside those that are there."""
    if topology.platform == "tpu":
        return {**platform_environment(environment, 1), **TPU_COMPILER}
    return platform_environment(environment, topology.devices) if topology.platform == "cpu" else {}
