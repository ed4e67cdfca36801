# make up      run a cluster of three MariaDB servers on this machine (installs missing packages)
# make down    stop it
# make test    check, build, unit tests, simulator, provider tests, real servers, some of MariaDB's own: about a quarter of an hour
# make check   format, clippy, licences and sources of dependencies, alert rules
# make servers        tests on real servers, including the long ones that `make test` leaves out
# make servers-long   the same, including tests of a minute or more that have a shorter version: ROUNDS=20
# make ddl     kill servers during DDL of every kind, repeatedly: ROUNDS=100
# make fuzz    mutated inputs for every decoder of network, disk and configuration: MINUTES=10, LOCKSTEP_FUZZ_SEED=n to repeat
# make soak    members that join and leave under load, through the C ABI: SECONDS_EACH=120
# make mtr     MariaDB's own Galera tests, compared with Galera's results: RIVAL=1 runs Galera's library as well; T="galera.fk ..."
# make chaos   real servers under load and faults: MINUTES=10 SEED=n FAULTS=kill-all,pause POLICY=async PROVIDER=file JSON=file
#              EVERY=10 (seconds) ROUNDS=3 ARBITRATOR=1 VOTERS=1 UPGRADE_TO=file RIVAL=file
#              WORKLOAD=list-append|register HISTORY=folder SNAPSHOT_ISOLATION=off; STOCK=1: one server, no faults
# make block-chaos    a replicated block device under faults: MINUTES=60 SEED=n FAULTS=kill-all,split PROTOCOLS=a,b,c ARBITRATOR=1
#              ROUNDS=1 (each fault so often) PLANT=flip (must fail) LOGS=folder JSON=file
# make block-mariadb  MariaDB on a replicated block device, killed with its machine: ROUNDS=100 SEED=n JSON=file
# make gaps    length of write outages when members are killed or leadership moves, compared with Galera's library
# make bench   compare the provider with Galera's, under miniature servers: CLIENTS=8,32 SECONDS_EACH=5
# make mariadb-11.8  the tests on real servers with Debian 13's MariaDB, in its own root directory: TESTS="daily rejoin"
# make alerts  test the alert rules with Prometheus' promtool (fetched if missing)
# make sim     the simulator: MINUTES=10 or SEEDS=n, SEED=n to replay one history, DEVICE=1 for copies of a block device
# make sim-mutations  inject a breach of every rule: the simulator must find each (some minutes)
SHELL := /bin/bash
.DEFAULT_GOAL := help

MINUTES ?= 10
SEED ?=

export PATH := $(HOME)/.cargo/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
# All builds use the committed lock file.
CARGO := cargo
LOCKED := --locked
# All packages and features at once, even for a single package: other combinations would make cargo compile shared
# dependencies again. Tests on real servers run only if named.
ALL := --workspace --features lockstep-lab/servers,lockstep/servers,lockstep-binlog/servers,lockstep-block/servers
# The programs that tests on real servers need.
PROGRAMS := -p lockstep-wsrep -p lockstep -p lockstep-floor

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: help up down test check build unit sim host servers servers-short setup-up setup-test unit-and-host mtr-and-sim

help:
	@sed -n 's/^# \(make .*\)/\1/p' $(firstword $(MAKEFILE_LIST))

setup-up:
	@scripts/setup.sh up

setup-test:
	@scripts/setup.sh test

up: setup-up
	$(call say,building the provider and the command)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@$(TARGET)/release/lockstep up --provider $(TARGET)/release/liblockstep.so

down:
	@if [ ! -x $(TARGET)/release/lockstep ]; then scripts/setup.sh up && \
		$(CARGO) build $(LOCKED) --release -p lockstep; fi
	@$(TARGET)/release/lockstep down

# Steps run one after the other, even under `make -j`: tests on servers measure time.
test:
	@start=$$SECONDS; \
	for step in setup-test check build unit-and-host servers-short mtr-and-sim; do \
		$(MAKE) --no-print-directory $$step || { echo "== make $$step failed"; exit 1; }; \
	done; \
	echo; echo "== all tests passed in $$(( (SECONDS - start) / 60 )) min $$(( (SECONDS - start) % 60 )) s"

check: setup-test
	$(call say,format)
	@$(CARGO) fmt --all --check
	$(call say,clippy)
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
		$(CARGO) clippy $(LOCKED) --workspace --all-targets --all-features -- -D warnings && \
		$(CARGO) clippy $(LOCKED) --workspace --all-features --test servers --test check_servers --test binlog_servers --test nbd_clients -- -D warnings; \
	else \
		echo "NOT CHECKED: this Rust toolchain has no clippy (Debian's lacks it, rustup's has it)"; \
	fi
	$(call say,licences and sources of dependencies)
	@$(CARGO) deny --locked check bans licenses sources
	@if $(MAKE) --no-print-directory $(PROMTOOL) >/dev/null; then $(MAKE) --no-print-directory alerts; \
	else echo "NOT CHECKED: docs/alerts.yml (promtool could not be fetched)"; fi

# Only the program from Debian's package (19 MB): installing the package would also install a service.
PROMTOOL := $(or $(shell command -v promtool 2>/dev/null),$(TARGET)/promtool/usr/bin/promtool)
.PHONY: alerts
alerts: $(PROMTOOL)
	$(call say,alert rules)
	@$(PROMTOOL) check rules docs/alerts.yml
	@$(PROMTOOL) test rules scripts/alerts-test.yml

$(TARGET)/promtool/usr/bin/promtool:
	@rm -rf $(TARGET)/promtool && mkdir -p $(TARGET)/promtool && cd $(TARGET)/promtool && \
		{ apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } 2>&1 && \
		dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb && touch usr/bin/promtool

build:
	$(call say,release build)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
# A separate build: the simulator compiles the core with failpoints, which no program may contain.
	@$(CARGO) build $(LOCKED) --release -p lockstep-sim -p lockstep-host

unit:
	$(call say,unit tests)
	@$(CARGO) test $(LOCKED) $(ALL) --exclude lockstep-host

unit-and-host:
	$(call say,unit tests$(comma) provider through the C ABI)
	@LOCKSTEP_PROVIDER=$(abspath $(TARGET))/release/liblockstep.so LOCKSTEP_HOST_REQUIRE=1 $(CARGO) test $(LOCKED) $(ALL)

sim:
	$(call say,simulator)
	@$(CARGO) build $(LOCKED) --release -p lockstep-sim
# Memory is kept for the next start of a member: returning it to the system takes a tenth of the time.
	@MIMALLOC_PURGE_DELAY=-1 $(TARGET)/release/lockstep-sim \
		$(if $(SEEDS),--seeds $(SEEDS),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FROM),--from $(FROM)) $(if $(DEVICE),--device)

.PHONY: ddl
ddl: setup-test
	$(call say,servers killed during DDL)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@LOCKSTEP_DDL_ROUNDS=$(or $(ROUNDS),100) $(CARGO) test $(LOCKED) $(ALL) --test servers -- \
		--test-threads=1 --nocapture ddl::

.PHONY: sim-mutations
sim-mutations:
	$(call say,simulator: injected faults)
	@$(CARGO) build $(LOCKED) --release -p lockstep-sim
	@$(TARGET)/release/lockstep-sim --mutations
	@$(TARGET)/release/lockstep-sim --mutations --outcomes-only
	@$(TARGET)/release/lockstep-sim --device --mutations

# Runs the fuzz targets of `cargo test` for longer: some 30, two at a time, MINUTES in all. A failing input is saved in its
# crate's fuzz-corpus. KEEP=1 also saves some inputs that made more progress than any before.
FUZZED := core log rows node net wsrep binlog block

.PHONY: fuzz
fuzz:
	$(call say,fuzzing decoders: about $(MINUTES) minutes)
	@for crate in $(FUZZED); do \
		LOCKSTEP_FUZZ_SECONDS=$$(( $(MINUTES) * 60 / 15 )) $(if $(KEEP),LOCKSTEP_FUZZ_KEEP=1) \
			$(CARGO) test $(LOCKED) -p lockstep-$$crate fuzz -- --nocapture --test-threads=2 2>&1 \
			| grep -E '^fuzz |panicked|input is|takes more|^error|FAILED'; \
		[ $${PIPESTATUS[0]} -eq 0 ] || exit 1; \
	done

# MariaDB's tests mostly wait for servers, so the simulator runs beside them at low priority. It runs the same seeds on every
# machine, so that a failure comes from the change under test; `make sim` takes new seeds.
mtr-and-sim:
	@log=$$(mktemp); run="nice -n 19 $(MAKE) --no-print-directory sim"; \
	{ $$run SEEDS=400 FROM=1 && $$run SEEDS=1200 FROM=1 DEVICE=1; } >$$log 2>&1 & sim=$$!; \
	trap 'kill $$sim 2>/dev/null' INT TERM; \
	$(MAKE) --no-print-directory mtr-short; mtr=$$?; \
	wait $$sim; simulated=$$?; cat $$log; rm -f $$log; \
	exit $$((mtr > simulated ? mtr : simulated))

host:
	$(call say,provider through the C ABI)
	@LOCKSTEP_PROVIDER=$(abspath $(TARGET))/release/liblockstep.so LOCKSTEP_HOST_REQUIRE=1 \
		$(CARGO) test $(LOCKED) -p lockstep-host

servers-short:
	$(call say,real servers (some minutes))
	@scripts/servers.sh short
	@$(CARGO) test $(LOCKED) $(ALL) --test check_servers -- few_
	@$(CARGO) test $(LOCKED) $(ALL) --test binlog_servers --test nbd_clients -- --test-threads=1

# check_servers compares `lockstep check` with a server's own answer for each option.
servers: setup-test
	$(call say,real servers: about twenty minutes)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@scripts/servers.sh all
	@$(CARGO) test $(LOCKED) $(ALL) --test check_servers --test binlog_servers --test nbd_clients -- --test-threads=1

# Includes tests of a minute or more that have a shorter version.
.PHONY: servers-long
servers-long: setup-test
	$(call say,real servers: all tests)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@LOCKSTEP_DDL_ROUNDS=$(or $(ROUNDS),20) scripts/servers.sh longest
	@$(CARGO) test $(LOCKED) $(ALL) --test check_servers --test binlog_servers --test nbd_clients -- --test-threads=1

FAULTS ?=
PROVIDER ?=
JSON ?=
EVERY ?=
ROUNDS ?=
ARBITRATOR ?=
POLICY ?=
VOTERS ?=
UPGRADE_TO ?=

.PHONY: chaos gaps
# RIVAL has a default for the benchmarks; here it counts only if given.
chaos: setup-test
	$(call say,chaos on real servers)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@$(if $(findstring upgrade,$(FAULTS)),$(if $(PROVIDER)$(UPGRADE_TO),,$(CARGO) build $(LOCKED) --profile next \
		-p lockstep-wsrep --features lockstep-wsrep/next-protocol \
		$(if $(ARBITRATOR),-p lockstep --features lockstep/next-protocol)))
	@$(TARGET)/release/lockstep chaos $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(PROVIDER),--provider $(PROVIDER)) $(if $(JSON),--json $(JSON)) \
		$(if $(EVERY),--every $(EVERY)) $(if $(ARBITRATOR),--arbitrator) \
		$(if $(WORKLOAD),--workload $(WORKLOAD)) $(if $(HISTORY),--history $(HISTORY)) \
		$(if $(filter off,$(SNAPSHOT_ISOLATION)),--no-snapshot-isolation) $(if $(STOCK),--stock) \
		$(if $(POLICY),--policy $(POLICY)) $(if $(VOTERS),--voters $(VOTERS)) \
		$(if $(filter-out file,$(origin RIVAL)),--rival $(RIVAL)) \
		$(if $(UPGRADE_TO),--upgrade-to $(UPGRADE_TO),$(if $(findstring upgrade,$(FAULTS)),\
			$(if $(PROVIDER),,--upgrade-to $(TARGET)/next/liblockstep.so)))

gaps:
	@$(MAKE) --no-print-directory chaos FAULTS=kill-first,kill-other,switchover,kill-all ROUNDS=$(or $(ROUNDS),3) \
		RIVAL=$(RIVAL)

PLANT ?=
LOGS ?=
PROTOCOLS ?=

.PHONY: block-chaos block-mariadb
block-chaos: MINUTES = 60
block-chaos: setup-test
	$(call say,faults on a replicated block device)
	@$(CARGO) build $(LOCKED) --release -p lockstep
	@$(TARGET)/release/lockstep block-chaos $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(PROTOCOLS),--protocols $(PROTOCOLS)) \
		$(if $(ARBITRATOR),--arbitrator) $(if $(PLANT),--plant $(PLANT)) $(if $(LOGS),--logs $(LOGS)) \
		$(if $(JSON),--json $(JSON))

block-mariadb: setup-test
	$(call say,MariaDB on a replicated block device)
	@$(CARGO) build $(LOCKED) --release -p lockstep
	@$(TARGET)/release/lockstep block-mariadb --rounds $(or $(ROUNDS),100) $(if $(SEED),--seed $(SEED)) \
		$(if $(JSON),--json $(JSON))

T ?=

.PHONY: mtr mtr-short
mtr: setup-test
	$(call say,MariaDB's own tests of Galera)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@PROVIDER=$(abspath $(TARGET))/release/liblockstep.so scripts/mtr.sh $(T)

mtr-short: setup-test
	$(call say,MariaDB's own tests of Galera: a short selection)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@PROVIDER=$(abspath $(TARGET))/release/liblockstep.so scripts/mtr.sh short

SECONDS_EACH ?= 120

.PHONY: soak
soak: build
	$(call say,members that join and leave under load)
	@LOCKSTEP_PROVIDER=$(abspath $(TARGET))/release/liblockstep.so LOCKSTEP_HOST_REQUIRE=1 \
		LOCKSTEP_HOST_SECONDS=$(SECONDS_EACH) \
		$(CARGO) test $(LOCKED) -p lockstep-host --features soak --test endurance

CLIENTS ?= 8,32
RIVAL ?= /usr/lib/galera/libgalera_smm.so

.PHONY: bench
bench: SECONDS_EACH = 5
bench: setup-test
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@$(TARGET)/release/lockstep bench provider --rival $(RIVAL) --clients $(CLIENTS) --seconds $(SECONDS_EACH)

TESTS ?=

.PHONY: mariadb-11.8
mariadb-11.8:
	$(call say,real servers: MariaDB 11.8)
	@scripts/mariadb-11.8.sh $(TESTS)
