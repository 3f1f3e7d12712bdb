#!/usr/bin/env bash
# A plugin exports capstan_plugin_entry and nothing else, needs no symbol but those of the libraries it
# names, and asks for no executable stack.
#
#   check_symbols.sh DLOPEN_PROBE PLUGIN
set -euo pipefail
probe=$1
plugin=$2
fail() { echo "$plugin: $*" >&2; exit 1; }

exported=$(nm -D --defined-only "$plugin" | awk '{print $NF}')
[ "$exported" = capstan_plugin_entry ] ||
  fail "exports $(echo "$exported" | tr '\n' ' '), but must export capstan_plugin_entry alone"
host=$(nm -D --undefined-only "$plugin" | awk '$NF ~ /capstan/ {print $NF}')
[ -z "$host" ] || fail "takes $host from the host"
stack=$(readelf -lW "$plugin" | awk '$1 == "GNU_STACK"')
[ -n "$stack" ] || fail "does not say that its stack is not executable"
[[ $stack != *RWE* ]] || fail "asks for an executable stack"
"$probe" "$plugin" || fail "does not load by itself"
