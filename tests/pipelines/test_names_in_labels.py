"""Label files that name their values are read by these names, or refused with a cure that works."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.errors import AnnotationsError, JobError
from halofeed.prep.formats.volume.volume_file import nifti_segments
from tests.pipelines.test_volume_labels import convert
from tests.support.small_scans import AFFINE, image, mask, msd_document, write_json
from tests.support.text_volume_writer import write_nrrd
from tests.support.volume_support import by_name, findings, rejected, save_nifti, write_table

Names = dict[int, str]
IN_RAS = {"space": "right-anterior-superior", "space_origin": "(-5,7,11)"}
IN_RAS["space_directions"] = "(1.5,0,0) (0,2,0) (0,0,3)"
LIVER, SPLEEN = {1: "liver", 2: "spleen"}, {1: "spleen", 2: "liver"}


def slicer(path: Path, values: NDArray[Any], names: Names, early: bool = False) -> None:
    """A .seg.nrrd; of several layers where `values` has four axes, the first of them the layer."""
    segments = ""
    for number, (value, name) in enumerate(names.items()):
        segments += f"Segment{number}_Name:={name}\n"
        if not early:
            segments += f"Segment{number}_LabelValue:={value % 100}\nSegment{number}_Layer:={value // 100}\n"
    fields: dict[str, str | None] = dict(IN_RAS)
    if values.ndim == 4:
        fields["space_directions"] = f"none {IN_RAS['space_directions']}"
        values = np.moveaxis(values, 0, -1)
    written = write_nrrd(np.ascontiguousarray(values.T), **fields)
    path.write_bytes(written.replace(b"key:=value\n", segments.encode()))


def total_segmentator(path: Path, values: NDArray[Any], names: Names) -> None:
    entry = '<Label Key="{}" Red="1"><![CDATA[{}]]></Label>'
    entries = "".join(entry.format(*one) for one in names.items())
    extended(path, values, f"<CaretExtension><LabelTable>{entries}</LabelTable></CaretExtension>")


def afni(path: Path, values: NDArray[Any], names: Names) -> None:
    entries = "".join(f"&quot;{value}&quot; &quot;{name}&quot;&#x0a;" for value, name in names.items())
    extended(path, values, f'<AFNI_atr atr_name="VALUE_LABEL_DTABLE" >"{entries}"</AFNI_atr>')


def extended(path: Path, values: NDArray[Any], text: str) -> None:
    save_nifti(path, values, AFFINE)
    volume: Any = nibabel.load(path, mmap=False)
    volume.header.extensions.append(nibabel.nifti1.Nifti1Extension(0, text.encode()))
    nibabel.save(volume, path)


WRITERS = {"a.seg.nrrd": slicer, "a.nii.gz": total_segmentator, "a.nii": afni}


def table_of(root: Path, name: str, *labels: tuple[NDArray[Any], Names | None]) -> Path:
    rows = []
    for number, (values, names) in enumerate(labels):
        save_nifti(root / f"{number}.nii", image(number), AFFINE)
        label = f"{number}_{name}" if names is not None else f"{number}_plain.nii"
        if names is None:
            save_nifti(root / label, values, AFFINE)
        else:
            WRITERS[name](root / label, values, names)
        rows.append((number, f"{number}.nii", label))
    return write_table(root, rows)


def labels_of(done: Any) -> list[NDArray[Any]]:
    return [record.label for _, record in sorted(by_name(done).items())]


def same(done: Any, *expected: NDArray[Any]) -> bool:
    return all(np.array_equal(label, values) for label, values in zip(labels_of(done), expected, strict=True))


@pytest.mark.parametrize("name", WRITERS)
def test_values_are_read_by_the_names_of_their_file(tmp_path: Path, name: str) -> None:
    other = np.array([0, 2, 1], np.uint8)[mask()]
    source = table_of(tmp_path / "s", name, (mask(), LIVER), (other, SPLEEN))
    done = convert(source, tmp_path / "o")
    assert done.manifest.labels == {0: "background", **LIVER}
    assert all(np.array_equal(label, mask()) for label in labels_of(done))
    done = convert(source, tmp_path / "p", classes=("spleen",))
    assert all(np.array_equal(label, mask() == 2) for label in labels_of(done))
    (tmp_path / "map.json").write_text('{"spleen": 1, "liver": 300}')
    done = convert(source, tmp_path / "q", label_map=str(tmp_path / "map.json"))
    assert all(np.array_equal(label, np.array([0, 300, 1])[mask()]) for label in labels_of(done))
    done = convert(source, tmp_path / "t", map_classes=("liver=organ", "spleen=organ"))
    assert all(np.array_equal(label > 0, mask() > 0) for label in labels_of(done))


def test_names_that_agree_keep_the_values_and_files_without_names_are_taken_by_value(tmp_path: Path) -> None:
    source = table_of(tmp_path / "s", "a.seg.nrrd", (mask(), LIVER), (mask(1, 4), None))
    done = convert(source, tmp_path / "o")
    assert done.manifest.labels == {0: "background", **LIVER, 3: "3"}
    assert same(done, mask(), mask(1, 4))
    names = {1: "Segment_1", 2: "Segment_2"}
    generated = table_of(tmp_path / "g", "a.seg.nrrd", (mask(), names), (mask(1), None))
    assert convert(generated, tmp_path / "p").manifest.labels == {0: "background", 1: "1", 2: "2"}


def test_names_that_disagree_beside_files_without_names_follow_a_label_map(tmp_path: Path) -> None:
    source = table_of(tmp_path / "s", "a.nii.gz", (mask(), LIVER), (mask(), SPLEEN), (mask(), None))
    (tmp_path / "map.txt").write_text("background\nliver\nspleen\n")
    done = convert(source, tmp_path / "p", label_map=str(tmp_path / "map.txt"))
    assert same(done, mask(), np.array([0, 2, 1])[mask()], mask())


def test_values_without_a_name_and_names_twice_are_refused(tmp_path: Path) -> None:
    source = table_of(tmp_path / "s", "a.seg.nrrd", (mask(0, 4), LIVER), (mask(), LIVER))
    done = convert(source, tmp_path / "o")
    reason, detail = rejected(done)["0.nii"][1:]
    assert reason == "label has values that it does not name" and ": 3;" in detail, detail
    assert "--map-classes 3=background" in detail
    done = convert(source, tmp_path / "p", map_classes=("3=background",))
    assert np.array_equal(labels_of(done)[0], mask(0, 4) % 3)
    twice = table_of(tmp_path / "t", "a.seg.nrrd", (mask(), {1: "liver", 2: "liver"}))
    with pytest.raises(JobError, match=r"one name to several values.*'liver' has values 1, 2; rename"):
        convert(twice, tmp_path / "q")


def test_names_of_a_file_and_of_dataset_json_agree_or_the_file_is_rejected(tmp_path: Path) -> None:
    cases = {"a.nii.gz": LIVER, "b.nii.gz": SPLEEN, "c.nii.gz": {1: "Liver ", 2: "Milz"}}
    for case, names in cases.items():
        save_nifti(tmp_path / "s/imagesTr" / case, image(), AFFINE)
        (tmp_path / "s/labelsTr").mkdir(exist_ok=True)
        total_segmentator(tmp_path / "s/labelsTr" / case, mask(), names)
    write_json(tmp_path / "s", msd_document(*cases))
    done = convert(tmp_path / "s", tmp_path / "o", layout="msd")
    ((reason, detail),) = [one[1:] for one in rejected(done).values()]
    assert reason == "names and values of the label disagree" and "1 is 'spleen' in the file" in detail
    assert len(by_name(done)) == 2 and all(np.array_equal(label, mask()) for label in labels_of(done))
    (tmp_path / "map.txt").write_text("background\nliver\nspleen\nMilz\nLiver \n")
    done = convert(tmp_path / "s", tmp_path / "p", layout="msd", label_map=str(tmp_path / "map.txt"))
    assert np.array_equal(labels_of(done)[1], np.array([0, 2, 1])[mask()])


def test_segments_in_several_layers_are_classes_that_may_overlap(tmp_path: Path) -> None:
    layers = np.stack([mask(), (mask(1) > 1).astype(np.uint8)])
    names = {1: "liver", 2: "kidney", 101: "tumor"}
    source = table_of(tmp_path / "s", "a.seg.nrrd", (layers, names))
    done = convert(source, tmp_path / "p", class_overlap="channels")
    assert done.manifest.labels == {0: "background", 1: "liver", 2: "kidney", 3: "tumor"}
    (label,) = labels_of(done)
    assert np.array_equal(label, (mask() == 1) + 2 * (mask() == 2) + 4 * layers[1])
    (label,) = labels_of(convert(source, tmp_path / "q", class_overlap="last"))
    assert np.array_equal(label, np.where(layers[1], 3, mask()))
    early = np.stack([mask() == 1, mask() == 2]).astype(np.uint8)
    slicer(tmp_path / "s/0_a.seg.nrrd", early, LIVER, early=True)
    assert np.array_equal(labels_of(convert(source, tmp_path / "r"))[0], mask())


def test_a_mask_of_one_class_that_names_another_is_rejected(tmp_path: Path) -> None:
    for case in "ab":
        save_nifti(tmp_path / f"s/{case}/ct.nii.gz", image(), AFFINE)
        for number, organ in LIVER.items():
            named = {1: "spleen" if case == "b" else organ}
            values = (mask() == number).astype(np.uint8)
            total_segmentator(tmp_path / f"s/{case}/{organ}.nii.gz", values, named)
    patterns = {"image_pattern": "{id}/ct.nii.gz", "label_pattern": "{id}/{class}.nii.gz"}
    done = convert(tmp_path / "s", tmp_path / "o", layout="class-masks", **patterns)
    assert rejected(done)["b/ct.nii.gz"][1] == "names of the mask disagree" and len(by_name(done)) == 1
    assert findings(done) == {}


def test_hostile_label_tables_are_read_in_linear_time() -> None:
    """Regular expressions took 16 s for 56,000 bytes, and an extension has up to 16 MiB."""
    for text in (b"<Label ", b"<Label Key='1'>", b"<![CDATA["):
        start = bytes(348) + b"\1\0\0\0<LabelTable" + 200_000 * text
        assert nifti_segments(start, len(start), 348) == ()


KIDNEY = "SCT:64033007"
CONTENT = {
    "left kidney": "SCT^64033007^Kidney~SCT^7771000^Left",
    "right kidney": "SCT^64033007^Kidney~SCT^24028007^Right",
    "liver": "SCT^10200004^Liver~^^",
    "": "SCT^85756007^Tissue~^^",
}


def coded(
    path: Path, values: NDArray[Any], content: dict[int, str], name: str = "Segment_{}", auto: int = 1
) -> None:
    """A .seg.nrrd of Slicer whose segments have codes of their content, and names that Slicer made."""
    lines = [
        f"Segment{number}_Name:={name.format(value, what=what)}\n"
        f"Segment{number}_NameAutoGenerated:={auto}\nSegment{number}_LabelValue:={value}\n"
        f"Segment{number}_Layer:=0\nSegment{number}_Tags:=Segmentation.Status:inprogress|TerminologyEntry:"
        f"Segmentation category and type~SCT^123037004^Anatomical Structure~{CONTENT[what]}~Anatomic codes~^^~^^|\n"
        for number, (value, what) in enumerate(content.items())
    ]
    written = write_nrrd(np.ascontiguousarray(values.T), **IN_RAS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(written.replace(b"key:=value\n", "".join(lines).encode()))


def coded_source(root: Path, *contents: dict[int, str], **options: Any) -> Path:
    """Scans of one label, whose files give its values other contents."""
    rows = []
    for number, content in enumerate(contents):
        save_nifti(root / f"{number}.nii", image(number), AFFINE)
        coded(root / f"{number}.seg.nrrd", mask(0, 4), content, **options)
        rows.append((number, f"{number}.nii", f"{number}.seg.nrrd"))
    return write_table(root, rows)


FIRST = {1: "left kidney", 2: "right kidney", 3: "liver"}
SECOND = {3: "left kidney", 1: "right kidney", 2: "liver"}


@pytest.mark.parametrize("name", ["Segment_{}", "{what}", "{what} by Ann"])
@pytest.mark.parametrize("auto", [0, 1])
def test_segments_of_slicer_are_chosen_by_code_whatever_they_are_called(tmp_path, name, auto):
    source = coded_source(tmp_path / "s", FIRST, SECOND, name=name, auto=auto)
    values = mask(0, 4)
    done = convert(source, tmp_path / "a", classes=(KIDNEY,))
    assert done.manifest.labels == {0: "background", 1: KIDNEY}
    assert same(done, np.isin(values, [1, 2]), np.isin(values, [1, 3]))
    renamed = {
        "map_classes": (f"{KIDNEY}+SCT:7771000=left", "SCT:10200004=liver"),
        "classes": ("left", "liver"),
    }
    done = convert(source, tmp_path / "b", **renamed)
    assert done.manifest.labels == {0: "background", 1: "left", 2: "liver"}
    expected = [np.select([values == left, values == liver], [1, 2]) for left, liver in ((1, 3), (3, 2))]
    assert same(done, *expected)
    with pytest.raises(AnnotationsError, match=r"--classes: SCT:1: no such class.*SCT:10200004"):
        convert(source, tmp_path / "c", classes=("SCT:1",))


def test_a_name_that_slicer_made_from_the_content_is_a_name_and_a_number_is_none(tmp_path):
    values = mask(0, 4)
    named = coded_source(tmp_path / "a", FIRST, SECOND, name="{what}")
    done = convert(named, tmp_path / "o", classes=("liver",))
    assert same(done, values == 3, values == 2)
    numbered = coded_source(tmp_path / "b", FIRST, SECOND)
    done = convert(numbered, tmp_path / "p", classes=("Liver", "Left Kidney"))
    assert same(
        done, *(np.select([values == liver, values == left], [1, 2]) for liver, left in ((3, 1), (2, 3)))
    )
    unknown = coded_source(tmp_path / "c", {1: "", 3: "liver"}, {1: "", 3: "liver"})
    assert convert(unknown, tmp_path / "q", ignore_label=("2",)).manifest.labels[3] == "Liver"
