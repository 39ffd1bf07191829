"""One upstream each; knows nothing of clients, budgets or routes."""
