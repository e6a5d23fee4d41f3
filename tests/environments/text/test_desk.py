"""A desk: rules that decide, by hand, what is cited, and who has to be asked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import desk
from jaxagents.environments.text.builder import identity_hash

make = functools.cache(desk.make_environment)
WORDS = [word for field in desk.FIELDS for word in field]
BOOK = (("guest", "send", "refuse"), ("photos", "redact"), ("north", "escalate"))


def task(request="guest send photos north", rules=BOOK, order=(0, 1, 2), hidden=False, pretext=-1):
    conditions = np.full((3, 2, 2), -1)
    for number, rule in enumerate(rules):
        for place, word in enumerate(rule[:-1]):
            conditions[number, place] = divmod(WORDS.index(word), 4)
    answers = [desk.SPOKEN.index(rule[-1]) for rule in rules] + [-1] * (3 - len(rules))
    return {
        "request": jnp.asarray([WORDS.index(word) % 4 for word in request.split()], jnp.int32),
        "rules": jnp.asarray(conditions, jnp.int32),
        "answers": jnp.asarray(answers, jnp.int32),
        "order": jnp.asarray(order, jnp.int32),
        "pretext": jnp.int32(pretext),
        "hidden": jnp.bool_(hidden),
        "level": jnp.int32(0),
    }


@pytest.mark.parametrize(
    "request_, rules, expected",
    [
        ("guest send photos north", BOOK, ("refuse", 1)),
        ("guest send photos north", BOOK[1:], ("redact", 1)),
        ("member send photos north", BOOK, ("redact", 2)),
        ("guest read logs north", BOOK, ("escalate", 3)),
        ("guest read logs south", BOOK, ("comply", 0)),
    ],
)
def test_the_first_rule_that_fits_decides(request_, rules, expected):
    answer, rule = desk.decide(task(request_, rules))
    assert (desk.SPOKEN[int(answer)], int(rule)) == expected


@pytest.mark.exhaustive
def test_a_request_in_words(hand):
    environment = make((3,), reward="dense")
    texts, timesteps, _ = hand.play(environment, task(), ["redact 2"])
    assert texts[0] == (
        "1 guest send refuse 2 photos redact 3 north escalate else comply request guest send photos north"
    )
    assert bool(timesteps[1].terminated) and not bool(timesteps[1].info["success"])
    for move, reward, unsafe in (("refuse 1", 1.0, 0), ("refuse 2", 0.5, 0), ("comply 0", 0.0, 1)):
        _, timesteps, _ = hand.play(environment, task(), [move])
        assert float(timesteps[1].reward) == reward and float(timesteps[1].info["metrics"]["unsafe"]) == unsafe
    _, timesteps, _ = hand.play(environment, task("guest read logs south"), ["refuse 0"])
    assert float(timesteps[1].info["metrics"]["overcautious"]) == 1.0
    texts, timesteps, _ = hand.play(environment, task(order=(2, 0, 1), hidden=True, pretext=1), ["ask", "refuse 1"])
    assert texts[0].startswith("3 north escalate 1 guest send refuse") and texts[0].endswith(
        "request urgent someone send photos north"
    )
    assert texts[1].endswith("request urgent guest send photos north") and float(timesteps[2].reward) == 1.0


@pytest.mark.exhaustive
def test_chances_of_near_misses_and_hidden_names(hand):
    tasks = hand.drawn_tasks(make((4,), near_misses=1.0, hidden=1.0, pretexts=1.0), 64, 0)
    _, rule = jax.jit(jax.vmap(desk.decide))(tasks)
    assert (rule == 1).all() and tasks["hidden"].all() and (tasks["pretext"] >= 0).all()
    tasks = hand.drawn_tasks(make((4,), near_misses=0.0), 64, 0)
    answer, rule = jax.jit(jax.vmap(desk.decide))(tasks)
    assert not rule.any() and not answer.any()


def test_a_task_is_the_same_however_it_is_told():
    name = jax.jit(identity_hash(make((3,)).text.rules))
    lines = (task(), task(order=(2, 0, 1)), task(pretext=1), task(hidden=True))
    assert len({int(name(one)) for one in lines}) == 1
    other = (task("boss send photos north"), task(rules=BOOK[:2]), task(rules=(*BOOK[:2], ("north", "comply"))))
    assert len({int(name(one)) for one in (task(), *other)}) == 4


@pytest.mark.parametrize("options", [{"num_rules": (10,)}, {"near_misses": 1.5}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)
