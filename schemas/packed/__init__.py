"""Packed arrays: exact pixels, voxels and labels in about half of their bytes; a window is read without the rest.

`docs/packed.md` is the specification. `packed_layout` has the places of a value's bands, `packed_arrays` packs and
unpacks complete arrays, `packed_windows` unpacks windows, and `packed_reference` does both slowly with NumPy.
"""
