"""A package of its own, for `tests.fakes`: others install one of that name."""
