"""Where this service may connect to, by configuration, and the guard that refuses the rest."""
