"""Which options a training run has: one frozen dataclass, from which the command line is made too.

Nothing here imports JAX, so that the command line can set the platform first.
"""

from __future__ import annotations

from dataclasses import dataclass

from halofeed.prep.option import option
from halofeed.schemas.errors import UsageError
from halofeed.schemas.partition import Partition

COMPUTE_DTYPES = ("bfloat16", "float32")
OPTIMIZER_NAMES = ("sgd", "adamw")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Everything that decides a training run, beside the data.

    Raises:
        UsageError: with every option that is wrong; PartitionError if the partition breaks a rule.
    """

    steps: int = option(100, "how many steps to take")
    batch_size: int = option(8, "images in a step, over all devices")
    learning_rate: float = option(
        0.05, "the highest rate; it warms up for a twentieth of the steps, then decays"
    )
    optimizer: str = option(
        "sgd", "sgd has momentum 0.9; adamw wants a rate near 0.001", choices=OPTIMIZER_NAMES
    )
    model: str = option(
        "classifier", "which network; for a detection set it learns which classes are present"
    )
    compute_dtype: str = option("bfloat16", "precision of the activations", choices=COMPUTE_DTYPES)
    seed: int = option(0, "draws the initial parameters and the order of the data")
    cores_per_replica: int = option(1, "over how many cores each image is split: 1, 2, 4, ..., 128")
    partition: str = option(
        "",
        "parts along each axis, batch first, e.g. image=1,4,1,1 for 4 bands of rows; part several by ;",
    )
    virtual_devices: int | None = option(
        None, "train on this many CPU devices, whatever accelerators there are"
    )

    def __post_init__(self) -> None:
        wrong = [
            f"{name.replace('_', ' ')}: expected {expected}, got {getattr(self, name)}"
            for name, expected, right in (
                ("steps", "1 or more", self.steps >= 1),
                ("batch_size", "1 or more", self.batch_size >= 1),
                ("learning_rate", "more than 0", self.learning_rate > 0),
                ("optimizer", f"one of {', '.join(OPTIMIZER_NAMES)}", self.optimizer in OPTIMIZER_NAMES),
                (
                    "compute_dtype",
                    f"one of {', '.join(COMPUTE_DTYPES)}",
                    self.compute_dtype in COMPUTE_DTYPES,
                ),
                ("seed", "0 or more", self.seed >= 0),
                ("virtual_devices", "1 or more", self.virtual_devices is None or self.virtual_devices >= 1),
            )
            if not right
        ]
        cores = self.parsed_partition().cores_per_replica
        if cores > 1 and not self.parsed_partition().dims:
            wrong.append(
                f"partition: expected one for {cores} cores per replica, else each core does the same work; "
                f"pass --partition image=1,{cores},1,1"
            )
        if wrong:
            raise UsageError("; ".join(wrong))

    def parsed_partition(self) -> Partition:
        """The partition that `cores_per_replica` and `partition` spell.

        >>> TrainOptions(cores_per_replica=4, partition="image=1,2,2,1").parsed_partition().dims
        {'image': (1, 2, 2, 1)}
        """
        return Partition.parse(self.partition, cores_per_replica=self.cores_per_replica)
