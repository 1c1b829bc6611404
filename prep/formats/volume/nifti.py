"""How a NIfTI-1, NIfTI-2 or Analyze volume becomes a scan or a mask.

A scan keeps the bytes of its file until it is dropped, so that it is fetched once: hold few of them at a time.
"""

from __future__ import annotations

from halofeed.prep.formats.volume.gzip_stream import read_start
from halofeed.prep.formats.volume.nifti_affine import read_grid
from halofeed.prep.formats.volume.nifti_header import LONGEST_HEADER, parse_header
from halofeed.prep.formats.volume.opened import Opened
from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.formats.volume.segment_names import MOST_EXTENSION_BYTES, nifti_segments
from halofeed.prep.formats.volume.stored import content_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.errors import SourceError


def open_nifti(files: SourceFiles, path: str, options: ScanOptions) -> Opened:
    """A file by its header; whether it is compressed, and of which kind it is, its content says, not its name.

    Axis i becomes width, j height, k depth; time, vector components and colors become channels.
    """
    stem, extension, suffix = split_name(path)
    if extension.lower() == ".img":
        header_path, header_data = _partner(files, path, stem, ".hdr", extension, suffix)
    else:
        header_path, header_data = path, files.read(path)
    header = parse_header(
        read_start(header_data, LONGEST_HEADER),
        options.max_voxels,
        may_be_analyze=extension.lower() in (".hdr", ".img"),
    )
    grid, findings = read_grid(header, options)
    image_path, data = header_path, header_data
    if header.kind != "single":
        if extension.lower() == ".img":
            image_path, data = path, files.read(path)
        else:
            image_path, data = _partner(files, path, stem, ".img", extension, suffix)
    # A header that has extensions says so in the byte behind it.
    has_names = header.kind == "single" and header.offset > header.fields.sizeof_hdr + 4
    start = read_start(data, header.offset) if has_names and header.offset <= MOST_EXTENSION_BYTES else b""
    return Opened(
        stored=header,
        grid=grid,
        findings=findings + header.findings,
        content=content_of(data),
        files=(header_path, image_path),
        segments=nifti_segments(start, header.offset, header.fields.sizeof_hdr),
    )


def split_name(path: str) -> tuple[str, str, str]:
    """A path without its extension, the extension, and ".gz" or nothing.

    >>> split_name("a/b.v2.nii.gz")
    ('a/b.v2', '.nii', '.gz')
    """
    suffix = path[-3:] if path.lower().endswith(".gz") else ""
    rest = path.removesuffix(suffix)
    folder, slash, name = rest.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return (folder + slash + stem, dot + extension, suffix) if dot else (rest, "", suffix)


def _partner(
    files: SourceFiles, path: str, stem: str, wanted: str, extension: str, suffix: str
) -> tuple[str, bytes]:
    """The other file of a pair: its path and bytes; in capitals and compressed as the first, or not compressed so."""
    wanted = wanted.upper() if extension.isupper() else wanted
    candidates = [stem + wanted + end for end in (suffix, "" if suffix else ".gz")]
    failure: SourceError | None = None
    for candidate in candidates:
        try:
            return candidate, files.read(candidate)
        except SourceError as error:
            failure = failure or error
    kind = "voxels" if wanted.lower() == ".img" else "header"
    names = " and ".join(name.rpartition("/")[2] for name in candidates)
    detail = f"{names}: {failure.detail if failure else ''}"
    raise SourceError("read", f"the {wanted.lower()} file with the {kind} is missing", detail) from failure
