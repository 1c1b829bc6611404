"""Passwords, tokens and keys that a conversion is given, or reads in annotations, are neither told nor written."""

import json
from pathlib import Path

import pytest
from PIL import Image

from halofeed.pipelines.job import JobOptions
from tests.support.conversions import all_bytes, convert_words, halofeed_here

PASSWORD, TOKEN = "pa55wordX", "tokenA1"
ADDRESS = f"https://ann:{PASSWORD}@host/p/b.jpg?sig={TOKEN}"


def check(told: str, folder: Path | None = None) -> None:
    """Neither what a command said nor what it wrote holds a secret."""
    texts = {"said": told.encode()} | ({} if folder is None else all_bytes(folder))
    assert not [name for name, data in texts.items() if PASSWORD.encode() in data or TOKEN.encode() in data]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    folder.mkdir()
    Image.new("RGB", (20, 20)).save(folder / "a.png")
    (folder / "t.csv").write_text(f"filename,class\na.png,x\n{ADDRESS},y\n")
    (folder / "t.jsonl").write_text(
        "".join(f'{{"filename":"{name}","class":"x"}}\n' for name in ("a.png", ADDRESS))
    )
    images = [{"id": at, "file_name": name, "coco_url": name} for at, name in enumerate(("a.png", ADDRESS))]
    boxes = [{"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 5, 5]} for number in (0, 1)]
    document = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]}
    (folder / "c.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(("layout", "file"), [("csv", "t.csv"), ("jsonl", "t.jsonl"), ("coco", "c.json")])
def test_an_address_in_annotations_is_listed_as_rejected_without_its_secrets(source, tmp_path, layout, file):
    words = convert_words(source / file, tmp_path / "out", layout=layout, workers=1)
    done = halofeed_here(*words)
    assert done.returncode == 0 and "https://***@host/p/b.jpg?***" in done.stdout, done.stdout + done.stderr
    check(done.stdout + done.stderr, tmp_path / "out")
    failed = halofeed_here(*words, "--version=2.0.0", "--max-rejected=0", "--debug")
    assert failed.returncode == 1
    check(failed.stdout + failed.stderr, tmp_path / "out")


@pytest.mark.parametrize("scheme", ["s3", "gs", "hdfs", "https"])
@pytest.mark.parametrize("option", ["source", "images", "out", "label_map", "split_lists", "normalize_like"])
def test_an_address_with_a_password_is_refused_without_repeating_it(source, tmp_path, option, scheme):
    address = f"{scheme}://ann:{PASSWORD}@bucket/x"
    given = {"source": source / "t.csv", "out": tmp_path / "out", "layout": "csv", "debug": True}
    given[option] = f"train={address}" if option == "split_lists" else address
    done = halofeed_here(*convert_words(given.pop("source"), given.pop("out"), **given))
    flag = f"--{option.replace('_', '-')}"
    assert (
        done.returncode == 2 and f"{flag} {scheme}://***@bucket/x: this address takes no user" in done.stderr
    )
    check(done.stdout + done.stderr)


def test_keys_among_the_options_of_beam_and_the_salt_are_not_repeated(source, tmp_path):
    words = convert_words(source / "t.csv", tmp_path / "out", layout="csv", workers=1)
    keys = [f"--s3_secret_access_key={PASSWORD}", "--s3_session_token", f"{TOKEN}-long"]
    for more, status in (([], 0), (["--s3_endpoint_url"], 2), ([f"--no_such_password={PASSWORD}"], 2)):
        done = halofeed_here(*words, "--debug", "--", *keys, *more)
        assert done.returncode == status, done.stderr
        check(done.stdout + done.stderr, tmp_path / "out")
    assert PASSWORD not in repr(JobOptions(source="s", out="o", name="n", salt=PASSWORD))
