"""Do the sheets of clips' frames in a report show each class where its frame does?"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.inspection.html.report import write_report
from halofeed.inspection.html.run_report import write_run_report
from tests.support.clip_mask_writer import convert_masked_clips, draw_masked
from tests.support.pages import Page, picture
from tests.support.run_writer import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return convert_masked_clips(tmp_path_factory.mktemp("clips"))


def assert_classes_lie_over_what_they_show(page: str, pairs: int) -> None:
    """Each sheet of classes covers what is red or blue in the sheet of frames under it."""
    shown = itertools.pairwise(Page(page).all("img"))
    found = [(before["src"], mask["src"]) for before, mask in shown if mask.get("class") == "mask"]
    assert len(found) == pairs
    for stored, mask in found:
        covered = picture(mask)[..., 3] > 0
        sheet = Image.fromarray(picture(stored)).convert("RGB")
        colors = np.asarray(sheet.resize(covered.shape[::-1], Image.Resampling.NEAREST)).astype(int)
        red_or_blue = np.abs(colors[..., 0] - colors[..., 2]) > 60
        assert covered.mean() > 0.04 and (covered != red_or_blue).mean() < 0.02


def test_the_classes_of_every_frame_of_a_sheet_lie_over_it(folder, tmp_path):
    assert_classes_lie_over_what_they_show(write_report(folder, tmp_path / "report.html").read_text(), 12)


def test_a_run_shows_the_truth_and_the_prediction_over_the_frames_of_its_clips(tmp_path):
    run = write_run(tmp_path / "run", "segmentation", volume=False)
    document = json.loads((run / "run.json").read_text())
    document["facts"] |= {"kind": "clip", "image_shape": [12, 48, 64, 3]}
    document["config"] |= {"model": "unet", "partition": "image=1,4,1,1,1"}
    (run / "run.json").write_text(json.dumps(document))
    for file in sorted((run / "examples").glob("*.npz")):
        frames, masks = draw_masked(np.random.default_rng(int(file.stem)))
        label = np.array(masks)
        np.savez(file, image=np.array(frames), truth_label=label, predicted_label=label.astype(np.int32))
    page = write_run_report(run, tmp_path / "run.html").read_text()
    assert_classes_lie_over_what_they_show(page, 8)
    assert "0.0 % of the pixels are wrong" in page or "0 % of the pixels are wrong" in page
    assert "4 along frame" in page and "voxels" not in page
