"""Language agents: tokenizers, generation, dialogue, tools, demonstrations, and checkpoints for other libraries."""

from jaxagents import modules_of

__getattr__ = modules_of(__name__)
