"""Hints about files with the boxes of all frames of a sequence: those of the MOT challenge and VisDrone's videos."""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import basename, dirname, join

from halofeed.prep.annotations.layout_hints import Hint, ListedFiles, hint_of_layout, name_stem, read_heads

_MOT_LINE = re.compile(r"\s*\d+(\s*,\s*-?[\d.]+){8,9}\s*,?\s*")
_VISDRONE_LINE = re.compile(r"\s*\d+(\s*,\s*-?\d+){9}\s*,?\s*")


def detect_sequences(files: ListedFiles, paths: Sequence[str]) -> Hint | None:
    """Detect SEQUENCE/gt/gt.txt, and annotations/SEQUENCE.txt beside sequences/SEQUENCE, by their first lines.

    Args:
        files: files of the source.
        paths: paths of all files except images.
    """
    # A file that the user names has no folder.
    named = [path for path in paths if basename(path) == "gt.txt" and basename(dirname(path)) in ("gt", "")]
    for path, text in read_heads(files, named, ".txt"):
        if _holds(text, _MOT_LINE):
            return hint_of_layout(f"{path} is that of the MOT challenge", "mot")
    beside = [path for path in paths if basename(dirname(path)).lower() == "annotations"]
    for path, text in read_heads(files, beside, ".txt"):
        frames = join(dirname(dirname(path)), "sequences", name_stem(path), "")
        if _holds(text, _VISDRONE_LINE) and any(one.startswith(frames) for one in files.sizes()):
            return hint_of_layout(f"{path} is that of a video of VisDrone", "visdrone-video")
    return None


def _holds(text: str, line: re.Pattern[str]) -> bool:
    """Return whether the first five lines that are not blank have a form."""
    lines = [one for one in text.splitlines() if one.strip()][:5]
    return bool(lines) and all(map(line.fullmatch, lines))
