"""What is known of a model before it is looked into."""

from headwise.heads.models.load import Loaded
from headwise.heads.statistics import Statistics


def facts_of(loaded: Loaded, statistics: Statistics) -> dict[str, str | int]:
    """The model's name, kind and sizes, in an order fit for reading."""
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": len(statistics.layers),
        "heads": len(statistics.heads()),
    }
