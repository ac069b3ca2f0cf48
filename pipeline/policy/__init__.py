"""Policies: a model and the files of its text side, from a folder, the Hub or a GGUF file.

Saving and loading is exact (law 15), and what is saved of a family of the Hub, Transformers loads.
"""

from .load import load_policy as load_policy
from .record import Policy as Policy
from .record import TextFiles as TextFiles
from .save import save_policy as save_policy

__all__ = ["Policy", "TextFiles", "load_policy", "save_policy"]
