"""Does a run learn, report its progress, and stop with a reason?"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from halofeed.loader.mesh import mesh_specs, place_batch
from halofeed.schemas.errors import PartitionError, UsageError
from halofeed.schemas.manifest import Manifest, Shard, Split
from halofeed.schemas.partition import Partition
from halofeed.trainer.options import TrainOptions
from halofeed.trainer.train import DataFacts, TrainingError, data_facts, train

FACTS = DataFacts(task="classification", classes=2, mean=(128.0,) * 3, std=(64.0,) * 3)


class Stripes:
    """A loader of pictures with stripes that run across (0) or down (1), a different batch each step."""

    def __init__(
        self, rows: int, side: int = 32, steps: int | None = None, broken_step: int | None = None
    ) -> None:
        self.rows, self.side, self.steps, self.broken_step = rows, side, steps, broken_step

    def batch(self, step: int) -> dict[str, np.ndarray[Any, Any]]:
        generator = np.random.default_rng(step)
        label = generator.integers(0, 2, self.rows).astype(np.int32)
        across = (np.arange(self.side) // 2 % 2 * 255)[:, None] * np.ones((1, self.side))
        noise = generator.integers(-20, 20, (self.rows, self.side, self.side, 3))
        stripes = np.where(label[:, None, None], across.T, across)[..., None] + noise
        image = np.clip(stripes, 0, 255).astype(np.float32)
        if step == self.broken_step:
            image[0, 0, 0, 0] = np.nan
        return {
            "image": image if self.broken_step is not None else image.astype(np.uint8),
            "label": label,
            "classes": np.stack([label + 1, np.zeros_like(label)], axis=1),
            "num_boxes": np.ones(self.rows, np.int32),
            "id": np.arange(self.rows) + 2**33,
            "valid": np.ones(self.rows, bool),
        }

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterator[Mapping[str, jax.Array]]:
        step = start_step
        while self.steps is None or step < self.steps:
            batch = self.batch(step)
            shapes = {key: value.shape for key, value in batch.items()}
            specs = mesh_specs(mesh, partition, shapes)
            yield place_batch(mesh, specs, shapes, lambda a, b: {k: v[a:b] for k, v in batch.items()})  # noqa: B023
            step += 1


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_the_loss_falls_within_twenty_steps_on_a_partition(task: str) -> None:
    options = TrainOptions(
        steps=20, batch_size=16, cores_per_replica=4, partition="image=1,2,2,1", learning_rate=0.02
    )
    facts = DataFacts(task=task, classes=2, mean=FACTS.mean, std=FACTS.std)
    summary = train(options, Stripes(16), facts, stream=io.StringIO())
    assert summary.mesh_shape == {"replica": 2, "core0": 2, "core1": 2}
    assert len(summary.losses) == 20
    assert np.mean(summary.losses[-3:]) < 0.3 * summary.losses[0]
    assert summary.images_per_second > 0
    assert summary.parameters > 100_000


def test_a_partitioned_run_takes_the_same_steps_as_one_device() -> None:
    def losses(cores: int, partition: str, devices: int) -> tuple[float, ...]:
        options = TrainOptions(
            steps=3, batch_size=8, cores_per_replica=cores, partition=partition, compute_dtype="float32"
        )
        return train(options, Stripes(8), FACTS, devices=jax.devices()[:devices], stream=io.StringIO()).losses

    np.testing.assert_allclose(losses(4, "image=1,4,1,1", 8), losses(1, "", 1), rtol=1e-3)


def test_progress_is_a_line_every_tenth_of_the_run_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    options = TrainOptions(steps=20, batch_size=2)
    train(options, Stripes(2), FACTS, devices=jax.devices()[:1], stream=stream)
    first, *steps = stream.getvalue().splitlines()
    assert "bfloat16, on cpu as replica 1; compiled in" in first
    assert [line.split("  ")[0] for line in steps] == ["step 1/20"] + [
        f"step {n}/20" for n in range(2, 21, 2)
    ]
    assert all(re.search(r"  loss \d+\.\d{4}", line) for line in steps)
    assert steps[-1].endswith("images/s")


@pytest.mark.parametrize(
    ("cores", "partition", "warned"),
    [(2, "image=none", True), (2, "image=1", True), (2, "image=1,2,1,1", False), (1, "image=1", False)],
)
def test_cores_that_do_the_same_work_are_warned_of(cores: int, partition: str, warned: bool) -> None:
    stream = io.StringIO()
    options = TrainOptions(steps=1, batch_size=2, cores_per_replica=cores, partition=partition)
    train(options, Stripes(2), FACTS, devices=jax.devices()[:cores], stream=stream)
    warnings = [line for line in stream.getvalue().splitlines() if line.startswith("warning: ")]
    assert bool(warnings) == warned
    if warned:
        assert "2 cores" in warnings[0] and "--partition image=1,2,1,1" in warnings[0]
        assert "--cores-per-replica 1" in warnings[0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_stays_in_place_on_a_terminal() -> None:
    stream = Terminal()
    options = TrainOptions(steps=3, batch_size=2)
    train(options, Stripes(2), FACTS, devices=jax.devices()[:1], stream=stream)
    head, line = stream.getvalue().split("\n", 1)
    assert "parameters" in head
    assert line.count("\r\x1b[K") == 3 and line.count("\n") == 1


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_step() -> None:
    with pytest.raises(
        TrainingError, match=r"step 2: the loss is nan; lower the learning rate of 0.05, or look"
    ):
        train(
            TrainOptions(steps=5, batch_size=2),
            Stripes(2, broken_step=2),
            FACTS,
            devices=jax.devices()[:1],
            stream=io.StringIO(),
        )


def test_a_run_ends_with_its_data_and_an_empty_loader_is_an_error() -> None:
    options = TrainOptions(steps=10, batch_size=2)
    devices = jax.devices()[:1]
    assert len(train(options, Stripes(2, steps=4), FACTS, devices=devices, stream=io.StringIO()).losses) == 4
    with pytest.raises(TrainingError, match="the loader gave no batch"):
        train(options, Stripes(2, steps=0), FACTS, devices=devices, stream=io.StringIO())


def test_what_does_not_go_together_is_refused_before_the_first_step() -> None:
    def run(facts: DataFacts = FACTS, rows: int = 8, **options: Any) -> None:
        train(
            TrainOptions(**{"steps": 1, "batch_size": 8, **options}),
            Stripes(rows),
            facts,
            stream=io.StringIO(),
        )

    with pytest.raises(PartitionError, match="--virtual-devices 16"):
        run(cores_per_replica=16, partition="image=1,16,1,1")
    with pytest.raises(PartitionError, match="batch of 6 does not divide by the 8 replicas"):
        run(rows=6)
    with pytest.raises(UsageError, match=r"image: expected \[16, height, width, 3\], got \[8, 32, 32, 3\]"):
        run(batch_size=16)
    with pytest.raises(UsageError, match=r"image: expected \[8, height, width, 1\]"):
        run(DataFacts(task="classification", classes=2, mean=(1.0,), std=(1.0,)))


def manifest_of(task: str, labels: dict[int, str], statistics: dict[str, Any]) -> Manifest:
    shard = Shard(file="x", records=2, bytes=1, crc32c=0, index_bytes=1, index_crc32c=0)
    return Manifest(
        name="cards",
        version="1.0.0",
        task=task,
        fields=(),
        labels=labels,
        recipe={},
        inputs={},
        splits={
            "train": Split(shards=(shard,), statistics=statistics),
            "test": Split(shards=(), statistics={}),
        },
        rejected={},
        software={},
    )


PIXELS = {"pixels": {"count": 2, "sum": [20, 200], "sum_squares": [200, 20_000 + 2 * 100]}}


@pytest.mark.parametrize(
    ("task", "labels"), [("classification", {0: "a", 2: "c"}), ("detection", {1: "a", 2: "b", 3: "c"})]
)
def test_the_manifest_says_classes_mean_and_deviation(task: str, labels: dict[int, str]) -> None:
    facts = data_facts(manifest_of(task, labels, PIXELS), "train")
    assert facts == DataFacts(task=task, classes=3, mean=(10.0, 100.0), std=(1.0, 10.0))


def test_a_split_or_labels_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="known: train, test"):
        data_facts(manifest_of("detection", {1: "a"}, PIXELS), "val")
    with pytest.raises(UsageError, match="split 'test' holds no records"):
        data_facts(manifest_of("detection", {1: "a"}, PIXELS), "test")
    with pytest.raises(UsageError, match="no labels to learn"):
        data_facts(manifest_of("detection", {}, PIXELS), "train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"steps": 0, "batch_size": 0},
            "steps: expected 1 or more, got 0; batch size: expected 1 or more, got 0",
        ),
        ({"learning_rate": 0.0}, "learning rate: expected more than 0"),
        ({"optimizer": "lion"}, "optimizer: expected one of sgd, adamw"),
        ({"cores_per_replica": 4}, "pass --partition image=1,4,1,1"),
        ({"partition": "image=1,4,1,1"}, "--cores-per-replica 4"),
    ],
)
def test_wrong_options_are_refused_when_they_are_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainOptions(**options)
