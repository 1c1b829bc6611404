"""Spark with two executor threads in one process, which try a task four times, and Beam's job server."""

from pathlib import Path

from tests.support.engines.java import BEAM, jars, java
from tests.support.engines.processes import children_of, free_port, start_process, stop_all, wait_for_port
from tests.support.engines.worker_environment import worker_options

SPARK = "3.5.7"


def start(home: Path) -> dict[str, str]:
    """Bring it up; Beam's options for it are in HALOFEED_BEAM_OPTIONS."""
    spark = [f"org.apache.spark:spark-{part}_2.12:{SPARK}" for part in ("core", "streaming")]
    folder = jars("spark", [f"org.apache.beam:beam-runners-spark-3:{BEAM}", *spark])
    port = free_port()
    (home / "artifacts").mkdir(parents=True)
    server = "org.apache.beam.runners.spark.SparkJobServerDriver"
    arguments = ["--spark-master-url=local[2,4]", f"--job-port={port}", "--job-host=localhost"]
    arguments += ["--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={home / 'artifacts'}"]
    flags = ["-Dspark.ui.enabled=false", "-Dspark.driver.host=localhost", f"-Dspark.local.dir={home}"]
    start_process(home, "jobserver", java(folder, server, *arguments, mebibytes=1024, flags=flags))
    wait_for_port(home, "jobserver", port)
    options = ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", *worker_options(home)]
    return {"HALOFEED_BEAM_OPTIONS": " ".join(options)}


def worker_pids(home: Path) -> list[int]:
    return children_of(home, "jobserver")


stop = stop_all
"""To end it."""
