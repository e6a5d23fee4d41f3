"""Search: trees, planning with models, and candidates of language policies."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
