"""lmkit: bits and pieces for small language models."""
