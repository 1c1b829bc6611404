"""A small file of a web server that an option names is read, although its bound is the memory of the machine."""

from http.server import BaseHTTPRequestHandler

import pytest

from halofeed.storage import choose, web
from tests.support.loopback import listening

BOUND = 1 << 46
"""More than any machine has, so that a buffer of this size is refused at once."""


class Small(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        data = b"cat\ndog\n"
        is_chunked = "chunked" in self.path
        self.send_response(200)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data) if is_chunked else data)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("name", ["sized", "chunked"])
def test_memory_and_time_follow_the_file_and_not_its_bound(name, monkeypatch):
    get, seconds = web.RangeReader.get, []

    def noting(reader, address, start, stop, timeout):
        seconds.append(timeout)
        return get(reader, address, start, stop, timeout)

    monkeypatch.setattr(web.RangeReader, "get", noting)
    with listening(Small) as address:
        for _ in range(2):  # the second one uses the connection of the first
            assert choose.read_option_file("--label-map", f"{address}/{name}.txt", BOUND) == b"cat\ndog\n"
    assert set(seconds) == {60.0}
