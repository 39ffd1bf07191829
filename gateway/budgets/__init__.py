"""Budgets: what may be spent, held before it is spent, and settled after."""
