"""How does one tensor divide into tiles, and which core gets which?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halofeed.schemas.errors import PartitionError

CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)

COMPUTATION_SHAPES: dict[int, tuple[int, int, int, int]] = {
    1: (1, 1, 1, 1),
    2: (1, 1, 1, 2),
    4: (1, 2, 1, 2),
    8: (2, 2, 1, 2),
    16: (4, 2, 1, 2),
    32: (4, 4, 1, 2),
    64: (8, 4, 1, 2),
    128: (8, 8, 1, 2),
}


def computation_shape(cores: int) -> tuple[int, int, int, int]:
    """The block of chips and cores that one replica's logical cores occupy.

    Args:
        cores: logical cores per replica.

    Returns:
        Extents over (x, y, z, core), as tf.tpu.experimental.DeviceAssignment.build takes them.

    Raises:
        PartitionError: if `cores` is not a power of two from 1 to 128.

    >>> computation_shape(8)
    (2, 2, 1, 2)
    """
    if cores not in COMPUTATION_SHAPES:
        raise PartitionError(f"cores per replica: expected one of {_listed(CORES_PER_REPLICA)}, got {cores}")
    return COMPUTATION_SHAPES[cores]


def infeed_tiles(size: int, parts: int) -> tuple[int, ...]:
    """The lengths into which the TPU infeed of TensorFlow 1 cut one axis, uneven ones included.

    Uneven: floor(size / parts) + 1 for as many cores as that fills, then the rest, then nothing. Cores may
    sit idle without a warning, which is why a mesh here refuses what does not divide (`Partition.resolve`).

    >>> infeed_tiles(14, 4), infeed_tiles(6, 4)
    ((4, 4, 4, 2), (2, 2, 2, 0))
    >>> infeed_tiles(17, 8)
    (3, 3, 3, 3, 3, 2, 0, 0)
    """
    if size < 1 or parts < 1:
        raise PartitionError(f"expected a size and a number of parts of at least 1, got {size} and {parts}")
    longest = size // parts + (size % parts > 0)
    return tuple(min(longest, max(0, size - longest * core)) for core in range(parts))


def tile_slices(shape: Sequence[int], dims: Sequence[int] | None, core: int) -> tuple[slice, ...]:
    """What one logical core holds of a tensor; tiles go row-major onto cores 0, 1, ...

        dims [2, 2] over height, width:   core 0 | core 1
                                          -------+-------
                                          core 2 | core 3

    Args:
        shape: the tensor of one replica, [axes].
        dims: parts along each axis; None or a product of 1 gives the whole.
        core: the logical core, from 0 to the product of `dims`, exclusive.

    Raises:
        PartitionError: if the ranks differ, an axis does not divide, or there is no such core.

    >>> tile_slices((1, 8, 6, 3), (1, 2, 2, 1), 3)
    (slice(0, 1, None), slice(4, 8, None), slice(3, 6, None), slice(0, 3, None))
    """
    if dims is None or math.prod(dims) == 1:
        return tuple(slice(0, size) for size in shape)
    if len(dims) != len(shape):
        raise PartitionError(f"expected one part count for each axis of {tuple(shape)}, got {tuple(dims)}")
    if not 0 <= core < math.prod(dims):
        raise PartitionError(
            f"expected a core from 0 to {math.prod(dims) - 1} for dims {tuple(dims)}, got {core}"
        )
    slices, remaining = [], core
    for size, parts in zip(reversed(shape), reversed(dims), strict=True):
        if size % parts:
            raise PartitionError(
                f"size {size} does not divide by {parts}; nearest: {_listed(nearest(size, parts))}"
            )
        remaining, tile = divmod(remaining, parts)
        slices.append(slice(tile * (size // parts), (tile + 1) * (size // parts)))
    return tuple(reversed(slices))


def nearest(size: int, divisor: int) -> tuple[int, ...]:
    """The nearest positive sizes below and above `size` that divide by `divisor`.

    >>> nearest(250, 8), nearest(3, 8), nearest(16, 8)
    ((248, 256), (8,), (16,))
    """
    below, above = size // divisor * divisor, -(-size // divisor) * divisor
    return tuple(sorted({value for value in (below, above) if value > 0}))


def splits_that_divide(
    shape: Sequence[int], cores: Sequence[int] = (2, 4, 8, 16), axes: Sequence[int] | None = None
) -> dict[int, list[tuple[int, ...]]]:
    """Every way to split a tensor over some numbers of cores so that each core gets the same shape.

    Args:
        shape: sizes, e.g. (height, width), (depth, height, width) or (batch, height, width, channel).
        cores: the numbers of cores to try.
        axes: which axes may be split; all of them by default. Name the spatial ones if `shape` has others.

    Returns:
        For each number of cores its splits, as long as `shape`, those with the least halo surface first;
        an empty list where none divides.

    >>> splits_that_divide((640, 480), cores=(4,))
    {4: [(2, 2), (4, 1), (1, 4)]}
    >>> splits_that_divide((8, 750, 1000, 3), cores=(4,), axes=(1, 2))
    {4: [(1, 2, 2, 1), (1, 1, 4, 1)]}
    """
    allowed = set(range(len(shape)) if axes is None else axes)

    def surface(split: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        cuts = sum((parts - 1) * math.prod(shape) // size for size, parts in zip(shape, split, strict=True))
        return cuts, tuple(-parts for parts in split)

    return {
        count: sorted(
            (
                split
                for split in _factorisations(count, len(shape))
                if all(
                    parts == 1 or (axis in allowed and size % parts == 0)
                    for axis, (size, parts) in enumerate(zip(shape, split, strict=True))
                )
            ),
            key=surface,
        )
        for count in cores
    }


def _factorisations(product: int, length: int) -> Iterator[tuple[int, ...]]:
    if length == 0:
        if product == 1:
            yield ()
        return
    for first in range(1, product + 1):
        if product % first == 0:
            for rest in _factorisations(product // first, length - 1):
                yield (first, *rest)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
