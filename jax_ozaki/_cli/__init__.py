"""The commands of ``python -m jax_ozaki``, one module each; see ``jax_ozaki/__main__.py``."""
