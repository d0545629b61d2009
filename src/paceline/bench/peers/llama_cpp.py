"""llama.cpp by llama-cpp-python, on a GGUF file of the same weights.

The file has the names and keys of the ``gguf`` package, and no tokenizer: input and output are ids.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.bench.peers.weights import Terms
from paceline.bench.race import Clock
from paceline.bench.run.contestant import Job, Missing, TextContestant, Written, room_for

CONTEXT = 4096
"""The longest context: unlike others it allocates the rows of a whole context at the start."""
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class LlamaCpp(TextContestant):
    """`Llama.generate`, one token per forward."""

    def __init__(self, terms: Terms) -> None:
        import gguf
        import llama_cpp

        self.name = terms.name
        model = terms.weights.borrowed()
        file = converted(model, terms.weights.disk / "target.gguf")
        self._weights, self._dtype = terms.weights, str(model.dtype).removeprefix("torch.")
        rows = gguf.GGMLQuantizationType[TYPES[model.dtype]].value
        self._version = llama_cpp.__version__
        self._room = min(terms.weights.target.context_length or CONTEXT, CONTEXT)
        threads = torch.get_num_threads()
        how = {"n_ctx": self._room, "n_threads": threads, "n_threads_batch": threads, "type_k": rows, "type_v": rows}
        self._llama: Any = llama_cpp.Llama(str(file), verbose=False, **how)

    def facts(self) -> dict[str, Any]:
        return {
            "library": "llama.cpp",
            "version": f"llama-cpp-python {self._version}",
            "model": self._weights.target.name,
            "dtype": self._dtype,
            "attention": "llama.cpp",
            "device": "cpu",
            "threads": self._llama.n_threads,
            "context": self._room,
            "draft_model": None,
            "draft_tokens": None,
        }

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        llama, sampling = self._llama, job.sampling
        room = room_for(job, self._room)
        llama.reset()  # or rows of the text before would spare it the reading of this one
        llama.set_seed(sampling.seed % 2**32)
        how = {"temp": sampling.temperature, "top_k": sampling.top_k, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
        tokens, deliveries = list[int](), list[tuple[int, float]]()
        with closing(llama.generate(job.prompt.tolist(), **how)) as written:
            for token in islice(written, max(room, 0)):
                tokens.append(int(token))
                deliveries.append((len(tokens), clock() - started))
                if token in job.eos:
                    break
        return Written.of(job, tokens, deliveries, room, len(tokens))

    def close(self) -> None:
        self._llama.close()


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    assert name == "llama-cpp", f"no peer {name}"
    try:
        import gguf  # noqa: F401
        import llama_cpp  # noqa: F401
    except ImportError as error:
        raise Missing(f"{error.name} is not installed; 'pip install llama-cpp-python gguf'") from None
    sampling = terms.sampling
    if sampling.adjusts or (not sampling.greedy and (sampling.top_p < 1 or sampling.min_p > 0)):
        raise Missing("llama.cpp cuts by top-p and min-p before temperature, and penalises otherwise: another law")
    return LlamaCpp(terms)


def converted(model: PreTrainedModel, file: Path) -> Path:
    """Write a llama of transformers as a GGUF file. `Missing` where it is anything else."""
    import gguf

    config: Any = model.config
    _refuse(model)
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    turned = {"q_proj.weight": heads, "k_proj.weight": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        pairs = next((count for end, count in turned.items() if name.endswith(end)), None)
        weight = weight if pairs is None else _paired(weight, pairs)
        kind = gguf.GGMLQuantizationType[TYPES[torch.float32 if weight.dim() == 1 else weight.dtype]]
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), _values(weight), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _refuse(model: PreTrainedModel) -> None:
    config: Any = model.config
    turns = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    biased = any(name.endswith(".bias") for name in model.state_dict())
    if config.model_type != "llama" or turns != "default" or biased:
        raise Missing("only llamas without biases and with ordinary rotary positions are converted for llama.cpp here")
    if model.dtype not in TYPES:
        raise Missing(f"llama.cpp does not compute in {str(model.dtype).removeprefix('torch.')}")


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's order: it turns neighbouring rows of a head together, transformers the halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _values(weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """As numpy has them: vectors in float32, and bfloat16, which it does not know, as bytes."""
    weight = weight.cpu().contiguous()
    if weight.dim() == 1:
        return weight.float().numpy()
    if weight.dtype == torch.bfloat16:
        return weight.view(torch.uint8).numpy()
    return weight.numpy()
