"""What a worker process of a local run does: Beam's worker, silent, that ends with its driver.

Beam's workers log to standard error at length; what matters reaches the driver through
`halofeed.pipelines.progress`.
"""

import logging
import os
import sys
from collections.abc import Sequence

from halofeed.pipelines.memory import importing, keep_freed_memory
from halofeed.pipelines.progress import end_with


def work(driver: int, arguments: Sequence[str]) -> None:
    """Serve the driver, which Beam named in the environment, with these of Beam's options."""
    end_with(driver)
    keep_freed_memory()
    logging.disable(logging.CRITICAL)
    with importing():
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.worker import sdk_worker_main

    FileSystems.set_options(PipelineOptions(list(arguments)))
    # When the driver stops, gRPC's threads in here tell of every connection that they lost.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sdk_worker_main.main(["worker", *arguments])


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2:])
