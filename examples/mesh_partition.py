"""Train a model of your own with every picture split over four cores, and compare with one core.

Eight virtual CPU devices stand for two replicas of four cores. `run.hold` constrains where each activation is;
without it XLA may compute wrong gradients silently (docs/partition.md).

    pip install 'halofeed[convert,train]'
    python examples/mesh_partition.py
"""

import os
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before JAX starts

import jax
import numpy as np
import optax
from drawn import draw_photos
from flax import nnx

import halofeed
from halofeed.loader.device import Normalization
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.step import TrainingSetup, compile_step, new_state
from halofeed.trainer.tasks.classification import Classification


class TwoConvolutions(nnx.Module):
    def __init__(self, layers: Layers, classes: int) -> None:
        self.first = nnx.Conv(3, 8, (3, 3), strides=2, rngs=layers.rngs)
        self.second = nnx.Conv(8, 16, (3, 3), rngs=layers.rngs)
        self.head = nnx.Linear(16, classes, rngs=layers.rngs)

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:
        image = nnx.relu(run.hold(self.first(run.hold(image))))
        image = nnx.relu(run.hold(self.second(image)))
        return self.head(image.mean((1, 2)))


def train(data: halofeed.Dataset, cores: int, steps: int = 12) -> list[float]:
    mesh, dims = halofeed.make_mesh(cores), (1, cores, 1, 1)
    names = data.class_names
    setup = TrainingSetup(
        build=lambda layers: TwoConvolutions(layers, len(names)),
        task=Classification(labels=names),
        normalization=Normalization(mean=(120.0,) * 3, std=(60.0,) * 3),
        compute_dtype="float32",
        mesh=mesh,
        dims=dims,
    )
    optimizer = optax.adam(0.02)
    state, step = new_state(setup, optimizer, seed=0), compile_step(setup, optimizer)
    partition = halofeed.Partition(cores_per_replica=cores, dims={"image": dims})
    batches = data.loader("train", batch_size=8, seed=1).on_mesh(mesh, partition)
    losses = []
    for _, batch in zip(range(steps), batches, strict=False):
        assert batch["image"].addressable_shards[0].data.shape == (cores, 32 // cores, 32, 3)
        state, values = step(state, batch)
        losses.append(float(values["loss"]))
    return losses


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    split, whole = train(data, cores=4), train(data, cores=1)
    np.testing.assert_allclose(split, whole, rtol=1e-3)
    print(f"loss {split[0]:.3f} to {split[-1]:.3f} over four cores; unsplit {whole[-1]:.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
