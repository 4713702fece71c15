"""Print hashes of the bits of fixed products, by name, as JSON.

A program of its own: the environment variables that choose kernels hold for a process. On the CPU
the largest product is computed for sampled rows and columns only, against the oracle too.
"""

import hashlib
import json

import jax
import numpy as np

import generators
import oracle
from jax_ozaki import Contract, einsum, matmul

# batch, m, k, n and moduli: groups of one, two and three moduli last, every tile shape, k in two blocks.
SIZES = (
    (24, 37, 130, 41, 15),
    (3, 129, 257, 300, 2),
    (2, 300, 400, 260, 13),
    (1, 513, 1000, 770, 14),
    (1, 256, 512, 512, 16),
    (1, 1, 5000, 1, 17),
    (2, 130, 70, 66, 20),
    (1, 5, 70000, 3, 15),
    (1, 2048, 256, 2048, 15),
)
COMPLEX_SIZES = ((24, 37, 65, 41, 15), (2, 130, 70, 66, 18), (1, 257, 513, 300, 16), (1, 5, 33000, 3, 17))
# m, k, n and moduli of operands that lie the other way round.
TRANSPOSED_SIZES = ((129, 1030, 303, 15), (67, 515, 70, 19))
TRANSPOSED_COMPLEX_SIZES = ((131, 301, 69, 15), (66, 259, 67, 20))
# m, k, n of certified products, with outputs from three rungs.
CERTIFIED_SIZES = ((300, 257, 101), (513, 1030, 770))
CERTIFIED = (Contract.componentwise("sqrt_k"), Contract.componentwise(2), Contract.exact())
# Sizes of squares of symmetric matrices, and of others.
SQUARES = (33, 300, 513)
LARGE, LARGE_MODULI = 4096, 15


def digest(c):
    parts = [c.real, c.imag] if np.iscomplexobj(c) else [c]
    return hashlib.sha256(b"".join(oracle.bits(part).tobytes() for part in parts)).hexdigest()


def product(a, b, contract):
    return np.asarray(jax.jit(lambda a, b: matmul(a, b, contract=contract))(a, b))


def small(batch, m, k, n, moduli, make=generators.operands):
    rng = np.random.default_rng(m)
    if batch > 1:
        a, b, _ = generators.problems(rng, batch, m, k, n, moduli=moduli, make=make)
    else:
        a, b = make(rng, m, k, n, rows=generators.phi(2), columns=generators.phi(0.5))
        a[-1, -1], b[0, -1] = np.inf, np.nan
    return digest(product(a, b, Contract.moduli(moduli)))


def transposed(m, k, n, moduli, make=generators.operands):
    a, b = make(np.random.default_rng(m), m, k, n, rows=generators.phi(2), columns=generators.phi(0.5))
    multiply = jax.jit(lambda a, b: einsum("km,nk->mn", a, b, contract=Contract.moduli(moduli)))
    return digest(np.asarray(multiply(a.T.copy(), b.T.copy())))


def certified(m, k, n, contract):
    rng = np.random.default_rng(k)
    a, b = generators.operands(rng, m, k, n, rows=generators.phi(2), columns=generators.phi(1))
    a[: m // 4], b[:, 2] = np.round(4 * a[: m // 4]), 0
    a[1] *= np.exp2(rng.integers(-200, 200, k))
    a[-1, -1], b[0, -1] = np.inf, np.nan
    return digest(product(a, b, contract))


def square(n, contract, symmetric):
    x = generators.phi(2)(np.random.default_rng(n), (n, n))
    if symmetric:
        x = np.where(np.triu(np.ones((n, n), bool)), x, x.T)
        x[0, -1] = x[-1, 0] = np.inf
    products = jax.jit(lambda x: (matmul(x, x, contract=contract), matmul(x, x.T, contract=contract)))(x)
    return digest(np.concatenate([np.asarray(c) for c in products]))


def large():
    rng = np.random.default_rng(1)
    a, b = generators.operands(rng, LARGE, LARGE, LARGE, rows=generators.phi(1), columns=generators.phi(1))
    rows, columns = (np.sort(rng.choice(LARGE, 32, replace=False)) for _ in range(2))
    if jax.default_backend() == "cpu":
        sample = product(a[rows], b[:, columns], Contract.moduli(LARGE_MODULI))
        exact = oracle.product(a[rows[:2]], b[:, columns[:2]], LARGE_MODULI)
        oracle.assert_same_bits(sample[:2, :2], exact)
        return {"4096^3 sampled": digest(sample)}
    c = product(a, b, Contract.moduli(LARGE_MODULI))
    return {"4096^3 sampled": digest(c[rows][:, columns]), "4096^3": digest(c)}


jax.config.update("jax_enable_x64", True)
real = {str(sizes): small(*sizes) for sizes in SIZES}
complex_ = {f"complex {sizes}": small(*sizes, generators.complex_operands) for sizes in COMPLEX_SIZES}
other = {f"transposed {sizes}": transposed(*sizes) for sizes in TRANSPOSED_SIZES}
make = generators.complex_operands
other |= {f"complex transposed {sizes}": transposed(*sizes, make) for sizes in TRANSPOSED_COMPLEX_SIZES}
other |= {f"{contract} {sizes}": certified(*sizes, contract) for contract in CERTIFIED for sizes in CERTIFIED_SIZES}
contracts = (Contract.moduli(14), Contract.componentwise("sqrt_k"))
other |= {
    f"square {n} {contract} {symmetric}": square(n, contract, symmetric)
    for n in SQUARES
    for contract in contracts
    for symmetric in (False, True)
}
print(json.dumps(real | complex_ | other | large()))
