"""Labels of tiles are cuts of the label that the plain conversion makes, also where a label is read in bands."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert import label_rows
from halofeed.prep.convert.label_image import label_on_grid, read_picture_labels
from halofeed.prep.convert.tallies import PictureFacts
from halofeed.prep.convert.tile_labels import LabelsOfTiles
from halofeed.prep.convert.tile_tasks import TiledPicture
from halofeed.prep.formats.picture import DecodedImage, sample_bands
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles, scale_size
from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import source_files
from halofeed.schemas import keys
from halofeed.system.memory import no_memory_limit

SIZE = (70, 90)
CLASSES = LabelMap(entries=tuple((value, f"c{value}") for value in range(7)), first_id=0)


def drawn(seed: int = 0, classes: int = 7) -> npt.NDArray[np.uint8]:
    """Return a label of blobs."""
    small = np.random.default_rng(seed).integers(0, classes, (14, 18), dtype=np.uint8)
    return np.kron(small, np.ones((5, 5), np.uint8))


def save_palette(path: Path, label: npt.NDArray[np.uint8]) -> None:
    image = Image.fromarray(label, "P")
    image.putpalette(np.random.default_rng(1).integers(0, 255, 768, dtype=np.uint8).tobytes())
    image.save(path)


FORMS = {
    "gray.png": lambda path, label: Image.fromarray(label).save(path),
    "palette.png": save_palette,
    "few_bits.png": lambda path, label: save_palette(path, label % 4),
    "deep.png": lambda path, label: Image.fromarray(label.astype(np.uint16)).save(path),
    "color.png": lambda path, label: Image.fromarray(np.stack([label] * 3, -1)).save(path),
    "strips.tif": lambda path, label: tifffile.imwrite(path, label, rowsperstrip=7, compression="deflate"),
    "plain.tif": lambda path, label: tifffile.imwrite(path, label),
    "tiles.tif": lambda path, label: tifffile.imwrite(
        path, label, tile=(16, 16), compression="lzw", bigtiff=True
    ),
}


@pytest.fixture
def in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let labels of any size be read in bands of a few rows."""
    monkeypatch.setattr(label_rows, "HELD_PIXELS", 2000)
    monkeypatch.setattr(sample_bands, "_BAND_BYTES", 800)


def tiled(path: str, orientation: int = 1, scale: float = 1.0, **more: Any) -> TiledPicture:
    recipe = Recipe(fit="tiles", height=24, width=32, tile_overlap=(4, 8), scale=scale, task="segmentation")
    displayed = displayed_size(orientation, SIZE)
    tiles = plan_picture_tiles(displayed, (24, 32), (4, 8), scale_size(displayed, (scale, scale)))
    image = DecodedImage(
        pixels=np.empty((0, 0, 1), np.uint8), orientation=orientation, stored_size=SIZE, scale=1, notes=()
    )
    return TiledPicture(
        recipe=recipe,
        labels=more.pop("labels", CLASSES),
        reference=SourceExample(source="a.png", key="a.png", mask=path or None, **more),
        image=image,
        tiles=tiles,
        grid=None,
        orientation=orientation,
        warning=None,
    )


def whole_label(picture: TiledPicture, root: Path) -> npt.NDArray[Any]:
    """Return the label as the plain conversion resizes it."""
    label, _, _ = read_picture_labels(
        picture.recipe, picture.labels, picture.reference, source_files(str(root))
    )
    assert label is not None
    return label_on_grid(label, picture.image.orientation, picture.image, picture.whole)


def check_tiles(picture: TiledPicture, root: Path) -> list[PictureFacts]:
    expected = whole_label(picture, root)
    labels = LabelsOfTiles(picture, source_files(str(root)), no_memory_limit, 1)
    found = []
    order = sorted(picture.tiles, key=lambda tile: tile.plan.origin)
    if picture.image.orientation == 3:  # tiles come in the order of the file's rows
        order.reverse()
    for tile in order:
        features: dict[str, Any] = {}
        facts = PictureFacts(
            pixel_sums=None,  # type: ignore[arg-type]
            stored_size=tile.plan.output_size,
            picture_size=tile.plan.resized_size,
            source_size=tile.plan.source_size,
            labels=[],
            boxes=None,
        )
        labels.add(tile, labels.cut(tile), features, facts)
        stored = np.frombuffer(features[keys.LABEL], np.uint8).reshape(24, 32)
        (top, left), (height, width) = tile.plan.origin, tile.plan.resized_size
        assert np.array_equal(stored[:height, :width], expected[top : top + height, left : left + width])
        found.append(facts)
    assert labels.finish(found[-1]) == ()
    ledger = found[-1].ledger
    counts = np.bincount(expected.reshape(-1))
    assert ledger.counts["vanished_structures"] == 0
    sizes = ledger.histograms["structure_sizes_after"]
    assert sum(sizes.values()) == np.count_nonzero(counts[1:])
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_labels_of_tiles_are_cuts_of_the_complete_label_in_every_form(tmp_path, in_bands, form, scale):
    FORMS[form](tmp_path / form, drawn())
    picture = tiled(form, scale=scale)
    files = source_files(str(tmp_path))
    opened = label_rows.open_label_rows(
        picture.recipe, picture.labels, picture.reference, files, no_memory_limit
    )
    assert isinstance(opened, label_rows.BandRows)
    check_tiles(picture, tmp_path)


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("held", [False, True])
def test_labels_follow_the_orientation_of_their_picture(tmp_path, monkeypatch, orientation, held):
    if not held:
        monkeypatch.setattr(label_rows, "HELD_PIXELS", 1 << 14)
    FORMS["gray.png"](tmp_path / "gray.png", drawn())
    check_tiles(tiled("gray.png", orientation, 0.7), tmp_path)


def test_a_label_of_another_size_is_refused(tmp_path):
    Image.fromarray(drawn()[:60]).save(tmp_path / "a_label.png")
    with pytest.raises(SourceError, match="of another size than the picture"):
        LabelsOfTiles(tiled("a_label.png"), source_files(str(tmp_path)), no_memory_limit, 1)


@pytest.mark.parametrize("form", FORMS)
def test_bands_refuse_what_the_complete_label_refuses(tmp_path, in_bands, form):
    label = drawn()
    label[66, 80] = 3
    FORMS[form](tmp_path / form, label)
    few = LabelMap(entries=((0, "background"), (1, "a"), (2, "b")), first_id=0)
    picture = tiled(form, labels=few)
    files = source_files(str(tmp_path))
    with pytest.raises(SourceError) as complete:
        read_picture_labels(picture.recipe, few, picture.reference, files)
    with pytest.raises(SourceError) as banded:
        LabelsOfTiles(picture, files, no_memory_limit, 1)
    assert (complete.value.reason, complete.value.detail) == (banded.value.reason, banded.value.detail)


def test_blended_edges_are_refused_in_bands_as_in_the_complete_label(tmp_path, in_bands):
    blended = Image.fromarray(drawn() * 30).resize((180, 140), Image.Resampling.BILINEAR).resize((90, 70))
    blended.save(tmp_path / "a.png")
    is_open = LabelMap(entries=tuple((v, str(v)) for v in range(256)), first_id=0, is_open=True)
    picture, files = tiled("a.png", labels=is_open), source_files(str(tmp_path))
    with pytest.raises(SourceError) as complete:
        read_picture_labels(picture.recipe, is_open, picture.reference, files)
    with pytest.raises(SourceError) as banded:
        LabelsOfTiles(picture, files, no_memory_limit, 1)
    assert complete.value.detail == banded.value.detail


def test_masks_of_each_class_are_merged_in_bands(tmp_path, in_bands):
    label = drawn()
    for value in (1, 2):
        Image.fromarray((label == value).astype(np.uint8) * 255).save(tmp_path / f"m{value}.png")
    picture = tiled("", class_masks=(("c1", "m1.png"), ("c2", "m2.png")))
    check_tiles(picture, tmp_path)


def test_a_picture_without_a_label_has_zeros_and_is_not_called_empty(tmp_path):
    picture = tiled("")
    labels = LabelsOfTiles(picture, source_files(str(tmp_path)), no_memory_limit, 1)
    tile, features = picture.tiles.tile(0), {}
    facts = PictureFacts(
        pixel_sums=None,  # type: ignore[arg-type]
        stored_size=(24, 32),
        picture_size=(24, 32),
        source_size=SIZE,
        labels=[],
        boxes=None,
    )
    assert labels.add(tile, labels.cut(tile), features, facts)
    assert not np.frombuffer(features[keys.LABEL], np.uint8).any() and features[keys.LABELLED] == [0]
