"""A search ends at the largest size that fits, savings compile what they name, and machines have known names."""

from collections.abc import Sequence
from typing import Any

import pytest

from halofeed.errors import UsageError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan import document
from halofeed.trainer.plan import search as savings_module
from halofeed.trainer.plan import search as search_module
from halofeed.trainer.plan.compiling import CompileCache, CompileResult
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.search import resized
from halofeed.trainer.plan.topologies import GENERATIONS, topology_named

CONFIG = TrainConfig(model="classifier", image_shape=(256, 256, 3), batch_size=8, optimizer="adam")
STATE = {"parameters": 10, "optimizer": 20, "average": 0}


def fits_up_to(pixels_a_core: int, asked: list[Request]) -> Any:
    """Answers of a compiler for which a core holds so many pixels."""

    def answers(requests: Sequence[Request], cache: CompileCache, **_: Any) -> list[CompileResult]:
        asked.extend(requests)
        return [CompileResult(compiled=said(request)) for request in requests]

    def said(request: Request) -> dict[str, Any]:
        config = request.config
        assert config.image_shape is not None
        pixels = config.batch_size * config.image_shape[0] * config.image_shape[1] // 8
        known = {"state": STATE, "batch_bytes": 0, "whole_levels": [], "seconds": 1.0, "compiler_bytes": 1}
        if pixels > pixels_a_core * (2 if config.remat else 1):
            return {**known, "out_of_memory": "RESOURCE_EXHAUSTED: Used 30.0G of 15.5G hbm"}
        memory = {"argument": 100, "output": 100, "alias": 100, "temp": pixels, "generated_code": 0}
        return {**known, "memory": memory, "cost": {"flops": 1e9}, "hlo": ""}

    return answers


@pytest.mark.parametrize(("of", "largest"), [("side", 704), ("batch", 7)])
def test_a_search_finds_the_largest_that_fits_in_few_compilations(monkeypatch, of, largest):
    asked: list[Request] = []
    limit = 511 * 1024 if of == "side" else 256 * 256 * 7
    monkeypatch.setattr(search_module, "compile_all", fits_up_to(limit, asked))
    split = {"cores": 1, "partition": "", "replicas": 8, "batch_size": 8}
    request = Request(config=CONFIG, topology="v3-8")
    found = search_module.search(request, {"splits": [split]}, of, cache=CompileCache(None))
    (entry,) = found["found"]
    assert entry["largest"] == largest and entry["least_refused"] == largest + search_module.STEPS[of]
    assert len(asked) < 9


def test_a_search_needs_a_machine_that_can_be_full():
    request = Request(config=CONFIG, topology="cpu:8")
    with pytest.raises(UsageError, match="name a TPU"):
        search_module.search(request, {"splits": []}, "side", cache=CompileCache(None))


def test_savings_compile_the_split_that_does_not_fit_with_each_change(monkeypatch):
    asked: list[Request] = []
    monkeypatch.setattr(document, "compile_all", fits_up_to(40000, asked))
    request = Request(config=CONFIG, topology="v3-8")
    plan = document.plan_config(request, cores=(1,), cache=CompileCache(None))
    assert plan["recommended"] is None
    found = savings_module.savings(request, plan, cache=CompileCache(None))
    assert found is not None and not found["before"]["fits"]
    changes = {entry["change"]: entry["split"]["fits"] for entry in found["changes"]}
    assert changes["--remat"] and not changes["--set optimizer=sgd --set momentum=0.9"]
    assert [one.config.remat for one in asked] == [False, True, False, False]


def test_another_size_changes_every_array_on_the_images_grid():
    facts = {"image_shape": [64, 64, 1]}
    arrays = {"image": ((8, 64, 64, 1), "uint8"), "label": ((8, 64, 64), "uint8"), "valid": ((8,), "bool")}
    asked = Request(config=TrainConfig(model="unet"), topology="cpu:1", facts=facts, arrays=arrays)
    changed = resized(asked, (96, 96, 1))
    assert changed.arrays == {
        "image": ((8, 96, 96, 1), "uint8"), "label": ((8, 96, 96), "uint8"), "valid": ((8,), "bool"),
    }  # fmt: skip
    assert changed.facts == {"image_shape": [96, 96, 1]}


TOPOLOGIES = [("v2-8", "v2:2x2", 8), ("v3-8", "v3:2x2", 8), ("v3-16", "v3:2x4", 16), ("v3-64", "v3:4x8", 64)]
TOPOLOGIES += [("v4-8", "v4:2x2x1", 4), ("V5LITEPOD-16", "v5e:4x4", 16), ("v5p-16", "v5p:2x2x2", 8)]
TOPOLOGIES += [("v6e-8", "v6e:2x4", 8), ("v3:8x8", "v3:8x8", 128)]


@pytest.mark.parametrize(("name", "grid", "cores"), TOPOLOGIES)
def test_a_name_gives_the_grid_of_its_chips_and_the_cores_that_jax_counts(name, grid, cores):
    found = topology_named(name)
    assert (found.grid, found.devices) == (grid, cores)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_says_where_its_figures_are_published(generation):
    chip = GENERATIONS[generation].chip
    assert chip.source and min(chip.memory_bytes, chip.flops_per_second, chip.memory_bytes_per_second) > 1e9


def test_an_unknown_machine_is_refused_with_those_there_are():
    for name, words in (
        ("v9-8", "known: v2, v3, v4, v5e, v5p, v6e, tpu7x, v4i"),
        ("v3-12", "expected 8, 16, 32"),
        ("v4:2x2", "has 3 axes"),
        ("cpu:0", "1 to 128"),
        ("", "not known"),
    ):
        with pytest.raises(UsageError, match=words):
            topology_named(name)
