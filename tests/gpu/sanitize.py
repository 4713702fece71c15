"""compute-sanitizer over the parts of small_products.py, side by side: python -P sanitize.py [DIRECTORY]

Prints a line a part and tool; DIRECTORY keeps what they printed. The exit status is 1 where anything was found, or a bit
differs. Only the kernels of this package are instrumented. Every part runs without the tool first, which fills a
compilation cache: XLA does not compile reliably under racecheck.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {
    "plain": {},
    "structure": {},
    "certified": {},
    "last": {},
    "choices, mma.sync": {"JAX_OZAKI_CUDA_MMA": "mma_sync"},
    "choices, partial CRT": {"JAX_OZAKI_CUDA_EPILOGUE": "partial_crt"},
}
"""Parts, and the variables that choose kernels."""
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards"}
SECONDS = 300


def run(name, tool, directory):
    """One part, under a tool or without any; whether nothing was found."""
    environment = os.environ | RUNS[name]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))),
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",  # an allocation for every array, so that memcheck sees its end
        "JAX_COMPILATION_CACHE_DIR": str(directory / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-P", str(HERE / "small_products.py"), name.partition(",")[0]]
    if tool:
        command = ["compute-sanitizer", "--tool", tool, "--kernel-name", "kns=ozaki", "--error-exitcode", "1", *command]
    log = directory / f"{name}, {tool or 'alone'}.txt"
    verdict = "FAILED"
    with log.open("w") as output:
        try:
            done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS)
            if done.returncode == 0 and (not tool or CLEAN[tool] in log.read_text()):
                verdict = "clean"
        except subprocess.TimeoutExpired:
            verdict = f"FAILED, stopped after {SECONDS} s"
    printed = log.read_text()
    clean = verdict == "clean"
    same = printed.count("the CPU's bits")
    print(f"{name}: {tool or 'alone'}: {verdict}, {same} products have the CPU's bits", flush=True)
    if not clean:
        print(printed[-4000:], flush=True)
    return clean


def main(directory):
    directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        alone = list(pool.map(lambda name: run(name, None, directory), RUNS))
        cases = [(name, tool) for tool in ("racecheck", "memcheck") for name in RUNS]
        found = list(pool.map(lambda case: run(*case, directory), cases)) if all(alone) else [False]
    return 0 if all(found) else 1


if __name__ == "__main__":
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer of the CUDA toolkit is needed on PATH.")
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
