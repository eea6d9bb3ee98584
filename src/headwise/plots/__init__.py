"""Figures of what was measured, drawn by matplotlib's Agg as PNG and SVG, without pyplot."""
