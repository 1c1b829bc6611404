"""Verdicts, sizes and reasons of a training plan as text, for the terminal and for HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

PlanSplit = Mapping[str, Any]
_MAX_GATHERS = 6
_MAX_ARRAYS = 3
_MAX_LEVELS = 6


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
    if "memory" not in split:
        return "impossible"
    if not split["fits"]:
        return "does not fit"
    return "fits" if split["bound"] or split["memory"]["limit"] else "compiles"


def memory_totals(plan: Mapping[str, Any]) -> list[int]:
    """List the bytes of memory per core of each compiled split; 0 if the compiler did not report them."""
    return [split["memory"]["total"] or 0 for split in plan["splits"] if "memory" in split]


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


def figures(split: PlanSplit) -> tuple[str, ...]:
    """Format the work of a core in each step of a split that fits: halos, sums, gathers, TFLOP, time at best."""
    counts = [split["sent_bytes"][kind] for kind in ("halos", "all-reduces", "gathers")]
    sent = [human_bytes(round(count)) if count else "-" for count in counts]
    bound = split["bound"]
    at_best = f"{seconds(bound['step'])}, {bound['by']}" if bound else ""
    return (*sent, f"{split['flops'] / 1e12:.3g}", at_best)


def images_per_replica(split: PlanSplit) -> str:
    """Format the number of images of a replica in each step."""
    return f"{split['batch_size'] / split['replicas']:g}"


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


def reasons(split: PlanSplit) -> list[str]:
    """List why a split does not fit or is impossible, its unsplit and gathered activations, and its largest arrays."""
    return [*_split_lines(split), *_level_lines(split), *_peak_lines(split)]


def _split_lines(split: PlanSplit) -> list[str]:
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


def rewrite_of(operation: str) -> str:
    """Return a replacement for an operation that gathers a tensor.

    >>> rewrite_of("concatenate (backward)")
    'keep the levels separate and sum their losses'
    """
    name = operation.removesuffix(" (backward)")
    return REWRITES.get(name, "constrain its input and output to the split (`Pass.hold`)")


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
