"""What fills a core's memory at the fullest moment of a step? Read off the order in which the program runs.

The compiler's own total is the verdict; this says what it is made of. A compiled program's text has no addresses: an
array is taken to live from the instruction that makes it to the last that reads it, and what only renames another array
has none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halofeed.trainer.plan.hlo import Instruction, Module

_RENAMES = {
    *("bitcast", "tuple", "get-tuple-element", "parameter", "constant", "after-all", "optimization-barrier"),
    *("all-reduce-done", "all-gather-done", "collective-permute-done", "copy-done", "async-done", "while"),
}
_MOST_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The fullest moment.

    Args:
        bytes: of all arrays that live then, with padding, without the program's arguments.
        unpadded_bytes: of the same without padding.
        largest: of these arrays, each with its place.
    """

    bytes: int
    unpadded_bytes: int
    largest: tuple[dict[str, Any], ...]


def peak(module: Module) -> Peak:
    """The fullest moment of a program."""
    instructions = module.entry_instructions()
    made = {one.name: one for one in instructions}
    homes: dict[str, frozenset[str]] = {}
    last: dict[str, int] = {}
    for at, one in enumerate(instructions):
        reads = frozenset().union(*(homes.get(name, frozenset()) for name in one.operands))
        for name in reads:
            last[name] = at
        homes[one.name] = reads if one.opcode in _RENAMES else frozenset({one.name})
        last[one.name] = at
    ends: dict[int, list[str]] = {}
    for name, at in last.items():
        ends.setdefault(at, []).append(name)
    alive: set[str] = set()
    now = most = 0
    fullest: frozenset[str] = frozenset()
    sizes = {one.name: _size(one) for one in instructions}
    for at, one in enumerate(instructions):
        if one.opcode not in _RENAMES and not one.is_root:
            alive.add(one.name)
            now += sizes[one.name][0]
        if now > most:
            most, fullest = now, frozenset(alive)
        for name in ends.get(at, ()):
            if name in alive:
                alive.remove(name)
                now -= sizes[name][0]
    ordered = sorted(fullest, key=lambda name: -sizes[name][0])
    return Peak(
        bytes=most,
        unpadded_bytes=sum(sizes[name][1] for name in fullest),
        largest=tuple(_described(module, made[name], sizes[name]) for name in ordered[:_MOST_SHOWN]),
    )


def _size(one: Instruction) -> tuple[int, int]:
    arrays = [array for array in one.arrays if array.is_in_main_memory]
    if one.opcode.endswith("-start") and one.opcode != "all-reduce-start":
        arrays = arrays[len(arrays) // 2 :]
    return sum(array.padded_bytes for array in arrays), sum(array.bytes for array in arrays)


def _described(module: Module, one: Instruction, size: tuple[int, int]) -> dict[str, Any]:
    return {
        "arrays": [str(array) for array in one.arrays if array.is_in_main_memory],
        "bytes": size[0],
        "unpadded_bytes": size[1],
        **module.origin_of(one),
    }
