"""Writes with one engine, in an environment of vLLM that has none of our benchmarks: JSON in, JSON out."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    given: dict[str, Any] = json.loads(sys.stdin.read())
    os.environ.update(given["environment"])
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]

    llm = LLM(**given["engine"])
    sampling = SamplingParams(temperature=0.0, max_tokens=given["tokens"], ignore_eos=True)
    llm.generate(given["prompts"][:1], SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
    before, began = counts(llm), time.perf_counter()
    written = llm.generate(given["prompts"], sampling, use_tqdm=False)
    seconds, after = time.perf_counter() - began, counts(llm)
    found = {
        "texts": [list(one.outputs[0].token_ids) for one in written],
        "seconds": seconds,
        "counts": {name: after[name] - before.get(name, 0) for name in after},
    }
    print("WRITTEN", json.dumps(found))


def counts(llm: Any) -> dict[str, int]:
    """Drafted and accepted tokens so far."""
    wanted = ("draft_tokens", "accepted_tokens")
    return {
        name: one.value for one in llm.get_metrics() for name in wanted if one.name == f"vllm:spec_decode_num_{name}"
    }


if __name__ == "__main__":
    main()
