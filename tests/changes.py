"""What an owner may do to a loaded llama. Every change shows in its rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def scale_everything(model: Any) -> None:
    for weight in model.parameters():
        weight.mul_(1.1)


def replace_weights(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight = nn.Parameter(-layer.self_attn.q_proj.weight)
        layer.input_layernorm.weight = nn.Parameter(2 * layer.input_layernorm.weight)
    model.model.norm.weight = nn.Parameter(-model.model.norm.weight)


def replace_weights_data(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.up_proj.weight.data = -2 * layer.mlp.up_proj.weight.data


def transpose_a_weight(model: Any) -> None:
    """The same memory, read the other way."""
    weight = model.model.layers[0].self_attn.o_proj.weight
    weight.data = weight.data.t()


def hold_a_weight_as_an_attribute(model: Any) -> None:
    weight = model.model.norm.weight.data
    del model.model.norm.weight
    model.model.norm.weight = weight.flip(0) * 2


def rotate_faster(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(3)


def replace_the_frequencies(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 3


def replace_the_frequencies_data(model: Any) -> None:
    model.model.rotary_emb.inv_freq.data = model.model.rotary_emb.inv_freq.data * 3


def write_to_the_frequencies_data(model: Any) -> None:
    model.model.rotary_emb.inv_freq.data.mul_(3)


def scale_the_rotation(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 2.0


def change_eps(model: Any) -> None:
    model.model.norm.variance_epsilon = 10.0


def change_scaling(model: Any) -> None:
    model.model.layers[1].self_attn.scaling = 1.0


def become_another_class(model: Any) -> None:
    model.model.layers[0].mlp.act_fn.__class__ = nn.Tanh


def replace_an_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.Tanh()


def move_layers(model: Any) -> None:
    layers = list(model.model.layers)
    model.model.layers = nn.ModuleList([layers[2], layers[0], layers[1]])


CHANGES: list[Callable[[Any], None]] = [
    scale_everything,
    replace_weights,
    replace_weights_data,
    transpose_a_weight,
    hold_a_weight_as_an_attribute,
    rotate_faster,
    replace_the_frequencies,
    replace_the_frequencies_data,
    write_to_the_frequencies_data,
    scale_the_rotation,
    change_eps,
    change_scaling,
    become_another_class,
    replace_an_activation,
    move_layers,
]


class Adapter(nn.Module):
    """A low-rank addition that flags and numbers of Python decide on."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.on, self.scaling = layer, True, {"default": 4.0}
        self.down, self.up = nn.Linear(layer.in_features, 4), nn.Linear(4, layer.out_features)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layer(rows)
        return found + self.up(self.down(rows)) * self.scaling["default"] if self.on else found


def adapt(model: Any) -> None:
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj).requires_grad_(False)
        layer.mlp.down_proj = Adapter(layer.mlp.down_proj).requires_grad_(False)
