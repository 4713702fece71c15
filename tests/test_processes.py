"""Products over the devices of several processes, with jax.distributed: the bits of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# By the number of processes. Products of one rung send all that plain products send, forwards and backwards; the ladder
# sends more only where k is sharded (test_sharded_ladder), and its gradients are such products again.
PROGRAMS = {
    2: [
        *(f"mantissa(53):{layout}" for layout in ("batch", "m", "n", "k", "k, result over m")),
        "componentwise:k",
        "componentwise:k, result over m",
    ],
    4: ["mantissa(53):m", "componentwise:k, result over m"],
}


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_processes(processes, devices):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    program = [sys.executable, "-P", str(HERE / "process_program.py"), f"localhost:{port}", str(processes)]
    running = [
        subprocess.Popen(
            [*program, str(rank), *PROGRAMS[processes]],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        results = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (out, err) in zip(running, results, strict=True):
        assert process.returncode == 0, err[-4000:]
        assert out.count(f"same bits on {devices} of {processes * devices} devices") == len(PROGRAMS[processes])
