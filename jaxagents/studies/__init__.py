"""Small experiments that need no world: one compiled function from a seed to the numbers of a paper."""
