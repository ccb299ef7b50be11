"""What is promised of jax, for a process of its own: see test_jax.py, which runs it.

Jax in a process warns of every fork and is a framework in use, which other tests would notice.
It has eight devices here, all of them the host's.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import standfast
from standfast import errors
from standfast.formats.safetensors.file import CODE_OF
from standfast.identity import identify
from standfast.jax import Pytree, assembled, restore, save, shards, wanted_boxes
from standfast.jax import framework as adapter
from standfast.tensors import kind_of, memory_of, register_framework, source_of, tensor_of
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.sources import aligned_bytes

register_framework("jax", "standfast.jax.framework")

MESH = jax.make_mesh((4, 2), ("rows", "columns"))
WIDE = ("float64", "int64", "uint64", "complex128")
NARROW = sorted({*CODE_OF} - {*WIDE, "float6_e2m3fn", "float6_e3m2fn"})


def placed(value: Any, *axes: str | None) -> jax.Array:
    return jax.device_put(value, NamedSharding(MESH, PartitionSpec(*axes)))


def like(value: jax.Array, *axes: str | None) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(MESH, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def bits(value: Any) -> bytes:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value).tobytes()


def any_bits(dtype: str, shape: tuple[int, ...]) -> jax.Array:
    """Elements with all bits of a dtype: not-a-number of every kind too."""
    generator = np.random.default_rng(7)
    if dtype == "bool":
        return jnp.array(generator.integers(0, 2, shape), bool)
    numpy = jnp.dtype(dtype)
    data = generator.bytes(int(np.prod(shape)) * numpy.itemsize)
    array = np.frombuffer(data, np.uint8)
    array = array & 15 if dtype.startswith("float4") else array
    return jnp.array(array.view(numpy).reshape(shape))


def assert_same(found: Any, expected: Any) -> None:
    """The same pytree, in every bit and type."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        if hasattr(a, "dtype"):
            assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))
            assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        else:
            assert a == b


@pytest.fixture
def run(tmp_path: Path) -> standfast.Run:
    return standfast.Store(tmp_path / "store").run("jax")


@pytest.mark.parametrize("dtype", NARROW)
def test_every_dtype_comes_back_bit_for_bit(dtype: str, run: standfast.Run) -> None:
    assert {*DTYPES} == {*NARROW, *WIDE, "float6_e2m3fn", "float6_e3m2fn"}
    value = any_bits(dtype, (6, 4, 10))
    tree = {"whole": value, "turned": value.T, "empty": value[:0], "flat": value.reshape(-1)}
    if not dtype.startswith("float4"):
        tree["scalar"] = value[0, 0, 0]
    run.save(1, tree)
    assert_same(run.load(1), tree)
    path = run.store.logs.parent / "file.safetensors"
    standfast.save(path, tree)
    assert_same(standfast.load(path, framework="jax"), tree)


def test_what_jax_would_narrow_is_refused_and_comes_back_where_it_is_not(
    run: standfast.Run,
) -> None:
    with jax.enable_x64(True):
        tree = {name: any_bits(name, (5,)) for name in WIDE if name in CODE_OF}
        assert tree["float64"].dtype == np.float64
        run.save(1, tree)
        assert_same(run.load(1), tree)
    with pytest.raises(errors.UnsupportedDType, match="jax_enable_x64"):
        run.load(1)
    with pytest.raises(errors.StateMismatch, match="jax_enable_x64"):
        restore(run, {**tree})
    with pytest.raises(errors.UnsupportedDType, match="int4"):
        source_of(jnp.ones(2, jnp.int4))
    with pytest.raises(errors.UnsupportedDType, match="float6_e2m3fn"):
        adapter.tensor(np.zeros(3, np.uint8), standfast.TensorSpec("float6_e2m3fn", (4,)))


def test_a_float4_is_two_to_a_byte_the_first_one_low(run: standfast.Run) -> None:
    value = jnp.array([0.5, 1.0, -6.0, 0.0], "float4_e2m1fn")
    assert run.save(1, {"x": value}).nbytes == 2
    stored = source_of(value)
    out = np.empty(2, np.uint8)
    stored.copy_to(out, 0)
    assert out.tolist() == [0x21, 0x0F]
    with pytest.raises(errors.UnsupportedShape):
        source_of(value[:3])


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys_come_back_as_keys_that_draw_the_same(
    implementation: str, run: standfast.Run
) -> None:
    key = jax.random.key(3, impl=implementation)
    keys = jax.random.split(key, 8)
    tree = {"one": key, "many": keys.reshape(2, 4), "cut": placed(keys, "rows")}
    assert kind_of(key) == f"jax:key:{implementation}"
    checkpoint = save(run, 1, tree)
    assert checkpoint.tensors["one"].dtype == "uint32"
    described = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in tree.items()}
    for found in (restore(run), restore(run, tree), restore(run, described)):
        assert_same(found, tree)
        assert bits(jax.random.bits(found["one"], (3,))) == bits(jax.random.bits(key, (3,)))
    assert restore(run, tree)["cut"].sharding == tree["cut"].sharding


def test_keys_that_a_file_lies_about_are_refused():
    for kind, dtype, error in (
        ("key:nonsense", "uint32", errors.UnknownFramework),
        ("later", "uint32", errors.UnknownFramework),
        ("key:rbg", "uint32", errors.BadField),
        ("key:threefry2x32", "int32", errors.BadField),
    ):
        with pytest.raises(error):
            tensor_of(np.zeros((3, 2), dtype), standfast.TensorSpec(dtype, (3, 2)), f"jax:{kind}")


def test_a_dtype_that_gives_way_to_others_still_does(run: standfast.Run) -> None:
    tree = {"scale": jnp.asarray(1.5), "count": jnp.asarray(2), "rows": jnp.full((3, 2), 0.5)}
    tree["rows"] = jnp.broadcast_to(tree["scale"], (3, 2)) * 3
    assert tree["scale"].weak_type
    assert tree["rows"].weak_type
    save(run, 1, tree)
    for found in (restore(run), restore(run, tree)):
        assert_same(found, tree)
        assert (found["scale"] * jnp.ones((), jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_loaded_array_shares_its_memory_with_nothing() -> None:
    array = aligned_bytes(4096 * 4).view(np.float32)  # jax would take it as it is
    array[:] = 0
    made = tensor_of(array, standfast.TensorSpec("float32", (4096,)), "jax")
    one, all = (
        jax.sharding.SingleDeviceSharding(jax.devices()[3]),
        NamedSharding(MESH, PartitionSpec()),
    )
    likes = [
        jax.ShapeDtypeStruct((4096,), np.float32, sharding=sharding) for sharding in (one, all)
    ]
    cut = [assembled(like, [array]) for like in likes]
    array[:] = 7
    assert [float(each.sum()) for each in (made, *cut)] == [0, 0, 0]


def test_an_array_under_two_names_is_stored_once_and_comes_back_as_one(run: standfast.Run) -> None:
    for step, value in enumerate((jnp.arange(30000.0), placed(jnp.arange(30000.0), "rows")), 1):
        checkpoint = run.save(step, {"a": value, "b": value, "c": value + 0})
        assert [view.base for view in checkpoint.record.views.values()] == [0]
        found = run.load(step)
        assert found["a"] is found["b"]
        assert found["a"] is not found["c"]
        assert bits(found["a"]) == bits(found["c"]) == bits(value)


def test_what_has_no_values_is_refused_with_its_path(run: standfast.Run) -> None:
    with pytest.raises(errors.UnsupportedTensor):
        jax.jit(lambda x: source_of(x).nbytes * x)(1.0)
    donated = jnp.ones(3)
    donated.delete()
    for value in (donated, jax.ShapeDtypeStruct((2,), np.float32)):
        with pytest.raises(errors.RefusedState, match=r"deep\.0:"):
            run.save(1, {"deep": [value]})
    with pytest.raises(errors.RefusedState, match=r"deep\.0:"):
        jax.jit(lambda x: run.save(1, {"deep": [x]}))(1.0)


def test_loading_to_a_device_and_casting(run: standfast.Run) -> None:
    run.save(1, {"x": jnp.arange(4.0), "n": jnp.arange(4)})
    found = run.load(1, cast=jnp.bfloat16)
    assert_same(found, {"x": jnp.arange(4.0).astype(jnp.bfloat16), "n": jnp.arange(4)})
    with pytest.raises(errors.BadOption):
        run.load(1, device="cuda:0")
    with jax.default_device(jax.devices()[5]):
        assert run.load(1)["x"].devices() == {jax.devices()[5]}


def test_a_model_is_the_same_by_its_arrays_and_by_their_description() -> None:
    params = {"w": jnp.ones((3, 2)), "b": [jnp.zeros(2, jnp.bfloat16)]}
    described = jax.eval_shape(lambda: params)
    assert identify(model=params) == identify(model=described)
    assert identify(model=params) != identify(model={**params, "w": jnp.ones((2, 3))})


@pytest.mark.parametrize("axes", [("rows",), (None, "columns"), ("rows", "columns"), ("columns",)])
def test_the_boxes_of_an_array_have_each_element_once(axes: tuple[str | None, ...]) -> None:
    value = placed(jnp.arange(64.0).reshape(8, 8), *axes)
    found = shards(value)
    assert found is not None
    assert found.spec == standfast.TensorSpec("float32", (8, 8))
    whole, times = np.zeros((8, 8), np.float32), np.zeros((8, 8), int)
    for (offsets, shape), tensor in found.shards:
        place = tuple(slice(a, a + n) for a, n in zip(offsets, shape, strict=True))
        whole[place] = np.asarray(tensor)
        times[place] += 1
        assert len(tensor.devices()) == 1
    assert (times == 1).all()
    assert whole.tobytes() == bits(value)


def test_an_array_that_is_not_cut_up_has_no_boxes() -> None:
    float4, struct = jnp.ones(8, "float4_e2m1fn"), jax.ShapeDtypeStruct((2,), np.float32)
    for whole in (jnp.ones(4), placed(jnp.ones(4)), placed(jnp.ones((0, 8)), None, "rows"), struct):
        assert shards(whole) is None
    assert shards(jax.random.key(0)) is shards(placed(float4, "rows")) is None
    assert jax.jit(lambda x: shards(x) is None)(1.0)
    gone = placed(jnp.ones(8), "rows")
    gone.delete()
    with pytest.raises(errors.UnsupportedTensor):
        shards(gone)
    keys = shards(placed(jax.random.split(jax.random.key(0), 8), "rows"))
    assert keys is not None  # those of their words
    assert keys.spec == standfast.TensorSpec("uint32", (8, 2))
    assert [box for box, _ in keys.shards] == [((at, 0), (2, 2)) for at in (0, 2, 4, 6)]


@pytest.mark.parametrize("axes", [(), ("rows",), (None, "columns"), (("rows", "columns"),)])
def test_an_array_is_put_together_of_the_boxes_that_it_wants(axes: tuple[Any, ...]) -> None:
    whole = np.random.default_rng(0).random((8, 8)).astype(np.float32)
    target = placed(jnp.zeros((8, 8)), *axes)
    boxes = wanted_boxes(target)
    assert len(boxes) == len(set(boxes)) == {(): 1, ("rows",): 4, (None, "columns"): 2}.get(axes, 8)
    arrays = [whole[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))] for box in boxes]
    found = assembled(target, arrays)
    assert (bits(found), found.sharding) == (whole.tobytes(), target.sharding)
    with pytest.raises(errors.StateMismatch):
        assembled(target, [*arrays, whole])
    with pytest.raises(errors.StateMismatch, match="float64"):
        assembled(target, [each.astype(np.float64) for each in arrays])


def test_a_cut_array_is_saved_whole(run: standfast.Run) -> None:
    whole = jnp.arange(64.0).reshape(8, 8)
    cut = placed(whole, "columns", "rows")
    run.save(1, {"x": cut, "copies": placed(whole)})
    found = run.load(1)
    assert bits(found["x"]) == bits(found["copies"]) == bits(whole)
    for value in (cut, placed(whole, None, "rows")):  # of one each box is there once, or twice
        source, out = source_of(value), np.empty(200, np.uint8)
        source.copy_to(out, 56)
        assert out.tobytes() == bits(whole)[56:]
        assert source.contiguous() is None
    memory = memory_of(cut)
    assert memory is not None
    assert memory.strides == (32, 4)
    assert memory != memory_of(cut + 0)
    # Of these, elements share a byte, or there are none.
    tree = {"x": placed(any_bits("float4_e2m1fn", (8, 4)), "rows"), "e": placed(jnp.ones((0, 8)))}
    save(run, 2, tree)
    assert bits(restore(run)["x"]) == bits(restore(run, tree)["x"]) == bits(tree["x"])


class Moments(NamedTuple):
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    kernel: Any
    bias: Any


@jax.tree_util.register_pytree_node_class
class Unnamed:
    def __init__(self, *members: Any) -> None:
        self.members = members

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.members, None

    @classmethod
    def tree_unflatten(cls, _: None, members: Any) -> Unnamed:
        return cls(*members)


def everything() -> dict[str, Any]:
    params = {"dense": Layer(jnp.arange(6.0).reshape(3, 2), jnp.ones(2, jnp.bfloat16))}
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {
        "params": params,
        "opt": chain.init({"w": jnp.ones((4, 3))}),
        "moments": [Moments(jnp.zeros(3), (jnp.ones(1), None))],
        "unnamed": Unnamed(jnp.arange(3), {"b": np.arange(4), "a": 5}),
        "key": jax.random.key(1),
        "ordered": OrderedDict(z=jnp.ones(1), a=1.5),
        "numbers": {3: True, 1: "text"},
        "empty": [(), {}, None],
    }


def test_any_pytree_is_saved_and_restored(run: standfast.Run) -> None:
    tree = everything()
    checkpoint = save(run, 4, tree, metrics={"loss": 0.5}, epoch=2)
    assert (checkpoint.step, checkpoint.epoch, checkpoint.metrics) == (4, 2, {"loss": 0.5})
    assert {"params.dense.kernel", "opt.1.0.mu.w", "unnamed.1.b"} < {*checkpoint.tensors}
    assert_same(restore(run, tree), tree)
    assert_same(restore(checkpoint, jax.tree.map(lambda leaf: leaf, tree)), tree)
    plain = restore(run)
    assert plain["params"] == {"dense": plain["params"]["dense"]}
    assert bits(plain["moments"][0]["nu"][0]) == bits(jnp.ones(1))
    assert plain["empty"] == [(), {}, None]
    assert type(plain["ordered"]) is OrderedDict
    assert plain["unnamed"][1]["a"] == 5
    assert_same(restore(run, tree["params"], part="params"), tree["params"])


def test_a_target_says_where_and_as_what_arrays_come_back(run: standfast.Run) -> None:
    whole = jnp.arange(64.0).reshape(8, 8) / 3
    save(run, 1, {"a": placed(whole, "rows"), "b": whole, "c": placed(whole), "d": whole})
    target = {
        "a": like(whole, None, "rows"),
        "b": placed(jnp.zeros((8, 8)), "columns", "rows"),
        "c": jax.ShapeDtypeStruct((8, 8), jnp.bfloat16),
        "d": np.zeros((8, 8), np.float16),
    }
    found = restore(run, target)
    assert found["a"].sharding == target["a"].sharding
    assert found["b"].sharding == target["b"].sharding
    assert bits(found["a"]) == bits(found["b"]) == bits(whole)
    assert bits(found["c"]) == bits(whole.astype(jnp.bfloat16))
    assert type(found["d"]) is np.ndarray
    assert bits(found["d"]) == bits(whole.astype(jnp.float16))
    found["d"][:] = 0  # it shares no memory
    assert bits(restore(run, target)["d"]) == bits(whole.astype(jnp.float16))
    described = jax.eval_shape(lambda: {"a": target["b"]})  # whose mesh has no devices
    with pytest.raises(errors.BadOption):
        restore(run, {**target, **described})


def test_what_does_not_fit_a_target_is_named(run: standfast.Run) -> None:
    key = jax.random.key(0, impl="rbg")
    save(run, 1, {"a": [jnp.ones(3), 2], "b": {"x": jnp.ones(2)}, "k": key, "n": jnp.arange(3)})
    target = {
        "a": [jnp.ones(4), jnp.ones(1), jnp.ones(1)],
        "b": {"y": Moments(jnp.ones(2), None)},
        "k": jax.random.key(0, impl="unsafe_rbg"),
        "n": jnp.ones(3),
    }
    with pytest.raises(errors.StateMismatch) as caught:
        restore(run, target)
    said = [line.rpartition("checkpoint: ")[2] for line in str(caught.value).splitlines()[1:]]
    assert said == [
        *("a.2", "b.y.mu", "b.x"),
        "different: a.0: float32 [3] was saved, float32 [4] is wanted",
        "different: a.1: a plain value was saved, an array is wanted",
        "different: k: uint32 [4] jax:key:rbg was saved, uint32 [4] jax:key:unsafe_rbg is wanted",
        "different: n: int32 [3] was saved, float32 [3] is wanted",
    ]
    for path, wanted in {"a.0": jnp.ones(3), "a.0.deep": [{"deep": jnp.ones(3)}]}.items():
        with pytest.raises(errors.StateMismatch, match=re.escape(path)):
            restore(run, {"a": wanted})


def test_a_damaged_checkpoint_is_passed_over_as_by_a_run(run: standfast.Run) -> None:
    save(run, 1, {"x": jnp.arange(1000.0)})
    save(run, 2, {"x": jnp.arange(1000.0) + 1})
    (file,) = (run.store.logs.parent / "checkpoints").rglob("*_step_000002.*.safetensors")
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    target = {"x": jnp.zeros(1000)}
    with pytest.raises(errors.DigestMismatch):
        restore(run, target, ref=2)
    with pytest.warns(errors.FellBack):
        assert bits(restore(run, target)["x"]) == bits(jnp.arange(1000.0))


OPTIONS: dict[str, Any] = {"name": "a", "every": 1, "quiet": True, "asynchronous": False}


def test_pytrees_in_a_training_state_come_back(tmp_path: Path) -> None:
    def program(steps: int) -> standfast.TrainingState:
        tree = everything() | {"cut": placed(jnp.zeros((8, 8)), "rows")}
        plain = {"layers": [{"w": jnp.zeros(3)}], "n": (1,)}
        state = standfast.TrainingState(
            tree=Pytree(tree), key=Pytree(jax.random.key(5)), params=plain
        )
        with standfast.Checkpointer(tmp_path, state, **OPTIONS) as ckpt:
            for step in ckpt.steps(steps):
                state.tree.value["cut"] = state.tree.value["cut"] + 1
                state.key.value = jax.random.split(state.key.value)[0]
                layer = state.params["layers"][0]
                layer["w"] = layer["w"] + 1
                ckpt.step(step, loss=jnp.sum(state.tree.value["cut"]))
        assert not ckpt.resume_report.inexact
        return state

    first, again = program(3), program(3)
    assert_same(again.tree.value, first.tree.value)
    assert_same(again.key.value, first.key.value)
    sharding = first.tree.value["cut"].sharding
    assert again.tree.value["cut"].sharding.is_equivalent_to(sharding, 2)
    assert (np.asarray(again.tree.value["cut"]) == 3).all()
    assert_same(again.params, {"layers": [{"w": jnp.zeros(3) + 3}], "n": (1,)})
    assert standfast.Store(tmp_path).resolve("a@3").metrics == {"loss": 192.0}


def test_a_pytree_takes_only_what_fits() -> None:
    pytree = Pytree({"a": jnp.ones(3), "k": jax.random.key(0, impl="rbg"), "n": 1})
    with pytest.raises(errors.StateMismatch) as caught:
        pytree.load_state_dict(
            {"a": jnp.ones(2), "k": jax.random.key(0, impl="unsafe_rbg"), "b": 1}
        )
    said = [line.rpartition("checkpoint: ")[2] for line in str(caught.value).splitlines()[1:]]
    assert said == [
        *("n", "b"),
        "different: a: float32 [2] was saved, float32 [3] is there now",
        "different: k: key<urbg> [] was saved, key<rbg> [] is there now",
    ]
    assert bits(pytree.value["a"]) == bits(jnp.ones(3))
    pytree.load_state_dict(
        {"a": np.zeros(3, np.float32), "k": jax.random.key(9, impl="rbg"), "n": 4}
    )
    assert_same(pytree.value, {"a": jnp.zeros(3), "k": jax.random.key(9, impl="rbg"), "n": 4})


def test_a_metric_is_kept_though_its_array_is_donated() -> None:
    loss = jnp.full((1,), 2.5, jnp.bfloat16)
    kept = adapter.held(loss)
    loss.delete()
    assert kept.item() == 2.5
    for value in (jnp.ones(2), jax.random.key(0), jnp.ones((), jnp.complex64)):
        with pytest.raises(errors.UnsupportedTensor):
            adapter.held(value)
    with pytest.raises(errors.UnsupportedTensor):  # arrays are never filled
        adapter.fill(value, np.zeros((), np.complex64), standfast.TensorSpec("complex64", ()))
    assert adapter.random_states() == {}
    with pytest.raises(errors.BadField):
        adapter.restore_random_states({"cpu": 1})
