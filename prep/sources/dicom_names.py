"""Names of DICOM files, also of those without an extension, which only their first bytes show."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from halofeed.prep.sources.file_names import is_document_name, is_image_name, is_scan_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_PREFIX_END = 132
_UNNAMED = re.compile(r"(^|/)(?!DICOMDIR$)[^./]+$|\.\d+$")
"""Names without an extension, and names that end in a UID, whose last part is a number."""


@dataclass(frozen=True, kw_only=True)
class PictureNames:
    """Test whether a path is a picture, by its extension or as a DICOM file without one; each file is read once."""

    files: SourceFiles
    known: dict[str, bool] = field(default_factory=dict)

    def __contains__(self, path: str) -> bool:
        return is_image_name(path) or self._is_unnamed_dicom(path)

    def takes_scan(self, path: str) -> bool:
        """Return whether a path is a picture or a volume."""
        return is_scan_name(path) or path in self

    def _is_unnamed_dicom(self, path: str) -> bool:
        if _UNNAMED.search(path) is None or is_document_name(path):
            return False
        if path not in self.known:
            self.known[path] = self._has_prefix(path)
        return self.known[path]

    def _has_prefix(self, path: str) -> bool:
        try:
            return self.files.head(path, _PREFIX_END)[128:] == b"DICM"  # PS3.10, 7.1
        except SourceError:
            return False
