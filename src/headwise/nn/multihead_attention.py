"""Multi-head attention with its projections, in the interface of `torch.nn.MultiheadAttention`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from headwise.attention import AUTO, attend, check_engine
from headwise.call import Result, checked_dropout
from headwise.errors import BadValue
from headwise.masks import Mask, padding
from headwise.nn import torch_compat
from headwise.nn import validation as check
from headwise.nn.cache import KVCache, MemoryCache
from headwise.nn.cache_state import CacheState
from headwise.nn.init import ROLES, ParameterFactory, initialise, words_by_role
from headwise.nn.sharded_heads import check_sharded_heads
from headwise.nn.submodules import (
    GlobalProjections,
    GlobalRows,
    apply_gate,
    apply_norm,
    apply_scale,
    checked_norm,
    without_global_rows,
)
from headwise.nn.validation import (
    append_keys,
    from_batch_first,
    merge_heads,
    returned_weights,
    split_heads,
    to_batch_first,
    zero_padding,
)
from headwise.positions import Position, Stage
from headwise.score_functions import checked_softcap
from headwise.shapes import AttentionShape

Inputs = tuple[Tensor, Tensor, Tensor]
"""Query (B, L, E), key (B, n, kdim) and value (B, n, vdim), positions already added."""


class MultiheadAttention(torch_compat.TorchInterface):
    """Multi-head attention: heads in parallel, each on its own projection of the inputs.

        query (B, L, E)   key (B, S, kdim)   value (B, S, vdim)
             │ q_proj          │ k_proj           │ v_proj          1 project
        (B, H, L, D)      (B, G, S, D)       (B, G, S, D)           2 split
             └────────────── attend ──────────────┘                 3 score, softmax, sum: per head
                        (B, H, L, D)
                             │                                      4 concatenate
                        (B, L, H·D)
                             │ out_proj                             5 project
                        (B, L, E)

    The positional arguments and `forward` match `torch.nn.MultiheadAttention`, and its checkpoints
    load. The projections are `nn.Linear` modules, so hooks, LoRA and quantisation work on them.

    Args:
        embed_dim: E, the size of the query and of the output (the paper's d_model).
        num_heads: H, the number of query heads.
        dropout: the probability of dropping each attention weight in training.
        bias: whether the projections have a bias.
        add_bias_kv: whether to append a learned key and value to the sequence.
        add_zero_attn: whether to append a zero key and a zero value to the sequence.
        kdim, vdim: the sizes of the key and of the value; None means embed_dim.
        batch_first: whether input and output are (B, L, E) instead of (L, B, E).
        device, dtype: the device and the dtype of the parameters.
        mask: a mask that is combined with the masks of every call.
        position: the position encoding; query i has position i + (S - L). `Sinusoidal` and
            `Learned` are added to query, key and value before the projections; all other encodings
            act inside attention.
        num_kv_heads: G, the number of key/value heads that the H query heads share; None means H.
        head_dim: D, the size of one head; None means E / H.
        engine: the engine, as in `headwise.attend`.
        sinks: whether each head has a learned sink logit, initially 0; see `headwise.attend`.
        softcap: c in c · tanh(scores / c), as in `headwise.attend`; None means no soft cap.
        global_projections: whether the queries of a symmetric `headwise.global_tokens` in the mask
            have separate projections, ``global_proj``, initialised as copies of q, k and v_proj.
        query_norm: a module that normalises the queries of all heads, (B, H, L, D), before the
            position encoding, such as ``nn.RMSNorm(D)`` or `headwise.nn.UnitNorm`.
        key_norm: a module that normalises the keys (B, G, S, D), but not the appended keys.
        logit_scale: a module that returns one factor per head, (H,), which replaces 1/sqrt(D) on
            the scores, such as `headwise.nn.LogitScale`.
        gate: a module that maps the query (B, L, E) to factors on the heads' outputs, (B, L, H) or
            (B, L, H·D), such as `headwise.nn.OutputGate`.
        init: initialisation of the projections, "xavier_uniform", "xavier_normal", "orthogonal" or
            "torch", or a mapping from "q", "k", "v", "out" to one of the first three.

    Raises:
        BadType, BadValue: if an argument has a wrong type or value; the message names a correction.

    Source: Vaswani et al. 2017, section 3.2.2; W^Q, W^K, W^V of head h are rows h·D to (h+1)·D of
        q_proj.weight, k_proj.weight, v_proj.weight, transposed; W^O is out_proj.weight, transposed.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiheadAttention(8, 2, batch_first=True, mask=hw.causal())
        >>> x = torch.zeros(1, 3, 8)
        >>> output, weights = layer(x, x, x)
        >>> output.shape
        torch.Size([1, 3, 8])
        >>> weights[0, 1].tolist()  # equal scores, two visible keys
        [0.5, 0.5, 0.0]
    """

    # captures replace this function; its type is the overload of `attend` that returns a Result
    attend_heads: ClassVar[Callable[..., Result]] = staticmethod(attend)  # type: ignore[assignment]
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None
    sinks: nn.Parameter | None
    global_proj: GlobalProjections | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        mask: Mask | None = None,
        position: Position | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        engine: str = AUTO,
        sinks: bool = False,
        softcap: float | None = None,
        global_projections: bool = False,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        logit_scale: nn.Module | None = None,
        gate: nn.Module | None = None,
        init: str | Mapping[str, str] = "xavier_uniform",
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": self.kdim}
        check.check_positive(**sizes, vdim=self.vdim, num_kv_heads=self.num_kv_heads)
        self.head_dim = check.checked_head_dim(embed_dim, num_heads, self.num_kv_heads, head_dim)
        self.dropout, self.softcap = checked_dropout(dropout), checked_softcap(softcap)
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        check_engine(engine)
        self.mask, self.engine = check.checked_mask(mask), engine
        self.position, self.init = position, words_by_role(init)
        inputs, dim = {embed_dim, self.kdim, self.vdim}, {self.head_dim}
        check.check_position(position, {"E": inputs, "H": {num_heads}, "D": dim, "Dv": dim})
        check.check_appended_keys(position, global_projections, add_bias_kv or add_zero_attn)
        self.query_norm = checked_norm("query_norm", query_norm, self.head_dim)
        self.key_norm = checked_norm("key_norm", key_norm, self.head_dim)
        scale, output_gate = "LogitScale(num_heads)", "OutputGate(embed_dim, num_heads)"
        self.logit_scale = check.checked_module("logit_scale", logit_scale, f"headwise.nn.{scale}")
        self.gate = check.checked_module("gate", gate, f"headwise.nn.{output_gate}")
        self._add_parameters(ParameterFactory(device, dtype), bias, add_bias_kv, sinks)
        self.global_proj = GlobalProjections(self._qkv_proj) if global_projections else None
        self.reset_parameters()

    def _add_parameters(
        self, factory: ParameterFactory, bias: bool, add_bias_kv: bool, sinks: bool
    ) -> None:
        q_rows, k_rows, v_rows = self.rows
        self.q_proj = factory.linear(self.embed_dim, q_rows, bias)
        self.k_proj = factory.linear(self.kdim, k_rows, bias)
        self.v_proj = factory.linear(self.vdim, v_rows, bias)
        self.out_proj = factory.linear(q_rows, self.embed_dim, bias)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, factory.vector(1, 1, k_rows) if add_bias_kv else None)
        self.register_parameter("sinks", factory.vector(self.num_heads) if sinks else None)

    def reset_parameters(self) -> None:
        projections = {role: getattr(self, f"{role}_proj") for role in ROLES}
        vectors = [vector for vector in (self.bias_k, self.bias_v) if vector is not None]
        initialise(projections, vectors, self.init, self.packs)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        if self.global_proj is not None:
            self.global_proj.copy(self._qkv_proj)

    @property
    def _qkv_proj(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj, self.v_proj

    @property
    def rows(self) -> tuple[int, int, int]:
        """The numbers of rows of q_proj, k_proj and v_proj: H·D, G·D, G·D."""
        shared = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, shared, shared

    @property
    def packs(self) -> bool:
        """Whether PyTorch would store the weights of q, k and v as one matrix (3E, E)."""
        return {self.kdim, self.vdim, *self.rows} == {self.embed_dim}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KVCache | MemoryCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Project query, key and value, attend in every head, and project the joined outputs.

        Args:
            query: (L, B, E), with batch_first (B, L, E), or unbatched (L, E).
            key: (S, B, kdim), with batch_first (B, S, kdim), or unbatched (S, kdim).
            value: (S, B, vdim), with batch_first (B, S, vdim), or unbatched (S, vdim).
            key_padding_mask: (B, S) or unbatched (S,); True = padding, or floats added to scores.
            need_weights: whether to return the attention weights; False allows fused engines.
            attn_mask: True = blocked, or floats added to the scores; (L, S), (B*H, L, S),
                (B, L, S), or (B, H, L, S) where B and H may be 1.
            average_attn_weights: whether to average the attention weights over the heads.
            is_causal: whether to block later keys, in addition to attn_mask if that is given.
            cache: the keys and values of earlier calls. key and value are then only the n new
                tokens, which the call adds to the cache, and key_padding_mask is their padding.
                S counts all keys, and the last query has the position of the last key. A
                `headwise.nn.MemoryCache` stores a memory that is projected once. See
                `headwise.nn.cache`.

        Returns:
            The output in the query's layout, and the attention weights before dropout or None.
            The weights are (B, L, S), or (B, H, L, S) if not averaged; without B if unbatched.
            Appended keys (add_bias_kv, then add_zero_attn) are the last columns. A fully masked
            query has weights 0 and head outputs 0, so its output is the bias of out_proj.

        Raises:
            BadType, BadValue: if an argument does not fit; the message names a correction.
            EngineRefused: if the engine that was chosen by name cannot run this call.
        """
        inputs, shape, state = self._prepare(query, key, value, cache)
        batched = query.dim() == 3
        padding = state.padding(key_padding_mask, inputs[1], batched)
        masks = torch_compat.from_torch(attn_mask, padding, is_causal, shape, batched)
        state = state.with_padding(key_padding_mask)
        need = ("weights",) if need_weights else ()
        output, result = self._attend(inputs, masks, need, state, shape)
        settings = average_attn_weights, batched, self.num_heads
        weights = returned_weights(result.weights, *settings)
        return from_batch_first(output, query, self.batch_first), weights

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask | None = None,
        need: Collection[str] = (),
        cache: KVCache | MemoryCache | None = None,
    ) -> Result:
        """Run attention as in `forward`, with a headwise mask and further results of every head.

        Args:
            query: as for `forward`.
            key: as for `forward`.
            value: as for `forward`.
            mask: a mask that is combined with the module's own mask; None means no further mask.
            need: names of results as in `headwise.attend`, such as ("entropy", "received"), which
                are computed without storing the attention weights.
            cache: as for `forward`.

        Returns:
            The output in the query's layout, and the results named in ``need`` for each head, with
            the shapes of `headwise.Result`; B = 1 for unbatched inputs.

        Raises:
            BadType, BadValue, EngineRefused: as for `forward`.

        Example:
            >>> import headwise as hw
            >>> x = torch.zeros(1, 4, 8)
            >>> layer = hw.MultiheadAttention(8, 2, batch_first=True)
            >>> layer.attend(x, x, x, mask=hw.causal(), need=["received"]).received[0, 0]
            tensor([2.0833, 1.0833, 0.5833, 0.2500], grad_fn=<SelectBackward0>)
        """
        mask = check.checked_mask(mask)
        inputs, shape, state = self._prepare(query, key, value, cache)
        padded = state.padding(None, inputs[1], True)
        masks = [] if padded is None else [padding(~padded)]
        masks += [] if mask is None else [state.shift(mask)]
        output, result = self._attend(inputs, masks, need, state, shape)
        return replace(result, output=from_batch_first(output, query, self.batch_first))

    def _prepare(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | MemoryCache | None
    ) -> tuple[Inputs, AttentionShape, CacheState]:
        """Check the inputs, transpose them to batch first, and add positions of stage INPUT."""
        if cache is not None and self.global_proj is not None:
            raise BadValue(
                "cache: a cache cannot be used with global_projections, since each key has two "
                "projections and global tokens attend to future keys; leave out the cache"
            )
        state, inputs = CacheState.of(cache), (query, key, value)
        check.check_inputs(inputs, (self.embed_dim, self.kdim, self.vdim), self.batch_first)
        check.check_dtypes(inputs, self._qkv_proj)
        x_q, x_k, x_v = (to_batch_first(x, self.batch_first) for x in inputs)
        (batch, queries), keys = x_q.shape[:2], state.length + x_k.shape[1]
        device = x_q.device
        if state.memory is not None:
            state.memory.check(x_k)
        shape = AttentionShape(batch, self.num_heads, queries, keys, keys - queries, device)
        if self.position is not None:
            first = state.seen + x_k.shape[1] - queries
            x_q = self.position.embed(x_q, first)
            x_k, x_v = (self.position.embed(x, state.seen) for x in (x_k, x_v))
        return (x_q, x_k, x_v), shape, state

    def _attend(
        self,
        inputs: Inputs,
        masks: list[Mask],
        need: Collection[str],
        state: CacheState,
        shape: AttentionShape,
    ) -> tuple[Tensor, Result]:
        """Return the output (B, L, E) and the result of the heads."""
        x_q, x_k, x_v = inputs
        own = [] if self.mask is None else [state.shift(self.mask)]
        mask = torch_compat.intersect([*own, *masks]).resolve(shape)
        if state.memory is None:  # of a memory another call may see other keys
            x_k, x_v = zero_padding(x_k, x_v, torch_compat.real_keys(mask, shape))
        rows = None if self.global_proj is None else GlobalRows.of(mask, shape)
        ordinary = mask if rows is None else without_global_rows(mask)
        if rows is not None:
            rows.check_need(need)
        result = self._head_outputs(self, (x_q, x_k, x_v), ordinary, need, state)
        if self.global_proj is not None and rows is not None:
            own_inputs, own_mask = (rows.take(x_q), x_k, x_v), rows.mask(mask, shape)
            own_result = self._head_outputs(self.global_proj, own_inputs, own_mask, need, state)
            result = rows.replace_rows(result, own_result)
        heads = apply_gate(self.gate, result.output, x_q)
        return self.out_proj(merge_heads(heads)), result

    def _head_outputs(
        self,
        owner: "MultiheadAttention | GlobalProjections",
        inputs: Inputs,
        mask: Mask,
        need: Collection[str],
        state: CacheState,
    ) -> Result:
        """Compute all heads, (B, H, L, D), with the projections of ``owner``."""
        x_q, x_k, x_v = inputs
        q = split_heads(owner.q_proj(x_q), self.head_dim)
        q = apply_norm("query_norm", self.query_norm, q)

        def project() -> tuple[Tensor, Tensor]:
            k = split_heads(owner.k_proj(x_k), self.head_dim)
            v = split_heads(owner.v_proj(x_v), self.head_dim)
            if q.shape[1] != self.num_heads or k.shape[1] != self.num_kv_heads:
                check_sharded_heads(self, q, k, mask)
            return apply_norm("key_norm", self.key_norm, k), v

        k, v = state.keys_values(project)  # q (B, H, L, D), k and v (B, G, S, D)
        offset = k.shape[2] - q.shape[2]
        k, v, mask = append_keys((k, v), (self.bias_k, self.bias_v), self.add_zero_attn, mask)
        position = state.shift_position(self.position)
        return self.attend_heads(
            apply_scale(self.logit_scale, q),
            k,
            v,
            mask=mask,
            position=None if position is None or Stage.INPUT in position.stages else position,
            dropout=self.dropout if self.training else 0.0,
            offset=offset,
            sinks=self.sinks,
            softcap=self.softcap,
            need=need,
            engine=self.engine,
        )

    def extra_repr(self) -> str:
        words = [f"{self.embed_dim}, {self.num_heads}, head_dim={self.head_dim}"]
        if self.num_kv_heads != self.num_heads:
            words.append(f"num_kv_heads={self.num_kv_heads}")
        words += ["add_bias_kv=True"] if self.bias_k is not None else []
        words += ["sinks=True"] if self.sinks is not None else []
        defaults = {"dropout": 0.0, "add_zero_attn": False, "batch_first": False, "mask": None,
                    "engine": AUTO, "softcap": None}  # fmt: skip
        values = {name: getattr(self, name) for name in defaults}
        words += [f"{name}={value}" for name, value in values.items() if value != defaults[name]]
        return ", ".join(words)
