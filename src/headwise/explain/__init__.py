"""Every number of a multi-head attention, step by step."""
