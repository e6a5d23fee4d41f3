"""Rules of small games, in plain Python: each file has one function that returns a `Definition`."""
