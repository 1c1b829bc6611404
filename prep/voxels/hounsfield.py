"""Are a scan's values Hounsfield units, as a window in HU needs them: by its file, by its values, or not at all?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Scan
from halofeed.prep.voxels.memory_order import in_memory_order
from halofeed.schemas.errors import SourceError, UsageError

FAT_HU: Final = -50
"""Fat is at -100 HU and air at -1000: a scan of a body with nothing below this is hardly in HU."""

_NOT_CT: Final = re.compile(r"(mri?|t1\w*|t2\w*|flair|pd|dwi|adc|pet|pt|us|zscore)\b", re.IGNORECASE)
_CURE: Final = (
    "take --window-percentiles 0.5,99.5 in place of the window, leave it out, or say --window-unit any"
)


def check_declared(scans: Sequence[Scan]) -> None:
    """Refuse scans whose files say that their values are no Hounsfield units, before a voxel is read.

    Raises:
        SourceError: the modality is another than CT, or a CT gives no rescale to HU.
    """
    for scan in scans:
        if scan.unit != "HU" and scan.modality:
            why = "its rescale does not lead to HU" if scan.modality == "CT" else "which has no fixed unit"
            _refuse(f"the file says {scan.modality}, {why}")


def check_values(scans: Sequence[Scan], image: NDArray[Any]) -> tuple[Finding, ...]:
    """A finding where nothing but the values speaks for Hounsfield units; SourceError where they speak against it.

    Args:
        image: [depth, height, width, channel], the channels of all scans in order.
    """
    lowest, channel = [], 0
    for scan in scans:
        for at in range(channel, channel + scan.channels if scan.unit != "HU" else channel):
            lowest.append(float(in_memory_order(image[..., at])[0].min()))
            if lowest[-1] > FAT_HU:
                _refuse(
                    f"the file does not say its unit and its least value is {lowest[-1]:g}, not below {FAT_HU}"
                )
        channel += scan.channels
    if not lowest:
        return ()
    detail = f"the file does not say its unit; its least value is {min(lowest):g}"
    return (Finding(name="values taken for Hounsfield units", treatment="noted", detail=detail),)


def check_channel_names(names: Sequence[str]) -> None:
    """Refuse what a data set's own list of channels calls by the name of something else than CT.

    Raises:
        UsageError: a name is that of MR, PET or one of their sequences.
    """
    if other := [name for name in names if _NOT_CT.match(name.strip())]:
        raise UsageError(
            "--window, --window-hu: they are in Hounsfield units, and the data set calls its channels "
            f"{', '.join(other)}; {_CURE}"
        )


def _refuse(why: str) -> None:
    raise SourceError("intensity", "the window is in HU and the values are not", f"{why}; {_CURE}")
