"""Search: trees, planning with models, and candidates of language policies."""
