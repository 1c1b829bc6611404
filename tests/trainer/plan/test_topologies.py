"""Machines have the names of Google Cloud; an unknown name is refused with the known ones."""

import pytest

from halofeed.schemas.errors import UsageError
from halofeed.trainer.plan.topologies import GENERATIONS, topology_named


@pytest.mark.parametrize(
    ("name", "grid", "cores"),
    [
        ("v2-8", "v2:2x2", 8),
        ("v3-8", "v3:2x2", 8),
        ("v3-16", "v3:2x4", 16),
        ("v3-64", "v3:4x8", 64),
        ("v4-8", "v4:2x2x1", 4),
        ("V5LITEPOD-16", "v5e:4x4", 16),
        ("v5p-16", "v5p:2x2x2", 8),
        ("v6e-8", "v6e:2x4", 8),
        ("v3:8x8", "v3:8x8", 128),
    ],
)
def test_a_name_gives_the_grid_of_its_chips_and_the_cores_that_jax_counts(name, grid, cores):
    found = topology_named(name)
    assert (found.grid, found.devices) == (grid, cores)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_says_where_its_figures_are_published(generation):
    chip = GENERATIONS[generation].chip
    assert chip.source and min(chip.memory_bytes, chip.flops_per_second, chip.memory_bytes_per_second) > 1e9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v9-8", "known: v2, v3, v4, v5e, v5p, v6e"),
        ("v3-12", "expected 8, 16, 32"),
        ("v4:2x2", "lie along 3 axes"),
        ("cpu:0", "1 to 128"),
        ("", "not known"),
    ],
)
def test_an_unknown_machine_is_refused_with_those_there_are(name, words):
    with pytest.raises(UsageError, match=words):
        topology_named(name)
