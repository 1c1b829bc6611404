"""Augmentation where the batches lie: JAX functions to be fused into a step, and the same as TensorFlow's.

Neither is imported before it is needed. What moves pixels, and labels with them, is `halofeed.loader`'s.
"""

from halofeed.loader.device.apply import augment_on_device, check_device_augmentations, device_keys
from halofeed.loader.device.augmentation import DeviceAugmentation
from halofeed.loader.device.blur import GaussianBlur
from halofeed.loader.device.light import Brightness, Contrast, Gamma, GaussianNoise, Hue, Saturation
from halofeed.loader.device.normalize import Normalization
from halofeed.loader.device.scans import BiasField, HUWindow

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
