"""The real controller, ledger and rollout code under a virtual clock, with simulated parts.

Hours of a large run pass in seconds, and the same settings give the same numbers: nothing here
reads a real clock, JAX or a device. `run.simulate` is the way in; its order is that of a run:

  scenarios    settings by name, and what they mean        -> `Simulation`
  workload     what episodes do: turns, lengths, latencies
  environment  one episode's environment, and its text
  sampler      requests take the time that a cost model says (`decoding`)
  learner      so does an update
  episodes     who was in flight, for how long, and what became of the work
  account      where all device time went, and what an ideal schedule would need
  report       the numbers and the bottleneck in words
"""
