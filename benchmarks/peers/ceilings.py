"""What no loader can pass: one thread's copy into warm memory, and windows or decoding alone on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from peers.common import Case, Source


def write(source: Source, folder: Path) -> None:
    """The source itself is read."""
    (folder / "source").symlink_to(source.folder)


def batches(folder: Path, case: Case, way: str) -> Iterator[dict[str, Any]]:
    """The same memory again and again."""
    source = Source(folder / "source")
    numbers = np.arange(case.batch_size) % len(source)
    warm = np.ones((case.batch_size, *case.shown), case.dtype)
    if way == "memcpy":
        return copied(source, case, numbers, warm)
    if way == "windows":
        return windows(source, case, warm)
    return decoded([source[int(number)]["image"] for number in numbers], numbers, warm)


def copied(source: Source, case: Case, numbers: Any, warm: Any) -> Iterator[dict[str, Any]]:
    """Copies of one batch; of the label too, where there is one."""
    window = tuple(map(slice, case.shown[:-1]))
    if case.is_encoded:
        raise ValueError("JPEG files are not copied")
    images = np.stack([source[int(number)]["image"][window] for number in numbers])
    pairs = [(warm, images)]
    if case.has_labels:
        labels = np.stack([source[int(number)]["label"][window] for number in numbers])
        pairs.append((np.ones_like(labels), labels))
    while True:
        for target, array in pairs:
            np.copyto(target, array)
        yield {"image": warm, "number": numbers}


def windows(source: Source, case: Case, warm: Any) -> Iterator[dict[str, Any]]:
    """Windows of records in any order, flipped or not, copied by as many threads as there are cores."""
    from halofeed.loader.augment.view import View

    rng = np.random.default_rng(0)
    axes = len(case.crop)
    flips = range(axes) if axes == 3 else [1]
    targets = {"image": warm}
    if case.has_labels:
        targets["label"] = np.ones(warm.shape[:-1], np.uint8)
    views = []
    for _ in range(len(source)):
        view = View.whole(case.shape[:-1])
        for axis in flips:
            view = view.flip(axis) if rng.random() < 0.5 else view
        room = np.array(case.shape[:-1]) - case.crop
        views.append(view.crop(rng.integers(room + 1).tolist(), case.crop))
    examples = [{key: np.asarray(source[number][key]) for key in targets} for number in range(len(source))]
    threads = len(os.sched_getaffinity(0))

    def copy(first: int, order: Any) -> None:
        for row in range(first, len(order), threads):
            number = int(order[row])
            for key, target in targets.items():
                views[number].copy(examples[number][key], target[row])

    with ThreadPoolExecutor(threads) as pool:
        while True:
            for order in rng.permutation(len(source))[: len(source) // len(warm) * len(warm)].reshape(
                -1, len(warm)
            ):
                list(pool.map(copy, range(threads), [order] * threads))
                yield {**targets, "number": order}


def decoded(files: list[bytes], numbers: Any, warm: Any) -> Iterator[dict[str, Any]]:
    """Batches decoded by as many threads as there are cores."""
    import simplejpeg

    def decode(row: int) -> None:
        simplejpeg.decode_jpeg(files[row], buffer=warm[row])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        while True:
            list(pool.map(decode, range(len(files))))
            yield {"image": warm, "number": numbers}
