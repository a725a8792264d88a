"""Checkpoints of other people: their files, their names, their storage formats."""
