"""Products under jit over a mesh of fake devices: what stays local, what is sent, and never another bit."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from compiled import collectives
from generators import FAMILIES, complex_operands, fractions, operands, phi, problems, special_values
from jax_ozaki import _partition
from meshes import mesh, put, run
from oracle import assert_same_bits


@pytest.fixture(autouse=True)
def uncertified():
    """Programs of one rung, which compile quickly: certified ones are in test_sharded_ladder.py."""
    with jo.default_contract(jo.Contract.mantissa(53)):
        yield


@pytest.fixture
def batches():
    return operands(np.random.default_rng(0), 16, 24, 16, batch=(8,))


def long(k, rows=FAMILIES["phi=2"], seed=0):
    return operands(np.random.default_rng(seed), 16, k, 24, rows=rows, columns=rows)


LOCAL = {
    "batch": (P("x"), P("x"), P("x")),
    "m": (P(None, "x"), P(), P(None, "x")),
    "n": (P(), P(None, None, "x"), P(None, None, "x")),
}


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("axis", LOCAL)
def test_sharded_operands_stay_local(batches, axis, count):  # case 19
    devices = mesh(x=count)
    *specs, result_spec = LOCAL[axis]
    c, text = run(jo.matmul, devices, specs, batches)
    assert not collectives(text)
    assert c.sharding.is_equivalent_to(NamedSharding(devices, result_spec), c.ndim)
    assert_same_bits(c, jo.matmul(*batches))


def test_a_program_is_emulated_over_a_mesh():
    a, b = long(256)
    fn = jo.emulate(lambda a, b: jnp.tanh(a @ b) @ b.T, min_size=0)
    c, text = run(fn, mesh(), (P("x"), P()), (a, b))
    assert not collectives(text)
    assert_same_bits(c, jax.jit(fn)(a, b))
    with jo.enable(min_size=0):
        c, text = run(lambda a, b: jnp.tanh(a @ b) @ b.T, mesh(), (P("x"), P()), (a, b))
    assert not collectives(text)
    assert_same_bits(c, jax.jit(fn)(a, b))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_in_force_and_no_array_on_it(kind):
    a, x = np.ones((7, 7, 7, 7)), np.ones((1, 7, 7))
    fn = partial(jo.einsum, "ijkl,xji->xkl")
    expected = fn(a, x)
    with jax.set_mesh(mesh(kind)):
        assert_same_bits(jax.jit(fn)(a, x), expected)
        assert_same_bits(jax.jit(jo.matmul)(a[0, 0], x[0]), jo.matmul(a[0, 0], x[0]))


# Specs of (m, k), (k, n) and the result asked for, on a mesh x = 2, y = 4; the collectives of the limbs and of
# both operands' statistics, a maximum and a sum.
CONTRACTED = {
    "k": (P(None, "y"), P("y"), None, {"all-reduce": 3}),
    "k over two axes": (P(None, ("x", "y")), P(("x", "y")), None, {"all-reduce": 3}),
    "m and k": (P("x", "y"), P("y"), None, {"all-reduce": 3}),
    "k and n": (P(None, "y"), P("y", "x"), None, {"all-reduce": 3}),
    "k of lhs only": (P(None, "y"), P(), None, {"all-reduce": 3}),
    "k of rhs only": (P(), P("y"), None, {"all-reduce": 3}),
    "k, result over m": (P(None, "y"), P("y"), P("y"), {"all-reduce": 2, "reduce-scatter": 2}),
    "k, result over n": (P(None, "y"), P("y"), P(None, "y"), {"all-reduce": 2, "reduce-scatter": 2}),
    "m and k, result over both": (P("x", "y"), P("y"), P("x", "y"), {"all-reduce": 2, "reduce-scatter": 2}),
    "m and k, result over m": (P("x", "y"), P("y"), P(("x", "y")), {"all-reduce": 2, "reduce-scatter": 2}),
    "k over two axes, result over one": (
        P(None, ("x", "y")),
        P(("x", "y")),
        P("y"),
        {"all-reduce": 3, "reduce-scatter": 2},
    ),
    "one axis for k and n": (P(None, "y"), P(None, "y"), None, {"all-gather": 1}),
}


@pytest.mark.parametrize("layout", CONTRACTED)
def test_sharded_contraction(layout):
    *specs, out, expected = CONTRACTED[layout]
    a, b = long(8 * 128)
    c, text = run(jo.matmul, mesh(x=2, y=4), specs, (a, b), out)
    assert collectives(text) == expected
    assert_same_bits(c, jo.matmul(a, b))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_any_number_of_shards_has_the_same_bits(count):
    """Every family of operands in turn, special values, overflow and subnormals among them."""
    a, b, _ = problems(np.random.default_rng(5), 2 * len(FAMILIES), 5, 8 * 128, 6)
    c, _ = run(jo.matmul, mesh(x=count), (P(None, None, "x"), P(None, "x")), (a, b))
    assert_same_bits(c, jo.matmul(a, b))


def check_contraction():
    a, b = long(4 * 128, fractions)
    c, text = run(lambda a, b: jo.matmul(a, b), mesh(), (P(None, "x"), P("x")), (a, b))
    assert not {"all-gather", "all-to-all"} & collectives(text).keys()
    assert_same_bits(c, jo.matmul(a, b))


def test_a_rule_that_forgets_the_other_shards_is_noticed(monkeypatch):
    """Operands that keep their own shardings give every device the product of its part of k alone."""
    check_contraction()
    of_plain_arrays = _partition.of_plain_arrays
    monkeypatch.setattr(_partition, "of_plain_arrays", lambda fn, **options: of_plain_arrays(fn))
    with pytest.raises(AssertionError, match="outputs differ"):
        check_contraction()


def test_programs_of_one_device_need_no_rule(monkeypatch):
    """With a rule, the stages of a product would be traced twice."""
    monkeypatch.setattr(_partition, "custom_partitioning", None)
    a, b = long(128)
    jax.jit(jo.matmul).lower(a, b)
    with pytest.raises(TypeError, match="not callable"):
        jax.jit(jo.matmul).lower(*put(mesh(), (P("x"), P()), (a, b)))


@pytest.mark.parametrize(
    ("subscripts", "k"),
    [
        ("mk,kn->mn", 4 * 129),
        ("mk,kn->mn", 4 * 127),
        ("km,nk->mn", 4 * 250),
        ("bmk,bkn->bmn", 4 * 1001),
        ("kbm,kbn->bmn", 4 * 200),
    ],
)
def test_shards_of_k_that_split_chunks_of_the_statistics(subscripts, k):
    rng = np.random.default_rng(k)
    left, right = subscripts.split("->")[0].split(",")
    sizes = {"m": 5, "n": 7, "b": 2, "k": k}
    arrays = [phi(3)(rng, tuple(map(sizes.get, axes))) for axes in (left, right)]
    specs = [P(*("x" if axis == "k" else None for axis in axes)) for axes in (left, right)]
    fn = partial(jo.einsum, subscripts)
    c, text = run(fn, mesh(), specs, arrays)
    expected = {"all-reduce": 3, "collective-permute": 2} if k >= 4 * 128 else {"all-gather": 2}
    assert collectives(text) == expected
    assert_same_bits(c, fn(*arrays))


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ((P(None, "x"), P("x")), {"all-reduce": 3}),
        ((P(None, None, "x"), P(None, "x")), {"all-reduce": 3}),
        ((P(None, "x", "y"), P("x", "y")), {"all-reduce": 3}),
        ((P(None, None, ("y", "x")), P(None, ("y", "x"))), {"all-gather": 2}),
    ],
)
def test_several_contracted_axes(specs, expected):
    """The last one is 256 long: over two devices whole chunks, over four none of them."""
    rng = np.random.default_rng(1)
    a, b = phi(2)(rng, (3, 4, 256)), phi(2)(rng, (4, 256, 5))
    c, text = run(partial(jo.tensordot, axes=2), mesh(x=2, y=2), specs, (a, b))
    assert collectives(text) == expected
    assert_same_bits(c, jo.tensordot(a, b, axes=2))


def test_orders_of_contracted_axes_are_those_of_whole_operands():
    """Which operand is transposed depends on their sizes, and must not on those of a shard."""
    rng = np.random.default_rng(2)
    a, b = phi(3)(rng, (8, 100, 30)), phi(3)(rng, (30, 100, 6))
    fn = partial(jo.tensordot, axes=((1, 2), (1, 0)))
    c, _ = run(fn, mesh(), (P("x"), P()), (a, b))
    assert_same_bits(c, fn(a, b))


@pytest.mark.parametrize(
    ("k", "out", "expected"),
    [
        (8 * 64, None, {"all-reduce": 3}),
        (8 * 64, P(None, None, "x"), {"all-reduce": 2, "reduce-scatter": 4}),
        (8 * 100, None, {"all-reduce": 3, "collective-permute": 2}),
        (8 * 50, None, {"all-gather": 2}),
    ],
)
def test_complex_contraction(k, out, expected):
    """Chunks of the statistics are 64 complex elements; both parts are summed, each with a class of its own."""
    a, b, _ = problems(np.random.default_rng(6), len(FAMILIES), 3, k, 8, make=complex_operands)
    c, text = run(jo.matmul, mesh(x=8), (P(None, None, "x"), P(None, "x")), (a, b), out)
    assert collectives(text) == expected
    assert_same_bits(c, jo.matmul(a, b))


def test_complex_gradients():
    a, b = complex_operands(np.random.default_rng(7), 256, 256, 256)

    def gradients(a, b):
        return jax.vjp(jo.matmul, a, b)[1](a)

    (of_a, of_b), text = run(gradients, mesh(), (P("x"), P(None, "x")), (a, b))
    assert "all-reduce" in collectives(text)
    for actual, expected in zip((of_a, of_b), gradients(a, b), strict=True):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("moduli", [3, 8, 16, 20])
def test_limbs_of_every_modulus_count(moduli):
    a, b = long(4 * 128, phi(1), seed=moduli)
    fn = partial(jo.matmul, contract=jo.Contract.moduli(moduli))
    c, _ = run(fn, mesh(), (P(None, "x"), P("x")), (a, b))
    assert_same_bits(c, fn(a, b))


def test_special_values_meet_over_shards():
    a, b = long(4 * 128, special_values)
    a[:, ::128], b[::128] = 1.0, 1.0  # no row is without a finite nonzero
    a[0], a[1] = 1.0, 1.0
    a[0, [3, 400]], a[1, [3, 400]] = (np.inf, -np.inf), (np.inf, np.inf)
    c, _ = run(jo.matmul, mesh(), (P(None, "x"), P("x")), (a, b))
    assert_same_bits(c, jo.matmul(a, b))


@pytest.mark.parametrize("out", [None, P("x")])
def test_blocks_of_shards(out):
    a, b = long(4 * 512)
    with jo.default_workspace_bytes(170_000):
        assert jo.plan(16, 24, 512).blocks.k < 512
        c, text = run(jo.matmul, mesh(), (P(None, "x"), P("x")), (a, b), out)
    assert "while" in text
    assert_same_bits(c, jo.matmul(a, b))


GRADIENTS = {
    "batch": ("bmk,bkn->bmn", P("x"), P("x")),
    "m": ("mk,kn->mn", P("x"), P()),
    "n": ("mk,kn->mn", P(), P(None, "x")),
    "k": ("mk,kn->mn", P(None, "x"), P("x")),
    "all replicated": ("mk,kn->mn", P(), P()),
}


@pytest.mark.parametrize(("layout", "count"), [*((layout, 4) for layout in GRADIENTS), ("k", 8)])
def test_gradients_have_the_bits_of_one_device(layout, count):
    subscripts, *specs = GRADIENTS[layout]
    sizes = {"b": 8, "m": 512, "n": 520, "k": 1024}
    if "b" in subscripts:
        sizes |= {"m": 10, "n": 12, "k": 20}
    rng = np.random.default_rng(3)
    arrays = [fractions(rng, tuple(map(sizes.get, axes))) for axes in subscripts.split("->")[0].split(",")]
    # Elementwise before and after, so that no sum but the products' own depends on the mesh.
    weights = fractions(rng, tuple(map(sizes.get, subscripts.split("->")[1])))
    _, pullback = jax.vjp(partial(jo.einsum, subscripts), *arrays)
    (gradients, _) = run(
        lambda *x: jax.vjp(partial(jo.einsum, subscripts), *x[:2])[1](x[2]),
        mesh(x=count),
        (*specs, P()),
        (*arrays, weights),
    )
    for actual, expected in zip(gradients, pullback(weights), strict=True):
        assert_same_bits(actual, expected)


def test_vmap_jvp_and_scan_over_shards_of_k():
    rng = np.random.default_rng(4)
    a, b = fractions(rng, (3, 4, 256)), fractions(rng, (256, 256)) / 64

    def powers(a, b):
        return jax.lax.scan(lambda x, _: (jax.vmap(jo.matmul, (0, None))(x, b), None), a, None, length=3)[0]

    def tangent(a, b):
        return jax.jvp(powers, (a, b), (b[:12].reshape(a.shape), b.T))[1]

    for fn in (powers, tangent):
        c, _ = run(fn, mesh(x=2), (P(None, None, "x"), P("x")), (a, b))
        assert_same_bits(c, jax.jit(fn)(a, b))


def test_not_reproducible_sums_rounded_products():
    contract = jo.Contract.normwise(2, reproducible=False)
    a, b = long(2 * 100)
    fn = partial(jo.matmul, contract=contract)
    c, text = run(fn, mesh(x=2), (P(None, "x"), P("x")), (a, b))
    assert collectives(text) == {"all-reduce": 1}
    assert_same_bits(c, fn(a[:, :100], b[:100]) + fn(a[:, 100:], b[100:]))
    scattered, text = run(fn, mesh(x=2), (P(None, "x"), P("x")), (a, b), P("x"))
    assert collectives(text) == {"reduce-scatter": 1}
    assert_same_bits(scattered, c)


def test_plans_state_what_is_not_reproducible():
    contract = jo.Contract.mantissa(53, reproducible=False)
    assert "summed in float64" in str(jo.plan(10, 10, 10, contract=contract))
    assert "summed" not in str(jo.plan(10, 10, 10))
    assert jo.Contract.parse(str(contract)) == contract != jo.Contract.mantissa(53)
    with pytest.raises(TypeError, match="reproducible=1"):
        jo.Contract.moduli(15, reproducible=1)
    with pytest.raises(ValueError, match="native"):
        jo.Contract("native", reproducible=False)
    report = jo.matmul(*long(8), contract=jo.Contract.normwise(2, reproducible=False), return_report=True)[1]
    assert report.achieved is None


# Prepared operands and reports.


@pytest.mark.parametrize("axis", LOCAL)
def test_prepared_operands_stay_local(batches, axis):
    devices = mesh()
    *specs, _ = LOCAL[axis]
    a, b = put(devices, specs, batches)
    prepare = {side: partial(jo.prepare, side=side) for side in ("lhs", "rhs")}
    for side, x, spec in (("lhs", a, specs[0]), ("rhs", b, specs[1])):
        p, text = run(prepare[side], devices, [spec], [x])
        assert not collectives(text)
        pair = (p, b) if side == "lhs" else (a, p)
        c = jax.jit(jo.matmul)(*pair)
        assert not collectives(jax.jit(jo.matmul).lower(*pair).compile().as_text())
        assert_same_bits(c, jo.matmul(*batches))


@pytest.mark.parametrize("axis", LOCAL)
def test_reports_send_scalars(batches, axis):
    fn = partial(jo.matmul, contract=jo.Contract.normwise(2), return_report=True)
    (c, report), text = run(fn, mesh(), LOCAL[axis][:2], batches)
    assert collectives(text).keys() == {"all-reduce"}
    expected, whole = fn(*batches)
    assert_same_bits(c, expected)
    assert jax.tree.map(float, jax.tree.leaves(report)) == jax.tree.map(float, jax.tree.leaves(whole))


# Explicit meshes.


def test_explicit_mesh_follows_lax(batches):
    devices = mesh(AxisType.Explicit)
    with jax.set_mesh(devices):
        a, b = put(devices, (P("x"), P("x")), batches)
        assert jax.typeof(jax.jit(jo.matmul)(a, b)).sharding == jax.typeof(jax.jit(jnp.matmul)(a, b)).sharding
        contracted = put(devices, (P(None, "x"), P("x")), (batches[0][0], batches[1][0]))
        for matmul in (jnp.matmul, jo.matmul):
            with pytest.raises(Exception, match="Contracting dimensions are sharded"):
                jax.jit(matmul)(*contracted)


@pytest.mark.parametrize("out", [P(), P("y", "x")])
def test_explicit_contraction_with_out_sharding(out):
    devices = mesh(AxisType.Explicit, x=4, y=2)
    a, b = long(512)
    with jax.set_mesh(devices):
        arrays = put(devices, (P(None, "x"), P("x")), (a, b))
        emulated, native = (jax.jit(partial(matmul, out_sharding=out))(*arrays) for matmul in (jo.matmul, jnp.matmul))
        assert "all-gather" not in collectives(
            jax.jit(partial(jo.matmul, out_sharding=out)).lower(*arrays).compile().as_text()
        )
    assert jax.typeof(emulated) == jax.typeof(native)
    assert_same_bits(emulated, jo.matmul(a, b))


def test_sums_are_not_left_unreduced():
    devices = mesh(AxisType.Explicit)
    with jax.set_mesh(devices):
        arrays = put(devices, (P(None, "x"), P("x")), long(512))
        with pytest.raises(NotImplementedError, match="unreduced"):
            jo.matmul(*arrays, out_sharding=P(unreduced={"x"}))


@pytest.mark.parametrize(
    ("lhs_spec", "rhs_spec"), [(P("x"), P()), (P(), P(None, "x")), (P("x"), P(None, "y")), (P(("x", "y")), P())]
)
def test_gradients_on_an_explicit_mesh_follow_lax(batches, lhs_spec, rhs_spec):
    devices = mesh(AxisType.Explicit, x=2, y=2)
    with jax.set_mesh(devices):
        a, b = put(devices, (lhs_spec, rhs_spec), (batches[0][0], batches[1][0]))
        emulated, native = (
            jax.grad(lambda a, b, matmul=matmul: (matmul(a, b) ** 2).sum(), (0, 1))(a, b)
            for matmul in (jo.matmul, jnp.matmul)
        )
    for x, y in zip(emulated, native, strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_prepared_gradients_on_an_explicit_mesh_follow_lax(batches):
    devices = mesh(AxisType.Explicit, x=2, y=2)
    with jax.set_mesh(devices):
        a, b = put(devices, (P("x", "y"), P("x")), batches)
        matmuls = (lambda a, b: jo.matmul(jo.prepare(a), b)), jnp.matmul
        emulated, native = (jax.grad(lambda a, b, f=f: (f(a, b) ** 2).sum(), (0, 1))(a, b) for f in matmuls)
    for x, y in zip(emulated, native, strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.parametrize("out", [P(), P("y", "x")])
def test_prepared_contraction_with_out_sharding(out):
    """On an explicit mesh, mapped and differentiated."""
    devices = mesh(AxisType.Explicit, x=4, y=2)
    a, b = long(64)
    with jax.set_mesh(devices):
        arrays = put(devices, (P(None, "x"), P("x")), (a, b))
        fn = partial(jo.matmul, out_sharding=out)
        c = jax.jit(lambda a, b: fn(jo.prepare(a), b))(*arrays)
        gradient = jax.jit(jax.grad(lambda b, a: (fn(jo.prepare(a), b) ** 2).sum()))(arrays[1], arrays[0])
        native = jax.jit(partial(jnp.matmul, out_sharding=out))(*arrays)
    assert jax.typeof(c) == jax.typeof(native) and jax.typeof(gradient) == jax.typeof(arrays[1])
    assert_same_bits(c, jo.matmul(a, b))
    np.testing.assert_allclose(gradient, 2 * a.T @ (a @ b), rtol=1e-9, atol=1e-12)


def test_mapped_out_sharding_follows_lax(batches):
    devices = mesh(AxisType.Explicit, x=2, y=2)
    with jax.set_mesh(devices):
        a, b = put(devices, (P("x"), P("x")), batches)
        emulated, native = (
            jax.vmap(lambda a, b, matmul=matmul: matmul(a, b, out_sharding=P(None, "y")))(a, b)
            for matmul in (jo.matmul, jnp.matmul)
        )
    assert jax.typeof(emulated) == jax.typeof(native)


# Beyond one thread and one program.


def test_two_threads_on_two_devices(batches):
    devices = jax.devices()[:2]
    expected, results = jo.matmul(*batches), [None, None]

    def work(i):
        a, b = jax.device_put(batches, devices[i])
        for _ in range(5):
            results[i] = jax.jit(partial(jo.matmul, contract=jo.Contract.mantissa(53)))(a, b)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for c, device in zip(results, devices, strict=True):
        assert c.devices() == {device}
        assert_same_bits(c, expected)


@pytest.mark.skipif(not hasattr(jax, "pmap"), reason="this jax has no pmap")
def test_pmap(batches):
    a, b = (x[:4] for x in batches)
    assert_same_bits(jax.pmap(jo.matmul, devices=jax.devices()[:4])(a, b), jo.matmul(a, b))


def test_sharded_programs_are_not_exported(batches):
    arrays = put(mesh(), (P("x"), P("x")), batches)
    with pytest.raises(NotImplementedError, match=r"over 4 devices cannot be exported.*shard_map"):
        jax.export.export(jax.jit(jo.matmul))(*arrays)
