"""A plan for large pictures states on a terminal and on a page what fits, what it costs and what to type."""

from pathlib import Path
from typing import Any

from halofeed.inspection.picture_plan import describe_picture_plan, write_picture_plan_page
from halofeed.schemas.file_layout import PLAN_FORMAT
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.pictures import Pictures, choose, way_facts
from halofeed.trainer.plan.topologies import topology_named
from tests.support.pages import assert_a_browser_shows

GIB = 2**30


def plan() -> dict[str, Any]:
    """Compare tiles, a window that does not fit, and one that fits, on eight cores."""
    chip = topology_named("v3-8").chip
    assert chip is not None
    pictures = Pictures(size=(20000, 20000), count=500, tile_sizes=((2048, 2048),), overlap=(128, 128))
    kept = {"parameters": GIB // 8, "optimizer": GIB // 8, "batch": GIB // 16}
    common = {"refused": "", "nearest": [], "compile_seconds": 1.0, "levels_not_split": []}
    work = {"flops": 5e12, "bound": {"step": 0.3, "by": "memory"}, "whole_gathers": [], "largest": []}
    work |= {"fits": True, "sent_bytes": {"halos": 0, "all-reduces": 1e8, "gathers": 0}}
    fitting = {**kept, "total": 10 * GIB, "activations": 8 * GIB, "padding": GIB, "program": 0, "limit": None}
    refused = {**kept, "total": 20 * GIB, "limit": 15 * GIB, "compiler": "<b>out of memory</b>"}
    split = {"cores": 8, "partition": "image=1,8,1,1", "replicas": 1, "batch_size": 1}
    unsplit = {"cores": 1, "partition": "", "replicas": 8, "batch_size": 8}
    sent = {"halos": 4.8e7, "all-reduces": 1e8, "gathers": 0}
    made = [
        ((2048, 2048), {**common, **work, **unsplit, "memory": fitting}),
        ((10240, 10080), {**common, **split, "fits": False, "memory": refused}),
        ((6912, 6752), {**common, **work, **split, "memory": fitting, "sent_bytes": sent}),
    ]  # fmt: skip
    ways = [way_facts(size, split, pictures, 1, 8) for size, split in made]
    best, reason = choose(ways, 128)
    return {
        "format": PLAN_FORMAT,
        "versions": {"jax": "0.10.2", "libtpu": "0.0.42.1"},
        "topology": {"name": "v3-8", "platform": "tpu", "cores": 8, "grid": "v3:2x2", "chip": vars(chip)},
        "config": TrainConfig(model="retinanet", image_shape=(640, 640, 3)).to_json(),
        "picture": {"size": [20000, 20000], "count": 500, "overlap": [128, 128], "object_size": 128},
        "images_per_replica": 1,
        "ways": ways,
        "skipped": [{"cores": 8, "record_size": [20224, 20000], "estimated_bytes": 120 * GIB}],
        "recommended": best,
        "reason": reason,
        "command": "halofeed train FOLDER --config mine",
    }


def test_a_terminal_shows_a_line_for_each_way_and_the_commands_of_the_best() -> None:
    lines = describe_picture_plan(plan()).splitlines()
    (tile,) = [line for line in lines if line.startswith("tile")]
    assert tile.split()[5:] == [
        *("fits", "10.00", "37.5", "%", "121", "8", "7,563", "21.2", "%", "0", "%", "-", "252", "126", "303"),
        *("37.8", "min"),
    ]
    assert [line.split("  ")[0] for line in lines if line.startswith("window")][:2] == [
        "window 10,240 x 10,080, 8-way 1,8,1,1",
        "window 6,912 x 6,752, 8-way 1,8,1,1",
    ]
    text = "\n".join(lines)
    assert "halofeed convert --source SOURCE --out data --fit tiles --height 6912 --width 6752" in text
    train = "halofeed train FOLDER --config mine --set 'image_shape=[6912,6752,3]' --cores-per-replica 8 --partition "
    assert f"{train}'image=1,8,1,1' --batch-size 1" in text
    assert "20,224 x 20,000 over 8 cores: about 120.00 GiB per core" in text


def test_a_page_says_the_same_and_a_browser_shows_it_at_every_width(tmp_path: Path) -> None:
    page = write_picture_plan_page(plan(), tmp_path / "plan.html").read_text()
    assert page.count('class="row"') == 4 and ">available<" in page
    assert "&lt;b&gt;out of memory" in page and "<b>out of memory" not in page
    for words in ("window 6,912 x 6,752", "7,563", "21.2 %", "lowest time at best", "--tile-overlap 128,128"):
        assert words in page
    assert_a_browser_shows(page, 0, tmp_path)


def test_a_plan_in_which_nothing_fits_has_no_commands() -> None:
    nothing = {**plan(), "ways": plan()["ways"][1:2]}
    best, reason = choose(nothing["ways"])
    text = describe_picture_plan({**nothing, "recommended": best, "reason": reason})
    assert "No way: nothing fits: take --remat" in text and "halofeed train" not in text
