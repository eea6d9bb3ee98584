"""Analyses of attention weights and projections beyond metrics: alignment, circuits, similarity."""
