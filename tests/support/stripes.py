"""Runs of a small classifier on pictures with stripes, which are drawn for each step."""

import io
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from halofeed.loader import split_id
from halofeed.schemas.partition import Partition
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import TrainData
from halofeed.trainer.task import DataFacts
from halofeed.trainer.train import TrainSummary, train
from tests.support.training import facts_of, placed

SIDE = 32
LABELS = {0: "across", 1: "down"}
FACTS = facts_of("classification", LABELS, (SIDE, SIDE, 3), mean=(128.0,) * 3, std=(64.0,) * 3)


class Stripes:
    """Batches of pictures with stripes that run across (0) or down (1), each a function of its step.

    Batch 0 with `first=2` is batch 2 without it.
    """

    def __init__(self, rows, steps=None, broken_step=None, seed=0, first=0) -> None:
        self.first = first
        self.batch_size, self.steps, self.broken_step, self.seed = rows, steps, broken_step, seed
        self.num_records = rows * (steps or 1)
        self.kill_at: int | None = None

    def batch(self, step: int) -> dict[str, np.ndarray[Any, Any]]:
        generator = np.random.default_rng([self.seed, self.first + step])
        label = generator.integers(0, 2, self.batch_size).astype(np.int32)
        across = (np.arange(SIDE) // 2 % 2 * 255)[:, None] * np.ones((1, SIDE))
        noise = generator.integers(-20, 20, (self.batch_size, SIDE, SIDE, 3))
        stripes = np.where(label[:, None, None], across.T, across)[..., None] + noise
        image = np.clip(stripes, 0, 255).astype(np.float32)
        if step == self.broken_step:
            image[0, 0, 0, 0] = np.nan
        return {
            "image": image if self.broken_step is not None else image.astype(np.uint8),
            "label": label,
            "id": split_id(np.arange(self.batch_size) + 2**33),
            "valid": np.ones(self.batch_size, bool),
        }

    def on_mesh(self, mesh: Mesh, partition: Partition, start_step: int = 0) -> Iterator[Any]:
        step = start_step
        while self.steps is None or step < self.steps:
            if step == self.kill_at:
                os.kill(os.getpid(), signal.SIGTERM)
            yield placed(mesh, partition, self.batch(step))
            step += 1

    def state(self, step: int) -> dict[str, Any]:
        return {"step": step, "seed": self.seed}

    def restore(self, state: Mapping[str, Any]) -> int:
        assert state["seed"] == self.seed
        return int(state["step"])


def data_of(batches: Stripes, *, evaluation: Stripes | None = None, facts: DataFacts = FACTS) -> TrainData:
    description = {"data": "stripes", "data_name": "stripes", "data_version": "1.0.0", "split": "train"}
    description |= {"evaluate_split": "test", "recipe": {}}
    return TrainData(facts=facts, batches=batches, evaluation=evaluation, description=description)


def run(config: TrainConfig, batches: Stripes, devices: int = 1, **more: Any) -> TrainSummary:
    folder, more = more.pop("folder", None), {"stream": io.StringIO(), **more}
    data = data_of(batches, evaluation=more.pop("evaluation", None), facts=more.pop("facts", FACTS))
    return train(config, data, folder, devices=jax.devices()[:devices], **more)


def config_of(**changes: Any) -> TrainConfig:
    small = {"learning_rate": 0.02, "compute_dtype": "float32", "model_options": {"features": (8, 8, 16)}}
    return TrainConfig(**{**small, **changes})


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
