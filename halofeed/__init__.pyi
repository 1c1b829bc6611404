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
from halofeed.loader import ElasticDeformation as ElasticDeformation
from halofeed.loader import FlipDepth as FlipDepth
from halofeed.loader import FlipLeftRight as FlipLeftRight
from halofeed.loader import FlipUpDown as FlipUpDown
from halofeed.loader import Loader as Loader
from halofeed.loader import Mixture as Mixture
from halofeed.loader import MixUp as MixUp
from halofeed.loader import Mosaic as Mosaic
from halofeed.loader import RandomCrop as RandomCrop
from halofeed.loader import RandomCropImage as RandomCropImage
from halofeed.loader import RandomRotation as RandomRotation
from halofeed.loader import Rotate90 as Rotate90
from halofeed.loader import ScaleJitter as ScaleJitter
from halofeed.loader import SsdRandomCrop as SsdRandomCrop
from halofeed.loader import join_id as join_id
from halofeed.schemas.partition import Partition as Partition
from halofeed.trainer.mesh import constrain as constrain
from halofeed.trainer.mesh import make_mesh as make_mesh

__version__: str
