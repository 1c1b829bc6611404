"""Parser of compiled programs (HLO text): instructions, peak memory, communication between cores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
_SOURCE_RANKING = (
    "/trainer/models/",
    "/trainer/losses",
    "/trainer/detection/",
    "/trainer/tasks/",
    "/trainer/",
)
"""Parts of paths: of an instruction's stack the frame that matches the first of these is shown."""
_NOT_LAYERS = {"checkpoint", "rematted_computation", "remat", "shard_map", "closed_call"}
_NOT_LAYERS |= {"while", "body", "cond"}
_LIBRARIES = ("site-packages/", "dist-packages/", "<")
_SCOPE_WRAPPER = "call_in_named_scope"
"""Function of `halofeed.trainer.models.layers.name_layers`, which is on the stack of every layer."""


@dataclass(frozen=True, slots=True)
class Array:
    """Array in the result of an instruction.

    Args:
        dtype: name of the type in XLA.
        shape: sizes of the axes.
        minor_to_major: order of the axes in memory, the fastest first.
        layout: tiles and memory space, in XLA's notation.
    """

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    layout: str

    @property
    def bytes(self) -> int:
        """Size without padding."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """Size with the padding of the first tile, such as 8 x 128 for the two fastest axes.

        >>> arrays_of("bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)}")[0].padded_bytes == 4 * 20 * 24 * 128 * 2
        True
        """
        found = _TILE.search(self.layout)
        # A scalar has no tiles; compilers for CPUs and GPUs write none.
        if not found or not self.shape:
            return self.bytes
        sides, tile = [self.shape[axis] for axis in self.minor_to_major], found[1].split(",")
        for place, side in enumerate(map(int, reversed(tile))):
            if place < len(sides):
                sides[place] = -(-sides[place] // side) * side
        return math.prod(sides) * _BYTES[self.dtype]

    @property
    def is_in_main_memory(self) -> bool:
        """True if the array is in the core's main memory, not in a small on-chip memory."""
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
    """Compiled program.

    Attributes:
        instructions: instructions of every computation, in their order of execution.
        entry: name of the computation that is the program.
    """

    def __init__(self, text: str) -> None:
        self.entry = ""
        self.instructions: list[Instruction] = []
        self._tables: dict[str, dict[int, str]] = {}
        self._read(text)
        # The first frame has no parent: some versions of XLA write 0, others 1 and count every parent from 1.
        first = self._tables.get("StackFrames", {}).get(1, "")
        self._first_parent = _number(first, "parent_frame_id")

    def _read(self, text: str) -> None:
        table, computation = "", ""
        for line in text.splitlines():
            # Tables of stack frames come before the first computation.
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
                self._tables[table] = {}
            elif table and line[:1].isdigit():
                number, _, rest = line.partition(" ")
                self._tables[table][int(number)] = rest
            elif (
                # The head of a computation; an instruction has an equals sign.
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

    def origin_of(self, instruction: Instruction) -> dict[str, str]:
        """Return the origin of an instruction; unknown parts are "".

        Returns:
            `layer`: innermost name of a layer, "pyramid.smoothing.0"; `place`: function and line that made the
            instruction, in user code rather than a library; `operation`: JAX's name of the operation,
            "conv_general_dilated", with a mark for the backward pass.
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
        best, best_rank = "", len(_SOURCE_RANKING) + 1
        for file, function, line in self._frames(int(found[1])) if found else ():
            # A line of a library says little about where in the model an array comes from.
            if any(part in file for part in _LIBRARIES) or function.endswith(_SCOPE_WRAPPER):
                continue
            matches = (rank for rank, part in enumerate(_SOURCE_RANKING) if part in file)
            rank = next(matches, len(_SOURCE_RANKING))
            if rank < best_rank:
                short = file.rpartition("/halofeed/")[2] if "/halofeed/" in file else file
                best, best_rank = f"{function} ({short}:{line})", rank
        return best.replace(".__call__", "").replace(".<locals>", "")

    def _frames(self, frame: int) -> Iterator[tuple[str, str, int]]:
        """Yield file, function and line of a stack, the innermost frame first."""
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
    """Parse the shape of a result: one array, or those of a tuple.

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
        # Names of transformations and of branches are no layers.
        if name and name not in _NOT_LAYERS and "jit(" not in part and not part.startswith("branch_"):
            return name
    return ""


def _number(text: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found[1]) if found else 0


def _until_closed(text: str) -> str:
    """Return the text before the closing parenthesis that has no opening one."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:index]
    return text


_ALIASES = {
    *("bitcast", "tuple", "get-tuple-element", "parameter", "constant", "after-all", "optimization-barrier"),
    *("all-reduce-done", "all-gather-done", "collective-permute-done", "copy-done", "async-done", "while"),
}
"""Instructions whose result shares the memory of their operands."""
_MAX_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Peak memory of a program.

    Args:
        bytes: size of all live arrays with padding, without the program's arguments.
        unpadded_bytes: their size without padding.
        largest: the largest of these arrays, each with its origin.
    """

    bytes: int
    unpadded_bytes: int
    largest: tuple[dict[str, Any], ...]


def peak(module: Module) -> Peak:
    """Return the peak memory of a program in its order of execution."""
    instructions = [one for one in module.instructions if one.computation == module.entry]
    freed_after = _freed_after(instructions)
    sizes = {instruction.name: _size(instruction) for instruction in instructions}
    live: set[str] = set()
    live_bytes = peak_bytes = 0
    live_at_peak: frozenset[str] = frozenset()
    for index, instruction in enumerate(instructions):
        # The root is the program's result, whose memory the compiler counts as its output.
        if instruction.opcode not in _ALIASES and not instruction.is_root:
            live.add(instruction.name)
            live_bytes += sizes[instruction.name][0]
        if live_bytes > peak_bytes:
            peak_bytes, live_at_peak = live_bytes, frozenset(live)
        ended = live.intersection(freed_after.get(index, ()))
        live -= ended
        live_bytes -= sum(sizes[name][0] for name in ended)
    by_name = {instruction.name: instruction for instruction in instructions}
    ordered = sorted(live_at_peak, key=lambda name: -sizes[name][0])
    return Peak(
        bytes=peak_bytes,
        unpadded_bytes=sum(sizes[name][1] for name in live_at_peak),
        largest=tuple(_describe(module, by_name[name], sizes[name]) for name in ordered[:_MAX_SHOWN]),
    )


def _freed_after(instructions: Sequence[Instruction]) -> dict[int, list[str]]:
    """Return the instructions whose memory is free after each index, that of their last use."""
    buffers: dict[str, frozenset[str]] = {}  # names of the instructions that own the memory of a result
    last_use: dict[str, int] = {}
    for index, instruction in enumerate(instructions):
        reads = frozenset().union(*(buffers.get(name, frozenset()) for name in instruction.operands))
        last_use |= dict.fromkeys(reads, index)
        buffers[instruction.name] = reads if instruction.opcode in _ALIASES else frozenset({instruction.name})
        last_use[instruction.name] = index
    freed: dict[int, list[str]] = {}
    for name, index in last_use.items():
        freed.setdefault(index, []).append(name)
    return freed


def _size(instruction: Instruction) -> tuple[int, int]:
    """Return the bytes of a result in main memory, with and without padding."""
    arrays = [array for array in instruction.arrays if array.is_in_main_memory]
    # The result of an asynchronous start is a pair: the operands, then the results.
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        arrays = arrays[len(arrays) // 2 :]
    return sum(array.padded_bytes for array in arrays), sum(array.bytes for array in arrays)


def _describe(module: Module, instruction: Instruction, size: tuple[int, int]) -> dict[str, Any]:
    return {
        "arrays": [str(array) for array in instruction.arrays if array.is_in_main_memory],
        "bytes": size[0],
        "unpadded_bytes": size[1],
        **module.origin_of(instruction),
    }


COLLECTIVE_KINDS = {
    "collective-permute": "halos",
    "all-reduce": "all-reduces",
    "reduce-scatter": "all-reduces",
    "all-gather": "gathers",
    "all-to-all": "gathers",
    "ragged-all-to-all": "gathers",
    "collective-broadcast": "gathers",
}
"""Kinds of collectives by opcode."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Communication between cores.

    Args:
        kind: value of `COLLECTIVE_KINDS`.
        opcode: opcode in XLA.
        result: array of the result, the largest of several.
        result_shape: shape of this array.
        result_bytes: size of all arrays of the result on a core, without padding.
        sent_bytes: bytes that a core sends per step. For sums and gathers it is the traffic of a ring, the minimum of
            any algorithm.
        cores: number of cores in a group.
        times: number of executions per step.
        layer: name of the layer in the model.
        place: function and line that made it.
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
        """Return the collective as plain JSON values."""
        return {**asdict(self), "result_shape": list(self.result_shape)}


def collectives(module: Module, devices: int) -> list[Collective]:
    """Return every collective of a program, by decreasing traffic."""
    return sorted(_collectives(module, devices), key=lambda collective: -collective.sent_bytes)


def _collectives(module: Module, devices: int) -> Iterator[Collective]:
    executions = _executions(module)
    for instruction in module.instructions:
        opcode = instruction.opcode.removesuffix("-start")
        if opcode not in COLLECTIVE_KINDS:
            continue
        is_start = instruction.opcode.endswith("-start")
        arrays = [array for array in instruction.arrays if array.shape or not is_start]
        if is_start and opcode != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]
        size = sum(array.bytes for array in arrays)
        if not size:
            continue
        cores = _group_size(instruction, devices)
        times = executions.get(instruction.computation, 1)
        largest = max(arrays, key=lambda array: array.bytes)
        yield Collective(
            kind=COLLECTIVE_KINDS[opcode],
            opcode=opcode,
            result=str(largest),
            result_shape=largest.shape,
            result_bytes=size,
            sent_bytes=_sent_bytes(opcode, size, cores) * times,
            cores=cores,
            times=times,
            **module.origin_of(instruction),
        )


def _sent_bytes(opcode: str, size: int, cores: int) -> float:
    ring_share = (cores - 1) / cores
    # In a ring each core sends (n - 1) / n of the data to sum them, and again to share the sums.
    if opcode == "all-reduce":
        return 2 * ring_share * size
    # Here the size is that of the result, 1 / n of the data.
    if opcode == "reduce-scatter":
        return (cores - 1) * size
    return size if opcode in ("collective-permute", "collective-broadcast") else ring_share * size


def _group_size(instruction: Instruction, devices: int) -> int:
    """Return the number of cores in a group, which XLA writes as lists, as a reshaped count, or as axes of a mesh."""
    text = instruction.text
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(found[2])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", found[2]))
    return devices


_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.-]+)")


def _executions(module: Module) -> dict[str, int]:
    """Return how often a step runs each computation; a loop of unknown length counts as one iteration."""
    members: dict[str, list[Instruction]] = {}
    for instruction in module.instructions:
        members.setdefault(instruction.computation, []).append(instruction)
    counts = dict.fromkeys(members, 0)
    waiting = [(module.entry, 1)]
    while waiting:
        computation, times = waiting.pop()
        counts[computation] = counts.get(computation, 0) + times
        for instruction in members.get(computation, ()):
            called = dict(_CALLED.findall(instruction.text))
            trips = _trip_count(instruction, members.get(called.get("condition", ""), ()))
            waiting += [(name, times * trips) for name in called.values()]
    return counts


def _trip_count(loop: Instruction, condition: Sequence[Instruction]) -> int:
    """Return the number of iterations: the compiler's note, or the bound of a condition like "index < 8"."""
    # Called computations such as fusions run once for each call.
    if loop.opcode != "while":
        return 1
    if found := re.search(r'(?:trips=|known_trip_count":\{"n":")(\d+)', loop.text):
        return int(found[1])
    bounds = [re.match(r"(\d+)\)", one.text) for one in condition if one.opcode == "constant"]
    counts_up = any("direction=LT" in one.text for one in condition)
    return int(bounds[0][1]) if counts_up and len(bounds) == 1 and bounds[0] else 1


def repeated_costs(module: Module) -> tuple[int, int]:
    """Return the FLOP and bytes of all iterations of loops but the first, which is all that XLA's costs count.

    FLOP are those of convolutions and matrix products. Bytes are the operands and results of the instructions of a
    loop; what happens within a fusion stays on the chip. An iteration touches one slice of an array that the loop
    carries, if the array's first axis counts the iterations.
    """
    executions = _executions(module)
    arrays = {one.name: one.arrays for one in module.instructions}
    carried = _carried(module)
    fused = _fused(module)
    flops = moved = 0
    for one in module.instructions:
        times = executions.get(one.computation, 1)
        if times < 2:
            continue
        flops += (times - 1) * _flops(one, arrays)
        if one.computation not in fused and one.opcode not in _ALIASES:
            for name in (one.name, *one.operands):
                moved += (times - 1) * _touched(arrays.get(name, ()), times if name in carried else 1)
    return flops, moved


def _carried(module: Module) -> set[str]:
    """Return the instructions that read what a loop carries, or make what its next iteration reads."""
    reads = {one.name for one in module.instructions if one.opcode == "get-tuple-element"}
    return reads | {name for one in module.instructions if one.is_root for name in one.operands}


def _fused(module: Module) -> set[str]:
    """Return the computations that are the inside of a fusion."""
    fusions = [one for one in module.instructions if one.opcode == "fusion"]
    return {name for one in fusions for role, name in _CALLED.findall(one.text)}


def _touched(arrays: Sequence[Array], iterations: int) -> int:
    """Return the bytes in main memory that one of some iterations touches: a slice of an array of all iterations."""
    return sum(
        array.padded_bytes // (iterations if array.shape[:1] == (iterations,) else 1)
        for array in arrays
        if array.is_in_main_memory
    )


def _flops(instruction: Instruction, arrays: Mapping[str, tuple[Array, ...]]) -> int:
    """Return the FLOP of a convolution or a matrix product, with the products of its padding; 0 for others."""
    text = instruction.text
    if instruction.opcode == "dot":
        left = arrays[instruction.operands[0]][0].shape
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", text)
        summed = math.prod(left[int(axis)] for axis in found[1].split(",") if axis) if found else 1
    elif instruction.opcode == "convolution":
        labels = re.search(r"dim_labels=\w+_(\w+)->", text)
        kernel = arrays[instruction.operands[1]][0].shape
        window = re.search(r"window=\{size=([\dx]+)", text)
        summed = math.prod(map(int, window[1].split("x"))) if window else 1
        summed *= kernel[labels[1].index("i")] if labels else 1
    else:
        return 0
    return 2 * math.prod(instruction.arrays[0].shape) * summed
