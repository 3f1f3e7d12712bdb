#!/usr/bin/env bash
# Installs to a temporary prefix, moves it (nothing may remember where it was), builds a plugin against
# it with find_package(Capstan) alone, and loads that plugin.
#
#   install_test.sh BUILD CMAKE CXX LOAD_PLUGIN DLOPEN_PROBE
set -euo pipefail
build=$1 cmake=$2 cxx=$3 load_plugin=$4 probe=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" ||
  { cat "$work/install.log"; fail "cmake --install failed"; }
mv "$work/first" "$work/prefix"
for file in include/capstan/plugin_api/plugin.h include/capstan/sdk/plugin.h \
    lib/cmake/Capstan/CapstanConfig.cmake; do
  [ -f "$work/prefix/$file" ] || fail "the installation lacks $file"
done

"$cmake" -S "$here/out_of_tree" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release \
  ${CAPSTAN_TEST_SANITIZE:+-DCMAKE_CXX_FLAGS=-fsanitize=$CAPSTAN_TEST_SANITIZE} >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; fail "the out-of-tree plugin does not configure"; }
"$cmake" --build "$work/build" >"$work/build.log" 2>&1 ||
  { cat "$work/build.log"; fail "the out-of-tree plugin does not build"; }
plugin=$work/build/plugins/libcapstan_strategy_label.so
[ -f "$plugin" ] || fail "no $plugin"

"$here/check_symbols.sh" "$probe" "$plugin"
offered=$("$load_plugin" "$plugin")
[ "$offered" = "strategy label" ] || fail "the plugin offers '$offered' instead of 'strategy label'"

if [ -x "$work/prefix/bin/capstan" ]; then
  CAPSTAN_PLUGIN_PATH=$work/build/plugins "$work/prefix/bin/capstan" plugins list >"$work/list.log" ||
    { cat "$work/list.log"; fail "the installed capstan cannot list plugins"; }
  grep -q label "$work/list.log" || { cat "$work/list.log"; fail "the list lacks the plugin"; }
  installed=$(find "$work/prefix/lib/capstan/plugins" -name 'libcapstan_*.so' | wc -l)
  [ "$installed" -gt 0 ] || fail "no plugin was installed"
fi
