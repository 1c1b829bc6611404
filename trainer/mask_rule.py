"""Rules by which probabilities of windows become a mask: overlapping regions, and weights of overlapping windows.

    regions = {whole = ["edema", "core"], core = ["core"]}

    voxel       whole  core  painted
    background  0      0     background
    edema       1      0     edema: the class of `whole` that no later region has
    core        1      1     core: later regions are painted over earlier ones

This file does not import JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean

GAUSSIAN, UNIFORM = "gaussian", "uniform"
WINDOW_WEIGHTS = (GAUSSIAN, UNIFORM)
"""Weights of the voxels of overlapping windows; see `halofeed.trainer.windows.window_weight`."""
REGION_THRESHOLD = 0.5
"""Probability above which a voxel is in a region, as in nnU-Net."""


@dataclass(frozen=True, kw_only=True)
class ClassRegions:
    """Unions of classes that a model learns in place of the classes, each with a probability that excludes no other.

    Args:
        names: names of the regions, in the order in which they are painted.
        members: classes of each region.
        painted: class that each region paints.

    Source: region-based training of Isensee et al., "nnU-Net for Brain Tumor Segmentation", 2020 (arXiv 2011.00848).
    nnU-Net asks for the painted classes as `regions_class_order`; here they follow from the order of the regions.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    painted: tuple[int, ...]

    @classmethod
    def of(cls, regions: Mapping[str, Sequence[str]], labels: Sequence[str]) -> ClassRegions:
        """Return the regions of a recipe.

        Args:
            regions: names of the classes of each region, larger regions before those inside them.
            labels: names of the classes, background first.

        Raises:
            UsageError: a class is unknown or in no region, or a region has not exactly one class that no later region
                has. Only then each class has its own regions, from which it is painted again.

        >>> ClassRegions.of({"whole": ["edema", "core"], "core": ["core"]}, ("background", "edema", "core"))
        ClassRegions(names=('whole', 'core'), members=((1, 2), (2,)), painted=(1, 2))
        """
        members = tuple(_members(name, classes, labels) for name, classes in regions.items())
        last = {label: number for number, held in enumerate(members) for label in held}
        painted = []
        for number, (name, held) in enumerate(zip(regions, members, strict=True)):
            own = [label for label in held if last[label] == number]
            if len(own) != 1:
                found = ", ".join(labels[label] for label in own) or "none"
                raise UsageError(
                    f"regions.{name}: paints the one class that no later region has, and it has {found}; list larger "
                    "regions before those inside them, and give each class a region that ends with it"
                )
            painted.append(own[0])
        if missing := [labels[label] for label in range(1, len(labels)) if label not in last]:
            raise UsageError(
                f"regions: class {missing[0]} is in none, so it would become background; add it to one"
            )
        return cls(names=tuple(regions), members=members, painted=tuple(painted))

    def paint(self, probabilities: Any) -> Any:
        """Return the class indices that the regions paint, one after the other.

        Args:
            probabilities: [..., region], an array of NumPy or JAX.

        Returns:
            int32 or uint16 class indices [...], in an array of the same library.

        >>> regions = ClassRegions.of({"whole": ["edema", "core"], "core": ["core"]}, ("background", "edema", "core"))
        >>> regions.paint(np.array([[0.2, 0.1], [0.9, 0.4], [0.9, 0.6], [0.4, 0.6]])).tolist()
        [0, 1, 2, 2]
        """
        label = (probabilities[..., 0] > REGION_THRESHOLD) * np.uint16(self.painted[0])
        for number, painted in enumerate(self.painted[1:], 1):
            inside = probabilities[..., number] > REGION_THRESHOLD
            # Without `where`, which NumPy and JAX have in different modules.
            label = label * ~inside + inside * np.uint16(painted)
        return label

    def of_table(self, table: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Dice of each region from a table [true class, predicted class]; NaN for one that is nowhere."""
        dice = np.full(len(self.names), np.nan)
        for number, members in enumerate(self.members):
            held = list(members)
            sizes = table[held].sum() + table[:, held].sum()
            if sizes:
                dice[number] = 2.0 * table[np.ix_(held, held)].sum() / sizes
        return dice


def _members(name: str, classes: object, labels: Sequence[str]) -> tuple[int, ...]:
    known = labels[1:]
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not classes:
        raise UsageError(
            f'regions.{name}: expected a list of classes, such as ["{known[-1]}"], got {classes!r}'
        )
    if unknown := [one for one in classes if one not in known]:
        near = did_you_mean(str(unknown[0]), known)
        raise UsageError(f"regions.{name}: no class {unknown[0]!r}; {near}known: {', '.join(known)}")
    return tuple(sorted({labels.index(one, 1) for one in classes}))


@dataclass(frozen=True, kw_only=True)
class MaskRule:
    """Rule by which blended outputs become class indices.

    Args:
        window_weights: one of `WINDOW_WEIGHTS`.
        regions: regions of the model's outputs; None for a probability per class.
    """

    window_weights: str = GAUSSIAN
    regions: ClassRegions | None = None

    def outputs(self, classes: int) -> int:
        """Return the number of values of a voxel that are blended."""
        return classes if self.regions is None else len(self.regions.names)

    def of_row(self, predictions: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return what is blended of a row of predictions: regions, else probabilities, else class indices."""
        names = ("probabilities", "label") if self.regions is None else ("regions",)
        return next(predictions[name] for name in names if name in predictions)

    def labels(self, blended: NDArray[Any]) -> NDArray[Any]:
        """Return the class indices that regions paint; probabilities per class are returned unchanged."""
        return blended if self.regions is None else np.asarray(self.regions.paint(blended))
