"""What does a report say of label maps and of volumes: classes, findings, grids, values? One function per section."""

from __future__ import annotations

import math
from collections.abc import Mapping

from halofeed.inspection import charts
from halofeed.inspection.display import Display, counts_of
from halofeed.inspection.facts import Facts, source_shapes, source_spacings, volume_sizings
from halofeed.inspection.findings import MEANINGS, TREATMENTS, split_finding
from halofeed.inspection.layout import card, colour_of, legend, section
from halofeed.inspection.lines import percent, plural
from halofeed.inspection.markup import Markup, element, table
from halofeed.inspection.segmentation import class_channels
from halofeed.prep.volume.counts import Counts, mean_and_deviation, percentile
from halofeed.prep.volume.statistics import ROW_STEP

_MOST_CLASSES, _FIRST_CLASSES = 130, 20


def split_legend(facts: Facts) -> Markup | None:
    """Which colour each split has; None where there is one alone."""
    if len(facts.splits) < 2:
        return None
    return legend((f"s{at}", name) for at, name in enumerate(facts.splits))


def class_voxels(facts: Facts, ranks: Mapping[int, int]) -> Markup:
    """Per class its pixels or voxels and their share, and what share of everything is foreground."""
    unit = "voxels" if facts.is_volume else "pixels"
    source, cut = (
        {int(value): int(mm3) for value, mm3 in facts.total.get(key, {}).items()}
        for key in ("label_mm3", "label_cut_mm3")
    )
    counted = dict.fromkeys(source, 0)
    counted.update({int(value): int(count) for value, count in facts.total.get("label_voxels", {}).items()})
    records = {int(value): int(count) for value, count in facts.total.get("labels", {}).items()}
    foreground = int(facts.total.get("foreground_voxels", 0))
    everything = foreground + counted.get(0, 0)
    labelled = int(facts.total.get("labelled", 0))
    without = facts.records - labelled
    notes = []
    if without:
        notes.append(
            f"{plural(without, *facts.noun)} of {facts.records:,} "
            f"{'has' if without == 1 else 'have'} no label and {'is' if without == 1 else 'are'} for prediction: the "
            f"label is 0 throughout, labelled is false, and {'it is' if without == 1 else 'they are'} not counted here."
        )
    if class_channels(facts.manifest):
        notes.append(
            "Classes overlap: a voxel counts for each of its classes, so that shares may add to more."
        )
    if not labelled:
        return element("div", "card", element("p", "note", f"No {facts.noun[0]} has a label."), _notes(notes))
    rows = []
    order = sorted(counted.keys() - {0}, key=lambda value: (-counted[value], value))
    for value in order[:_MOST_CLASSES]:
        swatch = element("i", {"class": "swatch", "style": colour_of(ranks.get(value, 0))})
        each = counted[value] / records[value] if records.get(value) else 0
        rows.append(
            [
                element("span", None, swatch, facts.label_name(value)),
                str(value),
                f"{records.get(value, 0):,}",
                f"{counted[value]:,}",
                f"{each:,.0f}",
                percent(counted[value] / foreground),
                percent(counted[value] / everything),
                *(
                    [percent(cut.get(value, 0) / source[value])]
                    if source.get(value)
                    else ["–"]
                    if source
                    else []
                ),
            ]
        )
    more = None
    if len(order) > _MOST_CLASSES:
        notes.append(f"{len(order) - _MOST_CLASSES:,} smaller classes are not shown.")
    share = percent(foreground / everything)
    shares = charts.shares([("s0", foreground), ("left", everything - foreground)])
    keys = legend([("s0", f"foreground {share}"), ("left", "background, padding included")])
    head = ["class", "id", facts.noun[1], unit, f"each {facts.noun[0]}", "of the foreground", "of everything"]
    if source:
        head.append("cut off")
        notes.append(
            "“Cut off” is the share of the class's volume in the sources that no record shows, because the static "
            "shape or a crop leaves it out."
        )
    if len(rows) > _FIRST_CLASSES:
        summary = element(
            "summary", None, plural(len(rows) - _FIRST_CLASSES, "smaller class", "smaller classes")
        )
        more = element(
            "details", None, summary, table(head, rows[_FIRST_CLASSES:], numbers=range(1, len(head)))
        )
    return card(
        f"{unit.capitalize()} of each class",
        shares,
        keys,
        table(head, rows[:_FIRST_CLASSES], numbers=range(1, len(head)))
        if rows
        else element("p", "note", "Every label is empty."),
        more,
        _notes(notes),
    )


def findings(facts: Facts) -> Markup:
    """What was found odd about the sources, what was done about it, and what it means."""
    counted = facts.per_split("findings")
    tiles = int(facts.total.get("tiles", 0))
    scans = facts.records - tiles
    if not counted:
        return section(
            "findings",
            "Findings and corrections",
            element(
                "p", "note", f"None: nothing odd was found in {plural(scans, 'scan')}, and nothing corrected."
            ),
        )
    rows = []
    for key, counts in sorted(counted.items(), key=lambda item: (-sum(item[1]), item[0])):
        name, treatment = split_finding(key)
        rows.append(
            element(
                "div",
                "reject finding",
                element("b", treatment or None, f"{sum(counts):,}"),
                element(
                    "div",
                    None,
                    element("p", None, name, " ", element("span", "stage", treatment) if treatment else None),
                    element("p", "meaning", MEANINGS.get(name, "")) if name in MEANINGS else None,
                    element("p", "meaning", _by_split(facts, counts)) if len(facts.splits) > 1 else None,
                ),
            )
        )
    meanings = "; ".join(f"“{name}”: {words}" for name, words in TREATMENTS.items())
    return section(
        "findings",
        "Findings and corrections",
        element("div", "card", element("div", "rejects", rows)),
        lead=f"How many of {plural(scans, 'scan')} have each. {meanings}.",
    )


def grids(facts: Facts) -> Markup:
    """Spacing and size of the sources, and what cropping and padding to the static shape costs."""
    spacings, shapes = source_spacings(facts), source_shapes(facts)
    through: dict[float, list[int]] = {}
    within: dict[float, list[int]] = {}
    for (depth, height, _), counts in spacings.items():
        for into, value in ((through, depth), (within, height)):
            known = into.setdefault(value, [0] * len(counts))
            into[value] = [a + b for a, b in zip(known, counts, strict=True)]
    slices: dict[int, list[int]] = {}
    for key, counts in facts.per_split("source_shapes").items():
        depth = int(key.split("x")[0])
        known_slices = slices.setdefault(depth, [0] * len(counts))
        slices[depth] = [a + b for a, b in zip(known_slices, counts, strict=True)]
    planes: dict[tuple[int, int], int] = {}
    for (_, height, width), count in shapes.items():
        planes[height, width] = planes.get((height, width), 0) + count
    recipe = facts.manifest.recipe
    wanted = recipe.get("spacing_mm") or ()
    stated = (
        f"Records are resampled to {' × '.join(f'{value:g}' for value in wanted)} mm."
        if wanted
        else "Records keep each scan's own spacing."
    )
    static_depth = facts.size[0] if facts.is_volume else 0
    charts_shown = element(
        "div",
        "columns",
        card("Spacing between slices", charts.spread(through, unit="mm")),
        card(
            "Spacing within a slice",
            charts.spread(within, unit="mm"),
            note="Down the picture; across is the same in nearly all scans.",
        ),
        card(
            "Slices",
            charts.histogram(slices, unit="slices", marker=(static_depth, f"stored {static_depth}")),
        ),
        card(
            "Height × width",
            charts.bubbles(planes, (facts.size[-2], facts.size[-1])),
            note="Area is the count. The frame is the stored size.",
        ),
    )
    common = sorted(spacings.items(), key=lambda item: (-sum(item[1]), item[0]))[:3]
    lead = stated
    if common:
        spacing, counts = common[0]
        usual = " × ".join(f"{value:g}" for value in spacing)
        lead += f" The most common spacing of the sources is {usual} mm ({plural(sum(counts), 'scan')})."
    lead += " Depth, height and width are along superior, anterior and right, whatever the file's order."
    sizings = volume_sizings(facts)
    rows = [
        [
            name,
            " × ".join(map(str, shape)),
            percent(padded),
            "–" if cut is None else percent(cut),
            f"{math.prod(shape) / math.prod(facts.size):.2f}×",
        ]
        for name, shape, padded, cut in sizings
    ]
    note = "“Cut off” is the share of the scans that no record shows. The first line is counted"
    if sizings[0][3] is None:
        note += ", but for what is cut off: this version of the data set does not say it"
    note += "; the others are worked out from the sources' shapes." if len(sizings) > 1 else "."
    return section(
        "sizes",
        "Spacing, sizes and padding",
        split_legend(facts),
        charts_shown if spacings else element("p", "note", "No scan was counted."),
        card(
            "What padding and cropping cost",
            table(
                ("static shape", "depth × height × width", "padding", "cut off", "voxels"),
                rows,
                numbers=(1, 2, 3, 4),
            ),
            note=note,
        ),
        lead=lead,
    )


def intensities(facts: Facts, display: Display) -> Markup:
    """How values are spread in the body and where something is labelled, with the window, and their figures."""
    body, foreground = counts_of(facts.total, "body"), counts_of(facts.total, "foreground")
    unit = {"HU": "Hounsfield units"}.get(display.unit, "stored value")
    title = "Hounsfield units" if display.unit == "HU" else "Values"
    if not body.total:
        return section("values", title, element("p", "note", "No values were counted."))
    known = [counts for counts in (body, foreground) if counts.total]
    ends = min(percentile(counts, 0.1) for counts in known), max(percentile(counts, 99.9) for counts in known)
    low, high = (display.value(end) for end in ends)
    window = display.window
    shown = (window.low, window.high) if window else None
    if window:
        low, high = min(low, window.low), max(high, window.high)
    room = max((high - low) * 0.02, 1e-6)
    step = display.slope if display.dtype in ("uint8", "int16", "uint16") else 0.0
    series = [
        (kind, [display.value(value) for value in counts.values.tolist()], counts.counts.tolist())
        for kind, counts in (("grey", body), ("red", foreground))
        if counts.total
    ]
    if window is None:
        band = "The recipe has no window: nothing is drawn in."
        percentiles: tuple[float, ...] = tuple(facts.manifest.recipe.get("window_percentiles") or ())
        if len(percentiles) == 2:
            band = (
                f"Each scan has a window of its own, from its {percentiles[0]:g}th to its {percentiles[1]:g}th "
                "percentile, so these are stored values."
            )
    else:
        band = f"The band is the recipe's window, {window.low:g} to {window.high:g} HU."
        band += (
            " What lies beyond is stored as its ends."
            if display.dtype != "uint8"
            else " It is stored as 0 to 255; what lies beyond, as the ends."
        )
    keys = [("ink-grey", f"all above each scan's least value ({plural(body.total, 'voxel')})")]
    keys.append(
        ("ink-red", f"labelled ({plural(foreground.total, 'voxel')})")
        if foreground.total
        else ("left", "nothing is labelled")
    )
    return section(
        "values",
        title,
        legend(keys),
        element(
            "div",
            "columns",
            card(
                "How often each value is",
                charts.densities(
                    series, shown, (low - room, high + room), unit=unit, step=step, origin=display.intercept
                ),
                note=f"{band} Each curve has a height of its own; spikes are cut off.",
            ),
            card("Figures for normalisation", *_figures(facts, display)),
        ),
        lead=f"Of every {ROW_STEP}th row of each slice"
        + (", first channel" if facts.image.shape[-1] > 1 else "")
        + ", before any augmentation.",
    )


def _figures(facts: Facts, display: Display) -> list[Markup]:
    rows = []
    for name, key in (("all", "body"), ("labelled", "foreground")):
        for split in facts.splits:
            counts = counts_of(facts.manifest.splits[split].statistics, key)
            if counts.total:
                mean, deviation = mean_and_deviation(counts)
                rows.append(
                    [
                        name,
                        split,
                        f"{display.value(mean):,.2f}",
                        f"{deviation * display.slope:,.2f}",
                        *(f"{display.value(percentile(counts, at)):,.5g}" for at in (0.5, 50, 99.5)),
                    ]
                )
    shown: list[Markup] = [
        table(
            ("voxels", "split", "mean", "deviation", "0.5 %", "median", "99.5 %"), rows, numbers=range(2, 7)
        )
    ]
    split = next((name for name in facts.splits if name.startswith("train")), facts.splits[0])
    train = facts.manifest.splits[split].statistics
    chosen = counts_of(train, "foreground")
    which = f"Of the labelled voxels of {split}, as stored"
    if not chosen.total:
        chosen, which = (
            counts_of(train, "body"),
            f"Nothing is labelled in {split}; of all its voxels, as stored",
        )
    if chosen.total:
        shown.append(element("p", "note", f"{which}, for z-scores:"))
        shown.append(element("pre", None, element("code", None, _z_scores(chosen))))
    return shown


def _z_scores(counts: Counts) -> str:
    mean, deviation = mean_and_deviation(counts)
    return f"mean = {mean:.4f}\nstd = {deviation:.4f}"


def _by_split(facts: Facts, counts: list[int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in zip(facts.splits, counts, strict=True) if count)


def _notes(notes: list[str]) -> list[Markup]:
    return [element("p", "note", note) for note in notes]
