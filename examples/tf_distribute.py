"""Evaluate under tf.distribute without losing or repeating a record.

Two virtual CPU devices make a MirroredStrategy, and two processes on this machine a MultiWorkerMirroredStrategy. On
several hosts each runs `evaluate_as_worker` with its own TF_CONFIG. TPUStrategy takes the same calls; it was not tried
on a TPU.

    pip install 'halofeed[convert,tf]'
    python examples/tf_distribute.py
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from drawn import draw_photos

import halofeed


def count(strategy: tf.distribute.Strategy, test: halofeed.Loader) -> tuple[int, int]:
    """Return the records and those of class 1 that all replicas get together."""

    @tf.function
    def count_on_replica(
        image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        del image
        return tf.reduce_sum(weight), tf.reduce_sum(weight * tf.cast(label == 1, weight.dtype))

    totals = np.zeros(2)
    for batch in test.distributed(
        strategy, as_supervised=True
    ):  # (image, label, weights); 0 for rows of padding
        found = strategy.run(count_on_replica, args=batch)
        totals += [float(strategy.reduce("SUM", value, axis=None)) for value in found]
    return int(totals[0]), int(totals[1])


def check_rows(strategy: tf.distribute.Strategy, test: halofeed.Loader) -> None:
    """Compare what the replicas get with the batches: each has its part of the rows, in order."""
    for step, parts in enumerate(test.distributed(strategy)):
        for name, array in test.batch(step).items():
            found = np.concatenate(strategy.experimental_local_results(parts[name]))
            np.testing.assert_array_equal(found, array)


def evaluate_as_worker(data: str) -> None:
    """Print the counts of one process of a MultiWorkerMirroredStrategy, which TF_CONFIG describes."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    print(*count(strategy, halofeed.open(data).loader("test", batch_size=8, training=False)))


def count_with_workers(data: str, workers: int = 2) -> list[tuple[int, int]]:
    """Return the counts of each of several processes on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    processes = []
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(config), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", f"import tf_distribute; tf_distribute.evaluate_as_worker({data!r})"]
        processes.append(
            subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True)
        )
    printed = [process.communicate(timeout=300)[0].split() for process in processes]
    return [(int(records), int(of_class)) for records, of_class in printed]


def main(folder: Path) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    test = data.loader("test", batch_size=8, training=False)
    check_rows(strategy, test)  # each replica gets 4 of the 8 rows of every batch

    by_hand = len(list((folder / "photos" / "test").glob("*/*.png")))
    of_first = len(list((folder / "photos" / "test" / data.class_names[1]).glob("*.png")))
    assert count(strategy, test) == (by_hand, of_first) == (21, 7)
    assert count_with_workers(data.path) == [(by_hand, of_first)] * 2
    print(
        f"{by_hand} records and {of_first} of one class over 2 replicas and over 2 processes, as counted by hand"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
