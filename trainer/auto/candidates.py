"""Configurations to try for a data set, the preferred first, with the work and memory of a step of each.

A U-Net shrinks in this order: its patch down to the context that the largest structure needs, then its width, then the
patch further. nnU-Net shrinks the patch alone, because it has a day of a GPU. This file does not import JAX.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from halofeed.schemas.partition import splits_that_divide
from halofeed.trainer.auto.fingerprint import Fingerprint
from halofeed.trainer.auto.unet_plan import Pooling, patches

WIDTHS = (32, 16, 8)
"""Features of the finest size: nnU-Net's, and half and a quarter of it for machines on which that takes too long."""
MAX_WIDTH = {2: 512, 3: 320}
"""nnU-Net's caps on features by the number of axes."""
_CONTEXT = 1.5
"""Sides of the least patch in diameters of the largest structure."""
_LARGE_PATCH = 1 << 17
_SHARE_OF_DATA = 0.05
"""Most voxels of a batch as a share of the data set's, as in nnU-Net."""
_WORK_PER_VALUE = 4000
"""Operations in the time that a value of the activations costs, forward and backward. A core of an AMD EPYC: 6,500, so
that a network of twice the width takes 2.2 times as long, not four times. The published peaks of a TPU v5e and of an
H100 give about 3,000, for 12 bytes a value."""
_BATCHES = (64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices that a run uses.

    Args:
        platform: "cpu", "gpu" or "tpu".
        devices: number of devices, which JAX calls cores here.
        splits: numbers of cores over which an image may be split.
        limit_bytes: memory of a device that programs may use; None if only the compiler knows.
        is_present: whether steps can be timed on it.
    """

    platform: str
    devices: int
    splits: tuple[int, ...] = (1,)
    limit_bytes: int | None = None
    is_present: bool = True


class PlanCandidate(Protocol):
    """One configuration to try."""

    @property
    def name(self) -> str:
        """Words for the configuration in progress lines."""

    @property
    def work(self) -> float:
        """Estimated work of a step on each device; after a first verdict only ratios count."""

    @property
    def bytes(self) -> float:
        """Estimated memory of a step on each device."""

    def changes(self) -> dict[str, Any]:
        """Return the fields of a config that differ from the recipe's."""


@dataclass(frozen=True, kw_only=True)
class UNetCandidate:
    """U-Net of one patch, width, batch and split.

    Args:
        fingerprint: data set.
        patch: spatial sides of a training image.
        pooling: strides and kernels.
        width: features at the finest size.
        batch: images per step over all devices.
        cores: cores that share an image.
        partition: parts along each axis, batch first; () without a split.
        devices: number of devices.
    """

    fingerprint: Fingerprint = field(repr=False)
    patch: tuple[int, ...]
    pooling: Pooling
    width: int
    batch: int
    cores: int = 1
    partition: tuple[int, ...] = ()
    devices: int = 1

    @property
    def name(self) -> str:
        """Words for the configuration in progress lines.

        The patch, the batch, the width and the split.
        """
        split = f", {self.cores} cores an image" if self.cores > 1 else ""
        return f"{'x'.join(map(str, self.patch))}, batch {self.batch}, width {self.width}{split}"

    @property
    def features(self) -> list[int]:
        """Features of each size, finest first."""
        most = MAX_WIDTH[len(self.patch)]
        return [min(self.width << level, most) for level in range(self.pooling.depth)]

    @property
    def work(self) -> float:
        """Work of a step on each device: three times the operations of the forward pass, and what values cost."""
        operations, values, _ = self._forward()
        return (3 * operations + _WORK_PER_VALUE * values) * self.batch / self.devices

    @property
    def bytes(self) -> float:
        """Memory of a step on each device: activations in two bytes each, parameters with their optimizer."""
        _, values, weights = self._forward()
        # Weights, two moments and gradients in float32.
        return 2 * values * self.batch / self.devices + 16 * weights

    def _forward(self) -> tuple[float, float, float]:
        """Return operations, activations and weights of one image's forward pass."""
        operations = values = weights = 0.0
        sizes, features = [float(side) for side in self.patch], self.features
        before = self.fingerprint.stored_shape[-1]
        for level, (here, kernel) in enumerate(zip(features, self.pooling.kernels, strict=True)):
            if level:
                sizes = [
                    size / step for size, step in zip(sizes, self.pooling.strides[level - 1], strict=True)
                ]
            is_bottom = level + 1 == self.pooling.depth
            inputs = [before, here] if is_bottom else [before, here, 2 * here, here]
            own = math.prod(kernel) * here * sum(inputs)
            # The matrix that enlarges the coarser size has one weight for each value of a window.
            below = 0 if is_bottom else features[level + 1] * here
            weights += own + below * (1 if is_bottom else math.prod(self.pooling.strides[level]))
            operations += 2 * math.prod(sizes) * (own + below)
            # Each convolution has its input and output; the normalized values are computed again.
            values += math.prod(sizes) * (sum(inputs) + here * len(inputs))
            before = here
        return operations, values, weights

    def changes(self) -> dict[str, Any]:
        """Return the fields of a config that differ from the recipe's."""
        return {
            "model": "unet",
            "batch_size": self.batch,
            "cores_per_replica": self.cores,
            "partition": f"image={','.join(map(str, self.partition))}" if self.cores > 1 else "",
            "evaluate_batch_size": 1 if self.cores == self.devices else self.devices // self.cores,
            "augment": self._crop(),
            "model_options": self._model_options(),
        }

    def _crop(self) -> tuple[Mapping[str, Any], ...]:
        if self.patch == self.fingerprint.sides:
            return ()
        # A small class is shown as often as a large one, as nnU-Net samples its foreground.
        by_class = {"by_class": True} if len(self.fingerprint.structures) > 1 else {}
        return ({"name": "RandomCrop", "sides": list(self.patch), "foreground": 1.0, **by_class},)

    def _model_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "depth": self.pooling.depth,
            "width": self.width,
            "max_width": MAX_WIDTH[len(self.patch)],
            # Complete records are predicted, whose own moments would differ from those of the patches.
            "norm": "batch",
            "upsampling": "learned",
        }
        if not self.pooling.is_plain:
            options["strides"] = [list(row) for row in self.pooling.strides]
            options["kernels"] = [list(row) for row in self.pooling.kernels]
        if any(size % by for size, by in zip(self.fingerprint.sides, self.pooling.divisors, strict=True)):
            options["pad"] = True
        return options


@dataclass(frozen=True, kw_only=True)
class RecipeCandidate:
    """Recipe of `choose_config` with one batch size.

    Args:
        batch: images per step.
        evaluate_batch: images per evaluation step; 0 as the batch.
        devices: number of devices.
    """

    batch: int
    evaluate_batch: int = 0
    devices: int = 1

    @property
    def name(self) -> str:
        """Words for the configuration in progress lines."""
        return f"batch {self.batch}"

    @property
    def work(self) -> float:
        """Work of a step on each device in units of an image: only ratios count."""
        return self.batch / self.devices

    @property
    def bytes(self) -> float:
        """Memory of a step on each device in units of an image: only ratios count."""
        return self.batch / self.devices

    def changes(self) -> dict[str, Any]:
        """Return the fields of a config that differ from the recipe's."""
        return {"batch_size": self.batch, "evaluate_batch_size": self.evaluate_batch}


def least_patch(fingerprint: Fingerprint) -> tuple[int, ...]:
    """Return the sides that show the largest structure with its surroundings, at most the median image's.

    The width falls before the patch falls below that. On hippocampi of 36 x 50 x 35 voxels, `unet3d_small` had a mean
    Dice of 0.837 with whole images (250 steps), and 0.796 with crops of half the sides and a size less (300 steps); 16
    features with such crops and the settings of this planner had 0.718. One seed each, so it is a direction, no proof.
    """
    return tuple(
        min(round(_CONTEXT * side), median)
        for side, median in zip(fingerprint.structure_sides(), fingerprint.median_shape, strict=True)
    )


def unet_candidates(fingerprint: Fingerprint, machine: Machine) -> Iterator[UNetCandidate]:
    """Yield U-Nets for a data set and a machine, the preferred first.

    Args:
        fingerprint: data set with records of pictures, volumes or clips.
        machine: devices of the run.
    """
    found = list(patches(fingerprint.spacing_mm, fingerprint.median_shape, fingerprint.sides))
    least = least_patch(fingerprint)
    large = [
        one for one in found if all(side >= low for side, low in zip(one[0], least, strict=True))
    ] or found[:1]
    small = [one for one in found if one not in large]
    for width, those in ((WIDTHS[0], large), (WIDTHS[1], large), (WIDTHS[2], large), (WIDTHS[2], small)):
        for patch, pooling in those:
            for batch, cores, parts in _batches(fingerprint, patch, machine):
                yield UNetCandidate(
                    fingerprint=fingerprint,
                    patch=patch,
                    pooling=pooling,
                    width=width,
                    batch=batch,
                    cores=cores,
                    partition=parts,
                    devices=machine.devices,
                )


def _batches(
    fingerprint: Fingerprint, patch: tuple[int, ...], machine: Machine
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (batch, cores per image, parts) for a patch: large batches first, and the fewest cores first."""
    voxels = math.prod(patch)
    least = 2 if len(patch) == 3 and voxels >= _LARGE_PATCH else 4
    is_whole = all(
        side >= median or side + 1 > record - record % 2
        for side, median, record in zip(patch, fingerprint.median_shape, fingerprint.sides, strict=True)
    )
    most = max(
        least, round(_SHARE_OF_DATA * fingerprint.records * math.prod(fingerprint.median_shape) / voxels)
    )
    wanted = [batch for batch in _BATCHES if least <= batch <= most] if is_whole else [least]
    yielded = set()
    for batch in wanted:
        for cores in machine.splits:
            replicas = machine.devices // cores
            fitting = -(-batch // replicas) * replicas
            # A batch must not repeat records; with few records their images are split instead.
            if fitting > fingerprint.records:
                fitting = fingerprint.records // replicas * replicas
            parts = _parts(fingerprint.sides, patch, cores)
            if fitting and parts is not None and (fitting, cores) not in yielded:
                yielded.add((fitting, cores))
                yield fitting, cores, parts


def _parts(record: Sequence[int], patch: Sequence[int], cores: int) -> tuple[int, ...] | None:
    """Return the parts of an image over cores that divide the record and the patch, rows or slices first; None if none.

    >>> _parts((48, 64, 48), (40, 56, 40), 4), _parts((48, 64, 48), (40, 56, 40), 8), _parts((15, 9), (15, 9), 2)
    ((1, 4, 1, 1, 1), (1, 8, 1, 1, 1), None)
    """
    if cores == 1:
        return ()
    axes = tuple(range(1, len(patch) + 1))
    both = [set(splits_that_divide((1, *sides, 1), (cores,), axes)[cores]) for sides in (record, patch)]
    common = both[0] & both[1]
    # Bands along one axis have the fewest neighbors; along the first, the fewest copies.
    return max(common, key=lambda parts: (max(parts), parts), default=None)
