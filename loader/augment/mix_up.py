"""Two pictures shining through each other, with the objects of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from halofeed.loader.augment.collage import Blend
from halofeed.loader.augment.mosaic import collage
from halofeed.loader.augment.scene import Frame, Scene, check_pictures, check_range, check_share
from halofeed.loader.augment.source import Made
from halofeed.loader.augment.uniform import Uniform
from halofeed.schemas.errors import UsageError


@dataclass(frozen=True)
class MixUp:
    """Mixes a picture with another one, with the given probability: the weighted mean of both, and all their objects.

    The other one is drawn, and moved by what stands before in the list, as of `Mosaic`. Both begin at the top left;
    where only one of them reaches, it is mixed with the padding. The picture's own objects come first, at most
    max_boxes in all. For detection: of classes and label maps nothing lies between two.

    Memory: in each thread, two decoded pictures, and what is shown of both.

    Args:
        shares: the least and the largest share of the picture itself, 0 to 1; every one between is equally likely.
        probability: that it is mixed at all.
    """

    shares: tuple[float, float] = (0.4, 0.6)
    probability: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", check_range("MixUp: shares", self.shares))
        for share in self.shares:
            check_share("MixUp: shares", share)
        check_share("MixUp: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Without an affine; only of pictures with boxes."""
        check_pictures("MixUp", frame)
        if not frame.has_boxes:
            raise UsageError(
                "MixUp: nothing lies between two classes as they are stored; take it for detection, and mix classes in "
                "the training step"
            )
        return replace(frame, lost="MixUp")

    def partners(self, uniform: Uniform) -> int:
        """One, or none."""
        return int(uniform[0] < self.probability)

    def combine(self, scenes: Sequence[Scene], uniform: Uniform) -> Scene:
        """The mean of both, or the one."""
        if len(scenes) == 1:
            return scenes[0]
        shape = tuple(max(sides) for sides in zip(*(scene.view.shape for scene in scenes), strict=True))
        first, second = (collage([(scene, 0, 0)], shape) for scene in scenes)
        low, high = self.shares
        mixed = None
        if isinstance(first.pixels, Made) and isinstance(second.pixels, Made):
            mixed = Blend(shape, first.pixels, second.pixels, low + float(uniform[1]) * (high - low))
        return replace(first, pixels=mixed, objects=first.objects.and_those(second.objects))
