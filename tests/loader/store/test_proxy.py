"""Ranges of web servers and of S3 go through the proxy of the environment, and trust its certificates.

The servers have names that only the proxy knows, so that each answer proves the way that it took.
"""

import datetime
import ipaddress
import select
import socket
import ssl
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import pytest

from halofeed.errors import UsageError
from halofeed.storage.s3 import S3Objects
from halofeed.storage.web import WebFiles
from halofeed.system.addresses import Address
from tests.support.loopback import listening

DATA = bytes(range(256)) * 40
SECONDS = 20.0
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


def web(address):
    return WebFiles(Address(address))


class Files(BaseHTTPRequestHandler):
    """A server that has DATA at every path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        start, stop = self.headers["Range"].removeprefix("bytes=").split("-")
        body = DATA[int(start) : int(stop) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop}/{len(DATA)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def proxy_to(port, asked):
    """A proxy that takes every server for the one at this port, and lists what it is asked for."""

    class Proxy(Files):
        def do_GET(self):
            asked.append((self.path, self.headers["Host"], self.headers["Proxy-Authorization"]))
            super().do_GET()

        def do_CONNECT(self):
            asked.append((self.path, self.headers["Host"], self.headers["Proxy-Authorization"]))
            self.send_response(200)
            self.end_headers()
            with socket.create_connection(("127.0.0.1", port)) as far:
                ends = [self.connection, far]
                while True:
                    for end in select.select(ends, [], [])[0]:
                        data = end.recv(1 << 16)
                        if not data:
                            self.close_connection = True
                            return
                        ends[1 - ends.index(end)].sendall(data)

    return Proxy


@contextmanager
def serving_tls(folder):
    """The port of a server that speaks TLS as far.test, and the file of the certificate that proves it."""
    file = self_signed(folder)
    encryption = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    encryption.load_cert_chain(file)
    with listening(Files, encryption) as address:
        yield int(address.rpartition(":")[2]), file


def self_signed(folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "far.test")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("far.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "far.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    return str(file)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


def test_plain_ranges_of_web_servers_and_s3_go_through_the_proxy(monkeypatch):
    asked = []
    with listening(proxy_to(0, asked)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.replace("://", "://ann:pa55word@"))
        assert web("http://far.test/a.bin?sig=1").read_once("", 5, 900, SECONDS) == DATA[5:900]
        assert asked == [("http://far.test/a.bin?sig=1", "far.test", "Basic YW5uOnBhNTV3b3Jk")]
        bucket = S3Objects({"endpoint_url": "http://far.test", **KEYS}).at("s3://bucket")
        assert bucket.read_once("a.bin", 7, 70, SECONDS) == DATA[7:70]
        assert urlsplit(asked[1][0]).path == "/bucket/a.bin"


def test_encrypted_ranges_go_through_a_tunnel_and_trust_the_named_certificates(monkeypatch, tmp_path):
    asked = []
    with serving_tls(tmp_path) as (port, certificate), listening(proxy_to(port, asked)) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        # A server whose certificate nobody vouches for is refused.
        with pytest.raises(ssl.SSLCertVerificationError):
            web("https://far.test/a.bin").read_once("", 0, 9, SECONDS)
        monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
        bucket = S3Objects({"endpoint_url": "https://far.test", **KEYS}).at("s3://bucket")
        assert bucket.read_once("a.bin", 7, 70, SECONDS) == DATA[7:70]
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        assert web("https://far.test").read_once("a.bin", 5, 900, SECONDS) == DATA[5:900]
        assert {place for place, _, _ in asked} == {"far.test:443"}


def test_no_proxy_is_followed(monkeypatch):
    asked = []
    with listening(Files) as near, listening(proxy_to(0, asked)) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert web(near).read_once("a.bin", 5, 900, SECONDS) == DATA[5:900]
        assert asked == []


def test_a_proxy_of_another_kind_is_refused_with_its_cure(monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://ann:pa55word@near.test:1080")
    with pytest.raises(
        UsageError, match=r"socks5://\*\*\*@near.test:1080: expected a proxy as http://HOST:PORT.*NO_PROXY"
    ):
        web("http://far.test").read_once("a.bin", 0, 9, SECONDS)
