"""Kernels of compiled programs: a module by hand, and real ones."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from jaxagents.benchmarks.kernels import Loop, count_kernels, kernels_per_token
from jaxagents.benchmarks.suites import run_suite
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model
from tests import CONFIGS

MODULE = """HloModule jit_f, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %n = f32[2]{0} negate(%p)
}

%body (p.1: (s32[], f32[2])) -> (s32[], f32[2]) {
  %p.1 = (s32[], f32[2]{0}) parameter(0)
  %x = f32[2]{0} get-tuple-element(%p.1), index=1
  %gemm = (f32[2]{0}, s8[64]{0}) custom-call(%x), custom_call_target="__cublas$lt$matmul"
  %y = f32[2]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[2]{0}) tuple(%i, %y)
}

%open_condition (p.2: (s32[], f32[2])) -> pred[] {
  ROOT %less = pred[] compare(%a, %b), direction=LT
}

%few (p.3: f32[2]) -> f32[2] {
  ROOT %c = f32[2]{0} copy(%p.3)
}

%many (p.4: f32[2]) -> f32[2] {
  %c.1 = f32[2]{0} copy(%p.4)
  ROOT %c.2 = f32[2]{0} call(%c.1), to_apply=%few
}

ENTRY %main (x.1: f32[2]) -> f32[2] {
  %x.1 = f32[2]{0} parameter(0)
  %w = (s32[], f32[2]{0}) while(%t.1), condition=%open_condition, body=%body, config={"known_trip_count":{"n":"5"}}
  %v = (s32[], f32[2]{0}) while(%w), condition=%open_condition, body=%body
  %s = (f32[2]{0}, u32[]) all-gather-start(%x.1)
  %d = f32[2]{0} all-gather-done(%s)
  ROOT %r = f32[2]{0} conditional(%pred, %d, %d), branch_computations={%few, %many}
}
"""


def test_a_module_by_hand():
    """Five trips of two, one of three, whose condition is launched as well, one exchange, and the larger branch."""
    assert count_kernels(MODULE) == (5 * 2 + 3 + 1 + 2, (Loop(5, 2), Loop(None, 3)))


def test_loops_of_a_compiled_program_are_found():
    def scanned(x):
        inner = jax.lax.scan(lambda y, _: (jnp.sort(y), None), x, length=3)[0]
        return jax.lax.while_loop(lambda y: y[0] < 10.0, lambda y: jnp.sort(y) * 2.0, inner)

    kernels = count_kernels(jax.jit(scanned).lower(jnp.arange(8.0)).compile().as_text())
    assert {loop.trips for loop in kernels.loops} == {3, None}
    assert kernels.total >= 3 * min(loop.kernels for loop in kernels.loops) > 0


@pytest.mark.slow
def test_the_suite_counts_an_update_and_a_token():
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = hydra_compose("benchmark", ["suite=kernels", "quick=true"])
    rows, values = run_suite(config, CONFIGS)
    assert rows == {} and values["ppo_cartpole/kernels_per_update"] > 100
    layers = {"features": 32, "num_heads": 4, "hidden_features": 64, "dtype": jnp.bfloat16}
    sizes = {"batch_size": 4, "num_tokens": 8, "prompt_tokens": 8}
    one, two = (
        kernels_per_token(make_language_model(100, network=partial(Decoder, **layers, num_layers=n)), **sizes)
        for n in (1, 2)
    )
    assert two > one > 10 and values["large_lm/kernels_per_token"] > 10


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="`text` must be of an optimised module"):
        count_kernels("")
