"""Anchors that are planned from the boxes of a data set, for detectors with a pyramid of square strides."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.detection.anchor_fit import Anchors, best_anchors
from halofeed.trainer.detection.matcher import Matcher
from halofeed.trainer.record_metadata import SplitMetadata

MOST_BOXES = 2000
"""Boxes that are measured: shares of so many are off by 1 %."""
_MOST_RECORDS = 2000
"""Most records that are read for them, each by itself, which takes long from an object store."""


def sampled_box_sides(path: str, split: str) -> NDArray[np.float64]:
    """Return heights and widths [box, 2] of objects in pixels of the records; no pictures are decoded.

    Records from the whole split are read until there are `MOST_BOXES`, at most 2,000.

    Args:
        path: version folder of the data set.
        split: split, or several that a plus joins.
    """
    found, count = [np.zeros((0, 2))], 0
    for sides in _sides_of_records(path, split):
        found.append(sides)
        count += len(sides)
        if count >= MOST_BOXES:
            break
    return np.concatenate(found)[:MOST_BOXES]


def _sides_of_records(path: str, split: str) -> Iterator[NDArray[np.float64]]:
    """Yield the sides of the boxes of each record, in an order that has all parts of the splits early."""
    records = [
        (metadata, number)
        for metadata in (SplitMetadata(path, name) for name in split.split("+"))
        for number in range(len(metadata))
    ]
    for place in np.random.default_rng(0).permutation(len(records))[:_MOST_RECORDS].tolist():
        metadata, number = records[place]
        yield metadata.box_sides(number)


def planned_anchors(
    config: TrainConfig, sides: NDArray[np.float64], fixed: Collection[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return the options of a RetinaNet whose anchors match most boxes at their cost, and a line that explains them.

    Args:
        config: configuration of a RetinaNet.
        sides: heights and widths [box, 2] in pixels of the records; one at least.
        fixed: options of the model that keep the configuration's value.

    Returns:
        Options of the model that differ from the configuration's.
    """
    from halofeed.trainer.models.retinanet import (
        FIRST_LEVELS,
        AnchorOptions,
        BackboneOptions,
        PyramidOptions,
    )

    anchor, pyramid, backbone = (
        _given(AnchorOptions, config),
        _given(PyramidOptions, config),
        _given(BackboneOptions, config),
    )
    present = Anchors(
        levels=(pyramid.first_level, pyramid.last_level),
        scale=anchor.anchor_scale,
        aspect_ratios=tuple(anchor.aspect_ratios),
        scales_per_octave=anchor.scales_per_octave,
    )
    threshold = float(config.options_of_task.get("matched_threshold", Matcher.matched_threshold))
    # Other backbones have no map of the finer level.
    levels = FIRST_LEVELS if backbone.backbone == "resnet50" else ()
    best = best_anchors(sides, present, threshold, levels, fixed)
    shares = [f"{one.matched_share(sides, threshold):.0%}" for one in (best, present)]
    low, high = (f"{math.sqrt(size):.0f}" for size in np.percentile(sides.prod(-1), [1, 99]))
    ratios = ", ".join(f"{one:g}" for one in best.aspect_ratios)
    line = (
        f"anchors: levels {best.levels[0]} to {best.levels[1]}, {best.scale:g} strides, width / height {ratios}: "
        f"{shares[0]} of {len(sides):,} boxes with sides of {low} to {high} pixels overlap one by {threshold:g}"
    )
    changes = best.options(present)
    return changes, line + (f"; of the recipe's {shares[1]}" if changes else ", and these are the recipe's")


Options = TypeVar("Options")


def _given(kind: type[Options], config: TrainConfig) -> Options:
    """Return a group of the model's options with the configuration's values."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in config.model_options.items() if name in names})
