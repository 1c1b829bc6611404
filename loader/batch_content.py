"""Content of batches: the fields of each record, the augmentations of what is shown of it, and its decoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from halofeed.loader.augment import Augmentation, Combination, check_augmentations
from halofeed.loader.decode import DECODE
from halofeed.loader.planes import COLOR_CHOICES
from halofeed.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BatchContent:
    """Fields of each record that batches hold, the augmentations of what is shown, and the decoding.

    Args:
        include: names of optional fields.
        augmentations: the augmentations in order.
        decodes_fast: whether pixels of JPEG may differ slightly, for speed.
        holds_planes: whether pictures are luma and chroma instead of RGB.
    """

    include: tuple[str, ...] = ()
    augmentations: tuple[Augmentation | Combination, ...] = ()
    decodes_fast: bool = False
    holds_planes: bool = False

    @classmethod
    def of(cls, *, include: object, augment: object, decode: object, color: object) -> BatchContent:
        """Return the content that arguments of `Loader` ask for; raise UsageError where one is invalid."""
        if decode not in DECODE:
            raise UsageError(f"decode: expected one of {', '.join(DECODE)}, got {decode!r}")
        if color not in COLOR_CHOICES:
            raise UsageError(f"color: expected one of {', '.join(COLOR_CHOICES)}, got {color!r}")
        return cls(
            include=_checked_include(include),
            augmentations=check_augmentations(augment),
            decodes_fast=decode == "fast",
            holds_planes=color == "planes",
        )

    @property
    def combines(self) -> bool:
        """Return whether an augmentation combines several records."""
        return any(isinstance(one, Combination) for one in self.augmentations)

    @property
    def uses_corners(self) -> bool:
        """Return whether an augmentation changes boxes by the corners of their objects."""
        return any(getattr(one, "uses_corners", False) for one in self.augmentations)

    def without_augmentations(self) -> BatchContent:
        """Return the same fields as they are stored."""
        return replace(self, augmentations=())


def _checked_include(include: object) -> tuple[str, ...]:
    if isinstance(include, str) or not isinstance(include, Iterable):
        name = include if isinstance(include, str) else "epoch"
        raise UsageError(f"include: expected a list such as [{name!r}], got {include!r:.80}")
    return tuple(map(str, include))
