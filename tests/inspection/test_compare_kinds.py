"""`halofeed diff` finds planted changes of scans, tiles and keypoints, each under its kind, and nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from halofeed.inspection.compare_versions import compare_versions
from tests.support.conversions import run_convert
from tests.support.volume_support import save_nifti, write_table

SHAPE = (6, 10, 12)
NAMES = ("a", "b", "c", "d", "e", "f")


def found_kinds(earlier: str, later: str) -> dict[str, set[str]]:
    """The kinds of changes by the name of the source."""
    found: dict[str, set[str]] = {}
    for one in compare_versions(earlier, later).examples:
        found.setdefault(Path(one.source).stem.split("_")[0], set()).update(one.kinds)
    return found


def scans(folder: Path, *, changed: bool) -> str:
    """Scans with masks; changed: a voxel of b, a voxel of the mask of c, the spacing of d, e removed and f added."""
    names = [name for name in NAMES if name != ("e" if changed else "f")]
    for name in names:
        random = np.random.default_rng(ord(name))
        image = random.integers(0, 900, SHAPE).astype(np.int16)
        mask = np.zeros(SHAPE, np.uint8)
        mask[2:5, 3:8, 4:9] = 1
        affine = np.diag([1.0, 1.0, 2.0, 1.0])
        if changed and name == "b":
            image[3, 4, 5] += 100
        if changed and name == "c":
            mask[3, 4, 5] = 0
        if changed and name == "d":
            affine[2, 2] = 2.5
        save_nifti(folder / "s" / f"{name}_image.nii", image, affine)
        save_nifti(folder / "s" / f"{name}_mask.nii", mask, affine)
    write_table(folder / "s", [(name, f"{name}_image.nii", f"{name}_mask.nii") for name in names])
    table = {"layout": "csv", "task": "segmentation", "shards": 2}
    sides = dict(zip(("depth", "height", "width"), SHAPE, strict=True))
    return run_convert(folder / "s", folder / "out", **table, **sides).folder


def test_planted_changes_of_scans_are_found(tmp_path: Path) -> None:
    earlier, later = (scans(tmp_path / str(changed), changed=changed) for changed in (False, True))
    expected = {"b": {"pixels"}, "c": {"mask"}, "d": {"geometry"}, "e": {"removed"}, "f": {"added"}}
    assert found_kinds(earlier, later) == expected
    assert found_kinds(earlier, earlier) == {}


def tiles(folder: Path, *, changed: bool) -> str:
    """Pictures that are cut into 4 tiles; changed: a pixel in the last tile of b."""
    (folder / "s").mkdir(parents=True)
    for name in NAMES[:3]:
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (32, 32, 3)).astype(np.uint8)
        if changed and name == "b":
            pixels[30, 30] ^= 255
        (folder / "s" / "hat").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "s" / "hat" / f"{name}.png")
    options = {"layout": "folders", "fit": "tiles", "height": 16, "width": 16}
    return run_convert(folder / "s", folder / "out", **options).folder


def test_a_changed_pixel_is_that_of_its_tile(tmp_path: Path) -> None:
    earlier, later = (tiles(tmp_path / str(changed), changed=changed) for changed in (False, True))
    (found,) = compare_versions(earlier, later).examples
    assert set(found.kinds) == {"pixels"} and Path(found.source).stem == "b"


def keypoints(folder: Path, **points: list[int]) -> str:
    """Pictures with one person of three keypoints; `points` replaces those of a picture by name."""
    (folder / "s").mkdir(parents=True)
    document: dict[str, Any] = {
        "categories": [{"id": 1, "name": "person", "keypoints": ["nose", "hand", "foot"], "skeleton": []}]
    }
    document["images"], document["annotations"] = [], []
    for number, name in enumerate(NAMES[:3], 1):
        Image.fromarray(np.full((20, 20, 3), 40 * number, np.uint8)).save(folder / "s" / f"{name}.png")
        document["images"].append({"id": number, "file_name": f"{name}.png", "width": 20, "height": 20})
        given = points.get(name, [4, 5, 2, 8, 9, 2, 12, 13, 1])
        box = {"id": number, "image_id": number, "category_id": 1, "iscrowd": 0, "bbox": [2, 3, 12, 14]}
        document["annotations"].append({**box, "area": 168, "keypoints": given, "num_keypoints": 3})
    (folder / "s" / "annotations.json").write_text(json.dumps(document))
    options = {"layout": "coco", "height": 20, "width": 20, "keep": ("keypoints",)}
    return run_convert(folder / "s" / "annotations.json", folder / "out", **options).folder


def test_a_moved_and_a_hidden_keypoint_are_changes_of_their_pictures(tmp_path: Path) -> None:
    earlier = keypoints(tmp_path / "0")
    later = keypoints(tmp_path / "1", b=[4, 5, 2, 9, 9, 2, 12, 13, 1], c=[4, 5, 1, 8, 9, 2, 12, 13, 1])
    assert set(found_kinds(earlier, later)) == {"b", "c"}
    assert found_kinds(earlier, earlier) == {}
