"""Environments: pure functions `sample_task`, `reset` and `step` of one instance, wrappers, and adapters of suites."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
