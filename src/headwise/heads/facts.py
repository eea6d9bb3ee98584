"""What is known of a model before it is looked into."""

from headwise.heads.inspection import Inspection


def facts_of(seen: Inspection) -> dict[str, str | int]:
    """The model's name, kind and sizes, in an order fit for reading."""
    loaded = seen.loaded
    return {
        "name": loaded.name,
        "source": loaded.source,
        "class": type(loaded.model).__name__,
        "type": str(loaded.config.model_type),
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "layers": len(seen.statistics.layers),
        "heads": len(seen.statistics.heads()),
    }
