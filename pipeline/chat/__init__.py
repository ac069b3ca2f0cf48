"""Talk to a policy: its own sampler and renderer, tools that are run, tokens on demand."""
