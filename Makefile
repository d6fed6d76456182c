# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
SCALE := .venv-scale
BIN := $(VENV)/bin
DEVICE ?= simulated:a40x1
KILLS ?= 60
TORCH ?= torch
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile every module
# Many tests wait, so there are four workers more than cores; none has a core for more threads of its own.
export OPENBLAS_NUM_THREADS ?= 1
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)
FAST_WORKERS := $(shell getconf _NPROCESSORS_ONLN)  # few of its tests wait, and each worker reads all of them: 7 s of a core

.PHONY: chaos docs figures help packages release test-pythons install demo demo-page test lint bytecode types test-main test-scale demo-cluster test-fast test-frameworks test-zeus-examples test-screens screens test-metrics test-slurm check fuzz soak audit sbom lock clean

help:            ## what there is
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' Makefile | sed 's/:[^#]*##/\t/'

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("zeus-stream needs Python 3.11 or later; this is %s. Run make PYTHON=python3.12 ..." % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Downloading and installing what requirements.lock names into $(VENV): a minute or two, once ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@du -sm $(VENV) | awk '{print "Installed: " $$1 " MB in $(VENV), with all that development needs."}'
	touch $@

install: $(VENV)/.installed  ## set up .venv with everything locked

demo: install    ## train on simulated GPUs while the power limit is found; DEVICE=nvml for a real one
	$(BIN)/python examples/demo.py --device $(DEVICE)

demo-page: install ## record a run on simulated GPUs, and write the web page over it into demo-out/page, as files for any server
	rm -rf demo-out/page
	$(BIN)/python docs/site/demo_page.py demo-out/page
	@echo "Open it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory demo-out/page"

check: lint types ## format, lint, layers, types

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

# Its garbage collections are a third of its processor time where nothing is cached; without them it takes 2.0 GB.
types: install
	$(BIN)/python -c 'import gc; gc.enable = gc.disable; gc.disable(); from mypy.__main__ import console_entry; console_entry()'

test: install    ## everything a change needs
	$(MAKE) --no-print-directory --jobs 2 lint bytecode
	$(MAKE) --no-print-directory --jobs 3 types test-main test-scale

bytecode: install # else each worker compiles all tests, at the same time
	$(BIN)/python -m pytest --collect-only --quiet >/dev/null

# A failed test is asked once more, alone: docs/decisions/19. $(1): python, $(2): its memory of failures, $(3): arguments
define pytest
$(1) -m pytest -rs --override-ini cache_dir=.pytest_cache/$(2) $(3) || \
	$(1) -m pytest --override-ini cache_dir=.pytest_cache/$(2) --last-failed
endef

test-main: install
	$(call pytest,$(BIN)/python,main,--numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder --ignore tests/scale)

$(SCALE)/.installed: requirements-scale.lock $(VENV)/.installed
	$(PYTHON) -m venv $(SCALE)
	$(SCALE)/bin/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "after.pth").write_text("\n".join(["$(CURDIR)", str(next(pathlib.Path("$(CURDIR)/$(VENV)/lib").glob("python3*/site-packages")))]) + "\n")'
	$(SCALE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-scale.lock \
		|| echo "The wheels of DuckDB's extensions are not to be had here: tests/scale is skipped."
	touch $@

# Sites and test_shards.py have the store's process with this DuckDB: here its file alone is tested with it.
test-scale: $(SCALE)/.installed ## test lake, broker and store with the real engines, and statements with SPDX's schema
	$(call pytest,$(SCALE)/bin/python,scale,-k "not StoreClient" tests/scale tests/conformance/test_store.py \
		tests/analyzers/archive/test_queries.py tests/zeus_stream/screens/text/test_statement_schema.py)

demo-cluster: $(SCALE)/.installed ## a broker, PostgreSQL, three collectors, archivers, two analyzers and SQL on a lake, on this machine
	PYTHONPATH=$(CURDIR) $(SCALE)/bin/python examples/cluster.py

chaos: $(SCALE)/.installed ## FAULTS random faults in a site of real processes: what is lost, twice, in force, and how it recovers; SEED=1
	PYTHONPATH=. $(SCALE)/bin/python -m benchmarks.site.faults --faults $(or $(FAULTS),60) --minutes $(or $(MINUTES),15) --seed $(or $(SEED),1)

test-fast: install ## the inner loop: all tests but sweeps, without the checks; about half a minute on two quiet cores (51 s of processor time)
	$(BIN)/python -m pytest --numprocesses $(FAST_WORKERS) --dist worksteal -m "not sweep"

AXE := 4.14.1
AXE_SHA256 := 29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
screens: .screens/.fetched ## fetch what the tests in a real browser need, without root: Debian's Chromium with its libraries, axe-core; npm
.screens/.fetched:
	mkdir -p .screens/packages
	cd .screens/packages && apt-get install --simulate --no-install-recommends chromium chromium-driver | awk '/^Inst/ {print $$2}' | xargs -r apt-get download
	find .screens/packages -name '*.deb' -exec dpkg -x {} .screens ';'
	cd .screens/packages && npm pack --silent axe-core@$(AXE) && tar -xf axe-core-$(AXE).tgz package/axe.min.js
	echo "$(AXE_SHA256)  .screens/packages/package/axe.min.js" | sha256sum --check --quiet
	mv .screens/packages/package/axe.min.js .screens/axe.min.js
	touch $@

test-screens: install screens ## test the pages in a real Chromium; PICTURES=docs/images writes the pictures of the docs
	PICTURES=$(PICTURES) $(BIN)/python -m pytest tests/zeus_stream/screens/web

docs: .docs/.installed ## build the site of documentation into .docs/html: search without a server, nothing fetched; links are checked
	.docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --builder html --conf-dir docs/site --doctree-dir .docs/doctrees . .docs/html
	$(PYTHON) -m tests.docs.site_check .docs/html
	@echo "Open .docs/html/index.html."

.docs/.installed: docs/site/requirements.txt
	test -d .docs || $(PYTHON) -m venv .docs
	.docs/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r docs/site/requirements.txt
	touch $@

test-frameworks: ## test the callbacks with the newest frameworks, in an environment of its own; TORCH=torch==...
	test -d .frameworks || $(PYTHON) -m venv .frameworks
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(TORCH) \
		transformers trl accelerate datasets peft tensorboard torchvision lightning keras jax mlflow-skinny wandb aim zeus==0.16.0 \
		setuptools wheel megatron-core einops hjson ninja msgpack py-cpuinfo
	DS_BUILD_OPS=0 .frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation deepspeed
	.frameworks/bin/python -m pytest tests/frameworks tests/zeus_stream/integrations tests/zeus_stream/zeus

ZEUS_EXAMPLES := zeus==0.16.0 transformers==4.40.2 trl==0.8.6 peft==0.10.0 accelerate==0.29.3 datasets==3.6.0 evaluate==0.4.2
test-zeus-examples: ## test Zeus's own tests, and its examples for Hugging Face, in an environment with the versions of their time
	test -d .zeus-examples || $(PYTHON) -m venv .zeus-examples
	.zeus-examples/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	.zeus-examples/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) $(ZEUS_EXAMPLES)
	.zeus-examples/bin/python -m pytest tests/frameworks/test_zeus_imports.py tests/frameworks/test_zeus_huggingface_examples.py

test-metrics: install ## test dashboard and alerts with Debian's Prometheus, unpacked into .prometheus without root
	test -x .prometheus/usr/bin/prometheus || (mkdir -p .prometheus && cd .prometheus && \
		apt-get download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb)
	$(BIN)/python -m pytest -rs tests/packaging/test_grafana.py tests/zeus_stream/screens/metrics

test-slurm: install ## test the scripts for Slurm with Debian's Slurm and MariaDB, unpacked into .slurm; as root
	test -x .slurm/usr/sbin/slurmd-wlm || (mkdir -p .slurm/packages && cd .slurm/packages && \
		apt-get download $$(apt-get install --simulate --no-install-recommends slurmctld slurmd slurm-client slurmdbd munge \
			mariadb-server | awk '/^Inst/ {print $$2}') && for each in *.deb; do dpkg -x $$each ..; done && rm *.deb)
	$(BIN)/python -m pytest -rs tests/packaging/test_slurm.py

FIGURES ?=
figures: install ## run the benchmarks and write docs/figures.md; FIGURES="step_cost windows", LIMIT=600
	$(BIN)/python -m benchmarks.figures --only $(FIGURES) --limit $(or $(LIMIT),600)

GPU ?= gpu-$(shell hostname)
gpu: install     ## meet a real GPU in ten minutes: recordings, its sensor card, a page to read in the folder GPU=; OBSERVE=1 changes nothing
	$(BIN)/python -m benchmarks.gpu $(GPU) $(if $(OBSERVE),--observe)

soak: install    ## 1000 simulated worlds and KILLS SIGKILLs of real processes: one table
	$(BIN)/python -m benchmarks.faults.exercises --only worlds kills --kills $(KILLS)

fuzz: install    ## new examples for every property; then the decoders with atheris, for SECONDS=60
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile new
	test -d .fuzz || $(PYTHON) -m venv .fuzz
	.fuzz/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	.fuzz/bin/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	.fuzz/bin/python -m tests.fuzz --seconds $(or $(SECONDS),60)
	.fuzz/bin/python -m tests.fuzz.sql --seconds $(or $(SECONDS),60)

.audit/.installed:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

audit: install .audit/.installed ## known vulnerabilities of what the wheel needs; a package without data fails, as on a mirror without it
	$(BIN)/python packaging/wheel_requirements.py > .audit/wheel.txt
	@.audit/bin/pip-audit --strict --disable-pip --no-deps --requirement .audit/wheel.txt 2> .audit/errors || { \
		if grep -q "could not be audited" .audit/errors; then \
			echo "audit: nothing is known: this package index serves no advisories for $$(grep -o '[^ ]* ([^ ]*)$$' .audit/errors | head -1). Run it with an index that serves them." >&2; \
		else cat .audit/errors >&2; fi; exit 1; }

sbom: install .audit/.installed ## write packaging/sbom.cdx.json: what the wheel needs, in CycloneDX; a test compares it with the lock
	$(BIN)/python packaging/wheel_requirements.py > .audit/wheel.txt
	.audit/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
		-o packaging/sbom.cdx.json .audit/wheel.txt
	sed -i '/"externalReferences": \[/,/\],/d' packaging/sbom.cdx.json  # an index is that of who installs

.packages/.installed: packaging/requirements.txt
	test -d .packages || $(PYTHON) -m venv .packages
	.packages/bin/python -m pip install --quiet --disable-pip-version-check --requirement packaging/requirements.txt
	cd .packages && apt-get download systemd-container libsystemd-shared && \
		for each in *.deb; do dpkg -x $$each nspawn; done && rm *.deb
	touch $@

MANIFESTS := $(filter-out %kustomization.yaml %pod-monitor.yaml,$(wildcard packaging/kubernetes/*.yaml packaging/kubernetes/*/*.yaml))
packages: install .packages/.installed ## build wheel, sdist and .deb into dist/; check them; as root also under a systemd that boots, and the container's steps
	rm -rf dist
	.packages/bin/python -m build --quiet --outdir dist .
	.packages/bin/twine check --strict dist/*.whl dist/*.tar.gz
	.packages/bin/check-wheel-contents --ignore W002 dist/*.whl  # a notice lies beside its data, and among the licenses
	.packages/bin/hadolint packaging/container/Dockerfile
	for version in 1.25 1.37; do for each in $(MANIFESTS); do \
		.packages/bin/kubernetes-validate --strict --kubernetes-version $$version $$each || exit 1; done; done
	/usr/bin/python3 packaging/debian/build.py dist
	DIST=$(CURDIR)/dist $(BIN)/python -m pytest -rs tests/packaging

PYTHON_TESTS ?= tests/packaging/test_wheel.py tests/zeus_stream/protocol tests/conformance tests/analyzers/checkpoints
test-pythons:    ## test the wheel with each Python from 3.11 to 3.14 that this machine has; PYTHON_TESTS=tests for others
	$(PYTHON) packaging/pythons.py $(PYTHON_TESTS)

release: packages ## check version, tag, changelog and a second build; write SHA256SUMS into dist/; KEY=ssh-key signs it
	$(BIN)/python packaging/release.py dist $(if $(KEY),--key $(KEY))

lock:            ## renew requirements.lock (needs uv)
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --extra services --extra demo --extra kubernetes --extra mcp --extra otel --extra pipeline \
		--extra png --group dev \
		--python-version 3.11 pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --no-deps --generate-hashes --no-annotate --no-header --python-version 3.11 requirements-scale.in -o requirements-scale.lock

clean:           ## remove what the other targets made
	rm -rf $(VENV) $(SCALE) .audit .frameworks .zeus-examples .fuzz .prometheus .packages .pythons .docs dist demo-out
