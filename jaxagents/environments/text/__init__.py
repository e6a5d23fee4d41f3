"""Text worlds: observations and actions are sequences of word ids, for policies of arrays and of language."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
