"""HTML page of a training plan, which is also a section of a data set's report: a memory bar for each split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halofeed.inspection.html.page import check_output, rendered, times, write_page
from halofeed.inspection.plan_words import (
    figures,
    gibibytes,
    images_per_replica,
    memory_totals,
    name_of_split,
    reasons,
    recommendation,
    verdict,
)
from halofeed.system.wording import plural

PARTS = (
    ("s0", "parameters", ("parameters",)),
    ("s1", "optimizer", ("optimizer",)),
    ("s2", "activations", ("activations",)),
    ("s3", "padding to tiles", ("padding",)),
    ("s4", "batch and program", ("batch", "program")),
)
"""Segments of a bar: color, name, and the entries of a split's memory that it adds up."""


def write_plan_page(plan: Mapping[str, Any], output: str | Path) -> Path:
    """Write a plan as one self-contained HTML file; UsageError if it cannot be written."""
    file = Path(output)
    check_output(file, "plan.html")
    section = rendered("sections/plan.html", **plan_section_values(plan))
    topology = plan["topology"]["name"]
    values = {"section": section, "plan": plan, "path": "", "topology": topology, "size": _size_of(plan)}
    return write_page(file, "plan.html", "report.css", **values)


def _size_of(plan: Mapping[str, Any]) -> str:
    """Return the size of an image without the channel."""
    return times(plan["image_shape"][:-1])


def plan_section_values(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the template of the section."""
    topology = plan["topology"]
    chip = topology["chip"]
    totals = memory_totals(plan)
    room = chip["memory_bytes"] if chip else max(totals, default=1)
    longest = max(room, *totals) if totals else room
    return {
        "plan_lead": f"{plan['config']['model']}, {_size_of(plan)}, on {topology['name']} "
        f"({plural(topology['cores'], 'core')}). All figures are from the compiler; nothing was run or estimated.",
        "advice": recommendation(plan),
        "legend_entries": [(color, name) for color, name, _ in PARTS],
        "bars_of_splits": [_bar(split, longest) for split in plan["splits"]],
        "room_share": 100 * room / longest if chip else None,
        "room": gibibytes(room) if chip else None,
        "figures": [
            (name_of_split(split), images_per_replica(split), *figures(split))
            for split in plan["splits"]
            if split["fits"]
        ],
        "reasons": [(name_of_split(split), lines) for split in plan["splits"] if (lines := reasons(split))],
        "source": chip["source"] if chip else None,
    }


def _bar(split: Mapping[str, Any], longest: int) -> dict[str, Any]:
    memory = split.get("memory", {})
    parts = [(color, name, sum(memory.get(key) or 0 for key in keys)) for color, name, keys in PARTS]
    rest = (memory.get("total") or 0) - sum(size for *_, size in parts)
    return {
        "name": name_of_split(split),
        "verdict": verdict(split),
        "fits": split["fits"],
        "total": gibibytes(memory["total"]) if memory.get("total") else "",
        "parts": [
            (color, f"{name}: {gibibytes(size)}", 100 * size / longest)
            for color, name, size in [*parts, ("s5", "other memory", max(0, rest))]
            if size
        ],
    }
