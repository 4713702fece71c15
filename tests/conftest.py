"""Settings of the whole suite. Those of XLA must be in the environment before jax starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONSAFEPATH"] = "1"  # a test's child processes see the installed package too, not the checkout
_flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count=8".strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)

# An example's first run compiles, so a deadline would measure XLA.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
