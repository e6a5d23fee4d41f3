"""Settings of every test: eight virtual CPU devices, strict rank promotion, compilations kept between runs."""

import ast
import ctypes
import gc
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# Compiled programs outlive a checkout.
_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jaxagents" / "tests"

# XLA reads these when its backend starts, so they are set before jax is imported; subprocesses of tests inherit them.
os.environ["JAX_PLATFORMS"] = os.environ.get("JAXAGENTS_TEST_PLATFORM", "cpu")  # Such as cuda; see CONTRIBUTING.md.
# Tests compile much and compute little: kernels without optimisation, in one module, from the older emitters, take a
# third of the time.
_FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_enable_concurrency_optimized_scheduler=false "  # With it, batched decompositions may stop for ever.
    # What is the same in every turn of a loop may be computed in every turn: looking for it costs a fifth of the time.
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,while-loop-constant-sinking"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):  # Later ones have no other emitters, and refuse the flag.
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
# Collectives between virtual devices can hang when the thread pool has fewer threads than devices.
os.environ["PJRT_NPROC"] = "32"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE / importlib.metadata.version("jaxlib")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # Tests compile many small things.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # Lines of source are not written into programs.

from functools import partial  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
gc.set_threshold(50_000, 20, 100)  # Tracing makes many objects that live on; looking through them takes a tenth of it.


_SHARES = 20  # Of the exhaustive tests: CI runs one, by the commit.


def pytest_addoption(parser):
    parser.addoption("--due", action="store_true", help="of exhaustive tests, only the share that this commit is due")


@pytest.hookimpl(tryfirst=True)  # Before `-m` selects.
def pytest_collection_modifyitems(config, items):
    for item in items:
        if is_further_case(item):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
            item.add_marker("exhaustive")
    if not config.getoption("--due"):
        return
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=True).stdout
    run = [not item.get_closest_marker("exhaustive") or is_due(item.nodeid, commit) for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, run, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, run, strict=True) if kept]


def pytest_collection_finish():
    """Takes what was imported, which stays, out of what later collections look through."""
    gc.collect()
    gc.freeze()


def is_further_case(item):
    """Whether a test is a case of a slow function after its first one, which represents them."""
    slow = any(mark.name == "slow" for mark in getattr(item.function, "pytestmark", ()))
    return slow and hasattr(item, "callspec") and any(item.callspec.indices.values())


def is_due(nodeid, commit):
    """Whether a commit runs an exhaustive test. Tests of one file about the same thing share programs: all or none run.

    Args:
        nodeid: as `tests/test_worlds.py::test_play[lake-4]`, which is about `lake`.
        commit: hexadecimal hash.
    """
    file, _, test = nodeid.partition("::")
    about = test.partition("[")[2].rstrip("]").split("-")[0]
    return (zlib.crc32(f"{file}[{about}]".encode()) - int(commit, 16)) % _SHARES == 0


_MOST_GIB = 2.0  # Of a process, above which programs are forgotten; imports alone take 1.5.


def _free_memory():
    """Frees compiled programs where they take much memory; all of them together take more than 4 GiB."""
    if sys.platform == "linux":
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") < _MOST_GIB * 2**30:
            return
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # Gives memory that is free back to the system.


_CALL = "import json, runpy, sys; path, name, args = json.loads(sys.argv[1]); print(runpy.run_path(path)[name](*args))"


@pytest.fixture
def call_as_run(request):
    """Returns `(name, *args) -> value` of a function of the test's file, with the settings of XLA that runs have.

    What a program takes depends on its order, which XLA chooses by process and not by program.
    """

    def call(name, *args):
        command = [sys.executable, "-c", _CALL, json.dumps([str(request.path), name, args])]
        settings = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(_ROOT)}
        result = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        return ast.literal_eval(result.stdout)

    return call


@pytest.fixture(scope="module", autouse=True)
def _memory_of_files():
    yield
    _free_memory()


@pytest.fixture
def memory_of_test():
    """Frees memory after a test that compiles much."""
    yield
    _free_memory()


@pytest.fixture(scope="session")
def one_device():
    """Returns the environment variables of a process with one device, as users have, that compiles as tests do."""
    settings = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    return settings | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"}


@pytest.fixture(scope="module")
def browser():
    """Returns Debian's Chromium without a window."""
    driver = pytest.importorskip("playwright.sync_api", reason="a browser is driven by the extra `browser`: playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium is installed; try apt-get install chromium")
    with driver.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lake():
    """Returns a 4x4 lake with short episodes."""
    from jaxagents.environments.text.frozenlake import make_environment

    return make_environment((4,), (0.2,), max_steps=6)


@pytest.fixture(scope="session")
def wanderer(lake):
    """Returns a policy of the lake that walks at random, and compiles fast; its parameters are the logits of moves."""
    from jaxagents.environments.text.frozenlake import ACTIONS
    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.types import LanguageModel

    tokenizer = word_level(lake.text.words)
    moves, marks, size = [tokenizer.encode(word)[0] for word in ACTIONS], tokenizer.marks, tokenizer.vocab_size

    def logits(params, hidden):
        walk = jnp.full((*hidden.shape[:-1], size), -30.0).at[..., jnp.array(moves)].set(params)
        stop = 30.0 * jax.nn.one_hot(marks["end"], size)
        return jnp.where(hidden[..., marks["act"], None] > 0, walk, jnp.broadcast_to(stop, walk.shape))

    model = LanguageModel(
        init=lambda key: jnp.zeros(len(moves)),
        apply=lambda params, tokens, *, positions, mask: jax.nn.one_hot(tokens, size),
        init_cache=lambda batch_size, length: jnp.zeros((batch_size, length), jnp.int32),
        extend=lambda params, cache, tokens, *, positions, index, mask: (cache, jax.nn.one_hot(tokens, size)),
        logits=logits,
        value=None,
        vocab_size=size,
    )
    options = {"context_turns": 1, "prompt": False}
    return make_language_policy(lake, tokenizer=lambda words: tokenizer, model=lambda vocab_size: model, **options)


@pytest.fixture(scope="session")
def speak():
    """Returns `(environment, value_head=False, **options) -> LanguagePolicy` of a tiny model."""
    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.networks.transformer import Transformer
    from jaxagents.policies.language_model import make_language_model

    def make(environment, value_head=False, **options):
        network = partial(Transformer, num_layers=1, features=16, num_heads=2, value_head=value_head)
        defaults = {"tokenizer": word_level, "model": partial(make_language_model, network=network)}
        return make_language_policy(environment, **defaults | options)

    return make


@pytest.fixture(scope="session")
def params_of():
    """Returns `(policy) -> params` that are far from uniform, so that mistakes in contexts show."""

    def make(policy):
        return jax.tree.map(lambda leaf: leaf * 3.0, policy.init(jax.random.key(7)))

    return make


@pytest.fixture(scope="session")
def kuhn_policy():
    """Returns `(environment, **options) -> LanguagePolicy` of Kuhn poker whose parameters are a table.

    The parameters are `{"bet": [4, 3], "illegal": []}`: the probability of a bet by situation (opening, after a pass,
    after a bet, after pass and bet) and card, and that of another word in place of any move. Moves always end.
    """
    import jax.numpy as jnp

    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.networks.attention import dense_mask
    from jaxagents.types import LanguageModel

    def make(environment, **options):
        tokenizer = word_level(environment.text.words)
        token = {word: tokenizer.encode(word)[0] for word in ("jack", "queen", "king", "pass", "bet", "moves")}
        size, act, end = tokenizer.vocab_size, tokenizer.marks["act"], tokenizer.marks["end"]

        def hide(tokens, seen, mask):
            """The last token, and how often each token is seen."""
            bag = jnp.einsum("bsw,bwv->bsv", mask.astype(jnp.float32), jax.nn.one_hot(seen, size))
            return jnp.concatenate([jax.nn.one_hot(tokens, size), bag], axis=-1)

        def extend(params, cache, tokens, *, positions, index, mask):
            cache = jax.lax.dynamic_update_slice(cache, tokens, (0, index))
            return cache, hide(tokens, cache, mask)

        def logits(params, hidden):
            last, bag = hidden[..., :size], hidden[..., size:]
            cards = jnp.stack([bag[..., token[card]] for card in ("jack", "queen", "king")], axis=-1) > 0
            passed, raised = bag[..., token["pass"]] > 0, bag[..., token["bet"]] > 0
            situation = jnp.where(passed & raised, 3, jnp.where(raised, 2, jnp.where(passed, 1, 0)))
            bet = params["bet"][situation, jnp.argmax(cards, axis=-1)]
            good = 1.0 - params["illegal"]
            move = jnp.zeros((*bet.shape, size)).at[..., token["bet"]].set(good * bet)
            move = move.at[..., token["pass"]].set(good * (1.0 - bet)).at[..., token["moves"]].set(1.0 - good)
            stop = jnp.broadcast_to(jax.nn.one_hot(end, size), move.shape)
            return jnp.log(jnp.where(last[..., act, None] > 0, move, stop) + 1e-30)

        model = LanguageModel(
            init=lambda key: {"bet": jnp.full((4, 3), 0.5), "illegal": jnp.zeros(())},
            apply=lambda params, tokens, *, positions, mask: hide(tokens, tokens, dense_mask(mask)),
            init_cache=lambda batch_size, length: jnp.zeros((batch_size, length), jnp.int32),
            extend=extend,
            logits=logits,
            value=None,
            vocab_size=size,
        )
        defaults = {"context_turns": 1, "prompt": False}
        return make_language_policy(
            environment, tokenizer=lambda words: tokenizer, model=lambda vocab_size: model, **defaults | options
        )

    return make


@pytest.fixture(scope="session")
def make_episode():
    """Returns the function below."""
    return _make_episode


def _make_episode(reward, num_tokens, *, group=None, valid=None, terminated=True, slot=4, **changes):
    """Makes episodes of one prompt token and turns of one observation token and up to `slot - 1` sampled ones.

    Args:
        reward: `[B][T]`.
        num_tokens: `[B][T]`, tokens that the policy sampled in the turn; the rest of the slot is padding.
        group: `[B]`; None puts all into one.
        valid: `[B][T]`; None takes the turns with sampled tokens.
        terminated: the last turn that took place ended in a terminal state; else it was cut off.
        slot: tokens per turn.
        **changes: further fields.
    """
    import jax.numpy as jnp
    import numpy as np

    from jaxagents.types import Episode

    reward, num_tokens = np.asarray(reward, np.float32), np.asarray(num_tokens)
    valid = num_tokens > 0 if valid is None else np.asarray(valid, bool)
    rows = reward.shape[0]
    place = np.arange(slot)[None, None]
    sampled = (place >= 1) & (place <= num_tokens[..., None])
    observed = np.broadcast_to((place == 0) & valid[..., None], sampled.shape)
    last = valid & ~np.concatenate([valid[:, 1:], np.zeros((rows, 1), bool)], axis=1)
    zeros = jnp.zeros(sampled.shape, jnp.float32)
    fields = {
        "prompt_tokens": jnp.zeros((rows, 1), jnp.int32),
        "prompt_mask": jnp.ones((rows, 1), bool),
        "tokens": jnp.zeros(sampled.shape, jnp.int32),
        "token_mask": jnp.asarray(sampled | observed),
        "action_mask": jnp.asarray(sampled),
        "thought_mask": jnp.zeros(sampled.shape, bool),
        "position": jnp.zeros(sampled.shape, jnp.int32),
        "agent": jnp.zeros(sampled.shape, jnp.int32),
        "behavior_log_prob": zeros,
        "sampling_log_prob": zeros,
        "reward": jnp.asarray(reward),
        "valid": jnp.asarray(valid),
        "action_valid": jnp.asarray(valid),
        "terminated": jnp.asarray(last & terminated),
        "truncated": jnp.asarray(last & (not terminated)),
        "fingerprint": jnp.zeros(reward.shape, jnp.uint32),
        "success": jnp.zeros(rows, bool),
        "group": jnp.asarray(np.zeros(rows) if group is None else group, jnp.int32),
    }
    return Episode(**(fields | changes))
