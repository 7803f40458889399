# Three commands to remember: `make demo`, `make quick` and `make test`. They set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
GL_PACKAGES := libosmesa6 libegl1
# One pytest process more than there are cores, since many tests wait. Each imports torch and jax for
# itself, and tests start processes of their own, so that many cores would gain little.
PYTEST := $(BIN)/python -m pytest --numprocesses=$(shell expr $$(nproc) + 1) --maxprocesses=4 \
	--dist=worksteal
# Two runs in one clone take turns at what they both write.
IN_TURN := flock Makefile
# Tests start hundreds of interpreters, each of which would compile the package for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup venvs demo lint quick test test-all docs clean

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: ## Create .venv and install hocket with all that the demo and the tests need
	@$(IN_TURN) $(MAKE) --no-print-directory installed

.PHONY: installed
installed: $(STAMP)
	@:

# The stamp is written last: a set-up that was interrupted starts again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "The pinned set-up needs Python 3.11 or later: make setup PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "No venv could be made. On Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --prefer-binary -c constraints.txt \
		-e '.[metaworld,mjx,torch,train,dev]'
	@$(MAKE) --no-print-directory gl-libraries
	@touch $@

# Rendering without a screen needs two system libraries. Everything but cameras works without
# them, so that a machine where they cannot be had is told, not refused.
.PHONY: gl-libraries
gl-libraries:
	@if ldconfig -p 2>/dev/null | grep -q libOSMesa && ldconfig -p | grep -q 'libEGL\.so'; then \
		:; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get install -y -qq $(GL_PACKAGES) \
			|| { apt-get update -qq && apt-get install -y -qq $(GL_PACKAGES); }; } >/dev/null \
			|| echo "Cameras need GL libraries that apt-get could not install: $(GL_PACKAGES)"; \
	else \
		echo "Cameras need GL libraries. Run: sudo apt-get install -y $(GL_PACKAGES)"; \
	fi

venvs: setup ## Build the interpreters that LIBERO, LeRobot and gym envs need of their own, in venvs/
	$(IN_TURN) $(BIN)/hocket venv --all $(if $(SKIP),--skip $(SKIP))

demo: setup ## Evaluate the bundled policy on ten MetaWorld tasks
	$(BIN)/hocket eval --env metaworld:mt10 --policy reference --episodes 5 --seed 0

lint: setup ## Style, types, the direction of imports, and the limits of the house
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(IN_TURN) $(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python tools/lint_house.py

quick: setup ## Tests of core, system, engine, workers and results, within a minute; no simulator, torch or jax
	$(PYTEST) -m 'not slow and not heavy' tests/core tests/system tests/engine tests/workers tests/results

# Its own set-up, so that any Python may start it.
.PHONY: pythons
pythons: ## Those tests and a small evaluation on Python 3.10 to 3.13, with the newest dependencies
	$(IN_TURN) $(PYTHON) tools/pythons.py $(PYTHONS)

# Lint needs one core for some of the time only, and tests often wait: they run side by side.
test: setup ## What every change has to pass
	@$(MAKE) --no-print-directory -j2 lint not-slow

.PHONY: not-slow
not-slow: setup
	$(PYTEST) -m 'not slow'

# SKIP names simulators and peers whose tests may be skipped: make test-all SKIP='libero lerobot-0.4'
test-all: lint slow-extras venvs chromium elsewhere pythons docs ## The slow tests too, and more random examples
	HOCKET_TESTS_SKIP="$(SKIP)" $(PYTEST) --hypothesis-profile=thorough

.PHONY: slow-extras
slow-extras: setup
	$(IN_TURN) $(BIN)/python -m pip install --quiet --prefer-binary -c constraints.txt -e '.[slow]'

# Pages are tested in a real browser where there is one.
.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get install -y -qq chromium >/dev/null; } \
		|| echo "Tests of pages are skipped. Run: sudo apt-get install -y chromium"

# Workers in containers and over ssh, and completion, are tested with the real programs where they can
# be had.
ELSEWHERE := podman runc openssh-server zsh fish
.PHONY: elsewhere
elsewhere:
	@{ command -v podman && command -v fish && test -x /usr/sbin/sshd; } >/dev/null || { [ "$$(id -u)" = 0 ] \
		&& command -v apt-get >/dev/null \
		&& apt-get install -y -qq --no-install-recommends $(ELSEWHERE) >/dev/null; } \
		|| echo "Tests of containers, ssh and shells are skipped. Run: sudo apt-get install -y $(ELSEWHERE)"

docs: setup ## The documentation as a site in build/site, its links checked
	$(IN_TURN) $(BIN)/python -m pip install --quiet --prefer-binary -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove .venv and every cache; runs stay
	rm -rf $(VENV) .venv-3.* .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
