"""Capstan against PyTorch: weights that Capstan wrote, loaded by Hugging Face transformers, give the same
logits, loss and gradients on the same tokens, and 20 AdamW steps the same loss curve.

    parity.py CAPSTAN PARITY_LOGITS

Exit code 77 (skipped) where torch, transformers or safetensors is not installed.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}; set CAPSTAN_PARITY_PYTHON to an interpreter with torch, transformers and safetensors")
    sys.exit(77)

CAPSTAN, LOGITS = sys.argv[1:3]
VOCABULARY, LENGTH, BATCH, STEPS = 211, 40, 4, 20

MODELS = {
    "gpt2": "layers = 3\nwidth = 72\nheads = 6\nmax_sequence = 48",
    "llama": "layers = 3\nwidth = 64\nheads = 8\nkv_heads = 2\nmlp_width = 176\nmax_sequence = 48",
}


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def config(folder, name, model, optimizer, steps, weights=""):
    path = os.path.join(folder, name + ".toml")
    with open(path, "w") as file:
        file.write(f"""
[run]
name = "{name}"
dir = "{name}"
steps = {steps}
seed = 5
[model]
plugin = "{model}"
weights = "{weights}"
""" + ("" if weights else f"vocabulary = {VOCABULARY}\n{MODELS[model]}\n") + f"""
[data]
plugin = "tokens"
order = "sequential"
sequence_length = {LENGTH}
sample_stride = {LENGTH + 1}
[[data.source]]
path = "tokens.bin"
format = "raw_u16"
[batch]
micro = {BATCH}
global = {BATCH}
{optimizer}
""")
    return path


def losses(folder, name):
    with open(os.path.join(folder, name, "metrics.jsonl")) as file:
        return [json.loads(line)["loss"] for line in file]


def close(what, ours, theirs, tolerance):
    scale = theirs.abs().max().item()
    worst = (ours - theirs).abs().max().item() / max(scale, 1e-30)
    print(f"  {what:44s} worst difference {worst:.2e} of the largest")
    if not worst <= tolerance:
        sys.exit(f"parity: {what} differs by {worst:.3e}, more than {tolerance}")


def check(model):
    print(model)
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(3)
        tokens = [[rng.randrange(VOCABULARY) for _ in range(LENGTH + 1)] for _ in range(BATCH * STEPS)]
        with open(os.path.join(folder, "tokens.bin"), "wb") as file:
            for row in tokens:
                file.write(struct.pack(f"<{len(row)}H", *row))
        # Weights by Capstan: its own initial values, moved a little so that biases are not zero.
        first = config(folder, "first", model, "[optimizer]\nplugin = \"adamw\"\nlr = 1e-2\n", 3)
        run(CAPSTAN, "train", first)
        weights = os.path.join(folder, "weights")
        run(CAPSTAN, "export", os.path.join(folder, "first"), weights)
        theirs = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager")
        theirs.train()

        # Logits of one sequence.
        row = torch.tensor([tokens[0][:LENGTH]])
        ours = torch.frombuffer(bytearray(run(LOGITS, first, weights, input=struct.pack(f"={LENGTH}i", *tokens[0][:LENGTH]))),
                                dtype=torch.float32).reshape(LENGTH, -1)[:, :VOCABULARY]
        with torch.no_grad():
            close("logits", ours, theirs(row).logits[0], 1e-4)

        def batch_loss(step):
            rows = torch.tensor(tokens[step * BATCH:(step + 1) * BATCH])
            logits = theirs(rows[:, :-1]).logits
            return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))

        # Loss and gradients: one step of plain descent with a large rate leaves the gradient in the weights.
        rate = 1000.0
        descent = config(folder, "descent", model,
                         f"[optimizer]\nplugin = \"sgd\"\nlr = {rate}\nmomentum = 0.0\nweight_decay = 0.0\nclip_norm = 0.0\n", 1, weights)
        run(CAPSTAN, "train", descent)
        loss = batch_loss(0)
        close("loss", torch.tensor(losses(folder, "descent")[0]), loss.detach(), 1e-4)
        theirs.zero_grad()
        loss.backward()
        before = load_file(os.path.join(weights, "model.safetensors"))
        after = load_file(os.path.join(folder, "descent/checkpoints/step-00000001/model.safetensors"))
        norm = sum((p.grad ** 2).sum() for p in theirs.parameters()).sqrt().item()
        compared = 0
        for name, parameter in theirs.named_parameters():
            key = name if name in before else name.removeprefix("transformer.").removeprefix("model.")
            gradient = (before[key] - after[key]) / rate
            scale = max(parameter.grad.abs().max().item(), 1e-3 * norm)
            worst = (gradient - parameter.grad).abs().max().item() / scale
            if not worst <= 1e-4:
                sys.exit(f"parity: gradient of {name} differs by {worst:.3e} of its scale")
            compared += 1
        print(f"  gradients of {compared} parameters agree within 1e-4 of their scale")

        # The loss curve of 20 AdamW steps.
        adamw = config(folder, "adamw", model, "[optimizer]\nplugin = \"adamw\"\nlr = 1e-3\nbetas = [0.9, 0.95]\neps = 1e-8\n"
                       "weight_decay = 0.1\nclip_norm = 1.0\n", STEPS, weights)
        run(CAPSTAN, "train", adamw)
        groups = [{"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        curve = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = batch_loss(step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            curve.append(loss.item())
        close("loss of 20 AdamW steps", torch.tensor(losses(folder, "adamw")), torch.tensor(curve), 1e-3)


for name in MODELS:
    check(name)
print("parity holds")
