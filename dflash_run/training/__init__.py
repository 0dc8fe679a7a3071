"""Training a drafter: micro-batches, gradient sums, optimizer steps."""
