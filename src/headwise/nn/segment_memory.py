"""Hidden states of earlier segments of a text, for recurrence by segments."""

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.lang import Text
from headwise.masks.arguments import check_integer
from headwise.nn.cache import described
from headwise.nn.validation import check_beam_index


class SegmentMemory(nn.Module):
    """Carries the last hidden states of a layer's input from call to call.

    A call returns the memory and the input as one sequence, [memory; x], and keeps its last
    ``length`` states. Keys and values are computed from this context, queries from x alone, and the
    last query stands at the last key, for masks and relative positions alike:

        context = memory(x)
        output, _ = attention(x, context, context)

    With a causal mask and a window that reaches at most ``length`` back, one layer gives segment by
    segment what it gives for the full text. The states are detached: no gradient flows into an
    earlier segment. They are the state of a text and not of a model: ``to`` moves them,
    ``deepcopy`` copies them, and they are not in the ``state_dict``.

    Any tensor with a length can be carried, such as a padding mask: where texts are padded, a
    second memory of the real tokens (B, L, 1) gives those of the context. Padding counts as
    distance, so it belongs before the first segment of a text or after its last.

    Args:
        length: how many states are kept; 0 keeps none.
        batch_first: whether the input is (B, L, E) and not (L, B, E), as for
            `MultiheadAttention`; an input (L, E) has no batch.

    Attributes:
        held: the states in memory, shaped as the input; None before the first call.

    Raises:
        BadType, BadValue: if length is no integer of at least 0; when called, if the input has
            another batch size, width, dtype or device than the memory.

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
        way_out = Text("the length of a segment is usual")
        check_integer("SegmentMemory", "length", length, 0, way_out)
        self.length, self.batch_first = length, batch_first
        self.register_buffer("held", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[memory; x], (B, M + L, E) or as ``batch_first`` says; its last states are kept."""
        axis = self._length_axis(x)
        memory = self.held
        if memory is not None:
            _check_like(x, memory, axis)
        context = x if memory is None else torch.cat((memory, x), axis)
        kept = min(self.length, context.shape[axis])
        self.held = context.detach().narrow(axis, context.shape[axis] - kept, kept).clone()
        return context

    def reset(self) -> None:
        """Empty the memory before another text."""
        self.held = None

    def reorder(self, index: Tensor) -> None:
        """Let sample i continue the old sample index[i], as in a beam search.

        Args:
            index: integers (B',), each from 0 to B - 1.

        Raises:
            BadType, BadValue: if it is no such tensor.
        """
        if self.held is None:
            return
        axis = 1 - self._length_axis(self.held)
        batch = self.held.shape[axis] if self.held.dim() == 3 else 0
        check_beam_index(index, batch, Text("the memory"))
        self.held = self.held.index_select(axis, index)

    def extra_repr(self) -> str:
        """The capacity, the layout and the number of states in memory."""
        held = 0 if self.held is None else self.held.shape[self._length_axis(self.held)]
        return f"{self.length}, batch_first={self.batch_first}, {held} held"

    def _length_axis(self, x: Tensor) -> int:
        if x.dim() not in (2, 3):
            raise BadValue(
                "x: expected (B, L, E), (L, B, E) or (L, E), got {shape}; add the axis "
                "of the states with x.unsqueeze(-1)",
                shape=tuple(x.shape),
            )
        return 1 if self.batch_first and x.dim() == 3 else 0


def _check_like(x: Tensor, memory: Tensor, axis: int) -> None:
    def fixed(t: Tensor) -> tuple[object, ...]:
        return (*t.shape[:axis], *t.shape[axis + 1 :], t.dtype, t.device)

    if fixed(x) != fixed(memory):
        raise BadValue(
            "x: the memory holds {old}, got {new}, and only the length may differ; reset() it "
            "before another text",
            old=described(memory),
            new=described(x),
        )
