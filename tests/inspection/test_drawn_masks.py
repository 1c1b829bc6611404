"""Masks of predictions are drawn over pictures, beside the true ones."""

import numpy as np

from halofeed.inspection.predicted_sources import PredictedSplit, read_prediction_facts
from tests.support.object_masks import convert_objects
from tests.trainer.test_mask_metrics import SIZES, written


def test_drawn_masks_of_a_perfect_model_are_the_true_ones_on_pictures_of_any_size(tmp_path):
    data = convert_objects(
        tmp_path, sizes=SIZES, resize="keep-aspect", min_dimension=24, max_dimension=40, pad=True
    )
    folder = written(tmp_path / "found", data, 0.0, 1).parent
    shown = PredictedSplit(read_prediction_facts(folder), data, "train", min_score=0.0)
    assert len(shown.sources) == len(SIZES)
    for source in shown.sources:
        example = shown.example(source)
        true, found = example.arrays["truth_objects"], example.arrays["predicted_objects"]
        assert true.shape == found.shape == example.image.shape[:2]
        # A scaled picture's masks go to the source's pixels and back.
        same = (true > 0) == (found > 0)
        assert same.mean() > 0.97 and (true > 0).any()
        numbers = np.unique(true[true > 0]).tolist()
        assert example.objects("truth", numbers, [0] * len(numbers))
        assert example.objects("truth", [], []) is None
