"""Training: configs to programs, the loop, devices, checkpoints, evaluation, and what is loaded of a run."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
