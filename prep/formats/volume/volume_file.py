"""Volume file with a checked header, its conversion into a scan or a mask, and the names of its classes.

The readers of NIfTI, NRRD, MetaImage, MGH and MINC return a `VolumeFile`. They raise SourceError of stage `read` if a
file is missing. They raise SourceError of stage `decode` if the file has another format or an unsupported type, or is
damaged, truncated or too large.

Names of classes are segments of Slicer's NRRD, and label tables in NIfTI extensions:

    Segment0_Name:=liver          <LabelTable><Label Key="1">liver</Label></LabelTable>
    Segment0_LabelValue:=1        <AFNI_atr atr_name="VALUE_LABEL_DTABLE">"1" "liver"</AFNI_atr>

Sources: 3D Slicer, "Segmentations: seg.nrrd file format"; Connectome Workbench's label table, which TotalSegmentator
writes too; AFNI's attribute VALUE_LABEL_DTABLE.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.class_names import BACKGROUND, LabelCoding
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import unpack_head
from halofeed.prep.formats.volume.volume_header import (
    Content,
    PlacedAffine,
    StoredVoxels,
    grid_of,
    header_lines,
)
from halofeed.prep.formats.volume.voxel_values import (
    check_byte_count,
    is_quantized,
    label_memory,
    plan_conversion,
    quantization_tolerance,
    read_labels,
    read_values,
    reads_in_place,
    value_bytes,
)
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule, Scan, left_out_findings
from halofeed.prep.sources.file_names import FORMAT_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import classes_of_colors, merge_labels
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural


@dataclass(frozen=True, kw_only=True)
class VolumeFile:
    """Checked header of a volume file, and the bytes that hold its voxels.

    These formats do not state whether values are Hounsfield units. A mask may hold integers or floats without a
    fraction; it is rescaled if the header has a slope or an intercept.

    Args:
        stored: storage format of the voxels.
        grid: grid of the volume.
        findings: flaws and other observations, in a fixed order.
        content: the bytes with the voxels.
        files: relative paths of the files that were read, in any order.
        segments: names that the file gives to the values of a mask.

    Raises:
        SourceError: the file has too few or too many bytes. Compressed files are checked again when they are read.
    """

    stored: StoredVoxels
    grid: Grid
    findings: tuple[Finding, ...]
    content: Content
    files: tuple[str, ...]
    segments: tuple[LabelSegment, ...] = ()

    def __post_init__(self) -> None:
        check_byte_count(self.stored, self.content)

    def scan(self, options: ScanOptions) -> Scan:
        """Return the file as a scan of unknown unit.

        Raises:
            SourceError: the voxels cannot be read. They are read at once if `non_finite_value` may replace some.
        """
        stored, content, findings = self.stored, self.content, self.findings
        replacing = stored.dtype.kind == "f" and options.non_finite_value is not None
        conversion = plan_conversion(stored, options.non_finite_value if replacing else None)
        held: NDArray[Any] | None = None
        if replacing:
            options.reserve(content.held_bytes + value_bytes(stored, conversion))
            # The finding about replaced voxels must be known now, so all voxels are read.
            held, replaced = read_values(stored, content, conversion)
            detail = f"{plural(replaced, 'voxel')} set to {options.non_finite_value:g}"
            findings += (Finding.corrected(FindingName.VOXELS_NOT_FINITE, detail),) * (replaced > 0)
        in_place = reads_in_place(stored, content, conversion)
        return Scan(
            grid=self.grid,
            channels=stored.channels,
            dtype=conversion.dtype,
            unit="",
            modality="",
            findings=findings,
            files=tuple(sorted(set(self.files))),
            read=lambda: _arrange(
                stored, read_values(stored, content, conversion)[0] if held is None else held
            ),
            held_bytes=content.held_bytes,
            read_bytes=0 if in_place else value_bytes(stored, conversion),
        )

    def mask(self, options: ScanOptions) -> MaskScan:
        """Return the file as a label volume.

        Raises:
            SourceError: the file has several channels without segments; or the voxels cannot be read. They are read at
                once if voxels that are not numbers become background.
        """
        stored = self.stored
        coding = options.coding if not self.segments else LabelCoding()
        segments = dict(enumerate(self._classes(coding), start=1))
        read_bytes, item_bytes = label_memory(stored, has_negative=bool(options.negative_values))
        held, noted = self._labels_now(options, read_bytes)

        def read() -> NDArray[Any]:
            return (
                read_labels(stored, self.content, negative=options.negative_values)[0]
                if held is None
                else held
            )

        def read_single() -> NDArray[Any]:
            if stored.channels > 1:
                raise _several_channels(stored)
            return read().reshape(stored.shape)

        kept = self._select(segments, options)
        left_out = left_out_findings({number: one.name for number, one in segments.items()}, kept)

        def read_classes(ids: Mapping[int, int], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
            layers = _layers(_arrange(stored, read()), coding)
            return _merge_classes(layers, segments, ids, overlap, options)

        return MaskScan(
            grid=self.grid,
            names={number: one.name for number, one in kept.items()},
            # Segments of several layers share values, so a value alone names no class.
            values={number: one.value for number, one in kept.items()} if stored.channels == 1 else {},
            codes={number: one.codes for number, one in kept.items() if one.codes},
            findings=(*self.findings, *noted, *left_out),
            files=tuple(sorted(set(self.files))),
            read=read_single,
            read_classes=read_classes if segments else None,
            held_bytes=self.content.held_bytes,
            # Segments need two more arrays: the ids of a layer, and those of the layers before it.
            read_bytes=read_bytes + (8 * stored.value_count if segments else 0),
            value_bytes=item_bytes,
        )

    def _classes(self, coding: LabelCoding) -> tuple[LabelSegment, ...]:
        """Return the classes of a mask by the user's coding, else those that the file names.

        Raises:
            SourceError: the file has several channels that neither explains.
        """
        listed = _coded_segments(coding, self.stored) or self.segments
        has_layers = bool(listed) and (
            bool(coding) or all(one.layer < self.stored.channels for one in listed)
        )
        # Nothing says which channel is the class, or whether colors are classes.
        if self.stored.channels > 1 and not has_layers:
            raise _several_channels(self.stored)
        return listed

    def _labels_now(
        self, options: ScanOptions, read_bytes: int
    ) -> tuple[NDArray[Any] | None, tuple[Finding, ...]]:
        """Return the labels and the finding about corrected ones; None for labels that are correct as they are.

        The finding must be known when the mask is opened, so all voxels are read now.
        """
        stored, content, negative = self.stored, self.content, options.negative_values
        if options.non_finite_labels == "background" and stored.dtype.kind == "f":
            options.reserve(content.held_bytes + read_bytes)
            held, replaced = read_labels(stored, content, non_finite_is_background=True, negative=negative)
            detail = f"{plural(replaced, 'voxel')} became background"
            return held, (Finding.corrected(FindingName.MASK_VOXELS_NOT_FINITE, detail),) * (replaced > 0)
        if not is_quantized(stored):
            return None, ()
        options.reserve(content.held_bytes + read_bytes)
        tolerance = quantization_tolerance(stored, content)
        if tolerance is None:
            return None, ()
        held, _ = read_labels(stored, content, tolerance=tolerance, negative=negative)
        step = stored.step or abs(stored.slope)
        detail = f"values are stored in steps of {step:.3g}; the nearest whole numbers were taken"
        return held, (Finding.corrected(FindingName.MASK_QUANTIZED, detail),)

    @staticmethod
    def _select(segments: Mapping[int, LabelSegment], options: ScanOptions) -> dict[int, LabelSegment]:
        """Return the segments that the user's choice keeps, by number.

        Raises:
            SourceError: two of them have one name, and the choice does not distinguish their values; or the choice
                names a class whose name differs only in spelling from a segment that it drops.
        """
        classes = options.classes
        kept = {
            number: one
            for number, one in segments.items()
            if classes.target(one.name, one.value, one.codes) is not None
            or classes.takes(one.name, one.codes)
        }
        names = [
            one.name for one in kept.values() if classes.target(one.name, one.value, one.codes) == one.name
        ]
        if twice := next((name for name in names if names.count(name) > 1), None):
            listed = ", ".join(str(one.value) for one in kept.values() if one.name == twice)
            detail = f"{twice!r} has values {listed}; rename one of them in the file"
            raise SourceError("annotation", "label gives one name to several values", detail)
        return kept


def volume_file(
    stored: StoredVoxels,
    placed: PlacedAffine,
    content: Content,
    files: tuple[str, ...],
    *,
    findings: tuple[Finding, ...] = (),
    segments: tuple[LabelSegment, ...] = (),
) -> VolumeFile:
    """Return the volume file of a header, whose findings are first about its affine, then the given ones.

    Raises:
        SourceError: the affine is impossible; or see `VolumeFile`.
    """
    affine, noted = placed
    grid, sheared = grid_of(stored.shape, affine)
    return VolumeFile(
        stored=stored,
        grid=grid,
        findings=(*noted, *sheared, *findings),
        content=content,
        files=files,
        segments=segments,
    )


def _several_channels(stored: StoredVoxels) -> SourceError:
    detail = (
        f"{plural(stored.channels, 'channel')}; a mask has one value per voxel. If a channel is a class, "
        "name them in order with "
        "--label-channels, such as background,liver; if colors are classes, with --label-colors, such as ff0000=liver"
    )
    return SourceError("decode", "mask has several channels", detail)


def _coded_segments(coding: LabelCoding, stored: StoredVoxels) -> tuple[LabelSegment, ...]:
    """Return the classes of a mask with a channel or a color per class; () without such a coding.

    Raises:
        SourceError: the file has another number of channels, or colors of more than 8 bits.
    """
    expected = 3 if coding.colors else len(coding.channels)
    if coding and stored.channels != expected:
        named = "red, green, blue" if coding.colors else ", ".join(coding.channels)
        detail = f"expected {expected} ({named}), got {stored.channels}"
        raise SourceError("annotation", "label has another number of channels", detail)
    # The user states colors as hexadecimal digits of 8 bits each.
    if coding.colors and stored.dtype.itemsize > 1:
        raise SourceError("annotation", "colors of more than 8 bits are no classes", f"{stored.dtype.name}")
    # Colors give one layer of numbers; channels a layer of 0 and 1 each.
    if coding.colors:
        return tuple(LabelSegment(name=name, value=number) for number, name in coding.names.items())
    return tuple(LabelSegment(name=name, value=1, layer=number - 1) for number, name in coding.names.items())


def _layers(values: NDArray[Any], coding: LabelCoding) -> list[NDArray[Any]]:
    """Return the layers of stored values [depth, height, width] of a mask [depth, height, width, channel].

    Raises:
        SourceError: a channel of one class holds several values besides 0, or a color has no class.
    """
    # The three channels together are one class.
    if coding.colors:
        return [np.stack([classes_of_colors(plane, coding.numbers) for plane in values])]
    layers = [values[..., channel] for channel in range(values.shape[-1])]
    if not coding:
        return layers
    kept = [(name, layer) for name, layer in zip(coding.channels, layers, strict=True) if name != BACKGROUND]
    for name, layer in kept:
        # A channel has one name, so two values would be two classes with one name.
        if ((layer != 0) & (layer != layer.max())).any():
            raise SourceError(
                "annotation", "channel of a class holds several values", f"{name}: 0 and one other"
            )
    return [(layer != 0).astype(np.uint8) for _, layer in kept]


def _arrange(stored: StoredVoxels, values: NDArray[Any]) -> NDArray[Any]:
    """Return the flat values as a view [depth, height, width, channel]."""
    # The other files store one volume per channel.
    if stored.interleaved or stored.channels == 1:
        return values.reshape(*stored.shape, stored.channels)
    return np.moveaxis(values.reshape(stored.channels, *stored.shape), 0, -1)


_HEAD_BYTES = 1 << 16
_NIFTI_HEADER_SIZES = (348, 540)
MAX_EXTENSION_BYTES = 1 << 24
_SEGMENT = re.compile(r"Segment([0-9]{1,6})_(Name|LabelValue|Layer|NameAutoGenerated|Tags):=(.*)")
_DEFAULT_CODES = ("SCT:85756007", "SRT:T-D0050")
"""Tissue, which Slicer writes for a segment whose content nobody chose; versions before 4.11 wrote the second one."""
_LABEL = re.compile(r"""<Label\b([^<>]*)>""")
_KEY = re.compile(r"""\bKey\s{0,9}=\s{0,9}["']([0-9]{1,9})["']""")
_AFNI = re.compile(r"VALUE_LABEL_DTABLE(.*?)(?:</AFNI_atr>|$)", re.DOTALL)
_AFNI_PAIR = re.compile(r'"([0-9]{1,9})"\s+"([^"]*)"')
_GENERATED = re.compile(r"(?:segment|label|class|region|value|roi)?[ _-]*0*([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LabelSegment:
    """Class that a label file names: the voxels of one value in one layer, which is an index of the fourth axis.

    `codes` are those of its content, the most specific first, as in `halofeed.prep.formats.dicom.mask_codes`.
    """

    name: str
    value: int
    layer: int = 0
    codes: tuple[str, ...] = ()

    @property
    def is_generated(self) -> bool:
        """True if the name only repeats the value, such as `Segment_1` for the value 1.

        >>> [LabelSegment(name="Segment_1", value=value).is_generated for value in (1, 2)]
        [True, False]
        """
        match = _GENERATED.fullmatch(self.name)
        return not self.name or (match is not None and int(match[1]) == self.value)


def nrrd_segments(data: bytes) -> tuple[LabelSegment, ...]:
    """Return the segments of Slicer's .seg.nrrd in order of their numbers; () for other NRRD files.

    Files of Slicer before 4.11 state neither layer nor value: each segment has its own layer of 0 and 1. The result is
    also () if all names only repeat the values.

    Raises:
        SourceError: a layer or a value is not a number.
    """
    entries: dict[int, dict[str, str]] = {}
    for line, _ in header_lines(data):
        if not line:
            break
        if match := _SEGMENT.fullmatch(line):
            entries.setdefault(int(match[1]), {})[match[2]] = match[3].strip()
    ordered = [entry for _, entry in sorted(entries.items())]
    names = _slicer_names(ordered)
    return _meaningful(
        [_slicer_segment(index, *one) for index, one in enumerate(zip(names, ordered, strict=True))]
    )


def _slicer_names(entries: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the name of each segment of Slicer; "" for a segment of which only the number is known."""
    names = [_slicer_name(entry) for entry in entries]
    # A name that several segments got from their content says nothing of each.
    return [
        name if (name == entry.get("Name") and not _is_made(entry)) or names.count(name) == 1 else ""
        for name, entry in zip(names, entries, strict=True)
    ]


def _slicer_name(entry: Mapping[str, str]) -> str:
    """Return the name of a segment of Slicer; "" if only its number is known.

    Slicer makes names that nobody wrote: from the content that was chosen, such as Liver, else numbered ones such as
    Segment_1 (`NameAutoGenerated` in "Segmentations", Developer Guide).
    """
    name = entry.get("Name", "")
    if name and not _GENERATED.fullmatch(name):
        return name
    codes, meaning = terminology(entry.get("Tags", ""))
    if meaning and not set(codes) & {*_DEFAULT_CODES}:
        return meaning
    return "" if _is_made(entry) else name


def _is_made(entry: Mapping[str, str]) -> bool:
    """Return whether Slicer made the name of a segment."""
    return entry.get("NameAutoGenerated") == "1"


def terminology(tags: str) -> tuple[tuple[str, ...], str]:
    """Return the codes of a segment's content in Slicer's tags, the most specific first, and what they mean.

    The tag has seven parts: context, category, type, modifier of the type, and three of the anatomic region. Those of
    the type are what DICOM calls the Segmented Property Type.

    Source: 3D Slicer, Developer Guide, "Segmentations", TerminologyEntry tag.

    >>> terminology("A:b|TerminologyEntry:list~SCT^1^Organ~SCT^64033007^Kidney~SCT^7771000^Left~list~^^~^^|")
    (('SCT:64033007+SCT:7771000', 'SCT:64033007'), 'Left Kidney')
    >>> terminology("Segmentation.Status:inprogress|")
    ((), '')
    """
    start = "TerminologyEntry:"
    entry = next((tag[len(start) :] for tag in tags.split("|") if tag.startswith(start)), "")
    parts = [[text.strip() for text in part.split("^")] for part in entry.split("~")[2:4]]
    triplets = [part for part in parts if len(part) == 3 and part[0] and part[1]]
    # A modifier alone, such as left, is no content.
    if not triplets or triplets[0] is not parts[0]:
        return (), ""
    written = [f"{scheme}:{value}" for scheme, value, _ in triplets]
    meaning = " ".join(text for _, _, text in reversed(triplets) if text)
    return tuple(dict.fromkeys(("+".join(written), written[0]))), meaning


def _slicer_segment(index: int, name: str, entry: Mapping[str, str]) -> LabelSegment:
    """Return a segment of Slicer by its name, its fields, and its place in the file."""
    # Before Slicer 4.11, a segment had neither field and its own layer of 0 and 1.
    is_early = "LabelValue" not in entry and "Layer" not in entry
    value, layer = entry.get("LabelValue", "1"), entry.get("Layer", str(index if is_early else 0))
    if not (value.isdecimal() and layer.isdecimal()):
        raise SourceError("decode", "segment's value is no number", f"{name!r}: {value!r}, layer {layer!r}")
    codes, _ = terminology(entry.get("Tags", ""))
    return LabelSegment(name=name or value, value=int(value), layer=int(layer), codes=codes)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each label of an XML table, in linear time even for hostile text."""
    end = 0
    while (tag := _LABEL.search(text, end)) is not None:
        end = text.find("</Label>", tag.end())
        # An unclosed label ends the table; searching again would take quadratic time.
        if end < 0:
            return
        if key := _KEY.search(tag[1]):
            yield key[1], text[tag.end() : end].replace("<![CDATA[", "").replace("]]>", "")


def nifti_segments(start: bytes, offset: int, header_bytes: int) -> tuple[LabelSegment, ...]:
    """Return the entries of the label tables in the header extensions of a NIfTI file.

    Args:
        start: unpacked bytes of the file before the voxels.
        offset: offset of the voxels.
        header_bytes: size of the header.
    """
    # This byte is 0 if no extension follows the header (NIfTI-1.1, "extended header").
    if start[header_bytes : header_bytes + 1] in (b"", b"\0"):
        return ()
    text = start[header_bytes + 4 : offset].decode("utf-8", "replace")
    # Connectome Workbench and TotalSegmentator write a table; AFNI writes an attribute.
    if "<LabelTable" in text:
        pairs = list(_labels(text))
    else:
        pairs = [pair for table in _AFNI.findall(text) for pair in _AFNI_PAIR.findall(html.unescape(table))]
    named = ((int(key), html.unescape(name).strip()) for key, name in pairs)
    return _meaningful([LabelSegment(name=name or str(value), value=value) for value, name in named if value])


def read_label_segments(files: SourceFiles, path: str) -> tuple[LabelSegment, ...]:
    """Return the classes that a label file names; () for a format without names.

    Raises:
        SourceError: the file cannot be read.
    """
    lower = path.lower()
    if lower.endswith((*FORMAT_EXTENSIONS["nrrd"].single, *FORMAT_EXTENSIONS["nrrd"].headers)):
        return nrrd_segments(files.head(path, _HEAD_BYTES))
    # The other formats have no names of classes.
    if not lower.endswith(FORMAT_EXTENSIONS["nifti"].single):
        return ()
    head = files.head(path, _HEAD_BYTES)
    start, _ = unpack_head(head, 544)
    size, offset = _extension_span(start)
    if not size < offset <= MAX_EXTENSION_BYTES:
        return ()
    start, _ = unpack_head(head, int(offset))
    if len(start) < offset:  # a long label table
        start, _ = unpack_head(files.read(path), int(offset))
    return nifti_segments(start, int(offset), size)


def _extension_span(start: bytes) -> tuple[int, float]:
    """Return the size of a NIfTI header and the offset of the voxels; (0, 0) without extensions between them.

    nibabel would be imported for these two numbers, while a listing reads thousands of files.
    """
    sizes = {order: int(np.frombuffer(start[:4].ljust(4), f"{order}i4")[0]) for order in "<>"}
    order, size = next((pair for pair in sizes.items() if pair[1] in _NIFTI_HEADER_SIZES), ("<", 0))
    # The byte after the header is not 0 if extensions follow (NIfTI-1.1, "extended header").
    if not size or len(start) <= size or not start[size]:
        return 0, 0.0
    kind, place = ("f4", 108) if size == 348 else ("i8", 168)  # vox_offset
    return size, float(np.frombuffer(start, order + kind, 1, place)[0])


def _meaningful(segments: Sequence[LabelSegment]) -> tuple[LabelSegment, ...]:
    """Return the segments, or () if all names only repeat the values because nobody named a segment."""
    return () if all(one.is_generated for one in segments) else tuple(segments)


def _merge_classes(
    layers: Sequence[NDArray[Any]],
    segments: Mapping[int, LabelSegment],
    ids: Mapping[int, int],
    overlap: OverlapRule,
    options: ScanOptions,
) -> tuple[NDArray[Any], int]:
    """Merge layers as `merge_layers`; segments without an id, and values that the options ignore, are background."""

    def is_left_out(value: int) -> bool:
        return options.classes.target(str(value)) is None

    more = dict.fromkeys(options.ignored_values, ids[0]) if 0 in ids else {}
    known = {**dict.fromkeys(segments, 0), **ids}
    return merge_layers(layers, segments, known, overlap, is_left_out, more)


def merge_layers(
    layers: Sequence[NDArray[Any]],
    segments: Mapping[int, LabelSegment],
    ids: Mapping[int, int],
    overlap: OverlapRule,
    left_out: Callable[[int], bool],
    more: Mapping[int, int],
) -> tuple[NDArray[Any], int]:
    """Merge layers of stored values into class ids; return them with the number of voxels in several classes.

    Args:
        layers: stored values of each layer, all of one shape.
        segments: segments by number.
        ids: id of each segment by its number.
        overlap: treatment of voxels in several classes.
        left_out: function that tells whether a value without a segment is background.
        more: ids of values that the file does not have to name.

    Raises:
        SourceError: a value has no segment; or voxels are in several classes and `overlap` refuses them.
    """
    merged: NDArray[Any] | None = None
    overlapped = 0
    dtype = np.dtype(np.uint8 if max(ids.values(), default=0) <= 255 else np.int32)
    for number, values in enumerate(layers):
        id_of = {one.value: ids[place] for place, one in segments.items() if one.layer == number} | dict(more)
        label = _ids_of_layer(values, id_of, left_out, dtype)
        # The first layer cannot overlap.
        if merged is None:
            merged = label
            continue
        merged, shared = merge_labels(merged, label, overlap)
        overlapped += shared
    assert merged is not None
    return merged, overlapped


def _ids_of_layer(
    values: NDArray[Any], id_of: Mapping[int, int], left_out: Callable[[int], bool], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return the class ids of a layer of stored values; SourceError if a value has no id and is not left out."""
    present = sorted({value for plane in values for value in np.unique(plane).tolist()})
    unnamed = [value for value in present if value and value not in id_of and not left_out(value)]
    if unnamed:
        listed = ", ".join(map(str, unnamed[:10]))
        cure = f"name it in the file, or leave it out with --map-classes {unnamed[0]}=background"
        raise SourceError("annotation", "label has values that it does not name", f"{listed}; {cure}")
    id_table = np.array([id_of.get(value, 0) for value in present], dtype)
    label = np.empty(values.shape, dtype)
    # Plane by plane, because an index takes 8 bytes per voxel.
    for target, plane in zip(label, values, strict=True):
        target[...] = id_table[np.searchsorted(present, plane)]
    return label
