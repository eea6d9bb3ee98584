"""The masks, one concept a file."""
