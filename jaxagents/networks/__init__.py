"""Networks: Flax modules, from torsos and recurrent cores to transformers."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
