"""U-Net for segmentation of volumes and pictures.

    image                                                                        logits
    blocks, width      -------------------- concatenate -------------------->   blocks, width
       | 2x2x2 max pool                                                             | each voxel becomes 2x2x2
       blocks, 2 width     ---------------- concatenate ---------------->    blocks, 2 width   -> coarse logits
          | ...                                                                  | ...
          blocks, 2**(depth - 1) width, at most max_width  -----------------------

A block is convolutions of 3 along each axis, or of `kernels`, each with its norm and relu. Sources: Ronneberger et al.,
"U-Net", 2015 (arXiv 1505.04597); Cicek et al., "3D U-Net", 2016 (arXiv 1606.06650); Isensee et al., "nnU-Net", 2021.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from halofeed.system.errors import UsageError
from halofeed.trainer.models.chunks import fold, map_images, unfold
from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, max_pool, save_for_backward
from halofeed.trainer.models.model_options import takes_options

SPATIAL_AXES = {3: ("height", "width"), 4: ("depth", "height", "width")}
"""Names of the spatial axes by the rank of an image without batch."""
UPSAMPLING = ("learned", "transposed", "repeat")
GROUP_EPSILON = 1e-5
"""Epsilon of instance and group norm, as in PyTorch and nnU-Net; batch norm uses that of its `Layers`."""


@dataclass(frozen=True, kw_only=True)
class UNetBlocks:
    """Number and size of a U-Net's blocks.

    Args:
        depth: number of sizes in the encoder; the image is halved depth - 1 times.
        width: features at the full size; they double with each halving.
        max_width: maximum number of features.
        convolutions: number of convolutions per block.
        double_in_block: the last convolution of each encoder block doubles the features, and the decoder's blocks have
            the doubled number: width, 2 width; 2 width, 4 width; ... as in Cicek et al. and in tensorflow/tpu's unet3d.
        strides: factor, 1 or 2, by which each of the depth - 1 steps shrinks each axis, such as
            [[1, 2, 2], [2, 2, 2]] for thick slices; [] halves as `UNetDetails.anisotropic` states.
        kernels: size, 1 or 3, of the convolutions along each axis at each of the depth sizes, finest first, as
            [[1, 3, 3], [3, 3, 3]]; [] is 3 everywhere.

    Raises:
        UsageError: a number is too small, or there are strides or kernels for another depth.

    >>> UNetBlocks(depth=5, width=32, max_width=320).features
    [32, 64, 128, 256, 320]
    """

    depth: int = 5
    width: int = 32
    max_width: int = 320
    convolutions: int = 2
    double_in_block: bool = False
    strides: Sequence[Sequence[int]] = ()
    kernels: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        for name, least in (("depth", 2), ("width", 1), ("convolutions", 1)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name}: expected {least} or more, got {value}")
        for name, count, known in (("strides", self.depth - 1, (1, 2)), ("kernels", self.depth, (1, 3))):
            rows = getattr(self, name)
            if rows and (len(rows) != count or any(size not in known for row in rows for size in row)):
                raise UsageError(
                    f"{name}: expected {count} lists of {known[0]} and {known[1]} for depth={self.depth}, one number "
                    f"an axis, got {[list(row) for row in rows]}"
                )

    @property
    def growth(self) -> int:
        """Factor by which the last convolution of an encoder block multiplies the features."""
        return 2 if self.double_in_block else 1

    @property
    def features(self) -> list[int]:
        """Features after each encoder block, finest first."""
        # nnU-Net caps them too, at 320 for volumes, to limit the size of the model (Isensee et al., 2021).
        return [min(self.growth * self.width * 2**level, self.max_width) for level in range(self.depth)]


FOREGROUND_PRIOR = 0.05
"""Initial probability of all classes except the background, where neither the recipe nor the data state another."""


@dataclass(frozen=True, kw_only=True)
class UNetDetails:
    """Layers, outputs and memory of a U-Net.

    Args:
        norm: "instance", "batch" or "group".
        upsampling: "learned" maps each voxel to 2x2x2 by a matrix (a transposed convolution of kernel and stride 2) and
            takes the features of the finer size; "transposed" keeps the features and adds a bias; "repeat" copies the
            voxel.
        deep_supervision: add logits at the coarser sizes of the decoder, except the coarsest.
        anisotropic: halve an axis only while it is at least half as long as the longest, for thick slices. False
            halves every axis every time.
        pad: pad an image with zeros at its far ends to the next size that divides by its halvings, and cut the logits
            to the image. False refuses such images. The zeros are the data's mean after the normalization.
        images_at_once: number of images of a replica whose two largest sizes are computed at a time (`map_images`),
            which needs less memory and computes these sizes twice. 0 computes all at once.
        foreground_prior: initial probability of all classes except the background together. A value far above their
            share makes the first steps suppress a small class for good. With `independent_outputs` it is the initial
            probability of each output. 0 takes `class_shares`, or 0.05 without them.
        class_shares: share of each class in the voxels to train on, background first; each class begins with its share,
            and with no less than an equal part of 0.05, because crops have more of a small class than whole images.
            The trainer sets it where the data set has counts: in pictures of streets the first class is no background.
        independent_outputs: outputs do not exclude each other, and none is the background. The trainer sets it where
            the task has regions.

    Raises:
        UsageError: `upsampling` is unknown, or the prior is no share.
    """

    norm: str = "instance"
    upsampling: str = "learned"
    deep_supervision: bool = False
    anisotropic: bool = False
    pad: bool = False
    images_at_once: int = 0
    foreground_prior: float = 0.0
    class_shares: Sequence[float] = ()
    independent_outputs: bool = False

    def __post_init__(self) -> None:
        if self.upsampling not in UPSAMPLING:
            raise UsageError(f"upsampling: expected one of {', '.join(UPSAMPLING)}, got {self.upsampling!r}")
        if not 0 <= self.foreground_prior < 1:
            raise UsageError(
                f"foreground_prior: expected a share between 0 and 1, got {self.foreground_prior}"
            )


class UNet(nnx.Module):
    """U-Net with logits per class, background first, at every voxel of a volume or pixel of a picture.

    Only activations are split over cores. The windows of pools and upsampling equal their strides, so these layers need
    no communication. A level that does not divide by its cores is replicated on each of them.

    Args:
        layers: factory of the layers; its `norm_kind` is replaced by `norm`.
        classes: number of classes, including the background.
        image_shape: shape of one image, [height, width, channel] or [depth, height, width, channel].
        blocks, details: the fields of `UNetBlocks` and `UNetDetails`, as keywords: depth=5, width=32, ...

    Raises:
        UsageError: a size does not divide by its halvings (with the nearest that do), or an option is unknown.
    """

    @takes_options(blocks=UNetBlocks, details=UNetDetails)
    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        blocks: UNetBlocks,
        details: UNetDetails,
    ) -> None:
        _check_rank(image_shape)
        sizes = image_shape[:-1]
        strides, padding = strides_of(sizes, blocks, details)
        sizes = [size + more for size, more in zip(sizes, padding, strict=True)]
        kernels = blocks.kernels or [(3,) * len(sizes)] * blocks.depth
        _check_axes(len(sizes), strides, kernels)
        if details.norm == "instance":
            _check_deviation(sizes, strides)
        layers = dataclasses.replace(layers, norm_kind=details.norm)
        # Batch norm has the epsilon of the config, which differs between reference implementations.
        epsilon = None if details.norm == "batch" else GROUP_EPSILON
        units = [partial(ConvolutionNorm, layers, kernel=tuple(one), epsilon=epsilon) for one in kernels]
        bias = _first_biases(details, classes)
        head = partial(layers.dense, after=classes, bias_init=bias)
        features, learned = blocks.features, details.upsampling == "learned"

        self.strides, self.pad = strides, details.pad
        self.images_at_once = details.images_at_once
        self.down = nnx.List(
            _block(unit, before, after, blocks.convolutions, blocks.growth)
            for unit, before, after in zip(units, (image_shape[-1], *features), features, strict=False)
        )
        enlarge = [
            _Upsampling(layers, below, here if learned else below, stride, details.upsampling)
            for here, below, stride in zip(features, features[1:], strides, strict=False)
        ]
        self.enlarge = nnx.List(enlarge)
        self.up = nnx.List(
            _block(unit, here + enlarged.features, here, blocks.convolutions)
            for unit, here, enlarged in zip(units, features, enlarge, strict=False)
        )
        self.head = head(features[0])
        # The coarsest size is the bottom of the U, where the decoder begins.
        coarse = features[1:-1] if details.deep_supervision else []
        self.coarse_heads = nnx.List(head(here) for here in coarse)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> dict[str, jax.Array | list[jax.Array]]:  # noqa: B008
        """Return logits of normalized images [batch, ..., channel], in the parameters' precision.

        Returns:
            `logits` [batch, (depth,) height, width, class], and `coarse`, a list of logits at the coarser sizes,
            finest first.
        """
        # Most of the memory is in the two finest sizes, so only these are computed a few images at a time.
        # A model of crops predicts complete images too, so that their own size decides.
        sizes = image.shape[1:-1] if self.pad else ()
        padding = tuple(-size % by for size, by in zip(sizes, _divisors(self.strides), strict=False))
        if run.training and any(padding) and self.coarse_heads:
            raise UsageError(
                "deep_supervision: coarser labels of an image that is padded have no fixed grid; train on crops that "
                "divide, by augment, or leave it out"
            )
        at_once = [*[self.images_at_once] * 2, *[0] * len(self.strides)]
        x: _Activation = run.hold(_padded(image, padding))
        skips = []
        for level, block in enumerate(self.down):
            if level:
                x = map_images(
                    lambda x, stride=self.strides[level - 1]: pooled(_finished(x, run), stride, run),
                    x,
                    images=at_once[level - 1],
                    run=run,
                )
            for layer in block:
                x = _convolved(layer, (x,), at_once[level], run)
            skips.append(x)
        skips.pop()
        coarse: list[jax.Array] = []
        for level in reversed(range(len(skips))):
            first, *others = self.up[level]
            x = _convolved(first, (skips[level], x), at_once[level], run, self.enlarge[level])
            for layer in others:
                x = _convolved(layer, (x,), at_once[level], run)
            if 0 < level <= len(self.coarse_heads):
                coarse.insert(0, self.coarse_heads[level - 1](_finished(x, run)))
        logits = map_images(lambda x: self.head(_finished(x, run)), x, images=at_once[0], run=run)
        if any(padding):
            logits = logits[(slice(None), *(slice(size) for size in image.shape[1:-1]))]
        return {"logits": logits, "coarse": coarse}


def _padded(image: jax.Array, padding: Sequence[int]) -> jax.Array:
    """Return images [batch, ..., channel] with zeros after the last value of each axis."""
    return jnp.pad(image, ((0, 0), *((0, more) for more in padding), (0, 0))) if any(padding) else image


def strides_of(
    sizes: Sequence[int], blocks: UNetBlocks, details: UNetDetails
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the stride of each axis at each halving, and the zeros that each axis needs to divide by them.

    Raises:
        UsageError: a size does not divide, and `details.pad` is False.

    >>> strides_of((6, 90), UNetBlocks(depth=3, strides=[[1, 2], [2, 2]]), UNetDetails(pad=True))
    (((1, 2), (2, 2)), (0, 2))
    """
    if blocks.strides:
        strides = tuple(tuple(row) for row in blocks.strides)
        _check_axes(len(sizes), strides)
    else:
        # Sizes that divide by every halving, so that only the strides are computed here.
        fitting = sizes if not details.pad else [-(-size >> blocks.depth) << blocks.depth for size in sizes]
        strides = halvings(fitting, blocks.depth, anisotropic=details.anisotropic)
    divisors = _divisors(strides)
    padding = tuple(-size % divisor for size, divisor in zip(sizes, divisors, strict=True))
    if any(padding) and not details.pad:
        _check_divides(sizes, strides)
    return strides, padding


def _block(
    unit: Callable[..., ConvolutionNorm], before: int, after: int, convolutions: int, growth: int = 1
) -> nnx.List[ConvolutionNorm]:
    """Return convolutions from `before` to `after` features; the last one multiplies them by `growth`."""
    widths = [before, *[after // growth] * (convolutions - 1), after]
    return nnx.List(unit(before=first, after=second) for first, second in pairwise(widths))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Unfinished:
    """Output of a convolution that `map_images` computed, without its norm and activation function.

    Args:
        folded: output of the convolution, folded.
        mean: mean that normalizes each image, [batch, channel].
        variance: variance that normalizes each image, [batch, channel].
        layer: layer of the convolution, with the norm and the activation function.
    """

    folded: jax.Array
    mean: jax.Array
    variance: jax.Array
    layer: ConvolutionNorm = field(metadata={"static": True})


_Activation = jax.Array | _Unfinished


def _finished(x: _Activation, run: Pass) -> jax.Array:
    if isinstance(x, jax.Array):
        return x
    return x.layer.finish_images(unfold(x.folded, x.mean.shape[-1], run), x.mean, x.variance)


def _convolved(
    layer: ConvolutionNorm,
    inputs: tuple[_Activation, ...],
    images: int,
    run: Pass,
    enlarge: _Upsampling | None = None,
) -> _Activation:
    """Return a layer of the input, or of a skip connection and the enlarged input of the coarser size."""

    def joined(*inputs: _Activation) -> jax.Array:
        *skip, x = (_finished(x, run) for x in inputs)
        return x if enlarge is None else jnp.concatenate([*skip, enlarge(x, run)], -1)

    def convolve(*inputs: _Activation) -> tuple[jax.Array, ...]:
        x = layer.convolve(joined(*inputs), run)
        return fold(x, run), *layer.norm.image_moments(x)

    if not images:
        return layer(joined(*inputs), run)
    folded, *moments = map_images(convolve, *inputs, images=images, run=run)
    moments = layer.norm.combine(*moments, **run.norm_options(folded.shape))
    return _Unfinished(save_for_backward(folded), *moments, layer)


def pooled(x: jax.Array, stride: tuple[int, ...], run: Pass) -> jax.Array:
    """Max-pool windows of `stride`, constrained to the split.

    If x is split and the result is not, XLA would gather x before pooling. So each core first pools its own part: all
    of it, or along the axes that are not split. The gradients equal those of one pool, which passes them to the first
    of equal values in the order of the axes.
    """
    sizes = tuple(size // step for size, step in zip(x.shape[1:-1], stride, strict=True))
    pooled_shape = (x.shape[0], *sizes, x.shape[-1])
    if run.is_split(x.shape) and not run.is_split(pooled_shape):
        parts = run.parts
        if all(size % count == 0 for size, count in zip(sizes, parts, strict=True)):
            return run.hold(run.hold_split(max_pool(x, stride, stride)))
        last = max(axis for axis, count in enumerate(parts) if count > 1)
        # The gradients of equal values are right only if the axes that are pooled last come first in the order.
        if all(count > 1 for count in parts[: last + 1]):
            unsplit = (*(1,) * (last + 1), *stride[last + 1 :])
            x = run.hold_split(max_pool(x, unsplit, unsplit))
            stride = (*stride[: last + 1], *(1,) * (len(stride) - last - 1))
            x = run.hold(x, replicate=True)
    return run.hold(max_pool(x, stride, stride))


class _Upsampling(nnx.Module):
    """Upsampling of each voxel to a block of `stride` voxels by a matrix product, without communication."""

    def __init__(
        self, layers: Layers, before: int, after: int, stride: tuple[int, ...], upsampling: str
    ) -> None:
        self.features = after
        self.stride = stride
        self.matrix = (
            None
            if upsampling == "repeat"
            else layers.dense(before, math.prod(stride) * after, use_bias=False, dtype=layers.dtype)
        )
        self.bias = nnx.Param(jnp.zeros(after, layers.param_dtype)) if upsampling == "transposed" else None

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """Map [batch, ..., before] to [batch, ... times stride, features]."""
        batch, *sizes, _ = x.shape
        axes = len(sizes)
        if self.matrix is None:
            x = jnp.expand_dims(x, range(1 + axes, 1 + 2 * axes))
            blocks = jnp.broadcast_to(x, (batch, *sizes, *self.stride, self.features))
        else:
            blocks = self.matrix(x).reshape(batch, *sizes, *self.stride, self.features)
        if self.bias is not None:
            blocks = blocks + self.bias[...].astype(blocks.dtype)
        order = (0, *(1 + axis + part * axes for axis in range(axes) for part in range(2)), 1 + 2 * axes)
        larger = (size * step for size, step in zip(sizes, self.stride, strict=True))
        return run.hold(blocks.transpose(order).reshape(batch, *larger, self.features))


def halvings(sizes: Sequence[int], depth: int, *, anisotropic: bool = False) -> tuple[tuple[int, ...], ...]:
    """Return the stride of each axis, 2 or 1, at each of the depth - 1 halvings.

    Args:
        sizes: sizes of the image, [height, width] or [depth, height, width].
        depth: number of sizes in the encoder.
        anisotropic: halve an axis only while it is at least half as long as the longest.

    Raises:
        UsageError: sizes do not divide; the message has the nearest that do.

    >>> halvings((16, 64, 64), 4, anisotropic=True)
    ((1, 2, 2), (2, 2, 2), (2, 2, 2))
    >>> halvings((100, 64), 4)
    Traceback (most recent call last):
    halofeed.system.errors.UsageError: depth=4: height 100 must divide by 8; the nearest that do are 96 and 104
    """
    strides, level_sizes = [], [float(size) for size in sizes]
    for _ in range(depth - 1):
        longest = max(level_sizes)
        stride = tuple(2 if not anisotropic or 2 * size >= longest else 1 for size in level_sizes)
        strides.append(stride)
        level_sizes = [size / step for size, step in zip(level_sizes, stride, strict=True)]
    _check_divides(sizes, strides)
    return tuple(strides)


def _check_divides(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> None:
    divided = zip(SPATIAL_AXES[len(sizes) + 1], sizes, _divisors(strides), strict=True)
    wrong = [_not_divisible(axis, size, divisor) for axis, size, divisor in divided if size % divisor]
    if wrong:
        raise UsageError(f"depth={len(strides) + 1}: {'; '.join(wrong)}")


def _check_axes(axes: int, *rows: Sequence[Sequence[int]]) -> None:
    """Raise UsageError for strides or kernels of another number of axes than the image has."""
    if wrong := [list(row) for part in rows for row in part if len(row) != axes]:
        raise UsageError(
            f"strides, kernels: expected {axes} numbers for each size of the image, got {wrong[0]}"
        )


def _not_divisible(axis: str, size: int, divisor: int) -> str:
    below = size // divisor * divisor
    nearest = f"{below} and {below + divisor}" if below else f"{divisor} and {2 * divisor}"
    return f"{axis} {size} must divide by {divisor}; the nearest that do are {nearest}"


def _check_rank(image_shape: Sequence[int]) -> None:
    if len(image_shape) not in SPATIAL_AXES:
        raise UsageError(
            f"image_shape: expected [height, width, channel] or [depth, height, width, channel], got {image_shape}"
        )


def _check_deviation(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> None:
    """Raise UsageError if the coarsest size is a single value, which instance norm would make 0."""
    if tuple(sizes) == _divisors(strides):
        depth = len(strides) + 1
        raise UsageError(
            f"norm='instance': with depth={depth}, {'x'.join(map(str, sizes))} ends as a single value, which has "
            f"no deviation; take depth={depth - 1} or another norm"
        )


def _first_biases(details: UNetDetails, classes: int) -> Callable[..., jax.Array]:
    """Return an initializer of the last layer's biases, which give each output its first probability."""
    prior = details.foreground_prior or FOREGROUND_PRIOR
    if details.independent_outputs:
        values = [math.log(prior / (1 - prior))] * classes
    else:
        least = prior / max(classes - 1, 1)
        if len(details.class_shares) not in (0, classes):
            raise UsageError(
                f"class_shares: expected {classes}, one for each class, got {len(details.class_shares)}"
            )
        if details.class_shares and not details.foreground_prior:
            values = [math.log(max(share, least)) for share in details.class_shares]
        else:
            values = [math.log((1 - prior) / least), *(0.0 for _ in range(classes - 1))]

    def init(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jnp.array(values, dtype).reshape(shape)

    return init


def _divisors(strides: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the factor by which each axis shrinks from the finest to the coarsest size."""
    return tuple(map(math.prod, zip(*strides, strict=True)))
