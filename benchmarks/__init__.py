"""Benchmarks: speedups and memory, measured only if the results are correct."""
