"""Interactive play: a person or a model in a world, in the terminal."""
