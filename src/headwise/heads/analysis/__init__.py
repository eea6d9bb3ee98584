"""What attention weights and projections say beyond metrics: alignment, circuits, similarity."""
