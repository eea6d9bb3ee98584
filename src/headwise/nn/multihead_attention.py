"""Multi-head attention with its projections, in the shape of `torch.nn.MultiheadAttention`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from headwise.attention import AUTO, attend
from headwise.call import Result
from headwise.masks import Mask, padding
from headwise.nn import init as initial
from headwise.nn.cache import KVCache
from headwise.nn.cache_state import CacheState
from headwise.nn.global_projections import (
    GlobalProjections,
    GlobalRows,
    check_need,
    joined,
    no_cache,
    one_sided,
)
from headwise.nn.head_layout import (
    as_given,
    batch_first,
    merge_heads,
    returned_weights,
    split_heads,
    with_appended,
    without_padding,
)
from headwise.nn.init import Place
from headwise.nn.norm_scale_gate import (
    checked_gate,
    checked_norm,
    checked_scale,
    gated,
    normed,
    scaled,
)
from headwise.nn.projections import QKV
from headwise.nn.torch_compat import (
    NotPacked,
    PackedBias,
    from_torch,
    pack,
    real_keys,
    together,
    unpack,
)
from headwise.nn.validation import (
    check_alone,
    check_dropout,
    check_dtypes,
    check_fits,
    check_groups,
    check_inputs,
    check_position,
    check_positive,
    checked_engine,
    checked_mask,
    head_size,
)
from headwise.positions import Position, Stage
from headwise.shapes import AttentionShape


class MultiheadAttention(nn.Module):
    """Several attentions side by side, each on its own projection of the input.

        query (B, L, E)   key (B, S, kdim)   value (B, S, vdim)
             │ q_proj          │ k_proj           │ v_proj          1 project
        (B, H, L, D)      (B, G, S, D)       (B, G, S, D)           2 split
             └────────────── attend ──────────────┘                 3 score, softmax, sum: per head
                        (B, H, L, D)
                             │                                      4 merge_heads
                        (B, L, H·D)
                             │ out_proj                             5 project
                        (B, L, E)

    The constructor's positional arguments, `forward` and the `state_dict` are those of
    `torch.nn.MultiheadAttention`. The projections are `nn.Linear` modules that are called, so that
    hooks, LoRA and quantisation on them work.

    Args:
        embed_dim: E, the size of the query and of the output (the paper's d_model).
        num_heads: H.
        dropout: probability with which a weight is dropped while training.
        bias: whether the projections have a bias.
        add_bias_kv: whether a learned key and value are appended to the sequence.
        add_zero_attn: whether a key and a value of zeros are appended to the sequence.
        kdim: the size of the key; None means embed_dim.
        vdim: the size of the value; None means embed_dim.
        batch_first: whether input and output are (B, L, E) and not (L, B, E).
        device: where the parameters are made.
        dtype: their type.
        mask: a mask that holds in every call, together with what the call brings.
        position: where tokens stand; query i stands at position i + (S - L). `Sinusoidal` and
            `Learned` are added to query, key and value before they are projected; the others act
            inside attention.
        num_kv_heads: G, how many key/value heads the H heads share; None means H.
        head_dim: D; None means E / H.
        engine: which engine runs it, as in `headwise.attend`.
        sinks: whether each head has a learned sink, a logit that belongs to no key, (H,) and 0 at
            the start; see `headwise.attend`.
        global_projections: whether the rows of global tokens, those of a symmetric
            `headwise.global_tokens` in the mask, have projections of their own, ``global_proj``,
            which start as copies of the others; see `headwise.nn.global_projections`.
        query_norm: a built part that normalises each head's query before its position turns it,
            (B, H, L, D) to the same, such as ``nn.RMSNorm(D)`` or `headwise.nn.UnitNorm`.
        key_norm: the same for the keys (B, G, S, D); those that are appended stay as they are.
        logit_scale: a built part that gives the factor on the scores of each head, (H,), in place
            of 1/sqrt(D), such as `headwise.nn.LogitScale`.
        gate: a built part that tells from the query (B, L, E) how much of each head's output is
            let through, (B, L, H) or (B, L, H·D), such as `headwise.nn.OutputGate`.
        init: how the projections start, "xavier_uniform", "xavier_normal", "orthogonal" or
            "torch", or a mapping from "q", "k", "v", "out" to one of the first three; the
            variances stand in `headwise.nn.init`.

    Raises:
        BadType, BadValue: an argument is wrong; the message names it and the way out.

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

    # a capture looks in here; of its overloads, the one that gives a Result
    attend_heads: ClassVar[Callable[..., Result]] = staticmethod(attend)  # type: ignore[assignment]
    _qkv_same_embed_dim = False  # keeps torch's encoder layer from bypassing this module
    in_proj_weight = NotPacked()
    in_proj_bias = PackedBias()
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
        names = ("embed_dim", "num_heads", "kdim", "vdim", "num_kv_heads")
        check_positive({name: getattr(self, name) for name in names})
        check_groups(num_heads, self.num_kv_heads)
        self.head_dim = head_size(embed_dim, num_heads, head_dim)
        check_positive({"head_dim": self.head_dim})
        self.dropout = check_dropout(dropout)
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.mask, self.position, self.engine = checked_mask(mask), position, checked_engine(engine)
        check_position(position, add_bias_kv or add_zero_attn)
        check_fits(position, (embed_dim, self.kdim, self.vdim), num_heads, self.head_dim)
        self.init = initial.words(init)
        if global_projections:
            check_alone(position, add_bias_kv or add_zero_attn)
        self.query_norm = checked_norm("query_norm", query_norm, self.head_dim)
        self.key_norm = checked_norm("key_norm", key_norm, self.head_dim)
        self.logit_scale, self.gate = checked_scale(logit_scale), checked_gate(gate)
        place = Place.of(device, dtype)
        self._make(bias, add_bias_kv, place)
        self._add(sinks, global_projections, place)
        self.reset_parameters()
        self.register_state_dict_post_hook(pack)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(unpack)  # type: ignore[no-untyped-call]

    def _make(self, bias: bool, add_bias_kv: bool, place: Place) -> None:
        """The parameters, empty until `reset_parameters`, so that each is drawn once."""
        q_rows, k_rows, v_rows = self.rows
        self.q_proj = place.linear(self.embed_dim, q_rows, bias)
        self.k_proj = place.linear(self.kdim, k_rows, bias)
        self.v_proj = place.linear(self.vdim, v_rows, bias)
        self.out_proj = place.linear(q_rows, self.embed_dim, bias)
        for name, rows in (("bias_k", k_rows), ("bias_v", v_rows)):
            self.register_parameter(name, place.vector(1, 1, rows) if add_bias_kv else None)

    def _add(self, sinks: bool, global_projections: bool, place: Place) -> None:
        """The parameters that PyTorch's module has not, empty too."""
        self.register_parameter("sinks", place.vector(self.num_heads) if sinks else None)
        self.global_proj = GlobalProjections(self._inner) if global_projections else None

    def reset_parameters(self) -> None:
        """Draw every parameter anew, by the `init` that the module was made with."""
        projections = {name: getattr(self, f"{name}_proj") for name in initial.PROJECTIONS}
        extra = [vector for vector in (self.bias_k, self.bias_v) if vector is not None]
        initial.initialise(projections, extra, self.init, self.packs)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        if self.global_proj is not None:
            self.global_proj.copy(self._inner)

    @property
    def _inner(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj, self.v_proj

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many rows q_proj, k_proj and v_proj have: H·D, G·D, G·D."""
        shared = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, shared, shared

    @property
    def packs(self) -> bool:
        """Whether PyTorch would keep the weights of q, k and v as one matrix (3E, E)."""
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
        cache: KVCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of each query over the keys: project, split, attend, merge_heads, project.

        Args:
            query: (L, B, E), with batch_first (B, L, E), or unbatched (L, E).
            key: (S, B, kdim), and so on.
            value: (S, B, vdim), and so on.
            key_padding_mask: (B, S) or unbatched (S,); True = padding, or floats that are added.
            need_weights: whether the weights are returned; without them a fused engine can run.
            attn_mask: True = blocked, or floats that are added: (L, S), (B*H, L, S), (B, L, S), or
                (B, H, L, S) where B and H may be 1.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: no query sees a later key; holds together with attn_mask, or without it.
            cache: what earlier calls left, so that key and value are the new tokens alone, n of
                them, which are then held as well; see `headwise.nn.cache`. S counts those held,
                too, the last query stands at the last key, and key_padding_mask is of the new.

        Returns:
            The output in the query's layout; and the weights before dropout, (B, L, S), or
            (B, H, L, S) when not averaged, or None. Unbatched, they have no B. Appended keys
            (add_bias_kv, then add_zero_attn) are the last columns. A query that sees no key has
            weights 0 and heads 0, so that its output is out_proj's bias.

        Raises:
            BadType, BadValue: an argument does not fit; the message names it and the way out.
            EngineRefused: the engine asked for cannot run this call.
        """
        past = self._past(cache)
        inputs = self._inputs(query, key, value, past)  # (B, L, E), (B, n, kdim), (B, n, vdim)
        batched = query.dim() == 3
        padded = past.padding(key_padding_mask, inputs[1], batched)
        given = from_torch(attn_mask, padded, is_causal, self._frame(inputs, past), batched)
        past = past.knowing(key_padding_mask)
        result = self._attended(inputs, given, ("weights",) if need_weights else (), past)
        weights = returned_weights(result.weights, average_attn_weights, batched)
        return as_given(result.output, query, self.batch_first), weights

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask | None = None,
        need: Collection[str] = (),
        cache: KVCache | None = None,
    ) -> Result:
        """`forward` with a mask of headwise's, and what else is asked of every head.

        Args:
            query: as for `forward`.
            key: likewise.
            value: likewise.
            mask: who may attend, together with the module's own mask; None means everybody.
            need: words as in `headwise.attend`, such as ("entropy", "received"), which are measured
                without keeping the weights.
            cache: as for `forward`.

        Returns:
            The output in the query's layout, and of each head what was asked for: (B, H, L), or
            what `Result` says, with B = 1 for what is unbatched.

        Raises:
            BadType, BadValue: an argument does not fit; the message names it and the way out.
            EngineRefused: the engine asked for cannot run this call.

        Example:
            >>> import headwise as hw
            >>> x = torch.zeros(1, 4, 8)
            >>> layer = hw.MultiheadAttention(8, 2, batch_first=True)
            >>> layer.attend(x, x, x, mask=hw.causal(), need=["received"]).received[0, 0]
            tensor([2.0833, 1.0833, 0.5833, 0.2500], grad_fn=<SelectBackward0>)
        """
        own, past = checked_mask(mask), self._past(cache)
        inputs = self._inputs(query, key, value, past)
        padded = past.padding(None, inputs[1], True)
        given = [] if padded is None else [padding(~padded)]
        given += [] if own is None else [past.placed(own)]
        result = self._attended(inputs, given, need, past)
        return replace(result, output=as_given(result.output, query, self.batch_first))

    def _attended(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        masks: list[Mask],
        need: Collection[str],
        past: CacheState,
    ) -> Result:
        """Project, split, attend, gate, merge_heads, project; the output is (B, L, E)."""
        x_q, x_k, x_v = inputs
        frame = self._frame(inputs, past)
        own = [] if self.mask is None else [past.placed(self.mask)]
        mask = together([*own, *masks]).resolve(frame)
        x_k, x_v = without_padding(x_k, x_v, real_keys(mask, frame))
        rows = None if self.global_proj is None else GlobalRows.of(mask, frame)
        sight = mask if rows is None else one_sided(mask)
        result = self._head_outputs(self, (x_q, x_k, x_v), sight, need, past)
        if self.global_proj is not None and rows is not None:
            check_need(need)
            theirs = (rows.take(x_q), x_k, x_v)
            found = self._head_outputs(self.global_proj, theirs, rows.mask(mask, frame), need, past)
            result = joined(result, rows, found)
        output = gated(self.gate, result.output, x_q)
        return replace(result, output=self.out_proj(merge_heads(output)))

    def _head_outputs(
        self,
        owner: "MultiheadAttention | GlobalProjections",
        inputs: tuple[Tensor, Tensor, Tensor],
        mask: Mask,
        need: Collection[str],
        past: CacheState,
    ) -> Result:
        """What the heads give, (B, H, L, D), by the projections of their owner."""
        x_q, x_k, x_v = inputs
        q = normed("query_norm", self.query_norm, split_heads(owner.q_proj(x_q), self.num_heads))
        k = normed("key_norm", self.key_norm, split_heads(owner.k_proj(x_k), self.num_kv_heads))
        v = split_heads(owner.v_proj(x_v), self.num_kv_heads)
        k, v = past.extended(k, v)  # q (B, H, L, D), k and v (B, G, S, D)
        offset = k.shape[2] - q.shape[2]
        learned = (self.bias_k, self.bias_v)
        k, v, mask = with_appended((k, v), learned, self.add_zero_attn, mask)
        return self.attend_heads(
            scaled(self.logit_scale, q),
            k,
            v,
            mask=mask,
            position=self._inner_position(),
            dropout=self.dropout if self.training else 0.0,
            offset=offset,
            sinks=self.sinks,
            need=need,
            engine=self.engine,
        )

    def _past(self, cache: KVCache | None) -> CacheState:
        if cache is not None and self.global_proj is not None:
            raise no_cache()
        return CacheState.of(cache)

    def _inputs(
        self, query: Tensor, key: Tensor, value: Tensor, past: CacheState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs as (B, L, ·), with their positions."""
        inputs = {"query": query, "key": key, "value": value}
        sizes = {name: getattr(self, name) for name in ("embed_dim", "kdim", "vdim")}
        check_inputs(inputs, sizes, self.batch_first)
        check_dtypes(inputs, {name: getattr(self, name) for name in QKV})
        x_q, x_k, x_v = (batch_first(x, self.batch_first) for x in inputs.values())
        if self.position is None:
            return x_q, x_k, x_v
        embed, seen = self.position.embed, past.seen
        first = seen + x_k.shape[1] - x_q.shape[1]
        return embed(x_q, first), embed(x_k, seen), embed(x_v, seen)

    def _frame(self, inputs: tuple[Tensor, Tensor, Tensor], past: CacheState) -> AttentionShape:
        (batch, length), keys = inputs[0].shape[:2], past.length + inputs[1].shape[1]
        return AttentionShape(batch, self.num_heads, length, keys, keys - length, inputs[0].device)

    def _inner_position(self) -> Position | None:
        """The position if attention applies it; None if the inputs have it already."""
        position = self.position
        return None if position is None or Stage.INPUT in position.stages else position

    def extra_repr(self) -> str:
        """The sizes, and what differs from the defaults."""
        words = [f"{self.embed_dim}, {self.num_heads}, head_dim={self.head_dim}"]
        if self.num_kv_heads != self.num_heads:
            words.append(f"num_kv_heads={self.num_kv_heads}")
        for name in ("dropout", "add_zero_attn", "batch_first", "mask"):
            value = getattr(self, name)
            if value not in (None, False, 0.0):
                words.append(f"{name}={value}")
        return ", ".join(words)
