"""The TPU's compiler confirms what the published systems promised.

The smallest programs, and those that are refused, are compiled here in a minute each; the others are known where
`benchmarks/fit.py` has compiled them.
"""

import argparse
import importlib.util

import pytest

from benchmarks.fit import FIT, Row, compiled
from halofeed.trainer.plan.compiling import UNKNOWN, CompileCache, cache_folder

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="needs the TPU's compiler: pip install 'halofeed[plan]'",
    ),
]
V3_BYTES = 15.48 * 2**30
"""What the compiler gives the programs of a v3 core."""
FINEST = {"retinanet_small": 4, "retinanet": 16, "ssd": 16, "unet": 2, "classifier": 2}
"""By how much the second finest level is smaller than the image: of published detectors that of their own levels, of
the small one, whose image has too few rows for 4 cores there, its backbone's."""


@pytest.mark.parametrize("row", FIT, ids=lambda row: f"{row.name} {row.cores}-way")
def test_a_row_fits_or_not_as_promised_and_gathers_no_fine_level(row: Row) -> None:
    is_quick = row.config in ("classifier_small", "unet2d_small") or row.promise.startswith("does not fit")
    split = compiled(row, CompileCache(cache_folder()), argparse.Namespace(known=not is_quick, jobs=1))
    if split["refused"] == UNKNOWN:
        pytest.skip("not compiled yet; `python benchmarks/fit.py` fills the cache")
    assert split["fits"] == row.promise.startswith("fits")
    if split["fits"] and row.sketch_gib is not None:
        assert split["memory"]["total"] <= row.sketch_gib * 2**30
    if "to spare" in row.promise:
        assert split["memory"]["total"] <= 0.97 * V3_BYTES
    size = row.size or {"retinanet": (2560,) * 2, "unet3d": (256,) * 3}.get(row.config.partition("_")[0], ())
    if split["fits"] and row.cores > 1:
        second = size[0] // FINEST[next(name for name in FINEST if row.config.startswith(name))]
        gathered = [gather["result_shape"] for gather in split["whole_gathers"]]
        assert all(max(shape[1:-1]) < second for shape in gathered), gathered
