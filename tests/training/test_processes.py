"""How processes meet: what is missing, and who does not come, is said in one line."""

import jax
import pytest

from jaxagents.training.processes import join_processes


def test_half_an_address_is_refused():
    with pytest.raises(ValueError, match=r"must be given together, got \('localhost:1', None, None\)"):
        join_processes("localhost:1")


def test_a_coordinator_that_nobody_is_is_named_with_the_seconds():
    with pytest.raises(ConnectionError, match=r"all 2 processes must meet at localhost:1 .* none or too few in 1 s"):
        join_processes("localhost:1", 2, 1, timeout_seconds=1)


def test_where_no_cluster_is_the_way_out_is_said(monkeypatch):
    def initialize(*arguments, **options):  # What jax says there; it can only be asked before the backend starts.
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match="must be given where the environment names no cluster"):
        join_processes()
