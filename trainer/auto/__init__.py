"""Configurations that are planned from a data set: `train --config auto` and `plan --auto`.

fingerprint.py         what the manifest measured: spacings, sizes, classes, structures, values
unet_plan.py           nnU-Net's rules: spacing, patches, depth, strides, kernels
anchors.py             anchors of a detector, from the sizes of the boxes
candidates.py          configurations to try, the best first, with the cost of each
choose.py              the first candidate that a compiler and the time accept
judges.py              verdicts: a step compiled and timed here, or compiled for another machine
conversion_advice.py   what the conversion should choose, as a command
"""
