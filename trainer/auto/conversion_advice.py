"""Advice on the conversion: where records have another spacing or shape than a plan would choose, and the command."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from halofeed.schemas.manifest import Manifest
from halofeed.trainer.auto.fingerprint import Fingerprint
from halofeed.trainer.auto.unet_plan import LARGEST_PATCH, pooling_of

_SPACING_RATIO = 1.25
"""Ratio of the stored to the suggested spacing from which a conversion is advised."""
_LOST, _PADDED = 0.01, 0.8
"""Share of a class or scan outside of all records, and of padding in the records, from which one is advised."""
_TILE_OVERLAP = 2
"""Windows overlap by half of their side, as in nnU-Net (tile_step_size 0.5)."""


@dataclass(frozen=True, kw_only=True)
class ConversionAdvice:
    """Options that a conversion should choose.

    Args:
        reasons: what is wrong with the stored records, each with its figure.
        options: options of `halofeed convert` that change it, as words.
    """

    reasons: tuple[str, ...]
    options: tuple[str, ...]

    def command(self, manifest: Manifest, data: str, source: str) -> str:
        """Return the command that makes the advised records, as the next version of the data set.

        Args:
            manifest: manifest of the data set.
            data: version folder of the data set.
            source: path of its source.
        """
        folder = Path(data)
        version = next_version(manifest.version)
        words = ["halofeed", "convert", "--recipe", str(folder / "manifest.json"), "--source", source]
        words += ["--out", str(folder.parent.parent), "--name", manifest.name, "--version", version]
        return shlex.join([*words, *self.options])


def next_version(version: str) -> str:
    """Return the version after another one, with its middle number increased.

    >>> next_version("1.0.0")
    '1.1.0'
    """
    major, minor, _ = (*version.split("."), "0", "0")[:3]
    return f"{major}.{int(minor) + 1}.0"


def conversion_advice(fingerprint: Fingerprint) -> ConversionAdvice | None:
    """Return what the conversion of volumes should choose differently; None if nothing does.

    Args:
        fingerprint: data set of volumes; other kinds have no spacing, and their shape is the user's choice.
    """
    if fingerprint.kind != "volume":
        return None
    reasons, options = [], []
    stored, best = fingerprint.spacing_mm, fingerprint.best_spacing_mm
    ratio = max(max(one / other, other / one) for one, other in zip(stored, best, strict=True))
    spacing = stored
    if not fingerprint.common_spacing or ratio >= _SPACING_RATIO:
        why = (
            "the records have several spacings, and a kernel sees each at another size"
            if not fingerprint.common_spacing
            else f"the records have {_by(stored, ' x ')} mm"
        )
        reasons.append(f"spacing: {why}; the sources suggest {_by(best, ' x ')} mm")
        options += ["--spacing-mm", _by(best, ",")]
        spacing = best
    if reasons or fingerprint.lost_share > _LOST or fingerprint.padded_share > _PADDED:
        if fingerprint.lost_share > _LOST:
            reasons.append(f"shape: {fingerprint.lost_share:.1%} of a class or of the scans is in no record")
        elif fingerprint.padded_share > _PADDED:
            reasons.append(f"shape: {fingerprint.padded_share:.0%} of the stored voxels are padding")
        options += _shape_options(fingerprint, spacing)
    return ConversionAdvice(reasons=tuple(reasons), options=tuple(options)) if reasons else None


def _shape_options(fingerprint: Fingerprint, spacing: tuple[float, ...]) -> list[str]:
    """Return options for records that hold the largest scan and divide by the strides, or for windows of it."""
    needed = [
        max(1, round(size * before / after))
        for size, before, after in zip(
            fingerprint.largest_shape, fingerprint.spacing_mm, spacing, strict=True
        )
    ]
    most = LARGEST_PATCH[3]
    is_large = needed[0] * needed[1] * needed[2] > most
    if is_large:
        share = (most / (needed[0] * needed[1] * needed[2])) ** (1 / 3)
        needed = [max(1, round(size * share)) for size in needed]
    pooling = pooling_of(spacing, needed)
    divisors = pooling.divisors if pooling is not None else (1, 1, 1)
    # A record of whole divisors needs no padding in the network.
    sides = [-(-size // by) * by for size, by in zip(needed, divisors, strict=True)]
    words = [
        word
        for name, side in zip(("--depth", "--height", "--width"), sides, strict=True)
        for word in (name, str(side))
    ]
    if is_large:
        words += ["--fit", "tiles", "--tile-overlap", ",".join(str(side // _TILE_OVERLAP) for side in sides)]
    return words


def _by(sizes: tuple[float, ...], separator: str) -> str:
    return separator.join(f"{size:g}" for size in sizes)
