"""Language agents: tokenizers, generation, dialogue, tools, demonstrations, and checkpoints of other libraries."""
