"""What a stream is, so that a saved step is only resumed in the stream it was taken from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.errors import UsageError
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.sealed import unsealed

STATE_VERSION = 1


def fingerprint(manifest: Manifest, split: str) -> str:
    """SHA-256 of what a split holds: its fields, and each shard's record count, size and checksum in order."""
    content = {
        "fields": [field.to_json() for field in manifest.fields],
        "shards": [(shard.records, shard.bytes, shard.crc32c) for shard in manifest.split(split).shards],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(numbers: NDArray[np.int64]) -> str:
    """SHA-256 of numbers."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def restore_step(state: Mapping[str, Any], stream: Mapping[str, Any]) -> int:
    """The step of a saved state, if it belongs to the stream.

    Args:
        state: what `Loader.state` gave, perhaps read back from JSON.
        stream: what the state must agree with, key by key.

    Raises:
        UsageError: lists everything that differs; or the state was changed after it was given.
    """
    if not isinstance(state, Mapping) or "step" not in state:
        raise UsageError(f"not a loader's state: expected a dictionary with a step, got {state!r:.80}")
    try:
        state = unsealed(dict(state))
    except ValueError as error:
        raise UsageError(
            f"state: {error}; restore it as it was saved, or start at a step of your choice, such as start_step=0"
        ) from error
    if state.get("state_version") != STATE_VERSION:
        raise UsageError(
            f"state: expected state_version {STATE_VERSION}, got {state.get('state_version')!r}; it was saved by "
            "another version of halofeed"
        )
    step = state["step"]
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise UsageError(f"state: step: expected an integer of 0 or more, got {step!r}")
    different = [
        f"{key}: the state has {state.get(key)!r}, this loader {value!r}"
        for key, value in stream.items()
        if state.get(key) != value
    ]
    if different:
        raise UsageError(
            "the state is of another stream, whose batches differ:\n  "
            + "\n  ".join(different)
            + f"\nbuild the loader with the same arguments, or start the new stream at a step of your choice, "
            f"such as start_step={step}"
        )
    return step
