"""Limbs of exact integers against Python's: every modulus count, signs, carries and wraps."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_ozaki import _limbs, _moduli
from oracle import COUNTS


@pytest.mark.parametrize("summands", [1, 2, 3, 8, 64, 65, 1000])
def test_sums_of_limbs(summands):
    rng = np.random.default_rng(summands)

    def draw(bound):
        """Signed integers up to ``bound`` of every length, its neighbours and ones without a carry among them."""
        edges = [bound, bound - 1, 0, 1, (1 << bound.bit_length() - 1) - 1]
        values = [bound * int(rng.integers(2**62)) >> (62 + int(s)) for s in rng.integers(0, bound.bit_length(), 40)]
        return [int(sign) * x for x, sign in zip(edges + values, rng.choice([-1, 1], 45), strict=True)]

    sets = [(n, _moduli.MODULI) for n in COUNTS] + [(n, _moduli.COMPLEX_MODULI) for n in (2, 11, 20)]
    for crt in (_moduli.crt(*chosen) for chosen in sets):
        total, sums = [0] * 45, None
        for _ in range(min(summands, 70)):
            numbers = draw((crt.product - 1) // 2 // summands)
            words = [jnp.array([x >> 32 * i & 0xFFFFFFFF for x in numbers], jnp.uint64) for i in range(crt.limbs)]
            limbs = _limbs.split(words, crt, summands)
            sums = limbs if sums is None else [x + y for x, y in zip(sums, limbs, strict=True)]
            total = [x + y for x, y in zip(total, numbers, strict=True)]
        negative, words = _limbs.join(sums, crt, summands)
        magnitude = sum(np.asarray(word).astype(object) << 32 * i for i, word in enumerate(words))
        assert [-x if minus else x for x, minus in zip(magnitude, np.asarray(negative), strict=True)] == total


def test_limbs_sent():
    """16 bytes an output up to 15 moduli and 64 shards."""
    assert [_limbs.count(_moduli.crt(n), 64) for n in (8, 9, 15, 16, 18, 20)] == [1, 2, 2, 3, 3, 3]
    assert (_limbs.width(64), _limbs.width(65)) == (57, 56)
