#!/usr/bin/env bash
# deflate.gzip_decompress returns the first member of a gzip file of two, and nothing of a file that zeros follow, without an error.
# deflate 0.9.0, imagecodecs 2026.3.6. One expects all members: RFC 1952 (2.2) defines a file as members, and gzip, zlib and Python read all.
# Source: libdeflate_gzip_decompress reads one member; the wrapper takes the size from the last four bytes of the file.
# Why here: libdeflate reads a CT in 70 ms and ISA-L in 84 ms, but a second member or padding would be lost, so ISA-L stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check deflate==0.9.0 imagecodecs==2026.3.6
cat > main.py <<'END'
import gzip
from importlib.metadata import version

import deflate
import imagecodecs

print("deflate", version("deflate"), "imagecodecs", version("imagecodecs"))
member = gzip.compress(b"abc" * 1000)
double, padded = member + member, member + bytes(100)
found = [len(read(double)) for read in (gzip.decompress, deflate.gzip_decompress, imagecodecs.gzip_decode)]
print("two members: gzip, deflate, imagecodecs:", found)
assert found == [6000, 3000, 3000]
found = [len(read(padded)) for read in (gzip.decompress, deflate.gzip_decompress)]
print("zeros after the member: gzip, deflate:", found)
assert found == [3000, 0]
END
env/bin/python main.py
