"""Preparation of the next batches while the device works on this one."""

from halofeed.loader.prefetcher import Prefetcher

Ahead = Prefetcher.of
