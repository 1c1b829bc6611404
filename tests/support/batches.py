"""How tests compare batches and put them together, and how they damage what these are read from."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = Mapping[str, NDArray[Any]]


def bits(batch: Batch) -> dict[str, tuple[Any, ...]]:
    return {
        name: (array.dtype, array.shape, array.tolist() if array.dtype.hasobject else array.tobytes())
        for name, array in batch.items()
    }


def same(first: Batch, second: Batch) -> None:
    found, expected = bits(first), bits(second)
    assert found.keys() == expected.keys()
    assert not [name for name in found if found[name] != expected[name]]


def joined(parts: Sequence[Batch]) -> dict[str, NDArray[Any]]:
    """The batch of all hosts, of each one's rows in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rows_of(batch: Batch) -> list[dict[str, bytes]]:
    """Each row by itself, as bytes."""
    return [{name: array[row].tobytes() for name, array in batch.items()} for row in range(len(batch["id"]))]


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Turn bits of one byte of a file, in place; the last byte is at -1."""
    with path.open("r+b") as file:
        place = file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bits]))
