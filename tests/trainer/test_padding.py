"""The padding of records, in space and in time, does not count in an evaluation."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from halofeed.trainer.data import evaluation_loader
from halofeed.trainer.tasks.segmentation import Segmentation
from tests.support.clip_mask_writer import draw_masked, write_masks
from tests.support.clip_writer import write_folder
from tests.support.conversions import run_convert


@pytest.mark.parametrize("kind", ["picture", "volume", "clip"])
def test_padding_counts_for_no_kind_of_image(tmp_path: Path, kind: str) -> None:
    generator = np.random.default_rng(0)
    root = tmp_path / "in"
    if kind == "volume":
        for name, voxels in (("images", 40), ("labels", 1)):
            (root / name).mkdir(parents=True)
            scan = np.full((20, 20, 9), voxels // 2, np.int16)
            scan[4:9, 4:9, 2:5] = voxels
            nibabel.Nifti1Image(scan, np.eye(4)).to_filename(root / name / "a.nii.gz")
        options = {"depth": 16, "height": 32, "width": 32, "pad_value": (-5,)}
    else:
        frames, masks = draw_masked(generator, 5)
        if kind == "clip":
            write_folder(root / "images" / "a", frames)
            write_masks(root / "labels" / "a", masks, "folder")
        else:
            for name, image in (("images", frames[0]), ("labels", masks[0])):
                (root / name).mkdir(parents=True)
                Image.fromarray(image).save(root / name / "a.png")
        options = {"resize": "keep-aspect", "min_dimension": 48, "max_dimension": 64, "pad": True}
        options |= {"frames": 8, "short_clips": "repeat"} if kind == "clip" else {"task": "segmentation"}
    done = run_convert(root, tmp_path / "out", layout="pairs", **options)
    labels = tuple(name for _, name in sorted(done.manifest.labels.items()))
    task = Segmentation(labels=labels, kind=kind)
    batch = evaluation_loader(done.folder, "train", 1, task).batch(0)
    shown = np.zeros(batch["label"].shape, bool)
    if kind == "volume":
        shown |= batch["image"][..., 0] != -5
    else:
        shown[(0, slice(5), slice(48), slice(64)) if kind == "clip" else (0, slice(48), slice(64))] = True
    predicted = np.where(shown, batch["label"], 1)
    assert (predicted != batch["label"]).any()
    metrics = task.metrics()
    assert metrics.update({"label": predicted}, batch).tolist() == [1.0]
    assert metrics.result()["dice"] == 1.0
