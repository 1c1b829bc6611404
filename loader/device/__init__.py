"""Augmentations of pixel values on the device: functions of JAX or TensorFlow to be fused into a training step.

Each library is imported when it is first used. Augmentations that move pixels and labels are in `halofeed.loader`.
"""

from halofeed.loader.device.augmentation import (
    BatchAugmentation,
    DeviceAugmentation,
    augment_on_device,
    check_device_augmentations,
    device_keys,
)
from halofeed.loader.device.colors import to_rgb
from halofeed.loader.device.mixing import BatchMix
from halofeed.loader.device.photometric import (
    BiasField,
    Brightness,
    Contrast,
    Gamma,
    GaussianBlur,
    GaussianNoise,
    Hue,
    HUWindow,
    Normalization,
    Saturation,
)
from halofeed.loader.device.rand_augment import RandAugmentColors
from halofeed.system.arguments import explains_fields

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
        RandAugmentColors,
    )
}
"""Augmentations by their names in configurations."""
BATCH_AUGMENTATIONS: dict[str, type[BatchAugmentation]] = {BatchMix.__name__: BatchMix}
"""Augmentations that combine the images of a batch, by their names in configurations."""
for _kind in (*AUGMENTATIONS.values(), *BATCH_AUGMENTATIONS.values()):
    explains_fields(_kind)

__all__ = [
    "AUGMENTATIONS",
    "BATCH_AUGMENTATIONS",
    "BatchAugmentation",
    "DeviceAugmentation",
    "Normalization",
    "augment_on_device",
    "check_device_augmentations",
    "device_keys",
    "to_rgb",
    *AUGMENTATIONS,
    *BATCH_AUGMENTATIONS,
]
