"""The sizes that a mask can be called with."""

from headwise.masks.mask import And, Mask, Not, Or
from headwise.masks.patterns.appended import Appended
from headwise.masks.patterns.block_sparse import BlockSparse
from headwise.masks.patterns.documents import Documents
from headwise.masks.patterns.from_tensor import FromTensor
from headwise.masks.patterns.global_tokens import GlobalTokens
from headwise.masks.patterns.padding import Padding
from headwise.masks.patterns.per_head import PerHead

_LETTERS = {"b": "B", "h": "H", "q": "Lq", "k": "Lk"}
_LAYOUTS = {2: "q k", 4: "b h q k"}


def required_sizes(mask: Mask) -> dict[str, int]:
    """What a mask holds of B, H, Lq and Lk; a size that is not named is free, 1 serves every size.

    Example:
        >>> from headwise.masks import causal, full, padding, per_head
        >>> sizes(padding([3, 1]) & per_head([causal(), full(), full()]))
        {'B': 2, 'H': 3}
    """
    match mask:
        case And() | Or():
            return _merged(required_sizes(mask.left), required_sizes(mask.right))
        case Not():
            return required_sizes(mask.inner)
        case Appended():
            own = required_sizes(mask.inner)
            return own | ({"Lk": own["Lk"] + mask.count} if "Lk" in own else {})
        case PerHead():
            return _merged({"H": len(mask.masks)}, *map(required_sizes, mask.masks))
        case BlockSparse():
            return {"H": len(mask.layout)}
        case _:
            return _of_tensor(mask)


def _of_tensor(mask: Mask) -> dict[str, int]:
    match mask:
        case Padding():
            return dict(zip(("B", "Lk"), mask.real.shape, strict=False))
        case Documents():
            return dict(zip(("B", "Lk"), mask.ids.shape, strict=True))
        case GlobalTokens() if mask.whole:
            return dict(zip(("B", "Lk"), mask.chosen.shape, strict=True))
        case FromTensor():
            layout = mask.layout or _LAYOUTS.get(mask.tensor.dim(), "")
            axes = [_LETTERS[axis] for axis in layout.split()]
            return dict(zip(axes, mask.tensor.shape, strict=False))
        case _:
            return {}


def _merged(*parts: dict[str, int]) -> dict[str, int]:
    """Each size once: the largest."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: max(part.get(name, 0) for part in parts) for name in names}
