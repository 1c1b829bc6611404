"""Packed arrays: exact pixels, voxels and labels in about half of their bytes, of which a window can be read alone.

`docs/packed.md` is the specification. `packed_layout` says where a value's bands are, `packed_arrays` packs and
unpacks, and `packed_reference` does the same slowly with NumPy.
"""
