"""Rules for file names: images, videos, volumes, documents, and files that belong together."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from posixpath import splitext

from halofeed.prep.sources.files import (
    BELOW_IMAGES_FOLDER,
    UNREADABLE_FILE,
    SourceFiles,
    absolute_path,
    outside_message,
    path_below,
    path_exists,
)
from halofeed.prep.sources.members import parse_member
from halofeed.system.addresses import is_remote
from halofeed.system.errors import Problem, SourceError

DICOM_PICTURE_EXTENSIONS = (".dcm", ".dicom", ".ima")
"""Extensions of DICOM files, which are pictures where nothing shows that they are slices of a volume."""
STILL_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"),
    *(".avif", ".heic", ".heif", ".hif", ".jxl"),
    *(".btf", ".tf2", ".tf8", ".svs", ".ndpi", ".scn", ".qptiff"),  # BigTIFF, and TIFF of slide scanners
)
"""Extensions of the formats that hold nothing but pictures."""
IMAGE_EXTENSIONS = (*STILL_EXTENSIONS, *DICOM_PICTURE_EXTENSIONS)
_IMAGE_EXTENSIONS = frozenset(IMAGE_EXTENSIONS)
VIDEO_EXTENSIONS = (".mp4", ".m4v", ".mov", ".3gp", ".avi", ".webm", ".mkv")
"""Extensions of the containers that `halofeed.prep.formats.clip.clip_formats` reads."""
UNREAD_EXTENSIONS = (".jp2", ".j2k")
"""Extensions of unsupported picture formats. To skip such a file is a failure, not a choice."""
_TEXT_EXTENSIONS = (
    *(".txt", ".md", ".rst", ".html", ".htm", ".pdf", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".xml"),
    *(".yaml", ".yml", ".toml", ".pbtxt", ".log", ".py", ".sh", ".ipynb"),
)
_DOCUMENT_NAME = re.compile(
    r"(.*[-_.])?(licen[sc]es?|readme|copying|notice|authors|changelog|_?source|citation)([-_.].*)?|thumbs\.db|desktop\.ini",
    re.IGNORECASE,
)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 150


def is_image_name(path: str) -> bool:
    """Return whether a path has the extension of an image or of a DICOM file, in upper or lower case.

    >>> is_image_name("a/b.JPG"), is_image_name("a/b.dcm"), is_image_name("a/b")
    (True, True, False)
    """
    stem, dot, extension = path.rpartition(".")
    # Like `splitext`: a name that has only dots before the extension has no extension.
    return f"{dot}{extension.lower()}" in _IMAGE_EXTENSIONS and stem.rpartition("/")[2].strip(".") != ""


def is_dicom_name(path: str) -> bool:
    """Return whether a path has an extension of DICOM files.

    >>> is_dicom_name("a/b.DCM"), is_dicom_name("a/b.dcm.gz"), is_dicom_name("a/b.png")
    (True, True, False)
    """
    return path.lower().endswith(DICOM_EXTENSIONS)


def is_still_name(path: str) -> bool:
    """Return whether a path has the extension of a format that holds nothing but pictures.

    >>> is_still_name("a/b.JPG"), is_still_name("a/b.dcm")
    (True, False)
    """
    return is_image_name(path) and not is_dicom_name(path)


def is_document_name(path: str) -> bool:
    """Return whether a name shows that the file is not an image: a license, a read-me, text or a table.

    >>> [is_document_name(path) for path in ("LICENSE", "x__LICENSE-MIT", "labels.csv", "0001", "a.heic")]
    [True, True, True, False, False]
    """
    name = path.rpartition("/")[2]
    return splitext(name)[1].lower() in _TEXT_EXTENSIONS or _DOCUMENT_NAME.fullmatch(name) is not None


def is_video_name(path: str) -> bool:
    """Return whether a path has the extension of a video, in upper or lower case.

    >>> is_video_name("a/b.MP4"), is_video_name("a/b.gif")
    (True, False)
    """
    return splitext(path)[1].lower() in VIDEO_EXTENSIONS


@dataclass(frozen=True, kw_only=True)
class FormatExtensions:
    """Lower-case extensions of the files of one volume format.

    Args:
        single: extensions of files that hold both header and voxels.
        pairs: extension of a header, and of the file with the voxels that has the same name otherwise.
        headers: extension of a header that names the file with its voxels, and pattern of the start of that line.
    """

    single: tuple[str, ...] = ()
    pairs: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def extensions(self) -> tuple[str, ...]:
        """All extensions of the format."""
        return (*self.single, *self.pairs, *self.pairs.values(), *self.headers)


FORMAT_EXTENSIONS = {
    "nifti": FormatExtensions(
        single=(".nii.gz", ".nii", ".nii.zst"), pairs={".hdr.gz": ".img.gz", ".hdr": ".img"}
    ),
    "nrrd": FormatExtensions(single=(".nrrd",), headers={".nhdr": r"(?i:data ?file):(?!=)"}),
    "metaimage": FormatExtensions(single=(".mha",), headers={".mhd": r"ElementDataFile\s*="}),
    "mgh": FormatExtensions(single=(".mgz", ".mgh")),
    "minc": FormatExtensions(single=(".mnc", ".mnc.gz")),
}

ARCHIVE_EXTENSIONS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
"""Extensions of archives, which are unpacked first."""
ARRAY_EXTENSIONS = (".npy", ".npz")
"""Extensions of NumPy arrays, which are volumes where the options state their voxel size."""
STACK_EXTENSIONS = (".tif", ".tiff")
"""Extensions of pictures whose pages may be the slices of a volume."""
SINGLE_FILE_EXTENSIONS = tuple(name for names in FORMAT_EXTENSIONS.values() for name in names.single)
VOLUME_FILE_EXTENSIONS = tuple(name for names in FORMAT_EXTENSIONS.values() for name in names.extensions)
DICOM_EXTENSIONS = (*DICOM_PICTURE_EXTENSIONS, *(f"{name}.gz" for name in DICOM_PICTURE_EXTENSIONS))
_PAIRS = {header: voxels for names in FORMAT_EXTENSIONS.values() for header, voxels in names.pairs.items()}
_PARTNERS = {**_PAIRS, **{voxels: header for header, voxels in _PAIRS.items()}}
_PAIRED = tuple(_PARTNERS)
DATA_FILE_LINES = {
    ending: line for names in FORMAT_EXTENSIONS.values() for ending, line in names.headers.items()
}

_EXTENSIONS = (
    *(*VOLUME_FILE_EXTENSIONS, *ARRAY_EXTENSIONS, *IMAGE_EXTENSIONS, *VIDEO_EXTENSIONS),
    *(".apng", *DICOM_EXTENSIONS[len(DICOM_PICTURE_EXTENSIONS) :]),
)


def extension_of(path: str) -> str:
    """Return the extension of a volume, picture, video or DICOM file as written, or "" for any other name.

    DICOM files often have numbers with dots as names, so an unknown ending is not an extension.

    >>> extension_of("a/b.NII.gz"), extension_of("b.png"), extension_of("CT.1.2.840")
    ('.NII.gz', '.png', '')
    """
    name = path[path.rfind("/") + 1 :]
    lower = name.lower()
    for extension in _EXTENSIONS if lower.endswith(_EXTENSIONS) else ():
        if lower.endswith(extension) and len(name) > len(extension):
            return name[-len(extension) :]
    return ""


def stem_of(path: str) -> str:
    """Return the name of a file without folders and extension.

    >>> stem_of("a/b.nii.gz"), stem_of("sub-1.2_ct.nii"), stem_of("CT.1.2.840")
    ('b', 'sub-1.2_ct', 'CT.1.2.840')
    """
    return path.rpartition("/")[2].removesuffix(extension_of(path))


def safe_name(key: str) -> str:
    """Return a file name without extension for a record's key: no separator, no leading dot, at most 163 characters.

    >>> safe_name("a/b c.nii.gz"), safe_name("../.."), safe_name("/etc/passwd")
    ('a_b_c', 'source', 'etc_passwd')
    """
    name = _UNSAFE.sub("_", key.removesuffix(extension_of(key))).strip("._") or "source"
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    return name


def is_volume_name(path: str) -> bool:
    """Return whether a name is that of a volume file: NIfTI, Analyze, NRRD, MetaImage or MGH.

    >>> is_volume_name("a.nii.gz"), is_volume_name("a.mha"), is_volume_name("a.gz")
    (True, True, False)
    """
    return (
        path.lower().endswith(VOLUME_FILE_EXTENSIONS) and extension_of(path).lower() in VOLUME_FILE_EXTENSIONS
    )


def is_scan_name(path: str) -> bool:
    """Return whether a name is that of a volume or of a picture, and not of a DICOM file."""
    return extension_of(path).lower() in (*VOLUME_FILE_EXTENSIONS, *STILL_EXTENSIONS)


def is_scan_or_array_name(path: str) -> bool:
    """Return whether a name is that of a volume, a picture or a NumPy array."""
    return is_scan_name(path) or path.lower().endswith(ARRAY_EXTENSIONS)


def partner_of(path: str) -> str | None:
    """Return the other file of a .hdr/.img pair, with the same capitals, or None for a single file.

    >>> partner_of("a/b.hdr"), partner_of("a/b.IMG"), partner_of("a/b.nii")
    ('a/b.img', 'a/b.HDR', None)
    """
    extension = extension_of(path) if path.lower().endswith(_PAIRED) else ""
    partner = _PARTNERS.get(extension.lower())
    if partner is None:
        return None
    return path.removesuffix(extension) + (partner.upper() if extension.isupper() else partner)


def volume_files(path: str) -> tuple[str, ...]:
    """Return the files of a volume from the path of one of them, the header first.

    >>> volume_files("a.nii.gz"), volume_files("a.img")
    (('a.nii.gz',), ('a.hdr', 'a.img'))
    """
    partner = partner_of(path)
    if partner is None:
        return (path,)
    return (path, partner) if ".hdr" in extension_of(path).lower() else (partner, path)


def iterate_scans(paths: Collection[str], takes: Callable[[str], bool] = is_scan_name) -> Iterator[str]:
    """Yield every volume and picture once, in the order of `paths`; a .hdr/.img pair is represented by its header.

    An .img without its .hdr keeps its own name, so `missing_part` can report it.

    Args:
        paths: paths of files.
        takes: function that returns whether to include a path.
    """
    for path in paths:
        if takes(path) and (volume_files(path)[0] == path or volume_files(path)[0] not in paths):
            yield path


def missing_part(path: str, paths: Collection[str]) -> Problem | None:
    """Return the problem of a .hdr/.img pair if one of its files is not among `paths`, else None."""
    files = volume_files(path)
    for file, what in zip(files, (".hdr file with the header", ".img file with the voxels"), strict=False):
        if len(files) > 1 and file not in paths:
            return ("read", f"the {what} is missing", f"no {file.rpartition('/')[2]}")
    return None


def find_annotated_file(written: str, what: str, files: SourceFiles, folder: str = "") -> str:
    """Return the path below `files` that annotations mean; for a .hdr/.img pair the path of the header.

    The function does not search other folders: patients often have files with the same name, such as `seg.nii.gz`.

    Args:
        written: path relative to `folder`, with / or \\, or an absolute path below the root.
        what: "image" or "label", for the reason.
        files: source files.
        folder: folder of the annotation file, below the root.

    Raises:
        SourceError: there is no such file.
    """
    path = relative_path(written, files.root, folder)
    # A local file may be named by its absolute path; a store has none.
    is_outside = path.startswith("..") or (path.startswith("/") and is_remote(files.root))
    if is_outside or files.size(path) is None:
        raise _missing_file(written, path, what, files)
    problem = missing_part(path, [file for file in volume_files(path) if files.size(file) is not None])
    if problem is not None:
        raise SourceError(*problem)
    return volume_files(path)[0]


def _missing_file(written: str, path: str, what: str, files: SourceFiles) -> SourceError:
    """Return the error about a file that annotations name: outside the folder, refused by the system, or absent."""
    leads_out = os.path.isabs(written) or path.startswith("../")
    if leads_out and not is_remote(files.root) and path_exists(os.path.join(absolute_path(files.root), path)):
        return SourceError("annotation", f"{what} file lies outside --images", outside_message(written))
    shown, near = path_below(files.root, written) or written, ""
    if not path.startswith(("/", "..")):
        # In a folder without permission to enter, it is unknown whether a file exists.
        if refusal := files.refusal(path):
            return SourceError("read", UNREADABLE_FILE, f"{path}: {refusal}")
        near = _hint(path, files.files_in(path.rpartition("/")[0]))
    return SourceError("annotation", f"{what} file not found", f"{shown!r} {BELOW_IMAGES_FOLDER}{near}")


def relative_path(written: str, root: str, folder: str = "") -> str:
    """Return a path that annotations contain, relative to the root.

    >>> relative_path("./imagesTr/a.nii", "/data", "Task09"), relative_path("/data/b.nii", "/data")
    ('Task09/imagesTr/a.nii', 'b.nii')
    >>> relative_path("..\\\\ct\\\\1.nii", "data", "tables")
    'ct/1.nii'
    """
    if parse_member(written) is not None:
        return written
    path = written if "/" in written else written.replace("\\", "/")
    return posixpath.normpath(path_below(root, path) or posixpath.join(folder, path))


def _hint(path: str, paths: Iterable[str]) -> str:
    start = path.removesuffix(extension_of(path)) + "."
    near = next((found for found in paths if found.startswith(start)), None)
    return f"; there is {near}: correct the entry" if near else ""


def folder_of(path: str) -> str:
    """Return the folder of a file; "." is the root."""
    return path.rpartition("/")[0] or "."


def common_folder(paths: Iterable[str]) -> str:
    """Return the innermost folder that holds all paths, "." for the root; repeated slashes of stores stay.

    >>> common_folder(["p/a/1", "p/b/2"]), common_folder(["1", "2"]), common_folder(["a//b/1", "a//b/2"])
    ('p', '.', 'a//b')
    """
    folders = [path.split("/")[:-1] for path in paths]
    first, last = min(folders, default=[]), max(folders, default=[])
    shared = takewhile(lambda parts: parts[0] == parts[1], zip(first, last, strict=False))
    return "/".join(part for part, _ in shared) or "."


class FolderIndex:
    """Index of the files of a source by folder."""

    def __init__(self, files: SourceFiles) -> None:
        self.files = files

    @cached_property
    def _paths(self) -> list[str]:
        return sorted(self.files.sizes())

    def below(self, folder: str) -> list[str]:
        """Return the files anywhere below a folder, without documents; "." is the root."""
        start = "" if folder == "." else f"{folder}/"
        after = map(self._paths.__getitem__, range(bisect_left(self._paths, start), len(self._paths)))
        inside = takewhile(lambda path: path.startswith(start), after)
        return [path for path in inside if not is_document_name(path)]
