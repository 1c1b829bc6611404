"""Augmentation where the batches lie: JAX functions to be fused into a step, and the same as TensorFlow's.

Neither is imported before it is needed. What moves pixels, and labels with them, is `halofeed.loader`'s.
"""

from halofeed.loader.device.augmentation import (
    DeviceAugmentation,
    augment_on_device,
    check_device_augmentations,
    device_keys,
)
from halofeed.loader.device.normalize import Normalization
from halofeed.loader.device.photometric import (
    BiasField,
    Brightness,
    Contrast,
    Gamma,
    GaussianBlur,
    GaussianNoise,
    Hue,
    HUWindow,
    Saturation,
)

AUGMENTATIONS: dict[str, type[DeviceAugmentation]] = {
    kind.__name__: kind
    for kind in (
        Brightness,
        Contrast,
        Saturation,
        Hue,
        Gamma,
        GaussianBlur,
        GaussianNoise,
        HUWindow,
        BiasField,
    )
}
"""By the names that configurations have."""

__all__ = [
    "AUGMENTATIONS",
    "DeviceAugmentation",
    "Normalization",
    "augment_on_device",
    "check_device_augmentations",
    "device_keys",
    *AUGMENTATIONS,
]
