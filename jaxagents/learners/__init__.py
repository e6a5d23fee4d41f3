"""Learners: pairs `init` and `update` of one algorithm each, and combinators of them."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
