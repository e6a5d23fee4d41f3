"""Games with n players, compiled to arrays: strategies, best responses, and solvers that find equilibria."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
