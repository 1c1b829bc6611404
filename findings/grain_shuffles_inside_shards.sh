#!/usr/bin/env bash
# IndexSampler(shuffle=True) shuffles inside each shard: over all epochs a host sees the same third of the records; MapDataset.shuffle before a slice mixes them.
# grain 0.2.18. One expects one order of all records that the hosts share, as the documentation of shuffle says ('globally').
# Source: IndexSampler shards first (AI-Hypercomputer/maxtext issue 477); the two ways of one library differ.
# Why here: files sorted by hospital or class give each host its own distribution, which normalization per host does not see.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check grain==0.2.18 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import itertools

from absl import app
import grain


class Numbers:
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


def main(_):
    for shard in range(3):
        sampler = grain.samplers.IndexSampler(9, grain.sharding.ShardOptions(shard, 3), shuffle=True, seed=0)
        loader = grain.DataLoader(data_source=Numbers(), sampler=sampler, operations=[], worker_count=0)
        by_sampler = sorted({int(value) for value in itertools.islice(loader, 60)})
        by_slice = sorted({int(value) for value in grain.MapDataset.range(9).shuffle(seed=0)[shard::3].repeat(20)})
        print("grain", version("grain"), "host", shard, "20 epochs by IndexSampler:", by_sampler, "by shuffle and slice:", by_slice)
        assert by_sampler == list(range(3 * shard, 3 * shard + 3)) and by_slice == list(range(9))


app.run(main, argv=["main"])
END
