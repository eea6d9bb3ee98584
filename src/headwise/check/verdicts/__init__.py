"""What is wrong with a claim, why, and what follows from it."""
