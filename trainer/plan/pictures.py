"""Comparison of tiles and spatial splits for pictures that are larger than a record.

A way to train on such pictures is a size of the record and the number of cores that share it: tiles on one core each,
or windows of the picture (at best the whole) over 2 to 16 cores. Every way has the same grid of records, that of
`halofeed convert --fit tiles`, and differs in what the machine's compiler reports about it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from halofeed.prep.geometry.picture_tiles import PictureTiles, plan_picture_tiles
from halofeed.prep.geometry.resize import Size
from halofeed.system.errors import UsageError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.compiling import CompileCache, CompileResult, Tell, compile_all
from halofeed.trainer.plan.document import Case, cases, plan_head, split_of
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.search import resized
from halofeed.trainer.plan.topologies import Topology, topology_named

USUAL_TILES = (512, 1024, 2048)
"""Sides of tiles that are compared without --tile-sizes."""
USUAL_OVERLAP = 128
EQUAL_COST = 1.05
"""Costs that differ by less than this factor count as equal: they are lower bounds, not measured times."""
_SURELY_TOO_LARGE = 2.0
"""Windows whose memory, estimated from the tiles, is this many times the limit are not compiled.

The estimate was up to 52 % too high: RetinaNet of 10,240 x 10,080 pixels over 8 cores, from a tile of 2,048
(docs/plan.md).
"""
_SPLIT_STRIDE = 32
"""Rows of a window are a multiple of this per core, so that all levels of a backbone divide."""
_OTHER_STRIDE = 32
"""Stride of the coarsest level of the models without an option for it."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures to train on.

    Args:
        size: (height, width) in pixels, after scaling.
        count: number of pictures in an epoch.
        tile_sizes: sides (height, width) of the tiles to compare.
        overlap: least number of pixels that neighbors share along each axis.
        object_size: longest side of the largest object in pixels; 0 if unknown.

    Raises:
        UsageError: a tile is larger than the picture, or not larger than the overlap.

    >>> Pictures(size=(2000, 2000), tile_sizes=((512, 512),), overlap=(64, 64)).grid((512, 512)).tops
    (0, 372, 744, 1116, 1488)
    """

    size: Size
    count: int = 1
    tile_sizes: tuple[Size, ...] = ()
    overlap: Size = (0, 0)
    object_size: int = 0

    def __post_init__(self) -> None:
        for height, width in self.tile_sizes:
            if height > self.size[0] and width > self.size[1]:
                raise UsageError(
                    f"--tile-sizes {_named((height, width))}: larger than the picture of {_named(self.size)}; take "
                    f"--tile-sizes {_named(self.size)}, or leave it out"
                )
            shared = [i for i, side in enumerate((height, width)) if self.overlap[i] >= side]
            if shared:
                most = height - 1, width - 1
                raise UsageError(
                    f"--tile-overlap {_named(self.overlap)}: expected less than the tile of {_named((height, width))}; "
                    f"take at most --tile-overlap {most[0]},{most[1]}, or larger --tile-sizes"
                )

    def grid(self, record_size: Size) -> PictureTiles:
        """Return the tiles of one picture for a size of the record."""
        return plan_picture_tiles(self.size, record_size, self.overlap)


def _named(size: Size) -> str:
    """Return a size as the options take it; one number for a square."""
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


def usual_tile_sizes(size: Size, overlap: Size, config: TrainConfig) -> tuple[Size, ...]:
    """Return those of `USUAL_TILES` that a picture, an overlap and a model can have; the whole picture if none.

    >>> usual_tile_sizes((1500, 700), (128, 128), TrainConfig())
    ((512, 512), (1024, 1024))
    """
    sides = [side for side in USUAL_TILES if side > max(overlap) and side <= max(size)]
    return tuple((side, side) for side in sides) or (whole_size(size, config),)


def coarsest_stride(config: TrainConfig) -> int:
    """Return the stride of a model's coarsest level.

    >>> coarsest_stride(TrainConfig(model="unet", model_options={"depth": 4}))
    8
    >>> coarsest_stride(TrainConfig(model="retinanet"))
    128
    """
    options = config.model_options
    if config.model == "retinanet":
        return int(2 ** options.get("last_level", 7))
    if config.model == "unet":
        return int(2 ** (options.get("depth", 5) - 1))
    return _OTHER_STRIDE


def check_tile_sizes(sizes: Sequence[Size], config: TrainConfig) -> None:
    """Check that a model can have tiles of these sizes.

    Raises:
        UsageError: a side is smaller than the stride of the coarsest level, or a U-Net's side does not divide by it.
    """
    stride = coarsest_stride(config)
    for size in sizes:
        # Other models pad odd levels; a U-Net joins each level with its encoder's.
        must_divide = config.model == "unet"
        if min(size) < stride or (must_divide and any(side % stride for side in size)):
            fix: Size = (_multiple(size[0], stride), _multiple(size[1], stride))
            expected = f"a multiple of {stride}" if must_divide else f"{stride} or more"
            raise UsageError(
                f"--tile-sizes {_named(size)}: expected {expected}, the stride of the coarsest level of "
                f"{config.model}; take --tile-sizes {_named(fix)}"
            )


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _unit(config: TrainConfig) -> int:
    """Return a number of which the sides of windows are multiples, so that their levels divide."""
    return coarsest_stride(config) if config.model == "unet" else _SPLIT_STRIDE


def whole_size(size: Size, config: TrainConfig, cores: int = 1) -> Size:
    """Return the size of a record that shows a whole picture, with rows that divide by the cores."""
    return window_size(size, (0, 0), config, cores, 1)


def window_size(size: Size, overlap: Size, config: TrainConfig, cores: int, count: int) -> Size:
    """Return the (height, width) of windows, `count` of which cover the longer side of a picture.

    The shorter side has as many windows as this size needs. Sides are rounded up: rows to a multiple of the model's
    unit per core, columns to a multiple of it.

    >>> window_size((20000, 20000), (128, 128), TrainConfig(model="retinanet"), 8, 2)
    (10240, 10080)
    """
    longest = max(size)
    shared = overlap[size.index(longest)]
    side = -(-(longest + (count - 1) * shared) // count)
    unit = _unit(config)
    height, width = (
        -(-(each + (parts - 1) * each_shared) // parts)
        for each, each_shared in zip(size, overlap, strict=True)
        for parts in (max(1, math.ceil((each - each_shared) / max(1, side - each_shared))),)
    )
    return _multiple(height, unit * cores), _multiple(width, unit)


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One size of the record on one number of cores, and what the compiler says about it."""

    record_size: Size
    case: Case
    split: dict[str, Any]

    @property
    def total_bytes(self) -> int | None:
        total = self.split.get("memory", {}).get("total")
        return None if total is None else int(total)


@dataclass
class _Compilations:
    """Compilations of ways, in parallel and cached."""

    asked: Request
    topology: Topology
    images_per_replica: int
    cache: CompileCache
    tell: Tell
    jobs: int | None
    done: dict[tuple[Size, int], _Way] = field(default_factory=dict)

    def compile(self, pairs: Sequence[tuple[Size, int]]) -> list[_Way]:
        """Compile pairs of a record size and a number of cores."""
        found = {pair: self._case(*pair) for pair in pairs if pair not in self.done}
        requests = {pair: case.request for pair, case in found.items() if case.request is not None}
        names = [
            f"{height} x {width} over {cores} cores" if cores > 1 else f"{height} x {width}"
            for (height, width), cores in requests
        ]
        compiled = compile_all(
            list(requests.values()), self.cache, names=names, tell=self.tell, jobs=self.jobs
        )
        results: dict[tuple[Size, int], CompileResult] = dict(zip(requests, compiled, strict=True))
        for (size, cores), case in found.items():
            split = split_of(case, results.get((size, cores)), self.topology, self._shape(size))
            self.done[size, cores] = _Way(record_size=size, case=case, split=split)
        return [self.done[pair] for pair in pairs]

    def _shape(self, size: Size) -> tuple[int, ...]:
        return (*size, _channels(self.asked))

    def _case(self, size: Size, cores: int) -> Case:
        shape = self._shape(size)
        asked = resized(self.asked, shape)
        (case,) = cases(asked, self.topology, shape, (cores,), self.images_per_replica)
        return case


def _channels(asked: Request) -> int:
    shape = asked.config.image_shape if asked.facts is None else asked.facts["image_shape"]
    assert shape is not None
    return int(shape[-1])


class _Estimate:
    """Estimate of the memory of a window from compiled tiles: it decides where to begin, and never what fits."""

    def __init__(self, tiles: Sequence[_Way], topology: Topology) -> None:
        known = [(way, way.total_bytes) for way in tiles if way.total_bytes is not None]
        self._state = self._per_pixel = 0.0
        if known:
            way, total = max(known, key=lambda entry: math.prod(entry[0].record_size))
            self._state = sum(way.split["memory"][name] for name in ("parameters", "optimizer"))
            self._per_pixel = (total - self._state) / math.prod(way.record_size)
        chip = topology.chip
        self.limit: float | None = None if chip is None else chip.memory_bytes

    def bytes(self, size: Size, cores: int) -> float:
        """Return the estimated bytes of a core: the state, and the tile's other memory in proportion to pixels."""
        return self._state + self._per_pixel * math.prod(size) / cores

    def is_above(self, size: Size, cores: int, factor: float) -> bool:
        """Return whether the estimate is above a multiple of the machine's memory; False if that is unknown."""
        return self.limit is not None and self.bytes(size, cores) > factor * self.limit


class _WindowSearch:
    """Search for the fewest windows along the longer side of a picture that fit a number of cores."""

    def __init__(self, sizes: Sequence[Size], cores: int, estimate: _Estimate) -> None:
        self.cores, self._sizes, self._estimate = cores, sizes, estimate
        self.ways: dict[int, _Way] = {}
        self.skipped: list[Size] = []
        first = [index for index, size in enumerate(sizes) if not estimate.is_above(size, cores, 1.0)]
        # Without a window that is estimated to fit, the smallest is tried.
        self.next: int | None = first[0] if first else (len(sizes) - 1 if sizes else None)
        self._skip_if_too_large()

    @property
    def size(self) -> Size:
        """Size to compile next."""
        assert self.next is not None
        return self._sizes[self.next]

    def update(self, way: _Way) -> None:
        """Take the result for `size`, and choose the next size or none."""
        assert self.next is not None
        at = self.next
        self.ways[at] = way
        follows = at - 1 if way.split["fits"] else at + 1
        is_new = 0 <= follows < len(self._sizes) and follows not in self.ways
        # Without memory the split is impossible, for a reason that another size does not change.
        self.next = follows if is_new and "memory" in way.split else None
        self._skip_if_too_large()

    def _skip_if_too_large(self) -> None:
        """End the search where the estimate is far above the memory."""
        if self.next is not None and self._estimate.is_above(self.size, self.cores, _SURELY_TOO_LARGE):
            self.next = None
        first = min([*self.ways, *([] if self.next is None else [self.next])], default=len(self._sizes))
        self.skipped = list(self._sizes[:first])

    def shown(self) -> Iterator[_Way]:
        """Yield all compiled windows, the largest first.

        The largest that fits is not always the cheapest: to fit 2,624 x 2,624 pixels of RetinaNet into a core, the
        compiler takes 22 % more time at best of an epoch than for 2,336 x 2,336 (docs/plan.md).
        """
        yield from (self.ways[at] for at in sorted(self.ways))


def plan_pictures(
    asked: Request,
    pictures: Pictures,
    *,
    cores: Sequence[int] = (),
    images_per_replica: int = 1,
    cache: CompileCache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Compare tiles on one core with windows over several, as plain JSON values.

    Each size of tiles is compiled for one core. For each number of cores, the whole picture or the largest of its
    windows that fits is searched: the picture cut in two along its longer side, in three, and so on.

    Args:
        asked: request with the config and the machine, and with the data set if there is one.
        pictures: size and number of the pictures, and the tiles.
        cores: numbers of cores per replica; empty takes 1, 2, 4, ... up to 16.
        images_per_replica: images that a replica computes at once, for every way.
        cache: cache of the compilers' output.
        tell: function that prints a progress line.
        jobs: number of compilers at once; None is as many as cores and free memory allow.

    Returns:
        The head of a plan, `picture` (the values of `pictures`), `images_per_replica`, `ways`, each the output of
        `way_facts`, `skipped` (windows that were not compiled, by cores), `recommended`, the index of a way or None,
        and `reason`, a sentence.

    Raises:
        UsageError: the machine, the config or a size is invalid, or no way could be compiled (with the reason).
    """
    topology = topology_named(asked.topology)
    asked = _with_channels(asked, pictures)
    check_tile_sizes(pictures.tile_sizes, asked.config)
    compilations = _Compilations(asked, topology, images_per_replica, cache, tell, jobs)
    counts = tuple(cores) or tuple(count for count in topology.splits() if count <= 16)
    tiles = compilations.compile([(size, 1) for size in pictures.tile_sizes])
    estimate = _Estimate(tiles, topology)
    searches = _search_windows(compilations, pictures, counts, estimate)
    windows = [way for search in searches for way in search.shown()]
    shown = tiles + [way for way in windows if way not in tiles]
    if not any("memory" in way.split for way in shown):
        raise UsageError("; ".join(dict.fromkeys(str(way.split["refused"]) for way in shown)))
    ways = [
        way_facts(way.record_size, way.split, pictures, images_per_replica, topology.devices) for way in shown
    ]
    best, reason = choose(ways, pictures.object_size)
    return {
        **plan_head(asked, topology),
        "picture": {
            "size": list(pictures.size),
            "count": pictures.count,
            "overlap": list(pictures.overlap),
            "object_size": pictures.object_size or None,
        },
        "images_per_replica": images_per_replica,
        "ways": ways,
        "skipped": [
            {
                "cores": search.cores,
                "record_size": list(search.skipped[-1]),
                "estimated_bytes": round(estimate.bytes(search.skipped[-1], search.cores)),
            }
            for search in searches
            if search.skipped
        ],
        "recommended": best,
        "reason": reason,
    }


def _with_channels(asked: Request, pictures: Pictures) -> Request:
    """Return a request whose config has an image shape, that of the first tile if it has none.

    Raises:
        UsageError: the config or data set is for volumes or clips.
    """
    config = asked.config
    shape = config.image_shape if asked.facts is None else tuple(asked.facts["image_shape"])
    if shape is None:
        return replace(asked, config=replace(config, image_shape=(*pictures.tile_sizes[0], 3)))
    if len(shape) != 3:
        raise UsageError(
            f"--picture-size: the config is for images of {'x'.join(map(str, shape))}; take a config for pictures, "
            "such as --config unet2d_small, or leave out --picture-size"
        )
    return asked


def _search_windows(
    compilations: _Compilations, pictures: Pictures, counts: Sequence[int], estimate: _Estimate
) -> list[_WindowSearch]:
    """Find the largest windows for all numbers of cores; their searches run together, to compile in parallel."""
    fitting = [math.prod(size) for (size, _), way in compilations.done.items() if way.split["fits"]]
    least, config = max(fitting, default=0), compilations.asked.config
    searches = [
        _WindowSearch(_window_sizes(pictures, config, count, least), count, estimate) for count in counts
    ]
    while waiting := [search for search in searches if search.next is not None]:
        ways = compilations.compile([(search.size, search.cores) for search in waiting])
        for search, way in zip(waiting, ways, strict=True):
            search.update(way)
    return searches


def _window_sizes(pictures: Pictures, config: TrainConfig, cores: int, least: int) -> list[Size]:
    """Return the windows to try, the whole picture first.

    Windows of `least` pixels, the largest tile that fits one core, or fewer are left out. One core has windows too:
    their sides are fitted to the picture, so tiles of 2,048 pixels compared only with windows over more cores would
    lose by their larger overlap.
    """
    sizes = [whole_size(pictures.size, config, cores)]
    for count in range(2, max(pictures.size)):
        size = window_size(pictures.size, pictures.overlap, config, cores, count)
        # Rounding up to rows that divide by the cores bounds how small windows become.
        if size == sizes[-1] and min(size) <= _unit(config) * cores:
            break
        if math.prod(size) <= least or min(size) <= max(pictures.overlap):
            break
        if size != sizes[-1]:
            sizes.append(size)
    return sizes


def way_facts(
    record_size: Size, split: dict[str, Any], pictures: Pictures, images_per_replica: int, devices: int
) -> dict[str, Any]:
    """Return the figures of one way, as plain JSON values.

    Args:
        record_size: (height, width) of a record.
        split: output of `split_of`.
        pictures: pictures that the records cover.
        images_per_replica: images that a replica computes at once.
        devices: number of cores of the machine.

    Returns:
        `record_size`, `grid` (rows and columns of records), `records` per picture, `overlap` and `padding` (shares of
        the records' pixels), `whole_object` (largest side of an object that some record shows whole wherever it is;
        None without a border), `context` (pixels of the picture around every pixel in some record, at least; None
        without a border), `images_per_step`, `steps` per epoch, `epoch` (`flops` of all cores and `seconds` at best;
        None unless it fits) and `split`.
    """
    grid = pictures.grid(record_size)
    pixels = math.prod(record_size)
    seen = math.prod(min(pair) for pair in zip(record_size, pictures.size, strict=True))
    padding = 1 - seen / pixels
    shared = min_shared(grid)
    images = split["replicas"] * images_per_replica
    steps = -(-pictures.count * len(grid) // images)
    epoch = None
    if split["fits"]:
        bound = split["bound"]
        epoch = {
            "flops": split["flops"] * devices * steps,
            "seconds": None if bound is None else bound["step"] * steps,
        }
    return {
        "record_size": list(record_size),
        "grid": [len(grid.tops), len(grid.lefts)],
        "records": len(grid),
        "overlap": grid.seen_again - padding,
        "padding": padding,
        "whole_object": shared,
        "context": None if shared is None else shared // 2,
        "images_per_step": images,
        "steps": steps,
        "epoch": epoch,
        "split": split,
    }


def min_shared(grid: PictureTiles) -> int | None:
    """Return the fewest pixels that two neighbors share along an axis; None for one tile.

    An object of this side is whole in some tile, wherever it is. Half of it is the context of the pixels in the
    middle of an overlap, which no tile shows with more around them.

    >>> min_shared(plan_picture_tiles((100, 100), (64, 128), (16, 0)))
    28
    """
    shared = [
        before + side - after
        for starts, side in ((grid.tops, grid.tile_size[0]), (grid.lefts, grid.tile_size[1]))
        for before, after in itertools.pairwise(starts)
    ]
    return min(shared, default=None)


def covers(way: dict[str, Any], object_size: int) -> bool:
    """Return whether an object of this side is whole in some record, wherever it is."""
    return way["whole_object"] is None or way["whole_object"] >= object_size


def cost_of(way: dict[str, Any], *, by_time: bool) -> float:
    """Return the cost of an epoch: seconds at best, or FLOP of all cores."""
    return float(way["epoch"]["seconds" if by_time else "flops"])


def choose(ways: Sequence[dict[str, Any]], object_size: int = 0) -> tuple[int | None, str]:
    """Choose a way by rule.

    1. Only ways that fit; of these only those that show the largest object whole, if one does.
    2. The lowest cost of an epoch: its time at best, or its FLOP for a machine without published peaks.
    3. Of those within `EQUAL_COST` of it the fewest cores per record, then the fewest records, for most context.

    Args:
        ways: output of `way_facts` for each way.
        object_size: longest side of the largest object; 0 if unknown.

    Returns:
        The index of the way, None if nothing fits, and one sentence with the reason.
    """
    fitting = [index for index, way in enumerate(ways) if way["split"]["fits"]]
    if not fitting:
        return None, "nothing fits: take --remat, or a machine with more memory"
    whole = [index for index in fitting if covers(ways[index], object_size)]
    allowed = whole or fitting
    by_time = all(ways[index]["epoch"]["seconds"] is not None for index in allowed)
    costs = {index: cost_of(ways[index], by_time=by_time) for index in allowed}
    cheapest = min(costs, key=lambda index: costs[index])
    equal = [index for index in allowed if costs[index] <= EQUAL_COST * costs[cheapest]]
    best = min(equal, key=lambda index: (_cores(ways[index]), ways[index]["records"], costs[index]))
    shows = f" and shows objects of {object_size} pixels whole" if object_size and whole else ""
    reason = _reason(ways, costs, best, unit="time at best" if by_time else "FLOP")
    reason = (f"it fits{shows}, and has {reason}") if reason else f"it is the only way that fits{shows}"
    overlap = f"--tile-overlap {object_size},{object_size}"
    if len(allowed) < len(fitting):
        return best, f"{reason}; with {overlap} the tiles show them too"
    if not whole:
        return best, f"{reason}; no way shows objects of {object_size} pixels whole: take {overlap}"
    return best, reason


def _reason(ways: Sequence[dict[str, Any]], costs: dict[int, float], best: int, unit: str) -> str:
    """Return what a way has that the others whose costs are given have not; "" without others."""
    if len(costs) == 1:
        return ""
    cheapest = min(costs, key=lambda index: costs[index])
    lowest = f"the lowest {unit} of an epoch among {len(costs)} such ways"
    if best == cheapest:
        return lowest
    gain = "fewer cores" if _cores(ways[best]) < _cores(ways[cheapest]) else "fewer, larger records"
    return f"{gain}, for {100 * (costs[best] / costs[cheapest] - 1):.1f} % more than {lowest}"


def _cores(way: dict[str, Any]) -> int:
    return int(way["split"]["cores"])
