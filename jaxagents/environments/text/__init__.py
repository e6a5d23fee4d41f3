"""Worlds that speak and hear sequences of word ids: one world for symbolic policies and for language models."""
