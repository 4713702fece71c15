"""How functions are compiled here, and what they become: the products in a jaxpr, the calls and buffers in HLO."""

import re
from collections import Counter

import jax

from jax_ozaki import _stages


def jit_stages(fn, static_argnums=()):
    """``jax.jit`` of a function of stages, its first argument.

    The definition, which a platform with handlers never runs, is compiled as it stands: LLVM's optimization takes half
    of the time, and no bit of integers, or of float64 in a fixed order, may depend on it.
    """
    static = {"static_argnums": (0, *static_argnums)}
    handlers = jax.jit(fn, **static)
    definition = jax.jit(fn, **static, compiler_options={"xla_backend_optimization_level": 0})
    return lambda stages, *args: (handlers if isinstance(stages, _stages.Handlers) else definition)(stages, *args)


def products(fn, *args):
    """The names of the product primitives in the jaxpr of fn, sub-jaxprs included."""
    return re.findall(r"\b(\w*dot_general\w*)\[", str(jax.make_jaxpr(fn)(*args)))


def emulated(fn, *args):
    """Whether fn multiplies, and by emulation only."""
    names = products(fn, *args)
    return bool(names) and all(name.startswith("ozaki") for name in names)


def hlo(fn, *args, **options):
    """Compiled HLO without metadata, which may quote any word."""
    return text_of(jax.jit(fn, **options).lower(*args).compile())


def text_of(program):
    """The same of a program that is compiled already."""
    return re.sub(r", metadata=\{[^}]*\}", "", program.as_text())


def computations(text):
    """The instructions of every computation by its name; the entry is named ENTRY."""
    found = {}
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            body = found["ENTRY" if header[1] else header[2]] = []
        elif line.startswith("  "):
            body.append(line)
    return found


def calls(lines, stage):
    """The result types of the calls of a stage, such as quantize: that of plain and of certified products."""
    lines = lines.splitlines() if isinstance(lines, str) else lines
    target = rf'custom_call_target="jax_ozaki\.{"(ladder_)?" if stage == "quantize" else ""}{stage}\.v1"'
    return [line.split(" = ")[1].split(" custom-call")[0] for line in lines if re.search(target, line)]


def shapes(text):
    """All array shapes in HLO text, as (dtype, dimensions)."""
    return {(dtype, tuple(int(d) for d in dims.split(","))) for dtype, dims in re.findall(r"\b(\w+)\[([\d,]+)\]", text)}


def collectives(text):
    """How often HLO text has each collective, those absent left out."""
    return Counter(
        re.findall(r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    )


def unconditional(text):
    """The collectives of the entry computation, outside of conditions and loops."""
    return collectives("\n".join(computations(text)["ENTRY"]))
