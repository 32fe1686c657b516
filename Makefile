# Every target does all its own set-up on a bare Debian 12 (as root or with sudo) and is quick the second time.
SHELL := /bin/bash
PY := .venv/bin/python
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := python3-pyverbs python3-venv python3-dev gcc g++ make cmake ninja-build pkg-config libibverbs-dev \
       librdmacm-dev ibverbs-providers ibverbs-utils perftest redis-server redis-tools iproute2 procps

.PHONY: install test lint
install: .venv/.installed

.venv/.apt: Makefile
	@missing=$$(for p in $(APT); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -q --no-install-recommends $$missing; fi
	@test -x .venv/bin/python || /usr/bin/python3 -m venv --system-site-packages .venv
	@touch $@

.venv/.deps: .venv/.apt requirements-dev.txt
	$(PY) -m pip install -q -r requirements-dev.txt
	@touch $@

# The compiled parts are rebuilt when one of their sources changed; Python files are used in place.
.venv/.installed: .venv/.deps pyproject.toml $(shell find aiordma -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' -o -name CMakeLists.txt -o -path '*/proto/*.py')
	$(PY) -m pip install -q --no-build-isolation -e .
	@touch $@

test: install
	$(PY) -m pytest -q
