"""Pure functions from source files to examples: no Beam, no TensorFlow, no JAX."""
