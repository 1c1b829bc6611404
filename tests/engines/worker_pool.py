"""`python worker_pool.py ADDRESS:PORT`: Beam's pool of worker processes, at one address of the loopback alone.

It runs in the workers' environment, which has no checkout; Beam's own command listens at every address.
"""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer


def serve(address: str) -> None:
    """Listen there until this process is ended."""
    server = grpc.server(ThreadPoolExecutor(8))
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
        BeamFnExternalWorkerPoolServicer(use_process=True, data_buffer_time_limit_ms=-1), server
    )
    if not server.add_insecure_port(address):
        sys.exit(f"{address}: cannot listen")
    server.start()
    signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1])
