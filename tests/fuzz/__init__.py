"""Random attention calls, compared with an oracle of plain loops.

``python -m tests.fuzz 1000000`` runs that many cases and prints those that differ.
"""
