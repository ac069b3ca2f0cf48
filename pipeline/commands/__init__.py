"""What each command does, one module each; each returns its exit code and raises nothing."""
