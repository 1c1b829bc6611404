"""How do the samples of a report look: the source and the stored picture, side by side?"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from halofeed.inspection.facts import Facts
from halofeed.inspection.layout import colour_of, section
from halofeed.inspection.markup import Markup, element, join
from halofeed.inspection.samples import Picture, Sample

_MOST_CHIPS = 14
_TAG_WIDTH, _TAG_LETTER = 0.055, 0.024
"""A box's tag on a picture of width 1: its least width, and what each letter adds."""
_TAG_HEIGHT = 0.065


def samples(facts: Facts, shown: Sequence[Sample], source: str, sources_found: bool) -> Markup:
    """Pictures before and after, with their boxes; the awkward ones come last."""
    ranks = {label: rank for rank, label in enumerate(facts.label_counts())}
    notice = None
    if shown and not sources_found:
        where = join(["at ", element("code", None, source)]) if source else "named in the manifest"
        notice = element(
            "p",
            "notice",
            "The source pictures are not ",
            where,
            ", so only the stored ones are shown. If they were moved: ",
            element("code", None, f"halofeed report {shlex.quote(facts.path)} --source FOLDER"),
        )
    cards = [_sample(facts, sample, ranks) for sample in shown]
    lead = (
        "Left, the source as its file stores it; right, what a training step gets. The boxes on the source are "
        "the stored ones mapped back through each record's transform, so both must fit."
        if facts.is_detection
        else "Left, the source as its file stores it; right, what a training step gets."
    )
    if facts.is_segmentation:
        lead += " Over the stored picture lie the classes of its label."
    if any(sample.stored.content != (1.0, 1.0) for sample in shown):
        lead += " Hatched is padding."
    return section(
        "samples",
        "Samples",
        mask_switch() if facts.is_segmentation else None,
        notice,
        element("div", "gallery", cards) if cards else element("p", "note", "No record is shown."),
        lead=lead if sources_found and shown else None,
    )


def mask_switch() -> Markup:
    """A box that hides the classes, so that what lies under them is seen."""
    box = element("input", {"type": "checkbox", "id": "masks", "checked": "checked"})
    return element("label", "switch", box, " show the classes over the pictures")


def _sample(facts: Facts, sample: Sample, ranks: Mapping[int, int]) -> Markup:
    counted = Counter(sample.candidate.labels)
    chips = [
        element(
            "span",
            {"class": "chip", "style": colour_of(ranks.get(label, 0))},
            facts.label_name(label),
            element("small", None, f" {count}") if facts.is_detection else None,
        )
        for label, count in counted.most_common(_MOST_CHIPS)
    ]
    if len(counted) > _MOST_CHIPS:
        chips.append(element("span", "chip plain", f"and {len(counted) - _MOST_CHIPS} more"))
    if (facts.is_detection or facts.has_several_classes) and not counted:
        chips.append(element("span", "chip plain", "no boxes" if facts.is_detection else "no class"))
    if facts.is_segmentation and not counted:
        none = "nothing but background" if sample.candidate.labelled else "no label: for prediction"
        chips.append(element("span", "chip plain", none))
    stored = sample.stored
    unpadded = [round(side * share) for side, share in zip(stored.size, stored.content, strict=True)]
    inside = f", picture {_size(unpadded)}" if tuple(unpadded) != stored.size else ""
    pictures = [
        _picture(
            facts,
            sample,
            stored,
            ranks,
            f"stored {_size(stored.size)}{inside}",
            width=stored.size[1],
            tags=True,
        )
    ]
    if sample.before is not None:
        # The same scale as the stored picture's, so that what is one thing has one size in both.
        width = unpadded[1] if sample.candidate.orientation < 5 else unpadded[0]
        caption = f"source {_size(sample.before.size)}"
        pictures.insert(0, _picture(facts, sample, sample.before, ranks, caption, width=width, tags=False))
    place = f"{sample.candidate.split}:{sample.candidate.number}"
    return element(
        "article",
        "sample",
        element("div", "pair" if len(pictures) == 2 else "pair alone", pictures),
        element("p", "chips", chips),
        element(
            "p",
            "where",
            element("code", None, place),
            element("span", {"class": "file", "title": sample.source}, sample.source),
            element("span", "reason", sample.reason) if sample.reason else None,
            [element("span", "remark", note) for note in sample.notes],
        ),
        element("p", "notice", sample.trouble) if sample.trouble else None,
    )


def _size(sides: Sequence[int]) -> str:
    return f"{sides[0]} × {sides[1]}"


def _picture(
    facts: Facts,
    sample: Sample,
    picture: Picture,
    ranks: Mapping[int, int],
    caption: str,
    *,
    width: int,
    tags: bool,
) -> Markup:
    """A picture under its boxes; `width` is its part of the row's width."""
    share = {"style": f"flex:{width} 1 0"}
    height, width = picture.size
    drawn, names = [], []
    taken: list[tuple[float, float, float, float]] = []
    for label, box in zip(sample.candidate.labels, picture.boxes.tolist(), strict=False):
        top, left, bottom, right = box
        style = colour_of(ranks.get(label, 0))
        sides = {
            "x": left * width,
            "y": top * height,
            "width": (right - left) * width,
            "height": (bottom - top) * height,
        }
        drawn.append(
            element("rect", {"style": style, **{name: f"{value:.2f}" for name, value in sides.items()}})
        )
        name = facts.label_name(label)
        length = min(0.6, _TAG_WIDTH + _TAG_LETTER * len(name))
        start = max(0.0, left if left + length <= 1 else min(right, 1.0) - length)
        # Above the box where there is room, so that a small object is not covered.
        high = _TAG_HEIGHT * width / height
        foot = min(top, 1.0) if top >= high else min(max(top, 0.0), 1 - high) + high
        room = (start, foot - high, start + length, foot)
        if tags and not any(_overlap(room, other) for other in taken):
            taken.append(room)
            side = (
                f"left:{100 * left:.2f}%" if left + length <= 1 else f"right:{100 * max(0.0, 1 - right):.2f}%"
            )
            place = f"{style};{side};bottom:{100 * (1 - foot):.2f}%"
            names.append(element("span", {"class": "tag", "style": place}, name))
    padding = None
    if picture.content != (1.0, 1.0):
        down, across = (f"{100 * share:.2f}%" for share in picture.content)
        corner = f"polygon({across} 0,100% 0,100% 100%,0 100%,0 {down},{across} {down})"
        padding = element("span", {"class": "padding", "style": f"clip-path:{corner}"})
    mask = (
        element("img", {"class": "mask", "src": picture.mask, "alt": "its classes"}) if picture.mask else None
    )
    overlay = element(
        "svg",
        {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none", "aria-hidden": "true"},
        element("g", "halo", drawn) if drawn else None,
        element("g", "boxes", drawn) if drawn else None,
    )
    image = element("img", {"src": picture.uri, "alt": f"{caption}: {sample.source}"})
    small = " tiny" if max(picture.size) <= 64 else ""
    ratio = width / height
    frame = element(
        "div",
        {"class": f"picture{small}", "style": f"--ratio:{ratio:.5f}"},
        image,
        mask,
        padding,
        overlay,
        names,
    )
    return element("figure", share, frame, element("figcaption", None, caption))


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
