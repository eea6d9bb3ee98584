"""How a target is called: the roles of its arguments, its masks and angles, one guarded call."""
