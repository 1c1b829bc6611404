"""What would rematerialization, or another optimizer's state, save? Compiled, and not estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.cache import Cache
from halofeed.trainer.plan.document import plan_config
from halofeed.trainer.plan.request import Request

_CHANGES: dict[str, dict[str, Any]] = {
    "--remat": {"remat": True},
    "--set optimizer=sgd --set momentum=0.9": {"optimizer": "sgd", "momentum": 0.9},
    "--set optimizer=sgd --set momentum=0.0": {"optimizer": "sgd", "momentum": 0.0},
    "--set average_decay=0": {"average_decay": 0.0},
}


def savings(
    asked: Request,
    plan: dict[str, Any],
    *,
    cache: Cache,
    tell: Callable[[str], None] = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any] | None:
    """What each change makes of one split: of the last that does not fit, else of the recommended one.

    Returns:
        `before`, the split as it is, and `changes`, each `change` (the options to give) with its `split`; None where
        nothing could be compiled.
    """
    compiled = [split for split in plan["splits"] if "memory" in split]
    if not compiled:
        return None
    refused = [split for split in compiled if not split["fits"]]
    before = (refused or [split for split in compiled if split["cores"] == plan["recommended"]])[-1]
    changes = []
    for name, values in _CHANGES.items():
        config = asked.config.changed(**values)
        if config == asked.config or _needs_more(config, asked.config):
            continue
        tell(f"what {name} would save")
        after = plan_config(
            replace(asked, config=config),
            cores=(before["cores"],),
            images_per_replica=before["batch_size"] // before["replicas"],
            cache=cache,
            tell=tell,
            jobs=jobs,
        )
        changes.append({"change": name, "split": after["splits"][0]})
    return {"before": before, "changes": changes}


def _needs_more(config: TrainConfig, than: TrainConfig) -> bool:
    """Whether a config's optimizer keeps more numbers a parameter than another's."""

    def kept(one: TrainConfig) -> int:
        return {"sgd": int(bool(one.momentum)), "lars": 1}.get(one.optimizer, 2)

    return (
        kept(config) >= kept(than)
        and config.remat == than.remat
        and bool(than.average_decay) == bool(config.average_decay)
    )
