"""emulate: every float64 product of a program replaced, wherever it stands, and nothing else changed."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import generators
import jax_ozaki as jo
import oracle
import within_shard_map
from compiled import emulated, products
from oracle import assert_same_bits

N = 15
CONTRACT = jo.Contract.moduli(N)
emulate = functools.partial(jo.emulate, contract=CONTRACT, min_size=0)
product = functools.partial(oracle.product, n=N)
RNG = np.random.default_rng(0)
# phi = 4 data, on which a native product differs in nearly every output.
A, B = generators.operands(RNG, 5, 7, 5, rows=generators.phi(4), columns=generators.phi(4))
CT = RNG.standard_normal((5, 5))
SQUARE = RNG.standard_normal((5, 5)) / 3
SPD = SQUARE @ SQUARE.T + np.eye(5)


@jax.custom_jvp
def in_jvp_rule(x):
    return jnp.sin(x)


@in_jvp_rule.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return jnp.sin(x), jnp.dot(SQUARE, dx)


@jax.custom_vjp
def in_vjp_rules(x):
    return jnp.sin(x)


in_vjp_rules.defvjp(
    lambda x: (jnp.sin(x), jnp.dot(SQUARE, x)),
    lambda residual, ct: (jnp.dot(SQUARE.T, ct * residual),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_static_argument(power, x):
    return x**power


with_static_argument.defvjp(
    lambda power, x: (x**power, x), lambda power, x, ct: (jnp.dot(SQUARE, power * x ** (power - 1) * ct),)
)


@jax.custom_batching.custom_vmap
def in_vmap_rule(x):
    return jnp.dot(SQUARE, x)


@in_vmap_rule.def_vmap
def _(size, batched, x):
    return jnp.dot(x, SQUARE.T), True


def solve_by_cg(s, b):
    return jax.scipy.sparse.linalg.cg(lambda x: s @ x, b, tol=1e-14)[0]


def shard_mapped(a, b):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(None, "x"), PartitionSpec("x", None)
    return jax.shard_map(lambda a, b: lax.psum(a @ b, "x"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(a, b)


WIDE = RNG.standard_normal((5, 8)), RNG.standard_normal((8, 5))

PROGRAMS = {
    "dot": (jnp.dot, A, B),
    "jit": (jax.jit(lambda a, b: jnp.dot(a, b) + 1), A, B),
    "einsum": (lambda a, b: jnp.einsum("ij,jk,lk->il", a, b, b), A, B),
    "float32 operands": (
        lambda a, b: lax.dot(a.astype(jnp.float32), b.astype(jnp.float32), preferred_element_type=jnp.float64),
        A,
        B,
    ),
    "float32 result": (lambda a, b: lax.dot(a, b, preferred_element_type=jnp.float32), A, B),
    "scan": (lambda s, x: lax.scan(lambda c, _: (s @ c, c @ s), x, None, length=3), SQUARE, CT),
    "while": (lambda s, x: lax.while_loop(lambda c: (c @ c).sum() > 1e9, lambda c: s @ c, x), SQUARE, CT),
    "fori": (lambda s, x: lax.fori_loop(0, 3, lambda i, c: s @ c, x), SQUARE, CT),
    "cond": (lambda a, b: lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: b.T @ a.T), A, B),
    "switch": (lambda s, x: lax.switch(1, [lambda: x, lambda: s @ x, lambda: x @ s]), SQUARE, CT),
    "map": (lambda s, x: lax.map(lambda row: s @ row, x), SQUARE, CT),
    "associative_scan": (lambda x: lax.associative_scan(jnp.matmul, x), np.stack([SQUARE] * 4)),
    "checkpoint": (jax.checkpoint(lambda a, b: jnp.sin(a @ b)), SQUARE, CT),
    "custom_jvp": (lambda x: in_jvp_rule(x) @ x, SQUARE),
    "custom_vjp": (lambda x: in_vjp_rules(x) @ x, SQUARE),
    "custom_vmap": (in_vmap_rule, SQUARE[0]),
    "custom_linear_solve": (solve_by_cg, SPD, CT[0]),
    "shard_map": (shard_mapped, *WIDE),
    **within_shard_map.PROGRAMS,
    "pmap": (jax.pmap(lambda a, b: a @ b), np.stack([A] * 4), np.stack([B] * 4)),
    "vmap": (jax.vmap(lambda s, x: s @ x, (None, 0)), SQUARE, CT),
    "grad": (jax.grad(lambda s, x: jnp.sin(s @ x).sum(), (0, 1)), SQUARE, CT),
    "jvp": (lambda s, x: jax.jvp(lambda s: s @ x, (s,), (s,)), SQUARE, CT),
    "hessian": (jax.hessian(lambda x: ((SQUARE @ x) ** 2).sum()), CT[0]),
    "grad of a custom_jvp": (jax.grad(lambda x: in_jvp_rule(x).sum()), SQUARE),
    "grad of a custom_vjp": (jax.grad(lambda x: in_vjp_rules(x).sum()), SQUARE),
    "grad of a solve": (jax.grad(lambda s, b: solve_by_cg(s, b).sum(), (0, 1)), SPD, CT[0]),
    "vmap of a custom_vmap": (jax.vmap(in_vmap_rule), SQUARE),
    "expm": (jax.scipy.linalg.expm, SQUARE),
    "inv": (jnp.linalg.inv, SPD),
    "solve": (jnp.linalg.solve, SPD, CT),
    "matrix_power": (lambda s: jnp.linalg.matrix_power(s, -3), SPD),
    "pinv": (jnp.linalg.pinv, A),
    "grad of cholesky": (jax.grad(lambda s: jnp.linalg.cholesky(s).sum()), SPD),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_product_is_replaced(name):
    program, *args = PROGRAMS[name]
    args = [jnp.asarray(x) for x in args]
    expected, found = program(*args), emulate(program)(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.weak_type) == (y.dtype, y.weak_type)
        rtol = 1e-11 if x.dtype == jnp.float64 else 1e-6
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-11 * float(abs(y).max()))
    assert products(program, *args) and emulated(emulate(program), *args)
    assert emulated(jax.jit(emulate(program)), *args)


DERIVATIVES = {
    "dot": (jnp.dot, A, B),
    "scan": (lambda s, x: lax.scan(lambda c, _: (jnp.sin(s @ c), None), x, None, length=3)[0], SQUARE, CT),
    "checkpoint": (jax.checkpoint(lambda a, b: jnp.sin(a @ b)), SQUARE, CT),
    "custom_jvp": (in_jvp_rule, SQUARE),
    "custom_vjp": (in_vjp_rules, SQUARE),
    "custom_vjp in jit": (jax.jit(in_vjp_rules), SQUARE),
    "custom_vjp in scan": (lambda x: lax.scan(lambda c, _: (in_vjp_rules(c), None), x, None, length=2)[0], SQUARE),
    "custom_vjp with a static argument": (functools.partial(with_static_argument, 3), SQUARE),
    "custom_linear_solve": (solve_by_cg, SPD, CT[0]),
    "inv": (jnp.linalg.inv, SPD),
    "solve": (jnp.linalg.solve, SPD, CT),
    "cholesky": (jnp.linalg.cholesky, SPD),
    "eigh": (jnp.linalg.eigh, SPD),
    "svd": (lambda s: jnp.linalg.svd(s, full_matrices=False)[1], SPD),
    "qr": (jnp.linalg.qr, SPD),
    "lu": (lambda s: jax.scipy.linalg.lu(s, permute_l=True), SPD),
    "triangular_solve": (lambda s, b: jax.scipy.linalg.solve_triangular(s, b, lower=True), SPD, CT),
    **within_shard_map.PROGRAMS,
}


def total(fn):
    return lambda *args: sum(
        jnp.sum(x * jnp.arange(1.0, x.size + 1).reshape(x.shape)) for x in jax.tree.leaves(fn(*args))
    )


@pytest.mark.parametrize("name", DERIVATIVES)
def test_gradients_inside_and_outside(name):
    """grad(emulate(f)) is emulated as emulate(grad(f)) is, also where products stand only in a rule of f."""
    program, *args = DERIVATIVES[name]
    args, every = [jnp.asarray(x) for x in args], tuple(range(len(args)))
    expected = jax.grad(total(program), every)(*args)
    for gradient in (
        jax.grad(total(emulate(program)), every),
        emulate(jax.grad(total(program), every)),
        jax.jit(jax.grad(total(emulate(jax.jit(program))), every)),
    ):
        assert emulated(gradient, *args)
        for x, y in zip(gradient(*args), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9 * float(abs(y).max()))


@pytest.mark.parametrize("name", sorted(set(DERIVATIVES) - {"qr", "lu"}))
def test_transformations_of_an_emulated_function(name):
    program, *args = DERIVATIVES[name]
    args = [jnp.asarray(x) for x in args]
    stacked = [jnp.stack([x, 1.5 * x]) for x in args]
    for x, y in zip(
        *map(jax.tree.leaves, (jax.vmap(emulate(program))(*stacked), jax.vmap(program)(*stacked))), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
    if "vjp" in name:  # jax has no jvp of these
        return
    assert emulated(lambda *x: jax.jvp(emulate(program), x, x), *args)
    for x, y in zip(
        jax.tree.leaves(jax.jvp(emulate(program), args, args)),
        jax.tree.leaves(jax.jvp(program, args, args)),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_decompositions():
    def loss(s):
        return jnp.sum(emulate(jnp.linalg.cholesky)(s) ** 3)

    for second in (
        jax.hessian,
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.vmap(jax.grad(lambda x: jax.grad(f)(x).sum())),
    ):
        point = jnp.asarray(SPD)[None] if second is not jax.hessian else jnp.asarray(SPD)
        assert emulated(second(loss), point)
    check_grads(loss, (SPD,), order=2, rtol=1e-5, atol=1e-5)


library_p = Primitive("library_gram")
"""A library's primitive: it multiplies in its lowering, and in its derivative."""
library_p.def_impl(lambda x: x @ x.T)
library_p.def_abstract_eval(lambda x: jax.core.ShapedArray((x.shape[0],) * 2, x.dtype))
mlir.register_lowering(library_p, mlir.lower_fun(lambda x: x @ x.T, multiple_results=False))
batching.primitive_batchers[library_p] = lambda args, axes: (jax.vmap(lambda x: x @ x.T, axes)(*args), 0)
ad.primitive_jvps[library_p] = lambda x, dx: (
    library_p.bind(*x),
    ad.Zero.from_primal_value(x[0]) if isinstance(dx[0], ad.Zero) else dx[0] @ x[0].T + x[0] @ dx[0].T,
)


def lowered(fn, *args):
    """Native and emulated products in the lowered program."""
    text = jax.jit(fn).lower(*args).as_text()
    return text.count("stablehlo.dot_general"), text.count("@jax_ozaki.grouped_mma.v1")


def test_primitives_of_libraries():
    def loss(gram):
        return lambda x: (CT * gram(x)).sum()

    assert lowered(emulate(library_p.bind), A) == (0, 1)
    assert_same_bits(emulate(library_p.bind)(jnp.asarray(A)), product(A, A.T))
    assert lowered(jax.vmap(emulate(library_p.bind)), np.stack([A, A])) == (0, 1)
    expected = jax.grad(loss(lambda x: x @ x.T))(A)
    for gradient in (jax.grad(loss(emulate(library_p.bind))), emulate(jax.grad(loss(library_p.bind)))):
        native, emulated_products = lowered(gradient, A)
        assert native == 0 < emulated_products
        np.testing.assert_allclose(gradient(A), expected, rtol=1e-12)
    batched = jax.grad(lambda x: (CT * jax.vmap(emulate(library_p.bind))(x)).sum())
    assert lowered(batched, np.stack([A, A]))[0] == 0


ordered_p = Primitive("library_ordered_gram")
"""One that takes a token, as communication does."""
ordered_p.def_abstract_eval(lambda x, token: jax.core.ShapedArray((x.shape[0],) * 2, x.dtype))
mlir.register_lowering(ordered_p, mlir.lower_fun(lambda x, token: x @ x.T, multiple_results=False))


def test_primitives_with_tokens_stay():
    def program(x):
        return ordered_p.bind(x, lax.create_token(x))

    assert lowered(emulate(program), A) == lowered(program, A)  # explain says so; enable reaches it


def test_bits():
    """The bits of the contract, through jit, a loop and a derivative."""
    assert_same_bits(emulate(jnp.dot)(A, B), product(A, B))
    power = emulate(lambda s: lax.fori_loop(0, 2, lambda i, p: p @ s, s))(SQUARE)
    assert_same_bits(power, product(product(SQUARE, SQUARE), SQUARE))
    da, db = jax.grad(lambda a, b: (CT * emulate(jnp.dot)(a, b)).sum(), (0, 1))(A, B)
    assert_same_bits(da, product(CT, B.T))
    assert_same_bits(db, product(A.T, CT))
    assert (np.asarray(jnp.dot(A, B)) != product(A, B)).any()


def test_contract_of_the_context_and_of_the_call():
    def of(fn, *args):
        return str(jax.make_jaxpr(fn)(*args))

    plain = jo.emulate(jnp.dot, min_size=0)
    with jo.default_contract(jo.Contract.moduli(9)):
        assert "contract=moduli(9)" in of(plain, A, B)
        assert "contract=moduli(15)" in of(emulate(jnp.dot), A, B)
    assert "contract=componentwise(sqrt_k)" in of(plain, A, B)
    nested = jo.emulate(
        lambda a, b: jo.emulate(jnp.dot, jo.Contract.moduli(8), min_size=0)(a, b) @ a, CONTRACT, min_size=0
    )
    assert "contract=moduli(8)" in of(nested, A, B) and "contract=moduli(15)" in of(nested, A, B)
    assert products(jo.emulate(jnp.dot, jo.Contract.native()), A, B) == ["dot_general"]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32])
def test_other_dtypes_stay(dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    assert products(emulate(jnp.dot), a, b) == ["dot_general"]
    np.testing.assert_array_equal(emulate(jnp.dot)(a, b), jnp.dot(a, b))


def test_a_program_without_products_is_left_alone():
    program = jax.jit(lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c), 0.0, x))
    assert str(jax.make_jaxpr(emulate(program))(jnp.ones(3))) == str(jax.make_jaxpr(program)(jnp.ones(3)))


# Arguments and results.


def test_arguments_and_results_keep_their_structure():
    def program(x, *more, scale, mode):
        (a, b), extra = x["operands"], more
        return {"c": a @ b * scale, "mode": mode.upper(), "nothing": None, "count": len(extra), "again": [a, extra[0]]}

    marker = object()
    found = emulate(program)({"operands": (A, B)}, marker, 3, scale=2.0, mode="fast")
    assert_same_bits(found["c"], 2 * product(A, B))
    assert (found["mode"], found["nothing"], found["count"]) == ("FAST", None, 2)
    assert found["again"][1] is marker
    np.testing.assert_array_equal(found["again"][0], A)


def test_static_arguments():
    program = jax.jit(lambda a, b, n, *, f: f((a @ b) ** n), static_argnums=2, static_argnames="f")
    assert_same_bits(emulate(program)(A, B, 2, f=jnp.sum), jnp.sum(product(A, B) ** 2))


def test_python_numbers_stay_python_numbers():
    def program(a, n, x):
        assert isinstance(n, int)
        return sum((a @ a for _ in range(n)), a * x)

    result = emulate(program)(SQUARE, 2, 1.5)
    assert result.dtype == jnp.float64
    np.testing.assert_allclose(result, 2 * SQUARE @ SQUARE + 1.5 * SQUARE, rtol=1e-12)
    assert jax.grad(emulate(lambda x: (x * SQUARE @ SQUARE).sum()))(2.0) == pytest.approx((SQUARE @ SQUARE).sum())


def test_closed_over_arrays_and_tracers():
    s = jnp.asarray(SQUARE)
    assert_same_bits(emulate(lambda x: s @ x)(CT), product(SQUARE, CT))
    assert_same_bits(jax.jit(lambda s, x: emulate(lambda x: s @ x)(x))(s, CT), product(SQUARE, CT))
    gradient = jax.grad(lambda s: (CT * emulate(lambda x: s @ x)(CT)).sum())(s)
    assert_same_bits(gradient, product(CT, CT.T))


def test_donation_and_names():
    program = jax.jit(lambda a, b: jnp.dot(a, b) + a, donate_argnums=0)
    for _ in range(2):
        donated = jnp.array(SQUARE)
        assert_same_bits(emulate(program)(donated, CT), product(SQUARE, CT) + SQUARE)
        assert donated.is_deleted()
    named = emulate(jax.jit(lambda a, b: jax.named_scope("inner")(jnp.dot)(a, b)))
    assert "inner" in jax.jit(named).lower(A, B).as_text(debug_info=True)
    assert emulate(solve_by_cg).__name__ == "solve_by_cg"


def test_a_method_can_be_decorated():
    class Model:
        @emulate
        def apply(self, x):
            return SQUARE @ x

    assert_same_bits(Model().apply(jnp.asarray(CT)), product(SQUARE, CT))


def test_shardings():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("x", None))
    a, b = jax.device_put(RNG.standard_normal((8, 5)), rows), jnp.asarray(SQUARE)
    program = jax.jit(jnp.dot, in_shardings=(rows, None), out_shardings=rows)
    result = emulate(program)(a, b)
    assert result.sharding == rows
    assert_same_bits(result, product(np.asarray(a), SQUARE))


def test_explicit_meshes():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.sharding.set_mesh(mesh):
        a, b = jax.device_put(RNG.standard_normal((8, 5)), PartitionSpec("x", None)), jnp.asarray(SQUARE)

        def chain(a, b):
            return jnp.einsum("ij,jk,kl->il", a, b, b, out_sharding=PartitionSpec("x", None))

        loop = functools.partial(lax.fori_loop, 0, 2, lambda i, c: c @ b)
        for program, args in ((chain, (a, b)), (loop, (a,))):
            assert emulated(emulate(program), *args)
            result, expected = emulate(program)(*args), program(*args)
            assert jax.typeof(result) == jax.typeof(expected)
            np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-12)


def test_a_loop_is_compiled_once():
    s, compiled = jnp.asarray(SQUARE), []

    def step(c, _):
        return s @ c, None

    program = emulate(lambda x: lax.scan(step, x, None, length=3)[0])
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    program(s)
    del compiled[:]
    program(s)
    assert not any("backend_compile" in name for name in compiled)


def test_threads_do_not_share_a_contract():
    found = {}

    def run(n):
        with jo.default_contract(jo.Contract.moduli(n)):
            found[n] = np.asarray(jo.emulate(jnp.dot, min_size=0)(A, B))

    threads = [threading.Thread(target=run, args=(n,)) for n in (8, 12, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, c in found.items():
        assert_same_bits(c, oracle.product(A, B, n=n))


# Small products.


@pytest.mark.parametrize(
    ("shapes", "size"), [(((8, 8), (8, 8)), 8), (((64, 8), (8, 64)), 19.2), (((64, 64), (64,)), 2.91)]
)
def test_smaller_products_stay_native(shapes, size):
    """The size is the harmonic mean of m, n and k."""
    args = [jnp.ones(shape) for shape in shapes]
    assert products(jo.emulate(jnp.dot, min_size=0.99 * size), *args) == ["ozaki_dot_general"]
    assert products(jo.emulate(jnp.dot, min_size=1.01 * size), *args) == ["dot_general"]


def test_a_batch_has_the_size_of_its_products():
    stack = jnp.ones((100, 8, 8))
    assert products(jo.emulate(jnp.matmul, min_size=9), stack, stack) == ["dot_general"]


def test_default_size_is_the_recorded_crossover(monkeypatch):
    from jax_ozaki import _settings

    if jax.default_backend() == "cpu":
        assert jo.emulate(jnp.dot).explain(A, B).emulated == 1  # nothing stays native
    assert 1024 <= _settings._crossovers()["NVIDIA H200"] <= 4096
    monkeypatch.setattr(_settings, "_crossovers", lambda: {jax.devices()[0].device_kind: 6.0})
    assert jo.emulate(jnp.dot).explain(A, B).emulated == 0
    assert jo.emulate(jnp.dot, min_size=0).explain(A, B).emulated == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), TypeError, "fn=3: a function is needed"),
        ((jnp.dot, "normwise(2)"), TypeError, "contract='normwise"),
        ((jnp.dot, None, -1), ValueError, "min_size=-1: a number of at least 0"),
        ((jnp.dot, None, "small"), TypeError, "min_size='small': a number"),
        ((jnp.dot, None, None, 0), ValueError, "workspace_bytes=0"),
    ],
)
def test_bad_arguments(arguments, error, message):
    names = ("fn", "contract", "min_size", "workspace_bytes")
    with pytest.raises(error, match=message):
        jo.emulate(**dict(zip(names, arguments, strict=False)))


def test_decorating_looks_at_no_device(monkeypatch):
    """A module may decorate its functions before jax is told which devices to use."""
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("asked for devices"))
    jo.emulate(jnp.dot)
    jo.enable()


def test_a_contract_that_cannot_be_kept():
    with pytest.raises(ValueError, match=r"moduli\(2\) has too few moduli for a contraction of length k=100000"):
        jo.emulate(jnp.dot, jo.Contract.moduli(2), min_size=0)(jnp.ones(100000), jnp.ones(100000))
