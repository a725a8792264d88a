"""Many requests at once: prompts of unequal length, taken in by chunks beside requests that already decode."""
