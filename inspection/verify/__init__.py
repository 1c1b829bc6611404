"""Whether a converted data set is whole."""

from halofeed.inspection.verify.dataset import Problem, VerifyReport, verify

__all__ = ["Problem", "VerifyReport", "verify"]
