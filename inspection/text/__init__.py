"""What is in a data set, or in one of its records, as text for a terminal."""

from halofeed.inspection.text.dataset import describe
from halofeed.inspection.text.record import describe_record

__all__ = ["describe", "describe_record"]
