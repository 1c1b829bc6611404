#!/usr/bin/env bash
# with_format('numpy') returns one column with two types: float64 and uint16 for an example, float32 and int64 for a slice, a batch or the column.
# datasets 5.2.0. One expects the type of the column, which is float64 and uint16, however it is read; 16777217 becomes 16777216 in a batch.
# Source: datasets.formatting.np_formatter applies its default types to arrays, and returns scalars of an example before that.
# Why here: spacings, times and ids read in batches differ from those read one by one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import datasets
import numpy as np

made = datasets.Dataset.from_dict({"time": np.array([16777217.0, 0.1]), "gray": np.array([1, 65535], np.uint16)})
read = made.with_format("numpy")
example, batch = read[0], read[0:2]
print("datasets", version("datasets"), "stored:", {name: feature.dtype for name, feature in made.features.items()})
print("example:", {name: value.dtype for name, value in example.items()}, example["time"])
print("slice:", {name: value.dtype for name, value in batch.items()}, batch["time"][0].astype(float))
assert example["time"] == 16777217 and batch["time"][0] == 16777216
assert (example["gray"].dtype, batch["gray"].dtype, batch["time"].dtype) == (np.uint16, np.int64, np.float32)
END
