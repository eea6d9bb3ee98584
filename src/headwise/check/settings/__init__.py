"""What an article computes: its parts, the inputs it gives, its mask, scale and heads."""
