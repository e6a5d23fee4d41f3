"""AI safety via debate (Irving, Christiano and Amodei, 2018), on digits of 8 x 8 pixels.

A judge learns to classify digits from k random non-zero pixels. Then two players, one of whom argues for the truth,
take turns revealing such pixels; the judge sees nothing else. Play is exact.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.networks.torsos import MLP
from jaxagents.search.selection_games import Subsets, make_subsets, solve
from jaxagents.types import Array, Params

NUM_PIXELS, NUM_LABELS = 64, 10
PLAYERS = ("optimal", "random", "absent")
ORDERS = {"both": (0, 1), "honest_first": (0,), "honest_last": (1,)}
_HIDDEN, _LEARNING_RATE = (64, 64), 1e-3
_JUDGES: dict[tuple[int, ...], Params] = {}  # Judges trained in this process, by everything on which they depend.


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Loads the digits of scikit-learn: float32 `[1797, 64]` in [0, 1], and labels int32 `[1797]`.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    digits = import_suite("sklearn.datasets", "papers").load_digits()
    return (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int32)


def judge(params: Params, image: Array, revealed: Array) -> Array:
    """Computes logits `[..., 10]` for images `[..., 64]` with only the pixels `revealed` (bool `[..., 64]`) visible."""
    revealed = revealed.astype(jnp.float32)
    return _network().apply(params, jnp.concatenate([image * revealed, revealed], axis=-1))


def _network() -> nn.Module:
    return nn.Sequential([MLP(hidden_sizes=_HIDDEN, activation="relu"), nn.Dense(NUM_LABELS)])


def draw_pixels(key: Array, image: Array, num_pixels: int) -> Array:
    """Draws non-zero pixels, int32 `[..., num_pixels]`, without replacement; images must have that many."""
    noise = jax.random.gumbel(key, image.shape)
    return jax.lax.top_k(jnp.where(image > 0.0, noise, -jnp.inf), num_pixels)[1]


@functools.partial(jax.jit, static_argnames=("num_shown", "num_steps", "batch_size"))
def train_judge(
    key: Array, images: Array, labels: Array, *, num_shown: int, num_steps: int, batch_size: int = 128
) -> Params:
    """Trains a judge by cross-entropy, on fresh random pixels in every step.

    Args:
        key: PRNG key.
        images: float32 `[N, 64]`.
        labels: int32 `[N]`.
        num_shown: k, number of pixels shown.
        num_steps: number of steps of Adam.
        batch_size: number of images per step.

    Returns:
        Parameters of the judge.
    """
    optimizer = optax.adam(_LEARNING_RATE)

    def loss(params: Params, image: Array, label: Array, revealed: Array) -> Array:
        logits = judge(params, image, revealed)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, label))

    def step(carry: tuple[Params, optax.OptState], key: Array) -> tuple[tuple[Params, optax.OptState], None]:
        params, opt_state = carry
        row_key, pixel_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (batch_size,), 0, images.shape[0])
        image = images[rows]
        revealed = jnp.any(jax.nn.one_hot(draw_pixels(pixel_key, image, num_shown), NUM_PIXELS, dtype=bool), axis=-2)
        updates, opt_state = optimizer.update(jax.grad(loss)(params, image, labels[rows], revealed), opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    init_key, run_key = jax.random.split(key)
    params = _network().init(init_key, jnp.zeros(2 * NUM_PIXELS))
    keys = jax.random.split(run_key, num_steps)
    return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]


def outcomes(logits: Array, label: Array, *, precommit: bool) -> Array:
    """Computes who wins for every wrong label: 1 the honest player, 0 the liar, 0.5 for equal logits.

    Args:
        logits: `[L, 10]`, logits of the judge for L sets of pixels.
        label: int32 `[]`, true label.
        precommit: whether the honest player wins if the true label has the higher logit of the two; else only if it has
            the highest logit of all, because the liar chooses its label at the end.

    Returns:
        `[L, 10]`; with `precommit`, the column of the true label is 0.5; without, all columns are equal.
    """
    true = jnp.take(logits, label, axis=-1)[:, None]
    others = jnp.where(jnp.arange(NUM_LABELS) == label, -jnp.inf, logits)
    rival = logits if precommit else jnp.max(others, axis=-1, keepdims=True)
    return jnp.broadcast_to(0.5 + 0.5 * jnp.sign(true - rival), logits.shape)


def turns(honest: str, liar: str, order: int, num_shown: int) -> tuple[str, ...]:
    """Returns who chooses each pixel, for `selection_games.solve`; with order 0, the honest player begins.

    Raises:
        ValueError: a player is unknown, or both are absent.
    """
    if honest not in PLAYERS or liar not in PLAYERS or honest == liar == "absent":
        raise ValueError(
            f"`honest` and `liar` must be of {', '.join(PLAYERS)}, and one there, got {honest!r} and {liar!r}."
        )
    moves = {"honest": {"optimal": "max", "random": "mean"}, "liar": {"optimal": "min", "random": "mean"}}
    present = [name for name, kind in (("honest", honest), ("liar", liar)) if kind != "absent"]
    kinds = [moves[name][honest if name == "honest" else liar] for name in present]
    return tuple(kinds[(i + order) % len(kinds)] for i in range(num_shown))


def run(
    seed: int,
    *,
    num_shown: int = 4,
    honest: str = "optimal",
    liar: str = "optimal",
    precommit: bool = True,
    order: str = "both",
    num_candidates: int = 18,
    num_images: int = 256,
    num_train: int = 1297,
    num_steps: int = 4000,
) -> dict[str, Any]:
    """Trains a judge, and lets two players debate about images that it has not seen.

    Args:
        seed: seed of the split of the images, of the judge and of the candidates.
        num_shown: k, total number of pixels revealed.
        honest: player who argues for the truth: "optimal", "random" or "absent".
        liar: player who argues for a wrong label, with the same choices; if one is absent, the other reveals all
            pixels.
        precommit: see `outcomes`.
        order: "honest_first", "honest_last", or "both" for the mean.
        num_candidates: M, number of an image's pixels that may be revealed, drawn from the non-zero ones.
        num_images: number of images that are debated.
        num_train: number of images from which the judge learns.
        num_steps: number of training steps of the judge.

    Returns:
        `accuracy`: how often the honest player wins against a random wrong label; `accuracy_best_lie`: the same against
        the wrong label that is best for the liar; `margin`: honest wins minus liar wins in the first case;
        `judge_accuracy`: accuracy of the judge on k random pixels.

    Raises:
        ValueError: a player or order is unknown, or sizes are inconsistent.
        ModuleNotFoundError: scikit-learn is not installed.

    References:
        Irving, Christiano and Amodei (2018), "AI safety via debate", section 3.2.

    Deviation: 8 x 8 digits; players choose from M pixels per image, and play exactly instead of by tree search.
    Deviation: accuracies are expectations over the liar's label, the order and random choices, not samples of them.
    """
    if order not in ORDERS:
        raise ValueError(f"`order` must be one of {', '.join(ORDERS)}, got {order!r}.")
    plays = tuple(turns(honest, liar, number, num_shown) for number in ORDERS[order])
    subsets = make_subsets(num_candidates, num_shown)
    images, labels = load_digits()
    if not 1 <= num_images <= len(images) - num_train or num_train < 1:
        raise ValueError(
            f"`num_train` and `num_images` must be positive and together at most {len(images)}, got {num_train} and "
            f"{num_images}."
        )
    rows = np.random.default_rng(seed).permutation(len(images))
    train, test = rows[:num_train], rows[num_train:]
    test = test[(images[test] > 0).sum(axis=1) >= num_candidates][:num_images]
    key = jax.random.key(seed)
    # All arms share the judge: training keys and judged images depend on seed and k alone.
    setting = (seed, num_shown, num_train, num_steps, len(images))
    if setting not in _JUDGES:
        _JUDGES[setting] = train_judge(
            jax.random.fold_in(key, 0), images[train], labels[train], num_shown=num_shown, num_steps=num_steps
        )
    params = _JUDGES[setting]
    pixel_keys = jax.random.split(jax.random.fold_in(key, 1), len(test))
    win, random_win = _debate(params, images[test], labels[test], pixel_keys, subsets, plays=plays, precommit=precommit)
    return _summarize(np.asarray(win, np.float64), np.asarray(random_win, np.float64), labels[test])


@functools.partial(jax.jit, static_argnames=("plays", "precommit"))
def _debate(
    params: Params,
    images: Array,
    labels: Array,
    keys: Array,
    subsets: Subsets,
    *,
    plays: tuple[tuple[str, ...], ...],
    precommit: bool,
) -> tuple[Array, Array]:
    """Returns the honest player's win rate against every label `[N, 10]`, and the judge's on random pixels `[N]`."""
    leaves = subsets.leaves

    def one(inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        image, label, key = inputs
        candidates = draw_pixels(key, image, leaves.shape[1])
        revealed = jnp.zeros((leaves.shape[0], NUM_PIXELS), bool).at[:, candidates].set(leaves)
        logits = judge(params, jnp.broadcast_to(image, revealed.shape), revealed)
        payoff = outcomes(logits, label, precommit=precommit)
        values = jnp.stack([solve(payoff, subsets, players) for players in plays])
        return jnp.mean(values, axis=0), jnp.mean(jnp.argmax(logits, axis=-1) == label)

    return jax.lax.map(one, (images, labels, keys))


def _summarize(win: np.ndarray, random_win: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    wrong = np.arange(NUM_LABELS) != labels[:, None]
    accuracy = float(win[wrong].mean())
    return {
        "accuracy": accuracy,
        "accuracy_best_lie": float(np.where(wrong, win, np.inf).min(axis=1).mean()),
        "margin": 2.0 * accuracy - 1.0,
        "judge_accuracy": float(random_win.mean()),
    }
