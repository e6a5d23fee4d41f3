"""Values: functions from parameters and inputs to values of states and actions."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
