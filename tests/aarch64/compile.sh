#!/usr/bin/env bash
# Compiles every source of the host, the kernels and the plugins for AArch64 with Debian's cross
# compiler (apt install g++-aarch64-linux-gnu) and links nothing. Headers of this machine's
# libraries that do not depend on the architecture are lent through a folder of links.
#
#   tests/aarch64/compile.sh [PATTERN...]     # git patterns, all sources by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
compiler=aarch64-linux-gnu-g++
command -v $compiler >/dev/null || { echo "$compiler is not installed; apt install g++-aarch64-linux-gnu" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/include"
for place in /usr/include /usr/include/$(uname -m)-linux-gnu; do
  for name in hwy absl boost toml++ CLI nlohmann spdlog oneapi; do
    [ -e $place/$name ] && ln -sfn $place/$name "$work/include/$name"
  done
  for header in $place/dnnl*; do [ -e $header ] && ln -sfn $header "$work/include/$(basename $header)"; done
done

[ $# -gt 0 ] || set -- 'kernels/*.cc' 'plugins/*.cc' 'runtime/*.cc'
compile() {
  local source=$1 march=()
  [[ $source == kernels/cpu/* ]] && march=(-march=armv8-a+crypto
    '-DHWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)')
  if $compiler -std=c++20 -O1 -fopenmp -Wall -Wextra -Wno-restrict "${march[@]}" -DBOOST_DLL_USE_STD_FS -DTOML_EXCEPTIONS=0 -DTOML_HEADER_ONLY=1 -DCAPSTAN_HOST_VERSION=\"0\" \
      -I. -I"$work/include" -c "$source" -o /dev/null; then
    echo "ok   $source"
  else
    echo "FAIL $source"
    return 1
  fi
}
export -f compile
export compiler work
# Comm backends stand on libraries of their own, compiled for this machine only.
git ls-files "$@" | grep -v '^plugins/comm/mpi/' |
  xargs -P "$(nproc)" -I{} bash -c 'compile {}'
