"""A web server on the loopback, in a thread, for as long as a test needs it."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *arguments: object) -> None:
        """A client that went away is nothing to tell."""


@contextmanager
def listening(
    handler: type[BaseHTTPRequestHandler], encryption: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The address of a server whose requests the handler answers while the block runs."""
    listener = _Listener(("127.0.0.1", 0), handler)
    if encryption is not None:
        listener.socket = encryption.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' * (encryption is not None)}://127.0.0.1:{listener.server_address[1]}"
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
