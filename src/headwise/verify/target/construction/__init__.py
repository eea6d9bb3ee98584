"""Construct a target: its arguments are solved by trying, at one size or another."""
