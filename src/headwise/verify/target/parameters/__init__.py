"""The projections among the parameters of a target: by name, by effect, and inside a module."""
