"""The masks, with one file per concept."""
