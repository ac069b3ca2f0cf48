"""Weights in files: the names and layouts that families use, files in and files out.

File → parameters → file is exact: nothing is rounded unless another dtype is asked for.
"""
