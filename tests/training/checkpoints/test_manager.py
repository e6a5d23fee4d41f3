import contextlib
import errno
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxagents.training.checkpoints import manager
from jaxagents.training.checkpoints.manager import open_checkpoints


@struct.dataclass
class Counters:
    updates: jax.Array
    name: str = struct.field(pytree_node=False, default="counters")


def make_state(value=0.0):
    params = {"dense": {"kernel": jnp.full((3, 4), value, jnp.bfloat16), "bias": jnp.arange(4.0)}}
    return {
        "params": params,
        "opt_state": optax.adam(1e-3).init(params),
        "counters": Counters(updates=jnp.uint32(2**32 - 1)),
        "mask": jnp.array([True, False, True]),
        "tokens": jnp.array([-128, 127], jnp.int8),
        "odd": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-45], jnp.float32),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
        "host": np.array([0.1, np.nan], np.float64),
        "zero": jnp.zeros((0, 5), jnp.int32),
        "carry": (),
        "nothing": None,
        "info": {},
    }


def make_state_of_jax(value=0.0):
    return {**make_state(value), "host": jnp.zeros(2)}


def bits(leaf):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf)).tobytes()
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def assert_same_bits(state, expected):
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    assert [bits(leaf) for leaf in jax.tree.leaves(state)] == [bits(leaf) for leaf in jax.tree.leaves(expected)]


def small(value):
    return {"w": jnp.full((8,), value, jnp.float32)}


@contextlib.contextmanager
def opened(directory, **options):
    folder = open_checkpoints(directory, **options)
    try:
        yield folder
    finally:
        folder.close()


@pytest.fixture
def two_steps(tmp_path):
    with opened(tmp_path / "last") as folder:
        folder.save(1, small(1.0), {"updates": 1})
        folder.save(2, small(2.0), {"updates": 2})
    return tmp_path / "last"


@pytest.mark.parametrize("abstract", ["arrays", "shapes"])
def test_restore_returns_the_same_bits_and_structure(tmp_path, abstract):
    state = make_state(0.1)
    with opened(tmp_path) as folder:
        folder.save(10, state, {"steps": 2**40, "config": {"seed": None}})
        folder.wait()
    abstract_state = make_state()
    if abstract == "shapes":
        abstract_state = {**jax.eval_shape(make_state), "host": abstract_state["host"]}
    with opened(tmp_path) as folder:
        restored = folder.restore(abstract_state)
    assert restored.step == 10
    assert restored.metadata == {"steps": 2**40, "config": {"seed": None}}
    assert_same_bits(restored.state, state)


def test_restore_returns_none_only_for_an_empty_directory(tmp_path):
    with opened(tmp_path / "new") as folder:
        assert folder.restore(small(0.0)) is None
        assert folder.latest_metadata() is None
        assert folder.steps() == []


def test_newest_steps_are_kept_with_their_digests(tmp_path):
    with opened(tmp_path, keep=2) as folder:
        for step in (1, 5, 20, 100):
            folder.save(step, small(step), {"updates": step})
        folder.wait()
        assert folder.steps() == [20, 100]
        assert folder.latest_metadata() == {"updates": 100}
        assert folder.restore(small(0.0), step=20).state["w"][0] == 20
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["100.digest.json", "20.digest.json"]


def test_restore_refuses_an_unknown_step(two_steps):
    with (
        opened(two_steps) as folder,
        pytest.raises(ValueError, match=r"`step` must be a checkpoint in .*got 3.*\[1, 2\]"),
    ):
        folder.restore(small(0.0), step=3)


def damage(path, how):
    content = path.read_bytes()
    if how == "flip":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "truncate":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    return content


def test_restore_falls_back_when_any_file_is_damaged(two_steps):
    damaged = [path for path in (two_steps / "2").rglob("*") if path.is_file()] + [two_steps / "2.digest.json"]
    assert len(damaged) > 8
    with opened(two_steps) as folder:
        for path in damaged:
            for how in ("flip", "truncate", "unlink"):
                if how != "unlink" and not path.stat().st_size:
                    continue
                content, messages = damage(path, how), []
                restored = folder.restore(small(0.0), on_fallback=messages.append)
                path.write_bytes(content)
                assert (restored.step, restored.state["w"][0], restored.metadata) == (1, 1.0, {"updates": 1})
                assert len(messages) == 1
                assert "checkpoint of step 2" in messages[0]
                name = path.name if path.suffix == ".json" else path.relative_to(two_steps / "2").as_posix()
                assert f"`{name}`" in messages[0]
        assert folder.restore(small(0.0)).step == 2


def test_restore_warns_by_default(two_steps):
    (two_steps / "2.digest.json").unlink()
    with opened(two_steps) as folder:
        with pytest.warns(UserWarning, match="checkpoint of step 2 in .* not used: `2.digest.json` is missing"):
            assert folder.restore(small(0.0)).step == 1
        assert folder.latest_metadata() == {"updates": 1}


def test_restore_never_starts_from_scratch_when_all_steps_are_damaged(two_steps):
    damage(two_steps / "1" / "metadata" / "metadata", "flip")
    damage(two_steps / "2" / "state" / "manifest.ocdbt", "flip")
    with opened(two_steps) as folder:
        with pytest.raises(
            ValueError, match=r"`checkpoint` must be whole.*step 2: .*ocdbt.*step 1: .*metadata/metadata"
        ):
            folder.restore(small(0.0), on_fallback=lambda message: None)
        with pytest.raises(ValueError, match="`checkpoint` must be whole"):
            folder.latest_metadata()


def test_restore_of_a_chosen_step_does_not_fall_back(two_steps):
    damage(two_steps / "2" / "metadata" / "metadata", "flip")
    with opened(two_steps) as folder, pytest.raises(ValueError, match="step 2: the file `metadata/metadata` differs"):
        folder.restore(small(0.0), step=2)


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        ({"w": jnp.zeros((8,), jnp.bfloat16)}, r"leaf \['w'\] is float32\[8\], the state has bfloat16\[8\]"),
        ({"w": jnp.zeros((9,))}, r"leaf \['w'\] is float32\[8\], the state has float32\[9\]"),
        ({"w": jnp.zeros((8,)), "v": jnp.zeros(())}, r"no leaf \['v'\]"),
        ({"w": None}, r"a leaf \['w'\] that the state lacks"),
    ],
)
def test_restore_refuses_the_state_of_another_configuration(two_steps, foreign, message):
    with opened(two_steps) as folder, pytest.raises(ValueError, match=message):
        folder.restore(foreign, on_fallback=lambda message: None)


def test_restore_falls_back_over_a_foreign_step(two_steps):
    messages = []
    with opened(two_steps) as folder:
        folder.save(3, {"other": jnp.zeros(2)}, {})
        assert folder.restore(small(0.0), on_fallback=messages.append).step == 2
    assert "checkpoint of step 3" in messages[0]


def test_the_state_may_be_donated_right_after_save(tmp_path):
    update = jax.jit(lambda state: jax.tree.map(lambda x: -x, state), donate_argnums=0)
    state = {"w": jnp.arange(2.0**20)}
    with opened(tmp_path) as folder:
        folder.save(1, state, {})
        for _ in range(5):
            donated, state = state, update(state)
            assert donated["w"].is_deleted()
        restored = folder.restore(state)
    np.testing.assert_array_equal(restored.state["w"], np.arange(2.0**20))


def test_states_restore_to_other_numbers_of_devices(tmp_path):
    def sharding(num_devices):
        mesh = jax.make_mesh(
            (num_devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:num_devices]
        )
        return NamedSharding(mesh, PartitionSpec("data"))

    keys = jax.random.split(jax.random.key(0), 16)
    state = {"x": jnp.arange(32.0).reshape(16, 2), "keys": keys}
    with opened(tmp_path) as folder:
        folder.save(1, jax.device_put(state, sharding(8)), {})
        for wanted in (sharding(8), sharding(2), None):
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=wanted), state)  # noqa: B023
            restored = folder.restore(abstract).state
            assert_same_bits(restored, state)
            assert restored["x"].committed == (wanted is not None)
            if wanted is not None:
                assert restored["x"].sharding == wanted
                assert restored["keys"].sharding.is_equivalent_to(wanted, 1)


def test_an_abandoned_line_is_replaced(two_steps):
    damage(two_steps / "2" / "state" / "manifest.ocdbt", "flip")
    with opened(two_steps) as folder:
        assert folder.restore(small(0.0), on_fallback=lambda message: None).step == 1
        folder.save(2, small(-2.0), {"updates": -2})
        folder.save(3, small(-3.0), {"updates": -3})
        folder.wait()
        assert folder.restore(small(0.0), step=2).state["w"][0] == -2
    with opened(two_steps) as folder:
        assert folder.restore(small(0.0), step=1).state["w"][0] == 1
        folder.save(2, small(20.0), {})
        assert folder.restore(small(0.0)).state["w"][0] == 20
        assert folder.steps() == [1, 2]


def test_the_old_step_stays_until_the_new_one_has_its_digest(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("cut off")

    with opened(tmp_path, keep=1) as folder:
        folder.save(1, small(1.0), {})
        folder.wait()
        monkeypatch.setattr(manager, "write_digest", fail)
        folder.save(2, small(2.0), {})
        with pytest.raises(RuntimeError, match="cut off"):
            folder.wait()
        assert folder.restore(small(0.0), on_fallback=lambda message: None).step == 1
        monkeypatch.undo()
        folder.save(2, small(2.5), {})
        assert folder.restore(small(0.0)).state["w"][0] == 2.5
        assert folder.steps() == [2]


@contextlib.contextmanager
def tiny_disk(path):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_says_so_and_keeps_the_last_step(tmp_path):
    state = {"w": jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 75_000, np.uint32))}
    with tiny_disk(tmp_path / "disk") as disk:
        folder = open_checkpoints(disk / "last")
        folder.save(1, state, {"updates": 1})
        folder.wait()
        filler = disk / "filler"
        filler.write_bytes(bytes(500_000))
        folder.save(2, state, {"updates": 2})
        with pytest.raises(OSError, match="`run_dir` must have free space for the checkpoint of step 2") as caught:
            folder.wait()
        assert caught.value.errno == errno.ENOSPC
        assert "the checkpoint of step 1 is kept" in str(caught.value)
        assert sorted(path.name for path in (disk / "last").iterdir()) == ["1", "1.digest.json"]
        assert folder.restore(state).step == 1
        filler.unlink()
        folder.save(2, state, {"updates": 2})
        assert folder.restore(state).step == 2
        folder.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_with_the_digest_says_so(two_steps, monkeypatch, code):
    def fail(*arguments):
        raise OSError(code, "full")

    with opened(two_steps) as folder:
        monkeypatch.setattr(manager, "write_digest", fail)
        folder.save(3, small(3.0), {})
        with pytest.raises(OSError, match="checkpoint of step 3, got a full disk in .* step 2 is kept; try freeing"):
            folder.save(4, small(4.0), {})
        assert folder.restore(small(0.0), on_fallback=lambda message: None).step == 2
        monkeypatch.undo()


def test_a_failed_save_can_be_tried_again(two_steps, monkeypatch):
    with opened(two_steps) as folder:
        monkeypatch.setattr(manager, "write_digest", lambda *arguments: 1 / 0)
        folder.save(3, small(3.0), {})
        with pytest.raises(ZeroDivisionError):
            folder.wait()
        monkeypatch.undo()
        folder.save(3, small(3.0), {})
        assert folder.restore(small(0.0)).step == 3


def test_steps_without_a_digest_do_not_push_out_good_ones(two_steps):
    (two_steps / "2.digest.json").unlink()
    with opened(two_steps, keep=2) as folder:
        folder.save(3, small(3.0), {})
        folder.wait()
        assert folder.steps() == [1, 3]


def test_a_reader_sees_later_steps_and_leaves_the_folder_alone(two_steps):
    temporary = two_steps / "9.orbax-checkpoint-tmp"
    with opened(two_steps) as folder:
        folder.save(3, small(3.0), {})
        folder.wait()
        temporary.mkdir()
        with opened(two_steps, read_only=True) as reader:
            assert reader.restore(small(0.0)).step == 3
            folder.save(4, small(4.0), {})
            folder.wait()
            assert reader.restore(small(0.0)).state["w"][0] == 4
            with pytest.raises(ValueError, match="`read_only` must be False to save"):
                reader.save(5, small(5.0), {})
    assert temporary.exists()
    with opened(two_steps) as folder:
        folder.save(5, small(5.0), {})  # the clean-up runs in the background, and ends before the first save
    assert not temporary.exists()


ACTING = ["['counters'].updates", "['params']['dense']['bias']", "['params']['dense']['kernel']", "['zero']"]


@pytest.fixture
def apart(tmp_path):
    """Two steps of a state, of which some leaves act; a numpy leaf does not."""
    with opened(tmp_path / "last") as folder:
        for step in (1, 2):
            folder.save(step, make_state(float(step)), {"updates": step}, acting=ACTING)
    return tmp_path / "last"


def test_what_acts_is_read_without_a_byte_of_the_others(apart):
    for step in (1, 2):
        shutil.rmtree(apart / str(step) / "state")
    abstract = jax.eval_shape(make_state_of_jax)
    with opened(apart, read_only=True) as folder:
        restored = folder.restore(abstract, acting=ACTING)
        assert (restored.step, restored.metadata) == (2, {"updates": 2}) == (2, folder.latest_metadata(acting=True))
        expected = make_state_of_jax(2.0)
        assert_same_bits(restored.state["params"], expected["params"])
        assert_same_bits(restored.state["counters"], expected["counters"])
        assert restored.state["opt_state"] is not None
        for name in ("opt_state", "mask", "key"):
            assert restored.state[name] == abstract[name]
        for read in (lambda: folder.restore(abstract, on_fallback=lambda message: None), folder.latest_metadata):
            with pytest.raises(ValueError, match="`checkpoint` must be whole"):
                read()


def test_all_is_restored_from_both_items(apart):
    with opened(apart) as folder:
        assert_same_bits(folder.restore(make_state()).state, make_state(2.0))
        folder.save(3, make_state(3.0), {}, acting=ACTING[:1])
        assert_same_bits(folder.restore(make_state()).state, make_state(3.0))


def test_damage_to_what_acts_and_other_leaves_than_those_are_seen(apart):
    files = [path for path in (apart / "2" / "acting").rglob("*") if path.is_file() and path.stat().st_size]
    abstract = jax.eval_shape(make_state_of_jax)
    with opened(apart) as folder:
        for path in files:
            content, messages = damage(path, "flip"), []
            assert folder.restore(abstract, on_fallback=messages.append, acting=ACTING).step == 1
            assert "the file `acting/" in messages[0]
            path.write_bytes(content)
        with pytest.raises(ValueError, match=r"step 2: it has no leaf \['mask'\]; step 1.* of an earlier jaxagents"):
            folder.restore(abstract, on_fallback=lambda message: None, acting=[*ACTING, "['mask']"])
        with pytest.raises(ValueError, match=r"it has a leaf \['zero'\] that the state lacks"):
            folder.restore(abstract, step=1, acting=ACTING[:-1])


def test_invalid_arguments_are_refused(tmp_path, two_steps):
    with pytest.raises(ValueError, match="`keep` must be at least 1, got 0"):
        open_checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match="`directory` must be a path, got gs://bucket/run"):
        open_checkpoints("gs://bucket/run")
    with pytest.raises(ValueError, match="`directory` must hold checkpoints"):
        open_checkpoints(tmp_path / "missing", read_only=True)
    with opened(tmp_path / "refused") as folder:
        with pytest.raises(ValueError, match="`metadata` must be JSON"):
            folder.save(1, small(0.0), {"loss": jnp.zeros(())})
        with pytest.raises(ValueError, match=r"`state` must hold arrays only, got int at \['updates'\]"):
            folder.save(1, {"updates": 3}, {})
        folder.save(2, small(0.0), {})
        with pytest.raises(ValueError, match="`step` must rise, got 1 after 2"):
            folder.save(1, small(0.0), {})


def test_saving_the_current_step_again_does_nothing(two_steps):
    with opened(two_steps) as folder:
        folder.restore(small(0.0))
        folder.save(2, small(5.0), {})
        folder.save(3, small(3.0), {})
        folder.save(3, small(5.0), {})
        assert folder.restore(small(0.0), step=2).state["w"][0] == 2
        assert folder.restore(small(0.0), step=3).state["w"][0] == 3


def test_a_first_save_that_was_cut_off_counts_as_none(tmp_path):
    with contextlib.closing(open_checkpoints(tmp_path)) as folder:
        folder.save(1, small(1.0), {})
    (tmp_path / "1.digest.json").unlink()
    messages = []
    with contextlib.closing(open_checkpoints(tmp_path)) as folder:
        assert folder.restore(small(0.0), on_fallback=messages.append) is None
        folder.save(1, small(2.0), {})
    assert "cut off" in messages[0]
    with contextlib.closing(open_checkpoints(tmp_path)) as folder:
        assert folder.restore(small(0.0)).step == 1
