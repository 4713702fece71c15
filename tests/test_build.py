"""The package as built: its identity, its versions, what it ships, and how it refuses a wrong jaxlib."""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jax
import jaxlib
import pytest

from jax_ozaki import __main__ as cli
from jax_ozaki import _ffi
from jax_ozaki._cli import info

SOURCE = Path(__file__).parents[1]


def source_hash(root: Path) -> str:
    """The hash of CMakeLists.txt, computed again."""
    sources = [path for path in (root / "ffi").rglob("*") if path.is_file()]
    names = [path.relative_to(root).as_posix() for path in sources if "__pycache__" not in path.parts]
    names.append("jax_ozaki/_moduli.py")
    lines = (f"{hashlib.sha256((root / n).read_bytes()).hexdigest()}  {n}\n" for n in sorted(names))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@pytest.fixture
def registered(monkeypatch):
    """The (target, platform) pairs that a fresh load of ``_ffi`` registers."""
    calls = []
    monkeypatch.setattr(
        jax.ffi,
        "register_ffi_target",
        lambda name, *_, platform, **__: calls.append((name, platform)),
    )
    return calls


def load_ffi():
    """Run ``_ffi`` once more, as a first import would."""
    spec = importlib.util.spec_from_file_location("jax_ozaki._ffi_again", _ffi.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reported_hash_is_that_of_the_sources():
    assert _ffi.build_info()["ffi_hash"] == source_hash(SOURCE)


@pytest.mark.parametrize("change", ["content", "name", "moduli"])
def test_hash_depends_on_every_source(tmp_path, change):
    shutil.copytree(SOURCE / "ffi", tmp_path / "ffi")
    (tmp_path / "jax_ozaki").mkdir()
    shutil.copy(SOURCE / "jax_ozaki/_moduli.py", tmp_path / "jax_ozaki")
    before = source_hash(tmp_path)
    assert before == source_hash(SOURCE)
    header = tmp_path / "ffi/common/scale.h"
    if change == "name":
        header.rename(header.with_name("scales.h"))
    else:
        changed = header if change == "content" else tmp_path / "jax_ozaki/_moduli.py"
        changed.write_text(changed.read_text() + "\n")
    assert source_hash(tmp_path) != before


def test_registers_every_target_once(registered):
    module = load_ffi()
    stages = {"cpu": module.STAGES} | ({"CUDA": module.CUDA_STAGES} if module.has_cuda() else {})
    assert sorted(registered) == sorted((module.target(s), p) for p in stages for s in stages[p])


def test_old_jaxlib_is_refused_before_anything_is_registered(monkeypatch, registered):
    monkeypatch.setattr(jaxlib, "__version__", "0.9.2")
    with pytest.raises(ImportError, match=r"needs jaxlib >= 0\.10\.2, but jaxlib 0\.9\.2 is installed"):
        load_ffi()
    assert registered == []


def test_handlers_newer_than_the_runtime_are_refused_before_anything_is_registered(monkeypatch, registered, tmp_path):
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n\n#define XLA_FFI_API_MINOR 2\n")
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    compiled = ".".join(map(str, _ffi.build_info()["api_version"]))
    with pytest.raises(ImportError, match=rf"compiled for version {compiled} .* runs version 0\.2\."):
        load_ffi()
    assert registered == []


def test_a_jaxlib_without_headers_counts_as_the_oldest(monkeypatch, tmp_path):
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert _ffi.running_api_version() == _ffi.OLDEST_API


def test_missing_cpu_module_says_how_to_build_it(monkeypatch, registered):
    monkeypatch.setitem(sys.modules, "jax_ozaki._cpu", None)
    with pytest.raises(ImportError, match=r"no working CPU module .*`pip install \.`"):
        load_ffi()
    assert registered == []


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ModuleNotFoundError("No module named 'jax_ozaki._cuda'"), "built without CUDA"),
        (ImportError("_cuda.so: undefined symbol"), "_cuda.so: undefined symbol"),
    ],
)
def test_a_package_without_cuda_works_and_says_why(monkeypatch, registered, error, problem):
    def import_module(name):
        if name == "jax_ozaki._cuda":
            raise error
        return sys.modules[name]

    monkeypatch.setattr(importlib, "import_module", import_module)
    module = load_ffi()
    assert not module.has_cuda()
    assert module.build_info()["cuda_problem"] == problem
    assert {platform for _, platform in registered} == {"cpu"}


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
def test_modules_need_no_cuda_libraries():
    modules = [p for p in Path(_ffi._cpu.__file__).parent.iterdir() if p.suffix == ".so"]
    assert modules
    for module in modules:
        dynamic = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True)
        needed = [line for line in dynamic.stdout.splitlines() if "NEEDED" in line]
        assert not [line for line in needed if "libcu" in line or "libpython" in line]


def test_package_ships_type_marker_and_data():
    package = files("jax_ozaki")
    assert (package / "py.typed").is_file()
    assert (package / "data" / "c60.xyz").is_file()


def test_info_for_people(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    build = _ffi.build_info()
    for fact in (jax.__version__, jaxlib.__version__, build["ffi_hash"], build["build_flags"]):
        assert fact in out
    assert "cpu" in out
    for arch in build["cuda_archs"]:
        assert f"sm_{arch}" in out


def test_info_as_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ffi_hash"] == _ffi.build_info()["ffi_hash"]
    assert shown["jaxlib"] == jaxlib.__version__
    assert shown["cpu"]["instructions"]
    assert len(shown["devices"]) == len(jax.devices())
    assert {device["platform"] for device in shown["devices"]} == {jax.default_backend()}


@pytest.mark.parametrize(
    ("capability", "covered"),
    [
        ("8.0", True),
        ("8.7", True),
        ("9.0", True),
        ("12.1", True),
        ("7.5", False),
        ("gfx942", False),
        (None, False),
    ],
)
def test_covered_gpus(capability, covered):
    assert info.covers(capability) == covered
