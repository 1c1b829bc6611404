"""A training plan as text for the terminal, and as an HTML page, which is also a section of a data set's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.inspection.html.page import check_output, rendered, write_page
from halofeed.inspection.words import escape_unprintable, percent, table, times, titled_lines
from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

PlanSplit = Mapping[str, Any]
_MAX_GATHERS = 6
_MAX_ARRAYS = 3
_MIN_ARRAY_BYTES = 1 << 20
"""A smaller array explains the memory of no machine, and a small model has several alike."""
_MAX_LEVELS = 6
_MAX_SLICES = 4
_MEMORY = {"params": "parameters", "optim.": "optimizer", "activ.": "activations", "padding": "padding"}
"""Columns of memory in text, and the entries of a split's memory."""
UNITS = {"GiB": 2**30, "MiB": 2**20}
BAR_PARTS = (
    ("s0", "parameters", ("parameters",)),
    ("s1", "optimizer", ("optimizer",)),
    ("s2", "activations", ("activations",)),
    ("s3", "padding to tiles", ("padding",)),
    ("s4", "batch and program", ("batch", "program")),
)
"""Segments of a bar: color, name, and the entries of a split's memory that it adds up."""
REWRITES = {
    "reduce_window_max": "the next level is not split; choose a side that divides more often",
    "select_and_scatter_add": "the next level is not split; choose a side that divides more often",
    "conv_general_dilated": "its input or output level is not split; choose a side that divides more often",
    "sort": "sort the part of each core first, then merge the largest values",
    "top_k": "take the largest values of each core first, then the largest of those",
    "concatenate": "keep the levels separate and sum their losses",
    "reshape": "reshape only the axes after the split axis",
    "gather": "index by one-hot products, or per core",
    "scatter-add": "sum by one-hot products, or per core",
    "resize": "repeat rows and columns, or multiply by a matrix for each axis",
}
"""Replacement for an operation that gathers a tensor, by the name that JAX gives the operation."""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One split of a plan, as text and pages show it.

    Args:
        name: number of cores and parts.
        verdict: "fits", "does not fit", "impossible", or "compiles" if the memory of the machine is unknown.
        fits: whether the split can be used.
        images: images of a replica in each step.
        memory: bytes per core by purpose; {} if the split is impossible.
        step: work of a core in each step: halos, sums, gathers, TFLOP, time at best; () unless it fits.
        reasons: why it does not fit, its unsplit and gathered activations, and its largest arrays.
    """

    name: str
    verdict: str
    fits: bool
    images: str
    memory: Mapping[str, int | None]
    step: tuple[str, ...]
    reasons: list[str]


def plan_rows(plan: Mapping[str, Any]) -> list[PlanRow]:
    """Return a row for each split of a plan."""
    return [
        PlanRow(
            name=name_of_split(split),
            verdict=verdict(split),
            fits=split["fits"],
            images=f"{split['batch_size'] / split['replicas']:g}",
            memory=split.get("memory", {}),
            step=_figures(split) if split["fits"] else (),
            reasons=[*split_lines(split), *_level_lines(split), *_peak_lines(split)],
        )
        for split in plan["splits"]
    ]


def name_of_split(split: PlanSplit) -> str:
    """Return the name of a split: its number of cores and its parts.

    >>> name_of_split({"cores": 8, "partition": "image=1,8,1,1"}), name_of_split({"cores": 1, "partition": ""})
    ('8-way 1,8,1,1', 'unsplit')
    """
    if split["cores"] == 1:
        return "unsplit"
    return f"{split['cores']}-way {split['partition'].partition(';')[0].removeprefix('image=')}".strip()


def verdict(split: PlanSplit) -> str:
    """Return the verdict on one split; "compiles" if the memory of the machine is unknown."""
    # Nothing was compiled.
    if "memory" not in split:
        return "impossible"
    if not split["fits"]:
        return "does not fit"
    return "fits" if split["bound"] or split["memory"]["limit"] else "compiles"


def gibibytes(count: int | None) -> str:
    """Format a size of memory.

    >>> gibibytes(3 << 29), gibibytes(5 << 20), gibibytes(None)
    ('1.50 GiB', '5.0 MiB', 'an unknown size')
    """
    if count is None:
        return "an unknown size"
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def seconds(value: float) -> str:
    """Format a time in seconds.

    >>> seconds(1.5), seconds(0.0123)
    ('1.5 s', '12.3 ms')
    """
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _figures(split: PlanSplit) -> tuple[str, ...]:
    """Format the work of a core in each step of a split that fits: halos, sums, gathers, TFLOP, time at best."""
    counts = [split["sent_bytes"][kind] for kind in ("halos", "all-reduces", "gathers")]
    sent = [human_bytes(round(count)) if count else "-" for count in counts]
    bound = split["bound"]
    at_best = f"{seconds(bound['step'])}, {bound['by']}" if bound else ""
    return (*sent, f"{split['flops'] / 1e12:.3g}", at_best)


def recommendation(plan: Mapping[str, Any]) -> str:
    """Return a sentence with the recommended split and its command."""
    if plan["recommended"] is None:
        return f"Nothing fits: use {', '.join(_cures(plan))}, or a machine with more memory."
    split = next(split for split in plan["splits"] if split["cores"] == plan["recommended"])
    options = f"--batch-size {split['batch_size']}"
    if split["cores"] > 1:
        options = f"--cores-per-replica {split['cores']} --partition '{split['partition']}' {options}"
    fewest = "the fewest cores per replica that fit; more cores only add traffic"
    return f"Use {name_of_split(split)} ({fewest}): {plan.get('command', 'halofeed train')} {options}"


def _cures(plan: Mapping[str, Any]) -> list[str]:
    """List what a plan without a split that fits did not use yet."""
    config, splits = plan["config"], plan["splits"]
    cures = {
        "more cores per replica": max(split["cores"] for split in splits) < plan["topology"]["cores"],
        "fewer images": any(split["batch_size"] > split["replicas"] for split in splits),
        "--remat": not config["remat"],
        "--set model.images_at_once=1": config["model"] == "unet"
        and not config["model_options"].get("images_at_once"),
    }
    return [cure for cure, is_left in cures.items() if is_left] or ["smaller images"]


def split_lines(split: PlanSplit) -> list[str]:
    """List why a split does not fit or is impossible, and which activations it gathers."""
    lines = []
    if split["refused"]:
        lines.append(f"impossible: {split['refused']}")
        lines += [
            f"nearest possible size: {_size(near['image_shape'])}, {100 * near['more_pixels']:+.1f} % pixels"
            for near in split["nearest"]
        ]
    elif not split["fits"]:
        memory = split["memory"]
        if memory["limit"]:
            lines.append(
                f"needs {gibibytes(memory['total'])} of {gibibytes(memory['limit'])}: {memory['compiler']}"
            )
        else:
            lines.append(memory["compiler"])
    gathers = split.get("whole_gathers", [])
    for gather in gathers[:_MAX_GATHERS]:
        lines.append(
            f"gathers all of {gather['result']}, {human_bytes(gather['result_bytes'])}: {_place_of(gather)}; "
            f"{rewrite_of(gather['operation'])}"
        )
    if len(gathers) > _MAX_GATHERS:
        lines.append(f"and {len(gathers) - _MAX_GATHERS} more, all in --json")
    return lines


def _size(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


def _peak_lines(split: PlanSplit) -> list[str]:
    """List the largest arrays at the memory peak of a core."""
    lines = []
    for entry in split.get("largest", [])[:_MAX_ARRAYS]:
        if entry["bytes"] < _MIN_ARRAY_BYTES:
            continue
        of_tiles = entry["bytes"] - entry["unpadded_bytes"]
        padding = f", {gibibytes(of_tiles)} of it padding" if of_tiles > entry["bytes"] / 4 else ""
        arrays = ", ".join(entry["arrays"][-2:])
        lines.append(f"at the memory peak {gibibytes(entry['bytes'])}{padding}: {arrays}, {_place_of(entry)}")
    return lines


def _place_of(entry: Mapping[str, Any]) -> str:
    where = " ".join(filter(None, (entry["layer"], entry["place"]))) or "an operation without a name"
    return f"{entry['operation'] or 'made'} of {where}"


def _level_lines(split: PlanSplit) -> list[str]:
    """List the levels that are not split, and why."""
    levels = split.get("levels_not_split", [])
    lines = [
        f"not split over cores: {_size(level['sizes'])} ({plural(level['activations'], 'activation')}): "
        f"{level['reason']}"
        for level in levels[:_MAX_LEVELS]
    ]
    return lines + ([f"and {len(levels) - _MAX_LEVELS} coarser"] if len(levels) > _MAX_LEVELS else [])


def rewrite_of(operation: str) -> str:
    """Return a replacement for an operation that gathers a tensor.

    >>> rewrite_of("concatenate (backward)")
    'keep the levels separate and sum their losses'
    """
    name = operation.removesuffix(" (backward)")
    return REWRITES.get(name, "constrain its input and output to the split (`Pass.hold`)")


def describe_topologies(known: Mapping[str, Any]) -> str:
    """Describe what the TPU's compiler compiles for: figures per core, and the names of the slices.

    Args:
        known: output of `halofeed.trainer.plan.known_topologies`.
    """
    head = ("", "cores/chip", "GiB", "for programs", "TFLOP/s", "GB/s", "links GB/s", "slices")
    rows = []
    for one in known["generations"]:
        chip, names = one["chip"], [entry["name"] for entry in one["slices"]]
        links = chip["link_bytes_per_second"]
        rows.append(
            (
                one["name"],
                one["cores_per_chip"],
                f"{chip['memory_bytes'] / 2**30:g}",
                "" if one["program_bytes"] is None else f"{one['program_bytes'] / 2**30:g}",
                f"{chip['flops_per_second'] / 1e12:g}",
                f"{chip['memory_bytes_per_second'] / 1e9:g}",
                "unknown" if links is None else f"{links / 1e9:g}",
                ", ".join(names if len(names) <= _MAX_SLICES else [*names[:3], "...", names[-1]]),
            )
        )
    grids = [one["slices"][-1] for one in known["generations"]]
    lines = [
        f"libtpu {known['libtpu']} with jax {known['jax']} compiles for these TPUs. Figures are for one core.",
        "",
        *table(head, rows, right=range(1, len(head) - 1)),
        "",
        "Numbers double up to the last. The grid of the chips is a name too, also of other shapes: "
        f"{', '.join(entry['grid'] for entry in grids)}.",
        "For programs: GiB that the compiler gives a program. Other figures are published per chip, and divided by its "
        "cores:",
        *(f"  {one['name']}: {one['chip']['source']}" for one in known["generations"]),
    ]
    if known["without_figures"]:
        others = ", ".join(known["without_figures"])
        lines.append(
            f"libtpu knows {others} too, of which halofeed has no published figures and plans nothing."
        )
    return escape_unprintable("\n".join(lines))


def search_lines(search: Mapping[str, Any]) -> list[str]:
    """List the largest size that fits at each split."""
    lines = []
    for entry in search["found"]:
        name = name_of_split(entry)
        if entry["largest"] is None:
            lines.append(f"{name}: not even {entry['least_refused']}")
            continue
        more = f"; {entry['least_refused']} does not" if entry["least_refused"] else ""
        lines.append(f"{name}: {entry['largest']} fits with {gibibytes(entry['total_bytes'])}{more}")
    return lines


def describe_plan(plan: Mapping[str, Any]) -> str:
    """Describe a plan: each split with its verdict and figures, the recommendation, and the reasons."""
    rows = plan_rows(plan)
    largest = max((row.memory["total"] or 0 for row in rows if row.memory), default=0)
    unit = "MiB" if largest < 2**28 else "GiB"
    head = ("split", "verdict", "images", unit, *_MEMORY, "halos", "sums", "gathers", "TFLOP", "at best")
    lines = [
        _title(plan),
        "",
        *table(head, [_cells(row, unit) for row in rows], right=range(2, len(head))),
        "",
        recommendation(plan),
    ]
    for row in rows:
        if row.reasons:
            lines += titled_lines(row.name, row.reasons)
    if savings := plan.get("savings"):
        lines += titled_lines("Options that save memory, compiled", list(_saving_lines(savings)))
    if search := plan.get("search"):
        lines += titled_lines(f"The largest {search['of']} that fits", search_lines(search))
    return escape_unprintable("\n".join([*lines, *figure_source_lines(plan)]))


def _title(plan: Mapping[str, Any]) -> str:
    """Return a line with the model, the size of an image, and the machine."""
    topology, config = plan["topology"], plan["config"]
    rematerialized = ", rematerialized" if config["remat"] else ""
    chip = topology["chip"]
    memory = f" of {gibibytes(chip['memory_bytes'])}" if chip else ""
    return (
        f"{config['model']}, {_size(plan['image_shape'])}, {config['compute_dtype']}, {config['optimizer']}"
        f"{rematerialized}, on {topology['name']}: {plural(topology['cores'], 'core')}{memory}"
    )


def figure_source_lines(plan: Mapping[str, Any]) -> list[str]:
    """Say where the figures come from; the bound of time is known for published chips only."""
    topology, versions = plan["topology"], plan["versions"]
    chip, compiler = topology["chip"], "libtpu" if topology["platform"] == "tpu" else "jaxlib"
    lines = []
    if chip:
        peaks = f"the published peaks ({chip['source']})"
        bound = (
            f"At best: FLOP, memory traffic and bytes sent, divided by {peaks}; a lower bound of the time."
        )
        lines += ["", bound]
    reported = f"Reported by {compiler} {versions[compiler]} with jax {versions['jax']}"
    return [*lines, f"{reported}; all figures are for one core."]


def _cells(row: PlanRow, unit: str) -> tuple[str, ...]:
    """Return a line of the table in text, with memory in a unit of `UNITS`."""
    sizes = [row.memory.get(name) for name in ("total", *_MEMORY.values())]
    shown = ("" if size is None else f"{size / UNITS[unit]:.2f}" for size in sizes)
    return (row.name, row.verdict, row.images, *shown, *(row.step or ("",) * 5))


def _saving_lines(savings: Mapping[str, Any]) -> Iterator[str]:
    before = savings["before"]
    yield f"{name_of_split(before)} as it is: {verdict(before)}, {gibibytes(before['memory']['total'])}"
    for entry in savings["changes"]:
        after = entry["split"]
        # The option makes the program impossible.
        if "memory" not in after:
            yield f"{entry['change']}: {after['refused']}"
            continue
        line = f"{entry['change']}: {verdict(after)}, {gibibytes(after['memory']['total'])}"
        # A program that does not fit is not compiled to the end, and has no costs.
        if after["fits"] and before["fits"] and before["flops"]:
            line += f", {percent(after['flops'] / before['flops'] - 1)} more FLOP"
        yield line


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
    topology, rows = plan["topology"], plan_rows(plan)
    chip = topology["chip"]
    totals = [row.memory["total"] or 0 for row in rows if row.memory]
    # Without a known chip, the longest bar is the split that takes most.
    longest = max([chip["memory_bytes"], *totals]) if chip else max(totals, default=1)
    of_chip: dict[str, Any] = {"room_share": None, "room": None, "source": None}
    if chip:
        room = chip["memory_bytes"]
        of_chip = {"room_share": 100 * room / longest, "room": gibibytes(room), "source": chip["source"]}
    return {
        "plan_lead": f"{plan['config']['model']}, {_size_of(plan)}, on {topology['name']} "
        f"({plural(topology['cores'], 'core')}). All figures are from the compiler; nothing was run or estimated.",
        "advice": recommendation(plan),
        "legend_entries": [(color, name) for color, name, _ in BAR_PARTS],
        "bars_of_splits": [bar_of(row, longest) for row in rows],
        "figures": [(row.name, row.images, *row.step) for row in rows if row.fits],
        "reasons": [(row.name, row.reasons) for row in rows if row.reasons],
        **of_chip,
    }


def bar_of(row: PlanRow, longest: int) -> dict[str, Any]:
    parts = [(color, name, sum(row.memory.get(key) or 0 for key in keys)) for color, name, keys in BAR_PARTS]
    total = row.memory.get("total") or 0
    rest = total - sum(size for *_, size in parts)
    return {
        "row": row,
        "total": gibibytes(total) if total else "",
        "parts": [
            (color, f"{name}: {gibibytes(size)}", 100 * size / longest)
            for color, name, size in [*parts, ("s5", "other memory", max(0, rest))]
            if size
        ],
    }
