"""Games of n players, compiled to arrays: strategies, best responses, and what finds equilibria."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
