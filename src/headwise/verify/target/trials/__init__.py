"""Find by trial how a target is called, and what it applies by itself."""
