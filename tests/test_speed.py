"""A type that nobody named is one that this processor is fast in."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import paceline
from clock import MadeClock
from families import build
from paceline.cli import main
from paceline.files import CACHE
from paceline.targets import memory
from paceline.targets.hf import packed, speed
from paceline.targets.hf.joined import LinearSlice
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.speed import TIMED_ROWS, relative, slowness, widened
from paceline.targets.place import free_memory
from paceline.tree import DraftTree
from scoring import load_quietly, score, tokens

pytestmark = pytest.mark.usefixtures("not_compiled")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Makes this processor so many times as slow in types other than float32, and every model large."""
    times = [3.0]
    monkeypatch.setattr(speed, "SMALL_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(speed, "slowness", lambda *_: times[0])
    return times


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "half"
    build("llama", tie_word_embeddings=True).to(torch.bfloat16).save_pretrained(path)
    return path


def test_times_are_shares_of_the_quickest_by_rows(clock: MadeClock) -> None:
    def taking(seconds: dict[int, float]) -> speed.Layer:
        def layer(rows: torch.Tensor) -> None:
            clock.now += seconds[len(rows)]

        return layer

    steady, steep = dict.fromkeys(TIMED_ROWS, 2.0), {rows: float(rows) for rows in TIMED_ROWS}
    found = relative([taking(steady), taking(steep)], [torch.ones(max(TIMED_ROWS), 2)] * 2, clock)
    assert found == pytest.approx([(2 + 1 + 1) / 3, (1 + 2 + 8) / 3], rel=0.01)


def test_a_type_is_timed_with_real_kernels() -> None:
    assert slowness(torch.float32, 256, 512, torch.get_num_threads()) == pytest.approx(1.0, rel=20)
    assert slowness(torch.bfloat16, 256, 512, torch.get_num_threads()) > 0
    assert slowness(torch.float16, 256, 512, torch.get_num_threads()) > 0


def test_a_slow_type_becomes_float32(slow: list[float], folder: Path) -> None:
    target = paceline.load(folder, tokenizer=None).target
    assert target.dtype == "float32"
    assert "bfloat16, the checkpoint's type, take 3.0 times as long" in target.note
    named = paceline.load(folder, tokenizer=None, dtype="float32").target
    assert named.note is None
    assert target.fingerprint() == named.fingerprint()


def test_a_fast_type_stays(slow: list[float], folder: Path) -> None:
    slow[0] = 0.6
    target = paceline.load(folder, tokenizer=None).target
    assert (target.dtype, target.note) == ("bfloat16", None)


def test_a_named_type_stays(slow: list[float], folder: Path) -> None:
    target = paceline.load(folder, tokenizer=None, dtype="bfloat16").target
    assert (target.dtype, target.note) == ("bfloat16", None)


def test_a_model_in_memory_stays(slow: list[float]) -> None:
    assert paceline.load(build("llama").to(torch.bfloat16), tokenizer=None).target.dtype == "bfloat16"


def test_a_small_model_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "slowness", lambda *_: pytest.fail("it was timed"))
    assert paceline.load(folder, tokenizer=None).target.dtype == "bfloat16"


def test_what_does_not_fit_into_memory_stays(slow: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "free_memory", lambda device: 1000)
    model = build("llama").to(torch.bfloat16)
    assert "do not fit into memory" in str(widened(model))
    assert model.dtype is torch.bfloat16


def test_tied_weights_stay_tied(slow: list[float]) -> None:
    model = build("llama", tie_word_embeddings=True).to(torch.bfloat16)
    assert widened(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model(torch.from_numpy(tokens(5))[None]).logits.dtype is torch.float32


def test_the_command_line_says_it_in_a_line(
    slow: list[float], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "time", "forwards", "--model", str(folder), "--rounds", "1"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "float32" in line]
    assert len(lines) == 1
    assert lines[0].endswith("--dtype bfloat16 keeps it")


def test_a_quantised_checkpoint_stays(slow: list[float]) -> None:
    model = build("llama").to(torch.bfloat16)
    model.is_quantized = True
    assert widened(model) is None
    assert model.dtype is torch.bfloat16


def test_a_model_without_linear_layers_stays(slow: list[float]) -> None:
    model = build("gpt2").to(torch.bfloat16)
    model.lm_head = torch.nn.Identity()
    assert widened(model) is None


@pytest.fixture
def no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes packed weights slow on this processor, and every model and layer large."""
    monkeypatch.setattr(speed, "SMALL_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(speed, "slowness_of_packing", lambda *_: 2.0)
    monkeypatch.setitem(packed.SMALLEST, torch.float32, 1)


def test_packing_is_timed_with_real_kernels() -> None:
    assert speed.slowness_of_packing(torch.float32, 256, 512, torch.get_num_threads()) > 0


def test_weights_are_packed_where_that_is_not_slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packed.SMALLEST, torch.float32, 1)
    model = paceline.load(folder, tokenizer=None, dtype="float32").target.model
    assert isinstance(model.lm_head, PackedLinear)


def test_where_packed_weights_are_slow_layers_are_joined_as_they_are(no_packing: None, folder: Path) -> None:
    target = paceline.load(folder, tokenizer=None, dtype="float32").target
    layers = [layer for layer in target.model.modules() if isinstance(layer, PackedLinear)]
    assert {type(layer) for layer in layers} == {LinearSlice}
    assert {type(layer.joint.layer) for layer in layers} == {torch.nn.Linear}
    assert type(target.model.lm_head) is torch.nn.Linear
    line = tokens(9)
    wanted = load_quietly(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32))
    assert torch.allclose(
        score(target, target.open(), int(line[0]), DraftTree.chain(line[1:])),
        score(wanted, wanted.open(), int(line[0]), DraftTree.chain(line[1:])),
        atol=1e-4,
    )


LAYER = torch.float32, 256, 512, 1
"""Type, inputs, outputs and threads."""


@pytest.fixture
def ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What packed weights take, a value for each measurement: on both sides of the limit. Nothing is known yet."""
    left = [speed.SLOWER * share for share in (1.01, 0.99, 1.02, 0.98)]
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(speed, "relative", lambda *_: [left.pop(0), 1.0])
    return left


def in_a_new_process(layer: tuple[torch.dtype, int, int, int] = LAYER) -> float:
    speed.slowness_of_packing.cache_clear()
    found = speed.slowness_of_packing(*layer)
    speed.slowness_of_packing.cache_clear()
    return found


def test_a_machine_chooses_once(ratios: list[float]) -> None:
    first, *_ = list(ratios)
    assert [in_a_new_process() for _ in range(3)] == [first] * 3
    assert len(ratios) == 3


def test_processes_that_measure_at_once_choose_alike(ratios: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile: list[float] = []
    timed = speed.relative

    def slow(*given: Any) -> list[float]:
        if not meanwhile:
            meanwhile.append(0.0)
            pool.submit(lambda: meanwhile.append(in_a_new_process()))
            time.sleep(0.2)
        return timed(*given)

    monkeypatch.setattr(speed, "relative", slow)
    with ThreadPoolExecutor(1) as pool:
        found = in_a_new_process()
    assert meanwhile[1:] == [found]
    assert len(ratios) == 3


@pytest.mark.parametrize(
    "other", [(torch.bfloat16, 256, 512, 1), (torch.float32, 256, 512, 2), (torch.float32, 512, 256, 1)]
)
def test_other_layers_and_threads_are_measured_by_themselves(ratios: list[float], other: Any) -> None:
    assert in_a_new_process() != in_a_new_process(other)


@pytest.mark.parametrize("name", ["versions", "kernels", "processor"])
def test_other_machines_and_libraries_measure_again(
    ratios: list[float], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_a_new_process()
    monkeypatch.setattr(speed, name, lambda: {"torch": "0"} if name == "versions" else "another")
    assert in_a_new_process() != first


def test_a_damaged_record_is_measured_again(ratios: list[float], tmp_path: Path) -> None:
    first = in_a_new_process()
    (file,) = (tmp_path / speed.FOLDER).glob("*.json")
    file.write_text(file.read_text()[:-5])
    again = in_a_new_process()
    assert again != first
    assert in_a_new_process() == again


CPU = torch.device("cpu")


def test_free_memory_is_known_or_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = free_memory(CPU)
    assert known is not None
    assert known > 1 << 20
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "nothing")
    guessed = free_memory(CPU)
    assert guessed is not None
    assert guessed > 1 << 20
    monkeypatch.delattr(memory.os, "sysconf")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert free_memory(CPU) is None


def test_a_container_may_leave_less_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("9000\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 6500\ninactive_file 400\n")
    assert free_memory(CPU) == 2400
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(CPU) != 2400
