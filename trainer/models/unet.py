"""A U-Net for volumes, and its twin for pictures: which class is every voxel, or every pixel?

    image                                                                        logits
    blocks, width      -------------------- side by side -------------------->  blocks, width
       | 2x2x2 max pool                                                             | each voxel becomes 2x2x2
       blocks, 2 width     ---------------- side by side ---------------->   blocks, 2 width   -> coarse logits
          | ...                                                                  | ...
          blocks, 2**(depth - 1) width, at most max_width  -----------------------

A block is convolutions of 3 along each axis, each with its norm and relu. Sources: Ronneberger et al., "U-Net", 2015
(arXiv 1505.04597); Cicek et al., "3D U-Net", 2016 (arXiv 1606.06650); Isensee et al., "nnU-Net", 2021.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from halofeed.errors import UsageError
from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, max_pool

AXES = {3: ("height", "width"), 4: ("depth", "height", "width")}
"""Of an image without batch, by its rank."""
UPSAMPLING = ("learned", "repeat")
GROUP_EPSILON = 1e-5
"""Of instance and group norm; batch norm has that of its `Layers`."""


class UNet(nnx.Module):
    """Logits per class, the background's first, at every voxel of a volume or pixel of a picture.

    Only activations are split over cores. Pools and upsampling have windows as wide as their strides, so that they
    send nothing; a level that does not divide by its cores is whole on each of them.

    Args:
        layers: makes the layers; its `norm_kind` is replaced by `norm`.
        classes: with the background.
        image_shape: of one image, [height, width, channel] or [depth, height, width, channel].
        depth: how many sizes the image has on its way down; it is halved depth - 1 times.
        width: features at the full size; they double with each halving.
        max_width: the most features.
        convolutions: in a block.
        norm: "instance", "batch" or "group".
        upsampling: "learned" multiplies each voxel by a matrix into 2x2x2 (what a transposed convolution of kernel
            and stride 2 computes); "repeat" copies it.
        deep_supervision: logits at the coarser sizes on the way up too, but for the coarsest.
        anisotropic: an axis is halved only at those sizes where it is at least half as long as the longest, as thick
            slices want it. Otherwise every axis is halved every time.
        foreground_prior: before any training the classes beside the background have this probability together. Where
            it is far above their share, the first steps teach a small class never to be predicted.

    Raises:
        UsageError: a size that does not divide by its halvings, with the nearest that do; an unknown option.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        depth: int = 5,
        width: int = 32,
        max_width: int = 320,
        convolutions: int = 2,
        norm: str = "instance",
        upsampling: str = "learned",
        deep_supervision: bool = False,
        anisotropic: bool = False,
        foreground_prior: float = 0.05,
    ) -> None:
        _check(image_shape, depth=depth, width=width, convolutions=convolutions, upsampling=upsampling)
        if not 0 < foreground_prior < 1:
            raise UsageError(f"foreground_prior: expected a share between 0 and 1, got {foreground_prior}")
        sizes = image_shape[:-1]
        strides = halvings(sizes, depth, anisotropic=anisotropic)
        if norm == "instance" and all(size == math.prod(steps) for size, steps in _along(sizes, strides)):
            raise UsageError(
                f"norm='instance': with depth={depth}, {'x'.join(map(str, sizes))} ends as a single value, which has "
                f"no deviation; take depth={depth - 1} or another norm"
            )
        layers = dataclasses.replace(layers, norm_kind=norm)
        epsilon = None if norm == "batch" else GROUP_EPSILON
        features = [min(width * 2**level, max_width) for level in range(depth)]

        def block(before: int, after: int) -> nnx.List[ConvolutionNorm]:
            kernel = (3,) * len(sizes)
            return nnx.List(
                ConvolutionNorm(layers, after if index else before, after, kernel, epsilon=epsilon)
                for index in range(convolutions)
            )

        def head(features: int) -> nnx.Linear:
            return layers.dense(features, classes, bias_init=_background_first(foreground_prior))

        self.strides = strides
        self.down = nnx.List(
            block(before, after)
            for before, after in zip((image_shape[-1], *features), features, strict=False)
        )
        enlarge = [
            _Upsampling(layers, below, here, stride, learned=upsampling == "learned")
            for here, below, stride in zip(features, features[1:], strides, strict=False)
        ]
        self.enlarge = nnx.List(enlarge)
        self.up = nnx.List(
            block(here + enlarged.features, here) for here, enlarged in zip(features, enlarge, strict=False)
        )
        self.head = head(features[0])
        self.coarse_heads = nnx.List(head(here) for here in features[1:-1] if deep_supervision)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> dict[str, jax.Array | list[jax.Array]]:  # noqa: B008
        """From normalized images [batch, ..., channel] to logits, in the parameters' precision.

        Returns:
            `logits` [batch, (depth,) height, width, class], and `coarse`, a list of the same at the coarser sizes,
            the finest first.
        """
        x = run.hold(image)
        skips = []
        for index, block in enumerate(self.down):
            if index:
                x = pooled(x, self.strides[index - 1], run)
            x = _through(block, x, run)
            skips.append(x)
        skips.pop()
        coarse: list[jax.Array] = []
        for level in reversed(range(len(skips))):
            enlarged = self.enlarge[level](x, run)
            x = _through(self.up[level], jnp.concatenate([skips[level], enlarged], -1), run)
            if 0 < level <= len(self.coarse_heads):
                coarse.insert(0, self.coarse_heads[level - 1](x))
        return {"logits": self.head(x), "coarse": coarse}


def pooled(x: jax.Array, stride: tuple[int, ...], run: Pass) -> jax.Array:
    """The greatest of each window of `stride`, held to the split.

    Where the result is whole on every core and x is not, XLA would gather x before it is pooled. So what a core can
    pool of its own part is pooled first: everything, or what lies along the axes that are not split. The gradients
    are those of one pool, which gives them to the first of equal values, the axes in their order.
    """
    larger = tuple(size // step for size, step in zip(x.shape[1:-1], stride, strict=True))
    after = (x.shape[0], *larger, x.shape[-1])
    if run.is_split(x.shape) and not run.is_split(after):
        parts = run.parts
        if all(size % count == 0 for size, count in zip(larger, parts, strict=True)):
            return run.hold(run.hold_split(max_pool(x, stride, stride)))
        last = max(axis for axis, count in enumerate(parts) if count > 1)
        # Equal values: the axes that are pooled last must be the first in order.
        if all(count > 1 for count in parts[: last + 1]):
            unsplit = (*(1,) * (last + 1), *stride[last + 1 :])
            x = run.hold_split(max_pool(x, unsplit, unsplit))
            stride = (*stride[: last + 1], *(1,) * (len(stride) - last - 1))
            x = run.hold(x, whole=True)
    return run.hold(max_pool(x, stride, stride))


class _Upsampling(nnx.Module):
    """Each voxel becomes a block of `stride` voxels: a matrix product and a reshape, so that nothing is sent."""

    def __init__(
        self, layers: Layers, before: int, after: int, stride: tuple[int, ...], *, learned: bool
    ) -> None:
        self.features = after if learned else before
        self.stride = stride
        self.matrix = (
            layers.dense(before, math.prod(stride) * after, use_bias=False, dtype=layers.dtype)
            if learned
            else None
        )

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """[batch, ..., before] to [batch, ... times stride, features]."""
        batch, *sizes, _ = x.shape
        axes = len(sizes)
        if self.matrix is None:
            x = jnp.expand_dims(x, range(1 + axes, 1 + 2 * axes))
            blocks = jnp.broadcast_to(x, (batch, *sizes, *self.stride, self.features))
        else:
            blocks = self.matrix(x).reshape(batch, *sizes, *self.stride, self.features)
        order = (0, *(1 + axis + part * axes for axis in range(axes) for part in range(2)), 1 + 2 * axes)
        larger = (size * step for size, step in zip(sizes, self.stride, strict=True))
        return run.hold(blocks.transpose(order).reshape(batch, *larger, self.features))


def halvings(sizes: Sequence[int], depth: int, *, anisotropic: bool = False) -> tuple[tuple[int, ...], ...]:
    """By how much each axis shrinks, 2 or 1, at each of the depth - 1 steps down.

    Args:
        sizes: of the image, [height, width] or [depth, height, width].
        depth: how many sizes there are.
        anisotropic: halve an axis only while it is at least half as long as the longest.

    Raises:
        UsageError: for every size that does not divide, with the nearest that do.

    >>> halvings((16, 64, 64), 4, anisotropic=True)
    ((1, 2, 2), (2, 2, 2), (2, 2, 2))
    >>> halvings((100, 64), 4)
    Traceback (most recent call last):
    halofeed.errors.UsageError: depth=4: height 100 must divide by 8; the nearest that do are 96 and 104
    """
    steps, now = [], [float(size) for size in sizes]
    for _ in range(depth - 1):
        longest = max(now)
        step = tuple(2 if not anisotropic or 2 * size >= longest else 1 for size in now)
        steps.append(step)
        now = [size / by for size, by in zip(now, step, strict=True)]
    wrong = []
    for axis, (size, along) in zip(AXES[len(sizes) + 1], _along(sizes, steps), strict=True):
        divisor = math.prod(along)
        if size % divisor:
            below = size // divisor * divisor
            nearest = f"{below} and {below + divisor}" if below else f"{divisor} and {2 * divisor}"
            wrong.append(f"{axis} {size} must divide by {divisor}; the nearest that do are {nearest}")
    if wrong:
        raise UsageError(f"depth={depth}: {'; '.join(wrong)}")
    return tuple(steps)


def _check(image_shape: Sequence[int], *, depth: int, width: int, convolutions: int, upsampling: str) -> None:
    if len(image_shape) not in AXES:
        raise UsageError(
            f"image_shape: expected [height, width, channel] or [depth, height, width, channel], got {image_shape}"
        )
    for name, value, least in (("depth", depth, 2), ("width", width, 1), ("convolutions", convolutions, 1)):
        if value < least:
            raise UsageError(f"{name}: expected {least} or more, got {value}")
    if upsampling not in UPSAMPLING:
        raise UsageError(f"upsampling: expected one of {', '.join(UPSAMPLING)}, got {upsampling!r}")


def _background_first(foreground_prior: float) -> Callable[..., jax.Array]:
    """Draws biases under which all classes but the first share a probability."""

    def init(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        background = math.log((1 - foreground_prior) * (shape[0] - 1) / foreground_prior)
        return jnp.zeros(shape, dtype).at[0].set(background)

    return init


def _along(sizes: Sequence[int], strides: Sequence[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    """Each axis's size and its own steps."""
    return list(zip(sizes, zip(*strides, strict=True), strict=True))


def _through(block: nnx.List[ConvolutionNorm], x: jax.Array, run: Pass) -> jax.Array:
    for layer in block:
        x = layer(x, run)
    return x
