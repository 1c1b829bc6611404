"""Conversion from and to s3://, on a real object store server at loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from halofeed.demo import draw_data_set
from halofeed.inspection.verify import verify
from halofeed.prep.sources.files import LocalFiles
from tests.dicom_writer import draw_series

pytestmark = pytest.mark.long


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A server with one empty bucket; gives boto3's client."""
    boto3 = pytest.importorskip("boto3")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.1)
            client = boto3.client("s3")
            client.create_bucket(Bucket="bucket")
            yield client
        finally:
            server.terminate()
            server.wait(10)


def convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, with small pictures and two shards."""
    command = [sys.executable, "-m", "halofeed", "convert", "--layout", "coco", "--name", "shapes"]
    command += ["--height", "32", "--width", "32", "--shards", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_an_object_store_gives_and_takes_the_same_files_as_a_local_folder(store, tmp_path: Path) -> None:
    draw_data_set(tmp_path / "source", 24)
    for path in sorted((tmp_path / "source").rglob("*.*")):
        store.upload_file(str(path), "bucket", f"source/{path.relative_to(tmp_path / 'source')}")
    local = convert("--source", str(tmp_path / "source"), "--out", str(tmp_path / "local"))
    assert local.returncode == 0, local.stderr
    remote = convert("--source", "s3://bucket/source", "--out", "s3://bucket/out")
    assert remote.returncode == 0, remote.stderr

    listed = store.list_objects_v2(Bucket="bucket", Prefix="out/")["Contents"]
    folder = tmp_path / "copy" / "shapes" / "1.0.0"
    folder.mkdir(parents=True)
    for entry in listed:
        store.download_file("bucket", entry["Key"], str(folder / os.path.basename(entry["Key"])))
    expected = tmp_path / "local" / "shapes" / "1.0.0"
    assert {path.name for path in folder.iterdir()} == {path.name for path in expected.iterdir()}
    for path in expected.iterdir():
        if path.name != "manifest.json":
            assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
    assert verify(folder).ok

    again = convert("--source", "s3://bucket/source", "--out", "s3://bucket/out")
    assert again.returncode == 0
    assert "already converted" in again.stdout


def test_dicom_series_are_listed_on_an_object_store_with_one_look_at_each_slice(
    store, tmp_path: Path
) -> None:
    source = draw_series(tmp_path / "source", 3, 5)
    for path in LocalFiles(source).sizes():
        store.upload_file(str(source / path), "bucket", f"source/{path}")
    options = ("--layout", "dicom", "--depth", "4", "--shards", "1")
    local = convert("--source", str(source), "--out", str(tmp_path / "local"), *options)
    assert local.returncode == 0, local.stderr
    before = requests(tmp_path)
    remote = convert("--source", "s3://bucket/source", "--out", str(tmp_path / "remote"), *options)
    assert remote.returncode == 0, remote.stderr
    (first, *_), (second, *_) = (sorted((tmp_path / name).rglob("*-of-*")) for name in ("local", "remote"))
    assert first.read_bytes() == second.read_bytes()
    asked = requests(tmp_path) - before
    slices = Counter(
        {
            method: sum(n for what, n in asked.items() if f"{method} /bucket/source/" in what)
            for method in ("HEAD", "GET")
        }
    )
    assert slices == {"HEAD": 33, "GET": 33}, (
        "each slice is opened twice, and the middle one of a series once more"
    )
    assert sum(asked.values()) == 67, "the folder is listed once"


def requests(folder: Path) -> Counter[str]:
    """What the server was asked for, by method and path."""
    lines = (folder / "server.log").read_text().splitlines()
    return Counter(line.split('"')[1].rpartition(" ")[0] for line in lines if line.count('"') >= 2)


def test_an_empty_shard_is_refused_with_the_cure(store, tmp_path: Path) -> None:
    draw_data_set(tmp_path / "source", 4)
    done = convert("--source", str(tmp_path / "source"), "--out", "s3://bucket/out", "--shards", "40")
    assert done.returncode == 1
    assert "take fewer --shards" in done.stderr


def objects(store, prefix: str) -> dict[str, bytes]:
    listed = store.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return {
        entry["Key"]: store.get_object(Bucket="bucket", Key=entry["Key"])["Body"].read() for entry in listed
    }


def test_a_version_on_an_object_store_stands_until_the_new_one_is_whole(store, tmp_path: Path) -> None:
    draw_data_set(tmp_path / "source", 24)
    options = ["--source", str(tmp_path / "source"), "--out", "s3://bucket/out"]
    assert convert(*options).returncode == 0
    before = objects(store, "out/shapes/1.0.0/")
    picture = next((tmp_path / "source").rglob("*.jpg"))
    picture.write_bytes(picture.read_bytes()[:200])
    failed = convert(*options, "--overwrite", "--max-rejected", "0")
    assert failed.returncode == 1
    assert "is as it was" in failed.stderr
    assert objects(store, "out/shapes/1.0.0/") == before
    done = convert(*options, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert convert("--source", str(tmp_path / "source"), "--out", str(tmp_path / "local")).returncode == 0
    expected = {
        f"out/shapes/1.0.0/{path.name}": path.read_bytes()
        for path in (tmp_path / "local/shapes/1.0.0").iterdir()
    }
    assert objects(store, "out/") == expected
