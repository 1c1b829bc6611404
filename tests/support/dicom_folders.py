"""What the tests of DICOM share: how a folder is opened and listed, and what damaged bytes of a mask may end in."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.formats.volume_formats import ScanOptions, open_scan
from halofeed.prep.geometry.scan import Grid, MaskScan, Scan
from halofeed.prep.layouts import LayoutOptions, SourceExample
from halofeed.prep.layouts.dicom import list_references
from halofeed.prep.sources.files import LocalFiles
from tests.support.dicom_mask_writer import SECRETS, saved
from tests.support.dicom_writer import write_series
from tests.support.nifti_writer import MemoryFiles


def slices(count: int) -> NDArray[np.uint16]:
    """Stored slices [slice, 5, 6] in which every pixel has a value of its own."""
    return np.arange(count * 30, dtype=np.uint16).reshape(count, 5, 6)


def write_scan(folder: Path, count=4, series="1.2.3", step=(0, 0, 2), **options: Any) -> None:
    """A series of such slices."""
    positions = [[index * side for side in step] for index in range(count)]
    write_series(folder, slices(count), positions, series=series, **options)


def open_folder(folder: Path, **policy: Any) -> Scan:
    """The only series of a folder, however few its slices."""
    files = LocalFiles(folder)
    return open_series(files, files.sizes(), SeriesPolicy(**{"min_slices": 1, **policy}))


def details(scan: Scan) -> dict[str, tuple[str, str]]:
    """What is said of a scan, by name: the treatment and the detail."""
    return {finding.name: (finding.treatment, finding.detail) for finding in scan.findings}


def open_listed(root: Path, one: SourceExample, options: ScanOptions | None = None) -> Scan:
    return open_scan(LocalFiles(root), one.source, one.members, options, one.volume)


def refusal(folder: Path, **policy: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        open_folder(folder, **policy).read()
    return caught.value


def listed(root: Path, **policy: Any) -> list[SourceExample]:
    files = LocalFiles(root)
    return list(list_references(files, files, None, LayoutOptions(series=SeriesPolicy(**policy))))


def listed_by_source(root: Path, **policy: Any) -> dict[str, SourceExample]:
    return {one.source: one for one in listed(root, **policy)}


def open_mask(file: bytes | Dataset, grid: Grid | None = None) -> MaskScan:
    data = file if isinstance(file, bytes) else saved(file)
    return open_dicom_mask(MemoryFiles({"mask.dcm": data}), "mask.dcm", grid)


def last_wins(mask: MaskScan) -> NDArray[Any]:
    """Its voxels, of several classes the last."""
    assert mask.read_classes is not None
    return mask.read_classes({number: number for number in mask.names}, "last")[0]


def mask_refusal(file: bytes | Dataset, grid: Grid | None = None) -> SourceError:
    """Why it cannot be read, which tells nothing of the patient."""
    with pytest.raises(SourceError) as caught:
        open_mask(file, grid).read()
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
