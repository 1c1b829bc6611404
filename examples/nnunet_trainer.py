"""Train with nnU-Net's own trainer on patches that halofeed reads from nnU-Net's preprocessed folder.

pip install 'halofeed[convert]' nnunetv2
python examples/nnunet_trainer.py

Checked with nnunetv2 2.8.1 and torch 2.15.0.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from drawn import draw_ct


def main(folder: Path) -> None:
    # nnU-Net reads its folders from the environment when it is imported.
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(folder / name)
    os.environ.update({"nnUNet_compile": "f"})
    raw = folder / "raw" / "Dataset001_Drawn"
    draw_ct(folder / "ct")
    for part in ("imagesTr", "labelsTr"):
        (raw / part).mkdir(parents=True)
    for number in range(6):
        (folder / "ct" / f"{number}.nii.gz").rename(raw / "imagesTr" / f"ct_{number}_0000.nii.gz")
        (folder / "ct" / f"{number}_label.nii.gz").rename(raw / "labelsTr" / f"ct_{number}.nii.gz")
    facts = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "organ": 1}, "numTraining": 6}
    (raw / "dataset.json").write_text(json.dumps({**facts, "file_ending": ".nii.gz"}))

    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprint_dataset,
        plan_experiment_dataset,
        preprocess_dataset,
    )

    extract_fingerprint_dataset(1, num_processes=1)
    plan_experiment_dataset(1)
    preprocess_dataset(1, configurations=("3d_fullres",), num_processes=(1,))

    import torch
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    import halofeed

    class Trainer(nnUNetTrainer):
        """nnU-Net's trainer with another source of patches."""

        def get_dataloaders(self):
            options = halofeed.torch.PatchOptions(
                patch_size=self.configuration_manager.patch_size,
                foreground=self.oversample_foreground_percent,
                mirror_axes=(0, 1, 2),
                deep_supervision_scales=self._get_deep_supervision_scales(),
            )
            return [
                halofeed.torch.nnunet(
                    self.preprocessed_dataset_folder,
                    options,
                    batch_size=self.batch_size,
                    identifiers=cases,
                    seed=1,
                )
                for cases in self.do_split()
            ]

    preprocessed = folder / "preprocessed" / "Dataset001_Drawn"
    plans = json.loads((preprocessed / "nnUNetPlans.json").read_text())
    plans |= {"continue_training": False}  # as nnUNetv2_train adds it
    plans["configurations"]["3d_fullres"]["patch_size"] = [16, 32, 32]  # small, for a quick example
    torch.manual_seed(0)
    trainer = Trainer(
        plans, "3d_fullres", 0, json.loads((preprocessed / "dataset.json").read_text()), torch.device("cpu")
    )
    trainer.initialize()
    trainer.dataloader_train, trainer.dataloader_val = trainer.get_dataloaders()
    trainer.network.train()
    losses = [float(trainer.train_step(next(trainer.dataloader_train))["loss"]) for _ in range(12)]
    trainer.network.eval()
    with torch.no_grad():
        found = trainer.validation_step(next(trainer.dataloader_val))
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}; loss of validation {float(found['loss']):.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
        sys.stdout.flush()
