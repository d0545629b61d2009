"""Writes texts with a real vLLM, in its own environment: the settings come as JSON, and the tokens leave as JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

BEGINNINGS = "Once upon a time there was", "The old house stood at the end of", "Pewnego razu był sobie", "Одного разу"
PROMPTS = [f"{beginning} {number}" for number in range(16) for beginning in BEGINNINGS]
TOKENS = 48


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ.update(given["environment"])
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(**given["engine"])
    shape = given.get("structured")
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=TOKENS,
        ignore_eos=shape is None,
        structured_outputs=None if shape is None else StructuredOutputsParams(**shape),
    )
    if given.get("kill"):
        print("WRITTEN", json.dumps(killed(llm, sampling)))
        return
    texts = [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, sampling, use_tqdm=False)]
    counts = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    print("WRITTEN", json.dumps({"texts": texts, "counts": counts}))


def killed(llm: Any, sampling: Any) -> dict[str, Any]:
    """What is said where the process that drafts ends in the middle, and which processes are left. (Where that of the
    core ends, vLLM 0.33 waits for ever, with drafts or without.)"""
    import psutil

    children = [child for child in psutil.Process().children(recursive=True) if "VLLM" in child.name()]
    worker = next(child for child in children if "Worker" in child.name())
    threading.Timer(1.0, worker.kill).start()
    said = ""
    try:
        while not said:
            llm.generate(PROMPTS, sampling, use_tqdm=False)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    psutil.wait_procs(children, timeout=20)
    left = [child.pid for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    return {"said": said, "left": left}


if __name__ == "__main__":
    main()
