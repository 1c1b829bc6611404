#!/usr/bin/env bash
# np.unique of a plain array of integers imports numpy.ma, which takes 10 ms or more, a tenth of the import of NumPy.
# numpy 2.4.6. One expects a function of NumPy to import nothing at its first call, as np.sort and np.bincount.
# Source: numpy/lib/_arraysetops_impl.py asks np.ma.is_masked(ar) before it hashes; numpy/__init__.py imports numpy.ma at its first use.
# Why here: it was 10 of the 150 ms from `import halofeed.loader` to the first batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check numpy==2.4.6
env/bin/python -I - <<'END'
import sys
import time

began = time.perf_counter()
import numpy as np

imported, values = time.perf_counter() - began, np.array([3, 1, 3])
assert np.flatnonzero(np.bincount(np.sort(values))).tolist() == [1, 3] and "numpy.ma" not in sys.modules
seconds = []
for _ in range(2):
    began = time.perf_counter()
    assert np.unique(values).tolist() == [1, 3]
    seconds.append(time.perf_counter() - began)
print(f"numpy {np.__version__}: import {imported * 1e3:.1f} ms, first np.unique {seconds[0] * 1e3:.1f} ms, second {seconds[1] * 1e3:.3f} ms")
assert "numpy.ma" in sys.modules and seconds[0] > 20 * seconds[1]
END
