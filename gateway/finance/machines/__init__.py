"""What machines of our own cost, how long they computed, and which team bears how much of it."""
