"""The names that label files themselves give to their values, gathered before any voxel is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from halofeed.prep.formats.volume.segment_names import segments_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.volume_names import VOLUME_EXTENSIONS
from halofeed.schemas.errors import AnnotationsError, SourceError

_MOST_UNNAMED = 16
"""So many NIfTI files of a store without names: those that follow are not asked. Others always are."""


@dataclass(kw_only=True)
class NamesInLabels:
    """What the label files of a data set name, in the order in which they come.

    Args:
        files: where they are.
        named: of each name, each (layer, value) that it has and the first file in which it does.
        unnamed: the first label file that names nothing.
    """

    files: SourceFiles
    named: dict[str, dict[tuple[int, int], str]] = field(default_factory=dict)
    unnamed: str = ""
    _asked: set[str] = field(default_factory=set)
    _silent: int = 0

    def look(self, paths: Iterable[str]) -> None:
        """Take the names of some label files."""
        for path in paths:
            if path in self._asked or not path.lower().endswith(VOLUME_EXTENSIONS):
                continue
            is_nrrd = path.lower().endswith((".nrrd", ".nhdr"))
            may_rest = "://" in self.files.root and not is_nrrd and not self.named
            if may_rest and self._silent >= _MOST_UNNAMED:
                continue
            self._asked.add(path)
            try:
                segments = segments_of(self.files, path)
            except (SourceError, MemoryError):  # it is rejected with its reason when it is read
                continue
            if not segments:
                self.unnamed = self.unnamed or path
                self._silent += not is_nrrd
            for one in segments:
                self.named.setdefault(one.name, {}).setdefault((one.layer, one.value), path)

    def agree(self) -> bool:
        """Whether each name has one value in all files, and each value one name."""
        values = [value for places in self.named.values() for _, value in places]
        return all(len(places) == 1 for places in self.named.values()) and len(values) == len(set(values))

    def ids(self) -> dict[int, str]:
        """The names by id: their values where these agree, else the first name of a value has it.

        Raises:
            AnnotationsError: they disagree, and other files have values without names.
        """
        if not self.agree() and self.unnamed:
            raise AnnotationsError(
                f"label files disagree on the values of their classes ({self._example()}), and {self.unnamed} names "
                "none; say --label-map with a file of all classes, whose ids are the values of files without names"
            )
        ids: dict[int, str] = {}
        later = []
        for name, places in self.named.items():
            value = min(value for _, value in places)
            if value in ids:
                later.append(name)
            else:
                ids[value] = name
        free = (number for number in range(1, len(self.named) + len(ids) + 1) if number not in ids)
        return ids | dict(zip(free, later, strict=False))

    def check_numbers(self, chosen: Iterable[str]) -> None:
        """Refuse a value among the classes that the user chose, where files disagree on what it means."""
        numbers = [name for name in chosen if name.isdecimal() and name not in self.named]
        if numbers and not self.agree():
            raise AnnotationsError(
                f"--map-classes {numbers[0]}: label files disagree on the values of their classes ({self._example()}); "
                f"write their names, which are {', '.join(self.named)}"
            )

    def _example(self) -> str:
        by_value: dict[int, dict[str, str]] = {}
        for name, places in self.named.items():
            for (_, value), path in places.items():
                by_value.setdefault(value, {}).setdefault(name, path)
        for value, names in by_value.items():
            if len(names) > 1:
                return f"{value} is " + " and ".join(
                    f"{name!r} in {path}" for name, path in [*names.items()][:2]
                )
        name, places = next((name, places) for name, places in self.named.items() if len(places) > 1)
        return f"{name!r} is " + " and ".join(
            f"{value} in {path}" for (_, value), path in [*places.items()][:2]
        )
