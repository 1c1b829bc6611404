"""Reader of GeoJSON: outlines in map coordinates for georeferenced pictures, and in pixels as QuPath writes them.

A file belongs to the pictures that a property names (xView's image_id), to the picture with its stem (QuPath), or to
every georeferenced picture on which its features lie (SpaceNet, building footprints of a city).
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.class_names import note_similar_classes
from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    rejected_example,
    sort_examples,
    splits_by_folders,
)
from halofeed.prep.annotations.documents import read_limited
from halofeed.prep.annotations.geojson_features import (
    Feature,
    FeatureFile,
    Ring,
    class_of_feature,
    class_property,
    read_features,
)
from halofeed.prep.annotations.resolve_boxes import note_changed_objects, possible_sizes
from halofeed.prep.annotations.written_boxes import (
    keeps_corners,
    numbers_of,
    polygon_area,
    polygon_of,
    rectangle_of,
    unite_parts,
    usable_boxes,
)
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import DICOM_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError, UsageError

if TYPE_CHECKING:
    from halofeed.prep.formats.region.region_reader import Georeference

EXTENSIONS = (".geojson", ".json")
_MAX_BYTES = 256 << 20
"""Largest file, as for other documents: the parsed document takes several times as much memory."""
_THREADS = 16
_IMAGE_NAMES = (*(name for rank in SPELLINGS["filename"] for name in rank), "image")
_PIXEL_BOXES = "bounds_imcoords"
"""xView's property of a box in pixels, "xmin,ymin,xmax,ymax"; its pictures have no georeference."""
_AS_PIXELS = "GeoJSON taken as pixels, as the pictures have no georeference and all features lie inside them"
_WITHOUT_FEATURES = "georeferenced pictures on which no feature lies: taken as pictures without objects"
_RULES = ("auto", "pixels", "picture", "lat-lon")
_RUN_PIXELS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class _Picture:
    """A picture of the source; `size` is its stored (height, width), None if it cannot be read."""

    path: str
    size: tuple[int, int] | None
    place: Georeference | None

    @property
    def map_extent(self) -> tuple[float, float, float, float]:
        """Return xmin, ymin, xmax, ymax on the picture's map."""
        assert self.place is not None
        assert self.size is not None
        points = np.array([self.place.map_point(y, x) for y in (0, self.size[0]) for x in (0, self.size[1])])
        (xmin, ymin), (xmax, ymax) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return xmin, ymin, xmax, ymax


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every picture, with the features that belong to it.

    Raises:
        AnnotationsError: no file is GeoJSON; no property is the class; or no feature meets a picture, with the extents
            of both.
    """
    files, faulty = _read_files(annotations, annotation_file)
    if not files:
        why = f": {faulty[0].problem[1]} ({faulty[0].problem[2]})" if faulty and faulty[0].problem else ""
        raise AnnotationsError(f"{annotation_file or annotations.root}: expected GeoJSON files{why}")
    pictures = _pictures(images, options)
    if not pictures:
        raise AnnotationsError(f"{images.root}: no picture lies below it; name their folder with --images")
    name = None if options.one_class else class_property(files, options.class_property)

    def label_of(feature: Feature) -> str:
        return options.one_class or class_of_feature(feature, name)

    listed = _Assignment(pictures=pictures, options=options, label_of=label_of).examples(files)
    yield from sort_examples(
        note_similar_classes([*note_changed_objects(listed, with_corners=keeps_corners(options)), *faulty])
    )


def _read_files(
    annotations: SourceFiles, annotation_file: str | None
) -> tuple[list[FeatureFile], list[SourceExample]]:
    """Return the GeoJSON files, and an example for each damaged one."""
    named = [annotation_file] if annotation_file is not None else None
    paths = named or [path for path in annotations.sizes() if path.lower().endswith(EXTENSIONS)]
    files, faulty = list[FeatureFile](), list[SourceExample]()
    for path in paths:
        try:
            found = read_features(path, read_limited(annotations, path, "GeoJSON file", _MAX_BYTES))
        except SourceError as error:
            if error.reason == "GeoJSON file is too large":
                raise AnnotationsError(
                    f"{path}: it has more than {_MAX_BYTES:,} bytes; cut it to the place of the pictures with "
                    f"ogr2ogr -clipsrc XMIN YMIN XMAX YMAX small.geojson {path}"
                ) from error
            faulty.append(rejected_example(path, error.at(path).args, splits_by_folders([path])[0]))
            continue
        files += [] if found is None else [found]
    return files, faulty


def _pictures(images: SourceFiles, options: LayoutOptions) -> list[_Picture]:
    paths = [path for path in images.sizes() if options.takes(path)]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda path: _open_picture(images, path), paths))


def _open_picture(images: SourceFiles, path: str) -> _Picture:
    """Return the size and the place of a picture by its header and by its world file."""
    # Imported here because the command line's help imports the layouts and must not load the decoders.
    from halofeed.prep.formats.region.region_formats import open_regions
    from halofeed.prep.formats.region.world_files import world_georeference

    try:
        sizes = () if path.lower().endswith((".tif", ".tiff")) else possible_sizes([path], images)[0]
        if sizes:
            return _Picture(path=path, size=sizes[0], place=world_georeference(images, path))
        reader = open_regions(images, path)
        try:
            place = reader.facts.georeference
            return _Picture(
                path=path, size=reader.facts.levels[0], place=place or world_georeference(images, path)
            )
        finally:
            reader.close()
    except SourceError:  # the converter rejects a picture that cannot be read, with its reason
        return _Picture(path=path, size=None, place=None)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Features of one file that belong to a picture, and whether they were chosen by their place."""

    file: FeatureFile
    features: Sequence[Feature]
    by_place: bool = False


@dataclass(frozen=True, kw_only=True)
class _Assignment:
    """Assignment of features to pictures."""

    pictures: Sequence[_Picture]
    options: LayoutOptions
    label_of: Callable[[Feature], str]
    kept: dict[tuple[int, str, str, bool], _OnMap] = field(default_factory=dict)

    def examples(self, files: Sequence[FeatureFile]) -> list[SourceExample]:
        """Return the example of each picture."""
        found, placed = self._by_names(files)
        splits = splits_by_folders([one.path for one in self.pictures])
        listed: list[SourceExample] = []
        met = 0
        for picture, split in zip(self.pictures, splits, strict=True):
            example = SourceExample(source=picture.path, key=picture.path, split=split, grid="stored")
            own = found.get(picture.path, [])
            if not own and placed and picture.place is not None:
                own = [_Found(file=file, features=file.features, by_place=True) for file in placed]
            example = self._with_objects(example, picture, own)
            met += bool(example.boxes)
            listed.append(example)
        if not met and any(one.parts for file in files for one in file.features):
            self._refuse_unmet(files, listed)
        return _with_unplaced(listed, placed)

    def _by_names(self, files: Sequence[FeatureFile]) -> tuple[dict[str, list[_Found]], list[FeatureFile]]:
        """Return the features of pictures that a property or a file's name names, and the other files."""
        by_name: dict[str, list[str]] = {}
        for one in self.pictures:
            base = posixpath.basename(one.path)
            stem = posixpath.splitext(base)[0]
            # QuPath names the annotations of a.ome.tif a.geojson.
            names = {one.path, base, stem, stem.removesuffix(".ome")}
            if base.lower().endswith(DICOM_EXTENSIONS):  # the levels of a slide are files of a folder
                folder = posixpath.dirname(one.path)
                names |= {folder or stem, posixpath.basename(folder) or stem}
            for name in names:
                by_name.setdefault(name, []).append(one.path)
        found: dict[str, list[_Found]] = {}
        placed = []
        for file in files:
            named = _named_pictures(file, by_name)
            beside = _own_picture(file.path, by_name)
            if named is not None:
                for path, features in named.items():
                    found.setdefault(path, []).append(_Found(file=file, features=features))
            elif beside is not None:
                found.setdefault(beside, []).append(_Found(file=file, features=file.features))
            else:
                placed.append(file)
        return found, placed

    def _with_objects(
        self, example: SourceExample, picture: _Picture, found: Sequence[_Found]
    ) -> SourceExample:
        """Return the example with the boxes of its features."""
        if not found:
            return replace(example, problem=("selection", "image has no annotation", ""))
        if picture.size is None:
            return replace(example, boxes=())
        boxes, bad, notes = list[Box](), list[tuple[str, str]](), list[str]()
        try:
            for one in found:
                located, note = self._locate(picture, one)
                usable, faults = usable_boxes(
                    located, self._box_maker(picture, one.file), self.options, one.file.path
                )
                boxes += usable
                bad += faults
                notes += [note] if note else []
        except SourceError as error:
            return replace(example, problem=error.at(found[0].file.path).args)
        except UsageError as error:
            raise AnnotationsError(f"{found[0].file.path}: {error}") from error
        if not boxes and all(one.by_place for one in found):
            notes.append(_WITHOUT_FEATURES)
        return replace(example, boxes=tuple(boxes), bad_objects=tuple(bad), notes=tuple(dict.fromkeys(notes)))

    def _locate(self, picture: _Picture, found: _Found) -> tuple[list[Feature], str]:
        """Return the features in pixels of the picture, and a note on how their numbers were read."""
        file, rule = found.file, self.options.coordinates
        if rule == "pixels" or (rule == "auto" and file.is_of_qupath):
            return list(found.features), ""
        if picture.place is not None:
            on_map = self._on_map(picture, found, rule)
            return _checked(_in_pixels(picture, on_map, by_place=found.by_place), picture, found), ""
        if any(_PIXEL_BOXES in one.properties for one in found.features):
            return list(found.features), ""
        _check_pixels(picture, found)
        return list(found.features), _AS_PIXELS if found.features else ""

    def _on_map(self, picture: _Picture, found: _Found, rule: str) -> _OnMap:
        """Return features on the map of a picture; those of a file of many pictures are kept for the next one."""
        from halofeed.prep.geometry.map_coordinates import CHORD_PIXELS, pixel_length

        assert picture.place is not None
        crs, swapped = _crs_of(found.file, picture, rule), rule == "lat-lon"
        key = id(found.features), crs, picture.place.crs, swapped
        if key in self.kept:
            return self.kept[key]
        alike = [one.place for one in self.pictures if one.place and one.place.crs == picture.place.crs]
        tolerance = CHORD_PIXELS * min(map(pixel_length, alike if found.by_place else [picture.place]))
        made = _on_map(found.features, crs, picture.place.crs, tolerance, swapped=swapped)
        # The features of one file live as long as this object, so that their identity is a key.
        if found.features is found.file.features:
            self.kept[key] = made
        return made

    def _box_maker(self, picture: _Picture, file: FeatureFile) -> Callable[[Feature], Box]:
        def make(feature: Feature) -> Box:
            label, what = self.label_of(feature), f"feature {feature.number}"
            written = feature.properties.get(_PIXEL_BOXES)
            if picture.place is None and written:
                values = written.split(",") if isinstance(written, str) else written
                return rectangle_of(label, numbers_of(values, what), what, self.options)
            if feature.fault is not None:
                raise SourceError("annotation", *feature.fault)
            assert picture.size is not None
            return _box_of(feature, label, picture.size, self.options)

        return make

    def _refuse_unmet(self, files: Sequence[FeatureFile], listed: Sequence[SourceExample]) -> None:
        """Raise AnnotationsError if the features lie elsewhere than the pictures, with the extents of both."""
        picture = next((one for one in self.pictures if one.place is not None and one.size), None)
        file = next(file for file in files if file.extent is not None)
        if picture is None:
            problem = next((one.problem for one in listed if one.problem and one.problem[2]), None)
            if problem is not None:
                raise AnnotationsError(f"{file.path}: {problem[1]}: {problem[2]}")
            if all(one.problem for one in listed):
                picture_name = posixpath.basename(self.pictures[0].path)
                raise AnnotationsError(
                    f"{file.path}: it belongs to no picture, and no picture has a georeference. Give the files the "
                    f"names of their pictures, such as {posixpath.splitext(picture_name)[0]}.geojson for {picture_name}"
                )
            return
        from halofeed.prep.geometry.map_coordinates import crs_name

        assert picture.place is not None
        crs = _crs_of(file, picture, self.options.coordinates)
        fixes = []
        for rule in ("picture", "lat-lon", "auto", "pixels"):
            count = self._count_met(file, rule)
            if count:
                fixes.append(f"--coordinates {rule} finds {count:,} features on pictures")
        fix = (
            fixes[0] if fixes else "name their pictures with --images, or state the system with --coordinates"
        )
        raise AnnotationsError(
            f"{file.path}: no feature lies on a picture. Features: {_extent(file.extent)} in {crs_name(crs)}; "
            f"{picture.path}: {_extent(picture.map_extent)} in {crs_name(picture.place.crs)}; {fix}"
        )

    def _count_met(self, file: FeatureFile, rule: str) -> int:
        """Return how many features lie on the first pictures if their numbers are read by a rule."""
        count = 0
        for picture in [one for one in self.pictures if one.place is not None and one.size][:64]:
            located: Sequence[Feature] = file.features
            if rule != "pixels":
                found = _Found(file=file, features=file.features)
                located = _in_pixels(picture, self._on_map(picture, found, rule), by_place=True)
            assert picture.size is not None
            count += sum(_meets(one, picture.size) for one in located)
        return count


# Names ----------------------------------------------------------------------------------------------------


def _named_pictures(
    file: FeatureFile, by_name: Mapping[str, Sequence[str]]
) -> dict[str, list[Feature]] | None:
    """Return the features of each picture that a property names; None if no property does."""
    properties = dict.fromkeys(name for one in file.features for name in one.properties)
    for name in properties:
        if normalize_name(name) not in _IMAGE_NAMES:
            continue
        found: dict[str, list[Feature]] = {}
        for feature in file.features:
            written = str(feature.properties.get(name, "")).replace("\\", "/")
            paths = by_name.get(written) or by_name.get(posixpath.basename(written)) or ()
            if len(paths) == 1:
                found.setdefault(paths[0], []).append(feature)
        # A number of the scene, or another id, names no picture.
        if found:
            return found
    return None


def _own_picture(path: str, by_name: Mapping[str, Sequence[str]]) -> str | None:
    """Return the picture with the stem of a file, as a.geojson and a.tif.geojson have; None without a single one."""
    stem = posixpath.splitext(posixpath.basename(path))[0]
    for name in (posixpath.splitext(path)[0], stem):
        found = by_name.get(name, ())
        if len(found) == 1:
            return found[0]
        beside = [one for one in found if posixpath.dirname(one) == posixpath.dirname(path)]
        if len(beside) == 1:
            return beside[0]
    return None


# Coordinates ----------------------------------------------------------------------------------------------


def _crs_of(file: FeatureFile, picture: _Picture, rule: str) -> str:
    """Return the coordinate system of a file's numbers for a picture; "" for an unknown one."""
    from halofeed.prep.geometry.map_coordinates import WGS84

    assert picture.place is not None
    if rule not in _RULES:
        return rule
    # A picture without a system has coordinates like those of its annotations.
    if rule == "picture" or not picture.place.crs or file.crs == "":
        return picture.place.crs
    return WGS84 if rule == "lat-lon" or file.crs is None else file.crs


@dataclass(frozen=True, kw_only=True)
class _OnMap:
    """Features of a file on the map of pictures.

    Args:
        features: the features, with rings in map coordinates that end with their first point.
        bounds: float64 [feature, 4], xmin, ymin, xmax, ymax; NaN for a feature without rings.
    """

    features: Sequence[Feature]
    bounds: NDArray[np.float64]


def _on_map(
    features: Sequence[Feature], crs: str, place_crs: str, tolerance: float, *, swapped: bool
) -> _OnMap:
    """Return features on a map, with more points where a line becomes a curve."""
    from halofeed.prep.geometry.map_coordinates import is_geographic, transform_between, transform_lines

    bounds = np.full((len(features), 4), np.nan)
    rings = [ring for one in features for ring in _rings(one)]
    if not rings:
        return _OnMap(features=features, bounds=bounds)
    is_degrees = bool(crs) and is_geographic(crs)
    closed = [_closed(ring, swapped=swapped, is_degrees=is_degrees) for ring in rings]
    starts = np.cumsum([0, *map(len, closed)])[:-1].tolist()
    transform = transform_between(crs, place_crs) if crs else np.asarray
    moved, begins = transform_lines(np.concatenate(closed), starts, transform, tolerance)
    lines = iter(np.split(moved, begins[1:]))
    placed = [
        replace(one, parts=tuple(tuple(next(lines) for _ in part) for part in one.parts)) for one in features
    ]
    counts = np.array([sum(map(len, one.parts)) for one in features])
    filled = np.flatnonzero(counts)
    firsts = begins[(np.cumsum(counts) - counts)[filled]]
    bounds[filled, :2] = np.minimum.reduceat(moved, firsts)
    bounds[filled, 2:] = np.maximum.reduceat(moved, firsts)
    return _OnMap(features=placed, bounds=bounds)


def _in_pixels(picture: _Picture, on_map: _OnMap, *, by_place: bool) -> list[Feature]:
    """Return features on the pixels of a georeferenced picture; with `by_place`, those that may meet it."""
    from halofeed.prep.geometry.map_coordinates import is_geographic, map_to_pixels

    place = picture.place
    assert place is not None
    xmin, ymin, xmax, ymax = picture.map_extent
    turns = np.zeros(len(on_map.features))
    # Longitudes of one place may differ by 360 degrees.
    if place.crs and is_geographic(place.crs):
        middles = (on_map.bounds[:, 0] + on_map.bounds[:, 2]) / 2
        turns = np.nan_to_num(360 * np.round(((xmin + xmax) / 2 - middles) / 360), posinf=0, neginf=0)
    low, high = on_map.bounds[:, :2], on_map.bounds[:, 2:]
    near = (
        (low[:, 0] + turns <= xmax)
        & (high[:, 0] + turns >= xmin)
        & (low[:, 1] <= ymax)
        & (high[:, 1] >= ymin)
    )
    chosen = np.flatnonzero(near) if by_place else np.arange(len(near))

    def placed(feature: Feature, turn: float) -> Feature:
        parts = tuple(
            tuple(map_to_pixels(place, ring + np.array([turn, 0.0]))[:-1] for ring in part)
            for part in feature.parts
        )
        return replace(feature, parts=parts)

    return [placed(on_map.features[at], float(turns[at])) for at in chosen.tolist()]


def _rings(feature: Feature) -> Iterator[Ring]:
    return (ring for part in feature.parts for ring in part)


def _closed(ring: Ring, *, swapped: bool, is_degrees: bool) -> Ring:
    """Return a ring that ends with its first point, with x before y."""
    closed = np.concatenate([ring, ring[:1]])
    ordered = closed[:, ::-1] if swapped else closed
    return _unwrapped(ordered) if is_degrees else ordered


def _unwrapped(ring: Ring) -> Ring:
    """Return a ring in degrees that crosses the antimeridian without a jump from 180 to -180."""
    x = ring[:, 0]
    # RFC 7946, section 3.1.9: polygons should be cut there; a ring over half of the globe was not.
    if x.max() - x.min() <= 180:
        return ring
    return np.stack([x - 360 * np.round((x - x[0]) / 360), ring[:, 1]], axis=1)


def _checked(located: Sequence[Feature], picture: _Picture, found: _Found) -> list[Feature]:
    """Return the features that belong to a picture; raise SourceError if those of its own file all lie elsewhere."""
    assert picture.size is not None
    on_picture = [one for one in located if one.fault is not None or _meets(one, picture.size)]
    if not found.by_place:
        usable = [one for one in located if one.fault is None]
        if usable and not any(one.fault is None for one in on_picture):
            raise SourceError(
                "annotation",
                "no feature lies on the picture",
                f"{picture.path}: {_extent(found.file.extent)}",
            )
        return list(located)
    # A feature without a geometry belongs to no place.
    return [one for one in on_picture if one.fault is None]


def _with_unplaced(listed: Sequence[SourceExample], placed: Sequence[FeatureFile]) -> list[SourceExample]:
    """Return the examples; the first with objects lists the features without an area of files of many pictures."""
    faults = [
        (one.fault[0], f"{file.path}: {one.fault[1]}")
        for file in placed
        for one in file.features
        if one.fault
    ]
    # Points and features without a geometry are on no picture, but a user should see that they are left out.
    at = next((number for number, one in enumerate(listed) if one.boxes), None)
    if not faults or at is None:
        return list(listed)
    first = replace(listed[at], bad_objects=(*listed[at].bad_objects, *faults))
    return [*listed[:at], first, *listed[at + 1 :]]


def _check_pixels(picture: _Picture, found: _Found) -> None:
    """Raise SourceError unless all features may be in pixels of a picture without a georeference."""
    assert picture.size is not None
    height, width = picture.size
    points = [ring for one in found.features for ring in _rings(one)]
    if not points:
        return
    joined = np.concatenate(points)
    (xmin, ymin), (xmax, ymax) = joined.min(axis=0), joined.max(axis=0)
    fits = min(xmin, ymin) >= -1 and xmax <= width + 1 and ymax <= height + 1
    # Degrees lie inside of any picture too, and span less than a pixel.
    largest = max(float(np.ptp(ring, axis=0).max()) for ring in points)
    if found.file.crs is None and fits and largest >= 1:
        return
    raise SourceError(
        "annotation",
        "picture has no georeference",
        f"{picture.path}: {width} x {height} pixels, features are at {_extent((xmin, ymin, xmax, ymax))}; write a "
        "world file and a .prj beside it, name the GeoTIFF with --images, or use --coordinates pixels",
    )


def _meets(feature: Feature, size: tuple[int, int]) -> bool:
    """Return whether a feature shares an area with a picture of (height, width)."""
    area = 0.0
    for outer, *holes in feature.parts:
        if not np.isfinite(outer).all():
            return False
        # Most features lie inside their picture; a polygon has an area beside its holes.
        if (outer >= 0).all() and (outer <= size[::-1]).all():
            return True
        area += _area_inside(outer, size) - sum(_area_inside(hole, size) for hole in holes)
    return area > 1e-6


def _area_inside(ring: Ring, size: tuple[int, int]) -> float:
    """Return the area of a ring inside a picture (Sutherland and Hodgman 1974: added border lines have no area)."""
    low, high = ring.min(axis=0), ring.max(axis=0)
    limits = np.array([size[1], size[0]], np.float64)
    if (high <= 0).any() or (low >= limits).any():
        return 0.0
    for axis in (0, 1):
        for limit, sign in ((0.0, 1.0), (limits[axis], -1.0)):
            ring = _cut(ring, axis, limit, sign)
            if len(ring) < 3:
                return 0.0
    return polygon_area(ring.reshape(-1).tolist())


def _cut(ring: Ring, axis: int, limit: float, sign: float) -> Ring:
    """Return the part of a ring on one side of a line."""
    distance = sign * (ring[:, axis] - limit)
    if (distance >= 0).all():
        return ring
    following, after = np.roll(ring, -1, axis=0), np.roll(distance, -1)
    kept: list[NDArray[np.float64]] = []
    for point, other, here, there in zip(ring, following, distance, after, strict=True):
        if here >= 0:
            kept.append(point)
        if (here >= 0) != (there >= 0):
            kept.append(point + (other - point) * (here / (here - there)))
    return np.array(kept).reshape(-1, 2)


# Objects --------------------------------------------------------------------------------------------------


def _box_of(feature: Feature, label: str, size: tuple[int, int], options: LayoutOptions) -> Box:
    """Return the box around a feature in pixels, with its mask if the options ask for one."""
    what = f"feature {feature.number}"

    def part_of(part: Sequence[Ring]) -> Box:
        outer, *holes = part
        if not np.isfinite(outer).all():
            raise SourceError("annotation", "number is not finite", what)
        box = polygon_of(label, outer.reshape(-1).tolist(), what, options)
        lost = math.fsum(polygon_area(hole.reshape(-1).tolist()) for hole in holes)
        return box if box.area is None or not holes else replace(box, area=max(0.0, box.area - lost))

    box = unite_parts(feature.parts, part_of, options)
    # COCO's polygons are a union and have no holes; run lengths have the pixels.
    if options.masks and any(len(part) > 1 for part in feature.parts):
        return replace(box, mask=_run_lengths(feature.parts, size))
    return box


def _run_lengths(parts: Iterable[Sequence[Ring]], size: tuple[int, int]) -> dict[str, Any]:
    """Return COCO run lengths of polygons with holes, drawn by columns so that few pixels are held at a time."""
    from halofeed.prep.voxels.masks import fill_polygons

    height, width = size
    flat = [[ring.reshape(-1).tolist() for ring in part] for part in parts]
    points = np.concatenate([part[0] for part in parts])
    first, last = (int(np.clip(edge, 0, width)) for edge in (points[:, 0].min(), points[:, 0].max() + 1))
    rows = np.arange(height)
    step = max(1, _RUN_PIXELS // height)
    changes = [np.zeros(0, np.int64)]
    before = False
    for left in range(first, last, step):
        columns = np.arange(left, min(left + step, last))
        inside = np.zeros((height, len(columns)), np.bool_)
        for outer, *holes in flat:
            drawn = fill_polygons([outer], size, (rows, columns)).astype(np.bool_)
            for hole in holes:
                drawn &= fill_polygons([hole], size, (rows, columns)) == 0
            inside |= drawn
        down = inside.T.reshape(-1)
        changes.append(np.flatnonzero(down != np.concatenate([[before], down[:-1]])) + left * height)
        before = bool(down[-1]) if len(down) else before
    end = [last * height] if before and last < width else []
    edges = np.concatenate([[0], *changes, end, [height * width]]).astype(np.int64)
    return {"size": [height, width], "counts": np.diff(edges).tolist()}


def _extent(extent: Sequence[float] | None) -> str:
    if extent is None:
        return "nothing"
    xmin, ymin, xmax, ymax = extent
    return f"x from {xmin:.8g} to {xmax:.8g}, y from {ymin:.8g} to {ymax:.8g}"
