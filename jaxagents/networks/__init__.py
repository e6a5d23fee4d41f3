"""Networks: modules of Flax, from torsos and recurrent cores to transformers."""
