# `make` alone says what there is. Every target makes the environment in .venv first, unless it stands.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Python to make the environment with: the one that stands in .venv, the one you use, or the newest that fits.
PYTHON ?= $(shell tools/find_python.sh)
# An index of small CPU builds of torch, for a machine without an NVIDIA GPU. Only torch is taken from it.
TORCH_INDEX ?=
# Notebooks that `make course` runs (all), and what it hands them, as in ARGS="-p ranks 2".
ARGS ?=

IN_ENV := .venv/bin/python

.PHONY: help env lab course slides test test-long test-labs browser-test soak versions lint bench gpu-check lock wheelhouse clean

help:  ## say what there is
	@echo "make lab     open JupyterLab on your own copy of the course, in my/"
	@echo "make course  run all notebooks into build/course/ (HTML, with an index)"
	@echo "make slides  the chapters as slides, into build/slides/; ARGS=--executed takes what make course has run"
	@echo "make test    style, types, tests and notebooks: 8 to 14 minutes on 2 cores"
	@echo "make test-long  torchrun, hosts, killed ranks, slow links, FSDP2 with every option, graders, the README: 7 to 15 minutes"
	@echo "make test-labs  each lab's wrong answers, cheats and mutants, sandboxes, Dask: 6 to 15 minutes, after a change to these"
	@echo "make browser-test  notebooks in JupyterLab and a real Chromium, every control used; pictures in build/screens/"
	@echo "make soak    runs, failures, hangs, interrupts and kills at random from three kernels: 5 minutes; ARGS=\"--seconds 7200\""
	@echo "make versions TORCH=2.11.0  the tests on another torch, in build/torch-2.11.0/"
	@echo "make bench   print the figures of tests/benchmarks/"
	@echo "make gpu-check  on a machine with GPUs: is all as it should be there? 8 minutes at most, 10 on several"
	@echo "make lock    remake the locks from pyproject.toml"
	@echo "make wheelhouse  every wheel into build/wheelhouse/, for machines without a network"
	@echo "make clean   remove .venv and build/ (never my/)"
	@echo
	@echo "PYTHON=python3.12    the Python to make the environment with (3.11 to 3.13)"
	@echo "TORCH_INDEX=ADDRESS  take torch from an index of small CPU builds"
	@echo "ARGS=\"...\"           more arguments, as in: make course ARGS=\"01 -p ranks 2\""

env:
	@TORCH_INDEX="$(TORCH_INDEX)" "$(PYTHON)" tools/make_env.py

lab: env
	@$(IN_ENV) -m dpcourse.cli lab $(ARGS)

course: env
	@$(IN_ENV) -m dpcourse.cli course $(ARGS)

slides: env
	@$(IN_ENV) tools/make_slides.py $(ARGS)

lint: env
	$(IN_ENV) -m ruff check .
	$(IN_ENV) -m ruff format --check .
	$(IN_ENV) -m mypy
	$(IN_ENV) -m codespell_lib

# The notebooks in notebooks/ run here and nowhere else, and their outputs must equal the kept ones, which are those
# of the reference configuration. Labs are run by the tests.
test: lint
	$(IN_ENV) -m pytest tests -n 2 --dist loadscope -m "not long and not browser" $(ARGS)
	DPCOURSE_REFERENCE=1 $(IN_ENV) -m pytest notebooks -n 2 --dist loadscope \
	  --nbval --nbval-current-env --nbval-cell-timeout=120

# Agents whose every process imports torch, slow links, dry runs of large models: minutes, so they stand apart.
test-long: env
	$(IN_ENV) -m pytest tests -n 2 --dist loadscope -m "long and not labs" $(ARGS)

# A check that lets a wrong answer or a mutant of a right one pass is broken: some 1,500 of them, each on ranks of
# its own, and every way out of a sandbox.
test-labs: env
	@$(IN_ENV) -m pip install --quiet --no-deps --disable-pip-version-check -r tests/cluster/requirements.lock
	$(IN_ENV) -m pytest tests -n 2 --dist loadscope -m labs $(ARGS)

# What drives the browser is no part of the environment: no learner needs its 45 MB.
browser-test: env
	@$(IN_ENV) -m pip install --quiet --no-deps --disable-pip-version-check -r tests/browser/requirements.lock
	@$(IN_ENV) -m tests.browser $(ARGS)

soak: env
	$(IN_ENV) -m tests.soak $(ARGS)

# In an environment of its own beside .venv. ARGS are pytest's, in place of the tests of `make test`.
versions:
	@case "$(TORCH)" in [0-9]*.[0-9]*.[0-9]*) ;; *) echo "TORCH=$(TORCH): name a version, as in make versions TORCH=2.11.0"; exit 2;; esac
	@$(MAKE) --no-print-directory env
	@TORCH="$(TORCH)" TORCH_INDEX="$(TORCH_INDEX)" $(IN_ENV) tools/on_torch.py $(ARGS)

bench: env
	@for script in tests/benchmarks/[a-z]*.py; do \
	  echo "== $$script"; $(IN_ENV) -m tests.benchmarks.$$(basename $$script .py) || exit 1; \
	done

# On a machine with GPUs, of which many have torch and no Jupyter: the environment is used where there is one.
gpu-check:
	@$(if $(wildcard $(IN_ENV)),$(IN_ENV),"$(PYTHON)") -m dpcourse.gpu_check $(ARGS)

lock: env
	@$(IN_ENV) -m pip install --quiet --upgrade --target build/uv uv
	@$(IN_ENV) tools/make_lock.py build/uv/bin/uv

wheelhouse: env
	@TORCH_INDEX="$(TORCH_INDEX)" $(IN_ENV) tools/make_wheelhouse.py $(ARGS)

clean:
	rm -rf .venv build
