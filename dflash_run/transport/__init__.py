"""Hidden states on their way from a target to a drafter: slots of memory, and what is checked on arrival."""
