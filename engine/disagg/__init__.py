"""Prefill in one process, decode in another: the whole state of the sequences changes hands."""
