"""Patches of a folder that nnU-Net has preprocessed, as its trainer takes them from its own loader.

The places of patches are drawn as by `nnUNetDataLoader.get_bbox` of nnunetv2/training/dataloading/data_loader.py: the
last rows of a batch contain a voxel of a class, each class of the case equally likely.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import View
from halofeed.loader.batch import AHEAD, BufferPool
from halofeed.loader.forms.nnunet_cases import PreprocessedCase, PreprocessedFolder
from halofeed.loader.prefetcher import Prefetcher
from halofeed.system.arguments import whole_number
from halofeed.system.errors import UsageError
from halofeed.system.memory import process_memory

_OUTSIDE = -1
"""nnU-Net's label around a scan, and of what its preprocessing found empty; training takes it for background."""


@dataclass(frozen=True, kw_only=True)
class PatchOptions:
    """Size and place of patches, and what is done to them.

    Args:
        patch_size: sizes of three axes, or of two for a 2-D configuration, whose slices are along the first axis.
        final_patch_size: size that is left after a transform that crops, such as nnU-Net's rotation; by default
            `patch_size`. Patches reach as far beyond the border as the sizes differ.
        foreground: share of each batch that contains a voxel of a class (`oversample_foreground_percent`).
        mirror_axes: axes of the patch that are mirrored with a probability of one half each.
        deep_supervision_scales: scale of each target along the axes, such as [1, 1, 1] and [0.5, 0.5, 0.5], as
            nnU-Net's trainer has them; None is one target.
        has_ignore_label: whether places without an annotation are avoided.
    """

    patch_size: Sequence[int]
    final_patch_size: Sequence[int] | None = None
    foreground: float = 0.33
    mirror_axes: Sequence[int] = ()
    deep_supervision_scales: Sequence[Sequence[float]] | None = None
    has_ignore_label: bool = False

    def __post_init__(self) -> None:
        if len(self.patch_size) not in (2, 3) or min(self.patch_size) < 1:
            raise UsageError(f"patch_size: expected two or three sizes, got {self.patch_size!r}")
        if not 0 <= self.foreground <= 1:
            raise UsageError(f"foreground: expected a share from 0 to 1, got {self.foreground!r}")
        if bad := [axis for axis in self.mirror_axes if not 0 <= axis < len(self.patch_size)]:
            raise UsageError(f"mirror_axes: expected axes of the patch, got {bad[0]}")

    @property
    def sides(self) -> tuple[int, ...]:
        """Return the size along three axes."""
        return (1,) * (3 - len(self.patch_size)) + tuple(int(side) for side in self.patch_size)

    @property
    def beyond(self) -> tuple[int, ...]:
        """Return by how many voxels patches reach beyond the borders, both sides together."""
        final = self.patch_size if self.final_patch_size is None else self.final_patch_size
        left = (1,) * (3 - len(final)) + tuple(int(side) for side in final)
        return tuple(max(0, side - small) for side, small in zip(self.sides, left, strict=True))


def nnunet(
    folder: str | os.PathLike[str],
    options: PatchOptions,
    *,
    batch_size: int,
    identifiers: Sequence[str] | None = None,
    transforms: Callable[..., Any] | None = None,
    seed: int = 0,
    start_step: int = 0,
    memory_bytes: int | None = None,
) -> Patches:
    """Return the batches of patches that `nnUNetTrainer.train_step` takes, without end.

    A batch has `data` float32 [row, channel, axis 0, axis 1, axis 2]; `target` int16 [row, 1, axis 0, axis 1, axis 2],
    or a list of them for `deep_supervision_scales`; and `keys`, the cases. It is a pure function of the folder, the
    seed and its step.

    Args:
        folder: such as nnUNet_preprocessed/Dataset009_Spleen/nnUNetPlans_3d_fullres.
        options: size and place of patches.
        batch_size: patches of a batch.
        identifiers: the cases, such as those of a fold; None is all.
        transforms: nnU-Net's own transforms, called with `image` and `segmentation` of each patch. They draw from the
            global generators of NumPy and PyTorch, so that batches are no pure function of their step then.
        seed: 0 to 2**64 - 1.
        start_step: the first batch.
        memory_bytes: bound for decompressed cases; by default half of this machine's memory.

    Raises:
        UsageError: the folder or an argument is invalid.
        CorruptFileError: a case cannot be read.

    >>> class Trainer(nnUNetTrainer):  # doctest: +SKIP
    ...     def get_dataloaders(self):
    ...         options = PatchOptions(patch_size=self.configuration_manager.patch_size, mirror_axes=(0, 1, 2))
    ...         folder, (train, test) = self.preprocessed_dataset_folder, self.do_split()
    ...         return [
    ...             halofeed.torch.nnunet(folder, options, batch_size=self.batch_size, identifiers=cases)
    ...             for cases in (train, test)
    ...         ]
    """
    memory = process_memory() // 2 if memory_bytes is None else whole_number("memory_bytes", memory_bytes, 0)
    cases = PreprocessedFolder(Path(folder), identifiers, memory)
    size = whole_number("batch_size", batch_size, 1)
    patches = Patches(cases, options, size, whole_number("seed", seed, 0))
    patches.transforms, patches.start_step = transforms, whole_number("start_step", start_step, 0)
    return patches


class Patches(Iterator[dict[str, Any]]):
    """Batches of patches without end, made ahead in threads of this process."""

    transforms: Callable[..., Any] | None = None
    start_step = 0

    def __init__(self, cases: PreprocessedFolder, options: PatchOptions, batch_size: int, seed: int) -> None:
        self._cases, self._options, self.batch_size, self._seed = cases, options, batch_size, seed
        self._pool = BufferPool()
        self._made: Prefetcher[dict[str, Any]] | None = None

    def __next__(self) -> dict[str, Any]:
        if self._made is None:
            self._made = Prefetcher(self.batch, itertools.count(self.start_step), AHEAD)
        return next(self._made)

    def batch(self, step: int) -> dict[str, Any]:
        """Return the batch of a step.

        Raises:
            CorruptFileError: a case cannot be read.
        """
        generator = np.random.default_rng([self._seed, step])
        names = generator.choice(self._cases.identifiers, self.batch_size).tolist()
        cases = [self._cases[name] for name in names]
        # nnU-Net's rule: the last rows of a batch are those with foreground.
        plain = round(self.batch_size * (1 - self._options.foreground))
        sides = self._options.sides
        data = self._pool.empty((len(cases), cases[0].data.shape[0], *sides), np.float32)
        label = self._pool.empty((len(cases), 1, *sides), np.int16)
        for row, case in enumerate(cases):
            start = patch_start(case, self._options, generator, with_foreground=row >= plain)
            mirrored = self._mirrored(generator)
            copy_patch(case.data, start, mirrored, data[row], 0)
            copy_patch(case.label[:1], start, mirrored, label[row], _OUTSIDE)
        return {**self._tensors(data, label), "keys": names}

    def _mirrored(self, generator: np.random.Generator) -> tuple[bool, ...]:
        first = 3 - len(self._options.patch_size)
        drawn = {first + axis for axis in self._options.mirror_axes if generator.random() < 0.5}
        return tuple(axis in drawn for axis in range(3))

    def _tensors(self, data: NDArray[np.float32], label: NDArray[np.int16]) -> dict[str, Any]:
        import torch

        if len(self._options.patch_size) == 2:
            data, label = data[:, :, 0], label[:, :, 0]
        images, targets = torch.from_numpy(data), torch.from_numpy(label)
        if self.transforms is not None:
            made = [
                self.transforms(image=image, segmentation=target)
                for image, target in zip(images, targets, strict=True)
            ]
            return {"data": torch.stack([one["image"] for one in made]), "target": _stacked(made)}
        targets.clamp_(min=0)
        scales = self._options.deep_supervision_scales
        if scales is None:
            return {"data": images, "target": targets}
        return {"data": images, "target": [torch.from_numpy(scaled_label(label, scale)) for scale in scales]}


def _stacked(made: Sequence[dict[str, Any]]) -> Any:
    """Return the targets of several patches, each a tensor or a list of tensors, as batches."""
    import torch

    if isinstance(made[0]["segmentation"], list):
        return [torch.stack(parts) for parts in zip(*(one["segmentation"] for one in made), strict=True)]
    return torch.stack([one["segmentation"] for one in made])


def patch_start(
    case: PreprocessedCase, options: PatchOptions, generator: np.random.Generator, *, with_foreground: bool
) -> tuple[int, ...]:
    """Return the first voxel of a patch, which may be before the first of the case.

    Args:
        case: the case.
        options: size and place of patches.
        generator: source of random numbers.
        with_foreground: whether the patch contains a voxel of a class, if the case has one.
    """
    bounds = []
    for size, side, beyond in zip(case.shape, options.sides, options.beyond, strict=True):
        added = max(beyond, side - size)
        bounds.append((-added // 2, size + added // 2 + added % 2 - side))
    annotated = next((key for key in case.locations if isinstance(key, tuple) and key[0] == _OUTSIDE), None)
    keys: list[Any] = []
    if with_foreground:
        keys = [key for key, voxels in case.locations.items() if len(voxels)]
        if annotated in keys and len(keys) > 1:
            keys.remove(annotated)
    elif options.has_ignore_label and annotated is not None and len(case.locations[annotated]):
        keys = [annotated]
    if not keys:
        return tuple(int(generator.integers(low, high + 1)) for low, high in bounds)
    voxels = case.locations[keys[int(generator.integers(len(keys)))]]
    voxel = voxels[int(generator.integers(len(voxels)))][1:].tolist()
    # As nnU-Net does, a patch is moved inside at its first border only.
    return tuple(
        max(low, at - side // 2) for (low, _), at, side in zip(bounds, voxel, options.sides, strict=True)
    )


def copy_patch(
    source: Any, start: Sequence[int], mirrored: Sequence[bool], out: NDArray[Any], fill: float
) -> None:
    """Copy a patch into `out`, mirrored along some axes, with a fill value outside the source.

    Args:
        source: [channel, axis 0, axis 1, axis 2], NumPy's or a compressed one of Blosc2.
        start: first voxel along each axis.
        mirrored: along which axes the patch is mirrored.
        out: [channel, axis 0, axis 1, axis 2] of the patch.
        fill: value outside.

    >>> out = np.zeros((1, 1, 1, 4), np.int16)
    >>> copy_patch(np.arange(5).reshape(1, 1, 1, 5), (0, 0, -1), (False, False, True), out, -1)
    >>> out[0, 0, 0].tolist()
    [2, 1, 0, -1]
    """
    sides, held = out.shape[1:], source.shape[1:]
    low = [min(max(0, at), size) for at, size in zip(start, held, strict=True)]
    high = [
        max(first, min(at + side, size))
        for first, at, side, size in zip(low, start, sides, held, strict=True)
    ]
    window = tuple(slice(first, last) for first, last in zip(low, high, strict=True))
    inside = []
    for at, side, first, last, back in zip(start, sides, low, high, mirrored, strict=True):
        begin, end = first - at, last - at
        inside.append(slice(side - end, side - begin) if back else slice(begin, end))
    shape = tuple(last - first for first, last in zip(low, high, strict=True))
    if shape != tuple(sides):
        out[...] = fill
    if not all(shape):
        return
    if not isinstance(source, np.ndarray):
        source, low = source[(slice(None), *window)], [0, 0, 0]
    view = View(start=tuple(low), shape=shape, order=(0, 1, 2), backwards=tuple(mirrored))
    for channel, target in zip(source, out, strict=True):
        view.copy(channel[..., None], target[(*inside, None)])


def scaled_label(label: NDArray[np.int16], scale: Sequence[float]) -> NDArray[np.int16]:
    """Return labels [row, channel, ...] at another scale, by the nearest voxel as PyTorch's "nearest-exact" chooses it.

    >>> scaled_label(np.arange(4, dtype=np.int16).reshape(1, 1, 4), [0.5]).tolist()
    [[[1, 3]]]
    """
    for axis, share in enumerate(scale, start=2):
        size = label.shape[axis]
        new = round(size * share)
        if new != size:
            nearest = np.floor((np.arange(new) + 0.5) * (size / new)).astype(np.int64)
            label = label.take(np.minimum(nearest, size - 1), axis=axis)
    return np.ascontiguousarray(label)
