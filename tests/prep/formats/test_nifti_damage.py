"""Does damaged input raise SourceError, and nothing else, without allocating what it claims?"""

from __future__ import annotations

import contextlib
import gzip
import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.formats.volume.gzip_stream import MOST_PER_BYTE
from halofeed.prep.formats.volumes import ScanOptions, open_mask, open_scan
from halofeed.prep.geometry.scan import Grid
from halofeed.schemas.errors import SourceError
from tests.support.allocations import traced
from tests.support.nifti_writer import MemoryFiles, open_nifti, write_header, write_nifti

RANDOM = np.random.default_rng(5)
NOISE = RANDOM.integers(-999, 999, (9, 8, 7)).astype(np.int16)
BLOCKS_BYTES = 6 << 20
SEEDS = [
    write_nifti(NOISE),
    write_nifti(NOISE, ">"),
    write_nifti(NOISE.astype(np.float32), version=2, scl_slope=2, scl_inter=1),
    write_nifti(NOISE.astype(np.float64), ">", sform_code=0),
    write_nifti(NOISE, sform_code=0, qform_code=0, xyzt_units=1),
]
NO_GRID = Grid(shape=(1, 1, 1), affine=np.eye(4))  # which masks of these files do without
PAIR = {"a.hdr": write_header(NOISE.shape, np.int16, kind="analyze"), "a.img": NOISE.tobytes("F")}


def try_to_read(data: bytes, options: ScanOptions) -> int:
    """The most bytes allocated on the way; anything but SourceError, warnings too, is raised."""
    files = MemoryFiles({"a.nii": data})
    with traced() as memory:
        with contextlib.suppress(SourceError):
            open_scan(files, "a.nii", (), options).read()
        with contextlib.suppress(SourceError):
            open_mask(files, "a.nii", NO_GRID, options).read()
    return memory.peak


HUGE = ScanOptions(max_voxels=2**200, non_finite_value=0)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 560), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([ScanOptions(), HUGE]),
)
def test_changed_header_bytes_raise_only_source_errors(
    seed: bytes, changes: list[tuple[int, int]], packed: bool, options: ScanOptions
) -> None:
    data = bytearray(seed)
    for at, value in changes:
        data[at] = value
    content = gzip.compress(bytes(data), 1) if packed else bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peak = try_to_read(content, options)
    # A byte may become a float32, and a mask may grow from one type to the next.
    assert peak < 8 * MOST_PER_BYTE * len(content) + BLOCKS_BYTES


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 347), st.integers(0, 255), st.integers(0, 1100))
def test_a_damaged_analyze_pair_raises_only_source_errors(at: int, value: int, length: int) -> None:
    header = bytearray(PAIR["a.hdr"])
    header[at] = value
    for body in (PAIR["a.img"], PAIR["a.img"][:length]):
        with contextlib.suppress(SourceError):
            open_nifti({"a.hdr": bytes(header), "a.img": body}, "a.hdr").read()


def test_a_small_file_that_claims_much_allocates_no_more_than_it_can_hold() -> None:
    data = gzip.compress(write_header((30000, 30000, 30000), np.float64))
    assert try_to_read(data, HUGE) < 1 << 20
    bomb = gzip.compress(write_header((4, 4, 4), np.uint8) + bytes(50_000_000))
    assert try_to_read(bomb, HUGE) < BLOCKS_BYTES
