"""`python -m halofeed.pipelines.beam_worker --id=ID --provision_endpoint=HOST:PORT`: one worker process of an engine.

Beam's runners start it with these words where --environment_type=PROCESS names a script that has it, and see whether it
lives while they wait for it. For a worker of a pool (EXTERNAL) that is killed while it starts they wait without end.
"""

from __future__ import annotations

import argparse
import contextlib
import os

from halofeed.system.memory import importing, keep_freed_memory

_SECONDS_TO_ANSWER = 60


def main() -> None:
    """Do what the runner asks, until it lets go of this process, and end with it, whatever is under way."""
    parser = argparse.ArgumentParser("python -m halofeed.pipelines.beam_worker", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    given, _ = parser.parse_known_args()
    # Prism passes the words in quotation marks of their own.
    identity, endpoint = given.id.strip("'\""), given.provision_endpoint.strip("'\"")
    with importing():
        from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
        from apache_beam.runners.worker.channel_factory import GRPCChannelFactory
        from apache_beam.runners.worker.sdk_worker import SdkHarness

        # The first bundle meets such an error again, and the command is told of it.
        with contextlib.suppress(ImportError):
            import halofeed.pipelines.beam_pipeline  # noqa: F401 - before the runner waits for it
    keep_freed_memory()
    with GRPCChannelFactory.insecure_channel(endpoint) as channel:
        told = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel).GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            timeout=_SECONDS_TO_ANSWER,
            wait_for_ready=True,
            metadata=[("worker_id", identity)],
        )
    try:
        SdkHarness(told.info.control_endpoint.url, worker_id=identity, data_buffer_time_limit_ms=-1).run()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
