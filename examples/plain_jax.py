"""Train in plain JAX with a loop of your own, stop, and resume with the same batches.

pip install 'halofeed[convert,train]'
python examples/plain_jax.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from drawn import draw_photos

import halofeed
from halofeed.loader.device import Brightness, Contrast, augment_on_device


def loss_of(weights, batch):
    batch = augment_on_device(batch, [Brightness(), Contrast()], seed=7)  # fused into the step
    means = batch["image"].astype(jnp.float32).mean((1, 2)) / 255
    scores = jax.nn.log_softmax(means @ weights)
    return -jnp.take_along_axis(scores, batch["label"][:, None], 1).mean()


@jax.jit
def train_step(weights, batch):
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    return weights - 2.0 * gradient, loss


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    loader = data.loader("train", batch_size=8, seed=1, include=("epoch",))

    weights, losses, saved = jnp.zeros((3, len(data.class_names))), [], None
    for step, batch in zip(range(40), loader.batches(), strict=False):
        weights, loss = train_step(weights, batch)
        losses.append(float(loss))
        if step == 24:
            saved = (
                weights,
                loader.state(step + 1),
            )  # the whole state of the input is one step and its identity

    assert saved is not None
    weights, state = saved
    for step, batch in zip(range(25, 40), loader.batches(loader.restore(state)), strict=False):
        weights, loss = train_step(weights, batch)
        assert float(loss) == losses[step]
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    print(
        f"loss {losses[0]:.3f} to {losses[-1]:.3f}; steps 25 to 39 repeated after a resume with equal losses"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
