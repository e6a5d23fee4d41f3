"""Shares of styles of thoughts, of transcripts whose styles are known."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments.text import arithmetic
from jaxagents.environments.text.styles import with_styles
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.styled import make_styled_collector, style_metrics


@pytest.mark.exhaustive
def test_thoughts_of_the_expert_are_told_apart(speak):
    """Four transcripts of programs, the last one of which is not thought at all."""
    wrap = partial(with_styles, styles=["program"])
    sums = arithmetic.make_environment((1,), (2,), operations=("+",), wrappers={"styles": wrap})
    policy = speak(sums, context_turns=1, prompt=False, thought_tokens=29)
    rows = jax.jit(make_demonstrations(sums, policy))(jax.random.key(1), jnp.arange(4))
    rows = rows.replace(thought_mask=rows.thought_mask.at[3].set(False))
    shares = {name: float(mean.value) for name, mean in style_metrics(policy, sums.text.words, rows).items()}
    assert shares == {"style_notes": 0.0, "style_program": 0.75, "style_prose": 0.0, "largest_style": 0.75}


def test_there_must_be_room_for_thoughts(speak):
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be positive"):
        make_styled_collector(sums, speak(sums, context_turns=1, prompt=False), num_groups=1, group_size=1)
