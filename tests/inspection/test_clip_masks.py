"""Do the sheets of clips' frames in a report show each class where its frame does?"""

from __future__ import annotations

import base64
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.inspection.html.report import write_report
from tests.clip_mask_writer import convert_masked_clips

_PICTURE = re.compile(r'<img( class="mask")?[^>]*src="data:image/[a-z]+;base64,([^"]+)"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return convert_masked_clips(tmp_path_factory.mktemp("clips"))


def test_the_classes_of_every_frame_of_a_sheet_lie_over_it(folder, tmp_path):
    page = write_report(folder, tmp_path / "report.html").read_text()
    shown = [
        (bool(is_mask), Image.open(io.BytesIO(base64.b64decode(data))))
        for is_mask, data in _PICTURE.findall(page)
    ]
    pairs = [(before[1], mask) for before, (is_mask, mask) in itertools.pairwise(shown) if is_mask]
    assert len(pairs) == 12
    for stored, mask in pairs:
        colors = np.asarray(stored.convert("RGB").resize(mask.size, Image.Resampling.NEAREST)).astype(int)
        red_and_blue = np.abs(colors[..., 0] - colors[..., 2]) > 60
        covered = np.asarray(mask)[..., 3] > 0
        assert covered.mean() > 0.04 and (covered != red_and_blue).mean() < 0.02
