"""Worker process of a Beam runner: `python -m halofeed.pipelines.beam_worker --id=ID --provision_endpoint=HOST:PORT`.

Beam's runners start a script with these arguments where --environment_type=PROCESS names it, and notice when the
process ends while they wait for it. They wait forever for a worker of a pool (EXTERNAL) that is killed while it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import os

from halofeed.system.memory import heavy_imports, keep_freed_memory

_SECONDS_TO_ANSWER = 60


def main() -> None:
    """Execute the runner's requests until it closes the connection, then end the process at once."""
    parser = argparse.ArgumentParser("python -m halofeed.pipelines.beam_worker", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    given, _ = parser.parse_known_args()
    # Prism puts the arguments in additional quotation marks.
    identity, endpoint = given.id.strip("'\""), given.provision_endpoint.strip("'\"")
    with heavy_imports():
        from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
        from apache_beam.runners.worker.channel_factory import GRPCChannelFactory
        from apache_beam.runners.worker.sdk_worker import SdkHarness

        # The first bundle raises the same error, and the runner reports it to the command.
        with contextlib.suppress(ImportError):
            import halofeed.pipelines.beam_pipeline  # noqa: F401 - before the runner waits for this worker
    keep_freed_memory()
    with GRPCChannelFactory.insecure_channel(endpoint) as channel:
        provision = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel).GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            timeout=_SECONDS_TO_ANSWER,
            wait_for_ready=True,
            metadata=[("worker_id", identity)],
        )
    try:
        SdkHarness(
            provision.info.control_endpoint.url, worker_id=identity, data_buffer_time_limit_ms=-1
        ).run()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
