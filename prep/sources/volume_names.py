"""What are the volumes of each format called, and what line of a header names the file with its voxels?

This is the one place that knows the extensions of volumes. A new format has a line in NAMES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Names:
    """How the files of one format are named; extensions are in lower case.

    Args:
        single: of a file that holds its header and its voxels.
        pairs: of a header, and of the file beside it that has the same name and holds the voxels.
        headers: of a header that names the file with its voxels, and how that line begins.
    """

    single: tuple[str, ...] = ()
    pairs: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def extensions(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.single, *self.pairs, *self.pairs.values(), *self.headers)


NAMES = {
    "nifti": Names(single=(".nii.gz", ".nii"), pairs={".hdr.gz": ".img.gz", ".hdr": ".img"}),
    "nrrd": Names(single=(".nrrd",), headers={".nhdr": r"(?i:data ?file):(?!=)"}),
    "metaimage": Names(single=(".mha",), headers={".mhd": r"ElementDataFile\s*="}),
    "mgh": Names(single=(".mgz", ".mgh")),
}

SINGLE_FILE_EXTENSIONS = tuple(name for names in NAMES.values() for name in names.single)
VOLUME_EXTENSIONS = tuple(name for names in NAMES.values() for name in names.extensions)
DICOM_EXTENSIONS = (".dcm", ".dicom", ".ima", ".dcm.gz", ".dicom.gz", ".ima.gz")
PARTNERS = {
    one: other
    for names in NAMES.values()
    for pair in names.pairs.items()
    for one, other in (pair, (pair[1], pair[0]))
}
DATA_FILE_LINES = {ending: line for names in NAMES.values() for ending, line in names.headers.items()}
