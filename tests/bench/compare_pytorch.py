"""GPT-2 124M training steps, Capstan and PyTorch in turns on the same machine and thread count.

    compare_pytorch.py CAPSTAN [--rounds 3] [--steps 3] [--threads 2] [--length 1024] [--compile] [--ranks 1]

Run it with an interpreter that has torch. With --ranks N both train data-parallel, N processes of --threads
each, with the same global batch: Capstan by `dp` over shm, PyTorch by DistributedDataParallel over gloo. PyTorch gets its best: attention fused
(scaled_dot_product_attention), fused AdamW, malloc told to keep and use huge pages, OPENBLAS_* unset. Every
run is a process (or N) of its own; its first step is left out. Prints tokens/s and peak resident memory of
the largest process of each round, and the ratios of the medians.
"""
import argparse
import json
import os
import random
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile

BATCH, VOCABULARY = 4, 50257
MALLOC = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=34359738368:"
          "glibc.malloc.top_pad=268435456:glibc.malloc.arena_max=1")

PEAK_OF_CHILDREN = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def torch_steps(steps, threads, length, compiled):
    """In a child process, one of WORLD_SIZE: prints seconds of each step and the peak resident bytes as JSON."""
    import time

    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    layers, width, heads = 12, 768, 12

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (p.view(b, t, heads, c // heads).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(c, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))

    model = GPT2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        forward = nn.parallel.DistributedDataParallel(forward, gradient_as_bucket_view=True)
        torch.manual_seed(torch.distributed.get_rank())
    rows = torch.randint(VOCABULARY, (BATCH // ranks, length + 1))
    seconds = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        forward(rows[:, :-1], rows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if ranks > 1:
        torch.distributed.destroy_process_group()
    print(json.dumps({"seconds": seconds[1:], "peak": peak}))


def run_torch(arguments, compiled):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment["GLIBC_TUNABLES"] = MALLOC
    environment["OMP_NUM_THREADS"] = str(arguments.threads)
    command = [sys.executable, __file__, "--torch-child", str(arguments.steps), str(arguments.threads),
               str(arguments.length), str(int(compiled))]
    if arguments.ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]),
                               WORLD_SIZE=str(arguments.ranks))
    children = [subprocess.Popen(command, env=dict(environment, RANK=str(r)), stdout=subprocess.PIPE)
                for r in range(arguments.ranks)]
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode != 0 for child in children):
        sys.exit("PyTorch: a process failed")
    results = [json.loads(output.decode().strip().splitlines()[-1]) for output in outputs]
    return (BATCH * arguments.length / statistics.median(results[0]["seconds"]), max(r["peak"] for r in results))


def run_capstan(arguments, folder):
    path = os.path.join(folder, "bench.toml")
    with open(path, "w") as file:
        file.write(f"""
[run]
name = "bench"
dir = "run-{random.randrange(1 << 60)}"
steps = {arguments.steps + 1}
seed = 1
[device]
threads = {arguments.threads}
[model]
plugin = "gpt2"
layers = 12
width = 768
heads = 12
vocabulary = {VOCABULARY}
max_sequence = {arguments.length}
[data]
plugin = "tokens"
sequence_length = {arguments.length}
[[data.source]]
path = "tokens.bin"
format = "raw_u16"
[batch]
micro = {BATCH // arguments.ranks}
global = {BATCH}
[optimizer]
plugin = "adamw"
lr = 1e-4
betas = [0.9, 0.95]
clip_norm = 1.0
""")
        if arguments.ranks > 1:
            file.write(f'[mesh]\ndp = {arguments.ranks}\n[[strategy]]\nplugin = "dp"\n[comm]\nplugin = "shm"\n')
    with open(os.path.join(folder, "tokens.bin"), "wb") as file:
        count = 40 * arguments.length
        file.write(struct.pack(f"<{count}H", *[random.randrange(VOCABULARY) for _ in range(count)]))
    plan = json.loads(subprocess.run([arguments.capstan, "plan", path, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    command = [arguments.capstan, "train", path] + (["--ranks", str(arguments.ranks)] if arguments.ranks > 1 else [])
    # In a process between, so that the peak is that of this run's processes, whichever is the largest.
    measured = subprocess.run([sys.executable, "-c", PEAK_OF_CHILDREN, *command], stdout=subprocess.PIPE, check=True)
    peak = int(measured.stdout.decode().strip().splitlines()[-1])
    runs = sorted((d for d in os.listdir(folder) if d.startswith("run-")),
                  key=lambda d: os.path.getmtime(os.path.join(folder, d)))
    with open(os.path.join(folder, runs[-1], "metrics.jsonl")) as file:
        rates = [json.loads(line)["tokens_per_s"] for line in file][1:]
    return statistics.median(rates), peak, plan["memory"]["total_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capstan")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    arguments = parser.parse_args()
    rates = {"capstan": [], "eager": [], "compile": []}
    for round_ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rate, peak, ledger = run_capstan(arguments, folder)
        rates["capstan"].append(rate)
        print(f"round {round_}: capstan {rate:7.1f} tokens/s, peak {1e-9 * peak:.3f} GB, ledger {1e-9 * ledger:.3f} GB "
              f"({100 * (peak / ledger - 1):+.1f}%)", flush=True)
        for name in ["eager"] + (["compile"] if arguments.compile else []):
            rate, peak = run_torch(arguments, name == "compile")
            rates[name].append(rate)
            print(f"round {round_}: PyTorch {name} {rate:7.1f} tokens/s, peak {1e-9 * peak:.3f} GB", flush=True)
    ours = statistics.median(rates["capstan"])
    for name in ("eager", "compile"):
        if rates[name]:
            print(f"capstan / PyTorch {name}: {ours / statistics.median(rates[name]):.2f}x")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--torch-child":
        torch_steps(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
    else:
        main()
