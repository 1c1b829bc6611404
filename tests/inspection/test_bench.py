"""`halofeed bench` measures each part of the input pipeline and names the slowest."""

from __future__ import annotations

import re

import pytest

from halofeed.cli import main
from halofeed.inspection import bench as module
from halofeed.inspection.bench import (
    AUGMENTED,
    COPY,
    DECODE,
    DISK,
    ON_DEVICE,
    PLAIN,
    TENSORFLOW,
    TRANSFER,
    VERIFIED,
    bench,
)
from halofeed.loader.native import kernel
from halofeed.schemas.errors import UsageError
from tests.support.conversions import draw_folders, run_convert


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    source = tmp_path_factory.mktemp("photos")
    draw_folders(source, 12)
    out = tmp_path_factory.mktemp("out")
    return {
        encoding: run_convert(source, out / encoding, layout="folders", encoding=encoding, shards=2).folder
        for encoding in ("raw", "png")
    }


@pytest.mark.parametrize(("encoding", "more"), [("raw", set()), ("png", {DECODE})])
def test_every_part_of_the_way_has_a_rate(folders, encoding, more):
    flip = [{"name": "FlipLeftRight"}]
    found = bench(folders[encoding], batch_size=4, augment=flip, seconds=0.01)
    parts = {COPY, DISK, PLAIN, VERIFIED, AUGMENTED, TENSORFLOW, TRANSFER} | more
    assert set(found.rates) == parts
    assert all(rate.images > 0 and rate.bytes > 0 for rate in found.rates.values())
    assert found.stream == found.rates[AUGMENTED]
    assert re.search(r"(?m)what takes longest of an image's way: [a-z, ]+, \d+% of it$", str(found))
    assert ("no C compiler" in str(found)) != kernel.is_built()
    assert f"12 records, {encoding}, batches of 4" in str(found)


def test_what_a_recipe_does_on_the_device_has_a_rate(folders):
    device = [{"name": "Brightness", "shift": [-0.1, 0.1]}, {"name": "GaussianNoise"}]
    found = bench(folders["raw"], batch_size=4, device_augment=device, seconds=0.01)
    assert found.rates[ON_DEVICE].images > 0
    assert found.stream == found.rates[PLAIN]
    assert ON_DEVICE not in bench(folders["raw"], batch_size=4, seconds=0.01).rates


def test_the_part_that_is_slow_is_named(folders, monkeypatch):
    real = module.decode_image

    def slow(*arguments, **more):
        module.time.sleep(0.05)
        return real(*arguments, **more)

    monkeypatch.setattr(module, "decode_image", slow)
    assert "way: decoding, " in bench(folders["png"], batch_size=4, seconds=0.01).slowest


def test_the_command_says_how_many_accelerators_are_fed(folders, capsys):
    words = ["bench", str(folders["raw"]), "--batch-size", "4", "--seconds", "0.01", "--appetite"]
    assert main([*words, "10"]) == 0
    assert re.search(
        r"at 10 images/s each it feeds [\d.]+ accelerators by itself\n$", capsys.readouterr().out
    )
    assert main([*words, "0"]) == 2
    assert "--appetite 0: expected images per second above 0" in capsys.readouterr().err
    with pytest.raises(UsageError, match="seconds: expected more than 0"):
        bench(folders["raw"], seconds=0)
