"""Families of models in mlx-lm: tiny random ones of transformers are exported, and write there what mlx-lm writes, with
drafts as with none; or they are refused with the reason. docs/mac.md has the table."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'paceline[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'paceline[mlx]'")

from engine import write
from mlx_models import own_text
from paceline.errors import InputError
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.mlx.chained import ChainedRows
from paceline.targets.mlx.export import export_mlx
from paceline.targets.mlx.target import MLXTarget
from paceline_lab.check.tiny import build, configuration
from scoring import Knowing, tokens

DOCS = Path(__file__).parents[1] / "docs" / "mac.md"
TREES = (
    *("afmoe", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "gemma", "gemma2", "gemma3_text"),
    *("glm4", "glm4_moe", "gpt_neox", "gptj", "granite", "granitemoe", "helium", "hunyuan_v1_dense", "internlm3"),
    *("iquestcoder", "laguna", "llama", "mellum", "ministral3", "mistral", "mixtral", "nemotron", "olmo2", "olmo3"),
    *("olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm"),
    "starcoder2",
)
"""Siblings are scored in one forward."""
CHAINS = ("gemma4_text", "gpt2")
"""Drafts are clipped to chains, for the model's code counts positions itself."""
OWN_CACHES = ("falcon_mamba", "lfm2_moe", "mamba", "nemotron_h")
"""Chains in mlx-lm's own caches, for layers keep a state."""
REFUSED = {
    "apertus": r"TypeError ModelArgs.__init__\(\) missing 3 required",
    "bitnet": "Missing 28 parameters",
    "bloom": "Model type bloom not supported",
    "glm": "mlx-lm's code for glm computes something else than transformers'",
    "gpt_oss": "Received 12 parameters not in model",
    "jamba": "mlx-lm's code for jamba computes something else than transformers'",
    "olmo": "its model file needs a package that is not installed",
    "phimoe": "Missing 17 parameters",
    "qwen3_next": "Received 6 parameters not in model",
}
"""Family -> the reason."""
SIZES: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 16},
    "gpt_neox": {"intermediate_size": 256},
    "qwen3_moe": {"head_dim": 16},
}
"""Sizes that mlx-lm expects, as models of the family have them."""
QUICK = ("gemma3_text", "gpt2", "nemotron_h", "qwen3_moe", "glm")


class NoTokenizer:
    """Writes none: texts here are ids."""

    def save_pretrained(self, folder: Path) -> None:
        pass


def families(*names: str) -> Any:
    """A few by default."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]
    )


def exported(name: str, folder: Path) -> None:
    config = configuration(name, "small")
    assert config is not None
    for field, value in SIZES.get(name, {}).items():
        setattr(config, field, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        target = HFTarget(build(config), name=name)
    export_mlx(target, folder, bits=None, tokenizer=NoTokenizer())


@families(*TREES, *CHAINS, *OWN_CACHES)
def test_texts_are_mlx_lms_own(name: str, tmp_path: Path) -> None:
    exported(name, tmp_path / "out")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        target, _ = open_model(f"mlx:{tmp_path / 'out'}", with_tokenizer=False)
    assert isinstance(target, MLXTarget)
    assert target.limits.trees == (name in TREES)
    assert isinstance(target.open(), ChainedRows) == (name in OWN_CACHES)
    assert any("clipped to chains" in str(each.message) for each in said) == (name not in TREES)
    prompt = tokens(13, 7)
    want = own_text(target, prompt, 24)
    target.eos = frozenset()
    session = write(target, prompt.tolist(), Knowing(np.concatenate([prompt, want])), max_new_tokens=24, nodes=5)
    assert session.context.emitted.tolist() == want
    assert len(session.rounds) < 20


@families(*REFUSED)
def test_the_others_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=REFUSED[name]) as raised:
        exported(name, tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_docs() -> None:
    rows = re.findall(r"^\| (.+?) \| (trees|chains|chains, caches of mlx-lm|refused)[ |]", DOCS.read_text(), re.M)
    found = {outcome: tuple(re.findall(r"`(\w+)`", names)) for names, outcome in rows}
    assert found == {
        "trees": TREES,
        "chains": CHAINS,
        "chains, caches of mlx-lm": OWN_CACHES,
        "refused": tuple(REFUSED),
    }
