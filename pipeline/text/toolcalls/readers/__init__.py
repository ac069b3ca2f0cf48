"""What reads the text of one call: one module for each way to write a name and arguments."""
