"""Does the conversion of a volume stay within a small multiple of that volume's size?

A *volume* is the scan's voxels as int16; its mask as uint8 is half of one. Held are the scan, the mask, and
besides, whichever is the largest:

- the compressed file, while the scan is read;
- nothing where the scan keeps its grid: its voxels are turned in their own memory;
- the record, where the scan is padded or resampled, until that is done;
- all records, where it is cut into tiles.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.volume_records import VolumeConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support.allocations import traced
from tests.support.conversions import convert_words, peak_bytes
from tests.support.dicom_writer import write_series
from tests.support.volume_memory_cases import save_nifti
from tests.support.volume_support import write_table

Shape = tuple[int, int, int]
SPACING_MM = (2.5, 0.8, 0.8)


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a scan is converted, and how many volumes that may take.

    Args:
        size: of the record, in shares of the scan's; left out where `sides` are given.
    """

    bound: float
    size: tuple[float, float, float] = (1, 1, 1)
    sides: Shape | None = None
    options: dict[str, Any] = field(default_factory=dict)
    source: str = "ct.nii.gz"
    scans: int = 1

    def recipe(self, shape: Shape) -> dict[str, Any]:
        """The options of a scan of that shape."""
        sides = self.sides or [round(side * share) for side, share in zip(shape, self.size, strict=True)]
        named = zip(("depth", "height", "width"), sides, strict=True)
        return {"encoding": "raw", **dict(named), **self.options}


CASES = {
    "keeps its grid": Case(bound=2.1),
    "window": Case(bound=2.2, options={"window_hu": (-160.0, 240.0), "dtype": "uint8"}),
    "padded": Case(bound=2.9, size=(1.04, 1.0625, 1.0625)),
    "coarser": Case(bound=2.2, size=(1.25, 0.54, 0.54), options={"spacing_mm": (2.0, 1.5, 1.5)}),
    "finer": Case(bound=2.8, options={"spacing_mm": (2.0, 0.7, 0.7)}),
    "packed": Case(bound=2.9, options={"encoding": "packed"}),
    "float32": Case(bound=3.8, options={"dtype": "float32"}),
    "DICOM": Case(bound=1.9, source="series"),
    # The tiles cover 1.4 times the scan's voxels, and with the mask's each voxel counts one and a half.
    "tiles": Case(bound=4.0, size=(0.16, 0.375, 0.375), options={"fit": "tiles"}),
}


def draw_scan(folder: Path, shape: Shape) -> int:
    """A noisy scan stored as scanners do, with a mask, and the same as a DICOM series; the bytes of its voxels."""
    folder.mkdir()
    some = np.random.default_rng(1).normal(40, 12, (min(shape[0], 25), *shape[1:])).astype(np.int16)
    some[:, : shape[1] // 4] = -1000
    scan = np.concatenate([some] * -(-shape[0] // len(some)))[: shape[0]]
    mask = np.zeros(shape, np.uint8)
    mask[tuple(slice(side // 4, side // 2) for side in shape)] = 1
    affine = np.diag([-SPACING_MM[2], -SPACING_MM[1], SPACING_MM[0], 1.0])
    for name, array in (("ct", scan), ("mask", mask)):
        save_nifti(folder / f"{name}.nii.gz", array, affine)
    positions = [(0, 0, number * SPACING_MM[0]) for number in range(len(scan))]
    options = {"spacing": SPACING_MM[1:], "thickness": SPACING_MM[0], "rescale": (1, 0)}
    write_series(folder / "series", scan, positions, **options)
    return int(scan.nbytes)


# Within one conversion ----------------------------------------------------------------------------------

SMALL: Shape = (120, 400, 400)
HELD_BESIDES = 8_000_000
"""Slices, counts and tables, which do not grow with the volume; a fifth of one here."""


@pytest.fixture(scope="module")
def small_scan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("small") / "scan"
    return folder, draw_scan(folder, SMALL)


def converted(folder: Path, case: Case) -> Callable[[], tuple[Record, ...]]:
    """What converts the scan of that folder."""
    files = LocalFiles(folder)
    members = tuple(path for path in files.sizes() if path.startswith("series/"))
    reference = SourceExample(
        source=case.source, key="a", mask="mask.nii.gz", members=members if case.source == "series" else ()
    )
    labels = LabelMap(entries=((0, "background"), (1, "organ")), first_id=0)
    converter = VolumeConverter(recipe=Recipe(**case.recipe(SMALL)), labels=labels)
    return lambda: converter.records(reference, files)


@pytest.mark.parametrize("name", CASES)
def test_a_scan_becomes_its_records_within_a_few_volumes(small_scan: tuple[Path, int], name: str) -> None:
    (folder, volume), case = small_scan, CASES[name]
    convert = converted(folder, case)
    # Modules are loaded and plug-ins found by the first conversion.
    convert()
    with traced() as memory:
        records = convert()
    written = sum(record.example.length for record in records)
    assert memory.kept < written + HELD_BESIDES, "only the records are left"
    assert memory.peak < case.bound * volume + HELD_BESIDES, f"{memory.peak / volume:.2f} volumes"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(bound=0, size=size, options={**options, **more}),
            marks=() if options["dtype"] == "uint8" and "window_hu" in options else pytest.mark.long,
        )
        for size, more in (
            ((1, 1, 1), {}),
            ((1.1, 0.9, 1.1), {"pad_value": (-900.0,)}),
            ((0.4, 0.4, 0.4), {"fit": "tiles"}),
        )
        for options in (
            {"window_hu": (-160.0, 240.0), "dtype": "uint8"},
            {"window_hu": (-160.0, 240.0), "dtype": "int16"},
            {"window_percentiles": (1.0, 99.0), "dtype": "uint8"},
        )
    ],
    ids=repr,
)
def test_stored_before_it_is_moved_a_scan_gives_the_same_records(small_scan, case, monkeypatch):
    before = converted(small_scan[0], case)()
    monkeypatch.setattr(VolumeConverter, "_stores_first", lambda *_: False)
    after = converted(small_scan[0], case)()
    for one, other in zip(before, after, strict=True):
        assert one.facts.body.to_json() == other.facts.body.to_json()
        assert one.example.to_bytes() == other.example.to_bytes()


# A whole worker -----------------------------------------------------------------------------------------

LARGE: Shape = (400, 512, 512)
TINY: Shape = (10, 32, 32)
SEVERAL = {"several scans": Case(bound=2.9, scans=3)}
"""The record of one is held until that of the next is there."""


def peak_of(folder: Path, out: Path, case: Case, shape: Shape) -> int:
    """Resident bytes of one worker of one thread, at most."""
    rows = []
    for number in range(case.scans):
        image = case.source if not number else f"{number}-{case.source}"
        if number and not (folder / image).exists():
            (folder / image).hardlink_to(folder / case.source)
        rows.append((number, image, "mask.nii.gz"))
    given: dict[str, Any] = {"layout": "csv", "task": "segmentation", "workers": 1, "threads": 1}
    peak = peak_bytes(convert_words(write_table(folder, rows), out, **given, **case.recipe(shape)))
    for shard in out.rglob("*.tfrecord-*"):
        shard.unlink()
    return peak


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A folder with a large scan, the bytes of its voxels, and what a tiny one takes."""
    folder = tmp_path_factory.mktemp("large")
    draw_scan(folder / "tiny", TINY)
    base = peak_of(folder / "tiny", folder / "out", CASES["keeps its grid"], TINY)
    return folder / "scan", draw_scan(folder / "scan", LARGE), base


@pytest.mark.exhaustive
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", [*CASES, *SEVERAL])
def test_a_worker_that_converts_a_scan_of_400_slices_holds_a_few_volumes(scans, tmp_path, name):
    (folder, volume, base), case = scans, (CASES | SEVERAL)[name]
    more = peak_of(folder, tmp_path / "out", case, LARGE) - base
    assert more < case.bound * volume, f"{more / volume:.2f} volumes on top of {base / 1e6:.0f} MB"
