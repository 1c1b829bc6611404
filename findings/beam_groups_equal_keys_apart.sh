#!/usr/bin/env bash
# GroupByKey keeps the keys 1, 1.0 and True apart, and an IntEnum member from its number; CombinePerKey of the same pairs merges them.
# apache-beam 2.77.0, local runner. One expects both to group the same way, since CombinePerKey is a GroupByKey with a sum.
# Source: GroupByKey compares encoded bytes; combining before the shuffle uses a dict of Python, for the elements of one bundle.
# Why here: counts by class agree on a small set and can split on many workers; keys must have one type.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check apache-beam==2.77.0
printf 'import enum\n\n\nclass Organ(enum.IntEnum):\n    LIVER = 1\n' >organs.py
cat > main.py <<'END'
import glob
import logging
from importlib.metadata import version

import apache_beam as beam
from organs import Organ


def run(pairs, step, name):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create(pairs) | step | beam.Map(repr) | beam.io.WriteToText(name)
    return sorted(line.strip() for found in glob.glob(name + "*") for line in open(found))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print("apache-beam", version("apache-beam"))
    for number, pairs in enumerate(([(1, 1), (1.0, 2), (True, 4)], [(Organ.LIVER, 1), (1, 2)])):
        grouped = run(pairs, beam.GroupByKey(), f"grouped{number}-")
        summed = run(pairs, beam.CombinePerKey(sum), f"summed{number}-")
        print(pairs, "grouped", grouped, "summed", summed)
        assert len(grouped) == len(pairs) and len(summed) == 1
END
env/bin/python main.py
