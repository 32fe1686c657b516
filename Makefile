# Every target does all its own set-up on a bare Debian 12 (as root or with sudo) and is quick the second time.
# `make help` lists the targets. Set-up leaves stamps in .venv; `make clean` forgets everything.
SHELL := /bin/bash
PY := .venv/bin/python
# Another Python for .venv: make install PYTHON=/usr/bin/python3.15. The system's is what the system's pyverbs is built for.
SYSTEM_PYTHON := /usr/bin/python3
PYTHON := $(SYSTEM_PYTHON)
# Exported so that no target trips over the settings of a surrounding virtual environment.
# And what is imported by hundreds of processes is compiled once, whatever they say of it.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX

# What was compiled once on this machine is not compiled again in another clone, where there is a ccache: it sees paths
# that are relative to the clone.
ifneq ($(shell command -v ccache),)
export CMAKE_C_COMPILER_LAUNCHER := ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
endif

APT_BUILD := python3-pyverbs python3-venv python3-dev gcc libc6-dev make cmake ninja-build libibverbs-dev \
             librdmacm-dev ibverbs-providers
APT_DEMO := redis-server redis-tools iproute2
APT := $(APT_DEMO) g++ pkg-config ibverbs-utils rdmacm-utils perftest procps tshark
APT_VM := qemu-system-x86 busybox-static cpio kmod xz-utils rdma-core iproute2
APT_SMC := gcc libc6-dev redis-server redis-tools nginx-light curl iperf3
APT_STACKS := dpkg-dev perftest qperf ucx-utils openmpi-bin libfabric-bin python3-mpi4py rdma-core fio
APT_APPS := linux-perf
APT_COUNT := valgrind strace
APT_CLIENTS := nginx-light postgresql redis-server redis-tools curl
APT_LINT := clang-format clang-tidy
APT_FUZZ := clang libclang-rt-14-dev
APT_ROOTS := mmdebstrap arch-test iproute2
APT_AARCH64 := qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
APT_PYTHONS := dpkg-dev libssl-dev zlib1g-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev xz-utils

# What the compiled parts are made of. Other Python files are used in place and need no rebuild.
COMPILED := $(shell find aiordma rocefabric softdev/CMakeLists.txt softdev/include softdev/src softdev/personalities -name '*.pyx' \
              -o -name '*.pxd' -o -name '*.c' -o -name '*.h' \
              -o -name CMakeLists.txt -o -name '*.toml' -o -name '*.cmake')
COMPILED += $(wildcard $(patsubst %.pxd,%.py,$(filter %.pxd,$(COMPILED))))
C_FILES := $(shell find aiordma softdev/include softdev/src softdev/present softdev/trace softdev/tests tests -name '*.c' -o -name '*.h')
# Its tests are checked by running them, under the sanitizers too.
TIDY_FILES := $(wildcard softdev/src/*/*.c softdev/present/*.c softdev/tool/*.c softdev/trace/*/*.c)
STUBBED := $(subst /,.,$(basename $(shell find aiordma rocefabric -name '*.pyi')))

# `make help` shows the headings that begin with "# ----", and the targets with a "##".
.DEFAULT_GOAL := help
.PHONY: help install ready test softdev-test fuzz lint lint-python lint-types lint-stubs lint-c lint-deep format docs bench demo clean \
        test-python test-quick test-loops test-upgrade test-late test-personalities test-orders test-shadow test-vm test-rxe test-rxe-long test-wire-rxe test-wire-rxe-long test-card test-smc test-smc-core test-siw test-stacks \
        test-programs test-valkey test-kills \
        bench-apps bench-hosts bench-crowd demo-valkey count-apps count-trips bench-many bench-smc bench-kernels bench-recorder soak fabric-suite fabric-truth test-dask test-dask-rxe bench-dask wheels \
        test-install test-wheels dashboard-picture top-pictures screens pythons test-distros test-arm
# A recipe that fails half-way must not leave its stamp behind.
.DELETE_ON_ERROR:

help: ## this list
	@echo "Targets (each sets itself up; only make itself must be there):"
	@awk -F ':.*## ' '/^# ---- / { gsub(/^# -+ | -+$$/, ""); group = $$0 } \
	  /^[a-z-]+:.*## / { if (group) print "\n" group; group = ""; printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up ------------------------------------------------------------------------------------------------

install: .venv/.installed .venv/.dask ## a ready .venv: pyverbs, the built package (editable), what tests need
	@echo "Ready: .venv/bin/python -c 'import aiordma'"

# The distribution's packages (pyverbs) by their path: --system-site-packages would also run, at the start of each of some
# thousand programs of the tests, what other packages of the system have in their .pth files.
.venv/.base: Makefile .ci/apt
	@.ci/apt $(APT_BUILD)
	@if ! .venv/bin/python -c '' 2>/dev/null; then \
	  rm -rf .venv && echo "== venv of $(PYTHON)" && $(PYTHON) -m venv .venv; fi
	@sed -i 's/^\(include-system-site-packages = \)true/\1false/' .venv/pyvenv.cfg
	@$(if $(filter $(SYSTEM_PYTHON),$(PYTHON)),for packages in .venv/lib/python3*/site-packages; do \
	  echo /usr/lib/python3/dist-packages >$$packages/distribution.pth; done)
	@touch $@

.venv/.apt: .venv/.base
	@.ci/apt $(APT)
	@touch $@

.venv/.apt-lint: .venv/.apt
	@.ci/apt $(APT_LINT)
	@touch $@

.venv/.apt-cache: .venv/.apt
	@.ci/apt ccache
	@touch $@

.venv/.apt-fuzz: .venv/.apt
	@.ci/apt $(APT_FUZZ)
	@touch $@

.venv/.deps: .venv/.apt requirements-dev.txt
	@echo "== Python packages for development (requirements-dev.txt)"
	@$(PY) -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@

.venv/.deps-docs: .venv/.deps docs/requirements.txt
	@echo "== Python packages for the documentation (docs/requirements.txt)"
	@$(PY) -m pip install -q --disable-pip-version-check --no-compile -r docs/requirements.txt
	@touch $@

.venv/.deps-build: .venv/.base requirements-build.txt
	@echo "== Python packages for the build, and what aiordma needs (requirements-build.txt)"
	@$(PY) -m pip install -q --disable-pip-version-check -r requirements-build.txt
	@touch $@

.venv/.built: .venv/.deps-build pyproject.toml $(COMPILED)
	@echo "== building the compiled parts (editable install)"
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . || \
	  { echo "The build failed; the reason is above. A stale build directory is cured by 'make clean'." >&2; exit 1; }
	@touch $@

.venv/.installed: .venv/.built .venv/.deps
	@touch $@

# The entry points of its addresses are found by its metadata, so it is installed, too (in place).
.venv/.dask: .venv/.installed distributed-aiordma/pyproject.toml
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e distributed-aiordma
	@touch $@

# Packages of the system one after another, since apt has one lock; then downloads, which wait, beside the compiler.
ready: ## what all parts of .ci/run need
	@$(MAKE) --no-print-directory .venv/.apt .venv/.apt-lint .venv/.apt-vm .venv/.apt-cache .venv/.deps-build
	@$(MAKE) --no-print-directory -j 2 -Otarget install .venv/.examples .venv/.deps-docs build/wheels/.tools

# The example proxy runs as plain Python, too; its scanner is several times faster when compiled.
.venv/.examples: .venv/.built examples/proxy/scan.py examples/proxy/scan.pxd
	@cd examples && "$(CURDIR)/$(PY)" -m Cython.Build.Cythonize -i -q proxy/scan.py
	@touch $@

# ---- checks ------------------------------------------------------------------------------------------------

WORKERS := -n $(shell nproc) --dist loadgroup
LOOPS := --one-loop -m "not long"
C_TESTS := softdev-test
test: $(C_TESTS) test-python ## all tests but the longest, each on one of its event loops in turns (ARGS="tests/wake -k close -x" goes to pytest instead)

# What fails is run once more, alone: see tests/retry. With ARGS, it is not.
test-python: install .venv/.examples ## the same without the C tests
	$(PY) -m $(if $(ARGS),pytest,tests.retry) -q $(or $(ARGS),$(WORKERS) $(LOOPS))

test-loops: LOOPS :=
test-loops: test ## all tests, each on all its event loops

# Two tests at a time on each CPU: the tests wait for timers as long as they compute.
test-quick: WORKERS := -n $(shell expr 2 \* $$(nproc)) --dist loadgroup
test-quick: install .venv/.examples ## most tests, on one event loop each, in three minutes; no C tests, no slow ones
	$(PY) -m pytest -q $(WORKERS) --one-loop -m "not slow and not long" $(ARGS)

# rdma-core's own tests are in its source only. Without it the table says so; RDMA_CORE=DIRECTORY names another copy.
.venv/.stacks: .venv/.apt tests/system/stacks/source
	@.ci/apt $(APT_STACKS)
	@tests/system/stacks/source build/stacks || echo "rdma-core's source could not be had: its own tests are left out"
	@touch $@

# The tests are in ibverbs' source only. Cython, which pip asks for before it gives that, is the build's own.
build/stacks/ibverbs: build/blocks/ibverbs
	@rm -rf $@ && mkdir -p $@
	@$(PY) -m pip download -q --disable-pip-version-check --no-deps --no-build-isolation --no-binary ibverbs -d $@ \
	  "ibverbs==$$($</bin/python -c 'from importlib.metadata import version; print(version("ibverbs"))')" && \
	  tar -xzf $@/ibverbs-*.tar.gz -C $@ || echo "ibverbs' source could not be had: its own tests are left out"

STACKS := .venv/.stacks build/blocks/nixl build/blocks/mooncake build/blocks/softdev build/stacks/ibverbs
test-stacks: install $(STACKS) ## rdma-core's tests, perftest, qperf, fio, UCX, libfabric, MPI, ibverbs, NIXL, Mooncake (ARGS: words)
	$(PY) -m tests.system.stacks $(ARGS)

# An unmodified valkey-server with RDMA, compiled from Debian's source: two minutes of CPU time, the first time.
.venv/.valkey: .venv/.base tests/system/valkey/build
	@tests/system/valkey/build build/valkey
	@touch $@

test-valkey: install .venv/.valkey ## streams, redis-py and valkey-py by RDMA to a real valkey-server (1 to 3 minutes; ARGS)
	AIORDMA_VALKEY_SERVER=$(CURDIR)/build/valkey/valkey-server $(PY) -m pytest -q tests/system/valkey $(or $(ARGS),$(WORKERS))

# distributed's own tests of comms, fetched from Debian's package of it, and clusters of several processes.
.venv/.dask-tests: .venv/.dask distributed-aiordma/suite/fetch
	@echo "== distributed's tests, and what those of clusters need"
	@$(PY) -m pip install -q --disable-pip-version-check -r distributed-aiordma/clusters/requirements.txt
	@distributed-aiordma/suite/fetch build/dask
	@touch $@

test-dask: install .venv/.dask-tests ## Dask over rdma://: distributed's own tests of comms, and clusters (3 to 6 minutes; ARGS)
	$(PY) distributed-aiordma/suite/run.py build/dask $(ARGS)
	$(PY) -m pytest -q distributed-aiordma/distributed_aiordma/tests $(ARGS)
	$(PY) -m pytest -c distributed-aiordma/clusters/pytest.ini distributed-aiordma/clusters $(ARGS)

test-dask-rxe: install .venv/.dask-tests .venv/.apt-vm ## a cluster of Dask on the kernel's rxe, in QEMU (ARGS; RXE_LIMIT: seconds)
	@$(PY) -m compileall -q aiordma distributed-aiordma
	tests/vm/run --v2 --timeout $(RXE_LIMIT) --env AIORDMA_DEVICE=rxe0 -- $(PY) -m pytest -v -p no:cacheprovider \
	  -c distributed-aiordma/clusters/pytest.ini --timeout 900 distributed-aiordma/clusters/kernel $(ARGS)

# What PyPI and Debian have of it lies in build/programs, with an environment for each suite. CPython's own tests are
# those of an interpreter: ARGS="cpython --python build/pythons/3.14/bin/python3", after `make pythons`, or one of Debian's
# or of pyenv's.
test-programs: install ## other projects' own tests under `aiordma run`, against themselves without (ARGS: suites)
	$(PY) -m tests.programs $(ARGS)

.venv/.clients: .venv/.deps tests/programs/clients/requirements.txt
	@.ci/apt $(APT_CLIENTS)
	@$(PY) -m pip install -q --disable-pip-version-check -r tests/programs/clients/requirements.txt
	@touch $@

test-clients: install .venv/.clients ## curl, nginx, PostgreSQL, redis-cli, SMTP ... against programs under `aiordma run` (1 to 2 minutes)
	$(PY) -m pytest -q --timeout 120 tests/programs/clients $(ARGS)

# The last release, as soon as there is a tag; until then, the first build with the layout of shared memory of today.
OLD ?= d75620df
test-upgrade: install ## an older aiordma at the other end, in both roles, on every surface (4 minutes; OLD: commit or tag; ARGS)
	AIORDMA_TEST_OLDER="$$(tests/system/upgrade/build $(OLD))" $(PY) -m pytest -q $(or $(ARGS),$(WORKERS) tests/system/upgrade)

# ---- checks on other devices, and with delays ------------------------------------------------------------------

# The tests of faults want no rules but their own. What is held back when trio's loop ends has no timer any more.
SEED := 1
test-late: install .venv/.examples ## the tests of test-rxe on the software device, with requests held back at random (SEED)
	AIORDMA_FILTER="seed=$(SEED); delay p=0.3 ms=3" $(PY) -m pytest -q --deselect tests/faults/test_streams.py \
	  --deselect tests/links/pregranted/test_leaving.py $(or $(ARGS),@tests/vm/suite.txt)

# softdev/personalities/README.md has the names. "@tests/vm/suite.txt" is what holds on devices of other kinds, too. Less of it
# holds where rdma_cm alone connects queue pairs or there are no datagrams, and nothing where there is no RC.
PERSONALITIES := mlx5 irdma qedr bnxt_re rxe unordered iwarp siw erdma efa
test-personalities: install .venv/.examples ## the tests of test-rxe on a software device that is like a card (PERSONALITIES="mlx5 irdma")
	@for name in $(PERSONALITIES); do echo "== SOFTDEV_PERSONALITY=$$name"; \
	  case $$name in \
	    iwarp|siw|erdma) tests="@tests/vm/siw.txt tests/system/integration/test_iwarp.py";; \
	    efa) tests=tests/system/integration/test_without_connections.py;; \
	    *) tests=@tests/vm/suite.txt;; esac; \
	  SOFTDEV_PERSONALITY=$$name $(PY) -m pytest -q $(WORKERS) --one-loop $(or $(ARGS),$$tests) || exit 1; done

# A seed draws the same again: `make test-orders SEED=7 SEEDS=1 ARGS="tests/links -k resize -x"`.
SEEDS := 10
ORDERS := 1000
test-orders: install ## orders of events: ORDERS of each scenario, then whole folders from SEED on, SEEDS times (ARGS)
	@[ -n "$(ARGS)" ] || { echo "== $(ORDERS) orders of each scenario"; \
	  AIORDMA_TEST_SEEDS=$(ORDERS) $(PY) -m pytest -q $(WORKERS) --timeout 0 tests/testing/test_orders.py -k same_time; }
	@for seed in $$(seq $(SEED) $$(($(SEED) + $(SEEDS) - 1))); do echo "== orders drawn from seed $$seed"; \
	  $(PY) -m pytest -q $(WORKERS) --orders $$seed $(or $(ARGS),tests/pipes tests/links tests/rpc tests/streams) || \
	  { echo "The same orders again: make test-orders SEED=$$seed SEEDS=1 ARGS='$(ARGS)'"; exit 1; }; done

test-shadow: install ## tests of failover and of pipes, with the machine of a stream's life beside each stream
	$(PY) -m pytest -q -p tests.shadow.fixture tests/links/failover tests/pipes $(ARGS)

# In a virtual machine with a device of the kernel (tests/vm/run), which needs neither KVM nor a module of this machine's.
.venv/.apt-vm: .venv/.apt
	@.ci/apt $(APT_VM)
	@touch $@

# Compiling and collecting the tests here first leaves the compiled files behind, of pytest's own kind, too: the
# emulated processor would need minutes for what takes this one seconds, and again in each process that a test starts.
collected = @echo "== compiling and collecting"; mkdir -p build; \
  $(PY) -m compileall -q aiordma tests examples && \
  AIORDMA_VM=$(2) $(PY) -m pytest -q --collect-only $(1) >build/vm-collected || { cat build/vm-collected; exit 1; }
RXE_LIMIT := 1500
# What takes long, one test a line, is left to targets of its own; the targets of other devices run it.
RXE_TESTS = $(or $(ARGS),@tests/vm/suite.txt --without tests/vm/rxe-long.txt)
WIRE_TESTS = $(or $(ARGS),tests/vm/wire --without tests/vm/wire-long.txt)

# What each of the parts of .ci/run is for tests/vm/run, with a time limit in seconds.
RETRIED = $(PY) -m $(if $(ARGS),pytest,tests.retry) -p no:cacheprovider
rxe = --name test-rxe --timeout $(1) --env AIORDMA_VERBS --env AIORDMA_TEST_DEVICE=rxe0 --env AIORDMA_TEST_SLOWER=10 -- \
  $(RETRIED) --durations 10 $(RXE_TESTS)
# No test of these two is hypothesis', whose import takes the emulated processor seconds (suite.txt says it for rxe).
NO_HYPOTHESIS := -p no:hypothesispytest
wire = --name test-wire-rxe --net none --env AIORDMA_VM=wire --timeout $(1) -- \
  $(RETRIED) -q --timeout 300 $(NO_HYPOTHESIS) $(WIRE_TESTS)
# What a change most likely breaks: both roles, the option, and a loop that is blocked; on rxe alone.
SMC_CORE := share_a_link or clients_of_a_listener or asyncio_streams or blocked or plain_server
smc_core = --name test-smc-core $(call smc,$(1)) $(SMC_RXE) $(RETRIED) -q --timeout 200 $(NO_HYPOTHESIS) -k "$(SMC_CORE)" \
  tests/vm/smc/test_streams.py

# A kernel that hangs or dies in one of them is started again for the others.
test-vm: install .venv/.apt-vm .venv/.examples ## test-rxe, test-wire-rxe and test-smc-core one after another in one virtual machine
	$(call collected,$(RXE_TESTS))
	$(call collected,$(WIRE_TESTS),wire)
	$(call collected,tests/vm/smc/test_streams.py,smc)
	tests/vm/run --smp 1 $(call rxe,1500) --then $(call wire,900) --then $(call smc_core,600)

test-rxe: install .venv/.apt-vm .venv/.examples ## part of the tests on the kernel's rxe, in QEMU (ARGS: other tests, RXE_LIMIT: seconds, AIORDMA_VERBS: binding)
	$(call collected,$(RXE_TESTS))
	tests/vm/run $(call rxe,$(RXE_LIMIT))

test-rxe-long: ## the tests for rxe that take longest there, and are not a part of .ci/run
	@$(MAKE) --no-print-directory test-rxe ARGS="@tests/vm/long.txt @tests/vm/rxe-long.txt"

# A fifth of that is usual; what hangs must not cost the whole check its time.
test-wire-rxe: RXE_LIMIT := 900
test-wire-rxe: install .venv/.apt-vm ## the software device against the kernel's rxe over a cable, in QEMU (ARGS, RXE_LIMIT)
	$(call collected,$(WIRE_TESTS),wire)
	tests/vm/run $(call wire,$(RXE_LIMIT))

test-wire-rxe-long: ## of these tests the ones that repeat a proof with another address, or take longest
	@$(MAKE) --no-print-directory test-wire-rxe ARGS=@tests/vm/wire-long.txt

# With ARGS, pytest gets these instead of the folder. What the programs' tests run is made here, where a compiler is quick.
SMC_SETTINGS := AIORDMA_VM_SMC_BYTES AIORDMA_VM_SMC_CONNECTIONS AIORDMA_VM_SMC_KILLS
SMC_TESTS = $(PY) -m pytest -q -p no:cacheprovider --timeout 400 --durations 10
smc = --env AIORDMA_VM=smc --env AIORDMA_TEST_SLOWER=10 --timeout $(1) \
  $(foreach name,$(SMC_SETTINGS),--env $(name))
SMC_RXE = --net wire --env AIORDMA_DEVICE=rxe0 --
SMC_SOFT = --net wire+netns --env AIORDMA_DEVICE=soft --env AIORDMA_VM_SMC_ENDS="10.99.1.2 10.99.1.1 veth1" \
  --env AIORDMA_VM_SMC_THERE="nsenter -t 1 -n" -- ip netns exec b

.venv/.apt-smc: .venv/.apt-vm
	@.ci/apt $(APT_SMC)
	@touch $@

# Once with rxe at both ends, once from the software device, in a network namespace without RDMA.
test-smc: RXE_LIMIT := 2400
test-smc: install .venv/.apt-smc ## streams with the sockets of the kernel's own SMC-R, in QEMU (ARGS, RXE_LIMIT)
	tests/vm/smc/programs/build build/vm-smc
	$(call collected,$(or $(ARGS),tests/vm/smc),smc)
	tests/vm/run $(call smc,$(RXE_LIMIT)) $(SMC_RXE) $(SMC_TESTS) $(or $(ARGS),tests/vm/smc)
	tests/vm/run $(call smc,$(RXE_LIMIT)) $(SMC_SOFT) $(SMC_TESTS) $(or $(ARGS),tests/vm/smc)

test-smc-core: RXE_LIMIT := 600
test-smc-core: install .venv/.apt-vm ## of these tests the five that a change most likely breaks, on rxe (RXE_LIMIT)
	$(call collected,tests/vm/smc/test_streams.py,smc)
	tests/vm/run $(call smc_core,$(RXE_LIMIT))

# Debian's kernel has no siw: it is built from the source of the very same version.
VM_KERNEL = $(or $(AIORDMA_VM_KERNEL),build/vm/kernel)
test-card: install .venv/.examples .venv/.deps-bench ## on a machine with an RDMA card: tests and benchmarks on DEVICE, in one file to send
	@[ -n "$(DEVICE)" ] || { echo "say which: make test-card DEVICE=mlx5_0 (ls /sys/class/infiniband)"; exit 2; }
	$(PY) -m tests.card $(DEVICE) $(ARGS)

.PHONY: siw
siw: .venv/.apt-vm
	@mkdir -p $(VM_KERNEL); exec 8>$(VM_KERNEL)/lock; flock 8; \
	  tests/vm/kernel $(VM_KERNEL) >/dev/null && tests/vm/siw build $(VM_KERNEL)

test-siw: install siw ## tests on the kernel's software iWARP, siw, in a virtual machine
	$(call collected,$(or $(ARGS),@tests/vm/siw.txt))
	tests/vm/run --net none --timeout $(RXE_LIMIT) --env AIORDMA_VERBS --env AIORDMA_TEST_DEVICE=siw0 \
	  --env AIORDMA_TEST_SLOWER=6 -- \
	  tests/vm/siw run $(VM_KERNEL) $(PY) -m pytest -p no:cacheprovider --durations 5 $(or $(ARGS),@tests/vm/siw.txt)

# ---- checks that take as long as you like ----------------------------------------------------------------------

KILLS ?= 500
test-kills: install ## kill -9 of a server, and of a client, KILLS=500 times each, while data flows; 8 to 15 minutes
	AIORDMA_TEST_ROUNDS=$$(($(KILLS) / 4)) $(PY) -m pytest -q --timeout 0 --one-loop \
	  tests/system/adversity/test_killed.py -k "test_server or test_client" $(ARGS)

FABRIC_NETWORK ?= examples/fabric/clos64.toml
fabric-suite: install ## all traffic models on a simulated network: build/fabric.html (FABRIC_NETWORK, ARGS)
	@mkdir -p build
	$(PY) -m aiordma fabric simulate $(FABRIC_NETWORK) --results build/fabric.sqlite --html build/fabric.html $(ARGS)

# The guest's clock counts instructions, so that a busy machine does not change what is measured.
fabric-truth: install .venv/.apt-vm ## the simulated network against the software device over a marking queue, in QEMU; 5 minutes
	@$(PY) -m compileall -q aiordma rocefabric pytest_softdev benchmarks tests
	tests/vm/run --net none --smp 1 --icount 0 --timeout 900 --rw benchmarks/results -- $(PY) -m benchmarks.truth record
	$(PY) -m benchmarks.truth compare

MINUTES ?= 60
soak: install ## everything at once, with processes that are killed: what grows, hangs, is wrong (MINUTES=60)
	$(PY) -m tests.soak --minutes $(MINUTES) $(ARGS)

# ---- checks of the software device, and of the sources --------------------------------------------------------

# The C device's own tests: as they are, with ASan and UBSan, with TSan; each build in a directory of its own.
PERCENT := 25
softdev-test: .venv/.apt ## the software device's C tests, plain and with the sanitizers (PERCENT=100: whole repetitions)
	@set -e; for kind in plain address,undefined thread; do \
	  dir=build/softdev-$${kind%%,*}; echo "== software device: $$kind"; \
	  cmake -S softdev -B $$dir -G Ninja --log-level=WARNING -DSOFTDEV_SANITIZE=$${kind#plain} \
	    -DSOFTDEV_WHOLE=OFF -DSOFTDEV_TEST_PERCENT=$(PERCENT) >/dev/null; \
	  cmake --build $$dir -- --quiet; \
	  ctest --test-dir $$dir --output-on-failure --no-tests=error -j 2; done

# From the committed corpus, which `make softdev-test` replays, too. What is found lies in build/fuzz.
FUZZ_SECONDS ?= 30
fuzz: .venv/.apt-fuzz ## fuzz the wire and shared memory: FUZZ_SECONDS=30 for each fuzzer
	@cmake -S softdev -B build/fuzz -G Ninja --log-level=WARNING -DCMAKE_C_COMPILER=clang \
	  -DSOFTDEV_FUZZ=ON -DSOFTDEV_SANITIZE=address,undefined >/dev/null
	@cmake --build build/fuzz --target fuzzers -- --quiet
	@set -e; cd build/fuzz; for one in core/faults roce/packet roce/receiver shm/peer trace/recording; do what=$${one#*/}; \
	  echo "== fuzz_$$what: $(FUZZ_SECONDS) s"; mkdir -p corpus/$$what; \
	  tests/fuzz_$$what -max_total_time=$(FUZZ_SECONDS) -max_len=5000 -timeout=200 -print_final_stats=1 -verbosity=0 \
	    corpus/$$what ../../softdev/tests/$${one%/*}/corpus/$$what; done

# Everything is installed before, so that two at a time only check.
lint: install .venv/.apt-lint ## ruff, mypy strict, stubtest, clang-format, clang-tidy
	@$(MAKE) --no-print-directory -j 2 -Otarget lint-python lint-types lint-stubs lint-c
	@echo "lint: clean"

lint-python: .venv/.deps ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

lint-types: install ## mypy, strict
	$(PY) -m mypy

# The .pyi of a compiled module is all a user's type checker sees: it must agree with the built module.
lint-stubs: install ## the .pyi of compiled modules against the modules
	@if [ -n "$(STUBBED)" ]; then set -x; $(PY) -m mypy.stubtest --concise \
	  --allowlist tests/project/stubtest-allow.txt --ignore-unused-allowlist $(STUBBED); \
	else echo "stubtest: no compiled module has a .pyi yet"; fi

# One file for each clang-tidy: with several, version 14 takes functions of one for va_start() of another. All but
# a fiftieth of its time is the analyzer, and most of that goes into the last paths of the longest functions: NODES is how
# many states of a function it looks at.
NODES := 12000
lint-c: .venv/.apt-lint ## clang-format and clang-tidy (NODES: states that the analyzer looks at in a function)
	@if [ -n "$(C_FILES)" ]; then set -x; clang-format --dry-run -Werror $(C_FILES); fi
	@if [ -n "$(TIDY_FILES)" ]; then echo "clang-tidy: softdev"; \
	  cmake -DOUTPUT=$(CURDIR)/build/tidy/core/personalities.inc -P softdev/personalities/read.cmake && \
	  printf '%s\n' $(TIDY_FILES) | xargs -P $$(nproc) -n 1 sh -c 'clang-tidy --quiet "$$@" -- \
	    -std=c11 -D_GNU_SOURCE -Wall -Wextra -Isoftdev -Isoftdev/src -Isoftdev/include -Ibuild/tidy \
	    -Xclang -analyzer-config -Xclang max-nodes=$(NODES)' clang-tidy; fi

lint-deep: NODES := 225000
lint-deep: lint-c ## lint-c with as many states of a function as clang-tidy looks at by itself (three minutes of processor time)

format: .venv/.deps .venv/.apt-lint ## rewrite the sources as lint wants them
	$(PY) -m ruff check --fix-only -q .
	$(PY) -m ruff format -q .
	@if [ -n "$(C_FILES)" ]; then clang-format -i $(C_FILES); fi

docs: install .venv/.deps-docs ## docs/_build/html; a warning is an error
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# The panels' queries on what a program exports meanwhile: Grafana itself is in no registry that this needs.
dashboard-picture: install ## docs/howto/dashboard.svg, from a run of a minute
	cd examples/grafana && "$(CURDIR)/$(PY)" picture.py ../../docs/howto/dashboard.svg 60

# What commands show, on a terminal; and the bars of the README, from committed results. On a quiet machine.
screens: install ## docs/screens/*.svg, docs/first-look.svg: what the README shows (half a minute)
	$(PY) docs/screens.py
	$(PY) -m benchmarks.picture

top-pictures: install ## docs/howto/top*.png, from a round with five faults and a browser
	$(PY) -m tests.system.operator docs/howto

# ---- wheels ------------------------------------------------------------------------------------------------

# In an environment of their own, since auditwheel and twine bring many packages.
build/wheels/.tools: tests/wheels/requirements.txt .venv/.apt
	@echo "== what builds and checks wheels (tests/wheels/requirements.txt)"
	@mkdir -p build/wheels && /usr/bin/python3 -m venv build/wheels/tools
	@build/wheels/tools/bin/python -m pip install -q --disable-pip-version-check --no-compile -r tests/wheels/requirements.txt
	@touch $@

# PYTHONS="python3.13 /opt/python3.14/bin/python3": these instead of the system's; PYTHONS=all: each that is at hand.
wheels: build/wheels/.tools ## dist/: a wheel for this system's Python, and the sdist (two minutes; PYTHONS: others, or all)
	build/wheels/tools/bin/python -m tests.wheels.build $(PYTHONS)

pythons: .venv/.apt ## build/pythons: CPython from Debian's source, for wheels (PYTHONS="3.14 3.14t"; minutes)
	@.ci/apt $(APT_PYTHONS)
	tests/roots/python $(or $(PYTHONS),3.14 3.14t)

test-wheels: build/wheels/.tools ## a wheel in an empty environment: the README's program and tests by RDMA (PYTHONS)
	build/wheels/tools/bin/python -m tests.wheels.check $(ARGS) $(PYTHONS)

# What the README says to do, up to a round trip by RDMA: a part of .ci/run. Most of the time of a build is the optimization
# of what Cython makes, so it is left out.
test-install: build/wheels/.tools ## build a wheel, quickly, install it into an empty environment, run the README's program there
	build/wheels/tools/bin/python -m tests.wheels.build --unoptimized $(PYTHONS)
	build/wheels/tools/bin/python -m tests.wheels.check --unoptimized --no-tests $(PYTHONS)

# ---- other systems -----------------------------------------------------------------------------------------

# In roots below build/roots, which are kept. They need root, and from 170 MB to 2 GB each.
.venv/.apt-roots: .venv/.apt
	@.ci/apt $(APT_ROOTS)
	@touch $@

.venv/.apt-aarch64: .venv/.apt-roots
	@.ci/apt $(APT_AARCH64)
	@touch $@

test-distros: .venv/.apt-roots ## install and tests by RDMA on Debian 12, 13 and the next one (ARGS="trixie": only that)
	$(PY) -m tests.roots.distros $(ARGS)

test-arm: .venv/.apt-aarch64 build/wheels/.tools ## C tests and a wheel on aarch64, emulated (ARGS="--rounds 1")
	$(PY) -m tests.roots.aarch64 $(ARGS)

# ---- to look at --------------------------------------------------------------------------------------------

# A peer is compared when it can be had; without it the report says that it was not measured, and why.
.venv/.deps-bench: .venv/.deps benchmarks/requirements.txt
	@echo "== peers of the benchmarks (ucxx: some 350 MB)"
	@grep -v '^#' benchmarks/requirements.txt | while read -r package; do \
	  $(PY) -m pip install -q --disable-pip-version-check "$$package" || \
	  echo "$$package could not be installed (pip's reason is above): it will be missing from the comparison"; \
	done
	@touch $@

bench: install .venv/.deps-bench ## compare with TCP, Unix sockets ... and rewrite docs/benchmarks-results.md (QUICK=1: under a minute)
	$(PY) -m benchmarks $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.venv/.apt-apps: .venv/.apt
	@.ci/apt $(APT_APPS)
	@touch $@

.venv/.deps-apps: .venv/.deps benchmarks/apps/requirements.txt
	@echo "== programs that the benchmarks run (benchmarks/apps/requirements.txt)"
	@$(PY) -m pip install -q --disable-pip-version-check -r benchmarks/apps/requirements.txt
	@touch $@

# The modules are compiled as an installer compiles those of others; else each process would do it again.
bench-apps: install .venv/.examples .venv/.deps-apps .venv/.clients .venv/.valkey ## Redis proxy, aiohttp, uvicorn ...: on RDMA and on TCP (10 to 15 minutes; ARGS)
	@$(PY) -m compileall -q aiordma
	$(PY) -m benchmarks.apps $(ARGS)

count-apps: install .venv/.examples .venv/.deps-apps .venv/.apt-apps ## what a request costs the Redis proxy, uvicorn ... on RDMA and on TCP, counted (root; ARGS)
	$(PY) -m benchmarks.apps.counts $(ARGS)
	$(if $(ARGS),,$(PY) -m benchmarks.apps.counts_programs)

.venv/.apt-count: .venv/.apt
	@.ci/apt $(APT_COUNT)
	@touch $@

count-trips: install .venv/.deps-bench .venv/.apt-count ## instructions and system calls of a round trip and a call, counted, and their floor (4 minutes; ARGS)
	$(PY) -m benchmarks.counted $(ARGS)
	$(if $(ARGS),,$(PY) -m benchmarks.floor)

bench-hosts: install .venv/.deps-bench ## between hosts without a card: the RoCEv2 wire beside TCP, two namespaces (root; ARGS="--mtu 4500")
	$(PY) -m benchmarks.hosts $(ARGS)

# NIXL, Mooncake and ibverbs, each in an environment of its own: their packages want versions that others do not.
build/blocks/nixl: BLOCKS := nixl-cu12 numpy
build/blocks/mooncake: BLOCKS := mooncake-transfer-engine-non-cuda numpy
build/blocks/ibverbs: BLOCKS := ibverbs pytest numpy
build/blocks/nixl build/blocks/mooncake build/blocks/ibverbs: .venv/.deps
	@echo "== $(@F), from PyPI"
	@$(PY) -m venv $@ && ($@/bin/python -m pip install -q --disable-pip-version-check $(BLOCKS) || \
	  echo "it could not be installed (pip's reason is above): its rows will be missing")

# Mooncake looks for its device in /sys and /dev, which the installed software device shows it.
build/blocks/softdev: .venv/.base
	@$(MAKE) --no-print-directory -C softdev install BUILD=$(CURDIR)/build/blocks/device PREFIX=$(CURDIR)/$@ >/dev/null

bench-blocks: install build/blocks/nixl build/blocks/mooncake build/blocks/softdev ## 64 blocks in one call, beside NIXL and Mooncake, with their transports named (ARGS)
	$(PY) -m benchmarks.blocks --nixl build/blocks/nixl/bin/python --mooncake build/blocks/mooncake/bin/python \
	  --softdev build/blocks/softdev/bin/softdev $(ARGS)

bench-many: install ## what ten thousand streams, slow readers and 100,000 connects cost (5 to 10 minutes; ARGS)
	$(PY) -m benchmarks.many $(ARGS)

.venv/.dask-bench: .venv/.deps-bench .venv/.dask distributed-aiordma/bench/requirements.txt
	@echo "== Dask's other transports, for the benchmark"
	@$(PY) -m pip install -q --disable-pip-version-check --no-deps -r distributed-aiordma/bench/requirements.txt || \
	  echo "it could not be installed (pip's reason is above): it will be missing from the comparison"
	@touch $@

bench-crowd: install ## what a thousand peers cost a server, and when all reconnect at once (2 minutes; ARGS)
	$(PY) -m benchmarks.crowd $(ARGS)

# The guest's clock counts instructions, so that a busy machine does not change what is measured.
bench-smc: RXE_LIMIT := 1200
bench-smc: install .venv/.apt-vm ## clients of a kernel's SMC-R server: aiordma, the kernel's own, and TCP; in QEMU (ARGS="--rounds 3")
	@$(PY) -m compileall -q aiordma benchmarks
	tests/vm/run --net wire --icount 0 --timeout $(RXE_LIMIT) -- $(PY) -m benchmarks.kernel_smc $(ARGS)

bench-kernels: RXE_LIMIT := 2400
bench-kernels: install .venv/.apt-vm ## the software device beside the kernel's rxe and siw: perftest, and rdma-core's tests; in QEMU (quiet machine; ARGS)
	@$(MAKE) --no-print-directory siw
	@.ci/apt $(APT_STACKS)
	@tests/system/stacks/source build/stacks
	@$(PY) -m compileall -q aiordma benchmarks tests
	tests/vm/run --net none --timeout $(RXE_LIMIT) -- \
	  tests/vm/siw run $(VM_KERNEL) $(PY) -m benchmarks.kernels $(ARGS)

bench-recorder: install .venv/.apt ## what `softdev trace` costs in perftest's ib_write_lat (quiet machine; 6 minutes; ARGS="--pairs 20")
	@$(MAKE) --no-print-directory -C softdev install PREFIX=$(CURDIR)/build/recorder
	$(PY) -m benchmarks.recorder build/recorder $(ARGS)

bench-dask: install .venv/.dask-bench ## Dask over rdma:// beside tcp:// and ucxx://; 5 rounds rewrite docs (ARGS="--rounds 5")
	@mkdir -p build; \
	  $(PY) -m compileall -q aiordma distributed-aiordma
	$(PY) distributed-aiordma/bench --output build/bench-dask.md --docs docs/howto $(ARGS)

# What development needs is several times as much: it would take a newcomer minutes.
.venv/.demo: .venv/.built examples/demolib/requirements.txt
	@.ci/apt $(APT_DEMO)
	@$(PY) -m pip install -q --disable-pip-version-check -r examples/demolib/requirements.txt
	@touch $@

demo: .venv/.demo .venv/.examples ## aiordma demo, then a real Redis behind the RDMA proxy: its checks and table (ARGS: of the second)
	$(if $(ARGS),,$(PY) -m aiordma demo)
	$(PY) examples/demo.py $(ARGS)

demo-valkey: .venv/.demo .venv/.valkey ## a real valkey-server by RDMA and by TCP: the same Python client, all sizes of values
	$(PY) examples/demo_valkey.py $(ARGS)

clean: ## remove everything that is made, the .venv too
	rm -rf build dist .venv docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info \
	  examples/proxy/*.so examples/proxy/*.c examples/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
