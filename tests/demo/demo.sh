#!/usr/bin/env bash
# The demo: real English text (the King James Bible, a Debian package), a small GPT trained on it, its
# loss on text it has not seen, and a sample of what it writes.
#
#   tests/demo/demo.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$(realpath "${1:-build/release}")
capstan=$build/capstan
work=$build/demo
target=2.0   # nats per byte on held-out text

sudo=$([ "$(id -u)" = 0 ] || echo sudo)
if ! command -v bible >/dev/null; then
  $sudo apt-get update -q
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends bible-kjv
fi

mkdir -p "$work"
echo "== text"
# One verse a line; the reference before each is dropped.
bible -f 'Genesis1:1-Revelation22:21' </dev/null | sed 's/^[^ ]* //' >"$work/text.tmp"
mv "$work/text.tmp" "$work/text.txt"
bytes=$(stat -c %s "$work/text.txt")
if [ "$bytes" -lt 1000000 ]; then
  echo "demo: $work/text.txt has $bytes bytes; at least 1000000 were expected from the package bible-kjv" >&2
  exit 1
fi
rm -rf "$work/data" "$work/run"
"$capstan" data tokenize "$work/text.txt" --out "$work/data" --validation-fraction 0.05

echo "== training"
"$capstan" train configs/demo.toml --set "run.dir=$work/run" \
  --set "data.source.0.path=$work/data/train*" --set "data.validation.path=$work/data/val*"

echo "== result"
python3 - "$work/run/metrics.jsonl" "$target" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
target = float(sys.argv[2])
train = [r for r in rows if r.get("scope", "train") == "train"]
held_out = [r for r in rows if r.get("scope") == "validation"]
print(f"training loss {train[0]['loss']:.3f} -> {train[-1]['loss']:.3f} nats per byte")
for r in held_out:
    print(f"  held-out loss after step {r['step']:4d}: {r['loss']:.3f}")
if held_out[-1]["loss"] >= target:
    sys.exit(f"demo: the held-out loss is not below {target}")
PYTHON

echo "== sample"
"$capstan" generate "$work/run" --prompt "And God said unto " --tokens 400 --temperature 0.7
