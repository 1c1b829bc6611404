"""What does a plan say, as text for a terminal?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halofeed.inspection.facts.plan import (
    figures,
    gibibytes,
    images_of,
    name_of_split,
    reasons,
    recommendation,
    search_lines,
    seconds,
    total_of,
    verdict,
)
from halofeed.inspection.facts.words import percent, plural, printable, section, table


def describe_plan(plan: Mapping[str, Any]) -> str:
    """Every split with its verdict and figures, what to take, and why."""
    topology, config = plan["topology"], plan["config"]
    chip = topology["chip"]
    unit = unit_of(plan)
    head = ("split", "verdict", "images", unit, *_MEMORY, "halos", "sums", "gathers", "TFLOP", "at best")
    lines = [
        f"{config['model']}, {' x '.join(map(str, plan['image_shape']))}, {config['compute_dtype']}, "
        f"{config['optimizer']}{', rematerialized' if config['remat'] else ''}, on {topology['name']}: "
        + plural(topology["cores"], "core")
        + (f" of {gibibytes(chip['memory_bytes'])}" if chip else ""),
        "",
        *table(head, [_row(split, unit) for split in plan["splits"]], right=range(2, len(head))),
        "",
        recommendation(plan),
    ]
    for split in plan["splits"]:
        if why := reasons(split):
            lines += section(name_of_split(split), why)
    if savings := plan.get("savings"):
        lines += section("What would save memory, compiled", list(_saving_lines(savings)))
    if search := plan.get("search"):
        lines += section(f"The largest {search['of']} that fits", search_lines(search))
    if chip:
        bound = f"At best: FLOP, bytes of memory and bytes sent over the published peaks ({chip['source']}); a bound."
        lines += ["", bound]
    compiler, versions = "libtpu" if topology["platform"] == "tpu" else "jaxlib", plan["versions"]
    said = f"Said by {compiler} {versions[compiler]} with jax {versions['jax']}, figures are a core's."
    lines.append(said)
    return printable("\n".join(lines))


_MEMORY = {"params": "parameters", "optim.": "optimizer", "activ.": "activations", "padding": "padding"}
_UNITS = {"GiB": 2**30, "MiB": 2**20}


def unit_of(plan: Mapping[str, Any]) -> str:
    """GiB, or MiB where no split takes a quarter of one."""
    totals = [total_of(split) or 0 for split in plan["splits"] if "memory" in split]
    return "MiB" if max(totals, default=0) < 2**28 else "GiB"


def _row(split: Mapping[str, Any], unit: str) -> tuple[str, ...]:
    memory = split.get("memory", {})
    sizes = [memory.get(name) for name in ("total", *_MEMORY.values())]
    shown = ("" if size is None else f"{size / _UNITS[unit]:.2f}" for size in sizes)
    bound = split["bound"] if split["fits"] else None
    at_best = f"{seconds(bound['step'])}, {bound['by']}" if bound else ""
    done = figures(split) if split["fits"] else ("",) * 4
    return (name_of_split(split), verdict(split), images_of(split), *shown, *done, at_best)


def _saving_lines(savings: Mapping[str, Any]) -> Iterator[str]:
    before = savings["before"]
    yield f"{name_of_split(before)} as it is: {verdict(before)}, {gibibytes(total_of(before))}"
    for entry in savings["changes"]:
        after = entry["split"]
        if "memory" not in after:
            yield f"{entry['change']}: {after['refused']}"
            continue
        line = f"{entry['change']}: {verdict(after)}, {gibibytes(total_of(after))}"
        if after["fits"] and before["fits"] and before["flops"]:
            line += f", {percent(after['flops'] / before['flops'] - 1)} more FLOP"
        yield line
