"""What every text world promises, over all its levels and both its splits."""

import dataclasses
import functools
import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.environments.text.splits import as_integers, leaves_without_level
from jaxagents.environments.text.words import NOTHING_HAPPENS
from jaxagents.environments.text.writing import num_words
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.lexicon import make_lexicon
from jaxagents.language.tokenizers import byte_level, train_sentencepiece, word_level
from jaxagents.policies.contexts import score_tokens, to_rows
from jaxagents.types import Choice, Several

FOLDER = Path(__file__).parents[3] / "configs" / "environment"
TARGETS = {path.stem: str(OmegaConf.load(path).get("_target_")) for path in sorted(FOLDER.glob("*.yaml"))}
# Every option file that makes a text world; symbolic ones have no words to speak.
WORLDS = [
    name
    for name, target in TARGETS.items()
    if target.startswith("jaxagents.environments.text.") and ".symbolic." not in target
]
# Games against an expert cannot all be won: there, the expert only has to come to the end, and success is a win.
AGAINST = [name for name in WORLDS if TARGETS[name].endswith(".against_expert")]
# One of each kind; the others compile long, and have episodes that are played by hand in tests of their own.
FEW = ("bandit", "frozenlake", "text_kuhn")
CASES = [name if name in FEW else pytest.param(name, marks=pytest.mark.exhaustive) for name in WORLDS]
# What is examined is answered, which changes nothing: the same situation is then seen with and without an answer.
ANSWERED = ("household",)
KEYS_TWICE = ("guessing_games", "screen", "sokoban", "union")
BATCH = 16


def bpe(words):
    return train_sentencepiece(words, vocab_size=120, model_type="bpe", whole_words=False)


KINDS = {word_level: "words", byte_level: "bytes", bpe: "bpe"}
FUZZED = [(name, 256) for name in FEW] + [pytest.param(name, 10_000, marks=pytest.mark.exhaustive) for name in WORLDS]
QUICK = ("bandit",)
TOKENIZED = [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in WORLDS]


@functools.cache
def world(name):
    return instantiate(OmegaConf.load(FOLDER / f"{name}.yaml"))


@functools.cache
def sampler(name, held_out):
    """`(key, level [B]) -> tasks`."""
    sample = world(name).text.sample_held_out_task if held_out else world(name).sample_task
    return jax.jit(lambda key, level: jax.vmap(sample)(jax.random.split(key, level.shape[0]), level))


@functools.cache
def tasks(name, held_out):
    """`BATCH` tasks of each level, one level after the other."""
    level = np.repeat(np.arange(world(name).text.num_levels, dtype=np.int32), BATCH)
    return sampler(name, held_out)(jax.random.key(int(held_out)), level)


def fields(task):
    return task if isinstance(task, dict) else vars(task)


def contents(task):
    """Hashable contents of the tasks, the level left out."""
    leaves = jax.tree.leaves({k: v for k, v in fields(jax.device_get(task)).items() if k != "level"})
    return [tuple(np.asarray(leaf[row]).tobytes() for leaf in leaves) for row in range(leaves[0].shape[0])]


def rows_of(name):
    """The actions of a world; where they cannot be listed, some that have every word somewhere."""
    interface = world(name).text
    return interface.examples if interface.actions is None else interface.actions


def mask_of(timestep, num_actions):
    return jnp.ones(num_actions, bool) if timestep.action_mask is None else timestep.action_mask


@functools.cache
def rules_of(name):
    """The rules of a world, or of the game that is played against an expert, and `(state) -> state` of their part."""
    if name in AGAINST:
        return instantiate(OmegaConf.load(FOLDER / f"{name}.yaml").environment).text.rules, lambda state: state.inner
    return world(name).text.rules, lambda state: state


@functools.cache
def player(name):
    """`(key, task, wanders) -> record` of an episode, and of what other actions would have done in its states.

    The expert plays, or where it wanders, any action that is allowed.
    """
    environment = world(name)
    interface, space, (rules, part) = environment.text, environment.action_space, rules_of(name)
    actions = jnp.asarray(rows_of(name))

    def situation(state):
        """All that the state is to the rules, as integers: the task, where the episode is in it, and who is asked."""
        state = part(state)
        task = (rules.identity or leaves_without_level)(state.task)
        inner = (rules.situation or leaves_without_level)(state.inner)
        asked = state.pending[2] if state.pending else 0
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.int32) for leaf in as_integers((task, inner, asked))])

    def look(state, timestep, key):
        any_key, word_key, row_key, step_key = jax.random.split(key, 4)
        garbage = jnp.where(
            jax.random.bernoulli(any_key, 0.5, space.shape),
            jax.random.randint(word_key, space.shape, -1, len(interface.words)),
            jax.random.randint(word_key, space.shape, -(2**31), 2**31 - 1),
        )
        row = jax.random.randint(row_key, (), 0, len(actions))
        garbled_state, garbled = environment.step(step_key, state, garbage)
        other_state, other = environment.step(step_key, state, actions[row])
        return {
            "known": jnp.any(jnp.all(actions == garbage[None], axis=1)),
            "garbage": garbage,
            "garbled": garbled,
            "fingerprints": jnp.stack([interface.fingerprint(one) for one in (state, garbled_state, other_state)]),
            "situations": jnp.stack([situation(one) for one in (state, garbled_state, other_state)]),
            "state": state,
            "other": other,
            "other_valid": other.info["valid"],
            # Where actions cannot be listed, there is no mask.
            "other_allowed": other.info["valid"] if interface.actions is None else mask_of(timestep, len(actions))[row],
        }

    def play(key, task, wanders):
        def step(carry, key):
            state, timestep = carry
            look_key, expert_key, step_key = jax.random.split(key, 3)
            action, thought = interface.expert(expert_key, state)
            action = jnp.where(wanders, interface.draw(expert_key, state), action)
            seen = look(state, timestep, look_key)
            state, following = environment.step(step_key, state, action)
            record = {"timestep": following, "action": action, "thought": thought}
            return (state, following), {**seen, **record, "before": timestep}

        reset_key, play_key = jax.random.split(key)
        first = environment.reset(reset_key, task)
        _, steps = jax.lax.scan(step, first, jax.random.split(play_key, environment.max_steps + 1))
        prompt = None if interface.prompt is None else interface.prompt(task)
        return {
            **steps,
            "first_state": first[0],
            "first": first[1],
            "fingerprint": interface.fingerprint(first[0]),
            "prompt": prompt,
        }

    return play


@functools.cache
def compiled(name):
    return jax.jit(jax.vmap(player(name)))


@functools.cache
def record(name, held_out, wanders=False):
    task = tasks(name, held_out)
    rows = jax.tree.leaves(task)[0].shape[0]
    return jax.device_get(
        compiled(name)(jax.random.split(jax.random.key(2), rows), task, np.full(rows, wanders)),
    )


def running(name, held_out=False, wanders=False):
    """Where the episode had not ended before the step, `[B, T]`."""
    timestep = record(name, held_out, wanders)["timestep"]
    over = np.cumsum(timestep.terminated | timestep.truncated, axis=1) > 0
    return np.concatenate([np.ones_like(over[:, :1]), ~over[:, :-1]], axis=1)


@pytest.mark.parametrize("held_out", [False, True], ids=["train", "held_out"])
@pytest.mark.parametrize("name", CASES)
def test_expert_solves_every_task_of_every_level_in_time(name, held_out):
    timestep = record(name, held_out)["timestep"]
    solved = timestep.info["success"]
    if name in AGAINST:
        np.testing.assert_array_equal(solved[:, -1], timestep.reward.sum(axis=1) > 0)
        solved = timestep.terminated
    within = solved[:, : world(name).max_steps]
    failed = np.flatnonzero(~within.any(axis=1))
    assert failed.size == 0, f"levels of failures: {failed // BATCH}"
    assert (timestep.info["valid"] | ~running(name, held_out)).all()
    last = np.argmax(solved, axis=1)
    assert timestep.terminated[np.arange(len(last)), last].all()


@pytest.mark.parametrize("name", CASES)
def test_word_ids_are_in_range_and_pads_are_at_the_end(name):
    seen, environment = record(name, False), world(name)
    interface = environment.text
    texts = [seen["first"].observation, seen["timestep"].observation, seen["garbled"].observation]
    assert all(text.shape[-1:] == environment.observation_space.shape for text in texts)
    texts += [seen["action"], rows_of(name)]
    assert all((text[..., 0] >= 0).all() for text in texts)
    # In a union, some worlds may have nothing to say beforehand, or nothing to think.
    for text in [*texts, *(seen[part] for part in ("prompt", "thought") if seen[part] is not None)]:
        assert text.dtype == np.int32
        assert text.min() >= -1 and text.max() < len(interface.words)
        assert not ((text[..., :-1] < 0) & (text[..., 1:] >= 0)).any()
    assert rows_of(name).shape[1:] == environment.action_space.shape == seen["action"].shape[-1:]


def expression(pattern):
    """A regular expression of the texts of a pattern, a letter per word."""
    return "".join(map(of_place, pattern))


def of_place(place):
    if isinstance(place, Choice):
        return "(?:" + "|".join(map(expression, place.patterns)) + ")"
    if isinstance(place, Several):
        return "".join(f"(?:{letters(phrase)})?" for phrase in place.phrases)
    return "(?:" + "|".join(sorted({letters(phrase) for phrase in place}, reverse=True)) + ")"


def letters(word_ids):
    return "".join(chr(0x4E00 + i) for i in np.asarray(word_ids).tolist() if i >= 0)


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_follows_a_pattern(name):
    seen, environment = record(name, False), world(name)
    patterns = environment.text.patterns
    moves = {
        "observation": [seen["first"].observation, seen["timestep"].observation, seen["garbled"].observation],
        "prompt": [] if seen["prompt"] is None else [seen["prompt"]],
        "thought": [] if seen["thought"] is None else [seen["thought"]],
    }
    for part, texts in moves.items():
        found = [re.compile(expression(pattern)) for pattern in getattr(patterns, part)]
        assert bool(found) == bool(texts)
        for text in {letters(row) for array in texts for row in array.reshape(-1, array.shape[-1])}:
            assert any(one.fullmatch(text) for one in found), [environment.text.words[ord(c) - 0x4E00] for c in text]
    actions = [re.compile(expression(pattern)) for pattern in patterns.action]
    assert all(any(one.fullmatch(letters(row)) for one in actions) for row in rows_of(name))
    assert max(map(num_words, patterns.observation)) == environment.observation_space.shape[0]


@pytest.mark.parametrize("name", CASES)
def test_words_and_actions_are_all_different(name):
    interface = world(name).text
    assert len(set(interface.words)) == len(interface.words)
    assert len({tuple(row) for row in rows_of(name).tolist()}) == len(rows_of(name))


@pytest.mark.parametrize("name", CASES)
def test_garbage_changes_nothing_and_is_answered(name):
    seen, interface = record(name, False), world(name).text
    garbage = running(name) & ~seen["known"]
    if interface.actions is None:  # Free words may make sense by chance.
        readable = [re.compile(expression(pattern)) for pattern in interface.patterns.action]
        moves = seen["garbage"].reshape(-1, seen["garbage"].shape[-1])
        words = (
            (moves >= -1).all(1)
            & (moves < len(interface.words)).all(1)
            & ~((moves[:, :-1] < 0) & (moves[:, 1:] >= 0)).any(1)
        )
        makes_sense = [
            any(one.fullmatch(letters(row)) for one in readable) for row in np.where(words[:, None], moves, -1)
        ]
        garbage &= ~np.reshape(words & makes_sense, garbage.shape)
    assert garbage.sum() > BATCH // 2
    assert not seen["garbled"].info["valid"][garbage].any()
    assert not seen["garbled"].info["success"][garbage].any()
    before, after, _ = seen["fingerprints"][garbage].T
    np.testing.assert_array_equal(before, after)
    answer = [interface.words.index(word) for word in NOTHING_HAPPENS]
    for observation in seen["garbled"].observation[garbage][:BATCH]:
        assert answer in [observation[i : i + len(answer)].tolist() for i in range(len(observation))]


@pytest.mark.parametrize("name", CASES)
def test_the_mask_says_which_actions_are_valid(name):
    if world(name).text.actions is None:
        pytest.skip("no mask over actions that cannot be listed")
    seen, open_ = record(name, False), running(name)
    np.testing.assert_array_equal(seen["other_valid"][open_], seen["other_allowed"][open_])


@pytest.mark.parametrize("name", CASES)
def test_a_task_is_drawn_with_every_random_key_once(name):
    if name in KEYS_TWICE:
        pytest.skip("uses a key in two ways of which one counts, or stacks keys, which the checker does not follow")
    sample = jax.jit(world(name).sample_task)  # To make a world takes a key many times: it only traces the rules.
    with jax.debug_key_reuse(True):
        sample.trace(jax.random.key(0), jnp.int32(0))


@pytest.mark.parametrize("name", CASES)
def test_no_task_is_in_both_splits(name):
    ours, theirs = set(contents(tasks(name, False))), set(contents(tasks(name, True)))
    assert len(ours) > 8 and len(theirs) > 4 and not ours & theirs


@pytest.mark.parametrize("held_out", [False, True], ids=["train", "held_out"])
@pytest.mark.parametrize("name", CASES)
def test_levels_are_those_asked_for(name, held_out):
    expected = np.repeat(np.arange(world(name).text.num_levels), BATCH)
    np.testing.assert_array_equal(fields(tasks(name, held_out))["level"], expected)


@pytest.mark.parametrize("name", CASES)
def test_fingerprints_of_resets_are_equal_where_the_tasks_are(name):
    pairs = zip(contents(tasks(name, False)), record(name, False)["fingerprint"].tolist())
    by_content = {}
    for content, fingerprint in pairs:
        assert by_content.setdefault(content, fingerprint) == fingerprint
    assert len(set(by_content.values())) == len(by_content)


def visited(name):
    """Fingerprint, situation, and what is seen and allowed, of the states of many episodes and of their neighbours.

    Of expert's and of random episodes, every state, that after garbage and that after another action.
    """
    prints, exact, views = [], [], []
    for held_out, wanders in itertools.product((False, True), repeat=2):
        seen, going = record(name, held_out, wanders), running(name, held_out, wanders)
        episodes = np.linspace(0, len(going) - 1, min(len(going), 24)).astype(int)
        for number, timestep in enumerate((seen["before"], seen["garbled"], seen["other"])):
            shown = [timestep.action_mask, timestep.player, None if name in ANSWERED else timestep.observation]
            for place in ((row, turn) for row in episodes for turn in np.flatnonzero(going[row])):
                prints.append(seen["fingerprints"][place][number])
                exact.append(seen["situations"][place][number])
                view = b"".join(one[place].tobytes() for one in shown if one is not None)
                views.append(view if timestep.info["valid"][place] else None)  # Else it is said, too.
    return np.asarray(prints), np.stack(exact), views


@pytest.mark.parametrize("name", CASES)
def test_fingerprints_are_equal_where_the_situations_are(name):
    prints, exact, views = visited(name)
    _, by_print = np.unique(prints, return_inverse=True)
    _, by_situation = np.unique(exact, axis=0, return_inverse=True)
    # Two ways to part the states are the same where each part of the one is a part of the other.
    parts, sizes = np.unique(np.stack([by_print, by_situation.ravel()]), axis=1, return_counts=True)
    assert parts.shape[1] == by_print.max() + 1 == by_situation.max() + 1
    pairs, equal = len(prints) * (len(prints) - 1) // 2, int((sizes * (sizes - 1) // 2).sum())
    assert pairs >= 10_000 and 100 < equal < pairs - 1000
    seen = {}
    for fingerprint, view in zip(prints.tolist(), views):
        assert view is None or seen.setdefault(fingerprint, view) == view


@pytest.mark.parametrize("kind", KINDS, ids=KINDS.get)
@pytest.mark.parametrize("name", TOKENIZED)
def test_what_is_said_and_heard_survives_every_tokenizer(name, kind):
    environment = world(name)
    interface, lexicon = environment.text, make_lexicon(world(name).text.words, kind(world(name).text.words))
    rows = jnp.asarray(rows_of(name)[:256])
    length = max(map(lexicon.max_tokens, interface.patterns.action))
    rendered = jax.vmap(lambda row: lexicon.render(row, length))(rows)
    back, parsed = jax.jit(jax.vmap(lambda tokens, mask: lexicon.parse(tokens, mask, rows.shape[1])))(*rendered)
    np.testing.assert_array_equal(back, rows)
    assert bool(parsed.all())
    texts = {
        lexicon.text(row)
        for row in record(name, False)["timestep"].observation[:, :3].reshape(-1, *environment.observation_space.shape)
    }
    room = max(map(lexicon.max_tokens, interface.patterns.observation))
    assert all(len(lexicon.tokenizer.encode(text)) <= room for text in texts)


@pytest.mark.parametrize(("name", "num_outputs"), FUZZED)
def test_whatever_a_model_says_the_world_goes_on(name, num_outputs):
    environment = world(name)
    lexicon = make_lexicon(environment.text.words, byte_level())
    rows, width = jnp.asarray(rows_of(name)), environment.action_space.shape[0]
    length = max(map(lexicon.max_tokens, environment.text.patterns.action)) + 2
    seen = record(name, False, True)
    places = np.resize(np.argwhere(running(name, False, True)), (num_outputs, 2))
    states = jax.tree.map(lambda leaf: leaf[tuple(places.T)], seen["state"])
    rules, part = rules_of(name)
    skip = rules.skip or (lambda inner: inner)  # What a turn costs in which nothing was understood.

    def say(key, state):
        row_key, mask_key, token_key, step_key = jax.random.split(key, 4)
        tokens, mask = lexicon.render(rows[jax.random.randint(row_key, (), 0, len(rows))], length)
        # Some of the longest outputs stay whole, too.
        noise = jax.random.bernoulli(mask_key, min(0.1, 3.0 / length), tokens.shape)
        tokens = jnp.where(noise, jax.random.randint(token_key, tokens.shape, 0, 300), tokens)
        action, parsed = lexicon.parse(tokens, mask | noise, width)
        following, timestep = environment.step(step_key, state, action)
        before, after = environment.text.fingerprint(state), environment.text.fingerprint(following)
        expected, got = skip(part(state).inner), part(following).inner
        same = [jnp.all(a == b) for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)]
        return timestep, parsed, (before == after) & jnp.all(jnp.stack(same))

    keys = jax.random.split(jax.random.key(2), num_outputs)
    timestep, parsed, unchanged = jax.device_get(jax.jit(jax.vmap(say))(keys, states))
    valid = timestep.info["valid"]
    assert not valid[~parsed].any() and 0 < valid.sum() < num_outputs
    assert unchanged[~valid].all() and not unchanged[valid].all()
    assert np.isfinite(timestep.reward).all()


def replay(name, num_turns, rows):
    """The world as an expert's episodes showed it, whatever is said in it, and these episodes as its tasks.

    Its rules are left out: they take most of the time to compile, and tokens are read and scored without them.
    """
    seen, environment = record(name, False), world(name)
    shown = jax.tree.map(
        lambda first, later: np.concatenate([first[rows, None], later[rows, :num_turns]], axis=1),
        seen["first"],
        seen["timestep"],
    )
    prompt = None if seen["prompt"] is None else seen["prompt"][rows]

    def look(state):
        return state, jax.tree.map(lambda leaf: leaf[state["turn"]], state["task"]["shown"])

    interface = dataclasses.replace(
        environment.text,
        prompt=None if prompt is None else lambda task: task["prompt"],
        fingerprint=lambda state: state["turn"].astype(jnp.uint32),
    )
    played = dataclasses.replace(
        environment,
        reset=lambda key, task: look({"task": task, "turn": jnp.int32(0)}),
        step=lambda key, state, action: look(state | {"turn": state["turn"] + 1}),
        text=interface,
    )
    return played, {"shown": shown, "prompt": prompt}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "bandit" else pytest.mark.exhaustive) for name in WORLDS],
)
def test_what_decoding_says_of_its_tokens_is_what_training_says(name, speak, params_of):
    environment, shown = replay(name, 3, np.linspace(0, BATCH * world(name).text.num_levels - 1, 4).astype(int))
    policy = speak(environment, num_turns=3, context_turns=2)

    @jax.jit
    def both(params, shown):
        episode = make_dialogue(environment, policy)(params, jax.random.key(5), jnp.arange(4), task=shown)
        scored = score_tokens(policy.model, params, to_rows(episode), policy.layout, fields=("log_prob",))
        return episode, scored.log_prob.reshape(episode.tokens.shape)

    episode, log_prob = jax.device_get(both(params_of(policy), shown))
    mask, valid = episode.action_mask, episode.valid
    assert valid[:, 0].all() and mask.any(axis=2)[valid].all() and not mask[~valid].any()
    read = episode.token_mask[:, :, : policy.layout.observation].sum(axis=2)
    words = (shown["shown"].observation[:, :3] >= 0).sum(axis=2)
    assert (read >= words)[valid].all()  # Nothing of what was shown is cut off.
    np.testing.assert_allclose(episode.behavior_log_prob[mask], log_prob[mask], rtol=0, atol=1e-4)
    assert np.ptp(log_prob[mask]) > 0.5


@pytest.mark.parametrize("name", CASES)
def test_nothing_happens_after_the_end(name):
    timestep = record(name, False)["timestep"]
    end = np.argmax(timestep.terminated | timestep.truncated, axis=1)
    assert (end < world(name).max_steps).all()
    for row, column in enumerate(end.tolist()):
        assert not timestep.reward[row, column + 1 :].any()
        for leaf in jax.tree.leaves(timestep.replace(reward=())):
            later = leaf[row, column + 1 :]
            np.testing.assert_array_equal(later, np.broadcast_to(leaf[row, column], later.shape))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_one_instance_is_a_row_of_the_batch(name):
    rows = jax.tree.leaves(tasks(name, False))[0].shape[0]
    row = rows - 1
    task = jax.tree.map(lambda leaf: leaf[row], tasks(name, False))
    alone = jax.jit(player(name))(jax.random.split(jax.random.key(2), rows)[row], task, jnp.bool_(False))
    batched = jax.tree.map(lambda leaf: leaf[row], record(name, False))
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(batched), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_types_do_not_change_from_step_to_step(name):
    environment, key = world(name), jax.random.key(0)
    first = jax.eval_shape(lambda: environment.reset(key, environment.sample_task(key)))
    action = jax.ShapeDtypeStruct(environment.action_space.shape, jnp.int32)
    following = jax.eval_shape(environment.step, key, first[0], action)
    assert jax.tree.structure(first) == jax.tree.structure(following)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(following))
    assert all((a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type) for a, b in pairs)
    assert first[1].action_mask is None or first[1].action_mask.shape == (len(rows_of(name)),)
    assert jax.eval_shape(environment.text.fingerprint, first[0]).dtype == jnp.uint32


@pytest.mark.parametrize("name", CASES)
def test_render_is_text(name):
    state = jax.tree.map(lambda leaf: leaf[0], record(name, False)["first_state"])
    assert world(name).render(state).strip()
