#!/usr/bin/env bash
# Each worker makes batches of its own records: with 3 workers, 10 records in batches of 4 leave 6 over, with 2 workers or none 2.
# grain 0.2.18, DataLoader. One expects batches that do not depend on the number of workers, since the order of single records does not.
# Source: operations, Batch included, run in each worker (documentation of grain, DataLoader).
# Why here: with drop_remainder, another machine trains on other records, and results cannot be compared batch by batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check grain==0.2.18 numpy==2.3.5
cat > main.py <<'END'
from importlib.metadata import version

from absl import app, logging
import grain


class Numbers:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


def load(workers, *operations):
    sampler = grain.samplers.IndexSampler(10, grain.sharding.NoSharding(), num_epochs=1, seed=0)
    loader = grain.DataLoader(data_source=Numbers(), sampler=sampler, operations=operations, worker_count=workers)
    return [value.tolist() if operations else int(value) for value in loader]


def main(_):
    logging.set_verbosity(logging.ERROR)
    print("grain", version("grain"))
    batches = {workers: load(workers, grain.transforms.Batch(4)) for workers in (0, 2, 3)}
    for workers, found in batches.items():
        print(workers, "workers:", found, "; single records:", load(workers))
    assert load(0) == load(3) == list(range(10))
    assert batches[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(map(len, batches[2])) == [1, 1, 4, 4] and sorted(map(len, batches[3])) == [3, 3, 4]


if __name__ == "__main__":
    app.run(main)
END
env/bin/python main.py
