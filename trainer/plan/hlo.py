"""Compiled programs as text: instructions, peak memory, traffic between cores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_BYTES = {
    **dict.fromkeys(("token", "opaque"), 0),
    **dict.fromkeys(("pred", "s4", "u4", "s8", "u8"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$")
_TILE = re.compile(r"T\(([\d,]+)\)")
_OWN = ("/trainer/models/", "/trainer/losses/", "/trainer/detection/", "/trainer/tasks/", "/trainer/")
_NO_LAYERS = {"checkpoint", "rematted_computation", "while", "body", "cond", "remat", "shard_map"}
_LIBRARIES = ("site-packages/", "dist-packages/", "<", "/trainer/models/names.py")


@dataclass(frozen=True, slots=True)
class Array:
    """One array of an instruction's result.

    Args:
        dtype: XLA's name.
        shape: its sizes.
        layout: XLA's, after the order of the axes: tiles and the memory space.
        minor_to_major: the order of the axes, the fastest first.
    """

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    layout: str

    @property
    def bytes(self) -> int:
        """Without padding."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """With the padding of its first tile, such as 8 x 128 for the two fastest axes.

        >>> arrays_of("bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)}")[0].padded_bytes == 4 * 20 * 24 * 128 * 2
        True
        """
        found = _TILE.search(self.layout)
        if not found or not self.shape:
            return self.bytes
        sides, tile = [self.shape[axis] for axis in self.minor_to_major], found[1].split(",")
        for place, side in enumerate(map(int, reversed(tile))):
            if place < len(sides):
                sides[place] = -(-sides[place] // side) * side
        return math.prod(sides) * _BYTES[self.dtype]

    @property
    def is_in_main_memory(self) -> bool:
        """Whether it lies in the core's large memory, and not in one of the small ones beside the units."""
        return "S(" not in self.layout

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str
    computation: str
    is_root: bool


class Module:
    """A compiled program.

    Attributes:
        instructions: of every computation, in the order in which they run.
        entry: the name of the computation that is the program.
    """

    def __init__(self, text: str) -> None:
        self.entry = ""
        self.instructions: list[Instruction] = []
        self._tables: dict[str, dict[int, str]] = {}
        self._read(text)
        # Of a frame without a parent XLA writes 0, or counts every parent one too high.
        first = self._tables.get("StackFrames", {}).get(1, "")
        self._first_parent = _number(first, "parent_frame_id")

    def _read(self, text: str) -> None:
        table, computation = "", ""
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
                self._tables[table] = {}
            elif table and line[:1].isdigit():
                number, _, rest = line.partition(" ")
                self._tables[table][int(number)] = rest
            elif (
                line.endswith("{")
                and " = " not in line
                and (found := re.match(r"(ENTRY )?%?([\w.-]+)", line))
            ):
                table, computation = "", found[2]
                if found[1]:
                    self.entry = computation
            elif computation and (parsed := _LINE.match(line)):
                table = ""
                root, name, shape, opcode, rest = parsed.groups()
                self.instructions.append(
                    Instruction(
                        name=name,
                        opcode=opcode,
                        arrays=arrays_of(shape),
                        operands=tuple(re.findall(r"%([\w.-]+)", _until_closed(rest))),
                        text=rest,
                        computation=computation,
                        is_root=bool(root),
                    )
                )

    def entry_instructions(self) -> list[Instruction]:
        """Those of the program itself, in the order in which they run."""
        return [one for one in self.instructions if one.computation == self.entry]

    def origin_of(self, instruction: Instruction) -> dict[str, str]:
        """Where an instruction comes from, "" where that is not known.

        Returns:
            `layer`: the innermost of the names that the model gave its layers, "pyramid.smoothing.0"; `place`: the
            function and line that made it, of the user's code rather than a library's; `operation`: JAX's name of the
            operation, "conv_general_dilated", and whether it belongs to the backward pass.
        """
        found = re.search(r'op_name="([^"]*)"', instruction.text)
        *scopes, operation = found[1].split("/") if found else [""]
        backward = " (backward)" if found and "transpose(" in found[1] else ""
        return {
            "layer": _innermost_layer(scopes),
            "place": self._place_of(instruction),
            "operation": operation + backward,
        }

    def _place_of(self, instruction: Instruction) -> str:
        found = re.search(r"stack_frame_id=(\d+)", instruction.text)
        best, rank = "", len(_OWN) + 2
        for file, function, line in self._frames(int(found[1])) if found else ():
            own = next((at for at, part in enumerate(_OWN) if part in file), len(_OWN))
            if any(part in file for part in _LIBRARIES):
                continue
            if own < rank:
                short = file.rpartition("/halofeed/")[2] if "/halofeed/" in file else file
                best, rank = f"{function} ({short}:{line})", own
        return best.replace(".__call__", "").replace(".<locals>", "")

    def _frames(self, frame: int) -> Iterator[tuple[str, str, int]]:
        frames, locations = self._tables.get("StackFrames", {}), self._tables.get("FileLocations", {})
        files, functions = self._tables.get("FileNames", {}), self._tables.get("FunctionNames", {})
        seen = set()
        while frame in frames and frame not in seen:
            seen.add(frame)
            location = locations.get(_number(frames[frame], "file_location_id"), "")
            file = files.get(_number(location, "file_name_id"), "").strip('"')
            function = functions.get(_number(location, "function_name_id"), "").strip('"')
            yield file, function, _number(location, "line")
            frame = _number(frames[frame], "parent_frame_id") - self._first_parent


def arrays_of(shape: str) -> tuple[Array, ...]:
    """The arrays of a result's shape, one or those of a tuple.

    >>> [str(array) for array in arrays_of("(f32[8,2]{1,0:T(8,128)}, u32[])")]
    ['f32[8,2]', 'u32[]']
    """
    return tuple(
        Array(
            dtype=dtype,
            shape=tuple(map(int, filter(None, sides.split(",")))),
            minor_to_major=tuple(map(int, filter(None, (order or "").split(",")))),
            layout=layout or "",
        )
        for dtype, sides, order, layout in _ARRAY.findall(shape)
        if dtype in _BYTES
    )


def _innermost_layer(scopes: list[str]) -> str:
    for part in reversed(scopes):
        name = re.sub(r"^(?:\w+\()*|\)*$", "", part)
        if name and name not in _NO_LAYERS and "jit(" not in part and not part.startswith("branch_"):
            return name
    return ""


def _number(text: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found[1]) if found else 0


def _until_closed(text: str) -> str:
    """The operands, which end where the parenthesis does that was open before them."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:at]
    return text


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
