"""Does a plan say on a terminal, on a page and in a data set's report what fits, and why the rest does not?"""

import json
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import CorruptFileError
from halofeed.inspection.html.report import write_report
from halofeed.inspection.plan_report import describe_plan, write_plan_page
from halofeed.inspection.verify import verify
from halofeed.schemas.file_layout import PLAN_FORMAT, plan_file, read_plan
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.topologies import topology_named
from tests.support.dataset_writer import draw_examples, write_dataset

GIB = 2**30


def plan() -> dict[str, Any]:
    """Two splits of a plan for eight cores: one too large, and one that fits and gathers."""
    common = {"refused": "", "nearest": [], "replicas": 1, "batch_size": 8, "compile_seconds": 1.0}
    memory = {"parameters": GIB // 8, "optimizer": GIB // 8, "batch": GIB // 16}
    chip = topology_named("v3-8").chip
    assert chip is not None
    return {
        "format": PLAN_FORMAT,
        "versions": {"jax": "0.10.2", "libtpu": "0.0.42.1"},
        "topology": {"name": "v3-8", "platform": "tpu", "cores": 8, "grid": "v3:2x2", "chip": vars(chip)},
        "config": TrainConfig(model="retinanet").to_json(),
        "image_shape": [640, 640, 3],
        "recommended": 8,
        "splits": [
            {
                **common, "cores": 1, "partition": "", "fits": False, "levels_not_split": [],
                "memory": {**memory, "total": 30 * GIB, "limit": 15 * GIB, "compiler": "<b>out of memory</b>"},
            },
            {
                **common, "cores": 8, "partition": "image=1,8,1,1", "fits": True,
                "memory": {**memory, "total": 7 * GIB, "activations": 5 * GIB, "padding": GIB, "program": 0},
                "flops": 8.7e12, "bytes_accessed": 7e10,
                "sent_bytes": {"halos": 1.5e8, "all-reduces": 1.8e8, "gathers": 1e7},
                "exchanges": {"halos": 4, "all-reduces": 5, "gathers": 1},
                "bound": {"compute": 0.142, "memory": 0.155, "links": 0.002, "step": 0.155, "by": "memory"},
                "levels_not_split": [{"sizes": [5, 5], "reason": "5 does not divide by 8", "activations": 3}],
                "whole_gathers": [
                    {"result": "bf16[8,40,40,256]", "result_bytes": 6553600, "layer": "pyramid.coarser.0",
                     "place": "", "operation": "top_k"}
                ],
                "largest": [
                    {"arrays": ["bf16[8,325,2560,3]"], "bytes": GIB, "unpadded_bytes": GIB // 16,
                     "layer": "backbone.stem", "place": "", "operation": "conv_general_dilated"}
                ],
            },
        ],
    }  # fmt: skip


def test_a_terminal_shows_a_line_a_split_the_one_to_take_and_the_reasons() -> None:
    text = describe_plan(plan())
    assert "unsplit        does not fit       8  30.00" in text
    assert "155 ms, memory" in text and "halofeed train --cores-per-replica 8" in text
    assert "not split over cores: 5 x 5 (3 activations): 5 does not divide by 8" in text
    assert "top_k of pyramid.coarser.0; take the largest values of each core first" in text
    fullest = "memory peak 1.00 GiB, 0.94 GiB of it padding: bf16[8,325,2560,3], conv_general_dilated of"
    assert fullest in text
    assert "CACM 2020" in text and "libtpu 0.0.42.1" in text


def test_arrays_below_a_mebibyte_are_not_listed_at_the_memory_peak() -> None:
    small = plan()
    small["splits"][1]["largest"][0].update(bytes=147456, unpadded_bytes=36864)
    assert "memory peak" in describe_plan(plan()) and "memory peak" not in describe_plan(small)


def test_savings_and_a_search_are_told() -> None:
    small = plan()["splits"][1]
    change = {"change": "--remat", "split": {**small, "flops": 1e13}}
    found = {"cores": 8, "partition": "", "largest": 768, "least_refused": 832, "total_bytes": 14 * GIB}
    more = {"savings": {"before": small, "changes": [change]}, "search": {"of": "side", "found": [found]}}
    told = describe_plan({**plan(), **more})
    assert "--remat: fits, 7.00 GiB, 14.9 % more FLOP" in told
    assert "8-way: 768 fits with 14.00 GiB; 832 does not" in told


def test_a_page_has_a_bar_a_split_and_escapes_what_the_compiler_says(tmp_path: Path) -> None:
    page = write_plan_page(plan(), tmp_path / "plan.html").read_text()
    assert page.count('class="row"') == 3 and ">available<" in page
    assert "&lt;b&gt;out of memory" in page and "<b>out of memory" not in page
    assert "width:100.00%" not in page.split("8-way")[1].split("</div>")[0]


def test_a_data_sets_report_shows_the_plan_that_was_made_for_it(tmp_path: Path) -> None:
    examples = draw_examples("detection", {"train": 2})
    folder = write_dataset(tmp_path / "drawn" / "1.0.0", examples, task="detection")
    before = write_report(folder, tmp_path / "before.html").read_text()
    plan_file(folder).write_text(json.dumps(plan()))
    after = write_report(folder, tmp_path / "after.html").read_text()
    assert "Memory by number of cores" not in before and "Memory by number of cores" in after
    assert verify(folder).ok


@pytest.mark.parametrize("text", ["{", '{"format": 99}', "[]"])
def test_a_plan_of_another_version_is_refused_with_the_cure(tmp_path: Path, text: str) -> None:
    plan_file(tmp_path / "1.0.0").write_text(text)
    with pytest.raises(CorruptFileError, match="plan again, or delete it"):
        read_plan(tmp_path / "1.0.0")
