"""Episodes of a text world in which the policy speaks, or a person in place of the policy or of the world."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.environments.checks import require_level
from jaxagents.environments.text.words import sentence
from jaxagents.language import conversation
from jaxagents.language.generate import Sampling
from jaxagents.language.turns import Turn as TokensOfTurn
from jaxagents.language.turns import render_prompt_words
from jaxagents.play.person import Person, admissible_actions, ask_action, ask_words
from jaxagents.reporting.transcripts import (
    agent_names,
    answer_lines,
    lay_out,
    make_trajectory,
    make_turn,
    print_transcripts,
    prompt_of,
    to_trajectories,
)
from jaxagents.training.load import LoadedPolicy
from jaxagents.types import Array, Environment, LanguagePolicy, Params, PyTree, State, TimeStep

ROLES = ("none", "agent", "environment")
_SHOWN = 30  # Number of admissible actions that are listed.


def play_text(
    loaded: LoadedPolicy,
    person: Person,
    *,
    role: str = "none",
    seed: int = 0,
    num_episodes: int = 1,
    greedy: bool = True,
    held_out: bool = True,
    level: int | None = None,
) -> list[Trajectory]:
    """Plays episodes of a language policy and shows them.

    Args:
        loaded: policy and its world.
        person: person who reads and types.
        role: role of the person: "none": the policy plays alone; "agent": the person types the actions; "environment":
            the person types the observations.
        seed: seed of tasks and randomness.
        num_episodes: number of episodes.
        greedy: True: the most probable tokens; False: sampled tokens.
        held_out: whether to use tasks that training never sees.
        level: difficulty of the tasks; None: it is drawn.

    Returns:
        The played episodes; fewer if the person stopped.

    Raises:
        ValueError: the role is unknown, or the policy is not a language policy.
    """
    if role not in ROLES:
        raise ValueError(f"`role` must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {role!r}.")
    policy: Any = loaded.policy
    if loaded.play is None:
        raise ValueError(f"`role` must be none for a policy without language, got {role!r}.")
    require_level(loaded.environment, level)
    if role != "none" and not loaded.environment.text.words:
        raise ValueError(
            f"`role` must be none in a world of free text, got {role!r}; try load_policy(path).speak(text)."
        )
    if role == "agent":
        return act_as_agent(
            loaded.environment, person, seed=seed, num_episodes=num_episodes, held_out=held_out, level=level
        )
    if role == "environment":
        return act_as_world(
            *(loaded.environment, policy, loaded.params, person),
            seed=seed,
            num_episodes=num_episodes,
            greedy=greedy,
        )
    episode = loaded.play(jax.random.key(seed), num_episodes, greedy=greedy, held_out=held_out, level=level)
    played = to_trajectories(loaded.environment, policy, episode, level=level)
    print_transcripts(played)
    return played


def act_as_agent(
    environment: Environment,
    person: Person,
    *,
    seed: int,
    num_episodes: int = 1,
    held_out: bool = True,
    level: int | None = None,
) -> list[Trajectory]:
    """Lets a person type the actions; see `play_text`. They see the same as a policy."""
    interface = environment.text
    sample_task = jax.jit(partial(interface.sample_held_out_task if held_out else environment.sample_task, level=level))
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    played = []
    for index in range(num_episodes):
        task_key, reset_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), index), 3)
        task = sample_task(task_key)
        prompt = prompt_of(environment, task)
        person.tell("\n".join(filter(None, (f"episode {index + 1}: {environment.name}", prompt))))
        turns, last = _type_actions(environment, person, reset(reset_key, task), partial(step, key))
        over = bool(last.terminated | last.truncated)
        if turns:
            success = bool(last.info["success"]) if over else None
            fields: dict[str, Any] = {"id": f"person-{index}", "level": level, "seed": seed, "success": success}
            played.append(make_trajectory(environment, turns, task, **fields))
        if not over:
            break
    return played


def act_as_world(
    environment: Environment,
    policy: LanguagePolicy,
    params: Params,
    person: Person,
    *,
    seed: int,
    num_episodes: int = 1,
    greedy: bool = True,
) -> list[Trajectory]:
    """Lets a person type the observations of the policy; see `play_text`.

    An empty line ends an episode; an empty prompt means no prompt. There are no rewards.
    """
    ask = partial(ask_words, person, words=environment.text.words, read=policy.lexicon.encode_words)
    answer = _make_answer(policy, environment.action_space.shape[0], greedy)
    person.tell(f"The world could say: {_example(environment)}\nAn empty line ends an episode.")
    played = []
    for index in range(num_episodes):
        key = jax.random.fold_in(jax.random.key(seed), index)
        person.tell(f"episode {index + 1}: {environment.name}")
        prompt, turns, over = _type_observations(environment, policy, person, ask, partial(answer, params), key)
        if turns:
            fields: dict[str, Any] = {"prompt": prompt, "seed": seed, "agents": agent_names(environment)}
            played.append(Trajectory(id=f"person-{index}", world=environment.name, turns=tuple(turns), **fields))
        if not over:
            break
    return played


def _type_observations(
    environment: Environment, policy: LanguagePolicy, person: Person, ask: Callable, answer: Callable, key: Array
) -> tuple[str, list[Turn], bool]:
    """Reads observations for the policy; returns the prompt, the turns, and whether there may be more lines."""
    prompt, words, chat = "", None, None
    turns: list[Turn] = []
    try:
        if policy.layout.prompt:
            task = jax.eval_shape(environment.sample_task, jax.random.key(0))
            size = jax.eval_shape(environment.text.prompt, task).shape[0]
            prompt, words = ask("prompt", room=size)
        while len(turns) < policy.layout.num_turns:
            text, observation = ask("observation", room=environment.observation_space.shape[0])
            if not text:
                break
            chat, reply, valid = answer(chat, observation, words, jax.random.fold_in(key, len(turns)))
            turns.append(_read_turn(policy, Turn(turn=len(turns), observation=text, action="", valid=valid), reply))
            for line in answer_lines(turns[-1]):
                person.tell(line)
    except EOFError:
        return prompt, turns, False
    return prompt, turns, True


def _type_actions(
    environment: Environment,
    person: Person,
    start: tuple[State, TimeStep],
    step: Callable[[State, Array | np.ndarray], tuple[State, TimeStep]],
) -> tuple[list[Turn], TimeStep]:
    """Plays until the end of the episode or of the input; returns the turns and the last time step."""
    interface = environment.text
    turns: list[Turn] = []
    state, timestep = start
    while not (timestep.terminated | timestep.truncated):
        offers = admissible_actions(environment, timestep)
        more = f" and {len(offers) - _SHOWN} more" if len(offers) > _SHOWN else ""
        observation = lay_out(sentence(interface.words, timestep.observation))
        person.tell(f"\n{observation}\n[{', '.join(offers[:_SHOWN])}{more}]")
        try:
            action = ask_action(person, environment, offers)
        except EOFError:
            return turns, timestep
        before, fingerprint = timestep, int(interface.fingerprint(state))
        state, timestep = step(state, action)
        turns.append(make_turn(environment, len(turns), before, action, timestep, fingerprint=fingerprint))
        if (reward := _rewards(environment, timestep)) is not None:
            person.tell(reward)
    person.tell(f"\n{lay_out(sentence(interface.words, timestep.observation))}")
    person.tell("success" if timestep.info["success"] else "no success")
    return turns, timestep


def _rewards(environment: Environment, timestep: TimeStep) -> str | None:
    """Describes the rewards of all players; None if there are none."""
    rewards = np.atleast_1d(timestep.reward)
    if not rewards.any():
        return None
    if environment.num_players == 1:
        return f"reward {rewards[0]:+.4g}"
    return "reward " + ", ".join(
        f"{name} {reward:+.4g}" for name, reward in zip(agent_names(environment), rewards, strict=True)
    )


def _example(environment: Environment) -> str:
    reset_key, task_key = jax.random.split(jax.random.key(0))
    _, timestep = jax.jit(lambda: environment.reset(reset_key, environment.sample_task(task_key)))()
    return sentence(environment.text.words, timestep.observation)


def _make_answer(policy: LanguagePolicy, num_words: int, greedy: bool) -> Callable:
    """Makes `(params, chat, observation, prompt, key) -> (chat, answer, valid)` of one conversation; None starts it."""

    @jax.jit
    def begin(params: Params, prompt: Array | None) -> conversation.Conversation:
        chat = conversation.begin_conversation(policy, 1)
        rendered = None if prompt is None else render_prompt_words(policy, jnp.asarray(prompt)[None])
        return conversation.read_prompts(policy, params, chat, rendered, jnp.ones(1, bool))

    @jax.jit
    def go_on(params: Params, chat: conversation.Conversation, observation: Array, key: Array) -> PyTree:
        keys, sampling = jax.random.split(key, (1, 2)), Sampling(greedy=greedy)
        chat, reply = conversation.answer(policy, params, chat, observation[None], keys=keys, sampling=sampling)
        return chat, reply, conversation.parse_action(policy, reply, num_words)[1][0]

    def answer(params: Params, chat: PyTree, observation: Array, prompt: Array | None, key: Array) -> PyTree:
        chat = begin(params, prompt) if chat is None else chat
        chat, reply, valid = go_on(params, chat, observation, key)
        return chat, reply, bool(valid)

    return answer


def _read_turn(policy: LanguagePolicy, turn: Turn, reply: TokensOfTurn) -> Turn:
    """Adds an answer, the first row, to the turn of a transcript."""
    row = jax.tree.map(lambda leaf: np.asarray(leaf)[0], reply)
    decode, mask = policy.tokenizer.decode, row.token_mask
    thought = row.action_mask & row.thought_mask
    return replace(
        turn,
        action=decode(row.tokens[row.action_mask & ~thought].tolist()),
        thought=decode(row.tokens[thought].tolist()) if policy.layout.thought else None,
        tokens=tuple(row.tokens[mask].tolist()),
        sampled=tuple(row.action_mask[mask].tolist()),
        behavior_log_prob=tuple(row.behavior_log_prob[mask].tolist()),
    )
