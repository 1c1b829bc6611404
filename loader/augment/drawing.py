"""The augmentations of one example in order, and which others are shown with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.scene import Augmentation, Combination, Scene
from halofeed.loader.augment.uniform import draw_uniforms
from halofeed.schemas.errors import UsageError

_MOST_PARTNERS = 8
_CHOICE = 1 << 32
"""Added to the partner's number where partners are chosen."""


@dataclass(frozen=True, kw_only=True)
class Others:
    """The examples that may be shown with one.

    Args:
        seed, epoch, identity: what they, and how they are moved, are drawn from: those of the example that is shown.
        find: from a number drawn, 0 (inclusive) to 1 (exclusive), to another example as it is stored.
        partner: 0 for those of the example itself; else for those of which of its partners.
    """

    seed: int
    epoch: int
    identity: int
    find: Callable[[float], Scene]
    partner: int = 0

    def drawn(self, count: int, *, choice: int = 0) -> NDArray[np.float64]:
        """float64 [augmentation, 8]."""
        epochs, ids = np.array([self.epoch]), np.array([self.identity])
        return np.asarray(
            draw_uniforms(self.seed, epochs, ids, count, partner=self.partner + choice)[0], np.float64
        )

    def moved(self, augmentations: Sequence[Augmentation | Combination], count: int) -> list[Scene]:
        """As many others as the next augmentation asks for, each moved by those before it."""
        number, scenes = len(augmentations), []
        for place, where in enumerate(self.drawn(number + 1, choice=_CHOICE)[number, :count].tolist(), 1):
            own = replace(self, partner=self.partner * _MOST_PARTNERS + place)
            scenes.append(augment(augmentations, self.find(where), own.drawn(number), own))
        return scenes


def augment(
    augmentations: Sequence[Augmentation | Combination],
    scene: Scene,
    drawn: NDArray[np.float64],
    others: Others | None = None,
) -> Scene:
    """Apply augmentations in order, each with its own draw.

    Args:
        augmentations: of the loader.
        scene: the example as it is stored.
        drawn: float64 [augmentation, 8].
        others: that may be shown with it.
    """
    for number, (one, uniform) in enumerate(zip(augmentations, drawn, strict=True)):
        # To ask whether a protocol is kept takes longer than most augmentations.
        if (apply := getattr(one, "apply", None)) is not None:
            scene = apply(scene, uniform)
            continue
        combination = cast(Combination, one)
        scenes, count = [scene], combination.partners(uniform)
        if count:
            if others is None:
                raise UsageError(f"{one!r} shows several examples in one; there are no others here")
            scenes += others.moved(augmentations[:number], count)
        scene = combination.combine(scenes, uniform)
    return scene
