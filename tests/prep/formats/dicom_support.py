"""What the tests of DICOM share: how a folder is opened and listed, and what damaged bytes of a mask may end in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.prep.formats.dicom.masks import open_dicom_mask
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.geometry.scan import Grid, Mask, Scan
from halofeed.prep.layouts import LayoutOptions, Reference
from halofeed.prep.layouts.dicom import list_references
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError
from tests.dicom_mask_writer import SECRETS, HeldFile


def open_folder(folder: Path, **policy: Any) -> Scan:
    """The only series of a folder, however few its slices."""
    files = LocalFiles(folder)
    return open_series(files, files.sizes(), SeriesPolicy(**{"min_slices": 1, **policy}))


def refusal(folder: Path, **policy: Any) -> SourceError:
    """Why it cannot be read."""
    with pytest.raises(SourceError) as caught:
        open_folder(folder, **policy).read()
    return caught.value


def listed(root: Path, **policy: Any) -> list[Reference]:
    """What the layout finds."""
    files = LocalFiles(root)
    return list(list_references(files, files, None, LayoutOptions(series=SeriesPolicy(**policy))))


def listed_by_source(root: Path, **policy: Any) -> dict[str, Reference]:
    """The same by source."""
    return {one.source: one for one in listed(root, **policy)}


def open_mask(data: bytes, grid: Grid | None = None, **options: Any) -> Mask:
    """A mask from the bytes of its file."""
    return open_dicom_mask(HeldFile(data), "mask.dcm", grid, **options)


def mask_refusal(data: bytes, grid: Grid | None = None, **options: Any) -> SourceError:
    """Why it cannot be read, which tells nothing of the patient."""
    with pytest.raises(SourceError) as caught:
        open_mask(data, grid, **options).read()
    assert not any(secret in str(caught.value) for secret in SECRETS.values())
    return caught.value


def mask_outcome(data: bytes, grid: Grid | None = None) -> Any:
    """The voxels, or the one error that may come instead; neither it nor a warning may hold a secret."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = open_mask(data, grid).read()
        except SourceError as error:
            result = error
    told = [str(warning.message) for warning in caught] + [str(result)]
    assert not [words for words in told for secret in SECRETS.values() if secret in words]
    return result


def damage(whole: bytes, grid: Grid | None, seed: int, times: int) -> None:
    """Change some bytes at random, again and again: each ends in voxels or in one error."""
    rng = np.random.default_rng(seed)
    sound: NDArray[np.uint8] = np.frombuffer(whole, np.uint8)
    for _ in range(times):
        data = sound.copy()
        at = rng.integers(132, len(data), rng.integers(1, 4))
        data[at] = rng.integers(0, 256, len(at))
        mask_outcome(data.tobytes(), grid)
