"""Which three planes of a volume show a prediction's mistakes, and how do truth and prediction lie over them?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.display import Display, recipe_window
from halofeed.inspection.markup import Markup, element
from halofeed.inspection.overlay import overlay
from halofeed.inspection.planes import PLANES, centre_of, stretched
from halofeed.inspection.run_examples import Example
from halofeed.inspection.run_frames import framed
from halofeed.inspection.samples import picture_uri
from halofeed.inspection.segmentation import AXES

_SIDES = {"axial": "RLAP", "coronal": "RLSI", "sagittal": "APSI"}
"""What lies at the left, right, top and bottom: volumes are stored towards superior, anterior and right."""
_FLAT = 4
_LOW, _HIGH = 1.0, 99.0


def planes_of(
    example: Example,
    truth: NDArray[Any] | None,
    predicted: NDArray[Any] | None,
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> list[tuple[str, Markup, Markup | None]]:
    """Three planes: what it is, the picture with the truth, and that with the prediction.

    Args:
        truth, predicted: class indices [depth, height, width]; without a prediction the second picture is None.
        display: which values are black and white.
        ranks: which color each class has.
        side: about the length in pixels of a plane's longest side.
    """
    shape = example.image.shape[:3]
    steps_mm = example.spacing_mm or (1.0, 1.0, 1.0)
    lengths = [count * step for count, step in zip(shape, steps_mm, strict=True)]
    scale = side / max(lengths)
    places = telling_planes(shape, truth, predicted)
    found = []
    for name, (fixed, (down, across)) in PLANES.items():
        size_mm = (lengths[down], lengths[across])
        size = (max(1, round(size_mm[0] * scale)), max(1, round(size_mm[1] * scale)))
        at = tuple(places[fixed] if axis == fixed else slice(None) for axis in range(3))
        grey = display.grey(example.image[..., 0][at][::-1, ::-1])
        uri = picture_uri(stretched(grey, size)[..., None])
        letters = _letters(name, size_mm) if example.spacing_mm else []
        caption = f"{name}, {AXES[fixed]} {places[fixed]} of {shape[fixed]}"

        def picture(
            label: NDArray[Any] | None,
            words: str,
            at: Any = at,
            size: tuple[int, int] = size,
            uri: str = uri,
            letters: list[Markup] = letters,
            size_mm: tuple[float, float] = size_mm,
            caption: str = caption,
        ) -> Markup:
            mask = None if label is None else overlay(label[at][::-1, ::-1], ranks, size)
            alt = f"{caption} of example {example.entry.id}, {words}"
            return framed(uri, size_mm, alt, words, letters, mask=mask)

        first = picture(truth, "truth" if truth is not None else "image")
        second = picture(predicted, "predicted") if predicted is not None else None
        found.append((caption, first, second))
    return found


def telling_planes(
    shape: tuple[int, ...], truth: NDArray[Any] | None, predicted: NDArray[Any] | None
) -> tuple[int, int, int]:
    """Along each axis the plane with the most wrong voxels; without any, that through the middle of what is labelled.

    >>> truth = np.zeros((3, 4, 5), int)
    >>> predicted = truth.copy()
    >>> predicted[2, 1, :3] = 1
    >>> telling_planes(truth.shape, truth, predicted)
    (2, 1, 0)
    """
    if truth is not None and predicted is not None:
        wrong = truth != predicted
        if wrong.any():
            depth, height, width = (
                int(np.argmax(wrong.sum(axis=tuple(other for other in range(3) if other != axis))))
                for axis in range(3)
            )
            return depth, height, width
    label = truth if truth is not None else predicted if predicted is not None else np.zeros(shape, np.uint8)
    return centre_of(label, np.array([[0] * len(shape), shape]))


def display_of_run(recipe: Mapping[str, Any], image: NDArray[Any]) -> Display:
    """Which values are black and white: the recipe's window, or all but the hundredth at either end.

    Args:
        recipe: how the data set was converted.
        image: [depth, height, width, channel]
    """
    window = recipe_window(recipe)
    if image.dtype == np.uint8:
        low, high, words = 0.0, 255.0, "Black to white is 0 to 255, as stored."
        if window is not None:
            words = f"Black to white is {window.low:g} to {window.high:g}, the recipe's window."
    elif window is not None:
        low, high = window.low, window.high
        words = f"Black to white is {low:g} to {high:g}, the recipe's window."
    else:
        values = image[..., 0]
        finite = values[np.isfinite(values)]
        ends = np.percentile(finite, (_LOW, _HIGH)) if finite.size else np.array([0.0, 1.0])
        low, high = float(ends[0]), float(ends[1])
        words = f"Black to white is each image's {_LOW:g}st to {_HIGH:g}th percentile."
    return Display(
        dtype=str(image.dtype),
        low=low,
        high=high if high > low else low + 1,
        slope=1.0,
        intercept=0.0,
        unit="value",
        window=window,
        words=words,
    )


def _letters(name: str, size_mm: tuple[float, float]) -> list[Markup]:
    ratio = size_mm[1] / size_mm[0]
    # A flat picture has no room for what is above and below, a narrow one none for what is beside.
    room = "lr" if ratio > _FLAT else "tb" if ratio < 1 / _FLAT else "lrtb"
    return [
        element("span", f"side {place}", letter)
        for place, letter in zip("lrtb", _SIDES[name], strict=True)
        if place in room
    ]
