"""Check that all real data sets, each by two recipes, give the records that another checkout gives.

    git worktree add ../before v0.1.0
    python benchmarks/same_records.py ../before

Shards are compared byte by byte; indexes and manifests are not, which name recipe and software. Where both checkouts
refuse a set, so does the table. What shall differ is listed in docs/decisions.md, one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from convert import SOURCE

HERE = Path(__file__).resolve().parents[1]
SHAPE = ("--depth", "32", "--height", "48", "--width", "48")
FIXED = ("--height", "96", "--width", "96")
PADDED = ("--resize", "keep-aspect", "--min-dimension", "96", "--max-dimension", "128", "--pad")
TABLE = ("--layout", "jsonl", "--task", "segmentation", "--missing-masks", "prediction")
LABELS = {
    "example_ct.nii.gz": "example_seg.nii.gz",
    "spine_report/ct.nii.gz": "spine_report/totalseg.nii.gz",
    "pulmonary_report/ct_cropped.nii.gz": "pulmonary_report/heart.nii.gz",
}
"""Of the scans that a table lists, those that have labels."""
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "images/clothing": (("--layout", "folders"), FIXED, (*PADDED, "--encoding", "png")),
    "detection/bccd_voc": (("--layout", "voc"), FIXED, (*PADDED, "--encoding", "jpeg", "--keep", "view")),
    "detection/cards_voc": (("--layout", "voc"), FIXED, (*PADDED, "--kernel", "tf2-bilinear")),
    "detection/coco_ccby": (("--layout", "coco"), (*FIXED, "--masks"), (*PADDED, "--boxes-crowd", "drop")),
    "odd/images": (
        ("--layout", "folders", "--folders-are-classes"),
        (*FIXED, "--channels", "4"),
        (*PADDED, "--store", "uint16"),
    ),
    "volumes/hippocampus": (
        ("--layout", "pairs"),
        (*SHAPE, "--window-percentiles", "1,99"),
        (*SHAPE, "--spacing-mm", "1.5,1.5,1.5", "--normalize", "scan"),
    ),
    "volumes/spleen": (
        ("--layout", "pairs"),
        (*SHAPE, "--window", "abdomen"),
        (*SHAPE, "--fit", "tiles", "--tile-overlap", "4,8,8"),
    ),
    "volumes/totalsegmentator": (
        TABLE,
        (*SHAPE, "--mask-grid", "resample"),
        (*SHAPE, "--fit", "stretch", "--store", "float32", "--mask-interpolation", "nearest"),
    ),
    "odd/nifti": (
        TABLE,
        (*SHAPE,),
        (*SHAPE, "--fit", "stretch", "--store", "float32"),
    ),
    **{
        f"dicom/{name}": (
            ("--layout", "dicom"),
            (*SHAPE, "--window-hu", "-160,240", "--window-unit", "any"),
            (*SHAPE, "--crop-foreground", "--interpolation", "cubic"),
        )
        for name in ("totalsegmentator_jpeg2000", "ge_tilt_variable_spacing", "torchio_17")
    },
}


def convert(checkout: Path, source: Path, out: Path, options: tuple[str, ...]) -> str:
    """Convert a set; "" where it is done, else the last line of what was said."""
    command = [sys.executable, "-m", "halofeed", "convert", "--source", str(source), "--out", str(out)]
    done = subprocess.run(
        [*command, "--name", "set", "--shards", "2", *options],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else (done.stderr.strip() or "failed").splitlines()[0]


def shards(out: Path) -> dict[str, bytes]:
    """The shards by their names."""
    return {path.name: path.read_bytes() for path in out.rglob("*.tfrecord-*") if path.suffix != ".index"}


def table_of(source: Path, file: Path) -> None:
    """A table of every NIfTI file below a folder that is no label."""
    with file.open("w") as stream:
        for path in sorted(source.rglob("*.nii*")):
            name = path.relative_to(source).as_posix()
            if not any(word in name for word in ("seg", "heart", "artery", "one_file_per_class")):
                stream.write(json.dumps({"image": name, "label": LABELS.get(name)}) + "\n")


def compare(before: Path, source: Path, options: tuple[str, ...]) -> str:
    """In what the records of a set differ, in words."""
    with tempfile.TemporaryDirectory() as scratch:
        if "jsonl" in options:
            table = Path(scratch) / "table.jsonl"
            table_of(source, table)
            source, options = table, ("--images", str(source), *options)
        outs = [Path(scratch) / name for name in ("before", "now")]
        said = [
            convert(checkout, source, out, options)
            for checkout, out in zip((before, HERE), outs, strict=True)
        ]
        if any(said):
            same = "both refuse it" if all(said) else "only one refuses it"
            return f"{same}: {said[0] or said[1]}"
        first, second = map(shards, outs)
        if first.keys() != second.keys():
            return f"OTHER SHARDS: {sorted(first.keys() ^ second.keys())}"
        changed = [name for name in first if first[name] != second[name]]
        megabytes = sum(map(len, first.values())) / 1e6
        return f"OTHER BYTES in {', '.join(changed)}" if changed else f"same {megabytes:.1f} MB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of the real data sets")
    given = parser.parse_args()
    if not given.source.is_dir():
        raise SystemExit(f"{given.source}: no folder there; name the one of the real data sets with --source")
    failed = False
    for name, (layout, *recipes) in SETS.items():
        for number, recipe in enumerate(recipes, start=1):
            found = compare(given.before.resolve(), given.source / name, (*layout, *recipe))
            failed |= found.startswith(("OTHER", "only"))
            print(f"{name:<36} {number}  {found}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
