"""Evaluation with planning of every action: shooting, and tree searches in games and in learned models."""

from collections.abc import Callable
from typing import Any

import jax

from jaxagents.environments.squashing import squash_action
from jaxagents.environments.wrappers import AlternatingState, episode_statistics
from jaxagents.ops.checks import check_counts
from jaxagents.ops.distributions import is_bounded
from jaxagents.ops.rows import where_rows
from jaxagents.policies.evaluating import EvaluatingPolicy
from jaxagents.policies.latent_model import LatentModel
from jaxagents.rollouts.evaluate import episode_results
from jaxagents.search.planning import Planner
from jaxagents.search.tree_search import candidates_of, make_latent_search, make_tree_search
from jaxagents.types import Array, Carry, Environment, Params, Policy, State, TimeStep


def make_planning_evaluator(
    environment: Environment,
    policy: Policy,
    *,
    planner: Callable[[Environment, Policy], Planner],
    num_episodes: int,
    greedy: bool = True,
    level: int | None = None,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes a function that plays whole episodes on tasks fixed by a key, with every action planned.

    Args:
        environment: single instance.
        policy: policy that the planner may use.
        planner: `(environment, policy) -> Planner`.
        num_episodes: E, number of episodes, each on a separate task.
        greedy: not used; the planner decides how random a plan is.
        level: difficulty of the tasks.

    Returns:
        `(params, key) -> dict` of float32 `[E]`, see `rollouts.evaluate.make_evaluator`.

    Raises:
        ValueError: `num_episodes` is not positive.
    """
    del greedy
    check_counts(num_episodes=num_episodes)
    init, plan = planner(environment, policy)
    tracked = episode_statistics(environment)

    def play(params: Params, key: Array) -> TimeStep:
        task_key, reset_key, run_key = jax.random.split(key, 3)
        state, timestep = tracked.reset(reset_key, tracked.sample_task(task_key, level))

        def step(carry: tuple[State, TimeStep, Carry], key: Array) -> tuple[Any, None]:
            state, timestep, memory = carry
            plan_key, step_key = jax.random.split(key)
            memory, action = plan(params, plan_key, memory, state.inner, timestep)
            over = timestep.terminated | timestep.truncated
            state, timestep = where_rows(over, (state, timestep), tracked.step(step_key, state, action))
            return (state, timestep, memory), None

        keys = jax.random.split(run_key, environment.max_steps)
        return jax.lax.scan(step, (state, timestep, init()), keys)[0][1]

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        return episode_results(jax.vmap(play, in_axes=(None, 0))(params, jax.random.split(key, num_episodes)))

    return evaluate


def make_game_planner(
    environment: Environment,
    policy: EvaluatingPolicy,
    *,
    game: Environment,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
) -> Planner:
    """Makes a planner that searches a game as both players would play it, whoever the opponent is.

    Args:
        environment: game for one agent (`environments.opponents.against`), in which episodes are played.
        policy: policy that guides the search.
        game: the same game as one stream of both players (`environments.wrappers.alternating`), which is searched.
        method: see `make_tree_search`.
        num_simulations: see `make_tree_search`.
        max_depth: see `make_tree_search`.

    Returns:
        The planner.

    Raises:
        ValueError: the environment is not a game against an opponent, or see `make_tree_search`.
    """
    start = jax.eval_shape(lambda key: environment.reset(key, environment.sample_task(key)), jax.random.key(0))[0]
    if not hasattr(start, "seat"):
        raise ValueError(
            f"`environment` must be a game that one agent plays against another, got {environment.name}; try "
            "world=tic_tac_toe, or evaluation=model_search for algorithm=muzero."
        )
    search = make_tree_search(game, policy, method=method, num_simulations=num_simulations, max_depth=max_depth)

    def plan(params: Params, key: Array, carry: Carry, state: State, timestep: TimeStep) -> tuple[Carry, Array]:
        searched = AlternatingState(inner=state.inner, player=state.seat)
        return carry, search(params, key, searched, timestep).action

    return Planner(init=lambda: (), plan=plan)


def make_model_planner(
    environment: Environment,
    policy: LatentModel,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
    discount: float = 1.0,
    num_samples: int | None = None,
    proposal_scale: float = 1.0,
) -> Planner:
    """Makes a planner that searches the model which a policy has learned, as MuZero plays.

    Args:
        environment: environment in which episodes are played; the planner only sees its observations.
        policy: latent model that is searched.
        method: see `make_tree_search`.
        num_simulations: see `make_tree_search`.
        max_depth: see `make_tree_search`.
        discount: discount per step for the model's values.
        num_samples: number of branches of every node, for continuous actions; None for all discrete actions.
        proposal_scale: see `sampled_actions`.

    Returns:
        The planner.

    Raises:
        ValueError: the policy has no model, or see `make_latent_search`.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, appendix B.
    """
    if not isinstance(policy, LatentModel):
        raise ValueError(f"`policy` must have a model to search, got {type(policy).__name__}; try policy=latent_model.")
    space = environment.action_space
    candidates = candidates_of(space, num_samples, proposal_scale)
    limits = {"num_simulations": num_simulations, "max_depth": max_depth, "discount": discount}  # type: dict[str, Any]
    search = make_latent_search(policy, method=method, candidates=candidates, **limits)

    def plan(params: Params, key: Array, carry: Carry, state: State, timestep: TimeStep) -> tuple[Carry, Array]:
        action = search(params, key, state, timestep).action
        return carry, squash_action(action, space) if is_bounded(space) else action

    return Planner(init=lambda: (), plan=plan)
