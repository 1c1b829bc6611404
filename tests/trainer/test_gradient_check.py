"""`check_gradients` finds planted faults and names their layer, and finds none in the models of halofeed."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from halofeed.errors import UsageError
from halofeed.schemas.partition import PartitionError
from halofeed.trainer import check_gradients
from halofeed.trainer.mesh import constrain, make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.convolutions import convolve_grouped
from halofeed.trainer.models.layers import Layers, Pass
from tests.support.level_rows import levels
from tests.support.scripts import run_script

FEW = {"width": 4, "features": 8, "tower_depth": 1}
FAMILIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "classifier": ((16, 16, 3), (1, 2, 1, 1), {"features": [4, 8]}),
    "resnet50": ((32, 32, 3), (1, 2, 2, 1), {"width": 4, "blocks": [1, 1, 1, 1]}),
    "resnet101": ((32, 32, 3), (1, 2, 2, 1), {"width": 4, "blocks": [1, 1, 2, 1]}),
    "resnet20": ((32, 32, 3), (1, 2, 2, 1), {}),
    "mobilenet_v1": ((32, 32, 3), (1, 4, 1, 1), {"width": 4}),
    "unet": ((8, 16, 8, 1), (1, 2, 2, 1, 1), {"depth": 3, "width": 4, "convolutions": 1}),
    "retinanet": ((64, 64, 3), (1, 2, 2, 1), {**FEW, "blocks": [1, 1, 1, 1]}),
    "ssd_mobilenet_v1": ((64, 64, 3), (1, 4, 1, 1), {"width": 4}),
    "ssd_mobilenet_v1_ppn": ((64, 64, 3), (1, 4, 1, 1), {"width": 4}),
}
"""Image, split and options that make a small model of each family."""
QUICK = ("classifier", "unet")


@pytest.mark.parametrize("name", levels(*QUICK, long=[name for name in FAMILIES if name not in QUICK]))
def test_the_gradients_of_every_family_are_right(name: str) -> None:
    shape, dims, options = FAMILIES[name]

    def build(layers: Layers) -> nnx.Module:
        return MODELS[name].build(layers, classes=3, image_shape=shape, **options)

    check = check_gradients(build, make_mesh(int(np.prod(dims))), dims=dims, image_shape=shape)
    assert check.is_right, check
    assert check.parameters > 4 and check.layer == "" and check.largest < 1e-12


def test_every_family_is_checked() -> None:
    assert set(FAMILIES) == set(MODELS)


class ThreeLayers(nnx.Module):
    """Two convolutions and a head, with a place for a fault after or in the second convolution."""

    kernel = (5, 5)

    def __init__(self, layers: Layers) -> None:
        self.first = nnx.Conv(3, 4, (3, 3), rngs=layers.rngs)
        self.second = Second(4, 6, self.kernel, rngs=layers.rngs)
        self.head = nnx.Linear(6, 2, rngs=layers.rngs)

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:
        image = nnx.relu(run.hold(self.first(run.hold(image))))
        image = nnx.relu(run.hold(self.middle(image, run)))
        return self.head(image.mean((1, 2)))

    def middle(self, image: jax.Array, run: Pass) -> jax.Array:
        return self.second(image, run)


class Second(nnx.Conv):
    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:  # type: ignore[override]
        return super().__call__(image)


class SmallHalo(Second):
    """Convolves each core's rows with one row of each neighbor, where a kernel of five rows needs two."""

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:  # type: ignore[override]
        parts = 1 if run.mesh is None else run.parts[0]
        rows = image.shape[1] // parts
        padded = jnp.pad(image, ((0, 0), (1, 1), (0, 0), (0, 0)))
        whole = nnx.Conv.__call__
        slabs = [whole(self, padded[:, part * rows : (part + 1) * rows + 2]) for part in range(parts)]
        return jnp.concatenate([slab[:, 1:-1] for slab in slabs], 1)


class LocalMean(Second):
    """Subtracts the mean of each core's rows, where one device subtracts that of all rows."""

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:  # type: ignore[override]
        made = nnx.Conv.__call__(self, image)
        parts = 1 if run.mesh is None else run.parts[0]
        slabs = jnp.split(made, parts, axis=1)
        return jnp.concatenate([slab - slab.mean((1, 2), keepdims=True) for slab in slabs], 1)


class SummedTwice(Second):
    """Adds the gradient of its kernel over the cores, although XLA has added it already."""

    def __call__(self, image: jax.Array, run: Pass) -> jax.Array:  # type: ignore[override]
        kernel = self.kernel[...]
        if run.mesh is not None:
            kernel = _summed_again(kernel, run.mesh)
        order = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=order)


def _summed_again(kernel: jax.Array, mesh: jax.sharding.Mesh) -> jax.Array:
    cores = tuple(axis for axis in mesh.axis_names if axis != "replica")

    @jax.custom_vjp
    def same(kernel: jax.Array) -> jax.Array:
        return kernel

    def add(_: None, gradient: jax.Array) -> tuple[jax.Array]:
        whole = PartitionSpec()
        add_up = jax.shard_map(
            lambda one: jax.lax.psum(one, cores), mesh=mesh, in_specs=whole, out_specs=whole
        )
        return (add_up(gradient),)

    same.defvjp(lambda kernel: (kernel, None), add)
    return same(kernel)


def faulty(second: type[Second]) -> type[ThreeLayers]:
    class Faulty(ThreeLayers):
        def __init__(self, layers: Layers) -> None:
            super().__init__(layers)
            self.second = second(4, 6, self.kernel, rngs=layers.rngs)

    return Faulty


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return make_mesh(4)


SIZE = (16, 4, 3)


def test_a_model_without_a_fault_is_right_and_the_text_says_so(mesh: jax.sharding.Mesh) -> None:
    check = check_gradients(ThreeLayers, mesh, image_shape=SIZE)
    assert check.is_right and check.wrong == () and check.unused == ()
    assert str(check).startswith(
        "right on [1, 4, 1, 1] over 4 cores, 2 replicas: the gradients of 6 parameters"
    )


@pytest.mark.parametrize("second", [SmallHalo, LocalMean])
def test_a_fault_of_the_forward_pass_is_named_by_its_layer(
    second: type[Second], mesh: jax.sharding.Mesh
) -> None:
    check = check_gradients(faulty(second), mesh, image_shape=SIZE)
    assert not check.is_right and check.loss_difference > 1e-6
    assert check.layer == "second"
    wrong = {one.parameter: one.difference for one in check.wrong}
    assert wrong["second.kernel"] > 1e-6 and wrong["first.kernel"] > 1e-6
    assert "layer second: the first layer whose output differs" in str(check)


def test_gradients_that_are_summed_twice_are_named_with_their_factor(mesh: jax.sharding.Mesh) -> None:
    check = check_gradients(faulty(SummedTwice), mesh, image_shape=SIZE)
    assert not check.is_right and check.loss_difference < 1e-12
    assert check.layer == "second"
    (wrong,) = check.wrong
    assert wrong.parameter == "second.kernel"
    assert wrong.ratio == pytest.approx(4) and wrong.difference == pytest.approx(3)
    text = str(check)
    assert "loss is right, gradients are not" in text
    assert "second.kernel: differs by 300 % of its norm, 4.000 times as long" in text
    # The bias of a convolution that has none in its output has no gradient.
    assert check.unused == ("second.bias",) and "not compared" in text


def test_the_page_finds_the_fault_of_xla_that_a_layout_prevents() -> None:
    """A 3x3 convolution of stride 2 from 8 rows to 4, over 8 cores; if XLA repairs it, this test fails."""
    page = (Path(__file__).parents[2] / "docs/partition.md").read_text()
    section = page.partition("### Check your own model")[2]
    code, printed = re.findall(r"^```(?:python)?\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[:2]
    assert run_script(f"import jax\njax.config.update('jax_platforms', 'cpu')\n{code}") == printed


def test_a_finished_model_and_a_loss_of_ones_own_are_checked_in_float64(mesh: jax.sharding.Mesh) -> None:
    class Plain(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.convolution = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, image: jax.Array, run: Pass) -> jax.Array:
            return self.norm(constrain(self.convolution(image), run.mesh, run.dims))

    seen = []

    def loss(outputs: jax.Array, batch: Any) -> jax.Array:
        seen.append(outputs.dtype)
        return jnp.square(outputs - batch["label"][:, None, None, None]).mean()

    generator = np.random.default_rng(0)
    batch = {"image": generator.standard_normal((4, *SIZE)), "label": np.arange(4.0)}
    check = check_gradients(Plain(nnx.Rngs(0)), mesh, batch=batch, loss=loss)
    assert check.is_right and set(seen) == {jnp.dtype("float64")}
    # A batch norm removes the bias of the convolution before it.
    assert check.unused == ("convolution.bias",)


def test_layers_in_an_inner_loop_are_compared_too(mesh: jax.sharding.Mesh) -> None:
    class Mapped(faulty(SummedTwice)):  # type: ignore[misc]
        def middle(self, image: jax.Array, run: Pass) -> jax.Array:
            return jax.checkpoint(lambda image: self.second(image, run))(image)

    check = check_gradients(Mapped, mesh, image_shape=SIZE)
    assert ([one.parameter for one in check.wrong], check.layer) == (["second.kernel"], "second")


def test_a_mesh_that_splits_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="XLA_FLAGS=--xla_force_host_platform_device_count=8"):
        check_gradients(ThreeLayers, make_mesh(1, jax.devices()[:1]))
    other = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises((UsageError, PartitionError), match="make_mesh"):
        check_gradients(ThreeLayers, other)


class Depthwise(ThreeLayers):
    """Its last level has 4 columns, too few to be split over 4 cores, so each core keeps the whole level."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self.second = nnx.Conv(4, 6, (3, 3), rngs=layers.rngs)
        self.depthwise = nnx.Conv(6, 6, (3, 3), feature_group_count=6, rngs=layers.rngs)

    def middle(self, image: jax.Array, run: Pass) -> jax.Array:
        return run.hold(self.grouped(run.hold(self.second(image)), run))

    def grouped(self, image: jax.Array, run: Pass) -> jax.Array:
        return self.depthwise(image)


def test_the_advice_for_a_grouped_convolution_repairs_it(mesh: jax.sharding.Mesh) -> None:
    class Repaired(Depthwise):
        def grouped(self, image: jax.Array, run: Pass) -> jax.Array:
            return convolve_grouped(self.depthwise, image, run.mesh, run.dims)

    check = check_gradients(Depthwise, mesh, dims=(1, 1, 4, 1), image_shape=SIZE)
    assert check.layer == "depthwise" and check.wrong[0].ratio == pytest.approx(4)
    assert "convolutions.convolve_grouped(layer, image, run.mesh, run.dims)" in str(check)
    assert check_gradients(Repaired, mesh, dims=(1, 1, 4, 1), image_shape=SIZE).is_right


def test_a_layer_of_another_precision_is_refused_and_not_reported_as_a_fault(mesh: jax.sharding.Mesh) -> None:
    class Narrow(ThreeLayers):
        def __init__(self, layers: Layers) -> None:
            super().__init__(layers)
            self.first = nnx.Conv(3, 4, (3, 3), dtype=jnp.bfloat16, rngs=layers.rngs)

    with pytest.raises(UsageError, match=r"got first in bfloat16; make them with dtype=layers\.dtype"):
        check_gradients(Narrow, mesh, image_shape=SIZE)


def test_a_model_with_a_mesh_of_its_own_is_refused_with_the_cure(mesh: jax.sharding.Mesh) -> None:
    class Fixed(ThreeLayers):
        def middle(self, image: jax.Array, run: Pass) -> jax.Array:
            return constrain(self.second(image, run), mesh, (1, 4, 1, 1))

    with pytest.raises(UsageError, match=r"use run\.mesh and run\.dims"):
        check_gradients(Fixed, mesh, image_shape=SIZE)


def test_a_usual_nnx_model_is_refused_with_the_form_that_is_expected(mesh: jax.sharding.Mesh) -> None:
    class Usual(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.convolution = nnx.Conv(3, 4, (3, 3), rngs=rngs)

        def __call__(self, image: jax.Array) -> jax.Array:
            return self.convolution(image)

    with pytest.raises(UsageError, match=r"lambda layers: Model\(rngs=layers\.rngs\)"):
        check_gradients(Usual, mesh, image_shape=SIZE)
    with pytest.raises(UsageError, match=r"define __call__\(self, image, run\)"):
        check_gradients(lambda layers: Usual(layers.rngs), mesh, image_shape=SIZE)
