"""The Python API does what the command line does, and its errors name parameters."""

import subprocess
import sys
from pathlib import Path

import pytest

import halofeed
from halofeed import api, loader
from halofeed.errors import UsageError
from tests.support.conversions import draw_folders, shard_bytes


def test_three_lines_give_batches_and_the_command_lines_bytes(tmp_path):
    draw_folders(tmp_path / "My Photos", 12)
    how = {"layout": "folders", "height": 16, "width": 24, "shards": 2}
    data = halofeed.convert(tmp_path / "My Photos", tmp_path / "out", **how)
    assert "def parse(record)" in halofeed.inspect(data.path, parser=True) and "<img" in data._repr_html_()
    words = ["--source", str(tmp_path / "My Photos"), "--out", str(tmp_path / "too"), "--name", "my_photos"]
    words += ["--layout", "folders", "--height", "16", "--width", "24", "--shards", "2"]
    subprocess.run([sys.executable, "-m", "halofeed", "convert", *words], check=True, capture_output=True)
    assert shard_bytes(tmp_path / "too/my_photos/1.0.0") == shard_bytes(tmp_path / "out/my_photos/1.0.0")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"hieght": 3}, r"^hieght: convert has no such parameter; did you mean height\?$"),
        ({"layout": "yola"}, r"^layout 'yola' is not known; did you mean yolo\?"),
        ({"shards": "x"}, "^shards: expected a whole number, got 'x'; it is: files per split"),
        ({"resize": "keep-aspect"}, "keep-aspect without padding.* keep-aspect pad in place of height"),
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
    stub = Path(f"{halofeed.__file__}i").read_text()
    assert {*loader.__all__, *api.__all__} - {"split_id"} <= {*halofeed._MODULES}
    assert all(f" as {name}" in stub for name in halofeed._MODULES)
    functions = [name for name in halofeed._MODULES if name not in halofeed._AUGMENTATIONS]
    assert all(">>> " in getattr(halofeed, name).__doc__ for name in functions), "a test runs these"
