"""The commands of docs/datasets.md work on small drawn copies of the data sets."""

import json
import re
import shlex
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.support.conversions import halofeed_here, run_convert
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image, mask, msd_document
from tests.support.volume_support import rejected, save_nifti, stored_volumes, write_table

PAGE = (Path(__file__).parents[3] / "docs/datasets.md").read_text()
COMMANDS = dict(re.findall(r"\n## ([^\n]+)\n\n```bash\n(.*?)```", PAGE, re.DOTALL))
AMOS = msd_document("amos_1.nii.gz", test=("amos_3.nii.gz",))
AMOS["validation"] = [{"image": "./imagesVa/amos_2.nii.gz", "label": "./labelsVa/amos_2.nii.gz"}]
META = (
    "image_id;age;gender;institute;study_type;split\ns1;1;m;A;ct;train\ns2;1;m;A;ct;val\ns3;1;m;A;ct;test\n"
)
# Name, records by split and classes beside the background; below, files with "ct", a text, or the values of a label.
TREES = f"""
KiTS | train=1 | kidney,tumor,cyst
kits/case_0000[01]/imaging.nii.gz | ct
kits/case_00000/segmentation.nii.gz | 1 2 3
BraTS 2020 | train=2 | necrosis,edema,enhancing
brats/B_00[12]/B_00=_[t1,t1ce,t2,flair].nii | ct
brats/B_00[12]/B_00=_seg.nii | 1 2 4
BraTS 2023 | train=2 | necrosis,edema,enhancing
brats/BraTS-GLI-00000-00[01]/BraTS-GLI-00000-00=-[t1n,t1c,t2w,t2f].nii.gz | ct
brats/BraTS-GLI-00000-00[01]/BraTS-GLI-00000-00=-seg.nii.gz | 1 2 3
TotalSegmentator | train=1,validation=1,test=1 | liver,spleen
total/s[123]/ct.nii.gz | ct
total/s[123]/segmentations/[liver,spleen].nii.gz | 1
total/meta.csv | {json.dumps(META)}
AMOS | train=1,validation=1,test=1 | liver,spleen
amos22/images[Tr/amos_1,Va/amos_2,Ts/amos_3].nii.gz | ct
amos22/labels[Tr/amos_1,Va/amos_2].nii.gz | 1 2
amos22/dataset.json | {json.dumps(json.dumps(AMOS))}
Pancreas-CT | train=2 | pancreas
tcia/Pancreas-CT/PANCREAS_000[12]/11-24-2015/1.2 | ct
tcia/TCIA_pancreas_labels/label000[12].nii.gz | 1
3D-IRCADb | train=2 | liver
3Dircadb1/3Dircadb1.[12]/PATIENT_DICOM | ct
3Dircadb1/3Dircadb1.[12]/LABELLED_DICOM | ct
3Dircadb1/3Dircadb1.[12]/MASKS_DICOM/[bone,liver] | 255
CHAOS CT | train=2 | liver
Train_Sets/CT/[12]/DICOM_anon | ct
Train_Sets/CT/[12]/Ground/liver_GT_00[01234].png | 1
CHAOS MR | train=2 | liver,right kidney,left kidney,spleen
Train_Sets/MR/[12]/T2SPIR/DICOM_anon | ct
Train_Sets/MR/[12]/T2SPIR/Ground/IMG-0001-00[12345].png | 63 126 189 252
MM-WHS | train=2 | myocardium,left atrium,left ventricle,right atrium,right ventricle,aorta,pulmonary artery
mmwhs/ct_train/ct_train_100[12]_image.nii.gz | ct
mmwhs/ct_train/ct_train_100[12]_label.nii.gz | 205 420 421 500 550 600 820 850
"""


def save_png(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)


def draw(pattern: str, content: str) -> None:
    """Draw the files of a pattern: [ab] and [a,b] are alternatives, and = repeats the first one."""
    if found := re.search(r"\[(.*?)\]", pattern):
        for one in found[1].split(",") if "," in found[1] else found[1]:
            draw(pattern.replace(found[0], one, 1).replace("=", one), content)
        return
    path = Path(pattern)
    path.parent.mkdir(parents=True, exist_ok=True)
    if content.startswith('"'):
        path.write_text(json.loads(content))
        return
    values = image() if content == "ct" else np.resize(np.array([0, *map(int, content.split())]), SHAPE)
    if path.suffix == ".png":
        save_png(path, values[0])
    elif path.suffix in (".gz", ".nii"):
        save_nifti(path, values.astype(np.int16), AFFINE)
    else:
        series = f"1.2.{zlib.crc32(pattern.encode())}"
        # The writer stores Hounsfield units plus 1024, and labels are values as stored.
        write_volume(path, values - 1024 * (content != "ct"), AFFINE, series=series, patient=path.parts[2])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_of_a_data_set_works_when_it_is_typed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(rf"^({re.escape(name)} \|.*\n(?:\S*/.*\n)+)", TREES, re.MULTILINE)
    (_, records, classes), *files = (line.split(" | ") for line in block.splitlines())
    for pattern, content in files:
        draw(pattern, content)
    before, _, command = COMMANDS[name].replace("\\\n", " ").partition("halofeed ")
    subprocess.run(["bash", "-euc", before], check=True)
    done = halofeed_here(*shlex.split(command), *shlex.split("--depth 5 --height 8 --width 9 --workers 1"))
    assert done.returncode == 0, done.stderr
    (manifest,) = (json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json"))
    found = {f"{split}={one['records']}" for split, one in manifest["splits"].items()}
    assert found == set(records.split(","))
    assert {*classes.split(","), "background"} == set(manifest["labels"].values())


def test_label_slices_lie_where_their_slices_lie(tmp_path):
    root = tmp_path / "in"
    labels = mask(classes=2).astype(np.uint8)
    cases = {
        # names of the pictures and of the slices, in the order of their positions
        "reversed": ("43210", "43210", ""),
        "fewer": ("0123", "01234", "label pictures and slices differ in number"),
        "named otherwise": ("01234", "20143", "label pictures have other names than the slices"),
        "stored": (1024, "01234", ""),
        "rescaled": (0, "01234", "label slices have a rescale and no stored 0"),
        "compressed": (1024, "01234", "label slices are compressed with loss"),
    }
    for case, (drawn, slices, _) in cases.items():
        names = [f"i{one},0" for one in slices]
        write_volume(root / case / "ct", image(), AFFINE, series=f"1.2.{len(case)}", names=names)
        if isinstance(drawn, str):
            for name, plane in zip(drawn, labels, strict=False):
                save_png(root / case / f"label/liver_{name}.png", plane)
        else:
            more = {"LossyImageCompression": "01"} if case == "compressed" else {}
            stored = labels.astype(int) - drawn
            write_volume(root / case / "label", stored, AFFINE, series=f"1.3.{len(case)}", more=more)
    table = write_table(root, [(case, f"{case}/ct", f"{case}/label") for case in cases])
    options = {"layout": "csv", "task": "segmentation", "classes": ("1",), "max_rejected": 9, **SIZE}
    done = run_convert(table, tmp_path / "out", **options)
    found = {one.key: one for one in stored_volumes(done)}
    assert found.keys() == {case for case, (_, _, reason) in cases.items() if not reason}
    for one in found.values():
        np.testing.assert_array_equal(one.label, labels)
    reasons = {source.split("/")[0]: reason for source, (_, reason, _) in rejected(done).items()}
    assert reasons == {case: reason for case, (_, _, reason) in cases.items() if reason}
