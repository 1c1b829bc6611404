"""A training loop of your own with evaluation, a moving average (EMA), checkpoints and resume.

The first run is stopped halfway; the second resumes from its checkpoint, and ends with the losses of a run that was not
stopped. `halofeed train DATA --model own:Net --task own:Task` trains such classes without a loop (docs/extending.md).

    pip install 'halofeed[convert,train]'
    python examples/own_training_loop.py
"""

import tempfile
from pathlib import Path

import jax
import optax
from drawn import draw_photos
from flax import nnx

import halofeed
from halofeed.loader.device import Normalization
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.data import evaluation_loader
from halofeed.trainer.evaluate import Predictor
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.step import TrainingSetup, compile_step, new_state
from halofeed.trainer.tasks.classification import Classification

DECAY = 0.9


class Net(nnx.Module):
    def __init__(self, layers: Layers, *, classes: int, image_shape: tuple[int, ...], width: int = 8) -> None:
        self.first = nnx.Conv(image_shape[-1], width, (3, 3), strides=2, rngs=layers.rngs)
        self.head = nnx.Linear(width, classes, rngs=layers.rngs)

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:
        return self.head(nnx.relu(run.hold(self.first(run.hold(image)))).mean((1, 2)))


def train(data: halofeed.Dataset, folder: Path, steps: int) -> tuple[list[float], float]:
    """Take the steps that are missing, and return their losses and the accuracy of the averaged parameters."""
    mesh, partition = halofeed.make_mesh(), halofeed.Partition()
    setup = TrainingSetup(
        build=lambda layers: Net(layers, classes=len(data.class_names), image_shape=(32, 32, 3)),
        task=Classification(labels=data.class_names),
        normalization=Normalization(mean=(120.0,) * 3, std=(60.0,) * 3),
        compute_dtype="float32",
        mesh=mesh,
    )
    optimizer = optax.adam(0.02)
    state, start = new_state(setup, optimizer, seed=0, average=True), 0
    step = compile_step(setup, optimizer, average_decay=DECAY)
    loader = data.loader("train", batch_size=len(jax.devices()) * 8, seed=1)
    tests = evaluation_loader(data.path, "test", loader.batch_size, setup.task)
    predictor, losses, accuracy = Predictor(setup, partition), [], 0.0
    with Checkpoints(folder) as checkpoints:
        if checkpoints.latest() is not None:
            state, loader_state = checkpoints.restore(state)
            start = loader.restore(loader_state)
        batches = loader.on_mesh(mesh, partition, start)
        for number, batch in zip(range(start + 1, steps + 1), batches, strict=False):
            state, values = step(state, batch)
            losses.append(float(values["loss"]))
            if number % 10 == 0:
                metrics = predictor.evaluate(state.best_parameters, state.statistics, tests)
                accuracy = metrics["accuracy"]
                checkpoints.save(number, state, loader.state(number), accuracy)
    return losses, accuracy


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    whole, expected = train(data, folder / "whole", 40)
    first, _ = train(data, folder / "stopped", 20)
    rest, accuracy = train(data, folder / "stopped", 40)
    assert first + rest == whole and accuracy == expected > 0.9
    print(
        f"loss {whole[0]:.3f} to {whole[-1]:.3f}, the same with a stop after step 20; accuracy {accuracy:.2f}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
