"""Llamas of transformers as graphs of OpenVINO, in the form that its pipelines know: inputs ``input_ids``,
``attention_mask``, ``position_ids`` and ``beam_idx``, output ``logits``, and a state for the keys and for the values of
each layer.

Its plugin recognises norms, rotary positions, attention and integer weights by the nodes that they are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from transformers import PreTrainedModel

from paceline_lab.bench.peers.weights import check_llama, head_width

KINDS = {"float32": 32, "int8": 8, "int4": 4}
"""Kind of the weights -> bits of the layers' matrices; the head has no fewer than 8."""
BLOCK = 32
"""4-bit weights with one scale. A row of 8-bit weights has one, as in our own models in 8-bit integers."""
FILE = "openvino_model.xml"

Node: TypeAlias = Any
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int8]]


def write_graph(kind: str, model: PreTrainedModel, folder: Path) -> None:
    """Write a llama with weights of that kind. `Missing` where it is anything else."""
    import openvino  # type: ignore[import-not-found,unused-ignore]

    check_llama(model, "OpenVINO")
    folder.mkdir()
    openvino.save_model(Graph(model, kind).built(), folder / FILE, compress_to_fp16=False)


def rounded(weight: Floats, bits: int, block: int) -> tuple[Integers, Floats]:
    """A matrix in integers, ``(rows, blocks, block)``, and the scale of each block."""
    blocks = weight.reshape(len(weight), -1, block)
    most = 2 ** (bits - 1) - 1
    scales = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), np.finfo(np.float32).tiny * most) / np.float32(most)
    return np.rint(blocks / scales).astype(np.int8), scales


class Graph:
    """A llama, node by node."""

    def __init__(self, model: PreTrainedModel, kind: str) -> None:
        from openvino import opset13

        self._ops: Any = opset13
        self._config: Any = model.config
        self._bits = KINDS[kind]
        self._weights = {name: weight.float().cpu().numpy() for name, weight in model.state_dict().items()}
        self._heads: int = self._config.num_attention_heads
        self._cached_heads: int = self._config.num_key_value_heads
        self._width = head_width(model)
        self._states: list[Node] = []

    def built(self) -> Any:
        """The whole model."""
        import openvino

        ops, config = self._ops, self._config
        ids, mask, places = (self._input(name, 2) for name in ("input_ids", "attention_mask", "position_ids"))
        self._beams = self._input("beam_idx", 1, np.int32)
        self._texts = ops.gather(ops.shape_of(ids), self._whole([0]), self._whole(0))
        self._turns = self._cosine_and_sine(places)
        self._mask = self._causal(mask, places)
        tied, bits = config.tie_word_embeddings, max(8, self._bits)
        embeddings = self._matrix("model.embed_tokens.weight", bits if tied else 32)  # or one row is read
        head = embeddings if tied else self._matrix("lm_head.weight", bits)
        rows = ops.gather(embeddings, ops.convert(ids, np.int32), self._whole(0))
        for layer in range(config.num_hidden_layers):
            rows = self._layer(layer, rows)
        logits = ops.result(ops.matmul(self._norm("model.norm", rows), head, False, True))
        logits.output(0).set_names({"logits"})
        return openvino.Model([logits], self._states, [ids, mask, places, self._beams], "llama")

    def _input(self, name: str, dimensions: int, dtype: type = np.int64) -> Node:
        node = self._ops.parameter([-1] * dimensions, dtype)
        node.set_friendly_name(name)  # by which attention over pages is put in
        node.output(0).set_names({name})
        return node

    def _whole(self, value: int | Sequence[int]) -> Node:
        return self._ops.constant(np.array(value, dtype=np.int64))

    def _real(self, value: float) -> Node:
        return self._ops.constant(np.array(value, dtype=np.float32))

    def _cosine_and_sine(self, places: Node) -> tuple[Node, Node]:
        ops, width = self._ops, self._width
        exponents = np.arange(0, width, 2, dtype=np.float32) / width
        speeds = (1.0 / self._config.rope_parameters["rope_theta"] ** exponents).astype(np.float32)
        place = ops.convert(ops.unsqueeze(places, self._whole(2)), np.float32)
        half = ops.matmul(place, ops.constant(speeds[None, None]), False, False)
        angles = ops.concat([half, half], -1)
        return tuple(ops.unsqueeze(turn(angles), self._whole(1)) for turn in (ops.cos, ops.sin))

    def _causal(self, mask: Node, places: Node) -> Node:
        """True where a row sees a key."""
        ops = self._ops
        count = ops.gather(ops.shape_of(mask), self._whole(1), self._whole(0))
        keys = ops.unsqueeze(ops.range(self._whole(0), count, self._whole(1), "i64"), self._whole([0, 1]))
        return ops.unsqueeze(ops.less_equal(keys, ops.unsqueeze(places, self._whole(2))), self._whole(1))

    def _layer(self, layer: int, rows: Node) -> Node:
        ops, name = self._ops, f"model.layers.{layer}"
        normed = self._norm(f"{name}.input_layernorm", rows)
        queries, keys, values = (self._product(f"{name}.self_attn.{part}_proj", normed) for part in "qkv")
        keys = self._turned(self._split(keys, self._cached_heads))
        keys = self._cached(f"past_key_values.{layer}.keypresent.{layer}.key", keys)
        values = self._split(values, self._cached_heads)
        values = self._cached(f"past_key_values.{layer}.valuepresent.{layer}.value", values)
        queries = self._turned(self._split(queries, self._heads))
        seen = ops.scaled_dot_product_attention(queries, keys, values, self._mask)
        joined = ops.transpose(seen, self._whole([0, 2, 1, 3]))
        joined = ops.reshape(joined, self._whole([0, 0, self._heads * self._width]), True)
        rows = ops.add(rows, self._product(f"{name}.self_attn.o_proj", joined))
        normed = self._norm(f"{name}.post_attention_layernorm", rows)
        gate, up = (self._product(f"{name}.mlp.{part}_proj", normed) for part in ("gate", "up"))
        return ops.add(rows, self._product(f"{name}.mlp.down_proj", ops.multiply(ops.swish(gate), up)))

    def _norm(self, name: str, rows: Node) -> Node:
        ops = self._ops
        square = ops.reduce_mean(ops.power(rows, self._real(2)), self._whole([-1]), True)
        length = ops.sqrt(ops.add(square, self._real(self._config.rms_norm_eps)))
        weight = ops.constant(self._weights[f"{name}.weight"][None, None])
        return ops.multiply(ops.multiply(rows, ops.divide(self._real(1), length)), weight)

    def _split(self, rows: Node, heads: int) -> Node:
        ops = self._ops
        split = ops.reshape(rows, self._whole([0, 0, heads, self._width]), True)
        return ops.transpose(split, self._whole([0, 2, 1, 3]))

    def _turned(self, rows: Node) -> Node:
        """With rotary positions."""
        ops, (cosine, sine) = self._ops, self._turns

        def part(start: int, end: int) -> Node:
            return ops.slice(rows, *(self._whole([value]) for value in (start, end, 1, 3)))

        half = self._width // 2
        other = ops.concat([ops.multiply(part(half, self._width), self._real(-1)), part(0, half)], -1)
        return ops.add(ops.multiply(rows, cosine), ops.multiply(other, sine))

    def _cached(self, name: str, rows: Node) -> Node:
        """Behind those of earlier forwards, for every head of the queries."""
        ops, heads, width = self._ops, self._cached_heads, self._width
        nothing = ops.broadcast(self._real(0), ops.concat([self._texts, self._whole([heads, 0, width])], 0))
        before = ops.read_value(nothing, name, np.float32, [-1, heads, -1, width])
        both = ops.concat([ops.gather(before, self._beams, self._whole(0)), rows], 2)
        self._states.append(ops.assign(both, name))
        if self._heads == heads:
            return both
        shape = ops.concat([self._texts, self._whole([heads, self._heads // heads, 1, width])], 0)
        repeated = ops.broadcast(ops.unsqueeze(both, self._whole(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, self._whole([0, self._heads, -1, width]), True)

    def _product(self, name: str, rows: Node) -> Node:
        return self._ops.matmul(rows, self._matrix(f"{name}.weight", self._bits), False, True)

    def _matrix(self, name: str, bits: int) -> Node:
        """A weight; one in integers is made to floats by nodes that the plugin computes inside its products."""
        weight = self._weights[name]
        rows, columns = weight.shape
        if bits == 32:
            return self._ops.constant(weight)
        if bits == 4 and columns % BLOCK == 0:
            integers, scales = rounded(weight, 4, BLOCK)
            return self._ops.reshape(self._floats(self._packed(integers), scales), self._whole([rows, columns]), False)
        integers, scales = rounded(weight, 8, columns)
        return self._floats(self._ops.constant(integers[:, 0]), scales[:, 0])

    def _packed(self, integers: Integers) -> Node:
        """Two integers of 4 bits in a byte, the first one low."""
        import openvino

        halves = integers.reshape(-1, 2).astype(np.uint8) & 15
        tensor = openvino.Tensor(halves[:, 0] | halves[:, 1] << 4, openvino.Shape(integers.shape), openvino.Type.i4)
        return self._ops.constant(tensor, shared_memory=False)  # by default it keeps no reference to the bytes

    def _floats(self, integers: Node, scales: Floats) -> Node:
        return self._ops.multiply(self._ops.convert(integers, np.float32), self._ops.constant(scales))
