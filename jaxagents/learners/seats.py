"""A learner in which every seat of a game has a separate adapter, above one copy of the frozen parameters."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import optax

from jaxagents.learners import adapted
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import make_separate
from jaxagents.networks.adapters import Adapter, combine
from jaxagents.policies.seats import adapters_of_seats, names_of_seats, with_adapters_of_seats
from jaxagents.types import Agent, Collector, Environment, LanguagePolicy, Learner, Params


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    adapter: Adapter | Mapping[str, Adapter],
    policy: Callable[..., Any],
    optimizer: Callable[..., optax.GradientTransformation],
    adapters: Mapping[str, Adapter] = MappingProxyType({}),
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent whose seats each learn an adapter, from what they say themselves.

    One policy plays all seats, as in `learners.adapted`, and every turn is read and generated with the adapter of the
    acting seat, see `policies.seats`. All adapters are trained in the same update. A reference policy is the frozen
    parameters with the adapters at the start of the stage.

    Args:
        environment: text world with several seats, whose observations say "player 0" and so on, for the seat that
            receives them.
        inner: `(environment, *, policy, axis_name) -> Agent`, the agent that learns.
        adapter: adapter of every seat, LoRA without magnitudes.
        policy: argument of that name for `inner`, for a language policy.
        optimizer: argument of that name for `inner`, applied to each adapter separately, including clipping.
        adapters: adapters of seats with a different one, by the seat's name, such as `seat_1`; for example from a
            folder of `peft`.
        axis_name: mapped device axis to average gradients over.
        **options: further arguments of `inner`.

    Returns:
        The agent; its parameters are `{"base", "adapter": {"seat_0", "seat_1", ...}}`. It can start from such
        parameters, from those of a policy without adapters, or from those of a policy with one, with which all seats
        then continue.

    Raises:
        ValueError: the world has one seat or is not a text world, a seat does not exist, an adapter is not LoRA, or the
            observations do not name the seat that receives them.
    """
    if environment.num_players < 2:
        raise ValueError(
            f"`environment` must have several seats for an adapter each, got one in {environment.name!r}; "
            "try learner=adapted."
        )
    names = names_of_seats(environment.num_players)
    if unknown := sorted(set(adapters) - set(names)):
        raise ValueError(
            f"`adapters` must be of seats of {environment.name!r}, {', '.join(names)}, got {', '.join(unknown)}."
        )
    adapter = combine(adapter) if isinstance(adapter, Mapping) else adapter
    together = adapters_of_seats({name: adapters.get(name, adapter) for name in names})

    def seated(*spaces: Any) -> LanguagePolicy:
        plain = policy(*spaces)
        if not isinstance(plain, LanguagePolicy):
            raise ValueError("`policy` must speak for an adapter of each seat, got one of arrays; try learner=adapted.")
        return with_adapters_of_seats(plain, environment)

    settings = {
        "optimizer": partial(make_separate, optimizer=optimizer, names=names),
        "axis_name": axis_name,
        **options,
    }
    agent = adapted.make_agent(environment, inner=inner, adapter=together, policy=seated, **settings)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        learner = agent.make_learner(collector, num_updates)
        return learner._replace(init=lambda key, start=None: learner.init(key, _for_all_seats(start, names)))

    return agent._replace(make_learner=make_learner)


def _for_all_seats(start: Any, names: Sequence[str]) -> Any:
    """Gives the single adapter of a start, if it has one, to all seats; other starts are left unchanged."""
    params: Params | None = params_of(start)
    if not (isinstance(params, Mapping) and set(params) == {"base", "adapter"}):
        return start
    own = params["adapter"]
    if set(own) == set(names):
        return start
    if any(name.startswith("seat_") for name in own):
        raise ValueError(f"`start` must have adapters of {', '.join(names)}, got those of {', '.join(own)}.")
    return {"base": params["base"], "adapter": dict.fromkeys(names, own)}
