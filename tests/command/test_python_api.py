"""The Python API does what the command line does, and its errors name parameters."""

import subprocess
import sys

import numpy as np
import pytest

import halofeed
from halofeed.errors import UsageError
from tests.support.conversions import draw_folders, shard_bytes


def test_three_lines_give_batches_and_the_command_lines_bytes(tmp_path):
    draw_folders(tmp_path / "My Photos", 12)
    how = {"layout": "folders", "height": 16, "width": 24, "shards": 2}
    assert "classification, 12 inputs" in halofeed.dry_run(tmp_path / "My Photos", tmp_path / "out", **how)
    data = halofeed.convert(tmp_path / "My Photos", tmp_path / "out", **how)
    assert (
        halofeed.open(tmp_path / "out/my_photos").path == data.path == str(tmp_path / "out/my_photos/1.0.0")
    )
    assert (data.splits, data.class_names) == ({"train": 12}, ("hat", "shirt"))
    batch = next(iter(data.loader(batch_size=12, training=False)))
    assert np.array_equal(np.sort(batch["label"]), np.repeat([0, 1], 6))
    assert halofeed.verify(tmp_path / "out/my_photos").ok and "12 records" in halofeed.inspect(data.path)
    assert "def parse(record)" in halofeed.inspect(data.path, parser=True) and "<img" in data._repr_html_()
    words = (
        f"--layout folders --out {tmp_path}/too --name my_photos --height 16 --width 24 --shards 2".split()
    )
    words += ["--source", str(tmp_path / "My Photos")]
    subprocess.run([sys.executable, "-m", "halofeed", "convert", *words], check=True, capture_output=True)
    assert shard_bytes(tmp_path / "too/my_photos/1.0.0") == shard_bytes(tmp_path / "out/my_photos/1.0.0")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"hieght": 3}, r"^hieght: convert has no such parameter; did you mean height\?$"),
        ({"layout": "yola"}, r"^layout 'yola' is not known; did you mean yolo\?"),
        ({"shards": "x"}, "^shards: expected a whole number, got 'x'; it is: files per split"),
        (
            {"resize": "keep-aspect"},
            "keep-aspect without padding.* resize keep-aspect pad in place of height",
        ),
    ],
)
def test_errors_name_parameters(tmp_path, how, words):
    draw_folders(tmp_path / "src", 3)
    with pytest.raises(UsageError, match=words):
        halofeed.convert(
            tmp_path / "src", tmp_path / "out", **{"layout": "folders", "height": 16, "width": 24} | how
        )


def test_the_package_imports_nothing_and_has_every_name_of_its_stub():
    program = "import halofeed, sys; print(len({'numpy', 'argparse', 'jax'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "0"
    assert all(callable(getattr(halofeed, name)) for name in halofeed._MODULES)
