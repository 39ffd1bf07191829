"""Who may do what: roles, the one table of permissions, and the rows that a viewer may see."""
