"""Tags, requirements, trust and the frozen allowed set; pure."""
