"""A model over several ranks writes what one process writes, whatever drafts for it, and no rank waits for a dead
one."""

import itertools
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import families
import paceline
from over_ranks import PROMPTS, ended, over_ranks, started, written
from paceline.cli import main
from paceline.errors import InputError
from paceline.targets.hf.ranks.target import check_tracks
from paceline.targets.hf.tracks import TracksConfig, TracksForCausalLM
from paceline_lab.check.tiny import build, configuration

METHODS = ("plain", "lookup", "assistant", "redrafter", "auto")
TREES = {"method": "recycling", "planner": "fixed:12"}


def cases(
    prompts: list[str], methods: tuple[str, ...], tokens: int, temperatures: tuple[float, ...] = (0.0, 0.8)
) -> list[dict[str, Any]]:
    common = {"max_new_tokens": tokens, "seed": 3}
    draft = {"assistant": {"draft_model": "pocket-draft"}}
    return [
        {"prompt": prompt, "method": method, "temperature": temperature, **common, **draft.get(method, {})}
        for temperature, prompt, method in itertools.product(temperatures, prompts, methods)
    ]


def of_tiny(tokens: int = 16) -> list[dict[str, Any]]:
    """Texts that pass the tiny models' windows, by chains, by trees and in a batch."""
    prompts = [[5, 9, 33, 71, 2, 18, 40, 5, 9, 33, 7], [61, 3, 3, 12], [90, 14, 25, 36, 47, 58, 69, 80, 91, 2]]
    common = {"max_new_tokens": tokens, "temperature": 0.8, "seed": 5}
    one = {"prompt": prompts[0], **common}
    return [
        *({**one, "method": method} for method in ("plain", "lookup")),
        {**one, **TREES},
        {"prompt": prompts, **common, **TREES, "batch": True},
    ]


def tiny_model(model_type: str, folder: Path, variant: str = "switches") -> str:
    """A tiny random model of a type in a folder."""
    config = configuration(model_type, variant)
    assert config is not None
    build(config, 1).save_pretrained(folder)
    return str(folder)


def tokens_of(found: list[dict[str, Any]]) -> list[list[list[int]]]:
    return [each["tokens"] for each in found]


def alone(model: str, own: list[dict[str, Any]]) -> list[list[list[int]]]:
    return tokens_of(written(paceline.load(model), own))


def in_tracks(folder: Path, count: int) -> str:
    """An untrained draft model for `pocket`."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}
    pocket = paceline.load("pocket")
    config = TracksConfig(
        tracks=count, segments=2, num_hidden_layers=3, head_dim=16, vocab_size=pocket.target.vocab_size, **sizes
    )
    TracksForCausalLM(config).save_pretrained(folder)
    assert pocket.vocabulary is not None
    pocket.vocabulary.tokenizer.save_pretrained(folder)
    return str(folder)


class TwoRanks(NamedTuple):
    """What two ranks wrote, and one process."""

    pocket: list[dict[str, Any]]
    pocket_alone: list[dict[str, Any]]
    tracks: list[dict[str, Any]]
    tracks_alone: list[dict[str, Any]]
    tiny: list[dict[str, Any]]
    tiny_alone: list[dict[str, Any]]
    layers: int
    """Of `pocket`."""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> TwoRanks:
    """One start of two processes for all texts: it takes longer than they do."""
    made = tmp_path_factory.mktemp("made")
    folder = tiny_model("mistral", made / "mistral")
    own = [
        *cases(PROMPTS[:1], METHODS, 12, (0.8,)),
        *cases(PROMPTS[:1], ("plain", "auto"), 12, (0.0,)),
        {"prompt": PROMPTS[:3], "method": "auto", "max_new_tokens": 8, "temperature": 0.8, "seed": 3, "batch": True},
    ]
    common = {"method": "assistant", "max_new_tokens": 10, "seed": 3, "planner": "fixed:3"}
    drafts = {**common, "draft_model": in_tracks(made / "tracks", 2)}
    by_tracks = [
        {**drafts, "prompt": PROMPTS[1], "max_new_tokens": 1},  # in which the draft model is opened and probed
        *({**drafts, "prompt": PROMPTS[1], "temperature": temperature} for temperature in (0.0, 0.8)),
        {**drafts, "prompt": PROMPTS[:2], "temperature": 0.8, "batch": True},
    ]
    found, tiny = over_ranks(["pocket", folder], [own + by_tracks, of_tiny()])
    lm = paceline.load("pocket")
    wanted, count = written(lm, own + by_tracks), len(own)
    tiny_alone = written(paceline.load(folder), of_tiny())
    each = (found[:count], wanted[:count], found[count:], wanted[count:], tiny, tiny_alone)
    return TwoRanks(*each, lm.target.layers)


def test_two_ranks_write_what_one_process_writes(two_ranks: TwoRanks) -> None:
    """At temperature 0 and above, by every kind of drafter, in trees and batches, with windows; and the collectives of
    a forward are two sums a layer and one gathering of logits."""
    pocket, tiny, layers = two_ranks.pocket, two_ranks.tiny, two_ranks.layers
    assert tokens_of(pocket) == tokens_of(two_ranks.pocket_alone)
    assert tokens_of(tiny) == tokens_of(two_ranks.tiny_alone)
    plain = pocket[0]
    forwards = plain["rounds"] + 1  # the one of the prompt scores the first token
    assert plain["counts"] == [2 * layers * forwards, forwards]
    assert len({*map(tuple, tiny[-1]["tokens"])}) == 3


def test_a_draft_in_tracks_runs_on_the_same_ranks(two_ranks: TwoRanks) -> None:
    """A track on each; they meet twice in a forward of the draft model, in float32 with the drafts of one process."""
    found, wanted = two_ranks.tracks, two_ranks.tracks_alone
    assert tokens_of(found) == tokens_of(wanted)
    assert [each["rounds"] for each in found] == [each["rounds"] for each in wanted]
    for each in found[1:3]:
        sums, gatherings = each["counts"]
        drafted = sums - 2 * two_ranks.layers * gatherings
        assert drafted > 0
        assert drafted == 2 * each["forwards"], "the draft model's forwards have two sums each, and no gathering"


def test_a_rank_that_dies_ends_all() -> None:
    command = [sys.executable, "-m", "paceline", "generate", "Once", "--tensor-parallel", "2", "--no-probe"]
    running = started([*command, "-n", "4000", "--ignore-eos", "--method", "plain"])
    leader, follower = running
    assert leader.stdout is not None
    assert leader.stdout.read(1)
    follower.send_signal(signal.SIGKILL)
    (code, _, said), (other, _, nothing) = ended(running)
    assert (code, other) == (1, -signal.SIGKILL)
    sentence = said.splitlines()[-1]
    assert re.match(r"paceline generate: error: one of the 2 processes that compute this model has ended", sentence)
    assert "Traceback" not in said
    assert nothing == ""


PARTING = """
import os, sys, time
import torch, torch.distributed as distributed
from paceline.targets.hf.ranks.processes import joined_processes
with joined_processes():
    late = os.environ["RANK"] == "1"
    held = [distributed.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
    for one in held:
        one.wait()
    time.sleep(late)
    if sys.argv[1] == "fails" and late:
        raise KeyError("a mistake in a script")
    if sys.argv[1] == "fails":
        distributed.barrier()
assert not distributed.is_initialized()
print("parted")
"""


def test_processes_part_in_step() -> None:
    """Though one is late, and results are held. Where one fails, the other does not wait for it."""
    found = [ended(started([sys.executable, "-c", PARTING, how])) for how in ("ends", "fails")]
    assert [(code, out.strip(), said) for code, out, said in found[0]] == [(0, "parted", "")] * 2
    (code, out, _), (other, _, why) = found[1]
    assert (code, other, out) == (1, 1, "")
    assert "KeyError: 'a mistake in a script'" in why


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["generate", "Once", "--tensor-parallel", "2", *flags]) == 2
    return capsys.readouterr().err


def test_what_is_not_cut_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torchrun did not start any: torchrun --nproc-per-node 2 -m paceline" in refused(capsys)
    assert "leave out quantize=int8" in refused(capsys, "--quantize", "int8")
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "needs 2 processes, and there are 3" in refused(capsys)
    monkeypatch.setenv("WORLD_SIZE", "three")
    assert "WORLD_SIZE in the environment is a number of processes, not 'three'" in refused(capsys)
    assert main(["methods", "lookup"]) == 0, "other commands do not read it"
    with pytest.raises(paceline.InputError, match="give its folder or name"):
        paceline.load(families.build("llama"), tensor_parallel=2)
    with pytest.raises(paceline.InputError, match="a number of ranks, 1 or more, not 0"):
        paceline.load("pocket", tensor_parallel=0)


class PretendedGroup:
    """As many ranks as a test wants, of which this is one; nothing is sent."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self.size, self.rank, self.leads, self.device = size, rank, rank == 0, "cpu"

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        return part


def test_heads_that_ranks_do_not_divide_are_refused() -> None:
    from paceline.targets.hf.ranks.cut import cut

    group: Any = PretendedGroup(3)
    with pytest.raises(paceline.InputError, match="num_attention_heads is 4, which 3 ranks do not divide; take 1 or 2"):
        cut(families.build("llama"), group)
    group = PretendedGroup(4)
    with pytest.raises(paceline.InputError, match="num_key_value_heads is 2, which 4 ranks do not divide"):
        cut(families.build("llama"), group)
    for name, model in {"gpt2": "GPT2LMHeadModel", "phi3": "Phi3ForCausalLM"}.items():
        with pytest.raises(paceline.UnsupportedModel, match=f"no tensor plan that divides layers of {model}"):
            cut(families.build(name), group)


def test_parts_add_up_to_the_whole() -> None:
    """Of experts as well: what ranks compute of one layer, added up, is what the whole layer computes."""
    from paceline.targets.hf.ranks.cut import cut

    whole = families.build("mixtral")
    if "ep_router" in whole._tp_plan.values():  # of transformers that divide experts, not what each of them computes
        with pytest.raises(
            paceline.UnsupportedModel, match=r"ways that are not known here \(ep_router, gather, local_"
        ):
            cut(whole, PretendedGroup(2))  # type: ignore[arg-type]
        whole, kind = families.build("llama"), "llama"
    else:
        kind = "mixtral"
    states = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    parts = []
    for rank in range(2):
        model, group = families.build(kind), PretendedGroup(2, rank)
        cut(model, group)  # type: ignore[arg-type]
        parts.append(model)
    layer = whole.model.layers[0]
    with torch.no_grad():
        whole_mlp = layer.mlp(states)
        both = sum(part.model.layers[0].mlp(states) for part in parts)
        assert torch.allclose(whole_mlp, both, atol=1e-5)
        logits = torch.cat([part.lm_head(states) for part in parts], dim=-1)[..., : families.VOCAB]
        assert torch.allclose(whole.lm_head(states), logits, atol=1e-5)
    weights = [sum(each.numel() for each in part.parameters()) for part in parts]
    assert max(weights) < 0.75 * sum(each.numel() for each in whole.parameters())


@pytest.mark.slow
def test_twenty_prompts() -> None:
    own = cases([f"{prompt} {number}" for number in range(5) for prompt in PROMPTS], METHODS, 24)
    (found,) = over_ranks(["pocket"], [own])
    assert tokens_of(found) == alone("pocket", own)
    assert len(own) == 200


PLANNED = ("llama", "qwen3", "gemma2", "gemma3", "olmo2", "mixtral", "qwen3_moe", "cohere2", "starcoder2")


@pytest.mark.slow
def test_families_over_ranks(tmp_path: Path) -> None:
    folders = []
    for name in PLANNED:
        families.build(name).save_pretrained(tmp_path / name)
        folders.append(str(tmp_path / name))
    found = over_ranks(folders, [of_tiny()] * len(folders))
    for name, folder, each in zip(PLANNED, folders, found, strict=True):
        assert tokens_of(each) == alone(folder, of_tiny()), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rotates by the largest position")
def test_rotary_switches_and_early_exits_over_ranks(tmp_path: Path) -> None:
    """Rows that are read again, and drafts begun in the middle of a forward of all ranks."""
    folders = [tiny_model("llama", tmp_path / variant, variant) for variant in ("dynamic", "longrope")]
    exits = [{"prompt": PROMPTS[0], "method": "mirror", "draft_model": "pocket-draft", "max_new_tokens": 24, "seed": 3}]
    found = over_ranks([*folders, "pocket"], [of_tiny(), of_tiny(), exits])
    for folder, each in zip(folders, found, strict=False):
        assert tokens_of(each) == alone(folder, of_tiny()), folder
    assert tokens_of(found[-1]) == alone("pocket", exits)


@pytest.mark.slow
def test_torchrun_checks_a_model_over_ranks() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check = [*torchrun, "-m", "paceline", "check", "--tensor-parallel", "2", "--json", "--batch", "3", "-n", "24"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert '"bugs": 0' in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("tracks", "ranks"), [(4, 2), (2, 4), (1, 2)])
def test_tracks_that_are_not_the_ranks_are_refused(tracks: int, ranks: int) -> None:
    with pytest.raises(InputError, match=f"drafts/mine has {tracks} tracks, and {ranks} processes compute together"):
        check_tracks("drafts/mine", tracks, ranks)


@pytest.mark.slow
def test_tracks_that_are_not_the_ranks_are_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "generate", "The old house", "--model", "pocket", "-n", "4"]
    given = ["--tensor-parallel", "2", "--draft-model", in_tracks(tmp_path / "tracks", 4)]
    found = ended(started([*command, *given]), timeout=120)
    assert found[0][0] == 2
    assert "has 4 tracks, and 2 processes compute together" in found[0][2]
    assert "Traceback" not in "".join(said for _, _, said in found)
