"""Load the compiled modules and register their FFI handlers, once, when ``jax_ozaki`` is imported.

XLA runs handlers built against its own headers or older ones. A handler built against newer ones
makes registration fail and takes the whole CPU backend down with it, so the versions are compared
before anything is registered.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jaxlib

_PRODUCT_STAGES = ("stats", "quantize", "residues", "grouped_mma", "combine")
STAGES = (
    *_PRODUCT_STAGES, *(f"complex_{stage}" for stage in _PRODUCT_STAGES),
    "planes", "magnitude", "certify", "certify_fine",
    "ladder_quantize", "ladder_residues", "ladder_mma", "ladder_combine", "ladder_sum",
)  # fmt: skip
_STRASSEN_STAGES = ("strassen_quantize", "strassen_combine")
_SYMMETRIC_STAGES = ("symmetry", "symmetric_mma", "symmetric_combine", "symmetric_mirror")
CUDA_STAGES = (*STAGES, *_STRASSEN_STAGES, *(f"complex_{stage}" for stage in _STRASSEN_STAGES), *_SYMMETRIC_STAGES)

Version = tuple[int, ...]

OLDEST_JAXLIB: Version = (0, 10, 2)
OLDEST_API: Version = (0, 3)
"""The FFI API of the oldest supported jaxlib: what a runtime offers at least."""

_IN_SOURCE_TREE = (Path(__file__).parents[1] / "CMakeLists.txt").is_file()
_BUILD_HELP = (
    "This is the source tree, which holds no compiled modules: after `pip install .` start Python in "
    "another folder, or with `python -P`."
    if _IN_SOURCE_TREE
    else "Install the package with `pip install .` from its source tree; a C++ compiler is needed."
)


def target(stage: str) -> str:
    """The FFI target of a stage, the same on every platform.

    The name holds a version: a cached or exported program must not meet other semantics.
    """
    return f"jax_ozaki.{stage}.v1"


def running_api_version() -> Version:
    """The XLA FFI API version of the installed jaxlib, read from the header it ships."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if not header.is_file():
        return OLDEST_API
    text = header.read_text(encoding="utf-8")
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    return tuple(int(match[1]) for match in found if match) if all(found) else OLDEST_API


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


def has_cuda() -> bool:
    """Whether the CUDA handlers are registered; a GPU may still be absent. Those of the CPU always are."""
    return _cuda is not None


def build_info() -> dict[str, Any]:
    """What the compiled modules are: sources, flags, versions and what they cover.

    ``ffi_hash`` identifies every source file that decides a bit of a result. ``cuda_problem`` says
    why there is no CUDA module, where there is none.
    """
    info: dict[str, Any] = dict(_cpu.build_info())
    cuda = _cuda.build_info() if _cuda else {}
    return info | {
        "api_version": tuple(info["api_version"]),
        "cuda": has_cuda(),
        "cuda_problem": _cuda_problem,
        "cuda_archs": tuple(cuda.get("cuda_archs", "").split()),
        "cuda_mma": cuda.get("cuda_mma"),
    }


def _require_jaxlib() -> None:
    running = tuple(int(part) for part in re.findall(r"\d+", jaxlib.__version__)[:3])
    if running < OLDEST_JAXLIB:
        raise ImportError(
            f"jax_ozaki needs jaxlib >= {version_text(OLDEST_JAXLIB)}, but jaxlib "
            f"{jaxlib.__version__} is installed. Upgrade it: pip install -U jax jaxlib"
        )


def _require_api(module: ModuleType) -> None:
    compiled, running = tuple(module.build_info()["api_version"]), running_api_version()
    if compiled[0] != running[0] or compiled > running:
        raise ImportError(
            f"{module.__name__} was compiled for version {version_text(compiled)} of XLA's FFI, but "
            f"the installed jaxlib {jaxlib.__version__} runs version {version_text(running)}. "
            f"Upgrade jaxlib, or build jax_ozaki again with the jaxlib pin of its pyproject.toml."
        )


def _import_cpu() -> ModuleType:
    try:
        return importlib.import_module("jax_ozaki._cpu")
    except ImportError as error:
        raise ImportError(f"jax_ozaki has no working CPU module ({error}). {_BUILD_HELP}") from error


def _import_cuda() -> tuple[ModuleType | None, str | None]:
    """The CUDA module, or why it is not there. A package without it is a CPU package."""
    try:
        return importlib.import_module("jax_ozaki._cuda"), None
    except ModuleNotFoundError:
        return None, "built without CUDA"
    except ImportError as error:
        return None, str(error)


def _register(module: ModuleType, platform: str) -> None:
    for name, handler in module.registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform=platform, api_version=1)


_require_jaxlib()
_cpu = _import_cpu()
_cuda, _cuda_problem = _import_cuda()
for _module in filter(None, (_cpu, _cuda)):
    _require_api(_module)
_register(_cpu, "cpu")
if _cuda is not None:
    _register(_cuda, "CUDA")
