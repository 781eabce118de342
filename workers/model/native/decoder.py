"""The decoder on CPUs that multiply bf16: its forward pass is one tape, run by one call.

The last layer computes keys and values of every row, and what follows them for the wanted rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from workers.model.arena import Arena
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.config import ModelConfig
from workers.model.lanes import Lanes
from workers.model.native import library
from workers.model.native.layout import Layout
from workers.model.native.panels import GROUP, LANES, Bits, pack
from workers.model.native.tape import NUM_BUFFERS, Code, Form, Rows, Shape, Step, Tape
from workers.model.parts import Part
from workers.model.rotation import turns
from workers.model.weights import DecoderWeights, LayerWeights, Projection

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
MIN_ROWS = 64  # of the scratch memory, which grows when a step has more


class Buffer(IntEnum):
    """Where the rows of a step are while it runs."""

    RESIDUAL, NORMED, QKV, ATTENDED, MIXED, GATED, WANTED, QUANTISED, LOGITS = range(NUM_BUFFERS - 1)
    PARTIAL = NUM_BUFFERS - 1  # what this lane adds to a sum, in fp32, where the other lanes can read it


def supports(config: ModelConfig, dtype: torch.dtype, device: torch.device, bits: Bits = 16) -> bool:
    """Whether this model can run here: the vectors take whole rows of 16 numbers, the groups 32."""
    multiple = LANES if bits == 16 else GROUP
    mixed = config.num_heads * config.head_dim
    num_rotated = [2 * len(layer.rope.inverse_frequencies) for layer in config.layers]
    return (
        device.type == "cpu"
        and dtype is torch.bfloat16
        and config.head_dim % 32 == 0
        and all(size % LANES == 0 for size in num_rotated)
        and all(size % multiple == 0 for size in (config.hidden_size, config.intermediate_size, mixed))
        and library.load() is not None
    )


class NativeDecoder:
    """See `Decoder`. Ask `supports` first. `logits` overwrites what it returned before."""

    dtype = torch.bfloat16
    device = torch.device("cpu")
    kv_dtypes = (torch.bfloat16, torch.int8)

    min_rows = 1

    def __init__(
        self, part: Part, weights: DecoderWeights, bits: Bits = 16, lanes: Lanes | None = None
    ) -> None:
        """`bits` of each weight of the projections; of 4 bits the head has 8."""
        config = self.config = part.config
        self._part = part
        self._exchange = None if lanes is None else lanes.exchange
        self._scratch = _Scratch(config)
        recorder = _Recorder(part, bits, has_lanes=lanes is not None)
        self._forward = recorder.forward(weights)
        self._head = recorder.head(weights) if part.is_first else None

    def new_cache(self, memory_bytes: int, block_tokens: int, dtype: torch.dtype) -> KvCache:
        return KvCache.sized(self.config, memory_bytes, block_tokens, dtype, self.device)

    def forward(
        self, chunks: Sequence[Chunk], cache: KvCache, entering_TE: torch.Tensor | None = None
    ) -> torch.Tensor:
        config = self.config
        layout = Layout(chunks, cache.block_tokens)
        step = layout.step(cache)
        self._scratch.lend(step, layout.num_rows)
        if entering_TE is not None:
            self._scratch.enter(entering_TE)
        shape = Shape(
            q_heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            dim=config.head_dim,
            block_tokens=cache.block_tokens,
            kv_number_bytes=cache.number_bytes,
            kv_block_bytes=cache.block_bytes,
            attention_scale=config.attention_scale,
        )
        # Nothing before this call lets other threads run Python: what they have to do, such as sending the
        # last step's tokens, they do while this one computes.
        self._forward.run(shape, step, torch.get_num_threads(), self._exchange)
        if self._part.is_last:
            return self._scratch.wanted(layout.num_wanted)
        return self._scratch.leaving(layout.num_rows)

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        assert self._head is not None
        num_rows = len(hidden_RE)
        hidden_RE = hidden_RE.contiguous()
        logits_RV = self._scratch.logits(num_rows)
        step = Step(num_rows=num_rows)
        self._scratch.lend(step, num_rows)
        step.buffers[Buffer.WANTED] = hidden_RE.data_ptr()
        step.buffers[Buffer.LOGITS] = logits_RV.data_ptr()
        self._head.run(Shape(q_heads=1, kv_heads=1), step, torch.get_num_threads())
        return logits_RV


class _Scratch:
    """The buffers' memory, for as many rows as the largest step so far had."""

    def __init__(self, config: ModelConfig) -> None:
        hidden, mixed = config.hidden_size, config.num_heads * config.head_dim
        self._vocab_size = config.vocab_size
        self._widths = {
            Buffer.RESIDUAL: hidden,
            Buffer.NORMED: hidden,
            Buffer.QKV: mixed + 2 * config.num_kv_heads * config.head_dim,
            Buffer.ATTENDED: mixed,
            Buffer.MIXED: hidden,
            Buffer.GATED: config.intermediate_size,
            Buffer.WANTED: hidden,
            Buffer.QUANTISED: max(hidden, mixed, config.intermediate_size),  # 8 bits and what belongs to them
        }
        self._num_rows = 0
        self._buffers: dict[Buffer, torch.Tensor] = {}
        self._logits = torch.empty(0, config.vocab_size)

    def lend(self, step: Step, num_rows: int) -> None:
        """Point the step's buffers here, but for the logits."""
        if num_rows > self._num_rows:
            self._num_rows = max(MIN_ROWS, 1 << (num_rows - 1).bit_length())
            arena = Arena()
            self._buffers = {
                buffer: arena.tensor((self._num_rows, width), torch.bfloat16)
                for buffer, width in self._widths.items()
            }
        for buffer, tensor in self._buffers.items():
            step.buffers[buffer] = tensor.data_ptr()

    def enter(self, residual_TE: torch.Tensor) -> None:
        """Begin with what the stage before has left; after `lend`."""
        self._buffers[Buffer.RESIDUAL][: len(residual_TE)] = residual_TE

    def leaving(self, num_rows: int) -> torch.Tensor:
        """What a stage leaves to the next, good until the next step."""
        return self._buffers[Buffer.RESIDUAL][:num_rows]

    def wanted(self, num_rows: int) -> torch.Tensor:
        """A copy of the rows that a step has left in the buffer of that name."""
        return self._buffers[Buffer.WANTED][:num_rows].clone()

    def logits(self, num_rows: int) -> torch.Tensor:
        if num_rows > len(self._logits):
            shape = (1 << (num_rows - 1).bit_length(), self._vocab_size)
            self._logits = Arena().tensor(shape, torch.float32)
        return self._logits[:num_rows]


class _Recorder:
    """Puts a decoder on tape."""

    def __init__(self, part: Part, bits: Bits, has_lanes: bool) -> None:
        config = self._config = part.config
        self._part = part
        self._has_lanes = has_lanes
        self._bits: Bits = bits
        self._arena = Arena()
        self._tape = Tape()
        self._turns = {
            rope: torch.view_as_real(turns(rope, config.max_context_tokens)).contiguous()
            for rope in {layer.rope for layer in config.layers}
        }

    def head(self, weights: DecoderWeights) -> Tape:
        tape = Tape()
        bits: Bits = 8 if self._bits == 4 else self._bits
        assert weights.head is not None
        self._linear(tape, weights.head, bits, Buffer.LOGITS, Buffer.WANTED, form=Form.FP32)
        return tape

    def forward(self, weights: DecoderWeights) -> Tape:
        if self._part.is_first:
            self._embed(weights)
        for index, layer in enumerate(weights.layers):
            if index == 0:
                self._norm(Buffer.NORMED, Buffer.RESIDUAL, layer.attention_norm_E, Rows.ALL)
            else:
                self._add_norm(Buffer.NORMED, Buffer.RESIDUAL, layer.attention_norm_E, Rows.ALL)
            self._layer(index, layer)
        if weights.norm_E is None:
            size = self._config.hidden_size
            self._tape.add(Code.ADD, base=Buffer.RESIDUAL, in_=Buffer.MIXED, size=size)
        else:  # from the last layer's attention on, only wanted rows are computed, where they are returned
            self._add_norm(Buffer.WANTED, Buffer.WANTED, weights.norm_E, Rows.WANTED)
        return self._tape

    def _embed(self, weights: DecoderWeights) -> None:
        """Each lane knows some of the tokens; those of the others are zeros to it."""
        assert weights.embedding_VE is not None
        config, vocabulary = self._config, self._part.vocabulary
        self._tape.add(
            Code.EMBED,
            weight=self._arena.copy(weights.embedding_VE),
            out=Buffer.PARTIAL if self._has_lanes else Buffer.RESIDUAL,
            size=config.hidden_size,
            first=vocabulary.first,
            inputs=vocabulary.size,
            form=Form.FP32 if self._has_lanes else Form.BF16,
            value=torch.tensor(config.embedding_scale, dtype=torch.bfloat16).item(),
        )
        if self._has_lanes:
            self._tape.add(Code.REDUCE, out=Buffer.RESIDUAL, size=config.hidden_size)

    def _layer(self, index: int, layer: LayerWeights[Projection]) -> None:
        config, tape = self._config, self._tape
        is_last = self._part.is_last and index == config.num_layers - 1
        rows = Rows.WANTED if is_last else Rows.ALL
        residual = Buffer.WANTED if is_last else Buffer.RESIDUAL
        self._keys_and_values(index, layer)
        tape.add(
            Code.ATTEND,
            out=Buffer.ATTENDED,
            in_=Buffer.QKV,
            layer=index,
            window=config.layers[index].window or 0,
            rows=rows,
        )
        if is_last:
            tape.add(
                Code.GATHER, out=residual, in_=Buffer.RESIDUAL, size=config.hidden_size, rows=Rows.WANTED
            )
        self._inward(layer.output, Buffer.ATTENDED, rows)
        if layer.after_attention_norm_E is not None:
            self._norm(Buffer.MIXED, Buffer.MIXED, layer.after_attention_norm_E, rows)
        self._add_norm(Buffer.NORMED, residual, layer.mlp_norm_E, rows)
        self._linear(tape, layer.gate_up, self._bits, Buffer.GATED, Buffer.NORMED, form=Form.GATED, rows=rows)
        self._inward(layer.down, Buffer.GATED, rows)
        if layer.after_mlp_norm_E is not None:
            self._norm(Buffer.MIXED, Buffer.MIXED, layer.after_mlp_norm_E, rows)

    def _keys_and_values(self, index: int, layer: LayerWeights[Projection]) -> None:
        config, tape = self._config, self._tape
        self._linear(tape, layer.qkv, self._bits, Buffer.QKV, Buffer.NORMED)
        size = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        heads = (
            (0, config.num_heads, layer.q_norm_D),
            (config.num_heads, config.num_kv_heads, layer.k_norm_D),
        )
        for first, count, norm_D in heads:
            if norm_D is not None:
                tape.add(
                    Code.NORM_HEADS,
                    weight=norm_D,
                    out=Buffer.QKV,
                    size=size,
                    first=first,
                    heads=count,
                    value=config.norm_eps,
                )
        table = self._turns[config.layers[index].rope]
        tape.add(Code.ROTATE_STORE, weight=table, out=Buffer.QKV, layer=index, pairs=table.shape[1])

    def _inward(self, projection: Projection, in_: Buffer, rows: Rows) -> None:
        """A projection back to the residual's width, whose inputs the lanes have divided: into MIXED."""
        tape, bits = self._tape, self._bits
        if not self._has_lanes:
            self._linear(tape, projection, bits, Buffer.MIXED, in_, rows=rows)
            return
        self._linear(tape, projection, bits, Buffer.PARTIAL, in_, form=Form.FP32, rows=rows)
        tape.add(Code.REDUCE, out=Buffer.MIXED, size=self._config.hidden_size, rows=rows)

    def _linear(
        self,
        tape: Tape,
        projection: Projection,
        bits: Bits,
        out: Buffer,
        in_: Buffer,
        form: Form = Form.BF16,
        rows: Rows = Rows.ALL,
    ) -> None:
        panels = pack(projection, bits, self._arena, is_gated=form is Form.GATED)
        if bits != 16:
            tape.add(Code.QUANTISE, out=Buffer.QUANTISED, in_=in_, size=panels.inputs, rows=rows)
            in_ = Buffer.QUANTISED
        tape.add(
            Code.LINEAR,
            weight=panels.weight,
            bias=panels.bias,
            out=out,
            in_=in_,
            inputs=panels.inputs,
            size=panels.outputs,
            format=panels.format,
            form=form,
            activation=ACTIVATIONS[self._config.activation],
            rows=rows,
        )

    def _norm(self, out: Buffer, in_: Buffer, weight_E: torch.Tensor, rows: Rows) -> None:
        self._tape.add(
            Code.NORM,
            weight=weight_E,
            out=out,
            in_=in_,
            size=self._config.hidden_size,
            value=self._config.norm_eps,
            rows=rows,
        )

    def _add_norm(self, out: Buffer, residual: Buffer, weight_E: torch.Tensor, rows: Rows) -> None:
        """What the buffer MIXED holds goes onto the residual, and the norm of that to `out`."""
        self._tape.add(
            Code.ADD_NORM,
            weight=weight_E,
            out=out,
            in_=Buffer.MIXED,
            base=residual,
            size=self._config.hidden_size,
            value=self._config.norm_eps,
            rows=rows,
        )
