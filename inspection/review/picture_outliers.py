"""Outliers among pictures by the measures of the index: one line per kind in `PICTURE_RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.robust import Limits, unusual
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.schemas import measures

Column = NDArray[np.float64]


class PictureKind(SuspectKind):
    """Kinds of unusual pictures."""

    # fmt: off
    ONE_COLOR = ("picture of one color", "All sampled pixels have one value, so the picture shows nothing.",
        "Correct or remove the source, or its annotation if it is right.")
    DARK = ("dark picture", "The mean of its pixels is far below that of the others.",
        "Remove it, or augment the brightness if such pictures occur in use.")
    BRIGHT = ("bright picture", "The mean of its pixels is far above that of the others.",
        "Remove it, or augment the brightness if such pictures occur in use.")
    LOW_CONTRAST = ("picture of low contrast", "Its values vary far less than those of the others.",
        "Stretch its values, or remove it.")
    FEW_TONES = ("picture of few tones", "Its values are far fewer than those of the others, as in drawings and masks.",
        "Look whether a drawing, a mask or a screenshot is among the pictures.")
    BLURRED = ("blurred picture", "Neighbors differ far less than in the others, relative to pixels 4 apart.",
        "Remove it if its label cannot be seen; pictures that were enlarged look the same.")
    NOISE = ("noise-like picture", "Neighbors differ nearly as much as distant pixels, as in noise or a damaged file.",
        "Look at it; remove it if it shows noise.")
    ODD_SIZE = ("odd size", "Its source is far smaller or larger than the others.",
        "Look whether a thumbnail or a scan of another kind is among the pictures.")
    ODD_ASPECT = ("odd aspect ratio", "Its source is far longer, or far nearer to a square, than the others.",
        "Crop it, or use --resize keep-aspect, which keeps its shape.")
    # fmt: on


def _log(values: Column) -> Column:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.maximum(values, 1e-4))


def _excess(values: Column) -> Column:
    """Return the logarithm of a sharpness above that of a ramp, 1/16, which blur approaches."""
    return _log(np.maximum(values - 1 / 16, 0) + 0.004)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Rule for one kind.

    Args:
        measure: name of a measure, or of a column of `_columns`.
        scale: function on the values that makes distances comparable.
        limits: rule for unusual values of that scale.
        at_most, at_least: bounds of the values outside of which a record is usual in any set.
        always_below, always_above: bounds outside of which a record is a suspect even if its distance is not unusual,
            unless such records are a group of the set.
        words: text of a finding, with the value and the median.
    """

    measure: str
    scale: Callable[[Column], Column]
    limits: Limits
    words: str
    at_most: float = np.inf
    at_least: float = -np.inf
    always_below: float = -np.inf
    always_above: float = np.inf


def _only(*, below: bool, least: float) -> Limits:
    return Limits(least=least, below=below, above=not below)


_LARGEST_EXTREME: Final = 0.15
"""Share of the records beyond a bound of photographs above which they are a group of the set."""
# 2,070 photographs of four sets have a brightness of 0.07 to 0.79, a contrast above 0.049, an entropy above 4.3 bits,
# a sharpness above 0.089 and a roughness below 0.29. Blur with a deviation of 1.5 % of the longer side gives a
# sharpness of 0.066 to 0.079. Noise that was resized and compressed gives a roughness of 0.62.
PICTURE_RULES: Final[dict[PictureKind, _Rule]] = {
    PictureKind.DARK: _Rule(
        measure=measures.BRIGHTNESS, scale=_log, limits=_only(below=True, least=np.log(2)), at_most=0.25,
        always_below=0.04, words="mean of the pixels {value:.1%} of the range, usual {usual:.1%}",
    ),
    PictureKind.BRIGHT: _Rule(
        measure=measures.BRIGHTNESS, scale=lambda values: -_log(1 - values),
        limits=_only(below=False, least=np.log(2)), at_least=0.75, always_above=0.94,
        words="mean of the pixels {value:.1%} of the range, usual {usual:.1%}",
    ),
    PictureKind.LOW_CONTRAST: _Rule(
        measure=measures.CONTRAST, scale=_log, limits=_only(below=True, least=np.log(2)), at_most=0.12,
        always_below=0.03, words="deviation of the pixels {value:.1%} of the range, usual {usual:.1%}",
    ),
    PictureKind.FEW_TONES: _Rule(
        measure=measures.ENTROPY_BITS, scale=lambda values: values, limits=_only(below=True, least=1.5), at_most=4.5,
        always_below=4, words="entropy of the values {value:.1f} bits, usual {usual:.1f} bits",
    ),
    PictureKind.BLURRED: _Rule(
        measure=measures.SHARPNESS, scale=_excess, limits=_only(below=True, least=np.log(2)), at_most=0.1,
        always_below=0.08, words="differences of neighbors {value:.1%} of those of pixels 4 apart, usual {usual:.1%}",
    ),
    PictureKind.NOISE: _Rule(
        measure=measures.ROUGHNESS, scale=_log, limits=_only(below=False, least=np.log(2)), at_least=0.35,
        always_above=0.5, words="differences of neighbors {value:.1%} of those of distant pixels, usual {usual:.1%}",
    ),
    PictureKind.ODD_SIZE: _Rule(
        measure="source_side", scale=_log, limits=Limits(least=np.log(2)),
        words="source with {value:,.0f} pixels along the mean side, usual {usual:,.0f}",
    ),
    PictureKind.ODD_ASPECT: _Rule(
        measure="source_aspect", scale=_log, limits=Limits(least=np.log(1.7)),
        words="longer side of the source {value:.2f} times the shorter one, usual {usual:.2f}",
    ),
}  # fmt: skip


def picture_outliers(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield the pictures whose measures are unusual in the data set."""
    columns = _columns(reviewed)
    contrast = columns[measures.CONTRAST]
    one_color = contrast < _least_contrast(reviewed)
    for record in np.flatnonzero(one_color).tolist():
        brightness = columns[measures.BRIGHTNESS][record]
        yield _suspect(
            reviewed, PictureKind.ONE_COLOR, record, 1.0, f"all of it at {brightness:.1%} of the range"
        )
    for kind, rule in PICTURE_RULES.items():
        # What a picture of one color lacks else follows from it.
        values = (
            columns[rule.measure]
            if rule.measure in _SOURCE
            else np.where(one_color, np.nan, columns[rule.measure])
        )
        usual = float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0
        scores = _scores(values, rule)
        for record in np.flatnonzero(scores).tolist():
            words = rule.words.format(value=values[record], usual=usual)
            yield _suspect(reviewed, kind, record, float(scores[record]), words)


_SOURCE: Final = ("source_side", "source_aspect")


def _suspect(reviewed: ReviewedSet, kind: SuspectKind, record: int, score: float, words: str) -> Suspect:
    return Suspect(kind=kind, places=(reviewed.place(record),), score=score, words=words)


def _scores(values: Column, rule: _Rule) -> Column:
    """Return the score of each suspect of a rule, and 0 for usual records."""
    distances = np.abs(unusual(rule.scale(values), rule.limits))
    scores = np.where((distances > 1) & (values <= rule.at_most) & (values >= rule.at_least), distances, 0.0)
    extreme = (values < rule.always_below) | (values > rule.always_above)
    if np.count_nonzero(extreme) <= max(1, _LARGEST_EXTREME * np.isfinite(values).sum()):
        scores = np.where(extreme, np.maximum(scores, 1.0), scores)
    return scores


def _columns(reviewed: ReviewedSet) -> dict[str, Column]:
    """Return the measures of pictures and what follows from them."""
    columns = {name: reviewed.measure(name) for name in (*measures.PICTURE, *measures.SOURCE_SIDES)}
    height, width = (columns[name] for name in measures.SOURCE_SIDES)
    longer, shorter = np.maximum(height, width), np.minimum(height, width)
    return {**columns, "source_side": np.sqrt(height * width), "source_aspect": longer / shorter}


def _least_contrast(reviewed: ReviewedSet) -> float:
    """Return half a level of the stored type, as a fraction of its range."""
    dtype = reviewed.manifest.field("image").dtype
    return 0.5 / (65535 if dtype == "uint16" else 255)
