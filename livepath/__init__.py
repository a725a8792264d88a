"""Livepath as it is installed: the rooms lie in `_rooms`, unseen by the rest of site-packages.

Contract: nothing is imported from here but `__main__`. The rooms import each other by their plain names, as they do in
a checkout and in every worktree of the engine; a top-level `kernels` in site-packages would collide with the package of
that name that other libraries look for.
"""
