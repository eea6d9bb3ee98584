"""Whether a head whose queries are 0 attends to every allowed key alike."""

from collections.abc import Collection

from headwise.errors import BadValue
from headwise.heads.effect.sites import Site
from headwise.heads.names import Layer
from headwise.lang import Text
from headwise.nn import MultiheadAttention
from headwise.positions import Position, Rotary, Stage


def check_uniform(
    found: tuple[Site, ...], layers: Collection[Layer], argument: str = "kind"
) -> None:
    """Refuse attentions whose scores are not all equal where the queries are 0.

    Args:
        found: the attentions of a model.
        layers: those that are asked for.
        argument: what asked for it is called.

    Raises:
        BadValue: the message says what else is in the scores.
    """
    for site in found:
        reason = _reason(site) if set(site.layers) & set(layers) else None
        if reason is not None:
            raise BadValue(
                f"{argument}: 'uniform' sets the queries of a head to 0, and in "
                f"{site.name or 'it'} {reason.en}, so that its weights would not be equal; use "
                "'zero' or 'mean'",
                f"{argument}：'uniform' 将头的查询置 0，而在 {site.name or '其中'} 里{reason.zh}，"
                "权重不会相等；请用 'zero' 或 'mean'",
            )


def _reason(site: Site) -> Text | None:
    """What else is in the scores, or None."""
    module, architecture = site.module, site.architecture
    if getattr(module, "sinks", None) is not None:
        return Text("a sink takes a share")
    if architecture is not None and architecture.name == "T5":
        return Text("a position bias is added to the scores")
    if isinstance(module, MultiheadAttention):
        if module.global_proj is not None:
            return Text("global tokens have queries of their own")
        if _positioned(module.position):
            return Text("a position is added to the scores")
    beside = () if architecture is None else architecture.beside
    for name, _ in module.named_parameters():
        shifts = name.endswith("bias") and "norm" in name.lower()
        if shifts and not name.startswith(beside):
            return Text("a normalisation adds to the queries")
    return None


def _positioned(position: Position | None) -> bool:
    """Whether a position adds to scores that are 0; turning a query of 0 leaves it 0."""
    if position is None or isinstance(position, Rotary):
        return False
    return bool({Stage.CONTENT, Stage.SCORES} & set(position.stages))
