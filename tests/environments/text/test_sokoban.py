"""Sokoban: moves by hand, rooms that can be solved, and an expert that finds a shortest way."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import sokoban
from jaxagents.environments.text.sokoban_rooms import SokobanRoom, SokobanTask, flood, identify, play_backwards
from jaxagents.environments.text.splits import hash_integers
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)
ENV = sokoban.make_environment((6, 6), (1, 2))
DENSE = sokoban.make_environment((6, 6), (1, 2), reward="dense", step_penalty=0.5)
STEP, RESET, EXPERT = jax.jit(ENV.step), jax.jit(ENV.reset), jax.jit(lambda key, state: ENV.text.expert(key, state)[0])


def task_of(*rows, level=1):
    """Makes a task from a drawing without the border; box i belongs to target i, both in reading order."""
    grid = np.pad(np.asarray([list(row) for row in rows]), 1, constant_values="#").reshape(-1)

    def cells(glyphs):
        found = np.flatnonzero(np.isin(grid, list(glyphs)))
        return jnp.asarray([*found, *[-1] * (2 - len(found))], jnp.int32)

    return SokobanTask(
        level=jnp.asarray(level, jnp.int32),
        walls=jnp.asarray(grid == "#"),
        targets=cells("O*+"),
        boxes=cells("X*"),
        player=cells("P+")[0],
    )


def play(task, moves, environment=ENV, step=STEP):
    actions = [environment.text.actions[sokoban.ACTIONS.index(move)] for move in moves.split()]
    return play_actions(RESET, step, task, actions, KEY)


def inner(state):
    return [row[1:-1] for row in ENV.render(state).splitlines()[1:-1]]


def test_first_observation_and_prompt():
    task = task_of("P_O_", "_X__", "_#__", "____", level=0)
    _, timesteps = play(task, "")
    text = sentence(ENV.text.words, timesteps[0].observation)
    assert text == "# # # # # # / # P _ O _ # / # _ X _ _ # / # _ # _ _ # / # _ _ _ _ # / # # # # # #"
    assert sentence(ENV.text.words, ENV.text.prompt(task)) == "push every X onto an O . you are P ."
    assert timesteps[0].action_mask.tolist() == [False, True, False, True]
    bare = sokoban.make_environment((6, 7), (1, 1), show_border=False)
    assert bare.observation_space.shape == (5 * 6 - 1 + 2,) and ENV.observation_space.shape == (6 * 7 - 1 + 2,)


@pytest.mark.parametrize(
    ("before", "move", "after"),
    [
        (["P___", "____", "____", "O_X_"], "right", ["_P__", "____", "____", "O_X_"]),
        (["PX__", "____", "____", "O___"], "right", ["_PX_", "____", "____", "O___"]),
        (["__XP", "____", "____", "O___"], "left", ["_XP_", "____", "____", "O___"]),
        (["____", "_P__", "_X__", "O___"], "down", ["____", "____", "_P__", "OX__"]),
        (["____", "_X__", "_P__", "O___"], "up", ["_X__", "_P__", "____", "O___"]),
        (["PX__", "__O_", "X___", "O___"], "right", ["_PX_", "__O_", "X___", "O___"]),
        (["P*__", "__O_", "X___", "____"], "right", ["_+X_", "__O_", "X___", "____"]),
        (["PXO_", "__O_", "X___", "____"], "right", ["_P*_", "__O_", "X___", "____"]),
        (["_XO_", "_PO_", "X___", "____"], "right", ["_XO_", "__+_", "X___", "____"]),
    ],
)
def test_moves(before, move, after):
    state, timesteps = play(task_of(*before), move)
    assert inner(state) == after
    assert bool(timesteps[-1].info["valid"]) and not bool(timesteps[-1].terminated)


@pytest.mark.parametrize(
    ("drawing", "move"),
    [
        (["P___", "____", "____", "O_X_"], "up"),
        (["P#__", "____", "____", "O_X_"], "right"),
        (["____", "____", "____", "O_PX"], "right"),
        (["PX#_", "____", "____", "O___"], "right"),
        (["PXX_", "____", "____", "OO__"], "right"),
        (["PX*_", "____", "____", "O___"], "right"),
    ],
)
def test_blocked_moves_change_nothing(drawing, move):
    state, timesteps = play(task_of(*drawing), move)
    assert inner(state) == drawing and not bool(timesteps[-1].info["valid"])
    before, after = (sentence(ENV.text.words, t.observation) for t in timesteps)
    assert after == f"{before} nothing happens ."
    assert not bool(timesteps[0].action_mask[sokoban.ACTIONS.index(move)])


def test_success_needs_every_box_on_any_target():
    _, timesteps = play(task_of("PXO_", "_XO_", "____", "____"), "right left down right")
    assert [bool(t.terminated) for t in timesteps] == [False] * 4 + [True]
    assert [float(t.reward) for t in timesteps] == [0, 0, 0, 0, 1]
    assert bool(timesteps[-1].info["success"])
    # The second target is taken by the first box.
    _, timesteps = play(task_of("O_*_", "_X__", "P___", "____"), "right up")
    assert bool(timesteps[-1].info["success"]) is False
    _, timesteps = play(task_of("OX*P", "____", "____", "____"), "left")
    assert not bool(timesteps[-1].info["valid"])


def test_dense_reward_pays_boxes_on_and_takes_back():
    _, timesteps = play(
        task_of("PXO_", "_XO_", "____", "____"), "right right left down left right", DENSE, jax.jit(DENSE.step)
    )
    rewards = [float(t.reward) + 0.5 for t in timesteps[1:]]
    np.testing.assert_allclose(rewards, [0.1, -0.1, 0, 0, 0, 0], atol=1e-6)
    _, timesteps = play(task_of("PXO_", "____", "____", "____", level=0), "right", DENSE, jax.jit(DENSE.step))
    np.testing.assert_allclose(timesteps[-1].reward, 1.0 + 0.1 - 0.5, rtol=1e-6)


def test_truncation():
    state, _ = play(task_of("P_O_", "_X__", "____", "____"), "")
    state = state.replace(num_steps=jnp.asarray(48, jnp.int32))
    for expected in (False, True):
        state, timestep = STEP(KEY, state, jnp.asarray([-1], jnp.int32))
        assert bool(timestep.truncated) is expected
    assert ENV.max_steps == 50


def test_fingerprint_is_of_what_is_seen():
    task = task_of("PXO_", "_XO_", "____", "____")
    prints = [int(ENV.text.fingerprint(play(task, moves)[0])) for moves in ("", "down up", "down", "right left")]
    assert prints[0] == prints[1] and len(set(prints)) == 3
    swapped = task.replace(boxes=task.boxes[::-1])
    assert int(ENV.text.fingerprint(RESET(KEY, swapped)[0])) == prints[0]


def test_flood_stops_at_walls():
    task = task_of("P_#_", "__#_", "_##_", "_#__", level=0)
    reached = np.asarray(flood(task.player, ~task.walls)).reshape(6, 6)[1:-1, 1:-1]
    np.testing.assert_array_equal(reached, [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])


def shortest(task, boxes, player):
    """Returns the length of a shortest solution with one box by a search over sets; None without one."""
    walls, target = np.asarray(task.walls), int(task.targets[0])
    seen, queue = {(int(boxes[0]), int(player))}, deque([(int(boxes[0]), int(player), 0)])
    while queue:
        box, at, length = queue.popleft()
        if box == target:
            return length
        for move in (-6, 6, -1, 1):
            there, pushed = at + move, box
            if there == box:
                pushed = box + move
            if walls[there] or walls[pushed] or (pushed, there) in seen:
                continue
            seen.add((pushed, there))
            queue.append((pushed, there, length + 1))
    return None


def experts_play(environment, num_steps):
    """Returns `(keys, levels, num_random) -> what happens` when the expert plays after some random moves."""
    rows = jnp.asarray(environment.text.actions)

    def one(key, level, num_random):
        task_key, key = jax.random.split(key)
        first = environment.reset(key, environment.sample_task(task_key, level))

        def step(carry, inputs):
            (state, timestep), (index, key) = carry, inputs
            logits = jnp.where(timestep.action_mask, 0.0, -jnp.inf)
            at_random = rows[jax.random.categorical(key, logits)]
            action = jnp.where(index < num_random, at_random, environment.text.expert(key, state)[0])
            following = environment.step(key, state, action)
            return following, (state.inner, following[1])

        keys = jax.random.split(key, num_steps)
        return first[0].inner, jax.lax.scan(step, first, (jnp.arange(num_steps), keys))[1]

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))


NUM = 160
PLAY = experts_play(ENV, 45)


@pytest.mark.slow
def test_tasks_and_their_expert():
    first, (_, timesteps) = PLAY(jax.random.split(KEY, NUM), jnp.arange(NUM) % 2, 0)
    assert timesteps.info["success"][:, -1].all() and timesteps.info["valid"].all()
    lengths = np.asarray((~timesteps.terminated).sum(axis=1)) + 1
    assert lengths[::2].max() <= 30
    task = jax.device_get(first.task)
    home = 0
    for i in range(NUM):
        count = 1 + i % 2
        boxes, targets = task.boxes[i], task.targets[i]
        assert (boxes >= 0).sum() == (targets >= 0).sum() == count
        cells = {*boxes[:count].tolist(), int(task.player[i])}
        assert len(cells) == count + 1 and len(set(targets[:count].tolist())) == count
        assert not task.walls[i][[*cells, *targets[:count]]].any()
        assert boxes[0] not in targets
        home += int(count == 2 and boxes[1] in targets)
        if count == 1:
            one = jax.tree.map(lambda leaf, i=i: leaf[i], task)
            assert shortest(one, boxes, task.player[i]) == lengths[i]
    assert home < 0.35 * NUM / 2
    assert task.walls.reshape(NUM, 6, 6)[:, [0, -1], :].all() and task.walls.reshape(NUM, 6, 6)[:, :, [0, -1]].all()


@pytest.mark.exhaustive
def test_expert_is_optimal_or_knows_no_way_after_random_moves():
    num_random = 6
    _, (states, timesteps) = PLAY(jax.random.split(KEY, NUM), jnp.zeros(NUM, jnp.int32), num_random)
    outcomes = set()
    for i in range(NUM):
        state = jax.device_get(jax.tree.map(lambda leaf, i=i: leaf[i, num_random], states))
        length = shortest(state.task, state.boxes, state.player)
        solved = bool(timesteps.info["success"][i, -1])
        assert solved == (length is not None)
        if length:
            assert int((~timesteps.terminated[i, num_random:]).sum()) + 1 == length
        outcomes.add(length is None)
    assert outcomes == {True, False}


def test_a_box_starts_from_the_farthest_place_of_its_way():
    drawn = task_of("OP__", "____", "____", "____", level=0)
    room = SokobanRoom(level=drawn.level, walls=drawn.walls, targets=drawn.targets, player=drawn.player)
    tasks = jax.jit(jax.vmap(lambda key: play_backwards(key, room, num_pulls=30)))(jax.random.split(KEY, 20))
    rows, columns = np.divmod(np.asarray(tasks.boxes[:, 0]), 6)
    # The box ends anywhere after so many pulls; the opposite corner is out of reach, the places beside it are not.
    assert (rows - 1 + columns - 1 >= 4).all() and (tasks.boxes[:, 1] == -1).all()


@pytest.mark.exhaustive
def test_larger_rooms_with_several_boxes_are_solved():
    environment = sokoban.make_environment((7,), (3,), wall_fraction=0.2)
    _, (_, timesteps) = experts_play(environment, environment.max_steps)(
        jax.random.split(KEY, 64), jnp.zeros(64, jnp.int32), 0
    )
    assert timesteps.info["success"][:, -1].all() and timesteps.info["valid"].all()


def test_expert_makes_a_legal_move_where_nothing_helps():
    state, timesteps = play(task_of("X___", "____", "__P_", "O___", level=0), "")
    action = int(EXPERT(KEY, state)[0])
    row = ENV.text.actions[:, 0].tolist().index(action)
    assert bool(timesteps[0].action_mask[row])


@pytest.mark.exhaustive
def test_held_out_rooms_are_never_sampled():
    held_out = jax.jit(jax.vmap(ENV.text.sample_held_out_task))(jax.random.split(KEY, NUM))
    trained = PLAY(jax.random.split(KEY, NUM), jnp.arange(NUM) % 2, 0)[0].task
    for tasks, expected in ((held_out, True), (trained, False)):
        rooms = SokobanRoom(level=tasks.level, walls=tasks.walls, targets=tasks.targets, player=tasks.player)
        assert ((np.asarray(jax.vmap(lambda room: hash_integers(*identify(room)))(rooms)) < 2**30) == expected).all()


def test_a_room_is_its_walls_and_targets():
    task = task_of("PXO_", "_XO_", "____", "____")
    room = SokobanRoom(level=task.level, walls=task.walls, targets=task.targets, player=task.player)
    same = room.replace(targets=room.targets[::-1], level=room.level - 1, player=room.player + 1)
    one, other, third = (
        np.concatenate(identify(each)) for each in (room, same, room.replace(targets=room.targets + 1))
    )
    assert (one == other).all() and (one != third).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": (6, 7)}, "`sizes` and `num_boxes` must have one entry per level"),
        ({"sizes": (5,), "num_boxes": (1,)}, "`sizes` must be at least 6"),
        ({"sizes": (6,), "num_boxes": (3,)}, "`num_boxes` must be from 1 to 2 in a room of 6, got 3"),
        ({"wall_fraction": 0.9}, "`wall_fraction` must be from 0 to 0.5, got 0.9"),
        ({"num_pulls": 0}, "`num_pulls` must be at least 1"),
        ({"reward": "shaped"}, '`reward` must be "sparse" or "dense"'),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sokoban.make_environment(**arguments)
