"""Eight virtual CPU devices for every test of the trainer."""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
