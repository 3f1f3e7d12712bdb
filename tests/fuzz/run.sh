#!/usr/bin/env bash
# Builds the fuzz targets with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each
# for SECONDS (default 60). An input that breaks a target is kept in corpus/<name>/findings, where the
# ordinary tests replay it from then on; new coverage stays in the build folder.
#
#   tests/fuzz/run.sh [SECONDS [NAME...]]        CAPSTAN_FUZZ_BUILD: the build folder
set -euo pipefail

seconds=${1:-60}
shift || true
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${CAPSTAN_FUZZ_BUILD:-$root/build/fuzz}

cmake --preset fuzz -S "$root" -B "$build" >/dev/null
cmake --build "$build" --target fuzz_targets -j "$(nproc)"

if [ $# -gt 0 ]; then
  targets=$(printf 'fuzz_%s\n' "$@")
else
  targets=$(cat "$build/tests/fuzz/targets.txt")
fi

status=0
for target in $targets; do
  name=${target#fuzz_}
  seeds=$here/corpus/$name
  found=$build/found/$name
  grown=$build/corpus/$name
  mkdir -p "$found" "$grown"
  echo "== $name, $seconds s"
  log=$build/$name.log
  words=()
  if [ -f "$here/$name.dict" ]; then words=("-dict=$here/$name.dict"); fi
  if "$build/tests/fuzz/$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 \
      -timeout=10 -artifact_prefix="$found/" -print_final_stats=1 "${words[@]}" "$grown" "$seeds" \
      >"$log" 2>&1; then
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)' "$log"
  else
    status=1
    tail -n 40 "$log"
    mkdir -p "$seeds/findings"
    find "$found" -type f -exec mv {} "$seeds/findings/" \;
    echo "inputs kept in $seeds/findings"
  fi
done
exit $status
