"""Worlds that speak and hear sequences of word ids: one world for symbolic policies and for language models."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
