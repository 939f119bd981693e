"""One MoE block of transformers on the CPU, run once for each line that is asked.

    python moe_block.py HIDDEN INTERMEDIATE EXPERTS TOP_K THREADS

Prints `ready VERSIONS`, then for each line `IMPLEMENTATION TOKENS` on standard input the seconds
of one call, or `no REASON`. Weights and activations are random bf16.
"""

import os
import sys
import time

hidden, intermediate, experts, top_k, threads = map(int, sys.argv[1:6])
os.environ["OMP_NUM_THREADS"] = str(threads)
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

transformers.logging.set_verbosity_error()
torch.set_num_threads(threads)
torch.manual_seed(0)
config = OlmoeConfig(
    hidden_size=hidden,
    intermediate_size=intermediate,
    num_experts=experts,
    num_experts_per_tok=top_k,
    num_hidden_layers=1,
)
block = OlmoeSparseMoeBlock(config).to(torch.bfloat16).eval()
for parameter in block.parameters():
    torch.nn.init.normal_(parameter, 0.0, 0.02)
inputs = {}

print(f"ready torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
with torch.inference_mode():
    for line in sys.stdin:
        implementation, tokens = line.split()
        tokens = int(tokens)
        if tokens not in inputs:
            inputs[tokens] = torch.randn(1, tokens, hidden).to(torch.bfloat16)
        try:
            for of in (config, block.experts.config):
                of._experts_implementation = implementation
            # The other process computed meanwhile: threads wake, and come to a processor each.
            start = time.perf_counter()
            while time.perf_counter() - start < 0.05:
                block(inputs[tokens])
            start = time.perf_counter()
            block(inputs[tokens])
            print(time.perf_counter() - start, flush=True)
        except Exception as error:
            print("no", repr(error).replace("\n", " "), flush=True)
