"""Checkpoint policies see an emulated product as a dot_general."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ozaki as jo
from compiled import products

A = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4)))
emulate = functools.partial(jo.emulate, min_size=0)
policies = jo.checkpoint_policies


def chain(multiply):
    return lambda a: jnp.sin(multiply(jnp.sin(multiply(a, a)), a)).sum()


def count(policy, multiply):
    """Products of a gradient through a checkpointed chain of two."""
    return len(products(jax.grad(jax.checkpoint(chain(multiply), policy=policy)), A))


NATIVE = functools.partial(jnp.einsum, "...ij,...jk->...ik")


@pytest.mark.parametrize("name", policies.__all__)
def test_as_jax_treats_its_own(name):
    ours, theirs = getattr(policies, name), getattr(jax.checkpoint_policies, name)
    if name.startswith("offload"):
        ours, theirs = ours("device", "pinned_host"), theirs("device", "pinned_host")
    expected = count(theirs, NATIVE)
    assert count(ours, jo.matmul) == count(ours, NATIVE) == expected
    assert count(None, NATIVE) == count(None, jo.matmul) > expected


@pytest.mark.parametrize("name", ["dots_saveable", "dots_with_no_batch_dims_saveable"])
def test_batch_axes_count(name):
    stack = jnp.stack([A, A])

    def of(policy, multiply):
        return len(products(jax.grad(jax.checkpoint(chain(multiply), policy=policy)), stack))

    assert of(getattr(policies, name), jo.matmul) == of(getattr(jax.checkpoint_policies, name), jnp.matmul)


def test_emulate_translates_the_policy_of_a_program():
    """A program that saves its products saves the emulated ones, before and after differentiation."""
    block = jax.checkpoint(chain(jnp.matmul), policy=jax.checkpoint_policies.dots_saveable)
    native = len(products(jax.grad(block), A))
    assert len(products(jax.grad(emulate(block)), A)) == native
    assert len(products(emulate(jax.grad(block)), A)) == native
    np.testing.assert_allclose(jax.grad(emulate(block))(A), jax.grad(block)(A), rtol=1e-12)


def test_prepared_products_are_saved():
    prepared = jo.prepare(A)
    f = jax.checkpoint(
        lambda x: jnp.sin(jo.matmul(prepared, jnp.sin(jo.matmul(prepared, x)))).sum(), policy=policies.dots_saveable
    )
    g = jax.checkpoint(lambda x: jnp.sin(jnp.matmul(A, jnp.sin(jnp.matmul(A, x)))).sum(), policy=policies.dots_saveable)
    assert len(products(jax.grad(f), A)) == len(products(jax.grad(g), A))
