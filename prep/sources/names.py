"""Which files are pictures or documents by their names."""

from __future__ import annotations

import re
from posixpath import splitext

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")
_IMAGE_EXTENSIONS = frozenset(IMAGE_EXTENSIONS)
VIDEO_EXTENSIONS = (".mp4", ".m4v", ".mov", ".3gp", ".avi", ".webm", ".mkv")
"""Of the containers that `halofeed.prep.formats.clip.table` reads."""
UNREAD_EXTENSIONS = (".avif", ".heic", ".heif", ".jp2", ".j2k", ".jxl")
"""Of pictures in formats that are not read: leaving one out is a failure, not a choice."""
_TEXT_EXTENSIONS = (
    *(".txt", ".md", ".rst", ".html", ".htm", ".pdf", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".xml"),
    *(".yaml", ".yml", ".toml", ".pbtxt", ".log", ".py", ".sh", ".ipynb"),
)
_DOCUMENT_NAME = re.compile(
    r"(.*[-_.])?(licen[sc]es?|readme|copying|notice|authors|changelog|_?source|citation)([-_.].*)?|thumbs\.db|desktop\.ini",
    re.IGNORECASE,
)


def is_image_name(path: str) -> bool:
    """Whether a file's extension is one of an image, in upper or lower case.

    >>> is_image_name("a/b.JPG"), is_image_name("a/b.dcm"), is_image_name("a/b")
    (True, False, False)
    """
    stem, dot, extension = path.rpartition(".")
    # As of `splitext`: what only dots stand before is no extension.
    return f"{dot}{extension.lower()}" in _IMAGE_EXTENSIONS and stem.rpartition("/")[2].strip(".") != ""


def is_document_name(path: str) -> bool:
    """Whether a file's name says that it cannot be an image: a license, a read-me, text or a table.

    >>> [is_document_name(path) for path in ("LICENSE", "x__LICENSE-MIT", "labels.csv", "0001", "a.heic")]
    [True, True, True, False, False]
    """
    name = path.rpartition("/")[2]
    return splitext(name)[1].lower() in _TEXT_EXTENSIONS or _DOCUMENT_NAME.fullmatch(name) is not None


def is_video_name(path: str) -> bool:
    """Whether a file's extension is one of a video, in upper or lower case.

    >>> is_video_name("a/b.MP4"), is_video_name("a/b.gif")
    (True, False)
    """
    return splitext(path)[1].lower() in VIDEO_EXTENSIONS
