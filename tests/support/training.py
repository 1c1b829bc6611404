"""What the tests of training share: facts of a data set that is not there, and a batch on a mesh."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from numpy.typing import NDArray

from halofeed.cli import main
from halofeed.loader.mesh_batches import mesh_specs, place_batch
from halofeed.pipelines.convert import Conversion
from halofeed.schemas.bounded_json import check_json_checksum
from halofeed.schemas.partition import Partition
from halofeed.trainer.models.layers import Pass
from halofeed.trainer.task import DataFacts
from tests.support.conversions import run_convert
from tests.support.engines.processes import free_port
from tests.support.volume_support import write_table


def facts_of(task: str, labels: Mapping[int, str], image_shape: tuple[int, ...], **more: Any) -> DataFacts:
    """Of a data set of such images, no clips, with a mean of 0 and a deviation of 1 unless said."""
    channels = image_shape[-1]
    known: dict[str, Any] = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    known["kind"] = "volume" if len(image_shape) == 4 else "picture"
    return DataFacts(task=task, labels=labels, image_shape=image_shape, **known | more)


def placed(mesh: Mesh, partition: Partition, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The batch, each of its arrays split as the partition says."""
    shapes = {key: value.shape for key, value in batch.items()}
    specs = mesh_specs(mesh, partition, shapes)
    return place_batch(mesh, specs, shapes, lambda a, b: {key: value[a:b] for key, value in batch.items()})


def abstract_outputs(model: Any, *shape: int) -> Any:
    """The shapes and dtypes of what a model, which may be abstract itself, gives for two images."""
    image = jax.ShapeDtypeStruct((2, *shape), jnp.bfloat16)
    return nnx.eval_shape(lambda model, image: model(image, Pass()), model, image)


def random_boxes(generator: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Boxes of shape (*shape, 4) with corners between 0 and 1.2 and sides of at least 0.02."""
    low, size = generator.random((2, *shape, 2))
    return np.concatenate([low * 0.7, low * 0.7 + 0.02 + size * 0.5], -1).astype(np.float32)


def slow_overlap(one: Sequence[float], other: Sequence[float]) -> float:
    sides = [min(one[axis + 2], other[axis + 2]) - max(one[axis], other[axis]) for axis in (0, 1)]
    if min(sides) <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return sides[0] * sides[1] / (sum(areas) - sides[0] * sides[1])


def convert_scans(folder: Path, rows: list[tuple[str, str, str]], images: Path, **options: Any) -> Conversion:
    """Convert the scans and masks that the rows name: id, image and label."""
    table = write_table(folder / "table", rows)
    given = {"images": str(images), "layout": "csv", "task": "segmentation", **options}
    return run_convert(table, folder / "out", **given)


def logged(run: Path, what: str = "log") -> list[dict[str, Any]]:
    """The lines of a run's log, or of its `evaluations`, each of which states its checksum."""
    return [
        check_json_checksum(json.loads(line), required=True)
        for line in (run / f"{what}.jsonl").read_text().splitlines()
    ]


def halofeed(*words: object) -> subprocess.Popen[str]:
    """The command line in a process of its own, which keeps its devices to itself and compiles no program twice."""
    own = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-m", "halofeed", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own)


def command(*words: object, code: int = 0) -> str:
    """Run the command line in this process, which must end with that status; return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        found = main([str(word) for word in words])
    assert found == code, printed.getvalue()
    return printed.getvalue()


def finished(process: subprocess.Popen[str], code: int = 0, seconds: float = 300) -> str:
    """What a process of `halofeed` has said, which must end with that status."""
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    return output


def run_processes(program: str, count: int, *extra: str, seconds: float = 120) -> list[str]:
    """The last line of `count` processes given the coordinator, the count and their number; none outlives the call."""
    coordinator = f"127.0.0.1:{free_port()}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [[sys.executable, "-c", program, coordinator, str(count), str(at), *extra] for at in range(count)]
    processes = [subprocess.Popen(command, text=True, **pipes) for command in words]
    try:
        outputs = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, outputs
    return [output.splitlines()[-1] for output, _ in outputs]  # Gloo prints before
