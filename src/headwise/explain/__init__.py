"""Explanation of one multi-head attention: every number, step by step."""
