from halofeed.api import Dataset as Dataset
from halofeed.api import convert as convert
from halofeed.api import dry_run as dry_run
from halofeed.api import evaluate as evaluate
from halofeed.api import export as export
from halofeed.api import inspect as inspect
from halofeed.api import open as open  # noqa: A004
from halofeed.api import plan as plan
from halofeed.api import predict as predict
from halofeed.api import report as report
from halofeed.api import show as show
from halofeed.api import train as train
from halofeed.api import verify as verify
from halofeed.loader import Loader as Loader
from halofeed.loader import Mixture as Mixture
from halofeed.schemas.partition import Partition as Partition
from halofeed.trainer.mesh import constrain as constrain
from halofeed.trainer.mesh import make_mesh as make_mesh

__version__: str
