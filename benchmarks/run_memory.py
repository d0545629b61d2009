"""Memory of a long run: what a text of 2,000 tokens takes beyond the cache set aside for it.

    python benchmarks/run_memory.py [--model PATH] [--tokens 2000] [--json]

Without --model a random Llama of about 20M parameters is made. Two readings: the bytes of the key and value buffers
after the first round and after the last, and the resident memory of the process every 250 tokens.
"""

import argparse
import json
import os

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

import paceline
from paceline.api.model import LanguageModel
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget


def random_llama() -> LanguageModel:
    config = LlamaConfig(
        vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=8192, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    return LanguageModel(prepare(HFTarget(LlamaForCausalLM(config), name="random Llama")))


def resident() -> float:
    """Megabytes of this process in memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--method", default="lookup")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model) if options.model else random_llama()
    prompt = np.random.default_rng(0).integers(0, lm.target.vocab_size, 32)
    settings = {"method": options.method, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True}
    lm.generate(prompt, max_new_tokens=20, **settings)
    lm.forget()
    rows = lm.target.open(len(prompt) + options.tokens + 64)
    lm.return_rows(rows)
    caches, readings = [], []
    for count, _ in enumerate(lm.stream(prompt, max_new_tokens=options.tokens, **settings), start=1):
        caches.append(rows.nbytes)
        if count % 250 == 0 or count == 50:
            readings.append(round(resident(), 1))
            print(f"{count:6} tokens: cache {rows.nbytes / 2**20:8.2f} MB set aside, resident {readings[-1]:8.1f} MB")
    result = {"cache_bytes_first": caches[0], "cache_bytes_last": caches[-1], "resident_mb": readings}
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
