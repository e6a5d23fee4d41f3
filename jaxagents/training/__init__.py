"""Training: from configs to programs, the loop, devices, checkpoints, evaluation, and loading of runs."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
