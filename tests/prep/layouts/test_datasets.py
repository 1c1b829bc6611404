"""The commands of docs/datasets.md work on small drawn copies of the data sets."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.conversions import halofeed_here
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import AFFINE, SHAPE, image, msd_document
from tests.support.volume_support import save_nifti

PAGE = (Path(__file__).parents[3] / "docs/datasets.md").read_text()
COMMANDS = dict(re.findall(r"\n## ([^\n]+)\n\n```bash\n(.*?)```", PAGE, re.DOTALL))
AMOS = msd_document("amos_1.nii.gz", test=("amos_3.nii.gz",))
AMOS["validation"] = [{"image": "./imagesVa/amos_2.nii.gz", "label": "./labelsVa/amos_2.nii.gz"}]
META = (
    "image_id;age;gender;institute;study_type;split\ns1;1;m;A;ct;train\ns2;1;m;A;ct;val\ns3;1;m;A;ct;test\n"
)
SIZE = ["--depth", "5", "--height", "8", "--width", "9", "--workers", "1"]
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
MM-WHS | train=2 | myocardium,left atrium,left ventricle,right atrium,right ventricle,aorta,pulmonary artery
mmwhs/ct_train/ct_train_100[12]_image.nii.gz | ct
mmwhs/ct_train/ct_train_100[12]_label.nii.gz | 205 420 421 500 550 600 820 850
"""


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
    if path.suffix in (".gz", ".nii"):
        save_nifti(path, values.astype(np.int16), AFFINE)
    else:
        series = int.from_bytes(pattern.encode()[-20:]) % 10**9
        write_volume(path, values, AFFINE, series=f"1.2.{series}", patient=path.parts[2])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_of_a_data_set_works_when_it_is_typed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(rf"^({re.escape(name)} \|.*\n(?:\S*/.*\n)+)", TREES, re.MULTILINE)
    (_, records, classes), *files = (line.split(" | ") for line in block.splitlines())
    for pattern, content in files:
        draw(pattern, content)
    before, _, command = COMMANDS[name].replace("\\\n", " ").partition("halofeed ")
    subprocess.run(["bash", "-euc", before], check=True)
    done = halofeed_here(*shlex.split(command), *SIZE)
    assert done.returncode == 0, done.stderr
    (manifest,) = (json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json"))
    found = {f"{split}={one['records']}" for split, one in manifest["splits"].items()}
    assert found == set(records.split(","))
    assert {*classes.split(","), "background"} == set(manifest["labels"].values())
