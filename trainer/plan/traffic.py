"""What goes between cores in one step: halos, sums and gathers, counted in the compiled program."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from halofeed.trainer.plan.hlo import Instruction, Module

KINDS = {
    "collective-permute": "halos",
    "all-reduce": "all-reduces",
    "reduce-scatter": "all-reduces",
    "all-gather": "gathers",
    "all-to-all": "gathers",
    "ragged-all-to-all": "gathers",
    "collective-broadcast": "gathers",
}
"""What a collective is called here, by its opcode."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One exchange between cores.

    Args:
        kind: of `KINDS`.
        opcode: XLA's.
        result: its array, or the largest of several.
        result_bytes: of all its arrays, on a core, without padding.
        sent_bytes: out of a core, all times that it runs: of sums and gathers as a ring of the group's cores sends
            them, the least that any way can.
        cores: of a group.
        times: how often it runs in a step.
        layer: its name in the model.
        place: the function and line that made it.
        operation: JAX's name of the operation.
    """

    kind: str
    opcode: str
    result: str
    result_shape: tuple[int, ...]
    result_bytes: int
    sent_bytes: float
    cores: int
    times: int
    layer: str
    place: str
    operation: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "result_shape": list(self.result_shape)}


def collectives(module: Module, devices: int) -> list[Collective]:
    """Every collective of a program, those that send most first."""
    return sorted(_found(module, devices), key=lambda one: -one.sent_bytes)


def _found(module: Module, devices: int) -> Iterator[Collective]:
    trips = _trips(module)
    for one in module.instructions:
        opcode = one.opcode.removesuffix("-start")
        if opcode not in KINDS:
            continue
        arrays = [array for array in one.arrays if array.shape or not one.opcode.endswith("-start")]
        if one.opcode.endswith("-start") and opcode != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]  # before them stand the operands
        size = sum(array.bytes for array in arrays)
        if not size:
            continue
        cores = _group(one, devices)
        times = trips.get(one.computation, 1)
        largest = max(arrays, key=lambda array: array.bytes)
        yield Collective(
            kind=KINDS[opcode],
            opcode=opcode,
            result=str(largest),
            result_shape=largest.shape,
            result_bytes=size,
            sent_bytes=_sent(opcode, size, cores) * times,
            cores=cores,
            times=times,
            **module.origin_of(one),
        )


def _sent(opcode: str, size: int, cores: int) -> float:
    others = (cores - 1) / cores
    if opcode == "all-reduce":
        return 2 * others * size
    if opcode == "reduce-scatter":
        return (cores - 1) * size
    return size if opcode in ("collective-permute", "collective-broadcast") else others * size


def _group(instruction: Instruction, devices: int) -> int:
    """How many cores a collective joins.

    XLA writes groups as lists, as a reshaped count, or as axes of a mesh.
    """
    text = instruction.text
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(found[2])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", found[2]))
    return devices


def _trips(module: Module) -> dict[str, int]:
    """How often each loop's body runs, where the compiler knows it."""
    found = {}
    for one in module.instructions:
        body, times = re.search(r"body=%?([\w.-]+)", one.text), re.search(r"trips=(\d+)", one.text)
        if one.opcode == "while" and body and times:
            found[body[1]] = int(times[1])
    return found
