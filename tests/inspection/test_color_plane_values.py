"""Verify, pages, exports and the printed program read color planes, and state how much their colors differ."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.export_data import export_data, targets_of
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.loader import Loader
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.schemas.manifest import read_manifest
from tests.support.conversions import all_bytes
from tests.support.encoded_kinds import convert_case
from tests.support.parser_check import check_parser

CASES = {
    "pictures": {"height": 50, "width": 42},
    "labeled pictures": {"height": 46, "width": 70},
    "tiles": {"height": 40, "width": 34},
}


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """One source, converted to raw records and to color planes."""
    folder = tmp_path_factory.mktemp("kind")
    sets = [
        convert_case(request.param, folder, encoding=one, **CASES[request.param]) for one in ("raw", "yuv420")
    ]
    return sets[0], sets[1]


def pictures_of(folder: Path, split: str) -> list[np.ndarray]:
    """The pictures that the loader gives, without padding."""
    loader = Loader(folder, split=split, batch_size=1, training=False, include=["size"])
    batches = [loader.batch(step) for step in range(loader.num_records)]
    return [batch["image"][0][tuple(map(slice, batch["size"][0]))] for batch in batches]


def test_the_stated_difference_is_that_of_the_loaded_from_the_raw_pictures(both, tmp_path):
    raw, planes = both
    report = verify(planes)
    assert report.ok and not verify(raw).notes
    manifest = read_manifest(planes)
    for split in manifest.splits:
        differences = np.concatenate(
            [
                np.abs(one.astype(int) - other).reshape(-1)
                for one, other in zip(pictures_of(planes, split), pictures_of(raw, split), strict=True)
            ]
        )
        stated = f"stored colors differ from those of the pictures by {differences.mean():.2f} of 255 levels on average"
        stated += f", by {differences.max()} at most"
        assert f"{split}: {stated}" in report.notes
        assert f"  {split}: {stated}" in str(report)
        assert stated in describe_dataset(planes) and stated not in describe_dataset(raw)
    pages = [write_report(one, tmp_path / f"{one.parent.name}.html").read_text() for one in both]
    said = ["Stored colors differ" in re.sub(r"\s+", " ", page) for page in pages]
    assert said == [False, True]


def test_statistics_are_those_of_the_loaded_pictures(both):
    planes = both[1]
    for name, split in read_manifest(planes).splits.items():
        rows = [picture[::ROW_STEP].reshape(-1, 3) for picture in pictures_of(planes, name)]
        pixels, counted = np.concatenate(rows).astype(np.int64), split.statistics.pixels
        assert counted is not None and counted.count == len(pixels)
        assert tuple(counted.sum) == tuple(pixels.sum(axis=0))
        assert tuple(counted.sum_squares) == tuple((pixels**2).sum(axis=0))


def test_the_printed_program_gives_the_pictures_of_the_loader(both):
    for split in read_manifest(both[1]).splits:
        check_parser(both[1], split)


def test_exports_have_the_pictures_of_the_loader(both, tmp_path):
    raw, planes = both
    assert targets_of(read_manifest(planes)) == targets_of(read_manifest(raw))
    for target in targets_of(read_manifest(planes)):
        files = []
        for name, folder in (("raw", raw), ("planes", planes)):
            export_data(folder, target, tmp_path / f"{target}-{name}")
            files.append(all_bytes(tmp_path / f"{target}-{name}"))
        assert files[0].keys() == files[1].keys() != set()
        drawn = [
            cv2.imdecode(np.frombuffer(data, np.uint8), -1)
            for name, data in files[1].items()
            if name.endswith("png")
        ]
        drawn = [one[..., ::-1] for one in drawn if one.ndim == 3]
        if drawn:
            shown = [one for split in read_manifest(planes).splits for one in pictures_of(planes, split)]
            assert sorted(one.tobytes() for one in drawn) == sorted(one.tobytes() for one in shown)
