"""``info``: what is installed, what it was built from, and which devices it serves."""

from __future__ import annotations

import argparse
import json
import platform
import re
from importlib.metadata import version
from typing import Any

import jax
import jaxlib

from jax_ozaki import _ffi


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="show versions, build and devices",
        description="Versions, the build (the hash identifies every source that decides a bit of "
        "a result), and the devices with the implementation that serves each.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    info = collect()
    print(json.dumps(info, indent=2) if args.json else render(info))
    return 0


def collect() -> dict[str, Any]:
    """Everything ``info`` shows, as JSON types."""
    build = _ffi.build_info()
    return {
        "version": version("jax-ozaki"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "ffi_hash": build["ffi_hash"],
        "build_flags": build["build_flags"],
        "ffi_api": {
            "compiled": _ffi.version_text(build["api_version"]),
            "running": _ffi.version_text(_ffi.running_api_version()),
        },
        "cpu": {"machine": platform.machine(), "instructions": build["cpu_isa"]},
        "cuda": {
            "module": build["cuda"],
            "problem": build["cuda_problem"],
            "architectures": list(build["cuda_archs"]),
        },
        "devices": _devices(),
    }


def render(info: dict[str, Any]) -> str:
    """The same for people."""
    cpu, cuda, api = info["cpu"], info["cuda"], info["ffi_api"]
    served = ", ".join(f"sm_{arch}" for arch in cuda["architectures"]) + ", PTX for the rest from 8.0"
    rows = [
        ("jax_ozaki", info["version"]),
        ("Python", info["python"]),
        ("jax, jaxlib", f"{info['jax']}, {info['jaxlib']}"),
        ("ffi hash", info["ffi_hash"]),
        ("build", info["build_flags"]),
        ("FFI API", f"{api['compiled']} compiled, {api['running']} running"),
        ("CPU", f"{cpu['machine']}, {cpu['instructions']}"),
        ("CUDA", served if cuda["module"] else cuda["problem"]),
        *(("device", _device_line(device)) for device in info["devices"]),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def covers(capability: str | None) -> bool:
    """Whether the CUDA handlers run on a GPU of this compute capability.

    The module holds PTX of 8.0 beside its machine code, which every NVIDIA GPU from 8.0 on runs.
    """
    number = re.fullmatch(r"(\d+)\.(\d+)", capability or "")
    return number is not None and (int(number[1]), int(number[2])) >= (8, 0)


def _devices() -> list[dict[str, Any]]:
    try:
        devices = jax.devices()
    except RuntimeError as error:  # a plugin that cannot start
        return [{"name": "none", "served_by": str(error)}]
    return [_device(device) for device in devices]


def _device(device: jax.Device) -> dict[str, Any]:
    capability = getattr(device, "compute_capability", None)
    if device.platform == "cpu":
        served_by = "CPU handlers"
    elif _ffi.has_cuda() and covers(capability):
        served_by = "CUDA handlers"
    else:
        served_by = "reference in pure JAX"
    return {
        "name": str(device),
        "platform": device.platform,
        "kind": device.device_kind,
        "compute_capability": capability,
        "served_by": served_by,
    }


def _device_line(device: dict[str, Any]) -> str:
    details = [device.get("kind"), device.get("compute_capability")]
    return f"{device['name']} ({', '.join(filter(None, details))}): {device['served_by']}"
