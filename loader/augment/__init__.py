"""Random augmentations of each example and epoch: flips, rotations, crops; labels and boxes follow the image.

An augmentation plans on shapes. Pixels and labels are then copied once, directly from the stored bytes (`view.py`).
A new augmentation is one class in a file here and one line in the table `AUGMENTATIONS` of table.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from halofeed.loader.augment.augmented_example import (
    DEPTH,
    HEIGHT,
    NO_OBJECTS,
    WIDTH,
    Augmentation,
    Combination,
    Example,
    Frame,
    Objects,
    PartnerSampler,
    Uniform,
    augment,
    draw_uniform,
    draw_uniforms,
    to_view,
)
from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean, nearest_name

if TYPE_CHECKING:
    from halofeed.loader.augment.crop_and_resize import (
        RandomCropImage,
        RandomResizedCrop,
        ScaleJitter,
        SsdRandomCrop,
    )
    from halofeed.loader.augment.flips_and_crops import (
        FlipDepth,
        FlipLeftRight,
        FlipUpDown,
        RandomCrop,
        Rotate90,
    )
    from halofeed.loader.augment.mosaic import MixUp, Mosaic
    from halofeed.loader.augment.table import AUGMENTATIONS
    from halofeed.loader.augment.warps import ElasticDeformation, PadAndCrop, RandAugmentMoves, RandomRotation
else:

    def __getattr__(name: str) -> Any:
        # Imported when they are used first: a loader without augmentations needs neither these classes nor OpenCV.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from halofeed.loader.augment.table import AUGMENTATIONS

        return AUGMENTATIONS if name == "AUGMENTATIONS" else AUGMENTATIONS[name]


__all__ = [
    "AUGMENTATIONS",
    "DEPTH",
    "HEIGHT",
    "NO_OBJECTS",
    "WIDTH",
    "Augmentation",
    "Combination",
    "ElasticDeformation",
    "Example",
    "FlipDepth",
    "FlipLeftRight",
    "FlipUpDown",
    "Frame",
    "MixUp",
    "Mosaic",
    "Objects",
    "Others",
    "PadAndCrop",
    "PartnerSampler",
    "RandAugmentMoves",
    "RandomCrop",
    "RandomCropImage",
    "RandomResizedCrop",
    "RandomRotation",
    "Rotate90",
    "ScaleJitter",
    "Scene",
    "SsdRandomCrop",
    "Uniform",
    "augment",
    "build_augmentations",
    "check_augmentations",
    "draw_uniform",
    "draw_uniforms",
    "to_view",
]

Scene, Others = Example, PartnerSampler
"""Names of these classes in version 0.1."""


def check_augmentations(given: object) -> tuple[Augmentation | Combination, ...]:
    """Return augmentations as a tuple; UsageError if an item is not an augmentation.

    >>> from halofeed.loader import FlipLeftRight
    >>> check_augmentations([FlipLeftRight()])
    (FlipLeftRight(probability=0.5),)
    """
    example = "FlipLeftRight()"
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"augment: expected a list such as [{example}], got {given!r}")
    found = []
    for one in given:
        if isinstance(one, type):  # FlipLeftRight without its parentheses
            raise UsageError(f"augment: expected augmentations, got {one!r} itself; write {one.__name__}()")
        is_one = all(callable(getattr(one, name, None)) for name in ("frame", "apply"))
        if not is_one and not isinstance(one, Combination):
            raise UsageError(
                f"augment: expected augmentations such as {example}, got {one!r}; they are in halofeed.loader"
            )
        found.append(one)
    return tuple(found)


def build_augmentations(
    tables: Sequence[Mapping[str, Any]],
    known: Mapping[str, Callable[..., Any]] | None = None,
    setting: str = "augment",
) -> list[Any]:
    """Build the augmentations of a configuration's tables.

    Args:
        tables: name and arguments of each augmentation.
        known: classes by name; `AUGMENTATIONS` by default.
        setting: the setting's name, for messages.

    >>> build_augmentations([{"name": "FlipLeftRight", "probability": 0.5}])
    [FlipLeftRight(probability=0.5)]
    """
    if known is None:
        from halofeed.loader.augment.table import AUGMENTATIONS

        known = AUGMENTATIONS
    built = []
    for table in tables:
        if not isinstance(table, Mapping):
            raise UsageError(
                f"{setting}: expected a table with the name and the arguments of each augmentation, got {table!r}; "
                f'write {setting}=[{{name="{nearest_name(str(table), known) or next(iter(known))}"}}]'
            )
        name = table.get("name", "")
        if name not in known:
            raise UsageError(
                f"{setting} {name!r}: not known; {did_you_mean(name, known)}known: {', '.join(known)}"
            )
        # RandomCrop takes its sides as positional arguments.
        arguments = {key: value for key, value in table.items() if key not in ("name", "sides")}
        takes = list(inspect.signature(known[name]).parameters)
        if unknown := [key for key in arguments if key not in takes]:
            raise UsageError(
                f"{setting} {name}: it has no argument {unknown[0]}; it takes {', '.join(takes)}"
            )
        try:
            built.append(known[name](*table.get("sides", ()), **arguments))
        except TypeError as error:
            raise UsageError(f"{setting} {name}: {error}; it takes {takes}") from error
    return built
