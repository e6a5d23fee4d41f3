"""Stateless array operations: returns, advantages, credit, distributions, masks, statistics."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
