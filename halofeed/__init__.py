"""From camera and scanner files to spatially partitioned training steps.

This module imports nothing heavy. Import from `halofeed.prep`, `halofeed.pipelines`, `halofeed.loader` and
`halofeed.trainer`.
"""

__version__ = "0.1.0"
