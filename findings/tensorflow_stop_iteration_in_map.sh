#!/usr/bin/env bash
# StopIteration of a tf.numpy_function inside Dataset.map neither ends the data set nor is reported by its name: it arrives as InvalidArgumentError.
# TensorFlow 2.21.0 (CPU). One expects the end of the data. RuntimeError arrives as UnknownError, but ValueError has the same class as StopIteration.
# Source: the kernel of py_func turns StopIteration into OutOfRange, and map turns OutOfRange of its function into InvalidArgument.
# Why here: next() of a file reader inside a map, such as an empty series, looks like a wrong argument of the graph.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy==2.3.5
env/bin/python -I - <<'END'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf


def outcome(error):
    def read(number):
        if number == 3:
            raise error
        return np.int64(number)

    seen = []
    try:
        for value in tf.data.Dataset.range(6).map(lambda number: tf.numpy_function(read, [number], tf.int64)):
            seen.append(int(value))
    except tf.errors.OpError as caught:
        return seen, type(caught).__name__
    return seen, "end"


found = {type(error).__name__: outcome(error) for error in (StopIteration("no more"), RuntimeError("broken"), ValueError("wrong"))}
print("tensorflow", tf.__version__, found)
assert found["StopIteration"] == ([0, 1, 2], "InvalidArgumentError") and found["RuntimeError"] == ([0, 1, 2], "UnknownError")
END
