"""Learners of adapters: the parameters around which they are put are frozen, and stored once."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import struct

from jaxagents.learners.combinators import params_of, wrap
from jaxagents.networks.adapters import Adapter, combine
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    LanguageModel,
    LanguagePolicy,
    Learner,
    Metrics,
    Params,
    PyTree,
)


@struct.dataclass
class AdaptedState:
    """State of the adapter's learner, whose parameters are those of the adapter, and the frozen base parameters."""

    inner: Any
    base: Params

    @property
    def params(self) -> Params:
        """Returns the parameters with which policies act."""
        return {"base": self.base, "adapter": self.inner.params}


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    adapter: Adapter | Mapping[str, Adapter],
    policy: Callable[..., Any],
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that learns only the parameters of an adapter.

    The inner learner does not see the frozen parameters: its gradients, optimiser and reference policy have the size of
    the adapter. A reference policy is the adapter at the start of the stage, which at first changes nothing.

    Args:
        environment: environment that defines the spaces.
        inner: `(environment, *, policy, axis_name) -> Agent`, the agent that learns.
        adapter: adapter of the policy's parameters; several adapters by name are applied in their order.
        policy: argument of that name for `inner`.
        axis_name: mapped device axis to average gradients over.
        **options: further arguments of `inner`.

    Returns:
        The agent; its parameters are `{"base", "adapter"}`, and it can start from such parameters, or from the state or
        the parameters of a policy without adapters.
    """
    adapter = combine(adapter) if isinstance(adapter, Mapping) else adapter
    made: dict[str, Any] = {}

    def plain(*spaces: Any) -> Any:
        if "policy" not in made:
            made["policy"] = policy(*spaces)
        return made["policy"]

    def agent_on(base: Params | None) -> Agent:
        def make_policy(*spaces: Any) -> Any:
            return on_base(plain(*spaces), adapter, base)

        return inner(environment, policy=make_policy, axis_name=axis_name, **options)

    acting = agent_on(None).policy

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        def learner_on(base: Params | None) -> Learner:
            return agent_on(base).make_learner(collector, num_updates)

        return with_adapter(learner_on, adapter, inside(plain()).init)

    if isinstance(acting, LanguagePolicy):
        return Agent(policy=whole(plain(), adapter), make_learner=make_learner)

    def apply(params: Params, *inputs: Any) -> Any:
        return agent_on(params["base"]).policy.apply(params["adapter"], *inputs)

    return Agent(policy=acting._replace(init=whole(plain(), adapter).init, apply=apply), make_learner=make_learner)


def with_adapter(
    learner_on: Callable[[Params | None], Learner], adapter: Adapter, init_base: Callable[[Array], Params]
) -> Learner:
    """Makes a learner of an adapter on frozen parameters.

    Args:
        learner_on: `(base) -> Learner` of the adapter's parameters; with None, the learner only needs a structure and
            never computes.
        adapter: adapter that is trained.
        init_base: `(key) -> params`, which makes the frozen parameters.

    Returns:
        The learner.
    """
    shell = learner_on(None)

    def init(key: Array, start: AdaptedState | Params | None = None) -> AdaptedState:
        if isinstance(start, AdaptedState):
            return AdaptedState(inner=learner_on(start.base).init(key, start.inner), base=start.base)
        base_key, own_key, key = jax.random.split(key, 3)
        params = init_base(base_key) if start is None else params_of(start)
        if not (isinstance(params, Mapping) and set(params) == {"base", "adapter"}):
            params = {"base": params, "adapter": adapter.init(own_key, params)}
        return AdaptedState(inner=learner_on(params["base"]).init(key, params["adapter"]), base=params["base"])

    def update(state: AdaptedState, key: Array, batch: PyTree) -> tuple[AdaptedState, Metrics]:
        inner, metrics = learner_on(state.base).update(state.inner, key, batch)
        return state.replace(inner=inner), metrics

    def acting(state: AdaptedState, own: Params | tuple[Params, ...]) -> Params | tuple[Params, ...]:
        # Its own parameters and its partner's, see `partners`; an adapter's parameters may be a tuple themselves.
        structure: Any = jax.tree.structure(own)
        if type(own) is tuple and structure != jax.tree.structure(state.inner.params):
            return tuple(acting(state, one) for one in own)
        return {"base": state.base, "adapter": own}

    return wrap(shell, init, update, acting=acting)


def on_base(policy: Any, adapter: Adapter, base: Params | None) -> Any:
    """Returns a policy, or a language policy, whose parameters are those of an adapter on a frozen base."""
    return _with_params(policy, adapter, lambda own: (base, own))


def whole(policy: Any, adapter: Adapter) -> Any:
    """Returns a policy, or a language policy, whose parameters are `{"base", "adapter"}`."""
    return _with_params(policy, adapter, lambda params: (params["base"], params["adapter"]))


def _with_params(policy: Any, adapter: Adapter, split: Callable[[Params], tuple[Params, PyTree]]) -> Any:
    network: Any = inside(policy)

    def merged(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(params: Params, *inputs: Any, **named: Any) -> Any:
            return function(adapter.merge(*split(params)), *inputs, **named)

        return call

    def init(key: Array, shardings: PyTree | None = None) -> Params:
        base_key, own_key = jax.random.split(key)
        base = network.init(base_key) if shardings is None else network.init(base_key, shardings["base"])
        own = adapter.init(own_key, base)
        return {"base": base, "adapter": own if shardings is None else jax.device_put(own, shardings["adapter"])}

    changed: dict[str, Any] = {"init": init, "apply": merged(network.apply)}
    if isinstance(network, LanguageModel):
        changed |= {name: merged(getattr(network, name)) for name in ("extend", "logits")}
        changed |= {"value": network.value and merged(network.value)}
        return policy._replace(model=network._replace(**changed))
    return policy._replace(**changed)


def inside(policy: Any) -> Any:
    """Returns the object that has the parameters: the model of a language policy, or the policy itself."""
    return policy.model if isinstance(policy, LanguagePolicy) else policy
