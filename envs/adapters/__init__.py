"""Environments of other libraries, told as conversations; each module is for one library."""
