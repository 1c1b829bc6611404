"""nnU-Net v2, configuration 3d_fullres as its own planner makes it, with fewer epochs: as many as the budget has.

The learning rate falls to 0 over these epochs, as it does over its 1,000. Its augmentation runs in the process, so that
its processor time is counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import torch
from budget import of_split, read_arguments, write_log

STEPS = 5
"""Iterations of an epoch here; nnU-Net has 250, which a small budget would not reach once."""


class BudgetUsedError(Exception):
    """The last epoch that the budget has room for has ended."""


def write_raw(task: dict, root: Path) -> None:
    """Write nnU-Net's raw data set: links of the scans, and its description."""
    folder = root / "raw" / "Dataset001_Row"
    for part in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for one in task["examples"]:
        name, scan = one["name"], Path(one["picture"]).resolve()
        if one["split"] == "train":
            shutil.copyfile(scan, folder / "imagesTr" / f"{name}_0000.nii.gz")
            shutil.copyfile(Path(one["label"]).resolve(), folder / "labelsTr" / f"{name}.nii.gz")
        else:
            shutil.copyfile(scan, folder / "imagesTs" / f"{name}_0000.nii.gz")
    document = {
        "channel_names": {"0": "MRI"}, "numTraining": len(of_split(task, "train")), "file_ending": ".nii.gz",
        "labels": {name: number for number, name in enumerate(task["class_names"])},
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(document))


def main() -> None:
    """Plan, train for the budget, and predict the scans of the test."""
    task, out, budget, seed = read_arguments(__doc__)
    root = (out / "nnunet").resolve()
    names = {"nnUNet_raw": "raw", "nnUNet_preprocessed": "preprocessed", "nnUNet_results": "results"}
    os.environ.update({name: str(root / part) for name, part in names.items()})
    os.environ.update({"nnUNet_n_proc_DA": "1", "nnUNet_compile": "f"})
    write_raw(task, root)
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    extract_fingerprints([1], num_processes=2)
    plan_experiments([1])
    preprocess([1], configurations=("3d_fullres",), num_processes=(2,))
    plans = json.loads((root / "preprocessed/Dataset001_Row/nnUNetPlans.json").read_text())
    plans["continue_training"] = False
    description = json.loads((root / "raw/Dataset001_Row/dataset.json").read_text())
    # In the process itself, so that augmentation is counted; planning takes no 0 here.
    os.environ.update({"nnUNet_n_proc_DA": "0"})
    random.seed(seed)
    torch.manual_seed(seed)
    started = time.process_time()

    class Trainer(nnUNetTrainer):
        """nnU-Net's trainer with as many epochs as the budget has."""

        def initialize(self) -> None:
            super().initialize()
            self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = STEPS, 1
            self.num_epochs, self.save_every = 10_000, 10_000

        def on_epoch_end(self) -> None:
            # Its schedule counts epochs. After the first one their number is known.
            if self.current_epoch == 0:
                used = time.process_time() - started
                left = budget.minutes * 60 - used
                self.num_epochs = 1 + max(int(left / used), 1)
                self.lr_scheduler.max_steps = self.num_epochs
            super().on_epoch_end()
            # `run_training` counts to the number of epochs that was known when it began.
            if self.current_epoch == self.num_epochs:
                raise BudgetUsedError

    sys.modules["__main__"].nnUNetTrainer = Trainer
    trainer = Trainer(
        plans=plans,
        configuration="3d_fullres",
        fold="all",
        dataset_json=description,
        device=torch.device("cpu"),
    )
    with contextlib.suppress(BudgetUsedError):
        trainer.run_training()
    trained = time.process_time() - started
    budget.steps = trainer.num_epochs * STEPS
    # As its own validation does: the predictor expects the finest output alone.
    trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(
        device=torch.device("cpu"), perform_everything_on_device=False, verbose=False, allow_tqdm=False
    )
    predictor.manual_initialization(
        trainer.network, trainer.plans_manager, trainer.configuration_manager, [trainer.network.state_dict()],
        trainer.dataset_json, "nnUNetTrainer", trainer.inference_allowed_mirroring_axes,
    )  # fmt: skip
    predictor.predict_from_files(
        str(root / "raw/Dataset001_Row/imagesTs"),
        str(out),
        num_processes_preprocessing=1,
        num_processes_segmentation_export=1,
    )
    budget.notes["patch"] = trainer.configuration_manager.patch_size
    budget.notes["batch"] = trainer.configuration_manager.batch_size
    write_log(
        out, budget, ("torch", "nnunetv2"), sum(p.numel() for p in trainer.network.parameters()), trained
    )


if __name__ == "__main__":
    main()
