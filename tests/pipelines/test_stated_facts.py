"""Spacing, laterality, view and body part of DICOM pictures: in records, batches, exports, and absent where unknown."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import ComputedRadiographyImageStorage, DigitalMammographyXRayImageStorageForPresentation

from halofeed.loader import Loader
from halofeed.loader.augment.table import (
    ElasticDeformation,
    FlipLeftRight,
    MixUp,
    RandomCrop,
    RandomResizedCrop,
    RandomRotation,
    Rotate90,
    ScaleJitter,
)
from halofeed.schemas.kinds import STATED_FIELDS
from halofeed.schemas.manifest import Manifest
from halofeed.system.errors import UsageError
from tests.support.conversions import halofeed_here, read_all, run_convert
from tests.support.dicom_writer import image_dataset, save

SPACINGS = {"a": (0.2, 0.4), "b": (0.25, 0.25), "c": (0.07, 0.1), "none": None}
"""Spacing of the pixels of each picture in its file, by the name of the file."""
SIZES = {"a": (60, 90), "b": (48, 40), "c": (33, 77), "none": (50, 50)}
WORDS = {"a": ("L", "MLO"), "b": ("R", ""), "c": ("", "CC"), "none": ("", "")}


def write(root: Path) -> None:
    for at, (name, size) in enumerate(SIZES.items()):
        pixels = np.random.default_rng(at).integers(0, 4000, size).astype(np.uint16)
        laterality, view = WORDS[name]
        more = {
            "SOPClassUID": DigitalMammographyXRayImageStorageForPresentation,
            "PixelSpacing": list(SPACINGS[name] or ()) or None,
        }
        more |= {"ImageLaterality": laterality or None, "ViewPosition": view or None}
        options = {"position": None, "orientation": None, "rescale": None}
        dataset = image_dataset(pixels, modality="MG", bits_stored=12, patient=name, more=more, **options)
        save(dataset, root / "xy"[at % 2] / f"{name}.dcm")


FORMS = {
    "stretched": {"height": 40, "width": 32},
    "padded": {"resize": "keep-aspect", "min_dimension": 32, "max_dimension": 48, "pad": True},
    "own sizes": {"resize": "keep-aspect", "min_dimension": 32, "max_dimension": 48, "encoding": "png"},
    "unchanged": {"resize": "none", "encoding": "png"},
    "planes": {"height": 40, "width": 32, "channels": 3, "encoding": "yuv420"},
    "packed": {"height": 40, "width": 32, "encoding": "packed"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A data set in each of `FORMS`."""
    root = tmp_path_factory.mktemp("stated")
    write(root / "s")
    found = {}
    for name, options in FORMS.items():
        plain = {"channels": 1, "layout": "folders"}
        found[name] = Path(run_convert(root / "s", root / name, **plain | options).folder)
    return found


def name_of(key: str) -> str:
    return Path(key).stem


def expected_spacing(key: str, transform: np.ndarray) -> np.ndarray:
    """The length in millimeters of a step along the rows and the columns, by the transform to pixels of the file."""
    source_mm = SPACINGS[name_of(key)] or (np.nan, np.nan)
    return np.linalg.norm(transform[:, :2] * np.array(source_mm)[:, None], axis=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_has_the_spacing_of_its_stored_pixels(folders, form):
    records = read_all(folders[form], ["train"])
    for record in records.values():
        name = name_of(bytes(record["image/filename"][0]).decode())
        if SPACINGS[name] is None:
            assert not {field.keys[0] for field in STATED_FIELDS.values()} & record.keys()
            continue
        stored = [record[f"image/unpadded/{side}"][0] for side in ("height", "width")]
        extent_mm = np.array(SIZES[name]) * SPACINGS[name]
        np.testing.assert_allclose(np.array(record["image/spacing_mm"]) * stored, extent_mm, rtol=1e-6)
    assert len(records) == len(SIZES)
    assert halofeed_here("verify", folders[form]).returncode == 0


CHAINS = {
    "none": (),
    "flips": (FlipLeftRight(),),
    "crops": (FlipLeftRight(), RandomCrop(24, 24)),
    "quarter turns": (RandomCrop(24, 24), Rotate90()),
    "zooms": (ScaleJitter(24, 24, scales=(0.5, 2.0)),),
    "resized crops": (RandomResizedCrop(20, 28),),
    "turns of zooms": (RandomResizedCrop(28, 28), Rotate90(), RandomRotation(30.0), ScaleJitter(20, 20)),
}


@pytest.mark.parametrize("form", ["stretched", "padded", "own sizes", "packed"])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_spacing_of_a_batch_is_that_of_the_pixels_that_it_shows(folders, form, chain):
    include = ["spacing_mm", "transform", "key"]
    loader = Loader(folders[form], batch_size=4, seed=5, augment=CHAINS[chain], include=include)
    for step in range(3):  # the first epoch reads records one by one, and the others their cached values
        batch = loader.batch(step)
        for key, transform, found in zip(batch["key"], batch["transform"], batch["spacing_mm"], strict=True):
            np.testing.assert_allclose(found, expected_spacing(key, transform), rtol=1e-5)


def test_spacing_without_text_is_read_from_caches_and_equal(folders):
    chain = (FlipLeftRight(), RandomCrop(24, 24))
    options = {"batch_size": 4, "seed": 5, "augment": chain}
    loader = Loader(folders["stretched"], include=["spacing_mm"], **options)
    slow = Loader(folders["stretched"], include=["spacing_mm", "key"], **options)
    for step in range(3):
        np.testing.assert_array_equal(loader.batch(step)["spacing_mm"], slow.batch(step)["spacing_mm"])


def test_single_records_and_records_in_memory_have_the_same_spacing(folders):
    include = ["spacing_mm", "transform", "key"]
    plain = Loader(folders["padded"], batch_size=4, training=False, include=include)
    in_memory = Loader(folders["padded"], batch_size=4, training=False, include=include, cache="memory")
    for row in range(4):
        one = plain.records[row]
        np.testing.assert_allclose(
            one["spacing_mm"], expected_spacing(one["key"], one["transform"]), rtol=1e-5
        )
    for _ in range(2):
        np.testing.assert_array_equal(in_memory.batch(0)["spacing_mm"], plain.batch(0)["spacing_mm"])


def test_words_are_text_and_empty_where_the_file_states_none(folders):
    loader = Loader(folders["padded"], batch_size=4, include=["laterality", "view", "key"])
    batch = loader.batch(0)
    found = {
        name_of(key): words
        for key, *words in zip(batch["key"], batch["laterality"], batch["view"], strict=True)
    }
    assert found == {name: list(words) for name, words in WORDS.items()}


def test_bent_pictures_have_no_spacing(folders):
    with pytest.raises(UsageError, match="spacing_mm"):
        Loader(folders["stretched"], batch_size=4, augment=(ElasticDeformation(),), include=["spacing_mm"])


def test_augmentations_do_not_depend_on_whether_the_spacing_is_loaded(folders):
    options = {"batch_size": 4, "seed": 5, "augment": (RandomRotation(30.0),)}
    plain = Loader(folders["stretched"], **options).batch(0)
    spaced = Loader(folders["stretched"], include=["spacing_mm"], **options).batch(0)
    np.testing.assert_array_equal(plain["image"], spaced["image"])


def test_streams_and_meshes_give_the_same_spacing(folders):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    import jax

    from halofeed.schemas.partition import Partition
    from halofeed.trainer.mesh import make_mesh

    options = {"batch_size": 4, "seed": 9, "include": ["spacing_mm"], "augment": CHAINS["zooms"]}
    expected = [Loader(folders["stretched"], **options).batch(step)["spacing_mm"] for step in range(2)]
    stream = Loader(folders["stretched"], **options).dataset(repeat=True)
    assert stream.element_spec["spacing_mm"] == tf.TensorSpec((4, 2), tf.float32)
    for ours, element in zip(expected, stream.take(2).as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(element["spacing_mm"], ours)
    partition = Partition(cores_per_replica=1, dims={"image": (1, 1, 1, 1)})
    on_mesh = Loader(folders["stretched"], **options).on_mesh(
        make_mesh(1, devices=jax.devices()[:1]), partition
    )
    for ours, batch in zip(expected, on_mesh, strict=False):
        np.testing.assert_array_equal(np.asarray(batch["spacing_mm"]), ours)


def test_a_data_set_whose_sources_state_nothing_has_no_field_for_it(tmp_path):
    for name in "ab":
        pixels = np.random.default_rng(0).integers(0, 256, (40, 30)).astype(np.uint8)
        options = {
            "position": None,
            "orientation": None,
            "rescale": None,
            "more": {"PixelSpacing": None, "SOPClassUID": ComputedRadiographyImageStorage},
        }
        save(image_dataset(pixels, modality="CR", **options), tmp_path / "s" / name / "1.dcm")
    options = {"layout": "folders", "height": 20, "width": 20, "channels": 1}
    folder = Path(run_convert(tmp_path / "s", tmp_path / "out", **options).folder)
    document = json.loads((folder / "manifest.json").read_text())
    assert "stated" not in document["splits"]["train"]["statistics"]
    assert not {field["name"] for field in document["fields"]} & STATED_FIELDS.keys()
    with pytest.raises(UsageError, match="spacing_mm"):
        Loader(folder, batch_size=1, include=["spacing_mm"])


def test_verify_reports_a_spacing_that_is_none(folders, tmp_path):
    from halofeed.inspection.verify_record import record_problems
    from halofeed.schemas.manifest import read_manifest

    manifest: Manifest = read_manifest(folders["stretched"])
    record = next(
        one for one in read_all(folders["stretched"], ["train"]).values() if "image/spacing_mm" in one
    )
    for wrong, said in (([0.1, np.nan], "above 0"), ([0.0, 1.0], "above 0"), ([0.1], "2 values")):
        changed = {**record, "image/spacing_mm": np.array(wrong, np.float32)}
        assert any(said in problem for problem in record_problems(changed, manifest)), wrong


def test_inspect_names_what_the_sources_state(folders):
    about = halofeed_here("inspect", folders["stretched"]).stdout
    assert "laterality in 2, spacing_mm in 3, view in 2 of 4 records" in about
    shown = [
        halofeed_here("inspect", folders["stretched"], "--record", f"train:{at}").stdout for at in range(4)
    ]
    assert sum("spacing not stated" in text for text in shown) == 1
    assert any("laterality L, view MLO" in text and "spacing 0.3 x 1.125 mm" in text for text in shown)


def test_exports_hold_what_the_sources_state(folders, tmp_path):
    from pyarrow import parquet

    folder = folders["stretched"]
    assert halofeed_here("export", folder, "--to", "parquet", "--out", tmp_path / "p").returncode == 0
    (file,) = (tmp_path / "p/data").iterdir()
    rows = parquet.read_table(file).to_pylist()
    found = {(row["laterality"] or "", row["view"] or ""): row["spacing_mm"] for row in rows}
    assert found["L", "MLO"] == pytest.approx([0.2 * 60 / 40, 0.4 * 90 / 32]) and found["", ""] is None


def test_coco_and_dota_have_the_spacing_of_the_exported_pixels(tmp_path):
    write(tmp_path / "s")
    lines = ["filename,class,xmin,ymin,xmax,ymax", *(f"{name}.dcm,m,2,2,9,9" for name in SIZES)]
    for path in (tmp_path / "s").rglob("*.dcm"):
        path.rename(tmp_path / "s" / path.name)
    (tmp_path / "s/t.csv").write_text("\n".join(lines))
    options = {"layout": "csv", "height": 24, "width": 20, "channels": 1}
    folder = Path(run_convert(tmp_path / "s", tmp_path / "out", **options).folder)
    with pytest.raises(UsageError, match="spacing_mm"):
        Loader(folder, batch_size=4, augment=(MixUp(),), include=["spacing_mm"])
    for grid, scale in (("stored", (48 / 24, 40 / 20)), ("source", (1, 1))):
        out = tmp_path / grid
        words = ["--images", tmp_path / "s"] if grid == "source" else []
        run = halofeed_here("export", folder, "--to", "coco", "--out", out, "--grid", grid, *words)
        assert run.returncode == 0, run.stderr
        images = json.loads(next(out.rglob("instances_*.json")).read_text())["images"]
        spacings = {name_of(image["file_name"]): image.get("spacing_mm") for image in images}
        assert spacings["b"] == pytest.approx([0.25 * scale[0], 0.25 * scale[1]])
        assert spacings["none"] is None
    assert halofeed_here("export", folder, "--to", "dota", "--out", tmp_path / "dota").returncode == 0
    texts = {path.stem: path.read_text() for path in (tmp_path / "dota").rglob("*.txt")}
    assert "gsd:0.0005\n" in texts["b"] and "gsd:null\n" in texts["a"] and "gsd:null\n" in texts["none"]
