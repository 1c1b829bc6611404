"""Convert an nnU-Net and a BIDS folder of the same scans, and compare the records.

pip install 'halofeed[convert]'
python examples/nnunet_bids.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from drawn import draw_scan

import halofeed

SCANS = 3


def main(folder: Path) -> None:
    nnunet, bids = folder / "Dataset001_Organ", folder / "study"
    drawn = []
    for number in range(1, SCANS + 1):
        case, subject = f"organ_{number:03d}", f"sub-{number:02d}"
        drawn.append(
            draw_scan(nnunet / f"imagesTr/{case}_0000.nii.gz", nnunet / f"labelsTr/{case}.nii.gz", number)
        )
        mask = bids / f"derivatives/manual/{subject}/anat/{subject}_label-organ_mask.nii.gz"
        draw_scan(bids / f"{subject}/anat/{subject}_T1w.nii.gz", mask, number)
    (nnunet / "dataset.json").write_text(
        json.dumps(
            {
                "channel_names": {"0": "CT"},
                "labels": {"background": 0, "organ": 1},
                "numTraining": SCANS,
                "file_ending": ".nii.gz",
            }
        )
    )
    (bids / "dataset_description.json").write_text(json.dumps({"Name": "study", "BIDSVersion": "1.9.0"}))

    shape = {"depth": 24, "height": 40, "width": 40, "dtype": "float32", "normalize": "scan"}
    found = []
    for layout, source in (("nnunet", nnunet), ("bids", bids)):
        data = halofeed.convert(source, folder / "data", layout=layout, name=layout, **shape)
        records = data.loader("train", batch_size=1).records
        assert len(records) == SCANS and data.class_names == ("background", "organ")
        found.append(
            sorted(((int(one["label"].sum()), one["image"]) for one in records), key=lambda pair: pair[0])
        )
    for (voxels, image), (same_voxels, same_image), by_hand in zip(*found, sorted(drawn), strict=True):
        assert voxels == same_voxels == by_hand
        np.testing.assert_array_equal(image, same_image)
    print(
        f"{SCANS} scans by nnU-Net's and BIDS's names: equal voxels, organs of {sorted(drawn)} voxels as drawn"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
