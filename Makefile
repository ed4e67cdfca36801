# make up      three MariaDB servers on this machine as one cluster (installs what is missing)
# make down    stop them
# make test    check, build, unit tests, simulator, provider tests, real servers, some of MariaDB's own: about a quarter of an hour
# make check   format, clippy, licences and sources of dependencies
# make servers        all tests on real servers, also those that `make test` leaves out for their length
# make servers-long   and those that take a minute and have a shorter one beside them: ROUNDS=20
# make ddl     servers killed in DDL of every kind, over and over: ROUNDS=100
# make fuzz    every decoder of network, disk and configuration, mutated inputs: MINUTES=10, LOCKSTEP_FUZZ_SEED=n to repeat
# make soak    members that come and go under load, through the C ABI: SECONDS_EACH=120
# make mtr     MariaDB's own Galera tests, beside what Galera's library passes: RIVAL=1 runs that as well; T="galera.fk ..."
# make chaos   real servers under load and faults: MINUTES=10 SEED=n FAULTS=kill-all,pause POLICY=async PROVIDER=file JSON=file
#              EVERY=10 (seconds) ROUNDS=3 ARBITRATOR=1 UPGRADE_TO=file RIVAL=file
# make gaps    how long nobody writes when members are killed or leadership moves, beside Galera's library
# make bench   the provider beside Galera's, under miniature servers: CLIENTS=8,32 SECONDS_EACH=5
# make mariadb-11.8  the tests of real servers with Debian 13's MariaDB, in a root of its own: TESTS="daily rejoin"
# make netem   the lab's lines over the kernel's netem, in a virtual machine with Debian's kernel (needs root; minutes)
# make alerts  the alert rules, by Prometheus' promtool, which is fetched if it is missing
# make sim     the simulator: MINUTES=10, SEED=n to replay one history
# make campaign  whole nodes, without threads, under faults: SEEDS=2000, SEED=n to replay one history
# make sim-mutations  every rule broken in turn: the simulator must notice (some minutes)
SHELL := /bin/bash
.DEFAULT_GOAL := help

MINUTES ?= 10
SEED ?=

export PATH := $(HOME)/.cargo/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Everything that is built comes from the committed lock file.
CARGO := cargo
LOCKED := --locked
# All packages and features at once, also where one would do: with others cargo compiles what they share once more. The
# tests on real servers run only where they are named.
ALL := --workspace --features lockstep-lab/servers,lockstep/servers
# What real servers need: the same features as those of all.
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

# One after the other, also under `make -j`: the machine is small and the servers' tests measure time.
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
		$(CARGO) clippy $(LOCKED) --workspace --all-features --test servers --test check_servers -- -D warnings; \
	else \
		echo "NOT CHECKED: this Rust toolchain has no clippy (Debian's has none); rustup's has"; \
	fi
	$(call say,licences and sources of dependencies)
	@$(CARGO) deny --locked check bans licenses sources
	@if $(MAKE) --no-print-directory $(PROMTOOL) >/dev/null; then $(MAKE) --no-print-directory alerts; \
	else echo "NOT CHECKED: docs/alerts.yml (promtool could not be fetched)"; fi

# Of Debian's package (19 MB) the one program; the package itself would bring a service with it.
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
# Apart from the programs: the simulator compiles the core with failpoints, which no program may have.
	@$(CARGO) build $(LOCKED) --release -p lockstep-sim -p lockstep-host

unit:
	$(call say,unit tests)
	@$(CARGO) test $(LOCKED) $(ALL) --exclude lockstep-host

unit-and-host:
	$(call say,unit tests$(comma) provider through the C ABI)
	@LOCKSTEP_PROVIDER=$(abspath $(TARGET))/release/liblockstep.so LOCKSTEP_HOST_REQUIRE=1 $(CARGO) test $(LOCKED) $(ALL)

# A profile of its own runs more simulated hours in an hour, but is built for a minute or two.
SIM_PROFILE ?= sim
sim:
	$(call say,simulator)
	@$(CARGO) build $(LOCKED) --profile $(SIM_PROFILE) -p lockstep-sim
	@$(TARGET)/$(SIM_PROFILE)/lockstep-sim --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM))

SEEDS ?= 2000
.PHONY: campaign
campaign:
	$(call say,engines under faults)
	@LOCKSTEP_SEEDS=$(SEEDS) $(if $(SEED),LOCKSTEP_SEED=$(SEED)) $(CARGO) test $(LOCKED) --release -p lockstep-node --lib member::campaign::tests::campaign -- --exact --nocapture

.PHONY: ddl
ddl: setup-test
	$(call say,servers killed in DDL)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@LOCKSTEP_DDL_ROUNDS=$(or $(ROUNDS),100) $(CARGO) test $(LOCKED) $(ALL) --test servers -- \
		--test-threads=1 --nocapture ddl::

.PHONY: sim-mutations
sim-mutations:
	$(call say,simulator: planted faults)
	@$(CARGO) build $(LOCKED) --release -p lockstep-sim
	@$(TARGET)/release/lockstep-sim --mutations
	@$(TARGET)/release/lockstep-sim --mutations --outcomes-only

# What every `cargo test` does for a second, for longer: some 24 targets, two at a time, MINUTES in all. An input that
# fails is left in its crate's fuzz-corpus. KEEP=1 also keeps some that came further than any before.
FUZZED := core log rows node net wsrep

.PHONY: fuzz
fuzz:
	$(call say,decoders of what comes from outside: about $(MINUTES) minutes)
	@for crate in $(FUZZED); do \
		LOCKSTEP_FUZZ_SECONDS=$$(( $(MINUTES) * 60 / 12 )) $(if $(KEEP),LOCKSTEP_FUZZ_KEEP=1) \
			$(CARGO) test $(LOCKED) -p lockstep-$$crate fuzz -- --nocapture --test-threads=2 2>&1 \
			| grep -E '^fuzz |panicked|input is|takes more|^error|FAILED'; \
		[ $${PIPESTATUS[0]} -eq 0 ] || exit 1; \
	done

# MariaDB's tests mostly wait for servers. What they leave of the processors the simulator takes meanwhile, at a priority
# that does not disturb them, and for longer than it would need alone. The same seeds each time: a test says what the change
# under test has done; what nobody has seen yet `make sim` looks for.
mtr-and-sim:
	@log=$$(mktemp); nice -n 19 $(MAKE) --no-print-directory sim MINUTES=3 FROM=1 SIM_PROFILE=release >$$log 2>&1 & sim=$$!; \
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

# With `lockstep check` held to what a server says of each option.
servers: setup-test
	$(call say,real servers: about twenty minutes)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@scripts/servers.sh all
	@$(CARGO) test $(LOCKED) $(ALL) --test check_servers -- --test-threads=1

# With the tests that take a minute each and have a shorter one beside them.
.PHONY: servers-long
servers-long: setup-test
	$(call say,real servers: all tests)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@LOCKSTEP_DDL_ROUNDS=$(or $(ROUNDS),20) scripts/servers.sh longest
	@$(CARGO) test $(LOCKED) $(ALL) --test check_servers -- --test-threads=1

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
# RIVAL has a default for the benchmarks: here only one that is given counts.
chaos: setup-test
	$(call say,chaos on real servers)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@$(if $(findstring upgrade,$(FAULTS)),$(if $(PROVIDER)$(UPGRADE_TO),,$(CARGO) build $(LOCKED) --profile next \
		-p lockstep-wsrep --features lockstep-wsrep/next-protocol \
		$(if $(ARBITRATOR),-p lockstep --features lockstep/next-protocol)))
	@$(TARGET)/release/lockstep chaos $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(PROVIDER),--provider $(PROVIDER)) $(if $(JSON),--json $(JSON)) \
		$(if $(EVERY),--every $(EVERY)) $(if $(ARBITRATOR),--arbitrator) \
		$(if $(POLICY),--policy $(POLICY)) $(if $(VOTERS),--voters $(VOTERS)) \
		$(if $(filter-out file,$(origin RIVAL)),--rival $(RIVAL)) \
		$(if $(UPGRADE_TO),--upgrade-to $(UPGRADE_TO),$(if $(findstring upgrade,$(FAULTS)),\
			$(if $(PROVIDER),,--upgrade-to $(TARGET)/next/liblockstep.so)))

gaps:
	@$(MAKE) --no-print-directory chaos FAULTS=kill-first,kill-other,switchover,kill-all ROUNDS=$(or $(ROUNDS),3) \
		RIVAL=$(RIVAL)

T ?=

.PHONY: mtr mtr-short
mtr: setup-test
	$(call say,MariaDB's own tests of Galera)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@PROVIDER=$(abspath $(TARGET))/release/liblockstep.so scripts/mtr.sh $(T)

mtr-short: setup-test
	$(call say,MariaDB's own tests of Galera: a few of them)
	@$(CARGO) build $(LOCKED) --release $(PROGRAMS)
	@PROVIDER=$(abspath $(TARGET))/release/liblockstep.so scripts/mtr.sh short

SECONDS_EACH ?= 120

.PHONY: soak
soak: build
	$(call say,members that come and go under load)
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

.PHONY: netem
netem:
	$(call say,lines over netem)
	@scripts/netem-vm.sh
