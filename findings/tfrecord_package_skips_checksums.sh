#!/usr/bin/env bash
# The tfrecord package (a reader without TensorFlow) never compares the checksums of a file: a changed byte comes out as data.
# tfrecord 1.14.6 returns b"zy" where b"xy" was written. One expects an error, as TensorFlow raises DataLossError.
# Source: tfrecord.reader reads the two CRC-32C fields of each record and drops them.
# Why here: whoever reads our shards with it does not see damage; `halofeed verify` does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tfrecord==1.14.6 setuptools==80.9.0
env/bin/python -I - <<'END'
from importlib.metadata import version
import tfrecord

writer = tfrecord.TFRecordWriter("a.tfrecord")
writer.write({"name": (b"xy", "byte")})
writer.close()
with open("a.tfrecord", "rb") as file:
    data = file.read()
with open("b.tfrecord", "wb") as file:
    file.write(data.replace(b"xy", b"zy"))
(record,) = tfrecord.tfrecord_loader("b.tfrecord", None)
print("tfrecord", version("tfrecord"), "reads", record, "from a damaged file")
assert bytes(record["name"]) == b"zy"
END
