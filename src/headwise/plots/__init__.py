"""Figures of measurements, drawn by matplotlib's Agg backend as PNG and SVG without pyplot."""
