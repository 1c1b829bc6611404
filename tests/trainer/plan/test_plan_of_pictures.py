"""A plan for large pictures compares tiles with splits: exact counts, a rule for the choice, and a real compilation."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan import pictures as planned
from halofeed.trainer.plan.compiling import CompileCache, CompileResult
from halofeed.trainer.plan.pictures import (
    Pictures,
    choose,
    coarsest_stride,
    min_shared,
    plan_pictures,
    way_facts,
    whole_size,
    window_size,
)
from halofeed.trainer.plan.requests import Request
from tests.support.training import command

GIB = 2**30
UNET = TrainConfig(model="unet", model_options={"depth": 3})


def way(cost: float, cores: int = 1, records: int = 1, **more: Any) -> dict[str, Any]:
    """Make a way that costs so many seconds of an epoch; cost 0 does not fit."""
    epoch = {"flops": cost, "seconds": cost} if cost else None
    split = {"fits": bool(cost), "cores": cores}
    return {"records": records, "whole_object": 128, "epoch": epoch, "split": split, **more}


CHOICES = {
    "the cheapest": ([way(10, records=9), way(20, records=4)], 0, 0, "lowest time at best"),
    "not what does not fit": ([way(0), way(20, 8)], 0, 1, "the only way that fits"),
    "no split when equal": ([way(100, 8), way(104, records=9)], 0, 1, "fewer cores, for 4.0 % more"),
    "a split that is cheaper": ([way(100, 8), way(106)], 0, 0, "lowest"),
    "the largest record when equal": ([way(100, records=9), way(104, records=4)], 0, 1, "fewer, larger records"),
    "what shows the object": (
        [way(10), way(20, 8, whole_object=None)], 200, 1, "with --tile-overlap 200,200 the tiles show them too",
    ),
    "an object of the overlap": ([way(10), way(20, 8, whole_object=None)], 128, 0, "objects of 128 pixels whole"),
    "no way shows it": ([way(10)], 200, 0, "no way shows objects of 200 pixels whole: take --tile-overlap 200,200"),
    "nothing": ([way(0), way(0, 8)], 0, None, "take --remat"),
    "FLOP without published peaks": (
        [way(10, epoch={"flops": 9, "seconds": None}), way(10, epoch={"flops": 5, "seconds": None})],
        0, 1, "lowest FLOP",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_rule_takes(name: str) -> None:
    ways, object_size, best, words = CHOICES[name]
    found, reason = choose(ways, object_size)
    assert found == best and words in reason


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.tuples(st.integers(1, 20), st.integers(1, 20)), st.data())
def test_shares_and_whole_objects_are_those_of_counted_pixels(size: Any, tile: Any, data: Any) -> None:
    overlap = tuple(data.draw(st.integers(0, side - 1)) for side in tile)
    if tile[0] > size[0] and tile[1] > size[1]:
        tile = size
        overlap = (0, 0)
    pictures = Pictures(size=size, count=3, tile_sizes=(tile,), overlap=overlap)
    split = {"fits": False, "replicas": 2}
    facts = way_facts(tile, split, pictures, images_per_replica=2, devices=2)
    seen, padded, records = np.zeros(size, int), 0, 0
    grid = pictures.grid(tile)
    for top in grid.tops:
        for left in grid.lefts:
            records += 1
            for row in range(top, top + tile[0]):
                for column in range(left, left + tile[1]):
                    if row < size[0] and column < size[1]:
                        seen[row, column] += 1
                    else:
                        padded += 1
    stored = records * tile[0] * tile[1]
    assert seen.min() >= 1 and facts["records"] == records
    assert facts["padding"] == pytest.approx(padded / stored)
    assert facts["overlap"] == pytest.approx((seen - 1).sum() / stored, abs=1e-12)
    assert facts["steps"] == -(-3 * records // 4)
    assert facts["whole_object"] == largest_whole_object(size, tile, grid)


def largest_whole_object(size: Any, tile: Any, grid: Any) -> int | None:
    """Try every place of an interval along both axes, in half pixels; None if a tile shows each axis whole."""
    found = []
    for length, side, starts in zip(size, tile, (grid.tops, grid.lefts), strict=True):
        if len(starts) == 1:
            continue
        fitting = [
            extent
            for extent in range(side + 1)
            if all(
                any(2 * start <= at and at + 2 * extent <= 2 * (start + side) for start in starts)
                for at in range(2 * (length - extent) + 1)
            )
        ]
        found.append(max(fitting))
    return min(found, default=None)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(50, 900), st.integers(50, 900)), st.sampled_from((0, 7, 32)), st.integers(1, 9),
    st.sampled_from((1, 2, 8)),
)  # fmt: skip
def test_windows_divide_by_the_cores_and_are_no_more_than_asked(
    size: Any, shared: int, count: int, cores: int
):
    height, width = window_size(size, (shared, shared), UNET, cores, count)
    assert height % (coarsest_stride(UNET) * cores) == 0 and width % coarsest_stride(UNET) == 0
    if min(height, width) <= shared:
        return
    grid = Pictures(size=size, overlap=(shared, shared)).grid((height, width))
    assert max(len(grid.tops), len(grid.lefts)) <= count
    assert min_shared(grid) is None or min_shared(grid) >= shared  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("--tile-sizes", 2048), "larger than the picture of 300x400; take --tile-sizes 300x400"),
        (("--tile-sizes", 64, "--tile-overlap", "64,64"), "take at most --tile-overlap 63,63"),
        (
            ("--tile-sizes", 60),
            "a multiple of 8, the stride of the coarsest level of unet; take --tile-sizes 64",
        ),
        (("--tile-sizes", "64x4", "--tile-overlap", "0,0"), "take --tile-sizes 64x8"),
        (("--config", "retinanet_small", "--tile-sizes", 16, "--object-size", 8), "take --tile-sizes 32"),
        (("--config", "unet3d_128", "--tile-sizes", 64, "--object-size", 8), "take a config for pictures"),
        (("--search", "side"), "--search: has no effect with --picture-size"),
        (("--picture-size", "300"), "expected height,width in pixels, such as --picture-size 300,300"),
        (("--pictures", 0), "--pictures 0: expected 1 or more"),
        (("--tile-sizes", "big"), "such as 512,1024 or 512x1024"),
    ],
)
def test_wrong_sizes_are_refused_before_a_compilation_with_a_fix(words, fix):
    overlap = () if {"--tile-overlap", "--object-size"} & set(words) else ("--tile-overlap", "8,8")
    start = ("plan", "--config", "unet2d_small", "--topology", "cpu:2", "--picture-size", "300,400")
    assert fix in command(*start, *overlap, *words, code=2)


def test_options_of_pictures_need_a_picture_size():
    words = ("plan", "--config", "unet2d_small", "--set", "image_shape=[64,64,3]", "--topology", "cpu:2")
    assert "such as --picture-size 20000,20000" in command(*words, "--object-size", 5, code=2)


def test_the_largest_window_that_fits_is_found_with_few_compilations(monkeypatch, tmp_path):
    asked: list[tuple[int, ...]] = []

    def compile_all(requests, cache, **_):
        asked.extend(
            (*request.config.image_shape[:2], request.config.cores_per_replica) for request in requests
        )
        return [CompileResult(compiled=compiled(request.config)) for request in requests]

    def compiled(config):
        pixels = config.image_shape[0] * config.image_shape[1] // config.cores_per_replica
        facts = {"state": dict.fromkeys(("parameters", "optimizer", "average"), 0), "batch_bytes": 0}
        facts |= {"whole_levels": [], "seconds": 1.0, "compiler_bytes": 1}
        # A pixel takes 2 KiB: 8 Mi pixels of a core fill the 16 GiB of a v3.
        if pixels > 8 << 20:
            needed = f"{pixels * 2048 / GIB:.2f}G"
            return {**facts, "out_of_memory": f"RESOURCE_EXHAUSTED: Used {needed} of 16.00G hbm"}
        memory = {
            **dict.fromkeys(("argument", "output", "alias", "generated_code"), 0),
            "temp": pixels * 2048,
        }
        return {**facts, "memory": memory, "cost": {"flops": 1e6 * pixels}, "hlo": ""}

    monkeypatch.setattr(planned, "compile_all", compile_all)
    pictures = Pictures(size=(20000, 20000), count=5, tile_sizes=((1024, 1024),), overlap=(128, 128))
    config = TrainConfig(model="retinanet")
    plan = plan_pictures(
        Request(config=config, topology="v3-8"), pictures, cores=(1, 8), cache=CompileCache(tmp_path)
    )
    windows = [entry for entry in plan["ways"] if entry["split"]["cores"] == 8]
    fitting = {
        count: window
        for count in range(1, 30)
        if (window := window_size(pictures.size, pictures.overlap, config, 8, count))[0] * window[1]
        <= 8 * 8 << 20
    }
    largest = next(entry for entry in windows if entry["split"]["fits"])
    assert tuple(largest["record_size"]) == fitting[min(fitting)] and not windows[0]["split"]["fits"]
    assert [entry["cores"] for entry in plan["skipped"]] == [1, 8] and len(asked) <= 5
    assert whole_size(pictures.size, config, 8) not in [sizes[:2] for sizes in asked]
    assert plan["ways"][plan["recommended"]]["split"]["fits"]


def test_the_command_compiles_compares_prints_and_writes_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("HALOFEED_PLAN_CACHE", str(tmp_path / "plans"))
    config = tmp_path / "mine.toml"
    config.write_text(
        'model = "unet"\nbatch_size = 2\ncompute_dtype = "float32"\n[model_options]\ndepth = 2\nwidth = 2\n'
        'norm = "batch"\nupsampling = "repeat"\n'
    )
    words = ("--config", config, "--topology", "cpu:2", "--cores-per-replica", 2, "--picture-size", "60,50")
    tiles = ("--tile-sizes", "32", "--object-size", 8, "--pictures", 3)
    output = command("plan", *words, *tiles, "--json", tmp_path / "p.json", "--html", tmp_path / "p.html")
    plan = json.loads((tmp_path / "p.json").read_text())
    tile, window = plan["ways"]
    assert (tile["record_size"], tile["grid"], tile["steps"]) == ([32, 32], [3, 2], 9)
    assert (window["record_size"], window["records"], window["steps"]) == ([60, 50], 1, 3)
    assert window["split"]["sent_bytes"]["halos"] > 0 == tile["split"]["sent_bytes"]["halos"]
    assert window["epoch"]["flops"] == window["split"]["flops"] * 2 * 3
    assert "tile 32 x 32, unsplit" in output and "whole 60 x 50, 2-way 1,2,1,1" in output
    page = (tmp_path / "p.html").read_text()
    assert "Tiles or a split" in page and plan["reason"] in page
