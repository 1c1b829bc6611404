"""Batches for training: NumPy, tf.data or jax.Arrays on a mesh, from the data sets that `halofeed convert` writes.

Neither Beam nor TensorFlow nor JAX is imported here; `Loader.dataset` and `Loader.on_mesh` import theirs.
"""

if __name__ != "halofeed.loader":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part loader: write import halofeed.loader")

from typing import TYPE_CHECKING, Any

from halofeed.loader.batch import join_id, split_id
from halofeed.loader.dataset import Loader
from halofeed.loader.sampler import RepeatFactor

if TYPE_CHECKING:
    from halofeed.loader.augment import (
        ElasticDeformation,
        FlipDepth,
        FlipLeftRight,
        FlipUpDown,
        MixUp,
        Mosaic,
        PadAndCrop,
        RandAugmentMoves,
        RandomCrop,
        RandomCropImage,
        RandomResizedCrop,
        RandomRotation,
        Rotate90,
        ScaleJitter,
        SsdRandomCrop,
    )
    from halofeed.loader.mixture import Mixture
    from halofeed.loader.volume_boxes import boxes_to_mm, boxes_to_source
else:

    def __getattr__(name: str) -> Any:
        # Imported when they are used first: most loaders need few of them.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "Mixture":
            from halofeed.loader.mixture import Mixture

            return Mixture
        if name in ("boxes_to_mm", "boxes_to_source"):
            from halofeed.loader import volume_boxes

            return getattr(volume_boxes, name)
        from halofeed.loader import augment

        return getattr(augment, name)


__all__ = [
    "ElasticDeformation",
    "FlipDepth",
    "FlipLeftRight",
    "FlipUpDown",
    "Loader",
    "MixUp",
    "Mixture",
    "Mosaic",
    "PadAndCrop",
    "RandAugmentMoves",
    "RandomCrop",
    "RandomCropImage",
    "RandomResizedCrop",
    "RandomRotation",
    "RepeatFactor",
    "Rotate90",
    "ScaleJitter",
    "SsdRandomCrop",
    "boxes_to_mm",
    "boxes_to_source",
    "join_id",
    "split_id",
]
