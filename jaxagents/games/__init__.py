"""Games of n players, compiled to arrays: strategies, best responses, and what finds equilibria."""
