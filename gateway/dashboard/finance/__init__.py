"""Pages for finance: a month at a glance, spend by anything, a team's statement."""
