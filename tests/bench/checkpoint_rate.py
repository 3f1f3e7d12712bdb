"""The rate at which two ranks write a sharded checkpoint against plain sequential writes to the same disk.

    checkpoint_rate.py CAPSTAN [--folder .] [--rounds 5] [--strategy fsdp] [--layers 12]

Trains GPT-2 (124M by default) on 2 ranks and writes a checkpoint after each step; each is followed, in the same
folder, by one process that writes as many bytes to one new file, 8 MiB a call, syncs it and closes it. Both
rates include the sync. Prints every pair and the ratio of the medians.
"""
import argparse
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

CONFIG = """
[run]
name = "rate"
dir = "run"
steps = {rounds}
seed = 1
[device]
threads = 1
[comm]
plugin = "shm"
[mesh]
dp = 2
[model]
plugin = "gpt2"
layers = {layers}
width = 768
heads = 12
vocabulary = 50257
max_sequence = 1024
[data]
plugin = "tokens"
sequence_length = 16
[[data.source]]
path = "tokens.bin"
format = "raw_u16"
[batch]
micro = 1
global = 2
[optimizer]
plugin = "adamw"
lr = 1e-4
[checkpoint]
every = 1
keep = 1
[[strategy]]
plugin = "{strategy}"
"""


def plain(path, size):
    """Seconds to write `size` bytes to a new file and sync it."""
    piece = memoryview(os.urandom(8 << 20))
    begin = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    left = size
    while left > 0:
        left -= os.write(file, piece[:min(left, len(piece))])
    os.fsync(file)
    os.close(file)
    seconds = time.perf_counter() - begin
    os.unlink(path)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capstan")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", default="fsdp")
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        with open(os.path.join(folder, "tokens.bin"), "wb") as file:
            file.write(struct.pack("<2000H", *range(2000)))
        config = os.path.join(folder, "rate.toml")
        for number in range(arguments.rounds):
            # A run of one more step each time: it resumes, and writes one checkpoint.
            with open(config, "w") as file:
                file.write(CONFIG.format(rounds=number + 1, layers=arguments.layers, strategy=arguments.strategy))
            done = subprocess.run([os.path.abspath(arguments.capstan), "train", config, "--ranks", "2"], cwd=folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            found = re.search(r"checkpoint: \S+ \(.* in ([0-9.]+) s\)", done.stdout)
            if done.returncode != 0 or found is None:
                sys.exit(done.stdout)
            checkpoint = os.path.join(folder, "run/checkpoints", f"step-{number + 1:08d}")
            size = sum(os.path.getsize(os.path.join(checkpoint, name)) for name in os.listdir(checkpoint))
            os.sync()
            ours = size / float(found.group(1))
            base = size / plain(os.path.join(folder, "plain"), size)
            pairs.append((ours, base))
            print(f"round {number + 1}: {1e-9 * size:.2f} GB, checkpoint {1e-9 * ours:.2f} GB/s, plain "
                  f"{1e-9 * base:.2f} GB/s, ratio {ours / base:.2f}", flush=True)
    ours, base = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"checkpoint / plain sequential writes: {ours / base:.2f} (medians {1e-9 * ours:.2f} and {1e-9 * base:.2f} GB/s)")


if __name__ == "__main__":
    main()
