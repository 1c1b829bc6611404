"""Evaluate under tf.distribute without losing or repeating a record.

Two virtual CPU devices make a MirroredStrategy. With MultiWorkerMirroredStrategy each host runs the same lines with its
own TF_CONFIG. TPUStrategy takes them too; it was not tried on a TPU.

    pip install 'halofeed[convert,tf]'
    python examples/tf_distribute.py
"""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from drawn import draw_photos

import halofeed


def main(folder: Path) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    test = data.loader("test", batch_size=8, training=False)

    # Each replica gets 4 of the 8 rows of every batch.
    for step, parts in enumerate(test.distributed(strategy)):
        for name, array in test.batch(step).items():
            found = np.concatenate(strategy.experimental_local_results(parts[name]))
            np.testing.assert_array_equal(found, array)

    @tf.function
    def count(image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        del image
        return tf.reduce_sum(weight), tf.reduce_sum(weight * tf.cast(label == 1, weight.dtype))

    records = first_class = 0.0
    for batch in test.distributed(strategy, as_supervised=True):  # weight is 0 for rows of padding
        found = strategy.run(count, args=batch)
        totals = [float(strategy.reduce("SUM", value, axis=None)) for value in found]
        records, first_class = records + totals[0], first_class + totals[1]

    by_hand = len(list((folder / "photos" / "test").glob("*/*.png")))
    of_first = len(list((folder / "photos" / "test" / data.class_names[1]).glob("*.png")))
    assert (records, first_class) == (by_hand, of_first) == (21, 7)
    print(f"{records:.0f} records and {first_class:.0f} of one class over 2 replicas, as counted by hand")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
