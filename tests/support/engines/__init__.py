"""Engines and stores as code: real clusters and servers on this machine's loopback, for tests and for trying."""
