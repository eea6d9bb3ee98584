"""Hidden states of earlier segments, so that a segment may attend to what came before it."""

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.arguments import check_integer
from headwise.nn.validation import check_index


class SegmentMemory(nn.Module):
    """Carries the last hidden states of a layer's input over calls: recurrence by segments.

    A call gives the memory and the input as one sequence, [memory; x], and keeps the last
    ``length`` states of that. Keys and values are made of this context, queries of x alone, and the
    last query stands at the last key, for masks and relative positions alike:

        context = memory(x)
        output, _ = attention(x, context, context)

    With a causal mask and a window that reaches no further back than ``length``, one layer gives
    segment by segment what it gives for the whole text. What is kept is detached: no gradient flows
    into an earlier segment. It is the state of a text and not of a model, so that it is moved by
    ``to``, copied by ``deepcopy``, and not in the ``state_dict``.

    Any tensor with a length may be carried, such as the marks of real tokens: where texts are
    padded, a second memory of the marks (B, L, 1) gives those of the context. Padding counts as
    distance, so it belongs before the first segment of a text or after its last.

    Args:
        length: how many states are kept; 0 keeps none.
        batch_first: whether the input is (B, L, E) and not (L, B, E), as for
            `MultiheadAttention`; an input (L, E) has no batch.

    Attributes:
        held: the states kept, shaped as the input; None before the first call.

    Raises:
        BadType, BadValue: if length is no integer of at least 0; when called, if the input has
            another batch size, width, dtype or device than what is held.

    Source: Dai et al. 2019 (Transformer-XL), section 3.2, where length is M and [memory; x] is
        the concatenation of SG(h_tau) and h_tau+1.

    Example:
        >>> memory = SegmentMemory(3, batch_first=True)
        >>> [tuple(memory(torch.zeros(1, 2, 4)).shape) for _ in range(3)]
        [(1, 2, 4), (1, 4, 4), (1, 5, 4)]
    """

    held: Tensor | None

    def __init__(self, length: int, *, batch_first: bool = False) -> None:
        super().__init__()
        way_out = Text("the segment's own length is usual")
        check_integer("SegmentMemory", "length", length, 0, way_out)
        self.length, self.batch_first = length, batch_first
        self.register_buffer("held", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[memory; x], (B, M + L, E) or as ``batch_first`` says; its last states are then held."""
        axis = self._axis(x)
        held = self.held
        if held is not None:
            _check_like(x, held, axis)
        context = x if held is None else torch.cat((held, x), axis)
        kept = min(self.length, context.shape[axis])
        last = context.detach().narrow(axis, context.shape[axis] - kept, kept)
        self.held = last.clone()
        return context

    def reset(self) -> None:
        """Forget everything: the next segment begins a text."""
        self.held = None

    def reorder(self, index: Tensor) -> None:
        """Let sample number i go on from sample index[i], as a beam search needs it.

        Args:
            index: integers (B',), each from 0 to B - 1.

        Raises:
            BadType, BadValue: if it is no such tensor.
        """
        if self.held is None:
            return
        axis = 1 - self._axis(self.held)
        batch = self.held.shape[axis] if self.held.dim() == 3 else 0
        check_index(index, batch, Text("the memory"))
        self.held = self.held.index_select(axis, index)

    def extra_repr(self) -> str:
        """The length, and what is held of it."""
        held = 0 if self.held is None else self.held.shape[self._axis(self.held)]
        return f"{self.length}, batch_first={self.batch_first}, {held} held"

    def _axis(self, x: Tensor) -> int:
        """Where the length of an input stands."""
        if x.dim() not in (2, 3):
            raise BadValue(
                "x: expected (B, L, E), (L, B, E) or (L, E), got {x_shape}; add the axis "
                "of the states with x.unsqueeze(-1)",
                x_shape=tuple(x.shape),
            )
        return 1 if self.batch_first and x.dim() == 3 else 0


def _check_like(x: Tensor, held: Tensor, axis: int) -> None:
    def fixed(t: Tensor) -> tuple[object, ...]:
        return (*t.shape[:axis], *t.shape[axis + 1 :], t.dtype, t.device)

    if fixed(x) != fixed(held):
        raise BadValue(
            "x: the memory holds {held_dtype} {held_shape} on {held_device}, got "
            "{x_dtype} {x_shape} on {x_device}, and only the length may differ; reset() "
            "it before another text",
            held_dtype=held.dtype,
            held_shape=tuple(held.shape),
            held_device=held.device,
            x_dtype=x.dtype,
            x_shape=tuple(x.shape),
            x_device=x.device,
        )
