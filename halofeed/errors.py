"""Errors that halofeed raises, under their public name; `halofeed.system.errors` defines them."""

from halofeed.system.errors import AnnotationsError as AnnotationsError
from halofeed.system.errors import ArgumentsError as ArgumentsError
from halofeed.system.errors import ChangedSourceError as ChangedSourceError
from halofeed.system.errors import CorruptFileError as CorruptFileError
from halofeed.system.errors import HalofeedError as HalofeedError
from halofeed.system.errors import JobError as JobError
from halofeed.system.errors import LostJobError as LostJobError
from halofeed.system.errors import ManifestError as ManifestError
from halofeed.system.errors import MissingExtraError as MissingExtraError
from halofeed.system.errors import NotRunError as NotRunError
from halofeed.system.errors import PartitionError as PartitionError
from halofeed.system.errors import Problem as Problem
from halofeed.system.errors import SourceError as SourceError
from halofeed.system.errors import StoreError as StoreError
from halofeed.system.errors import SystemLimitError as SystemLimitError
from halofeed.system.errors import TrainingError as TrainingError
from halofeed.system.errors import UsageError as UsageError
from halofeed.system.errors import install_command as install_command
from halofeed.system.errors import require_extra as require_extra
