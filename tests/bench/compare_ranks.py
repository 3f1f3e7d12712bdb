"""GPT-2 124M training steps on different meshes of one machine, in turns.

    compare_ranks.py CAPSTAN [--rounds 2] [--steps 2] [--length 1024] [--cases dp,fsdp,tp,pp] [--comm shm]

Each case runs on 2 ranks with one thread each; the reference, in every round, on one rank with 2 threads.
All train the same global batch. Every run is a process tree of its own; its first step is left out. Prints
tokens/s of each run, the peak resident memory of its largest rank, and each case's median over the
reference's.
"""
import argparse
import json
import os
import random
import resource
import statistics
import struct
import subprocess
import tempfile

CASES = {
    # name: (mesh, strategies, micro, global)
    "dp": ("dp = 2", ["dp"], 2, 4),
    "zero1": ("dp = 2", ["zero1"], 2, 4),
    "zero2": ("dp = 2", ["zero2"], 2, 4),
    "zero3": ("dp = 2", ["zero3"], 2, 4),
    "fsdp": ("dp = 2", ["fsdp"], 2, 4),
    "tp": ("tp = 2", ["tp"], 4, 4),
    "tp_sp": ("tp = 2", ["tp", "sp"], 4, 4),
    "pp": ("pp = 2", ["pp"], 1, 16),
}


def config(arguments, mesh, strategies, micro, total, threads):
    text = f"""
[run]
name = "bench"
dir = "run-{random.randrange(1 << 60)}"
steps = {arguments.steps + 1}
seed = 1
[device]
threads = {threads}
[comm]
plugin = "{arguments.comm}"
[mesh]
{mesh}
[model]
plugin = "gpt2"
layers = 12
width = 768
heads = 12
vocabulary = 50257
max_sequence = {arguments.length}
[objective]
plugin = "causal_lm"
[data]
plugin = "tokens"
sequence_length = {arguments.length}
[[data.source]]
path = "tokens.bin"
format = "raw_u16"
[batch]
micro = {micro}
global = {total}
[optimizer]
plugin = "adamw"
lr = 1e-4
clip_norm = 1.0
[precision]
plugin = "fp32"
[checkpoint]
every = 0
[[tracker]]
plugin = "jsonl"
"""
    return text + "".join(f'[[strategy]]\nplugin = "{s}"\n' for s in strategies)


def run(arguments, folder, mesh, strategies, micro, total, threads, ranks):
    path = os.path.join(folder, "bench.toml")
    text = config(arguments, mesh, strategies, micro, total, threads)
    with open(path, "w") as file:
        file.write(text)
    command = [arguments.capstan, "train", path] + (["--ranks", str(ranks)] if ranks > 1 else [])
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    directory = os.path.join(folder, text.split('dir = "')[1].split('"')[0])
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        steps = [json.loads(line) for line in file]
    subprocess.run(["rm", "-rf", directory], check=True)
    return statistics.median(s["tokens_per_s"] for s in steps[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capstan")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--cases", default="dp,fsdp,tp,pp")
    parser.add_argument("--comm", default="shm")
    arguments = parser.parse_args()
    arguments.capstan = os.path.abspath(arguments.capstan)
    names = arguments.cases.split(",")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tokens.bin"), "wb") as file:
            generator = random.Random(1)
            file.write(struct.pack("<200000H", *(generator.randrange(50257) for _ in range(200000))))
        for number in range(arguments.rounds):
            for name in names:
                mesh, strategies, micro, total = CASES[name]
                # The reference holds as much at once as all ranks do together.
                whole = micro * (2 if mesh.startswith("dp") else 1)
                one = run(arguments, folder, "", [], whole, total, 2, 1)
                many = run(arguments, folder, mesh, strategies, micro, total, 1, 2)
                results.setdefault(name, []).append((one, many))
                print(f"round {number + 1} {name:6s} one rank x 2 threads {one:7.1f} tokens/s, "
                      f"2 ranks x 1 thread {many:7.1f}, ratio {many / one:.3f}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    for name, pairs in results.items():
        one, many = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        print(f"{name:6s} {many / one:.3f} of one rank's tokens/s (medians {many:.1f} and {one:.1f})")
    print(f"largest resident process {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
