"""What a product will do: moduli, work, memory and the blocks that keep to a workspace budget."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from . import _field, _moduli
from ._contract import Contract, integer, resolve

_VECTOR, _CACHE_LINE = 16, 128

_SMALLEST_BLOCK = 64


def padded(n: int) -> int:
    """Bytes of a row of reduced products: ``n`` rounded up to whole vectors."""
    return -(-n // _VECTOR) * _VECTOR


def padded_k(k: int) -> int:
    """Bytes of a row of residues: ``k`` rounded up to whole vectors, and to cache lines where rows are long."""
    unit = _VECTOR if k < 4 * _CACHE_LINE else _CACHE_LINE
    return -(-k // unit) * unit


def workspace_size(planes: int, batch: int, m: int, n: int, k: int, sums: int = 0) -> int:
    """Bytes of residues of both operands and of their reduced products, a plane for every INT8 product, and of
    ``sums`` words an output."""
    return batch * (planes * ((m + n) * padded_k(k) + m * padded(n)) + 4 * sums * m * padded(n))


@dataclass(frozen=True)
class Blocks:
    """Block sizes of a product: (batch, m, n, k) extents computed at a time."""

    batch: int
    m: int
    n: int
    k: int


@cache
def blocks(planes: int, batch: int, m: int, n: int, k: int, *, budget: int, sums: int = 0) -> Blocks:
    """The largest blocks over batch, then n, m and k whose workspace stays within ``budget`` bytes.

    Blocks of k are multiples of the statistics' chunk. Raises ValueError if not even the smallest
    blocks fit.
    """

    def fits(b: int, m: int, n: int, k: int) -> bool:
        return workspace_size(planes, b, m, n, k, sums) <= budget

    def largest(size: int, smallest: int, step: int, fits: Any) -> int:
        """The largest block of ``size`` that fits: all of it, or a multiple of ``step``."""
        if size <= smallest or fits(size):
            return size
        low, high = smallest // step, size // step
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle * step) else (low, middle - 1)
        return low * step

    if fits(1, m, n, k):
        return Blocks(largest(batch, 1, 1, lambda x: fits(x, m, n, k)), m, n, k)
    small = _SMALLEST_BLOCK
    n_block = largest(n, min(n, 8 * small), small, lambda x: fits(1, m, x, k))
    m_block = largest(m, min(m, 8 * small), small, lambda x: fits(1, x, n_block, k))
    k_block = largest(k, min(k, _moduli.CHUNK), _moduli.CHUNK, lambda x: fits(1, m_block, n_block, x))
    if not fits(1, m_block, n_block, k_block):
        m_block = largest(m_block, min(m, small), small, lambda x: fits(1, x, n_block, k_block))
        n_block = largest(n_block, min(n, small), small, lambda x: fits(1, m_block, x, k_block))
    if not fits(1, m_block, n_block, k_block):
        needed = workspace_size(planes, 1, m_block, n_block, k_block, sums)
        raise ValueError(
            f"workspace_bytes={budget} is too small: {planes} INT8 products need at least {needed} bytes "
            f"for blocks of {m_block} x {n_block} x {k_block}."
        )
    return Blocks(1, m_block, n_block, k_block)


def contract_blocks(
    contract: Contract, batch: int, m: int, n: int, k: int, *, dtype: Any = "float64", budget: int
) -> Blocks:
    """The blocks of a product under ``contract``."""
    planes = contract.workspace_planes(k, dtype)
    return blocks(planes, batch, m, n, k, budget=budget, sums=contract.magnitude_sums)


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


@dataclass(frozen=True)
class Plan:
    """What ``dot_general`` would do for one shape; made by :func:`plan`, printable."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    contract: Contract
    moduli: int
    """Of the first rung, in a certified product; few-bit operands need fewer."""
    rungs: tuple[str, ...]
    """What a certified product's outputs may come from, in order; empty for other contracts."""
    log2_product: float
    """log2 of the product of the moduli; 0 where the product is native."""
    int8_gemms: int
    """INT8 matrix products of size m x n x k, over the whole batch."""
    workspace_bytes: int
    """Bytes of residues held at a time."""
    blocks: Blocks
    guarantee: str

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        shape = f"{batch}({self.m}, {self.k}) x ({self.k}, {self.n}) {self.dtype}"
        if not self.moduli:
            return f"{shape}: native, {self.guarantee}"
        parts = 2 if self.dtype == "complex128" and self.contract.certified else 1
        whole = Blocks(self.batch, self.m, parts * self.n, parts * self.k)
        block = self.blocks
        how = (
            "in one piece"
            if block == whole
            else f"in blocks of batch {block.batch}, m {block.m}, n {block.n}, k {block.k}"
        )
        rungs = f"  rungs      {'; '.join(self.rungs)}\n" if self.rungs else ""
        return (
            f"{shape}\n"
            f"  contract   {self.contract}: {self.guarantee}\n"
            f"  moduli     {self.moduli} (log2 P = {self.log2_product:.2f}), {self.int8_gemms} INT8 matrix products\n"
            f"{rungs}"
            f"  workspace  {_size(self.workspace_bytes)} of residues, {how}"
        )


def plan(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: Any = "float64",
    contract: Contract | None = None,
    workspace_bytes: int | None = None,
) -> Plan:
    """The plan of a ``batch`` of (m, k) x (k, n) products of ``dtype`` under ``contract``.

    On NVIDIA GPUs a product in one piece whose m, n and k are all 7168 or more takes one level of
    Strassen-Winograd, the same bits with 7/8 of the INT8 work and 7/4 of the residues' bytes, where these stay
    within the budget and neither operand is prepared. A float64 product of an array of 1536 rows or more with itself
    takes half of the work there where its result is symmetric: ``x @ x.T``, and ``x @ x`` of an ``x`` that the device
    finds symmetric to the bit.

    Raises TypeError for sizes that are no integers, and ValueError for negative sizes, for a contract that cannot be
    kept at this ``k`` and for a workspace that holds not even the smallest blocks.
    """
    m, n, k, batch = (integer(name, x, 0) for name, x in (("m", m), ("n", n), ("k", k), ("batch", batch)))
    dtype = jnp.dtype(dtype)
    contract = resolve(contract)
    if dtype == jnp.complex128 and contract.certified:
        real = plan(m, 2 * n, 2 * k, batch=batch, contract=contract, workspace_bytes=workspace_bytes)
        guarantee = f"{real.guarantee}; each part as a real product of length 2k"
        return replace(real, n=n, k=k, dtype=dtype.name, int8_gemms=4 * real.int8_gemms, guarantee=guarantee)
    moduli = contract.modulus_count(k, dtype) if dtype in _field.DTYPES else 0
    if not moduli:
        native = Contract.native()
        guarantee = f"XLA's own {dtype.name} product, no bound stated; only float64 and complex128 are emulated"
        return Plan(m, n, k, batch, dtype.name, native, 0, (), 0.0, 0, 0, Blocks(batch, m, n, k), guarantee)
    field = _field.of(dtype)
    planes = field.parts * moduli
    block = contract_blocks(contract, batch, m, n, k, dtype=dtype, budget=resolve_workspace(workspace_bytes))
    of_block = block.batch, block.m, block.n, block.k
    return Plan(
        m=m,
        n=n,
        k=k,
        batch=batch,
        dtype=dtype.name,
        contract=contract,
        moduli=moduli,
        rungs=_rungs(contract, k),
        log2_product=_moduli.log2_product(moduli, field.moduli),
        int8_gemms=planes * batch,
        workspace_bytes=workspace_size(contract.workspace_planes(k, dtype), *of_block, contract.magnitude_sums),
        blocks=block,
        guarantee=contract.guarantee,
    )


def _rungs(contract: Contract, k: int) -> tuple[str, ...]:
    first = f"{contract.modulus_count(k)} moduli"
    if contract.kind == "exact":
        return f"{first} where rows and columns fit exactly", "integer sums, correctly rounded"
    if contract.kind == "componentwise":
        sums = "float64 sums in a fixed order" if contract.sum_group(k) else "integer sums"
        return f"{first}, certified", f"{contract.wide_modulus_count(k)} moduli, certified", sums
    return ()


_ENVIRONMENT = "JAX_OZAKI_WORKSPACE_BYTES"
_DEFAULT_WORKSPACE = 16 << 30
_context = jax.make_user_context(None)


@contextmanager
def default_workspace_bytes(size: int) -> Iterator[None]:
    """Let every product in the block hold at most ``size`` bytes of residues at a time.

    The context is thread-local and part of the jit key. It changes no bit of any result.
    """
    with _context(integer("default_workspace_bytes", size, 1)):
        yield


def resolve_workspace(size: int | None = None) -> int:
    """``size``, or the budget of the context, of the process, or a quarter of the device's memory."""
    if size is not None:
        return integer("workspace_bytes", size, 1)
    return _context.value or _process_default()


@cache
def _process_default() -> int:
    text = os.environ.get(_ENVIRONMENT)
    if text:
        try:
            return integer(_ENVIRONMENT, int(text), 1)
        except ValueError:
            raise ValueError(f"{_ENVIRONMENT}={text!r}: a positive number of bytes is needed.") from None
    memory = jax.devices()[0].memory_stats() if jax.default_backend() == "gpu" else None
    limit = (memory or {}).get("bytes_limit")
    return limit // 4 if limit else _DEFAULT_WORKSPACE
