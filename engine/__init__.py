"""A small DeepSeek-V4 inference engine: the subject that Livepath investigates by default."""
