"""A plan that compares tiles with spatial splits for large pictures, as text for the terminal and as an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halofeed.inspection.html.page import check_output, rendered, write_page
from halofeed.inspection.plan_report import (
    BAR_PARTS,
    UNITS,
    PlanRow,
    bar_of,
    figure_source_lines,
    gibibytes,
    name_of_split,
    seconds,
    split_lines,
    verdict,
)
from halofeed.inspection.words import escape_unprintable, percent, table, titled_lines
from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

Way = Mapping[str, Any]
_WORK = ("records", "images", "steps", "overlap", "padding", "halos", "objects", "context")
_EPOCH = ("PFLOP", "at best")
_MEANINGS = (
    "records: per picture; images: per step; steps: per epoch, at least one",
    "overlap, padding: share of the records' pixels that another record shows too, or that show no picture",
    "halos: bytes that a core sends per step for rows of neighbors",
    "objects: largest side that is whole in some record, wherever the object is",
    "context: pixels of the picture around every pixel in some record, at least",
)


def size_text(size: list[int]) -> str:
    """Return a size as text.

    >>> size_text([20224, 20000])
    '20,224 x 20,000'
    """
    return " x ".join(f"{side:,}" for side in size)


def name_of_way(way: Way) -> str:
    """Return the name of a way: what a record shows, and over how many cores.

    >>> name_of_way({"record_size": [64, 64], "records": 4, "split": {"cores": 1, "partition": ""}})
    'tile 64 x 64, unsplit'
    """
    cores = way["split"]["cores"]
    shows = "whole" if way["records"] == 1 else "tile" if cores == 1 else "window"
    return f"{shows} {size_text(way['record_size'])}, {name_of_split(way['split'])}"


def describe_picture_plan(plan: Mapping[str, Any]) -> str:
    """Describe the comparison: each way with its figures, the recommended one with the reason, and its commands."""
    ways = plan["ways"]
    largest = max((way["split"].get("memory", {}).get("total") or 0 for way in ways), default=0)
    unit = "MiB" if largest < 2**28 else "GiB"
    head = ("way", "verdict", unit, "room", *_WORK, *_EPOCH)
    rows = [
        (name_of_way(way), verdict(way["split"]), *_memory(way, plan, unit), *_figures(way)) for way in ways
    ]
    lines = [
        _title(plan),
        "",
        *table(head, rows, right=range(2, len(head))),
        "",
        picture_advice(plan),
        *(f"  {command}" for command in plan_commands(plan)),
        *titled_lines("Columns", list(_MEANINGS)),
    ]
    for name, reasons in way_reasons(plan):
        lines += titled_lines(name, reasons)
    return escape_unprintable("\n".join([*lines, *figure_source_lines(plan)]))


def _title(plan: Mapping[str, Any]) -> str:
    config, topology, picture = plan["config"], plan["topology"], plan["picture"]
    chip = topology["chip"]
    memory = f" of {gibibytes(chip['memory_bytes'])}" if chip else ""
    return (
        f"{config['model']}, {plural(picture['count'], 'picture')} of {size_text(picture['size'])}, "
        f"overlap {size_text(picture['overlap'])}, {plural(plan['images_per_replica'], 'image')} per replica, on "
        f"{topology['name']}: {plural(topology['cores'], 'core')}{memory}"
    )


def _memory(way: Way, plan: Mapping[str, Any], unit: str) -> tuple[str, str]:
    """Format the memory of a core, and the share of the machine's memory that is left."""
    memory = way["split"].get("memory")
    if not memory or memory["total"] is None:
        return "", ""
    chip = plan["topology"]["chip"]
    limit = memory["limit"] or (chip["memory_bytes"] if chip else None)
    fits = limit is not None and way["split"]["fits"]
    return f"{memory['total'] / UNITS[unit]:.2f}", percent(1 - memory["total"] / limit) if fits else ""


def duration(value: float) -> str:
    """Format the time of an epoch in seconds, or in minutes from 100 seconds on.

    >>> duration(12.345), duration(2390)
    ('12.3 s', '39.8 min')
    """
    return seconds(value) if value < 100 else f"{value / 60:,.1f} min"


def _figures(way: Way) -> tuple[str, ...]:
    """Format the grid of a way, and its work if it fits."""
    whole, context = way["whole_object"], way["context"]
    halos, epoch = "", ("", "")
    if way["epoch"] is not None:
        sent = way["split"]["sent_bytes"]["halos"]
        halos = human_bytes(round(sent)) if sent else "-"
        at_best = way["epoch"]["seconds"]
        epoch = f"{way['epoch']['flops'] / 1e15:.3g}", "" if at_best is None else duration(at_best)
    return (
        f"{way['records']:,}",
        str(way["images_per_step"]),
        f"{way['steps']:,}",
        percent(way["overlap"]),
        percent(way["padding"]),
        halos,
        "any" if whole is None else str(whole),
        "all" if context is None else str(context),
        *epoch,
    )


def picture_advice(plan: Mapping[str, Any]) -> str:
    """Return a sentence with the recommended way and the reason."""
    if plan["recommended"] is None:
        return f"No way: {plan['reason']}."
    advice = f"Use {name_of_way(plan['ways'][plan['recommended']])}: {plan['reason']}."
    if plan["picture"]["object_size"] is None:
        advice += " --object-size N also takes into account which objects a tile shows whole."
    return advice


def plan_commands(plan: Mapping[str, Any]) -> list[str]:
    """Return the commands that convert and train in the recommended way; none if nothing fits."""
    if plan["recommended"] is None:
        return []
    way = plan["ways"][plan["recommended"]]
    height, width = way["record_size"]
    overlap = ",".join(map(str, plan["picture"]["overlap"]))
    convert = f"halofeed convert --source SOURCE --out data --fit tiles --height {height} --width {width}"
    train = plan.get("command", "halofeed train FOLDER")
    shape = plan["config"]["image_shape"]
    if shape and shape[:2] != [height, width]:
        train += " --set " + shlex.quote(f"image_shape=[{height},{width},{shape[-1]}]")
    split = way["split"]
    if split["cores"] > 1:
        train += f" --cores-per-replica {split['cores']} --partition '{split['partition']}'"
    return [f"{convert} --tile-overlap {overlap}", f"{train} --batch-size {split['batch_size']}"]


def way_reasons(plan: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return why ways do not fit or are impossible, what they gather, and which windows were not compiled."""
    found = [(name_of_way(way), split_lines(way["split"])) for way in plan["ways"]]
    skipped = [
        f"{size_text(entry['record_size'])} over {plural(entry['cores'], 'core')}: about "
        f"{gibibytes(entry['estimated_bytes'])} per core, in proportion to the pixels of the largest tile"
        for entry in plan["skipped"]
    ]
    return [
        *((name, lines) for name, lines in found if lines),
        *([("Not compiled, because it is far above the memory", skipped)] if skipped else []),
    ]


def write_picture_plan_page(plan: Mapping[str, Any], output: str | Path) -> Path:
    """Write the comparison as one self-contained HTML file; UsageError if it cannot be written."""
    file = Path(output)
    check_output(file, "plan.html")
    section = rendered("sections/picture_plan.html", **_section_values(plan))
    size = size_text(plan["picture"]["size"]).replace("x", "×")
    values = {
        "section": section,
        "plan": plan,
        "path": "",
        "topology": plan["topology"]["name"],
        "size": size,
    }
    return write_page(file, "plan.html", "report.css", **values)


def _section_values(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the template of the section."""
    chip, ways = plan["topology"]["chip"], plan["ways"]
    rows = [
        PlanRow(
            name=name_of_way(way),
            verdict=verdict(way["split"]),
            fits=way["split"]["fits"],
            images=str(way["images_per_step"]),
            memory=way["split"].get("memory", {}),
            step=(),
            reasons=[],
        )
        for way in ways
    ]
    totals = [row.memory["total"] or 0 for row in rows if row.memory]
    room = chip["memory_bytes"] if chip else None
    longest = max([*totals, room or 0, 1])
    return {
        "plan_lead": f"{_title(plan)}. Memory and work are from the compiler; nothing was run.",
        "advice": picture_advice(plan),
        "commands": plan_commands(plan),
        "legend_entries": [(color, name) for color, name, _ in BAR_PARTS],
        "bars_of_ways": [bar_of(row, longest) for row in rows],
        "room": gibibytes(room) if room else None,
        "room_share": 100 * room / longest if room else None,
        "head": ("way", *_WORK, *_EPOCH),
        "figures": [(name_of_way(way), *_figures(way)) for way in ways],
        "meanings": _MEANINGS,
        "source": chip["source"] if chip else None,
        "reasons": way_reasons(plan),
    }
