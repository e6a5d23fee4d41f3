"""Learners: pairs `init` and `update` of one algorithm each, and combinators of them."""
