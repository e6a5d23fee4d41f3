"""Learners: a pair of `init` and `update` for each algorithm, and combinators of learners."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
