"""Losses: element-wise objectives of policies, values, preferences, imitation and world models."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
