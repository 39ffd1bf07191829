"""From an authenticated, parsed request to a job: tags, frozen allowed set, decision."""
