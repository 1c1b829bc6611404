"""Batches in the forms that other trainers take: torchvision, Ultralytics, RF-DETR, MONAI, nnU-Net and Keras.

Each form is one file. `halofeed.torch` and `halofeed.keras_batches` are the names for users.
"""
