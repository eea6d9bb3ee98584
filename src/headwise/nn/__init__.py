"""Modules: attention with its projections."""
