# `make` alone lists the commands. Every path is relative: the folder's name may contain spaces.
.DEFAULT_GOAL := help
.PHONY: help lab install dev frameworks book-tools book test test-all test-mpi test-versions test-wheel build build-check bench release lint constraints clean

PY := .venv/bin/python
# Each file on one of two processes, which starts what the file needs only once. A lesson in a second
# language has code and outputs of the first, which a test compares.
PYTEST := $(PY) -m pytest -q -n 2 --dist loadfile --nbval --nbval-cell-timeout=120 --ignore=notebooks/de
export PYTHON PORT SEED
# Where it is set, each of some thousand processes would compile simlib anew.
unexport PYTHONDONTWRITEBYTECODE

help:            ## show this list
	@sed -n 's/^\([a-z-]*\):[a-z -]*## /  make \1|/p' Makefile | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'
	@echo
	@echo "  PYTHON=python3.12 chooses the Python, PORT=9000 the port of make lab,"
	@echo "  SEED=7 repeats the random numbers of an earlier make test,"
	@echo "  NAMES=\"02_send_and_recv\" chooses what make build builds."

lab: install     ## install what is missing and open the course in JupyterLab
	@$(PY) scripts/lab.py

install:         ## make .venv and install what learners need into it
	@sh scripts/install.sh

dev: install     ## install what tests and make lint need: 300 MB more
	@sh scripts/install.sh --dev

frameworks: install ## install Lightning and accelerate for lesson 15: 60 MB more
	@sh scripts/install.sh --frameworks

book-tools: install ## install what builds the book: 100 MB more
	@sh scripts/install.sh --book

book: book-tools ## build the book in build/book/html: all lessons, with runs that play
	@$(PY) authoring/build_book.py

test: dev frameworks book-tools ## run all tests that need no practice hosts: 25 to 40 minutes
	@.venv/bin/lint-imports
	@$(PY) -m mypy
	@$(PYTEST) -m "not slow and not hosts" tests notebooks solutions

test-all: dev frameworks book-tools ## run all tests, also on practice hosts and with every MPI: hours
	@.venv/bin/lint-imports
	@$(PY) -m mypy
	@TEST_ALL=1 $(PYTEST) tests notebooks solutions
	@$(PY) scripts/every_mpi.py
	@$(PY) authoring/build.py --check

test-mpi: dev ## test MPI with MPICH, Intel MPI and Open MPI: 300 MB more in .venv-mpi
	@$(PY) scripts/every_mpi.py $(NAMES)

test-versions: dev ## test every torch and Python, each in its own environment of 6 GB: hours
	@$(PY) scripts/every_torch.py $(NAMES)

test-wheel: dev  ## test the wheel on every Python in a new environment of 1 to 6 GB
	@$(PY) scripts/try_wheel.py $(NAMES)

build: install   ## build the notebooks from authoring/
	@$(PY) authoring/build.py $(NAMES)

build-check: install ## fail if a notebook differs from its source in authoring/
	@$(PY) authoring/build.py --check $(NAMES)

bench: dev       ## measure simlib on this machine
	@$(PY) -m benchmarks

release: dev frameworks book-tools ## build and check the wheel, the book and the handout in dist/
	@$(PY) scripts/release.py

lint: dev        ## run ruff and codespell; check plain words, import layers and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m codespell_lib
	@$(PY) scripts/plain_words.py
	@.venv/bin/lint-imports
	@$(PY) -m mypy

constraints:     ## find the newest versions and write them to constraints.txt
	@sh scripts/install.sh --write-constraints

clean:           ## remove .venv, JupyterLab's settings and caches; keep the notebooks
	@rm -rf .venv .venv-mpi .venv-torch .jupyter .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
