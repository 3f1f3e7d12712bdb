"""GPT-2 124M training steps, Capstan and PyTorch in turns on the same machine and thread count.

    compare_pytorch.py CAPSTAN [--rounds 3] [--steps 3] [--threads 2] [--compile] [--config gpt2-124m]

Run it with an interpreter that has torch. PyTorch gets its best: attention fused
(scaled_dot_product_attention), fused AdamW, malloc told to keep and use huge pages, OPENBLAS_* unset. Every
run is a process of its own; its first step is left out. Prints tokens/s and peak resident memory of each
round, and the ratios of the medians.
"""
import argparse
import json
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile

BATCH, LENGTH, VOCABULARY = 4, 1024, 50257
MALLOC = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=34359738368:"
          "glibc.malloc.top_pad=268435456:glibc.malloc.arena_max=1")


def torch_steps(steps, threads, compiled):
    """In a child process: prints seconds of each step and the peak resident bytes as JSON."""
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
            self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
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
    rows = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    seconds = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        forward(rows[:, :-1], rows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds[1:], "peak": peak}))


def run_torch(arguments, compiled):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment["GLIBC_TUNABLES"] = MALLOC
    environment["OMP_NUM_THREADS"] = str(arguments.threads)
    command = [sys.executable, __file__, "--torch-child", str(arguments.steps), str(arguments.threads), str(int(compiled))]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return BATCH * LENGTH / statistics.median(result["seconds"]), result["peak"]


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
max_sequence = {LENGTH}
[data]
plugin = "tokens"
sequence_length = {LENGTH}
[[data.source]]
path = "tokens.bin"
format = "raw_u16"
[batch]
micro = {BATCH}
global = {BATCH}
[optimizer]
plugin = "adamw"
lr = 1e-4
betas = [0.9, 0.95]
clip_norm = 1.0
""")
    with open(os.path.join(folder, "tokens.bin"), "wb") as file:
        count = 40 * LENGTH
        file.write(struct.pack(f"<{count}H", *[random.randrange(VOCABULARY) for _ in range(count)]))
    plan = json.loads(subprocess.run([arguments.capstan, "plan", path, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    process = subprocess.Popen([arguments.capstan, "train", path], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"capstan train: exit code {process.returncode}")
    runs = sorted((d for d in os.listdir(folder) if d.startswith("run-")),
                  key=lambda d: os.path.getmtime(os.path.join(folder, d)))
    with open(os.path.join(folder, runs[-1], "metrics.jsonl")) as file:
        rates = [json.loads(line)["tokens_per_s"] for line in file][1:]
    return statistics.median(rates), usage.ru_maxrss * 1024, plan["memory"]["total_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capstan")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
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
        torch_steps(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
    else:
        main()
