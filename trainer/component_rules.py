"""Proof of the largest-component rules of a run on its evaluation split, stored in run.json for `predict`."""

from __future__ import annotations

from dataclasses import replace

from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.file_layout import RUN_FILE, read_run
from halofeed.trainer.distributed import is_chief
from halofeed.trainer.largest_component import COMPONENT_KINDS, KEPT
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.run_folder import Run, write_json

_LEAST_EXAMPLES = 2


def prove_rules(run: Run, data: str, split: str, which: str) -> tuple[list[str], Run]:
    """Find the classes whose largest component alone is better on the evaluation split, and store them in the run.

    Nothing is done for other tasks than segmentation of volumes and pictures, for another split than that by which the
    best checkpoint was chosen, and for a checkpoint whose rules are stored.

    Args:
        run: the run.
        data: version folder of its data set.
        split: split that is evaluated.
        which: checkpoint: "best", "last" or a step.

    Returns:
        Lines on what was proved, and the run with the rules.
    """
    if run.facts.task != "segmentation" or run.facts.kind not in COMPONENT_KINDS:
        return [], run
    if split != run.document.get("evaluate_split"):
        return [], run
    loaded = LoadedRun(run, data, split, which=which)
    # A pass over the split that can prove nothing would double the time of each evaluation.
    if run.document.get(KEPT, {}).get("step") == loaded.step or not loaded.can_have_rules:
        return [], run
    metrics, rules = loaded.find_rules()
    # One example proves nothing.
    if metrics["examples"] < _LEAST_EXAMPLES or not rules:
        return [], run
    proved = [rule for rule in rules if rule.is_proved]
    stored = {"step": loaded.step, "split": split, "classes": [rule.to_json() for rule in proved]}
    document = {**run.document, KEPT: stored}
    lines = [f"largest component: {rule.text()}" for rule in proved]
    lines = lines or ["largest component: keeping it alone helps no class"]
    if is_chief():
        try:
            write_json(run.folder / RUN_FILE, with_json_checksum({**read_run(run.folder), KEPT: stored}))
        except OSError as error:
            lines.append(
                f"{run.folder}: cannot be written ({error.strerror}), so predictions keep all components"
            )
    return lines, replace(run, document=document)
