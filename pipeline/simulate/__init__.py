"""The real controller, ledger and rollout code under a virtual clock, with simulated parts.

Hours of a large run pass in seconds, and the same settings give the same numbers: no result
depends on a real clock, on chance or on a device, and nothing here imports JAX. `run.simulate` is
the way in; in the order of a run:

  catalogue    the scenarios by name; `recipes` makes one of a recipe for training
  scenarios    settings, and what they mean                  -> `Simulation`
  hardware     chips and a model, of which `costs` makes seconds
  workload     what episodes do: turns, lengths, latencies, drawn (`draws`) or recorded (`trace`)
  run          the controller and its stages, under virtual time (`timers`)
  environment  one episode's environment, and the few numbers that are said
  sampler      requests take the time that a cost model says (`decoding`)
  learner      and so does an update
  episodes     who was in flight, for how long, and what became of the work
  account      where all device time went
  report       the numbers, and in words what limits the run

`tune` runs many of these and recommends settings.
"""
