"""What does a plan say, as text for a terminal?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halofeed.inspection.facts.plan import (
    gibibytes,
    level_lines,
    name_of_split,
    peak_lines,
    recommendation,
    search_lines,
    seconds,
    sent,
    split_lines,
    total_of,
    verdict,
)
from halofeed.inspection.facts.words import percent, plural, printable, section, table


def describe_plan(plan: Mapping[str, Any]) -> str:
    """Every split with its verdict and figures, what to take, and why."""
    topology, config = plan["topology"], plan["config"]
    chip = topology["chip"]
    unit = unit_of(plan)
    lines = [
        f"{config['model']}, {' x '.join(map(str, plan['image_shape']))}, {config['compute_dtype']}, "
        f"{config['optimizer']}{', --remat' if config['remat'] else ''}, on {topology['name']}: "
        + plural(topology["cores"], "core")
        + (f" of {gibibytes(chip['memory_bytes'])}" if chip else ""),
        "",
        *table(_head(unit), [_row(split, unit) for split in plan["splits"]], right=range(2, _COLUMNS)),
        "",
        recommendation(plan),
    ]
    for split in plan["splits"]:
        why = [*split_lines(split), *level_lines(split), *peak_lines(split)]
        if why:
            lines += section(name_of_split(split), why)
    if savings := plan.get("savings"):
        lines += section("What would save memory, compiled", list(_saving_lines(savings)))
    if search := plan.get("search"):
        lines += section(f"The largest {search['of']} that fits", search_lines(search))
    if chip:
        bound = f"At best: FLOP, bytes of memory and bytes sent over the published peaks ({chip['source']}); a bound."
        lines += ["", bound]
    compiler = plan["versions"]["libtpu" if topology["platform"] == "tpu" else "jaxlib"]
    name = "libtpu" if topology["platform"] == "tpu" else "jaxlib"
    lines += [f"Said by {name} {compiler} with jax {plan['versions']['jax']}, figures are a core's."]
    return printable("\n".join(lines))


_COLUMNS = 13
_UNITS = {"GiB": 2**30, "MiB": 2**20}


def unit_of(plan: Mapping[str, Any]) -> str:
    """GiB, or MiB where no split takes a quarter of one."""
    totals = [total_of(split) or 0 for split in plan["splits"] if "memory" in split]
    return "MiB" if max(totals, default=0) < 2**28 else "GiB"


def _head(unit: str) -> tuple[str, ...]:
    memory = (unit, "params", "optim.", "activ.", "padding")
    return ("split", "verdict", "images", *memory, "halos", "sums", "gathers", "TFLOP", "at best")


def _row(split: Mapping[str, Any], unit: str) -> tuple[str, ...]:
    row = [name_of_split(split), verdict(split), f"{split['batch_size'] / split['replicas']:g}"]
    if "memory" in split:
        names = ("total", "parameters", "optimizer", "activations", "padding")
        sizes = [split["memory"].get(name) for name in names]
        row += ["" if size is None else f"{size / _UNITS[unit]:.2f}" for size in sizes]
    if split["fits"]:
        bound = split["bound"]
        row += [sent(split, kind) for kind in ("halos", "all-reduces", "gathers")]
        row += [f"{split['flops'] / 1e12:.3g}", f"{seconds(bound['step'])}, {bound['by']}" if bound else ""]
    return (*row, *[""] * (_COLUMNS - len(row)))


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
