"""How do the scans of a report look: three planes on one scale, the classes over them, and what they are?

axial       what the record is
coronal     sagittal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from halofeed.inspection.display import Display
from halofeed.inspection.facts import Facts
from halofeed.inspection.gallery import mask_switch
from halofeed.inspection.layout import colour_of, section
from halofeed.inspection.lines import percent
from halofeed.inspection.markup import Markup, element, join
from halofeed.inspection.planes import Plane, ScanSample, axis_name
from halofeed.inspection.segmentation import class_channels

_MOST_CHIPS = 12
_FLAT = 4
_CONVENTION = (
    "Three planes through the centroid of all that is labelled (the nearest that meets some of it), or through the "
    "middle where nothing is. As radiologists look: the patient's right is on the left of the picture, anterior is up "
    "in axial planes and on the left in sagittal ones, superior is up. All planes of a scan have one scale, true to "
    "millimetres; padding is left out."
)


def scans(facts: Facts, shown: Sequence[ScanSample], display: Display) -> Markup:
    """The planes of some records with their classes; the awkward ones come last."""
    ranks = {label: rank for rank, label in enumerate(facts.label_counts())}
    cards = [_scan(facts, sample, ranks) for sample in shown]
    words = display.words + (" The first channel is shown." if facts.image.shape[-1] > 1 else "")
    if class_channels(facts.manifest):
        words += " Classes overlap: where several are, the one of the highest id is drawn; shares count each."
    return section(
        "samples",
        "Samples",
        mask_switch() if shown else None,
        element("p", "notice", words) if shown else None,
        element("div", "gallery scans", cards) if cards else element("p", "note", "No record is shown."),
        lead=_CONVENTION if shown else None,
    )


def _scan(facts: Facts, sample: ScanSample, ranks: Mapping[int, int]) -> Markup:
    axial, coronal, sagittal = sample.planes
    columns = (
        f"grid-template-columns:minmax(0,{axial.size_mm[1]:.2f}fr) minmax(0,{sagittal.size_mm[1]:.2f}fr)"
    )
    place = f"{sample.candidate.split}:{sample.candidate.number}"
    return element(
        "article",
        "sample",
        element(
            "div",
            {"class": "planes", "style": columns},
            _plane(axial, sample),
            _about(facts, sample, ranks),
            _plane(coronal, sample),
            _plane(sagittal, sample),
        ),
        element(
            "p",
            "where",
            element("code", None, place),
            element("span", {"class": "file", "title": sample.source}, sample.source),
            element("span", "remark", f"tile {sample.tile}") if facts.total.get("tiles") else None,
            element("span", "reason", sample.reason) if sample.reason else None,
        ),
    )


def _plane(plane: Plane, sample: ScanSample) -> Markup:
    at, size = plane.position
    caption = f"{plane.name}, {axis_name(plane)} {at} of {size}"
    ratio = plane.size_mm[1] / plane.size_mm[0]
    # A flat picture has no room for what is above and below, a narrow one none for what is beside.
    room = "lr" if ratio > _FLAT else "tb" if ratio < 1 / _FLAT else "lrtb"
    sides = [
        element("span", f"side {kind}", letter)
        for kind, letter in zip("lrtb", plane.sides, strict=True)
        if kind in room
    ]
    frame = element(
        "div",
        {"class": "picture", "style": f"--ratio:{ratio:.5f}"},
        element("img", {"src": plane.uri, "alt": f"{caption}: {sample.source}"}),
        element("img", {"class": "mask", "src": plane.mask, "alt": "its classes"}) if plane.mask else None,
        sides,
    )
    return element("figure", None, frame, element("figcaption", None, caption))


def _about(facts: Facts, sample: ScanSample, ranks: Mapping[int, int]) -> Markup:
    counted = sorted(
        ((count, value) for value, count in sample.classes.voxels.items() if value),
        key=lambda item: (-item[0], item[1]),
    )
    foreground = sample.classes.foreground
    everything = foreground + sample.classes.voxels.get(0, 0)
    chips = [
        element(
            "span",
            {"class": "chip", "style": colour_of(ranks.get(value, 0)), "title": f"{count:,} voxels"},
            facts.label_name(value),
            element("small", None, f" {percent(count / foreground)}"),
        )
        for count, value in counted[:_MOST_CHIPS]
    ]
    if len(counted) > _MOST_CHIPS:
        chips.append(element("span", "chip plain", f"and {len(counted) - _MOST_CHIPS} more"))
    if not counted:
        none = "nothing but background" if sample.labelled else "no label: for prediction"
        chips.append(element("span", "chip plain", none))
    rows = [
        ("spacing", f"{_lengths(sample.spacing_mm)} mm"),
        ("padding", percent(sample.padding)),
        ("labelled", f"{percent(foreground / everything)} of the voxels" if sample.labelled else "no"),
    ]
    if sample.source_shape:
        rows.append(("source", " × ".join(map(str, sample.source_shape))))
    if sample.source_spacing_mm:
        rows.append(("", f"every {_lengths(sample.source_spacing_mm)} mm"))
    listed = join(join([element("dt", None, name), element("dd", None, value)]) for name, value in rows)
    return element("div", "about", element("p", "chips", chips), element("dl", None, listed))


def _lengths(values: Sequence[float]) -> str:
    return " × ".join(f"{value:.3g}" for value in values)
