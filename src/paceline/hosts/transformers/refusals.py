"""What `generate` can be asked for and we cannot give: told in a sentence, never dropped in silence."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig, PreTrainedModel

HANDLED = frozenset({"attention_mask", "position_ids", "past_key_values"})
HARMLESS = frozenset({"use_cache", "logits_to_keep", "return_dict"})
"""They say how transformers would compute, not what."""

OTHER_METHODS = {
    "num_beams": ((None, 1), "asks for beam search, which drafts do not serve; set num_beams=1"),
    "num_beam_groups": ((None, 1), "asks for beam search, which drafts do not serve; leave it out"),
    "constraints": ((None,), "asks for constrained beam search, which drafts do not serve; leave it out"),
    "force_words_ids": ((None,), "asks for constrained beam search, which drafts do not serve; leave it out"),
    "penalty_alpha": ((None, 0), "asks for contrastive search, which drafts do not serve; leave it out"),
    "dola_layers": ((None,), "asks for DoLa decoding, which drafts do not serve; leave it out"),
    "prompt_lookup_num_tokens": ((None,), "asks for transformers' own drafts; leave it out, method 'lookup' does it"),
    "assistant_early_exit": ((None,), "asks for transformers' own drafts; leave it out"),
    "use_mtp": ((None, False), "asks for transformers' own drafts; leave it out"),
    "token_healing": ((None, False), "changes the prompt, which is not supported; leave it out"),
    "output_attentions": ((None, False), "cannot be had, for drafts are scored by an attention of ours; leave it out"),
    "output_hidden_states": ((None, False), "cannot be had from a forward that scores drafts; leave it out"),
}
"""Setting -> the values that ask for nothing special, and what is the matter with all others."""


def refuse(model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
    """Raise for anything that would change the result and that we would not honour."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"custom_generate serves transformers models, not a {type(model).__name__}")
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder; custom_generate serves decoder-only language models"
        )
    for name, (harmless, complaint) in OTHER_METHODS.items():
        value = getattr(config, name, None)
        if not any(value is each or value == each for each in harmless):
            raise ValueError(f"{name}={value!r} {complaint}")
    if config.cache_implementation == "quantized":
        raise ValueError("cache_implementation='quantized' changes the text; leave it out, rows are kept as they are")
    _refuse_cache(model_kwargs.get("past_key_values"))
    _refuse_unknown(model_kwargs)


def refuse_companions(assistant_model: Any, synced_gpus: Any) -> None:
    """Arguments of `generate` that are not part of its configuration."""
    if assistant_model is not None:
        raise ValueError(
            "assistant_model is for transformers' own drafts; give custom_generate(draft_model=...) instead"
        )
    if synced_gpus:
        raise ValueError(
            "synced_gpus keeps several processes in step, token by token, which drafts do not; "
            "generate without custom_generate there"
        )


def _refuse_cache(cache: Any) -> None:
    if cache is None:
        return
    if getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0:
        raise ValueError("past_key_values cannot be read or filled, for rows are kept apart; leave it out")


def _refuse_unknown(model_kwargs: dict[str, Any]) -> None:
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds has no tokens to draft from; give input_ids")
    known = HANDLED | HARMLESS
    asked = {name for name, value in model_kwargs.items() if value is not None and value is not False}
    names = sorted(asked - known)
    if names:
        raise ValueError(f"{', '.join(names)} cannot be passed on to a model that scores drafts; leave it out")
