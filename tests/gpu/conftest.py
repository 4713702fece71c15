"""What the GPU suite shares. It skips itself where JAX has no CUDA device.

`make gpu-test` runs it with both platforms, cuda first. Bits are compared with the CPU's handlers in the
same process and, on samples, with the oracle.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

# The programs that tests start share the device with the suite.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
import pytest

from oracle import assert_same_bits

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")


@pytest.fixture(scope="session")
def cpu():
    return jax.devices("cpu")[0]


def run(device, fn, *args):
    """The results of jit(fn) on a device."""
    return jax.tree.map(np.asarray, jax.jit(fn)(*jax.device_put(args, device)))


@pytest.fixture(scope="session")
def agree(gpu, cpu):
    """Run a function on both platforms, assert equal bits, return its results."""

    def check(fn, *args, context=""):
        results = run(cpu, fn, *args)
        for on_gpu, on_cpu in zip(*map(jax.tree.leaves, (run(gpu, fn, *args), results)), strict=True):
            assert_same_bits(on_gpu, on_cpu, context)
        return results

    return check


@pytest.fixture
def start():
    """Start a program of this folder with more environment; the function returned waits for the JSON it prints."""
    processes = []

    def begin(name, **environment):
        environment = os.environ | {"PYTHONPATH": _python_path()} | environment
        command = [sys.executable, "-P", str(HERE / name)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)

        def finish():
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err[-4000:]
            return json.loads(out)

        return finish

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _python_path():
    """The tests' own modules before what the suite itself sees."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join(filter(None, (str(HERE.parent), inherited)))
