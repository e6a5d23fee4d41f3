"""Data: trajectory files, packed rows of tokens, replay buffers, and fixed data sets."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
