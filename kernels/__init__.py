"""The numerics: `<op>_ref.py` (plain torch) beside `<op>.py` (Triton and its launcher); `dispatch.py` alone chooses.

Importing this package loads neither torch nor triton.
"""
