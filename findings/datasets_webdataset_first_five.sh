#!/usr/bin/env bash
# The first five examples of a tar file decide: a field that none of them has is left out without a word, one that some have is an error, a later gap is None.
# datasets 5.2.0, loader webdataset. One expects one rule for all places of the gap; the webdataset package returns what each example has.
# Source: datasets, packaged module webdataset, NUM_EXAMPLES_FOR_FEATURES_INFERENCE.
# Why here: a tar file that begins with unlabeled pictures becomes a set without labels.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.2.0 pillow==12.3.0
env/bin/python -I - <<'END'
import io
import os
import tarfile
import warnings

os.environ["HF_HOME"] = "cache"
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import datasets
from PIL import Image

datasets.disable_progress_bars()
picture = io.BytesIO()
Image.new("RGB", (4, 4)).save(picture, "PNG")


def load(labeled):
    name = "labeled-" + "".join(map(str, labeled))
    os.mkdir(name)
    with tarfile.open(f"{name}/a.tar", "w") as file:
        for number in range(8):
            for field, content in (("png", picture.getvalue()), ("cls", b"1")):
                if field == "png" or number in labeled:
                    entry = tarfile.TarInfo(f"{number}.{field}")
                    entry.size = len(content)
                    file.addfile(entry, io.BytesIO(content))
    try:
        loaded = datasets.load_dataset("webdataset", data_files=f"{name}/a.tar", split="train", cache_dir=f"{name}/cache")
    except ValueError as error:
        return str(error)[-60:]
    return loaded["cls"][:] if "cls" in loaded.features else "no column cls"


first, last, mixed = load((0, 1, 2, 3, 4)), load((5, 6, 7)), load((0, 1, 5))
print("datasets", datasets.__version__, "8 pictures; labels of the first five:", first)
print("labels of the last three:", last, "; labels of 0, 1 and 5:", mixed)
assert first == [1] * 5 + [None] * 3 and last == "no column cls" and "same types" in mixed
END
