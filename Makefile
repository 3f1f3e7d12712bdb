# Shortcuts; the build itself is CMake (see CMakePresets.json).
SHELL := /bin/bash
BUILD ?= build/release
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SECONDS ?= 60

PACKAGES := g++ cmake ninja-build ccache pkg-config clang-14 libclang-rt-14-dev clang-format-14 \
  libabsl-dev libtomlplusplus-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libboost-dev \
  libdnnl-dev libhwy-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev \
  libdlpack-dev binutils python3 \
  libopenmpi-dev openmpi-bin libmpich-dev mpich libgloo-dev
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
FORMATTED = $(shell find plugin_api sdk runtime kernels plugins tests -name '*.h' -o -name '*.cc' -o -name '*.c')

.PHONY: all deps build test asan fuzz bench format format-check install demo clean
all: build

# Debian packages; does nothing when all of them are there.
deps:
	@missing=$$(for package in $(PACKAGES); do \
	    dpkg-query -W -f '$${db:Status-Abbrev}' $$package 2>/dev/null | grep -q '^ii' || echo $$package; \
	  done); \
	if [ -n "$$missing" ]; then \
	  $(SUDO) apt-get update -q && \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	fi

$(BUILD)/build.ninja: | deps
	cmake --preset release -B $(BUILD) $(CMAKE_ARGS)

build: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)

test: build
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j2

asan: deps
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j2

fuzz: deps
	tests/fuzz/run.sh $(SECONDS)

bench: build
	set -e; for program in $(BUILD)/tests/bench/*_bench; do $$program --benchmark_min_time=0.2; done

format:
	@clang-format-14 -i $(FORMATTED)

format-check:
	@clang-format-14 --dry-run -Werror $(FORMATTED)

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

demo: build
	tests/demo/demo.sh $(BUILD)

clean:
	rm -rf build
