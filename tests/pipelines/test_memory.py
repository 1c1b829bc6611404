"""Does a conversion's memory stay the same however many pictures there are?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.conversions import CLASSES, convert_words, draw_folders, peak_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc for the peak")


def peaks(folder: Path, **options: int) -> list[int]:
    """What a worker takes for few pictures, and for many."""
    given = [(folder / name, folder / f"out {name}") for name in ("few", "many")]
    return [peak_bytes(convert_words(*places, workers=1, **options)) for places in given]


@pytest.mark.long
def test_eight_times_the_pictures_take_no_more_memory(tmp_path):
    draw_folders(tmp_path / "few", 100, side=64)
    shutil.copytree(tmp_path / "few", tmp_path / "many")
    for label in CLASSES:
        for copy in range(1, 8):
            for path in sorted((tmp_path / "few" / label).iterdir()):
                shutil.copy(path, tmp_path / "many" / label / f"{copy}-{path.name}")
    # 200 pictures are 118 MB of records: what is not written away at once shows.
    few, many = peaks(tmp_path, threads=2, height=448, width=448)
    shutil.rmtree(tmp_path / "out many")
    assert abs(many - few) < 25e6, f"{few / 1e6:.0f} MB for 100 pictures, {many / 1e6:.0f} MB for 800"


@pytest.mark.exhaustive
def test_twenty_thousand_references_take_their_own_size_only(tmp_path):
    """Kilobytes cross the shuffle: references, a few hundred bytes each."""
    draw_folders(tmp_path / "few", 10, side=24)
    for label in CLASSES:
        (tmp_path / "many" / label).mkdir(parents=True)
        paths = sorted((tmp_path / "few" / label).iterdir())
        for number in range(10_000):
            (tmp_path / "many" / label / f"{number}.jpg").hardlink_to(paths[number % len(paths)])
    few, many = peaks(tmp_path, height=8, width=8)
    assert many - few < 20_000 * 8_000, f"{(many - few) / 20_000:.0f} bytes a reference"
