"""What the tests of training share: facts of a data set that is not there, and a batch on a mesh."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from halofeed.loader.mesh import mesh_specs, place_batch
from halofeed.schemas.partition import Partition
from halofeed.trainer.shared.facts import DataFacts


def facts_of(task: str, labels: Mapping[int, str], image_shape: tuple[int, ...], **more: Any) -> DataFacts:
    """Of a data set of such images; with a mean of 0 and a deviation of 1 unless said."""
    channels = image_shape[-1]
    known = {"mean": (0.0,) * channels, "std": (1.0,) * channels, **more}
    kind = "volume" if len(image_shape) == 4 else "picture"
    return DataFacts(task=task, kind=kind, labels=labels, image_shape=image_shape, **known)


def placed(mesh: Mesh, partition: Partition, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The batch, each of its arrays split as the partition says."""
    shapes = {key: value.shape for key, value in batch.items()}
    specs = mesh_specs(mesh, partition, shapes)
    return place_batch(
        mesh, specs, shapes, lambda first, last: {key: value[first:last] for key, value in batch.items()}
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_processes(program: str, count: int, *extra: str, seconds: float = 120) -> list[str]:
    """The last line of `count` processes given the coordinator, the count and their number; none outlives the call."""
    coordinator = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, coordinator, str(count), str(number), *extra],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, outputs
    return [output.splitlines()[-1] for output, _ in outputs]  # Gloo prints before
