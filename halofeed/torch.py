"""A converted data set in the forms that PyTorch's trainers take; each name is imported when it is used first.

>>> import halofeed
>>> data = halofeed.open("data/cards/1.0.0")  # doctest: +SKIP
>>> batches = halofeed.torch.detection(data.loader(batch_size=8))  # doctest: +SKIP
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from halofeed.loader.forms.monai_form import monai as monai
    from halofeed.loader.forms.nnunet_form import PatchOptions as PatchOptions
    from halofeed.loader.forms.nnunet_form import nnunet as nnunet
    from halofeed.loader.forms.rf_detr_form import rf_detr as rf_detr
    from halofeed.loader.forms.torchvision_form import detection as detection
    from halofeed.loader.forms.torchvision_form import source_boxes as source_boxes
    from halofeed.loader.forms.ultralytics_form import ultralytics as ultralytics

_NAMES = {
    **dict.fromkeys(("detection", "source_boxes"), "halofeed.loader.forms.torchvision_form"),
    **dict.fromkeys(("PatchOptions", "nnunet"), "halofeed.loader.forms.nnunet_form"),
    "rf_detr": "halofeed.loader.forms.rf_detr_form",
    "monai": "halofeed.loader.forms.monai_form",
    "ultralytics": "halofeed.loader.forms.ultralytics_form",
}


def __getattr__(name: str) -> _Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'halofeed.torch' has no attribute {name!r}; it has {', '.join(_NAMES)}")
    return getattr(_importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
