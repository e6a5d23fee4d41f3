"""A person or a model at a world, in the terminal."""
