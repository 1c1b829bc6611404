"""Is a job for Dataflow described as a template without the service, against a store on this machine?"""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from tests.support.conversions import convert_words, draw_folders
from tests.support.engines import gcs
from tests.support.engines.processes import MissingError

pytestmark = pytest.mark.long


def test_a_template_is_written_and_the_same_command_finishes_what_it_began(tmp_path):
    pytest.importorskip("google.cloud.dataflow")
    draw_folders(tmp_path / "source", 12)
    try:
        settings = gcs.start(tmp_path / "gcs")
        words = [sys.executable, "-m", "halofeed"]
        words += convert_words(tmp_path / "source", "gs://bucket/data", shards=2)
        beam = ["--runner=DataflowRunner", "--project=project", "--region=europe-west4", "--no_auth"]
        beam += [f"--{name}_location=gs://bucket/{name}" for name in ("temp", "template")]
        said = []
        for command in ([*words, "--", *beam], words):
            given = {"env": {**os.environ, **settings}, "timeout": 200, "check": False}
            done = subprocess.run(command, capture_output=True, text=True, **given)
            assert done.returncode == 0, done.stderr
            said.append(done.stdout + done.stderr)
        assert "gs://bucket/template: the job's template was written, and nothing was run" in said[0]
        assert "12 records" in said[1]
        with urllib.request.urlopen(f"{settings['STORAGE_EMULATOR_HOST']}/storage/v1/b/bucket/o") as answer:
            names = {item["name"] for item in json.load(answer)["items"]}
        assert "template" in names
        assert "data/set/1.0.0/manifest.json" in names
        assert not any("/.incomplete/" in name for name in names)
    except MissingError as error:
        pytest.skip(str(error))
    finally:
        gcs.stop(tmp_path / "gcs")
