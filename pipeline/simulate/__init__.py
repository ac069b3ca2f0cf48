"""The real controller, ledger and rollout code under a virtual clock, with simulated parts.

Hours of a large run pass in seconds, and the same settings give the same numbers: no result
depends on a real clock, on chance or on a device, and nothing here imports JAX. `run.simulate` is
the way in; in the order of a run:

  scenarios    settings, and what they mean: `balanced`  -> `Simulation`
  agent        another built-in scenario, and all of them by name
  recipes      makes a scenario of a recipe for training
  unused       refuses settings without effect
  hardware     chips and a model, of which `costs` makes seconds (`speeds`)
  workload     what episodes do: turns, lengths, latencies, drawn (`draws`) or recorded (`trace`)
  run          the controller and its stages, under virtual time (`timers`)
  environment  one episode's environment, and the few numbers that are said
  sampler      requests take the time that a cost model says (`decoding`, `jobs`)
  learner      and so does an update
  episodes     who was in flight, for how long, and what became of the work
  account      where all device time went, and the least that it could have been
  bottleneck   what limits the run, in words
  report       the numbers, which `show` makes readable

`tune` runs many of these and recommends settings.
"""
