"""Are numbers of records that several threads keep at the same time those that each has kept?"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from halofeed.loader.columns import Columns


def test_threads_that_keep_at_the_same_time_lose_and_mix_up_nothing():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                columns = Columns(64)

                def work(first, columns=columns):
                    for number in range(first, 64, 4):
                        columns.keep("label", number, np.array(1 + number))

                list(pool.map(work, range(4)))
                found = [columns.get("label", number) for number in range(64)]
                assert found == [1 + number for number in range(64)]
    finally:
        sys.setswitchinterval(interval)
