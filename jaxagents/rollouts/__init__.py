"""Rollouts: experience of policies in environments, evaluation, opponents, and simulators on the host."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
