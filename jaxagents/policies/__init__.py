"""Policies: functions from parameters and inputs to distributions of actions."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
