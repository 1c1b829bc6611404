"""A step on a partition is that of one device, and the comparison finds a step that is not.

The classifier has what every model has: convolutions that shrink to a single position, norms, and a head.
"""

import jax
import pytest
from flax import nnx

from halofeed.trainer.models import layers
from tests.support.level_rows import others
from tests.support.parity import PICTURE_SPLITS, Case, beyond, compare, splits, wrong

PICTURES = Case(model="classifier", image_shape=(64, 16, 3), model_options={"features": [4, 8, 8, 8, 8]})
SQUARE = Case(model="classifier", image_shape=(32, 32, 3), model_options={"features": [4, 8, 8]})


SPLITS = [split for split in PICTURE_SPLITS if split[0] <= 8] + splits((1, 1, 8, 1))


@pytest.mark.parametrize(("cores", "dims"), others(SPLITS, splits((1, 8, 1, 1), (1, 4, 2, 1))))
def test_a_step_is_that_of_one_device(cores, dims):
    assert wrong(PICTURES, [(cores, dims)]) == {}


@pytest.mark.parametrize("split", [(8, (2, 2, 2, 1)), (4, (1, 1, 1, 1))])
def test_a_split_batch_axis_and_a_whole_image_are_right_too(split):
    assert wrong(SQUARE, [split]) == {}


def test_unguarded_a_level_of_fewer_rows_than_shards_has_wrong_gradients(monkeypatch):
    """What `Pass.hold` is for: the comparison must see the fault that it prevents.

    If XLA fixes the fault, this test fails; the guard may then be loosened.
    """
    monkeypatch.setattr(layers, "constrain", lambda activation, mesh, dims: activation)
    distances = compare(SQUARE, 8, (1, 8, 1, 1))
    assert distances["scalars"]["loss"] <= 1e-12
    assert any(name.startswith("gradients") and "kernel" in name for name in beyond(distances))
    assert any(name.startswith("changes") and "kernel" in name for name in beyond(distances))


def test_a_lost_halo_is_seen_in_the_loss_and_the_gradients(monkeypatch):
    """Each half of the rows convolved on its own, as if the cores did not exchange their edge rows."""
    exact = nnx.Conv.__call__

    def without_halo(self: nnx.Conv, image: jax.Array) -> jax.Array:
        if image.shape[1] < 4:
            return exact(self, image)
        halves = jax.numpy.split(image, 2, axis=1)
        return jax.numpy.concatenate([exact(self, half) for half in halves], axis=1)

    compare(SQUARE, 2, (1, 2, 1, 1))  # what one device computes is kept from here on
    monkeypatch.setattr(nnx.Conv, "__call__", without_halo)
    distances = compare(SQUARE, 2, (1, 2, 1, 1))
    assert distances["scalars"]["loss"] > 1e-5
    kinds = {name.split()[0] for name in beyond(distances)}
    assert kinds == {"scalars", "gradients", "statistics", "changes"}
