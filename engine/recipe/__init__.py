"""The recipe that trains a small checkpoint to recall planted facts; `python -m engine.recipe.train --help`."""
