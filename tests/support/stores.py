"""What tests on stores share: each store as a place of files, with what they ask of it counted."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from halofeed.storage import choose
from halofeed.storage.base import Files
from halofeed.storage.gcs import GcsObjects
from halofeed.storage.s3 import S3Objects
from tests.support.engines import gcs, s3

SCHEMES = ("s3", "gs")
_ENGINES = {"s3": s3, "gs": gcs}


@dataclass
class Place:
    """A bucket of a server on the loopback; `settings` are the environment with which clients find it."""

    scheme: str
    settings: Mapping[str, str]
    home: Path

    @property
    def address(self) -> str:
        return f"{self.scheme}://bucket"

    @property
    def endpoint(self) -> str:
        return self.settings["AWS_ENDPOINT_URL" if self.scheme == "s3" else "STORAGE_EMULATOR_HOST"]

    def at(self, endpoint: str) -> dict[str, str]:
        """The settings of clients that reach it by another way."""
        return {name: endpoint if value == self.endpoint else value for name, value in self.settings.items()}

    def store(self) -> Files:
        """A client of its own, past whatever stands between this place and what is tested."""
        if self.scheme == "s3":
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
            return S3Objects({"endpoint_url": self.endpoint, **keys}).at(self.address)
        with found_by(self.settings):
            return GcsObjects().at(self.address)

    def upload(self, folder: Path, prefix: str) -> str:
        """Put every file of a folder there; its address."""
        store, address = self.store(), f"{self.address}/{prefix}"
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                store.write(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return address

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix, by what follows it."""
        store = self.store()
        paths = [entry.path for entry in store.entries() if entry.path.startswith(prefix)]
        return {path[len(prefix) :]: store.read(path) for path in paths}

    def open_uploads(self) -> list[str]:
        """The keys of uploads in parts that nobody finished; nobody can see those of Google's."""
        if self.scheme == "gs":
            return []
        import boto3

        client = boto3.client("s3", endpoint_url=self.endpoint)
        return [one["Key"] for one in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ())]

    def requests(self) -> list[str]:
        """Method and path of every request that the server was asked for."""
        log = (self.home / "server.log").read_text()
        if self.scheme == "s3":
            lines = [line for line in log.splitlines() if line.endswith(("HTTP/1.1", "HTTP/1.0"))]
            return [line.rpartition(" ")[0] for line in lines]
        return [line.split('\\"')[1].rpartition(" ")[0] for line in log.splitlines() if '\\"' in line]


@contextmanager
def serving(scheme: str, home: Path) -> Iterator[Place]:
    """A server with an empty bucket while the block runs, which clients in this environment find."""
    engine = _ENGINES[scheme]
    settings = engine.start(home)
    try:
        with found_by(settings):
            yield Place(scheme, settings, home)
    finally:
        engine.stop(home)


@contextmanager
def found_by(settings: Mapping[str, str]) -> Iterator[None]:
    """Have clients of this process, and of those that it starts, find a server by these settings."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    choose._stores.clear()
    try:
        yield
    finally:
        choose._stores.clear()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def convert_words(source: str | Path, out: str | Path, *more: str) -> list[str]:
    """The words of a conversion of drawn shapes with small pictures and two shards."""
    words = [sys.executable, "-m", "halofeed", "convert", "--layout", "coco", "--name", "shapes"]
    words += ["--height", "32", "--width", "32", "--shards", "2", "--source", str(source), "--out", str(out)]
    return [*words, *more]


def convert(source: str | Path, out: str | Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = convert_words(source, out, *more)
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
