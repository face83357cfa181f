# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough; the whole suite is tested on 3.11.
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
VENV := .venv
# On a terminal, pip shows each download with its size and its progress.
PIP_FLAGS := $(shell test -t 2 || echo --quiet) --disable-pip-version-check -c constraints.txt

ENV ?= CartPole-v1
ALGO ?= ppo
SEED ?= 1

DEFINED := setup.cfg pyproject.toml constraints.txt
EXTENSION := setup.py $(filter-out native/src/api/% native/src/config/%,$(shell find native/src native/tests/extension -name '*.[chi]*'))

.PHONY: help venv venv-test venv-dev docs demo test test-skipped coverage soak long-gate check test-base dist bench guard peers jobs native native-python native-fuzz clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.installed $(VENV)/.extension  ## a virtual environment with the package and the extras learner, gym, images, yaml

# torch comes first and by itself: no other requirement can then choose its build.
$(VENV)/.installed: $(DEFINED)
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing torch, TensorBoard, Matplotlib and Gymnasium into $(VENV), once: about 0.3 GB to download and 1.2 GB on disk"
	@echo "with torch's CPU build, several GB with a CUDA build"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' constraints.txt)"
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[learner,gym,images,yaml]'
	@touch $@ $(VENV)/.extension

# The extension module, where there is a compiler. RL4SYS_NATIVE=never skips it, and always fails without one.
$(VENV)/.extension: $(EXTENSION) | $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps -e .
	@touch $@

venv-test: $(VENV)/.installed-test $(VENV)/.extension  ## the same with the test extras and Ray (80 MB to download, 240 MB on disk)
$(VENV)/.installed-test: $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[learner,gym,images,yaml,ray,web,test]'
	@touch $@

venv-dev: $(VENV)/.installed-dev $(VENV)/.extension  ## the same with ruff, mypy, build and the libraries of the adapters
$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[learner,gym,images,yaml,ray,web,wandb,mlflow,sb3,torchrl,pettingzoo,test,dev,recipes]'
	@touch $@

# The Python reference imports the package, so its environment is the learner's.
$(VENV)/.installed-docs: $(VENV)/.installed
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[learner,gym,images,yaml,web,docs]'
	@touch $@

docs: $(VENV)/.installed-docs  ## the documentation site in docs/_build/html; a warning, a dead link or an unknown name fails
	$(VENV)/bin/python -m sphinx -b html -n -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

demo: venv  ## train ENV (CartPole-v1) with ALGO (ppo) and SEED (1): a learner and two actor processes
	$(VENV)/bin/rl4sys-learner demo --env $(ENV) --algorithm $(ALGO) --seed $(SEED)

# Each gate waits for real processes most of its time, so three workers fill two cores. What one has left, another takes over.
WORKERS ?= 3
SUITE := pytest -q -n $(WORKERS) --dist worksteal

test: venv-test  ## the whole test suite, in WORKERS (3) processes
	$(VENV)/bin/python -m $(SUITE)

# The tests that `RL4SYS_SKIPPED_TESTS=FILE make test` skipped, once each, where all extras are installed.
SKIPPED ?= .skipped-tests
test-skipped: venv-dev  ## the tests that an earlier run noted in SKIPPED, with all extras
	sort -u $(SKIPPED) > $(SKIPPED).once
	$(VENV)/bin/python -m $(SUITE) @$(SKIPPED).once

coverage: venv-test  ## the same with coverage over every process; fails below the floor in pyproject.toml
	rm -rf .coverage && mkdir .coverage
	$(VENV)/bin/python -m coverage run -m $(SUITE)
	$(VENV)/bin/python -m coverage combine --quiet
	$(VENV)/bin/python -m coverage report

soak: venv-test  ## the gates at their full size, with their times; figures also go to RL4SYS_SOAK_REPORT
	RL4SYS_SOAK=1 $(VENV)/bin/python -m pytest tests/gates tests/delivery/test_simulator.py tests/delivery/test_native_session.py tests/wire/test_fuzz.py tests/end_to_end/test_adapters.py tests/end_to_end/test_overrides.py tests/end_to_end/test_ray.py -s --timeout 1800

long-gate: venv-test  ## one gate at its full size, in turn by the commit's number; `make soak` runs them all
	$(VENV)/bin/python scripts/long-gate

check: venv-dev  ## formatting, lint and types
	scripts/check

# What an actor installs, and its tests: no torch, no gymnasium. One environment for each Python, e.g. PYTHON=python3.12.
BASE_TESTS = $(wildcard $(addprefix tests/,actor policies rpc security wire delivery transports weights values serving/data) tests/test_*.py)

test-base:  ## the actor's tests on the base install, with the Python that PYTHON= names
	@venv=.venv-base-$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') \
		&& $(MAKE) --no-print-directory $$venv/.installed PYTHON=$(PYTHON) \
		&& $$venv/bin/python -m pytest $(BASE_TESTS)

.venv-base-%/.installed: $(DEFINED)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[test]'
	@touch $@

# The build takes setuptools from the package index, as pip would, at the pinned version.
dist: venv-dev  ## two wheels (compiled, pure) and an sdist in dist/, their files checked, installed and tried in new environments
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt RL4SYS_NATIVE=always $(VENV)/bin/python -m build --outdir dist
	CXX=no-compiler RL4SYS_NATIVE=auto $(VENV)/bin/python -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist dist/*.tar.gz
	$(VENV)/bin/python scripts/check-dist dist

# A short form of examples/job_scheduling: a minute of training, then the comparison with the classic schedulers.
JOBS_STEPS ?= 60000
jobs: venv  ## learn to schedule the jobs of a cluster for a minute; table and box plots in runs/jobs
	rm -rf runs/jobs
	cd examples && ../$(VENV)/bin/python -m job_scheduling.train ../runs/jobs --steps $(JOBS_STEPS) --max-seconds 75
	cd examples && ../$(VENV)/bin/python -m job_scheduling.evaluate ../runs/jobs --generated 4 --plot ../runs/jobs/boxes.png

bench: venv  ## every script in benchmarks/, each beside its baseline
	@for script in $(filter-out benchmarks/guard.py,$(wildcard benchmarks/[a-z]*.py)); do \
		echo "== $$script"; $(VENV)/bin/python "$$script" || exit 1; done

guard: venv  ## the ratios in benchmarks/results measured again: fails if one is clearly worse
	$(VENV)/bin/python benchmarks/guard.py

# The C and C++ library, with the tests in native/tests. The vectors of these tests come from the Python in NATIVE_PYTHON.
NATIVE_BUILD ?= build/native$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
NATIVE_PYTHON ?= $(wildcard $(CURDIR)/$(VENV)/bin/python)
comma := ,

native:  ## build the C and C++ library in build/native and test it; SANITIZE=address,undefined or thread
	native/tools/packages
	cmake -S native -B $(NATIVE_BUILD) -DRL4SYS_PYTHON=$(NATIVE_PYTHON) -DRL4SYS_SANITIZE=$(SANITIZE)
	cmake --build $(NATIVE_BUILD) --parallel $(NATIVE_JOBS)
	cd $(NATIVE_BUILD) && ctest --output-on-failure
# The thread sanitizer follows no child of a process with threads. The tests' driver counts allocations by an operator new of its own.
ifneq ($(and $(SANITIZE),$(wildcard tests/native)),)
	RL4SYS_CLIENT_BUILD=$(CURDIR)/$(NATIVE_BUILD) RL4SYS_CLIENT_FLAGS="-fsanitize=$(SANITIZE)" \
		TSAN_OPTIONS="suppressions=$(CURDIR)/native/tests/tsan.supp exitcode=66" \
		ASAN_OPTIONS=alloc_dealloc_mismatch=0 $(NATIVE_PYTHON) -m pytest -q --timeout 900 tests/native \
		$(if $(filter thread,$(SANITIZE)),-k "not forked")
endif

# The sanitizers' libraries must be loaded first, because Python is not built with them. Workers elsewhere have another environment.
# Findings, also of child processes, are files.
NATIVE_TESTS ?= $(addprefix tests/,actor policies delivery wire weights end_to_end)
native-python:  ## an actor's tests over an extension with the address and undefined sanitizers; later, `make venv` builds it without
	rm -rf build/sanitized $(VENV)/.extension && mkdir -p build/sanitized
	CXXFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" RL4SYS_NATIVE=always $(NATIVE_PYTHON) setup.py -q build_ext --inplace
	LD_PRELOAD="$$(for name in asan ubsan stdc++; do c++ -print-file-name=lib$$name.so; done | tr '\n' ' ')" PYTHONMALLOC=malloc \
		ASAN_OPTIONS="detect_leaks=0 quarantine_size_mb=16 log_path=$(CURDIR)/build/sanitized/found" RL4SYS_NATIVE=always \
		$(NATIVE_PYTHON) -m pytest -q -n $(WORKERS) --timeout 1800 $(NATIVE_TESTS) -k "not elsewhere and not remote_workers"; \
		status=$$?; rm -f rl4sys_zmq/_native.abi3.so; ! cat build/sanitized/found* 2>/dev/null && exit $$status

MINUTES ?= 10
native-fuzz:  ## fuzz the library's decoders for MINUTES (10), with clang; a crash fails, and its input stays in build/native-fuzz
	native/tools/packages clang
	cmake -S native -B build/native-fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DRL4SYS_FUZZ=ON
	cmake --build build/native-fuzz --parallel $(NATIVE_JOBS)
	PYTHONPATH=$(CURDIR) $(NATIVE_PYTHON) native/tests/make_vectors.py build/native-fuzz/vectors
	native/tools/fuzz build/native-fuzz $(MINUTES)

peers: .venv-peers/.installed  ## an environment for the programs that benchmarks compare with, about a gigabyte
.venv-peers/.installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' constraints.txt)"
	.venv-peers/bin/python -m pip install -r benchmarks/peers/requirements.txt
	@touch $@

clean:  ## remove the environments, caches and build outputs; run directories stay
	rm -rf .venv .venv-base-* .venv-peers build dist docs/_build *.egg-info rl4sys_zmq/_native.abi3.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .skipped-tests*
	find rl4sys_zmq tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
