"""Small products on the GPU, each compared with the CPU's to the bit: python -P small_products.py PART

What sanitize.py runs under compute-sanitizer. Sizes are those at which a kernel takes another way: tiles cut off, rows
that clusters share, k in two blocks. The parts are programs of their own, so that they run side by side, and because
the environment variables that choose kernels hold for a process.
"""

import sys
from functools import partial

import jax
import numpy as np

import generators
import jax_ozaki as jo
from generators import STRUCTURED, float32_values, phi, wide_exponents
from jax_ozaki import Contract, _stages
from oracle import assert_same_bits

RNG = np.random.default_rng(0)
ORDINARY = phi(1)
CERTIFIED, EXACT = Contract.componentwise("sqrt_k"), Contract.exact()


def check(name, function, *arguments):
    """Print the rungs too, where ``function`` returns them."""
    results = []
    for platform in ("cuda", "cpu"):
        result = jax.jit(function)(*jax.device_put(arguments, jax.devices(platform)[0]))
        results.append(jax.tree.map(np.asarray, result))
    rungs = ""
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
        if x.dtype.kind == "i":
            np.testing.assert_array_equal(x, y)
            rungs = f", rungs {x.tolist()}"
        else:
            assert_same_bits(x, y, name)
    print(f"{name}: the CPU's bits{rungs}", flush=True)


def real(m, k, n, rows=ORDINARY, columns=ORDINARY, batch=()):
    return generators.operands(RNG, m, k, n, rows=rows, columns=columns, batch=batch)


def complex_(m, k, n):
    return generators.complex_operands(RNG, m, k, n, rows=phi(2), columns=phi(0.5))


def special(a, b):
    a[-1, -1], b[0, -1], a[0] = np.inf, np.nan, 0
    return a, b


def transposed(a, b):
    """The same elements lying the other way round, for ``inner``."""
    return np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)


def symmetric(n, batch=()):
    x = phi(2)(RNG, (*batch, n, n))
    return np.where(np.triu(np.ones((n, n), bool)), x, np.swapaxes(x, -1, -2))


def product(contract):
    return partial(jo.matmul, contract=contract)


def moduli(n):
    return product(Contract.moduli(n))


def inner(contract):
    return partial(jo.einsum, "km,nk->mn", contract=contract)


def with_rungs(contract):
    def multiply(a, b):
        c, report = jo.matmul(a, b, contract=contract, return_report=True)
        return c, report.rungs

    return multiply


def force(**choices):
    handlers = _stages.by_platform()["cuda"]
    for name, value in choices.items():
        assert hasattr(handlers, name)
        setattr(handlers, name, value)


def choices():
    """What every choice of kernels runs."""
    check("moduli(14), special values", moduli(14), *special(*real(129, 400, 257, phi(2))))
    check("moduli(13), a batch", moduli(13), *real(37, 130, 41, batch=(5,)))
    check("moduli(16)", moduli(16), *real(70, 515, 67))
    check("moduli(15), complex", moduli(15), *complex_(70, 130, 66))


def plain():
    choices()
    check("moduli(20), transposed", inner(Contract.moduli(20)), *transposed(*real(131, 303, 69)))
    check("moduli(17), k in two blocks", moduli(17), *real(5, 66000, 3))
    check("moduli(2), rows shared by clusters", moduli(2), *real(130, 8300, 5))
    check("moduli(15), columns shared by clusters", moduli(15), *real(5, 1030, 300))
    check("moduli(15), many tiles", moduli(15), *real(1300, 130, 1300))
    check("moduli(15), tiles of clusters", moduli(15), *real(1300, 500, 1300))
    check("moduli(20), complex, transposed", inner(Contract.moduli(20)), *transposed(*complex_(66, 259, 67)))
    check("normwise(2), complex, long rows", product(Contract.normwise(2)), *complex_(5, 4200, 35))
    prepared = partial(jo.prepare, side="lhs", contract=Contract.normwise(2))
    check("prepared", lambda a, b: jo.dot(prepared(a), b), *real(70, 200, 90))


def structure():
    """Strassen, and products of a matrix with itself, at sizes that neither is used for."""
    force(_strassen="always")
    check("Strassen, moduli(15)", moduli(15), *special(*real(257, 130, 300)))
    check("Strassen, moduli(14), transposed", inner(Contract.moduli(14)), *transposed(*real(131, 303, 69)))
    check("Strassen, moduli(16), complex", moduli(16), *complex_(131, 70, 66))
    check("Strassen, certified", with_rungs(CERTIFIED), *real(140, 300, 130, phi(2), phi(1)))
    check("Strassen, certified, complex", with_rungs(CERTIFIED), *complex_(66, 70, 35))
    force(_strassen="never", _symmetry="always")
    x = symmetric(300)
    nearly = x.copy()
    nearly[299, 1] += 1
    check("x x, symmetric", lambda x: moduli(15)(x, x), x)
    check("x x, not symmetric", lambda x: moduli(15)(x, x), nearly)
    check("x x^T", lambda x: moduli(14)(x, x.T), nearly[:, :130].copy())
    check("x x, symmetric, certified", lambda x: with_rungs(CERTIFIED)(x, x), x)
    check("x x^T, exact, a batch", lambda x: product(EXACT)(x, x.swapaxes(1, 2)), symmetric(130, batch=(2,)))


def certified():
    for exponent in (0.5, 2, 3):
        check(f"certified, phi {exponent}", with_rungs(CERTIFIED), *real(300, 257, 140, phi(exponent), phi(exponent)))
    check("certified, transposed", inner(CERTIFIED), *transposed(*special(*real(130, 300, 70, phi(2), phi(2)))))
    check("certified, tiles of clusters", with_rungs(CERTIFIED), *real(1300, 500, 1300, phi(2), phi(1)))
    check("certified, float32 values", with_rungs(CERTIFIED), *real(130, 300, 70, float32_values, float32_values))


def last():
    """The last rung, and operands whose rows share only parts of k."""
    a, b = real(140, 260, 150)
    d = np.ldexp(1.0, RNG.integers(-500, 501, 260))
    check("A D, D^-1 B", with_rungs(CERTIFIED), a * d, b / d[:, None])
    for name in ("lower", "banded"):
        check(f"certified, {name}", with_rungs(CERTIFIED), *real(260, 500, 200, STRUCTURED[name], STRUCTURED[name]))
    check("exact, phi 2", with_rungs(EXACT), *real(130, 150, 140, phi(2), phi(2)))
    check("exact, wide exponents", with_rungs(EXACT), *real(40, 150, 35, wide_exponents, wide_exponents))
    check(
        "certified, c = 1.5, a batch", with_rungs(Contract.componentwise(1.5)), *real(70, 130, 66, phi(2), batch=(3,))
    )
    check("certified, complex", with_rungs(CERTIFIED), *complex_(66, 70, 40))
    check("certified, every rung", with_rungs(CERTIFIED), *real(20, 1100, 35, phi(4), phi(1)))


PARTS = {f.__name__: f for f in (choices, plain, structure, certified, last)}

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    PARTS[sys.argv[1]]()
