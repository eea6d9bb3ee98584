"""Random attention calls, compared with an oracle of plain loops.

``python -m tests.fuzz 1000000`` runs 1,000,000 cases and prints the cases that differ.
"""
