"""Explain: every number of a multi-head attention, step by step, and the checker of articles."""
