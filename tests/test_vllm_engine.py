"""Drafts inside a real vLLM: greedy texts of 64 requests are those of plain vLLM, whatever its settings.

``PACELINE_VLLM`` names the Python of an environment that has vLLM and paceline's dependencies.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.drafters.indexing import build
from paceline.integrations.vllm.settings import VLLMSettings
from paceline_lab.bench.peers.weights import ordinary
from vllm_engine import PROMPTS, TOKENS

PYTHON = os.environ.get("PACELINE_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="PACELINE_VLLM names no Python with vLLM"),
]
HERE = Path(__file__).parent
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ALONE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
METHODS = (
    *("dictionary", "hybrid", "lookup", "suffix:remember=20000", "rest", "dictionary+lookup"),
    *("recycling", "unispec", "foresight"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "a separate core process": {"environment": {}},
    "chunked prefill": {"engine": {"max_num_batched_tokens": 64, "max_num_seqs": 32}},
    "preemption": {"engine": {"num_gpu_blocks_override": 20, "block_size": 32}},
    "prefix caching": {"engine": {"enable_prefix_caching": True}},
    "a regex": {"structured": {"regex": r"[a-z ]{10,40}\."}},
    "a JSON schema": {"structured": {"json": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
    "two tensor parallel ranks": {
        "engine": {"tensor_parallel_size": 2},
        "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model")
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    assert lm.vocabulary is not None
    ordinary(lm.target).save_pretrained(place)
    lm.vocabulary.tokenizer.save_pretrained(place)
    return str(place)


@cache
def written(folder: str, method: str | None, name: str = "", kill: bool = False) -> dict[str, Any]:
    how = SETTINGS.get(name, {})
    engine = {"model": folder, "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "seed": 0}
    engine |= {"disable_log_stats": False, **how.get("engine", {})}
    if method is not None:
        settings = VLLMSettings(method=method)
        engine |= {"speculative_config": settings.speculative(8), "additional_config": settings.additional()}
    environment = ENVIRONMENT | how.get("environment", ALONE)
    given = {"engine": engine, "environment": environment, "structured": how.get("structured"), "kill": kill}
    run = subprocess.run(
        [PYTHON, str(HERE / "vllm_engine.py"), json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | environment | {"PYTHONPATH": str(HERE.parent / "src")},
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("WRITTEN ")]
    assert lines, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("WRITTEN "))
    return found


@pytest.fixture(scope="module")
def methods(folder: str) -> dict[str, str]:
    """By name; `rest` retrieves from what plain vLLM writes."""
    vocabulary = paceline.load("pocket", dtype="float32").vocabulary
    assert vocabulary is not None
    corpus = Path(folder) / "corpus.rest"
    build(corpus, [np.array(text) for text in written(folder, None)["texts"]], vocabulary.fingerprint)
    return {name: f"rest:corpus='{corpus}'" if name == "rest" else name for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_greedy_texts_are_those_of_plain_vllm(folder: str, methods: dict[str, str], name: str) -> None:
    found = written(folder, methods[name])
    assert found["texts"] == written(folder, None)["texts"]
    assert found["counts"]["vllm:spec_decode_num_accepted_tokens"] > 0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_so_they_are_with_other_settings(folder: str, methods: dict[str, str], name: str, setting: str) -> None:
    found = written(folder, methods[name], setting)
    assert found["texts"] == written(folder, None, setting)["texts"]
    if setting != "a JSON schema":  # which no dictionary completes
        assert found["counts"]["vllm:spec_decode_num_accepted_tokens"] > 0
    if setting == "preemption":
        assert found["counts"]["vllm:num_preemptions"] > 0


def test_a_killed_worker_is_one_sentence_and_leaves_nothing(folder: str) -> None:
    found = written(folder, "suffix:remember=20000", "a separate core process", kill=True)
    assert found == {"said": found["said"], "left": []}
    assert found["said"].startswith("EngineDeadError: ")
    assert "\n" not in found["said"]


def test_a_wrong_setting_is_one_sentence_before_the_model_loads(folder: str) -> None:
    for spec, said in (
        ("dictionary:file=gone.dict", "cannot read the dictionary gone.dict"),
        ("assistant:model=x", "method 'assistant' does not draft inside vLLM"),
    ):
        with pytest.raises(AssertionError, match=said):
            written(folder, spec)


def test_sixteen_clients_stream_from_a_server(folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = VLLMSettings(method="hybrid")
    command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", folder, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--speculative-config", json.dumps(settings.speculative(8))]
    command += ["--additional-config", json.dumps(settings.additional())]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE.parent / "src")}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)

        def streamed(prompt: str) -> str:
            body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps({"model": folder, **body}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                lines = [line.decode().removeprefix("data: ").strip() for line in answer if line.startswith(b"data: ")]
            return "".join(json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")

        with ThreadPoolExecutor(16) as clients:
            texts = list(clients.map(streamed, PROMPTS[:32]))
        tokenizer = paceline.load("pocket", dtype="float32").vocabulary
        assert tokenizer is not None
        plain = written(folder, None)["texts"][:32]
        assert [text.strip() for text in texts] == [tokenizer.text(ids).strip() for ids in plain]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 180
    while time.monotonic() < ends and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError("the server did not start")
