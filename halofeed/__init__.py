"""From camera and scanner files to spatially partitioned training steps.

Nothing heavy is imported here: take what you need from `halofeed.prep`, `halofeed.pipelines`,
`halofeed.loader` and `halofeed.trainer`.
"""

__version__ = "0.1.0"
