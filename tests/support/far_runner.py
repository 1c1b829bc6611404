"""A runner that acts as one on other machines: it says nothing of the job, may do all of it twice, and may fail."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner

LONG_ERROR = (
    """Pipeline job-1 failed in state FAILED: java.lang.RuntimeException: Error received from SDK harness
Traceback (most recent call last):
  File "worker.py", line 1, in process
KeyError: 'colour'

During handling of the above exception, another exception occurred:
ValueError: no such colour [while running 'write shards-ptransform-1']
"""
    + "\tat org.apache.beam.Some.java\n" * 50
)


class FarRunner(PipelineRunner):
    """Runs a pipeline in a thread of this process.

    The environment says more: FAR_TIMES, how often it runs the whole pipeline; FAR_ERROR, whether it fails after that;
    FAR_LOST, a file with the number of jobs that fail before they begin;
    FAR_HANGS, a file that it makes before it waits for ever in place of running, and deletes when it is cancelled.
    """

    def default_job_server(self, _: object) -> JobServer:
        return JobServer()

    def run_pipeline(self, pipeline: Any, options: Any) -> Result:
        self.default_job_server(options)

        def run() -> None:
            if hang := os.environ.get("FAR_HANGS"):
                Path(hang).touch()
                threading.Event().wait()
            if (lost := os.environ.get("FAR_LOST")) and (left := int(Path(lost).read_text())):
                Path(lost).write_text(str(left - 1))
                raise RuntimeError("worker 2 was lost")
            for _ in range(int(os.environ.get("FAR_TIMES", "1"))):
                FnApiRunner().run_pipeline(pipeline, options).wait_until_finish()
            if os.environ.get("FAR_ERROR"):
                raise RuntimeError(LONG_ERROR)

        return Result(run)


class Result:
    """A job that runs."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.wait_until_finish = run

    def cancel(self) -> None:
        Path(os.environ["FAR_HANGS"]).unlink()


class JobServer:
    """Counts those that were not stopped."""

    running = 0

    def __init__(self) -> None:
        JobServer.running += 1

    def stop(self) -> None:
        JobServer.running -= 1
